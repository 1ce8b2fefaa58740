"""The command line leaves out what it does not use; what it left out is there when called."""

import json
import os
import subprocess
import sys

from orbitlens.checkpoint.zoo import zoo_path

HEAVY = ["scipy.stats", "scipy.optimize", "accelerate.utils", "torch._dynamo.convert_frame",
         "torch.distributed.tensor._ops", "sklearn", "pandas", "plotly", "torchvision"]  # fmt: skip


def run(code, *args):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    made = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, env=env, check=False
    )
    assert made.returncode == 0, made.stderr
    return json.loads(made.stdout.splitlines()[-1])


COMMAND = """
import json, sys
from orbitlens.cli.app import main
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended
print(json.dumps(sorted(sys.modules)))
"""


def test_a_trace_loads_nothing_that_it_does_not_use():
    loaded = set(run(COMMAND, "trace", "orbit-nano-rotary", "--max-tokens", "300"))
    assert "transformers.modeling_utils" in loaded
    assert not loaded & set(HEAVY)


def test_help_loads_neither_torch_nor_transformers():
    loaded = run(COMMAND, "--help")
    assert not {"torch", "transformers", "numpy", "rich", "threadpoolctl"} & set(loaded)


LEAN = """
import json, sys
from orbitlens.cli.lean_imports import import_leanly
if sys.argv[1] == "lean":
    import_leanly()
import torch
from orbitlens.running.model import load
model = load(sys.argv[2])
ids = torch.arange(40).reshape(2, 20)
with model.evaluating() as module:
    logits = module(input_ids=ids).logits
print(json.dumps([float(x) for x in logits.flatten()[::97]]))
"""


def test_a_model_loaded_leanly_gives_the_same_bits():
    path = str(zoo_path("orbit-nano-rotary"))
    assert run(LEAN, "lean", path) == run(LEAN, "plain", path)


LATER = """
import json, sys
from orbitlens.cli.lean_imports import Later, import_leanly
import_leanly()
from transformers.modeling_utils import PreTrainedModel
from transformers.loss.loss_for_object_detection import linear_sum_assignment
from transformers.distributed.utils import is_dtensor
import torch
said = [isinstance(linear_sum_assignment, Later), is_dtensor(torch.ones(2))]
said.append("torch.distributed.tensor._ops" in sys.modules)
said.append([x.tolist() for x in linear_sum_assignment([[4, 1], [2, 3]])])
from scipy.optimize import nnls
said.append(type(nnls).__name__)
double = torch.compile(lambda x: 2 * x, backend="eager")
said.append(double(torch.ones(2)).tolist())
from torch.distributed.tensor import DTensor
said.append(issubclass(DTensor, torch.Tensor))
print(json.dumps(said))
"""


def test_what_was_left_out_is_the_real_thing_when_it_is_called():
    assert run(LATER) == [True, False, False, [[0, 1], [1, 0]], "function", [2.0, 2.0], True]


FALLS_BACK = """
import json, sys
from orbitlens.cli import lean_imports
lean_imports.MARKS = ()
def refused(*_):
    raise TypeError
lean_imports.Later.__call__ = refused
lean_imports.import_leanly()
from transformers.activations import ACT2FN
print(json.dumps(["gelu" in ACT2FN, "accelerate.utils" in sys.modules]))
"""


def test_a_version_that_does_not_bear_it_is_loaded_as_always():
    assert run(FALLS_BACK) == [True, True]
