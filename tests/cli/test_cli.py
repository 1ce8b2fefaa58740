"""The command line: help, results, files, colours and refusals, as a user meets them."""

import contextlib
import fcntl
import json
import os
import pty
import re
import resource
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import torch
import typer
from rich.text import Text
from safetensors.torch import save_file

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.cli import app as cli
from orbitlens.cli.demo_model import write_demo_model
from orbitlens.cli.output import stdout
from orbitlens.families.registry import FAMILIES
from orbitlens.scanning.api import scan
from orbitlens.scanning.options import ScanOptions
from small_llama import refused, run, small_weights, write_config, write_small_llama

COMMANDS = sorted(typer.main.get_command(cli.app).commands)
SCRIPT = Path(sys.executable).with_name("orbitlens")
HEAVY = ["torch", "transformers", "rich", "numpy", "huggingface_hub", "safetensors", "gguf"]
HEAVY += ["scipy", "matplotlib", "plotly"]
ANSI = re.compile(r"\x1b")
COLOUR = re.compile(r"\x1b\[[0-9;]*\b(3[0-9]|38;[25];[0-9;]+|4[0-9]|9[0-7])m")


@pytest.fixture(scope="module")
def demo_model(tmp_path_factory):
    return write_demo_model(tmp_path_factory.mktemp("demo"))


@pytest.fixture
def model(tmp_path):
    return write_small_llama(tmp_path / "model")


def environment(**changes):
    """Return the environment of a plain shell; pytest and CI set variables that force colours."""
    odd = {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "PYTHONIOENCODING", "TERM", "PYTHONUTF8"}
    kept = {key: value for key, value in os.environ.items() if key not in odd}
    return kept | {"TERM": "xterm-256color", "HF_HUB_OFFLINE": "1"} | changes


def script(*arguments, command=(str(SCRIPT),), **changes):
    """Run the real script in a process of its own."""
    return subprocess.run(
        [*command, *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        env=environment(**changes),
        timeout=120,
        check=False,
    )


# --- help ------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_command_has_help(command, flag):
    outcome = run(command, flag)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"Usage: orbitlens {command}")
    assert max(map(len, outcome.out.splitlines())) <= 80


def test_the_help_lists_every_command_in_the_order_a_newcomer_needs_and_cuts_none(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    outcome = run("--help")
    assert outcome.code == 0
    lines = outcome.out.partition("Commands:\n")[2].splitlines()
    listed = [line.split()[0] for line in lines]
    assert sorted(listed) == COMMANDS
    verbs = ["demo", "scan", "trace", "audit", "positions", "explain", "report", "atlas", "explore"]
    assert listed[: len(verbs)] == verbs
    assert all(line.endswith(".") and not line.endswith("...") for line in lines)
    assert max(map(len, lines)) <= 80


def test_the_zoo_alone_lists_its_models():
    outcome = run("zoo")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == run("zoo", "list").out
    assert "orbit-nano-rotary" in outcome.out


def test_the_version_is_the_packages_own():
    from importlib.metadata import version

    outcome = run("--version")
    assert (outcome.code, outcome.out) == (0, f"orbitlens {version('orbitlens')}\n")


def test_help_is_quick_and_imports_nothing_heavy():
    code = (
        "import sys, resource\n"
        "sys.argv = ['orbitlens', '--help']\n"
        "from orbitlens.cli.app import main\n"
        "try: main()\n"
        "except SystemExit as stop: assert not stop.code\n"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)\n"
        "usage = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(usage.ru_utime + usage.ru_stime, file=sys.stderr)\n"
    )
    seconds = []
    for _ in range(3):
        finished = script(command=(sys.executable, "-c", code))
        assert finished.returncode == 0, finished.stderr
        heavy, cpu = finished.stderr.splitlines()
        assert heavy == "[]"
        seconds.append(float(cpu))
    assert min(seconds) < 0.5


@pytest.mark.parametrize(
    "arguments", [(), ("scan",), ("scna",), ("scan", "a", "b"), ("scan", "--x")]
)
def test_wrong_usage_exits_with_2_and_points_to_the_help(arguments):
    outcome = run(*arguments)
    assert outcome.code == 2
    assert "Usage: orbitlens" in outcome.out + outcome.err
    assert "Traceback" not in outcome.err


# --- results ---------------------------------------------------------------------------------


def test_a_scan_prints_words_a_table_and_a_map(demo_model):
    outcome = run("scan", demo_model)
    assert (outcome.code, outcome.err) == (0, "")
    for words in (
        "of 48 heads",
        "The most aligned is",
        "weights: the two maps",
        "normalised tokens in the flow of one head alone",
        "N2",
        "note",
        "read 395 KB",
    ):
        assert words in outcome.out
    assert not re.search(r"\bT[1-5]\b", outcome.out)  # they speak of a stream without norms


@pytest.mark.parametrize(
    "arguments",
    [(), ("--context", "64"), ("--head", "2.3"), ("--head", "decoder.5.7", "--context", "9")],
)
def test_piped_output_fits_80_columns_and_has_no_escapes(demo_model, arguments):
    outcome = run("scan", demo_model, *arguments)
    assert (outcome.code, outcome.err) == (0, "")
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert not ANSI.search(outcome.out)


@pytest.mark.parametrize("columns", [60, 45, 120])
def test_piped_output_is_as_wide_as_columns_says(demo_model, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    outcome = run("scan", demo_model, "--context", "64")
    assert (outcome.code, outcome.err) == (0, "")
    longest = max(map(len, outcome.out.splitlines()))
    assert columns - 15 <= longest <= columns
    assert ("no room in" in outcome.out) == (columns < 80)  # columns are left out, and named
    words = " ".join(outcome.out.split())
    assert all(name in words for name in ("index", "rate min", "neutral", "N2"))


@pytest.mark.parametrize("columns", ["", "0", "wide", "-5", "1e3"])
def test_columns_that_are_no_number_count_as_80(demo_model, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    outcome = run("scan", demo_model)
    assert 70 <= max(map(len, outcome.out.splitlines())) <= 80


def test_the_table_of_families_has_them_all_in_80_columns():
    outcome = run("families")
    assert (outcome.code, outcome.err) == (0, "")
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert all(f" {family} " in outcome.out for family in FAMILIES)


def test_narrow_tables_keep_every_name_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    families, zoo = run("families").out, run("zoo", "list").out
    assert max(map(len, families.splitlines())) <= 50 and "…" not in families
    assert all(f" {family} " in families for family in FAMILIES)
    assert "orbit-nano-rotary" in zoo and "…" not in zoo
    assert "no room in 50 columns for" in zoo


def test_the_json_file_is_the_scan(demo_model, tmp_path):
    file = tmp_path / "scan.json"
    outcome = run("scan", demo_model, "--layers", "0-1,5", "--context", 32, "--json", file)
    assert (outcome.code, outcome.err) == (0, "")
    assert str(file) in outcome.out.replace("\n", "")
    written = json.loads(file.read_text())
    options = ScanOptions(layers=[0, 1, 5], context=32)
    expected = json.loads(json.dumps(scan(load_checkpoint(demo_model), options).to_json()))
    header = {"orbitlens", "kind", "format"}
    assert (
        written.keys() == expected.keys() == header | {"model", "text", "layers", "cost", "flags"}
    )
    assert written.pop("cost").keys() == expected.pop("cost").keys()
    assert written == expected
    assert [path.name for path in tmp_path.iterdir()] == ["scan.json"]


@pytest.mark.parametrize("head", [(), ("--head", "0.1")])
def test_json_on_stdout_is_json_and_nothing_else(model, head):
    outcome = run("scan", model, "--json", "-", *head)
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(outcome.out)["model"]["n_heads"] == 2


@pytest.mark.parametrize("text", ["0", "1,0", "0-1", " 0 - 1 ", "0,0"])
def test_layers_are_chosen(model, text):
    outcome = run("scan", model, "--layers", text, "--json", "-")
    assert outcome.code == 0, outcome.err
    expected = {"0": [0], "0,0": [0]}.get(text, [0, 1])
    assert [layer["layer"] for layer in json.loads(outcome.out)["layers"]] == expected


def test_layers_of_one_stack_alone_are_shown(tmp_path):
    """The decoder has fewer layers than the encoder: asked for the deepest, it shows none."""
    weights = {}
    for name, value in small_weights().items():
        role, _, part = name.removeprefix("model.layers.")[2:].rpartition(".")
        if part == "bias":
            continue
        for stack in ("encoder", "decoder"):
            place = f"{stack}.block.{name.split('.')[2]}.layer.0"
            letter = role.removeprefix("self_attn.")[0]
            inner = "layer_norm" if letter == "i" else f"SelfAttention.{letter}"
            wide = value.repeat(2, 1) if letter in "kv" else value.clone()
            weights[f"{place}.{inner}.weight"] = wide
    sizes = {"head_dim": ..., "d_kv": 4, "num_key_value_heads": ..., "num_decoder_layers": 1}
    folder = write_small_llama(tmp_path, weights, model_type="t5", **sizes)
    outcome = run("scan", folder, "--layers", "1")
    assert outcome.code == 0
    assert "of 2 heads" in outcome.out


# --- files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["no/such/folder/x.json", "file/x.json", ".", "folder"])
def test_a_place_that_cannot_be_written_is_refused_and_left_clean(model, tmp_path, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    refused("scan", model, "--json", tmp_path / place, says=[place, "cannot be written"])
    assert sorted(tmp_path.rglob("*")) == before


@contextlib.contextmanager
def small_files_only(n_bytes=1000):
    """Make every write beyond `n_bytes` fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_an_earlier_result_survives_a_failed_write(model, tmp_path):
    file = tmp_path / "scan.json"
    file.write_text("the earlier result")
    before = sorted(tmp_path.iterdir())
    with small_files_only():
        refused("scan", model, "--json", file, says=["scan.json", "cannot be written", "large"])
    assert file.read_text() == "the earlier result"
    assert sorted(tmp_path.iterdir()) == before


def test_an_earlier_result_is_replaced_whole(model, tmp_path):
    file = tmp_path / "scan.json"
    file.write_text("x" * 10_000_000)
    assert run("scan", model, "--json", file).code == 0
    assert json.loads(file.read_text())["model"]["d_model"] == 8
    assert file.stat().st_mode & 0o777 == 0o644


def test_a_link_is_written_through(model, tmp_path):
    (tmp_path / "link.json").symlink_to("real.json")
    assert run("scan", model, "--json", tmp_path / "link.json").code == 0
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text())["model"]["d_model"] == 8


def test_a_device_is_written_to_and_not_replaced(model, tmp_path):
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | 0o020000, os.makedev(1, 3))  # another /dev/null
        device.write_text("")
    except OSError:
        device = Path("/dev/null")
    if device == Path("/dev/null") and os.access("/dev", os.W_OK):
        pytest.skip("a failure here would replace this machine's /dev/null")
    assert run("scan", model, "--json", device).code == 0
    assert device.is_char_device()


@pytest.mark.parametrize("name", ["[red]x[/red]", "a b\nc", "x" * 200])
def test_odd_names_of_models_and_results_are_taken_as_they_are(tmp_path, name):
    folder = write_small_llama(tmp_path / name)
    file = tmp_path / f"{name}.json"
    outcome = run("scan", folder, "--json", file)
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(file.read_text())["model"]["path"] == str(folder)
    assert "".join(name.split()) in "".join(outcome.out.split())  # lines break where a path is long


def test_a_name_of_a_result_that_is_no_text_is_written_and_shown(model, tmp_path):
    file = tmp_path / "\udcff.json"
    outcome = run("scan", model, "--json", file)
    assert (outcome.code, outcome.err) == (0, "")
    assert file.exists()
    assert r"\udcff.json" in "".join(outcome.out.split())


@pytest.mark.parametrize("columns", range(8, 20))  # the line ends before, in and after the escape
def test_an_escape_longer_than_what_it_stands_for_is_not_cut_at_the_edge(
    columns, monkeypatch, capsys
):
    monkeypatch.setenv("COLUMNS", str(columns))
    for renderable in ("written\udcff.json", Text("written\udcff.json")):
        stdout().print(renderable)
        assert "".join(capsys.readouterr().out.split()) == r"written\udcff.json"


def test_a_stream_that_knows_only_ascii_gets_ascii(model):
    outcome = run("scan", model, encoding="ascii")
    assert (outcome.code, outcome.err) == (0, "")
    assert "weights: the two maps" in outcome.out and "X x opposed" in outcome.out


def test_a_closed_output_is_no_error(model, monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.argv", ["orbitlens", "scan", str(model)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "x", "1-", "-1", "3-1", "0,,1", "1.5", "²", "0-9999999", "a-b", "99999999"]
)
def test_layers_that_are_no_numbers_are_refused(model, text):
    refused("scan", model, f"--layers={text}", says=["--layers", repr(text)])


def test_numbers_too_long_for_python_are_refused(model):
    refused("scan", model, "--layers", "9" * 5000, says=["--layers", "expected"])
    refused("scan", model, "--head", "0." + "9" * 5000, says=["--head", "expected"])


@pytest.mark.parametrize("text", ["2", "0-5", "7,99"])
def test_layers_that_the_model_has_not_are_refused(model, text):
    refused("scan", model, "--layers", text, says=["were asked for", "layers 0 to 1"])


@pytest.mark.parametrize("text", ["", "3", "1.2.3.4", "a.b", "0.-1", "²·²", "1.²"])
def test_a_head_that_is_no_place_is_refused(model, text):
    refused("scan", model, f"--head={text}", says=["--head", repr(text), "LAYER.HEAD"])


@pytest.mark.parametrize("text", ["0.2", "1.99", "encoder.0.0"])
def test_a_head_that_the_model_has_not_is_refused(model, text):
    refused("scan", model, "--head", text, says=["no head", "2 heads a layer"])


def test_a_head_in_a_layer_that_the_model_has_not_is_refused(model):
    refused("scan", model, "--head", "5.0", says=["layers [5]", "layers 0 to 1"])


def test_a_context_beyond_all_memory_is_read_or_refused(model):
    assert run("scan", model, "--context", 10**12).code in {0, 2}


@pytest.mark.parametrize("tokens", ["0", "-5"])
def test_a_context_without_tokens_is_refused(model, tokens):
    refused("scan", model, "--context", tokens, says=[f"context of {tokens}", "1 or more"])


def test_a_context_for_a_model_without_rotary_positions_is_refused(shared_model):
    folder = shared_model("gpt-nano-sort-hf")
    refused("scan", folder, "--context", 9, says=["rotary", "learned", "Leave it out"])


def test_devices_that_are_not_there_are_refused(model, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    refused("scan", model, "--device", "cuda", says=["no CUDA device", "Use the device cpu"])
    refused("scan", model, "--device", "mps", says=["float64", "Use the device cpu"])
    refused("scan", model, "--device", "toaster", says=["'toaster'", "auto, cpu, cuda or mps"])


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_devices_that_are_there_are_used(model, device):
    assert run("scan", model, "--device", device).code == 0


# --- covariances -----------------------------------------------------------------------------


@pytest.fixture
def covariance(tmp_path):
    """Return a function that writes covariances and returns the file."""

    def write(**tensors):
        named = {name.replace("_", "."): value for name, value in tensors.items()}
        save_file(named, tmp_path / "covariance.safetensors")
        return tmp_path / "covariance.safetensors"

    return write


def test_covariances_make_a_reading_data_aware(model, covariance):
    spread = torch.diag(torch.arange(1.0, 9.0))
    outcome = run("scan", model, "--covariance", covariance(decoder_0=spread), "--json", "-")
    assert outcome.code == 0, outcome.err
    first, second = json.loads(outcome.out)["layers"]
    assert first["data_aware"]["expansion_index"] != first["expansion_index"]
    assert isinstance(first["predicted_log_change"], float)
    assert second["data_aware"] is None
    shown = run("scan", model, "--covariance", covariance(decoder_0=spread))
    assert "with data" in shown.out
    assert shown.code == 0


def test_covariances_of_the_wrong_form_are_refused(model, covariance):
    for arguments, says in [
        ({"decoder_0": torch.eye(7)}, ["layer 0", "[7, 7]", "8 x 8"]),
        ({"decoder_0": torch.full((8, 8), float("nan"))}, ["layer 0", "NaN"]),
        ({"decoder_9": torch.eye(8)}, ["layer 9", "decoder 0 to 1"]),
        ({"encoder_0": torch.eye(8)}, ["encoder", "decoder 0 to 1"]),
        ({"weights": torch.eye(8)}, ["'weights'", "which layer", "'decoder.0'"]),
        ({"decoder_²": torch.eye(8)}, ["'decoder.²'", "which layer"]),
        ({"decoder_0": torch.ones(8, 8, dtype=torch.int32)}, ["'decoder.0'", "I32"]),
    ]:
        refused("scan", model, "--covariance", covariance(**arguments), says=says)


def test_covariances_that_no_tokens_have_are_refused(model, covariance):
    for matrix in (torch.zeros(8, 8), -torch.eye(8), torch.randn(8, 8)):
        refused("scan", model, "--covariance", covariance(decoder_0=matrix), says=["covariance"])


def test_a_covariance_file_that_is_none_is_refused(model, tmp_path):
    missing = tmp_path / "none.safetensors"
    refused("scan", model, "--covariance", missing, says=[str(missing), "no such file"])
    refused("scan", model, "--covariance", tmp_path, says=[str(tmp_path), "no such file"])
    missing.write_text("not safetensors")
    refused("scan", model, "--covariance", missing, says=[str(missing), "safetensors file"])


# --- hostile strings -------------------------------------------------------------------------

HOSTILE = "\x1b]0;owned\x07\x1b[31m[red]attn\r\nall is well\x9b\u202e"


def test_names_in_files_cannot_speak_to_the_terminal(tmp_path):
    folder = write_small_llama(tmp_path, {HOSTILE: torch.ones(2)}, model_type=HOSTILE)
    message = refused("scan", folder, says=["Known families", "[red]attn"])
    assert all(c.isprintable() or c == "\n" for c in message)
    assert "\nall is well" not in message


def test_names_in_an_index_cannot_speak_to_the_terminal(tmp_path):
    folder = write_small_llama(tmp_path)
    index = {"weight_map": {"a": HOSTILE.replace("\r\n", "")}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    message = refused("scan", folder, says=["shards are missing", "[red]attn"])
    assert all(c.isprintable() or c == "\n" for c in message)


def test_what_a_config_says_cannot_speak_to_the_terminal(tmp_path):
    weights = {}
    for name, value in small_weights().items():
        layer, role, part = re.fullmatch(r"model\.layers\.(\d)\.(.*)\.(\w+)", name).groups()
        inner = {"q": "self.query", "k": "self.key", "v": "self.value", "o": "output.dense"}
        if role.startswith("self_attn"):
            wide = value if role[10] not in "kv" else torch.cat([value, value])
            weights[f"encoder.layer.{layer}.attention.{inner[role[10]]}.{part}"] = wide
    folder = write_small_llama(tmp_path, weights, model_type="bert", num_key_value_heads=...)
    write_config(
        folder, model_type="bert", num_key_value_heads=..., position_embedding_type=HOSTILE
    )
    outcome = run("scan", folder)
    assert outcome.code == 0, outcome.err
    assert "[red]attn" in outcome.out
    assert all(c.isprintable() or c == "\n" for c in outcome.out)


@pytest.mark.parametrize("path", ["[red]no[/red]", "\x1b[31mred", "a\rb", "a\nb", "\udcff"])
def test_odd_paths_are_shown_harmlessly(path):
    message = refused("scan", path, says=["no such file or folder"])
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\ud800-\udfff]", message)


# --- bugs and interruptions ------------------------------------------------------------------


def test_a_bug_is_not_dressed_up_as_the_users_error(model, monkeypatch):
    def broken(*arguments, **options):
        raise ValueError("a bug")

    monkeypatch.setattr("orbitlens.running.model.load_checkpoint", broken)
    with pytest.raises(ValueError, match="a bug"):
        run("scan", model)


def test_ctrl_c_exits_with_130_and_no_traceback(model, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("orbitlens.running.model.load_layer", interrupted)
    outcome = run("scan", model)
    assert outcome.code == 130
    assert "Traceback" not in outcome.err


def test_a_bug_exits_with_1_and_a_traceback_from_the_real_script():
    code = (
        "import orbitlens.cli as cli, sys\n"
        "cli.typer.echo = None\n"
        "sys.argv = ['orbitlens', '--version']\n"
        "cli.main()\n"
    )
    finished = script(command=(sys.executable, "-c", code))
    assert finished.returncode == 1
    assert "Traceback" in finished.stderr


# --- the real script -------------------------------------------------------------------------


def test_the_script_refuses_with_2_and_one_message():
    finished = script("scan", "/no/such/model")
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr.startswith("orbitlens: /no/such/model: there is no such file or folder")
    assert finished.stderr.count("\n") == 1


def test_the_module_runs_like_the_script(model):
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    finished = script("scan", model, command=(sys.executable, "-m", "orbitlens.cli"))
    assert (finished.returncode, finished.stdout) == (2, "")
    assert "not a whole safetensors file" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_hub_name_in_the_cache_of_the_environment_is_found(model, tmp_path):
    home = tmp_path / "hub" / "models--owner--small"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("abc")
    (home / "snapshots").mkdir()
    model.rename(home / "snapshots" / "abc")
    finished = script("scan", "owner/small", "--json", "-", HF_HUB_CACHE=str(tmp_path / "hub"))
    assert (finished.returncode, finished.stderr) == (0, "")
    assert json.loads(finished.stdout)["model"]["family"] == "llama"


def test_a_reader_that_stops_early_causes_no_traceback(demo_model):
    piped = f"'{SCRIPT}' scan '{demo_model}' | head -1"
    finished = script(command=("/bin/sh", "-c", piped))
    assert finished.stdout.startswith("llama  6 layers")
    assert finished.stderr == ""


def on_a_terminal(arguments, *, streams, **changes):
    """Run the script with `streams` on a pseudo-terminal, the others piped; return all it wrote."""
    screen, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    places = {name: inside if name in streams else subprocess.PIPE for name in ("stdout", "stderr")}
    command = [str(SCRIPT), *map(str, arguments)]
    with subprocess.Popen(command, env=environment(**changes), **places) as process:
        os.close(inside)
        seen = b""
        with contextlib.suppress(OSError):  # Linux says EIO when the other side has gone
            while part := os.read(screen, 65536):
                seen += part
        piped = b"".join(s.read() for s in (process.stdout, process.stderr) if s is not None)
    os.close(screen)
    return process.returncode, seen.decode(), piped.decode()


def test_a_terminal_gets_colours_and_a_pipe_beside_it_nothing(demo_model):
    code, screen, piped = on_a_terminal(["scan", demo_model], streams=["stdout"])
    assert (code, piped) == (0, "")
    assert COLOUR.search(screen)
    assert "scanning" not in screen


def test_no_color_is_respected_on_a_terminal(demo_model):
    code, screen, _ = on_a_terminal(["scan", demo_model], streams=["stdout"], NO_COLOR="1")
    assert code == 0
    assert "weights: the two maps" in screen
    assert not COLOUR.search(screen)


def test_the_progress_bar_is_on_a_terminals_stderr_alone(demo_model):
    code, screen, piped = on_a_terminal(["scan", demo_model], streams=["stderr"])
    assert code == 0
    assert "scanning" in screen
    assert "weights: the two maps" in piped
    assert not ANSI.search(piped)
