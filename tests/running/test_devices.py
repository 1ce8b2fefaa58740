"""Models that Accelerate has dispatched: the same numbers, wherever their weights are."""

import copy

import pytest
import torch

import orbitlens as ol
from orbitlens.running.devices import input_device

accelerate = pytest.importorskip("accelerate")
pandas = pytest.importorskip("pandas")
transformers = pytest.importorskip("transformers")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model():
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


@pytest.fixture(scope="module")
def ids():
    drawn = torch.randint(0, 32, (4, 24), generator=torch.Generator().manual_seed(1))
    return drawn.tolist()


def on_two_places(model, folder):
    """Keep the first layer in memory and the second on the disk, as a device_map would."""
    places = {name: "cpu" for name, _ in model.named_children() if name != "model"}
    places |= {f"model.{name}": "cpu" for name, _ in model.model.named_children()}
    del places["model.layers"]
    places |= {"model.layers.0": "cpu", "model.layers.1": "disk"}
    return accelerate.dispatch_model(model, places, main_device="cpu", offload_dir=folder)


DISPATCHED = {
    "put aside in memory": lambda m, _: accelerate.cpu_offload(m, execution_device=CPU),
    "put aside on disk": lambda m, folder: accelerate.disk_offload(
        m, str(folder), execution_device=CPU
    ),
    "in two places": on_two_places,
}


@pytest.mark.parametrize("how", DISPATCHED)
def test_a_dispatched_model_is_traced_audited_and_scanned_alike(model, ids, how, tmp_path):
    dispatched = DISPATCHED[how](copy.deepcopy(model), tmp_path)
    assert any(p.device.type == "meta" for p in dispatched.parameters())
    assert input_device(dispatched) == CPU
    assert ol.trace(dispatched, ids).layers == ol.trace(model, ids).layers
    ours, theirs = ol.audit(dispatched, ids).to_pandas(), ol.audit(model, ids).to_pandas()
    # Weights from a disk lie elsewhere in memory, and sums of float32 may be made in another order.
    pandas.testing.assert_frame_equal(ours, theirs, rtol=0, atol=2e-6)
    assert ol.scan(dispatched).layers == ol.scan(model).layers


def test_weights_that_are_nowhere_are_still_refused(model):
    with torch.device("meta"):
        outline = transformers.LlamaForCausalLM(model.config)
    with pytest.raises(ol.CheckpointError, match="has no data"):
        ol.scan(outline)
