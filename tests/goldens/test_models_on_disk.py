# SPDX-License-Identifier: Apache-2.0
"""Every family as files on disk: quire reads safetensors and GGUF, and gives the results of transformers.

The C++ test (tests/models/golden_test.cc) makes the weights in memory; here they go through the two readers. Logits
come from the binary quire_logits. The prompt and its 64 golden tokens are fed at once, so each position shows the token
that it would choose.
"""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tools.goldens import cases, export, floats, gguf_families, gguf_file, philox, safetensors_file  # noqa: E402

QUIRE_LOGITS = pathlib.Path(os.environ.get("QUIRE_BIN_DIR", ROOT / "build")) / "quire_logits"
PROMPTS = (2, 64, 700)
AHEAD = sorted(file.parent.name for file in export.GOLDENS.glob("*/ahead.json"))


def run_quire(model: pathlib.Path, tokens: list[int], length: int, scratch: pathlib.Path) -> np.ndarray:
    (scratch / "ids.json").write_text(json.dumps(tokens))
    done = subprocess.run([QUIRE_LOGITS, "--model", model, "--tokens", scratch / "ids.json", "--out", scratch / "logits.f32",
                           "--dtype", "float32", "--max-model-len", str(length)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return np.fromfile(scratch / "logits.f32", dtype="<f4").reshape(len(tokens), -1)


def tolerance(prompt: dict) -> float:
    """For another order of float32 sums; derived, as in golden_test.cc, from the reference's own distance to
    float64."""
    return 8 * prompt["reference_noise"] + 32 * 2.0**-23 * prompt["max_abs_logit"]


def check_prompt(prompt: dict, logits: np.ndarray, before: int) -> None:
    """Positions from `before` on are ignored."""
    allowed, size = tolerance(prompt), len(prompt["tokens"])
    for row in (row for row in prompt["rows"] if row["position"] < before):
        worst = np.abs(logits[row["position"]] - floats.decode(row["logits"])).max()
        assert worst <= allowed, f"position {row['position']} of {size}: off by {worst:.3g}, allowed {allowed:.3g}"
    gaps = floats.decode(prompt["gaps"])
    for step, token in enumerate(prompt["greedy"]):
        if size - 1 + step < before and int(np.argmax(logits[size - 1 + step])) != token:
            assert gaps[step] < 2 * allowed, f"prompt of {size}: another token at step {step}, gap {gaps[step]:.3g}"


def check_case(name: str, model: pathlib.Path, scratch: pathlib.Path, before: int = 1 << 30) -> None:
    expected = json.loads((export.GOLDENS / name / "expected.json").read_text())
    for prompt in expected["prompts"]:
        if len(prompt["tokens"]) in PROMPTS:
            tokens = prompt["tokens"] + prompt["greedy"][:-1]
            check_prompt(prompt, run_quire(model, tokens, expected["max_model_len"], scratch), before)


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_safetensors_give_the_reference_results(case, tmp_path):
    shards = 1 + cases.CASES.index(case) % 3
    export.main(["--case", case.name, "--out", str(tmp_path / "model"), "--shards", str(shards)])
    check_case(case.name, tmp_path / "model", tmp_path)


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_gguf_gives_the_reference_results(case, tmp_path):
    if case.name in gguf_families.NOT_IN_GGUF:
        pytest.skip(gguf_families.NOT_IN_GGUF[case.name])
    model = tmp_path / "model.gguf"
    export.main(["--case", case.name, "--out", str(model), "--max-model-len", str(case.max_model_len)])
    check_case(case.name, model, tmp_path, gguf_families.NO_WINDOW.get(case.name, 1 << 30))


def check_drafts(model: pathlib.Path, config: dict, expected: dict, scratch: pathlib.Path, tokens: list[int], most: int = 3) -> None:
    """The first drafts after each prompt; `tokens` are those whose logits the reference has."""
    config = json.dumps({**config, "num_speculative_tokens": 3})
    for prompt in expected["prompts"]:
        (scratch / "ids.json").write_text(json.dumps(prompt["tokens"]))
        done = subprocess.run([QUIRE_LOGITS, "--model", model, "--tokens", scratch / "ids.json", "--out", scratch / "out", "--drafts",
                               scratch / "drafts", "--max-tokens", "6", "--dtype", "float32", "--speculative-config", config,
                               "--max-model-len", str(expected["max_model_len"])], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        drafts = np.fromfile(scratch / "drafts", dtype="<f4").reshape(-1, 512)
        for row, got, draft in list(zip(prompt["rows"], drafts, prompt["drafts"], strict=False))[:most]:
            assert np.abs(got[tokens] - floats.decode(row)).max() <= tolerance(prompt)
            assert np.delete(got, tokens).max(initial=-2e30) < -1e29
            if int(np.argmax(got[tokens])) != draft:
                break  # a tie; the next draft follows another token


@pytest.mark.parametrize("form", ["folder", "file.gguf"])
@pytest.mark.parametrize("name", AHEAD)
def test_layers_for_multi_token_prediction_give_the_reference_drafts(name, form, tmp_path):
    export.main(["--case", name, "--out", str(tmp_path / form)])
    expected = json.loads((export.GOLDENS / name / "ahead.json").read_text())
    check_drafts(tmp_path / form, {"method": "mtp"}, expected, tmp_path, list(range(512)))


@pytest.mark.parametrize("shift", [0, 100])
def test_eagle_layers_give_the_reference_drafts(shift, tmp_path):
    """Also with other tokens in its head (d2t) and with the layer's newer name; then only the first draft is the reference's."""
    export.main(["--case", "llama", "--out", str(tmp_path / "model")])
    source = export.GOLDENS / "llama" / "eagle3"
    expected = json.loads((source / "ahead.json").read_text())
    tensors = {name: philox.tensor(name, tuple(shape)) for name, shape in expected["tensors"].items()}
    if shift:
        tensors = {name.replace("midlayer.", "layers.0."): values for name, values in tensors.items()}
    rows = len(tensors["lm_head.weight"])
    tensors["d2t"] = np.full(rows, shift, dtype=np.int64)
    folder = tmp_path / "eagle"
    folder.mkdir()
    (folder / "config.json").write_text((source / "config.json").read_text())
    safetensors_file.write_folder(folder, tensors, "F32", 1)
    check_drafts(tmp_path / "model", {"method": "eagle3", "model": str(folder)}, expected, tmp_path,
                 list(range(shift, shift + rows)), 1 if shift else 3)


@pytest.mark.parametrize("dtype", [t for t in gguf_file.TYPES if t != "F32"])
def test_each_weight_type_equals_its_dequantised_values(dtype, tmp_path):
    """The type's file against a float32 folder of the values that the gguf package unpacks from it."""
    import gguf
    from tools.goldens import shapes

    model, folder = tmp_path / "model.gguf", tmp_path / "float32"
    export.main(["--case", "llama-wide", "--out", str(model), "--type", dtype])
    config = json.loads((export.GOLDENS / "llama-wide" / "config.json").read_text())
    d = shapes.read_dims(config)
    stored = {t.name: t for t in gguf.GGUFReader(model).tensors}
    tensors = {}
    for name, shape in shapes.tensor_shapes(config).items():
        t = stored[gguf_file.gguf_name(name, d.family)]
        values = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(shape)
        if heads := d.heads if ".q_proj." in name else d.kv_heads if ".k_proj." in name else 0:
            values = values.reshape(heads, d.head_dim // 2, 2, -1).swapaxes(1, 2).reshape(shape)
        tensors[name] = values
    export.write_folder(folder, config, tensors, "F32", 1)
    tokens = cases.make_prompt(64, d.vocab)
    a, b = (run_quire(path, tokens, 1024, tmp_path) for path in (model, folder))
    assert np.abs(a - b).max() <= 64 * 2.0**-23 * np.abs(b).max()
