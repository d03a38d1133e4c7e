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
    """A venv whose Python imports everything and answers the worker's questions with `answer`, the source of a
    program."""
    python = folder / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    (folder / "answer.py").write_text(answer)
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit 0\nexec {sys.executable} {folder}/answer.py "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return folder / "venv"


def compare(*arguments):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "OPENAI_"))}
    done = subprocess.run([sys.executable, ROOT / "bench" / "compare", "--quire", BIN_DIR / "quire", "--threads", "1",
                           *map(str, arguments)], capture_output=True, text=True, timeout=300, env=kept)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_compare_measures_both_sides_and_takes_the_better_setting_in_each_column(tmp_path, model):
    peer = fake_peer(tmp_path, '''
import json, sys
flash = sys.argv[sys.argv.index("--flash-attn") + 1] == "on"
seconds = {"prefill_s": [0.5 if flash else 1], "decode_s": [2 if flash else 1]}
print("a line that is no JSON\\n" + json.dumps({**seconds, "system_info": "none", "version": "0", "log": [], "memory_before_mb": 0}))
''')
    out = compare("--model", model, "--peer-venv", peer, "--rounds", 2, "--retries", 0, "--iters", 1, "--input-len", 16, "--output-len", 4,
                  "--batch", 3, "--batch-output-len", 2, "--json", tmp_path / "run.json", "--markdown", tmp_path / "run.md")
    run = json.loads((tmp_path / "run.json").read_text())
    ratios = run["models"][model.stem]["ratios"]
    assert {phase: (r["peer"], r["peer_tokens_per_s"]) for phase, r in ratios.items()} == {
        "prefill": ("llama.cpp, flash attention", 32), "decode": ("llama.cpp, no flash attention", 4),
        "batch": ("llama.cpp, no flash attention", 6)}
    assert all(0 < r["min"] <= r["median"] <= r["max"] and r["rounds"] == 2 for r in ratios.values())
    shares = run["models"][model.stem]["shares"]
    assert "decode of read" in shares and all(len(v) == 2 and min(v) > 0 for v in shares.values())
    table = (tmp_path / "run.md").read_text()
    assert table in out and "decode, 3 sequences at 16" in table and f"| {model.stem} | **" in table
    assert compare("--from", tmp_path / "run.json").strip() == table.strip()


def test_ratios_are_taken_round_by_round():
    # The machine was half as fast in the second round, so the ratio of the medians would be wrong.
    sides = {"quire": [30.0, 16.0, 33.0], "a": [10.0, 5.0, 10.0], "b": [9.0, 30.0, 9.0]}
    ratio = report.ratios_of({"figures": {"decode": sides}})["decode"]
    assert ratio["peer"] == "a" and (ratio["median"], ratio["min"], ratio["max"]) == (3.2, 3.0, 3.3)


def test_compare_loads_both_servers_with_the_same_prompts(tmp_path, model, sharegpt):
    with FakeServer() as peer:
        out = compare("--serve", "--peer-url", peer.url, "--peer-model", "fake", "--model", model, "--dataset-path", sharegpt, "--num-prompts", 3,
                      "--ignore-eos", "--json", tmp_path / "run.json")
    served = json.loads((tmp_path / "run.json").read_text())["serve"][0]
    ours, theirs = (served["results"][side][0] for side in ("quire", "peer"))
    assert ours["completed"] == theirs["completed"] == 3
    assert all(body["ignore_eos"] for _, _, body in peer.requests)
    assert f"| {model.stem} | {ours['output_throughput']:.1f} | {theirs['output_throughput']:.1f} | " in out
