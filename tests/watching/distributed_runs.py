"""Two processes train with and without Watch; started by test_distributed.py.

    python distributed_runs.py FOLDER

Each prints nothing; process 0 writes what it saw to FOLDER/seen.json.
"""

import json
import os
import sys
from pathlib import Path

import torch
import transformers
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import orbitlens as ol

SIZES = {"n_embd": 24, "n_head": 4, "n_layer": 2, "vocab_size": 40, "n_positions": 32}
QUIET = {"bos_token_id": 0, "eos_token_id": 0, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}
STEPS = 4


def wrapped(kind):
    torch.manual_seed(0)
    module = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, **QUIET)).train()
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(module)
    mesh = init_device_mesh("cpu", (2,))
    for block in module.transformer.h:
        fully_shard(block, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def train(kind, rank, watch):
    model = wrapped(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, readings = [], []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(2 * step + rank)
        ids = torch.randint(0, 40, (2, 12), generator=generator)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if watch is not None:
            readings.append(watch(model, step, {"input_ids": ids}, loss))
            if step == 2:  # every process is told to stop, by what the first one reads
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.mul_(float("nan"))
    return losses, readings


def main(rank, folder):
    store = distributed.FileStore(str(folder / "store"), 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.set_num_threads(1)
    seen = {}
    for kind in ("ddp", "fsdp"):
        plain, _ = train(kind, rank, None)
        watch = ol.Watch(every=1, tokens_every=2, path=folder / kind, stop_on=["not-finite"])
        losses, readings = train(kind, rank, watch)
        seen[kind] = {
            "same": plain[:3] == losses[:3],
            "stopped": watch.stopped,
            "steps": [reading and reading.step for reading in readings],
            "norms": readings[0] and readings[0].heads["norm_q"],
            "cosines": readings[0] and readings[0].tokens.cosine,
        }
    (folder / f"seen{rank}.json").write_text(json.dumps(seen))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[2]), Path(sys.argv[1]))
    os._exit(0)  # gloo may want Python while Python ends, and abort: pytorch#190489
