"""One of two processes of a group: traces and audits a small model that is spread or copied there.

    python two_processes.py FOLDER RANK

Writes what it found to FOLDER/seen{RANK}.json.
"""

import json
import os
import sys
from pathlib import Path

import accelerate
import torch
import transformers
from torch import distributed
from torch.distributed.fsdp import fully_shard

import orbitlens as ol

OPTIONS = ol.AuditOptions(samples=2, permutations=2, length=8)


def small_model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=24,
        vocab_size=32,
        max_position_embeddings=64,
    )
    return transformers.LlamaForCausalLM(config).eval()


def in_two_places(model, folder):
    """Keep the first layer in memory and the second on the disk, as a device_map would."""
    places = {"lm_head": "cpu", "model.embed_tokens": "cpu", "model.norm": "cpu"}
    places |= {"model.rotary_emb": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk"}
    return accelerate.dispatch_model(model, places, main_device="cpu", offload_dir=str(folder))


def sharded(model, _):
    """Give each process half of every weight."""
    for block in model.model.layers:
        fully_shard(block)
    return fully_shard(model)


def replicated(model, _):
    return accelerate.Accelerator(cpu=True).prepare(model)


KINDS = {
    "alone": lambda model, _: model,
    "dispatched": in_two_places,
    "replicated": replicated,
    "sharded": sharded,
}


def seen_by(kind, folder):
    ids = torch.randint(0, 32, (4, 24), generator=torch.Generator().manual_seed(1)).tolist()
    model = KINDS[kind](small_model(), folder)
    try:
        traced = ol.trace(model, ids)
        audited = ol.audit(model, ids, options=OPTIONS)
    except ol.OrbitlensError as error:
        return {"refused": str(error)}
    return {
        "changes": [layer.attention.measured_log_change for layer in traced.layers],
        "cosines": [layer.directions.cosine_before for layer in traced.layers],
        "order": audited.to_pandas().select_dtypes("number").fillna(0).to_numpy().tolist(),
    }


def main(folder, rank):
    store = distributed.FileStore(str(folder / "store"), 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.set_num_threads(1)
    own = folder / f"offloaded{rank}"
    own.mkdir()
    seen = {kind: seen_by(kind, own) for kind in KINDS}
    (folder / f"seen{rank}.json").write_text(json.dumps(seen))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
    os._exit(0)  # gloo may want Python while Python ends, and abort: pytorch#190489
