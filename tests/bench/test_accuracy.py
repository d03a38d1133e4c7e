# SPDX-License-Identifier: Apache-2.0
"""bench/accuracy.py --types: files rewritten in another type, and the table over types and ISA levels."""

import json
import os
import subprocess
import sys

import gguf
import numpy
import pytest

from conftest import BIN_DIR, ROOT
from tools.goldens import gguf_file
from tools.shapes import make

sys.path.insert(0, str(ROOT / "bench"))
import requantise  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model with rows of 288 columns, which are no whole blocks of 256, and of 512."""
    path = tmp_path_factory.mktemp("accuracy") / "tiny.F32.gguf"
    assert make.main(["--out", str(path), "--type", "F32", "--layers", "1", "--hidden", "288", "--heads", "4", "--kv-heads", "2",
                      "--head-dim", "64", "--ffn", "512", "--vocab", "600", "--context", "256"]) == 0
    return path


@pytest.mark.parametrize("wanted", ["Q4_K", "Q5_1", "BF16"])
def test_matrices_get_the_type_where_their_rows_are_whole_blocks(model, tmp_path, wanted):
    target = tmp_path / "other.gguf"
    counts = requantise.requantise(model, target, wanted)
    before, after = gguf.GGUFReader(model), gguf.GGUFReader(target)
    for name, field in before.fields.items():
        if not name.startswith("GGUF.") and name != "general.file_type":
            assert after.fields[name].contents() == field.contents(), name
    stored = {tensor.name: tensor for tensor in after.tensors}
    for tensor in before.tensors:
        other, columns = stored[tensor.name], int(tensor.shape[0])
        expected = "F32" if len(tensor.shape) < 2 else "Q8_0" if wanted == "Q4_K" and columns % 256 else wanted
        assert other.tensor_type.name == expected, tensor.name
        values = tensor.data.reshape(-1, columns)
        if expected != "F32":
            packed = gguf_file.quantize(values, expected)
            assert (numpy.asarray(other.data).view(numpy.uint8).reshape(-1) == numpy.asarray(packed).view(numpy.uint8).reshape(-1)).all()
    assert counts[wanted] > 0 and ("Q8_0" in counts) == (wanted == "Q4_K")


def accuracy(*arguments):
    command = [sys.executable, ROOT / "bench" / "accuracy.py", *arguments]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=300)


def test_the_table_has_each_type_and_level(tmp_path):
    if not os.environ.get("QUIRE_TEST_MODEL"):
        pytest.skip("needs the default model")
    table = tmp_path / "table.json"
    done = accuracy("--model", os.environ["QUIRE_TEST_MODEL"], "--quire", BIN_DIR / "quire_logits", "--types", "Q8_0,F32", "--tokens", 12,
                    "--levels", "portable", "--scratch", tmp_path, "--json", table)
    assert done.returncode == 0, done.stderr
    found = json.loads(table.read_text())
    assert list(found) == ["Q8_0, portable", "F32, portable"]
    # F32 weights are computed in float32 by default, too. 1e-4 is what the project allows for every type.
    assert 0 < found["Q8_0, portable"]["kl_mean"] < 1e-4 and found["F32, portable"]["kl_mean"] == 0


@pytest.mark.parametrize("arguments, said", [
    (["--types", "all"], "--types needs --quire"), ([], "--goldens-python is needed"),
    (["--goldens-python", "python3", "--tokens", "5"], "--levels and --tokens need --types"),
    (["--types", "Q9_X", "--quire", "quire_logits"], "--types has Q9_X; choose from F32")])
def test_wrong_flags_are_named(tmp_path, arguments, said):
    done = accuracy("--model", "none.gguf", "--scratch", tmp_path, *arguments)
    assert done.returncode != 0 and said in done.stderr and "Traceback" not in done.stderr
