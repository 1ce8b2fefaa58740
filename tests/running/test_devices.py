"""Models that Accelerate has dispatched: the same numbers, wherever their weights are."""

import copy
import json
import subprocess
import sys

import pytest
import torch

import orbitlens as ol
from orbitlens.running.devices import input_device

accelerate = pytest.importorskip("accelerate")
pandas = pytest.importorskip("pandas")
transformers = pytest.importorskip("transformers")
two_processes = pytest.importorskip("two_processes")
in_two_places, small_model = two_processes.in_two_places, two_processes.small_model
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture(scope="module")
def ids():
    drawn = torch.randint(0, 32, (4, 24), generator=torch.Generator().manual_seed(1))
    return drawn.tolist()


DISPATCHED = {
    "put aside in memory": lambda m, _: accelerate.cpu_offload(m, execution_device=CPU),
    "put aside on disk": lambda m, folder: accelerate.disk_offload(
        m, str(folder), execution_device=CPU
    ),
    "in two places": in_two_places,
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


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Return what each of two processes found."""
    folder = tmp_path_factory.mktemp("group")
    command = [sys.executable, two_processes.__file__, str(folder)]
    workers = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for rank in (0, 1)
    ]
    try:
        said = [worker.communicate(timeout=600)[0].decode() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], said
    return [json.loads((folder / f"seen{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("kind", ["dispatched", "replicated", "sharded"])
def test_two_processes_find_what_one_does(seen, kind):
    first, second = seen
    assert len(first["alone"]["changes"]) == 2
    assert all(first["alone"]["changes"])
    assert first[kind] == second[kind] == first["alone"]
