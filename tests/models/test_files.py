# SPDX-License-Identifier: Apache-2.0
"""Every family as files on disk: written by tools/goldens, read by quire, compared with transformers.

golden_test.cc makes the weights in memory; here they go through both readers, in every type. Prompts of 1 to 700 tokens
and their 64 greedy tokens run in one process, together.
"""

import json
import subprocess

import numpy as np
import pytest

from models import QUIRE, clean_environment, first_difference, run_logits
from tools.goldens import cases, export, floats, gguf_families, gguf_file, shapes

NEW_TOKENS = 64
CASES = [case.name for case in cases.CASES]
PLAIN = [case.name for case in cases.CASES if not case.listed]  # those that shapes.py knows
BLOCKS = {"Q8_0": 32, "Q4_0": 32, "Q4_1": 32, "Q5_0": 32, "Q5_1": 32}  # the others need rows of 256


def expected(case: str) -> dict:
    return json.loads((export.GOLDENS / case / "expected.json").read_text())


def config(case: str) -> dict:
    return json.loads((export.GOLDENS / case / "config.json").read_text())


def tolerance(prompt: dict) -> float:
    """For another order of float32 sums; derived, as in golden_test.cc, from the reference's own distance to
    float64."""
    return 8 * prompt["reference_noise"] + 32 * 2.0**-23 * prompt["max_abs_logit"]


def run_case(case: str, model, scratch, *flags: str) -> list[np.ndarray]:
    wanted = expected(case)
    return run_logits(model, [p["tokens"] for p in wanted["prompts"]], scratch, "--threads", "1", "--max-model-len",
                      str(wanted["max_model_len"]), *flags, new_tokens=NEW_TOKENS)


def check_exactly(case: str, model, scratch, before: int | None = None) -> None:
    """before: positions from there on are ignored."""
    for prompt, logits in zip(expected(case)["prompts"], run_case(case, model, scratch, "--dtype", "float32"), strict=True):
        allowed, size = tolerance(prompt), len(prompt["tokens"])
        for row in prompt["rows"]:
            if before is not None and row["position"] >= before:
                continue
            worst = np.abs(logits[row["position"]] - floats.decode(row["logits"])).max()
            assert worst <= allowed, f"position {row['position']} of {size}: off by {worst:.3g}, allowed {allowed:.3g}"
        step = first_difference(np.argmax(logits[size - 1:], axis=1).tolist(), prompt["greedy"])
        # A tie, by the reference's own measure: from here on the texts differ.
        if step is not None and (before is None or size - 1 + step < before):
            gap = floats.decode(prompt["gaps"])[step]
            assert gap < 2 * allowed, f"prompt of {size}: another token at step {step}, where the gap is {gap:.3g}"


def distance(case: str, model, scratch, *flags: str) -> float:
    """The largest distance of a prompt's recorded logits from the float32 reference, relative to their spread."""
    worst = 0.0
    for prompt, logits in zip(expected(case)["prompts"], run_case(case, model, scratch, *flags), strict=True):
        assert np.isfinite(logits).all()
        for row in prompt["rows"]:
            want = floats.decode(row["logits"])
            worst = max(worst, float(np.sqrt(np.mean((logits[row["position"]] - want) ** 2)) / np.std(want)))
    return worst


@pytest.mark.parametrize("case", CASES)
def test_safetensors_give_the_reference_results(case, tmp_path):
    shards = 1 + CASES.index(case) % 3
    export.main(["--case", case, "--out", str(tmp_path / "model"), "--shards", str(shards)])
    assert len(list((tmp_path / "model").glob("*.safetensors"))) == shards
    check_exactly(case, tmp_path / "model", tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_gguf_gives_the_reference_results(case, tmp_path):
    if case in gguf_families.NOT_IN_GGUF:
        pytest.skip(gguf_families.NOT_IN_GGUF[case])
    model = tmp_path / "model.gguf"
    export.main(["--case", case, "--out", str(model), "--max-model-len", str(expected(case)["max_model_len"])])
    check_exactly(case, model, tmp_path, gguf_families.NO_WINDOW.get(case))


# Rounding weights to 11 or 8 bits moves logits by about that share of their spread, times what a few layers add.
@pytest.mark.parametrize(("dtype", "bound"), [("F16", 0.005), ("BF16", 0.04)])
@pytest.mark.parametrize("case", ["llama", "phi3", "glm4", "qwen3"])
def test_half_precision_files_stay_near(case, dtype, bound, tmp_path):
    folder, model = tmp_path / "model", tmp_path / "model.gguf"
    export.main(["--case", case, "--out", str(folder), "--type", dtype])
    export.main(["--case", case, "--out", str(model), "--type", dtype])
    assert distance(case, folder, tmp_path) < bound
    assert distance(case, model, tmp_path) < bound


@pytest.mark.parametrize(("dtype", "pages"), [("F32", "float32"), ("F16", "float16"), ("BF16", "bfloat16")])
def test_pages_have_the_type_of_the_tensors_where_the_config_names_none(dtype, pages, tmp_path):
    export.main(["--case", "llama", "--out", str(tmp_path / "model"), "--type", dtype])
    fields = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({k: v for k, v in fields.items() if k != "dtype"}))
    done = subprocess.run([QUIRE, "inspect", str(tmp_path / "model"), "--json"], capture_output=True, text=True,
                          env=clean_environment())
    assert done.returncode == 0, done.stderr
    assert f" tokens, {pages}, " in json.loads(done.stdout)["memory"]


def fits(case: str, dtype: str) -> bool:
    rows = [shape[-1] for shape in shapes.tensor_shapes(config(case)).values() if len(shape) == 2]
    return all(width % BLOCKS.get(dtype, 256) == 0 for width in rows)


# An n-bit type rounds weights by about 2^-n of their range; a random model of a few layers at most triples that.
QUANTISED = {"Q8_0": 0.1, "Q6_K": 0.25, "Q5_0": 0.5, "Q5_1": 0.5, "Q5_K": 0.5, "Q4_0": 0.9, "Q4_1": 0.9, "Q4_K": 0.9,
             "Q3_K": 1.4, "Q2_K": 2.0}


@pytest.mark.parametrize("dtype", QUANTISED)
def test_quantised_files_stay_near(dtype, tmp_path):
    """One family per type, in turn, and the case with wide rows, which every type fits."""
    fitting = [case for case in PLAIN if fits(case, dtype)]
    assert "llama-wide" in fitting
    chosen = {"llama-wide", fitting[list(QUANTISED).index(dtype) % len(fitting)]}
    for case in sorted(chosen):
        model = tmp_path / f"{case}.gguf"
        export.main(["--case", case, "--out", str(model), "--type", dtype])
        assert distance(case, model, tmp_path, "--dtype", "float32") < QUANTISED[dtype], case
        assert distance(case, model, tmp_path) < QUANTISED[dtype] + 0.05, f"{case} with quantised activations"


def test_every_type_of_the_exporter_is_tried():
    assert set(QUANTISED) | {"F32", "F16", "BF16"} == set(gguf_file.TYPES)
