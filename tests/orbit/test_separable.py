"""Separable attention: lines of a grid, what they see, and models that are saved and read."""

import json

import pytest
import torch
from torch.nn import functional

from orbit_models import SMALL, tiny
from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.errors import InputError
from orbitlens.heads.attention import attention_output, attention_pattern
from orbitlens.heads.layers import load_layer
from orbitlens.lab.run import run_config, run_hash
from orbitlens.lab.run_state import MODEL
from orbitlens.lab.training import train
from orbitlens.orbit import OrbitConfig, OrbitForImageClassification
from orbitlens.orbit.separable import Grid, axes_of
from orbitlens.order.defect import permutation_defect
from orbitlens.order.permutations import all_permutations, rows_and_columns
from orbitlens.running.loading import build_module
from orbitlens.scanning.api import scan
from small_llama import refused, run

GRID = Grid(3, 4)
IMAGES = {"image_size": [6, 8], "patch_size": 2, "num_labels": 5, "mask": "full"}


def separable(**switches):
    return tiny(**{**IMAGES, "attention": "separable", **switches}).requires_grad_(False)


def pictures(n=2, *, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 1, 6, 8, dtype=torch.float64, generator=generator)


# --- lines -----------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", ["columns", "rows"])
def test_tokens_go_to_lines_and_back_to_their_places(axis, generator):
    x = torch.randn(2, 13, 5, generator=generator)
    lines = GRID.lines(x, axis)
    assert lines.shape == ((2 * 4, 4, 5) if axis == "columns" else (2 * 3, 5, 5))
    torch.testing.assert_close(GRID.whole(lines, axis), x)
    second = GRID.members(axis)[1]
    assert torch.equal(lines[1], x[0, second])
    assert second.tolist() == ([0, 2, 6, 10] if axis == "columns" else [0, 5, 6, 7, 8])


def test_copies_of_the_class_token_are_averaged():
    x = torch.zeros(1, 13, 1)
    lines = GRID.lines(x, "columns")
    lines[:, 0, 0] = torch.tensor([1.0, 2.0, 3.0, 6.0])
    assert GRID.whole(lines, "columns")[0, 0, 0] == 3.0


def test_layers_take_turns():
    def turns(**switches):
        return axes_of(OrbitConfig(**SMALL, **IMAGES, attention="separable", **switches))

    assert turns() == ("columns", "rows", "columns")
    assert turns(axes="rows-columns") == ("rows", "columns", "rows")
    assert set(turns(axes="rows")) == {"rows"}


# --- what a layer does -----------------------------------------------------------------------


@pytest.mark.parametrize("axis", ["columns", "rows"])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_a_patch_sees_its_own_line_alone(axis, mask):
    model = separable(axes=axis, num_hidden_layers=1, mask=mask)
    x = pictures(1)
    changed = x.clone()
    changed[0, 0, 2:4, 4:6] += 1.0  # the patch in row 1, column 2: token 7
    before, after = (model.model(pixel_values=p).last_hidden_state[0] for p in (x, changed))
    moved = ((before - after).abs().amax(dim=1) > 1e-12).nonzero()[:, 0].tolist()
    line = {"columns": [3, 7, 11], "rows": [5, 6, 7, 8]}[axis]
    assert moved == [0] + [k for k in line if mask == "full" or k >= 7]


def test_a_layer_is_plain_attention_on_each_line():
    model = separable(axes="rows", num_hidden_layers=1, position="none", norm="none", mlp=False)
    layer = model.model.layers[0]
    x = model.model.embed_patches(pictures(1))
    for row in GRID.members("rows"):
        tokens = x[:, row]
        q, k, v = layer.self_attn.qkv_proj(tokens).view(1, 5, 3, 4, 6).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        expected = (tokens + layer.self_attn.o_proj(mixed))[0, 1:]
        found = model.model(pixel_values=pictures(1)).last_hidden_state[0, row[1:]]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("position", ["none", "learned", "sinusoidal", "rotary", "alibi", "t5"])
def test_patterns_are_those_of_lines_and_sum_to_one(position):
    model = separable(position=position)
    found = model(pixel_values=pictures(), output_attentions=True)
    torch.testing.assert_close(found.logits, model(pixel_values=pictures()).logits)
    for pattern, axis in zip(found.attentions, ("columns", "rows", "columns"), strict=True):
        assert pattern.shape == (2, 4, 13, 13)
        torch.testing.assert_close(pattern.sum(dim=-1), torch.ones(2, 4, 13, dtype=torch.float64))
        line = torch.arange(12) % 4 if axis == "columns" else torch.arange(12) // 4
        apart = line[:, None] != line[None, :]
        assert (pattern[:, :, 1:, 1:][:, :, apart] == 0).all()
        shares = pattern[:, :, 0, 1:].unflatten(-1, (3, 4)).sum(dim=2 if axis == "columns" else 3)
        assert (shares < 1 / (4 if axis == "columns" else 3)).all()  # the rest is its own


def test_positions_are_told_along_one_axis_in_tables_of_that_length():
    model = separable()
    sizes = {n: p.shape[0] for n, p in model.named_parameters() if "positions" in n}
    assert sizes == {
        "model.layers.0.line_positions.columns.weight": 4,
        "model.layers.1.line_positions.rows.weight": 5,
        "model.layers.2.line_positions.columns.weight": 4,
    }
    shared = separable(shared_layers=True)
    assert sum(p.shape[0] for n, p in shared.named_parameters() if "positions" in n) == 4 + 5


def test_ids_and_masks_of_the_whole_grid_are_told_to_lines():
    for position in ("learned", "rotary", "t5"):
        model = separable(position=position, mask="causal")
        own = model(pixel_values=pictures()).logits
        ids = torch.arange(1, 13)[None]
        visible = torch.ones(13, 13, dtype=torch.bool).tril()
        visible[0], visible[1:, 0] = True, False
        same = model(pixel_values=pictures(), position_ids=ids, attention_mask=visible[None, None])
        torch.testing.assert_close(same.logits, own, rtol=0, atol=1e-12)
        other = model(pixel_values=pictures(), position_ids=ids.flip(1)).logits
        assert (other - own).abs().max() > 1e-3
        everyone = torch.zeros(1, 1, 13, 13, dtype=torch.float64)
        other = model(pixel_values=pictures(), attention_mask=everyone).logits
        assert (other - own).abs().max() > 1e-3


# --- symmetry --------------------------------------------------------------------------------


def test_without_positions_rows_and_columns_may_be_permuted_and_bins_may_not():
    def logits(items):
        image = items.view(3, 4, 2, 2).permute(0, 2, 1, 3).reshape(1, 1, 6, 8)
        return model(pixel_values=image).logits[0]

    items = pictures(1).reshape(3, 2, 4, 2).permute(0, 2, 1, 3).reshape(12, 2, 2)
    model = separable(position="none")
    assert permutation_defect(logits, items, rows_and_columns(3, 4)) < 1e-12
    assert permutation_defect(logits, items, all_permutations(12)) > 1e-3
    model = separable()
    assert permutation_defect(logits, items, rows_and_columns(3, 4)) > 1e-3


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("switches", "says"),
    [
        ({"attention": "separable"}, "model of tokens"),
        ({**IMAGES, "axes": "rows"}, "belongs to attention 'separable'"),
        ({**IMAGES, "attention": "separable", "axes": "up"}, "rows-columns"),
        ({**IMAGES, "attention": "separable", "refinement": "reinjection"}, "by itself"),
        ({**IMAGES, "attention": "separable", "refinement": "guard"}, "softmax"),
        ({**IMAGES, "image_size": [6, 7]}, "patches of 2"),
        ({**IMAGES, "image_size": [6, 8, 2]}, "height, width"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_means_nothing_is_refused(switches, says):
    with pytest.raises(InputError, match=says):
        OrbitConfig(**SMALL, **switches)


def test_what_is_no_whole_image_is_refused():
    model = separable(mask="causal")
    with pytest.raises(InputError, match="no cache"):
        model(pixel_values=pictures(), use_cache=True)
    with pytest.raises(InputError, match="4-D"):
        model(pixel_values=pictures(), attention_mask=torch.ones(2, 13))
    with pytest.raises(InputError, match="3 x 4"):
        model.model(inputs_embeds=torch.zeros(1, 5, 24, dtype=torch.float64))
    with pytest.raises(InputError, match=r"\[1, 6, 8\]"):
        model(pixel_values=torch.zeros(1, 1, 8, 6, dtype=torch.float64))


# --- as any other model ----------------------------------------------------------------------


def test_a_pair_of_equal_sides_is_a_square():
    switches = {**IMAGES, "attention": "softmax"}
    square, pair = (tiny(**{**switches, "image_size": size}) for size in (8, [8, 8]))
    x = torch.randn(1, 1, 8, 8, dtype=torch.float64)
    assert torch.equal(square(x).logits, pair(x).logits)


def test_heads_recompute_what_a_line_did(tmp_path):
    model = separable()
    model.save_pretrained(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    patterns = model(pixel_values=pictures(1), output_attentions=True).attentions
    states = model(pixel_values=pictures(1), output_hidden_states=True).hidden_states
    layer = load_layer(checkpoint, 1)
    block = model.model.layers[1]
    row = GRID.members("rows")[2]
    seen = layer.normalise(states[1][0, row] + block.line_positions["rows"].weight)
    pattern = attention_pattern(layer, seen)
    torch.testing.assert_close(pattern[:, 1:], patterns[1][0][:, row[1:]][:, :, row])
    written = []
    hook = block.self_attn.register_forward_hook(lambda m, a, out: written.append(out[0]))
    model(pixel_values=pictures(1))
    hook.remove()
    torch.testing.assert_close(attention_output(layer, seen), written[0][2])


def test_a_scan_says_which_layers_look_along_which_axis(tmp_path):
    separable(axes="rows-columns").save_pretrained(tmp_path)
    found = scan(load_checkpoint(tmp_path))
    assert len(found.layers) == 3 and len(found.layers[0].heads) == 4
    flag = next(flag for flag in found.flags if "separable" in flag)
    assert "layers 0, 2 within rows" in flag and "layers 1 within columns" in flag
    tiny(**IMAGES).save_pretrained(tmp_path / "joint")
    assert not any("separable" in f for f in scan(load_checkpoint(tmp_path / "joint")).flags)


def test_a_trained_model_is_saved_and_loaded_as_it_was(tmp_path):
    settings = {"task": "digits", "attention": "separable", "layers": 2, "width": 8, "heads": 2}
    config = run_config({**settings, "steps": 3, "warmup": 1, "batch": 8, "judged": 16})
    result = train(config, tmp_path)
    folder = tmp_path / run_hash(config) / MODEL
    model = build_module(folder)
    assert isinstance(model, OrbitForImageClassification)
    assert model.config.attention == "separable" and result.parameters < 2000
    assert "line_positions.rows" in " ".join(name for name, _ in model.named_parameters())
    assert json.loads((folder / "config.json").read_text())["axes"] == "columns-rows"


def test_runs_of_before_keep_their_hash_and_axes_have_one_of_their_own():
    def hashed(**settings):
        return run_hash(run_config({"task": "digits", **settings}))

    assert hashed() == hashed(axes="columns-rows", attention="softmax")
    along = {"attention": "separable"}
    assert len({hashed(), hashed(**along), hashed(**along, axes="rows")}) == 3


def test_the_command_trains_and_scans_and_refuses_a_task_of_tokens(tmp_path):
    out = str(tmp_path)
    sizes = ("--layers", "2", "--width", "8", "--heads", "2", "--steps", "2", "--batch", "8")
    found = run("train", "digits", "--attention", "separable", *sizes, "--out", out)
    assert found.code == 0, found.err
    folder = next(tmp_path.glob("*/model"))
    file = tmp_path / "scan.json"
    assert run("scan", str(folder), "--json", str(file)).code == 0
    flags = json.loads(file.read_text())["flags"]
    assert any("within columns" in flag for flag in flags)
    refused("train", "addition", "--attention", "separable", "--out", out, says=["model of tokens"])


def test_an_audit_says_what_cannot_be_switched_off_and_refuses_oblong_images(tmp_path):
    separable(image_size=8).float().save_pretrained(tmp_path / "square")
    file = tmp_path / "audit.json"
    options = ("--samples", "4", "--permutations", "2", "--json", str(file))
    found = run("audit", str(tmp_path / "square"), *options)
    assert found.code == 0, found.err
    audit = json.loads(file.read_text())
    assert [name for name, cell in audit["cells"].items() if cell is not None] == ["pe_full"]
    assert all("separable attention" in reason for reason in audit["not_ablatable"].values())
    separable().float().save_pretrained(tmp_path / "oblong")
    refused("audit", str(tmp_path / "oblong"), says=["6 x 8", "square"])
