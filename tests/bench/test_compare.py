# SPDX-License-Identifier: Apache-2.0
"""bench/compare with a peer whose figures are all known, and the models that tools/shapes makes for it."""

import json
import os
import stat
import subprocess
import sys

import gguf
import numpy
import pytest

from conftest import BIN_DIR, ROOT
from fake_server import FakeServer
from tools.shapes import make

sys.path.insert(0, str(ROOT / "bench"))
import compare_report as report  # noqa: E402

TINY = ["--layers", "2", "--hidden", "256", "--heads", "4", "--kv-heads", "2", "--head-dim", "64", "--ffn", "512", "--vocab", "600",
        "--context", "256"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("shapes") / "tiny.Q8_0.gguf"
    assert make.main(["--out", str(path), "--type", "Q8_0", *TINY]) == 0
    return path


def weights(path):
    return {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}


@pytest.mark.parametrize("dtype", [t for t in make.TYPES if t != "F32"])
def test_all_types_of_a_shape_are_roundings_of_the_same_model(tmp_path, bench, dtype):
    exact, rounded = tmp_path / "exact.gguf", tmp_path / "rounded.gguf"
    small = [*TINY, "--layers", "1", "--no-tied"]
    assert make.main(["--out", str(exact), "--type", "F32", *small]) == 0
    assert make.main(["--out", str(rounded), "--type", dtype, *small]) == 0
    a, b = weights(exact), weights(rounded)
    assert a.keys() == b.keys() and "output.weight" in a and "blk.0.attn_q_norm.weight" in a
    kinds = {t.name: t.tensor_type.name for t in gguf.GGUFReader(rounded).tensors}
    assert kinds["blk.0.ffn_up.weight"] == dtype and kinds["output_norm.weight"] == "F32"
    assert kinds["output.weight"] == (dtype if dtype in ("F16", "BF16", "Q8_0") else "Q8_0")
    bits = {"Q2_K": 2, "Q3_K": 3, "Q4_0": 4, "Q4_1": 4, "Q4_K": 4}.get(dtype, 5)
    for name, values in a.items():
        assert values.shape == b[name].shape
        error = numpy.sqrt(numpy.mean((values - b[name]) ** 2)) / numpy.sqrt(numpy.mean(values**2))
        # A step is about 6 standard deviations over 2^bits, and the error a step over sqrt(12); twice that for coarse
        # scales.
        assert error < 2 * 6 / 2**bits / 12**0.5, (name, error)
    done = bench("latency", "--model", rounded, "--input-len", 8, "--output-len", 4, "--num-iters", 1, "--num-iters-warmup", 0, "--json")
    assert done.returncode == 0, done.stderr


def test_a_mix_has_wider_matrices_in_some_layers(tmp_path):
    path = tmp_path / "mix.gguf"
    assert make.main(["--out", str(path), "--type", "Q4_K_M", *TINY, "--layers", "8"]) == 0
    kinds = {t.name: t.tensor_type.name for t in gguf.GGUFReader(path).tensors}
    for name in ("attn_v", "ffn_down"):
        assert [i for i in range(8) if kinds[f"blk.{i}.{name}.weight"] == "Q6_K"] == [0, 3, 6, 7]
    assert kinds["blk.0.ffn_up.weight"] == kinds["blk.1.ffn_down.weight"] == "Q4_K" and kinds["token_embd.weight"] == "Q6_K"


def test_a_shape_borrows_another_models_vocabulary(tmp_path, model):
    path = tmp_path / "more.gguf"
    assert make.main(["--out", str(path), *TINY, "--vocab", "700", "--tokenizer-from", str(model)]) == 0
    tokens = gguf.GGUFReader(path).fields["tokenizer.ggml.tokens"].contents()
    assert tokens[:600] == gguf.GGUFReader(model).fields["tokenizer.ggml.tokens"].contents() and len(set(tokens)) == 700
    assert make.main(["--out", str(path), *TINY, "--vocab", "300", "--tokenizer-from", str(model)]) == 1


def test_a_shape_that_a_type_cannot_hold_is_named_before_anything_is_written(tmp_path, capsys):
    assert make.main(["--out", str(tmp_path / "x.gguf"), *TINY, "--hidden", "240"]) == 1
    assert "multiple of 32 values" in capsys.readouterr().err and not list(tmp_path.iterdir())


def fake_peer(folder, answer):
    """A venv whose Python imports everything and answers the worker's questions with `answer`, the source of a program that
    has the worker's arguments in `given` and fills `out`."""
    python = folder / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    (folder / "answer.py").write_text(f'''
import json, sys
given = dict(zip(sys.argv[3::2], sys.argv[4::2]), command=sys.argv[2])
out = {{"system_info": "none", "version": "0", "log": [], "memory_before_mb": 0, "decode_steps": [int(given["--output-len"])],
       "depth": [int(given["--input-len"])]}}
{answer}
print("a line that is no JSON\\n" + json.dumps(out))
''')
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit 0\nexec {sys.executable} {folder}/answer.py "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return folder / "venv"


# With flash attention the prefill takes half a second and the decode two seconds, otherwise both take one second.
LLAMA_CPP = """
flash = given["--flash-attn"] == "on"
out |= {"prefill_s": [0.5 if flash else 1], "decode_s": [2 if flash else 1]}
"""
SMALL = ["--retries", 0, "--iters", 1, "--input-len", 16, "--output-len", 4, "--batch", 3, "--batch-output-len", 2]


def run_compare(*arguments, env=None):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "OPENAI_"))}
    # Of the limits, which are measured before and after each round: one sample each, of a small buffer.
    kept |= {"QUIRE_SAMPLES": "1", "QUIRE_QUICK": "1"}
    return subprocess.run([sys.executable, ROOT / "bench" / "compare", "--quire", BIN_DIR / "quire", "--threads", "1",
                           *map(str, arguments)], capture_output=True, text=True, timeout=300, env=kept | (env or {}))


def compare(*arguments, env=None):
    done = run_compare(*arguments, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_compare_measures_all_sides_and_takes_the_best_setting_in_each_column(tmp_path, model):
    # OpenVINO is the faster one only in the prefill with plain attention, and at depth 0 in float32.
    peer, openvino = fake_peer(tmp_path / "a", LLAMA_CPP), fake_peer(tmp_path / "b", """
plain, exact = given["--attention"] == "SDPA", given.get("--precision") == "f32"
out |= {"prefill_s": [0.25 if plain else 4], "decode_s": [0.5 if exact and given["--input-len"] == "1" else 8]}
""")
    out = compare("--model", model, "--peer-venv", peer, "--openvino-venv", openvino, "--rounds", 2, *SMALL, "--json", tmp_path / "run.json",
                  "--markdown", tmp_path / "run.md")
    run = json.loads((tmp_path / "run.json").read_text())
    found = run["models"][model.stem]
    assert {phase: (r["peer"], r["peer_tokens_per_s"]) for phase, r in found["ratios"].items()} == {
        "prefill": ("openvino, plain attention", 64), "decode_0": ("openvino, paged attention, float32", 8),
        "decode": ("llama.cpp, no flash attention", 4), "batch": ("llama.cpp, no flash attention", 6)}
    assert all(0 < r["min"] <= r["median"] <= r["max"] and r["rounds"] == 2 for r in found["ratios"].values())
    assert "openvino, paged attention" in found["figures"]["batch"] and "openvino, plain attention" not in found["figures"]["batch"]
    assert {"decode_0 of read", "decode of read"} <= found["shares"].keys()
    assert all(len(v) == 2 and min(v) > 0 for v in found["shares"].values()) and found["notes"] == []
    table = (tmp_path / "run.md").read_text()
    assert table in out and "| decode at 0 | decode at 16 | decode, 3 sequences at 16 |" in table and f"| {model.stem} | **" in table
    assert compare("--from", tmp_path / "run.json").strip() == table.strip()


def test_a_file_that_a_peer_cannot_read_gives_one_sentence_and_empty_cells(tmp_path, model):
    peer, openvino = fake_peer(tmp_path / "a", LLAMA_CPP), fake_peer(tmp_path / "b", 'out = {"unreadable": "Unsupported quantization type"}')
    out = compare("--model", model, "--peer-venv", peer, "--openvino-venv", openvino, "--rounds", 2, *SMALL, "--json", tmp_path / "run.json")
    sentence = f"{model.stem}: openvino cannot read this file: Unsupported quantization type."
    assert out.count(sentence) == 2  # when it happens, and below the tables
    found = json.loads((tmp_path / "run.json").read_text())["models"][model.stem]
    assert found["notes"] == [sentence] and {r["peer"].split(",")[0] for r in found["ratios"].values()} == {"llama.cpp"}


def test_a_peer_that_fails_or_decodes_something_else_is_left_out_of_that_column(tmp_path, model):
    # Without flash attention the worker ends with 3 in the second round's batch; with it, the decode of a long prompt has a
    # step too few.
    peer = fake_peer(tmp_path, LLAMA_CPP + """
import pathlib
before = pathlib.Path(sys.argv[0]).with_name("before")
if not flash and given["command"] == "batch" and before.exists():
    sys.exit(sys.stderr.write("no memory\\n") and 3)
if not flash and given["command"] == "batch":
    before.touch()
out["decode_steps"][0] -= flash and given["command"] == "speed" and given["--input-len"] == "16"
""")
    out = compare("--model", model, "--peer-venv", peer, "--peers", "llama.cpp", "--rounds", 2, *SMALL, "--json", tmp_path / "run.json")
    found = json.loads((tmp_path / "run.json").read_text())["models"][model.stem]
    on, off = "llama.cpp, flash attention", "llama.cpp, no flash attention"
    assert {phase: sides.keys() - {"quire"} for phase, sides in found["figures"].items()} == {
        "prefill": {off}, "decode": {off}, "decode_0": {on, off}, "batch": {on}}
    assert found["notes"] == [
        f'{model.stem}: {on} has no figure for "prefill 16" and "decode at 16": its decode began at [16] tokens and had [3] steps of the '
        "whole batch, instead of 16 and 4.", f'{model.stem}: {off} has no figure for "decode, 3 sequences at 16": ended with 3: no memory.']
    assert all(out.count(note) == 2 for note in found["notes"]) and "openvino" not in out


def test_a_peer_that_cannot_be_installed_is_left_out_unless_it_was_asked_for(tmp_path, model):
    peer, offline = fake_peer(tmp_path, LLAMA_CPP), {"PIP_NO_INDEX": "1"}
    common = ["--model", model, "--peer-venv", peer, "--openvino-venv", tmp_path / "none", "--rounds", 1, "--no-batch", *SMALL]
    out = compare(*common, env=offline)
    assert f"openvino is left out, because it cannot be installed into {tmp_path / 'none'}" in out and f"| {model.stem} | **" in out
    done = run_compare(*common, "--peers", "llama.cpp,openvino", env=offline)
    assert done.returncode == 1 and f"openvino cannot be installed into {tmp_path / 'none'}" in done.stderr


def test_a_peer_that_compare_does_not_know_is_named(model):
    done = run_compare("--model", model, "--peers", "llama.cpp,other")
    assert done.returncode == 2 and "'other' is none of llama.cpp, openvino" in done.stderr


def test_ratios_are_taken_round_by_round():
    # The machine was half as fast in the second round, so the ratio of the medians would be wrong.
    sides = {"quire": [30.0, 16.0, 33.0], "a": [10.0, 5.0, 10.0], "b": [9.0, 30.0, 9.0]}
    ratio = report.ratios_of({"figures": {"decode": sides}})["decode"]
    assert ratio["peer"] == "a" and (ratio["median"], ratio["min"], ratio["max"]) == (3.2, 3.0, 3.3)


FIGURES = {"prefill": {"quire": [30.0, 40.0], "llama.cpp, a": [10.0, 10.0], "openvino, a": [20.0, 10.0]}, "batch": {"quire": [5.0, 5.0]}}
WORKLOAD = {"input_len": 512, "output_len": 128, "batch": 32, "batch_output_len": 32}


def a_run(**more):
    model = {"file_bytes": 2e6, "figures": FIGURES, "others": {}, "shares": {}, "memory": {
        "decode": {"quire": [10.0, 12.0], "llama.cpp, a": [30.0, 30.0], "llama.cpp, b": [20.0, 20.0]}, "batch": {"quire": [50.0]}}, **more}
    return {"machine": {"cpu": "A CPU", "threads": 2, "peer": "some peers"}, "workload": WORKLOAD, "models": {"m": model}, "serve": []}


def test_a_column_names_its_peer_and_is_empty_where_there_is_none():
    assert report.speed_table(a_run()).splitlines() == [
        "| quire / the best peer | prefill 512 | decode, 32 sequences at 512 |", "| --- | --- | --- |",
        "| m | **2.75x** (1.50..4.00), 35 / 15 tok/s (openvino, a) |  |"]
    assert report.side_table(a_run()).splitlines()[2:] == [
        "| m | quire | 35.0 (30.0..40.0) | 5.0 (5.0..5.0) |", "| m | llama.cpp, a | 10.0 (10.0..10.0) |  |",
        "| m | openvino, a | 15.0 (10.0..20.0) |  |"]


def test_the_memory_of_a_peer_is_that_of_its_thriftiest_setting():
    assert report.memory_table(a_run()).splitlines() == [
        "| peak memory, MB | file | quire, 1 sequence | llama.cpp | openvino | quire, 32 sequences | llama.cpp | openvino |",
        "| --- |" + " --- |" * 7, "| m | 2 | 11 | 20 |  | 50 |  |  |"]


def test_shares_count_the_bytes_of_each_depth():
    work = {"prompt_operations": 512e9, "weight_bytes": 1000, "token_bytes": 1}
    before, after = {"int8": 50e9, "read": 10_000}, {"int8": 150e9, "read": 30_000}
    found = report.shares(work, {"prefill": 25, "decode": 5}, before, after, WORKLOAD)
    assert found == {"prefill of int8": 0.25, "decode of read": 5 * (1000 + 512 + 64) / 20_000}
    assert report.shares(work, {"decode_0": 5}, before, after, WORKLOAD) == {"decode_0 of read": 5 * (1000 + 64) / 20_000}
    table = report.share_table(a_run(shares={key: [0.5, 0.7] for key in [*found, "decode_0 of read"]}))
    assert table.splitlines()[0].endswith("| prefill, of the int8 peak | decode at 0, of the read bandwidth | decode at 512, of the read bandwidth |")
    assert table.splitlines()[2] == "| m |" + " 60% (50..70) |" * 3


def test_steps_are_equal_only_if_every_iteration_has_the_depth_and_the_number():
    assert report.steps_problem([512, 512], [128, 128], 512, 128) is None
    assert report.steps_problem([512, 512], [128, 127], 512, 128) == (
        "its decode began at [512] tokens and had [127, 128] steps of the whole batch, instead of 512 and 128")
    assert report.steps_problem([513], [128], 512, 128) is not None


def test_notes_stand_below_the_tables():
    assert report.markdown(a_run(notes=["m: a peer has no figure."])).endswith("\n\nm: a peer has no figure.\n")


def test_compare_loads_both_servers_with_the_same_prompts(tmp_path, model, sharegpt):
    with FakeServer() as peer:
        out = compare("--serve", "--peer-url", peer.url, "--peer-model", "fake", "--model", model, "--dataset-path", sharegpt, "--num-prompts", 3,
                      "--ignore-eos", "--json", tmp_path / "run.json")
    served = json.loads((tmp_path / "run.json").read_text())["serve"][0]
    ours, theirs = (served["results"][side][0] for side in ("quire", "peer"))
    assert ours["completed"] == theirs["completed"] == 3
    assert all(body["ignore_eos"] for _, _, body in peer.requests)
    assert f"| {model.stem} | {ours['output_throughput']:.1f} | {theirs['output_throughput']:.1f} | " in out
