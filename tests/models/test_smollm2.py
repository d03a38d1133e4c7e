# SPDX-License-Identifier: Apache-2.0
"""The default model, SmolLM2-135M-Instruct Q4_1, against transformers on its dequantised weights, and against itself.
"""

import functools
import json
import pathlib
import subprocess

import numpy as np
import pytest

from models import MODEL, QUIRE, QUIRE_LOGITS, ROOT, clean_environment, first_difference, run_logits
from tools.goldens import floats, six_prompts

pytestmark = pytest.mark.skipif(not MODEL, reason="QUIRE_TEST_MODEL does not name SmolLM2-135M-Instruct.Q4_1.gguf")
FOLDER = ROOT / "tests" / "goldens" / "smollm2"
TIE = 2e-3  # another order of sums moves a logit of this model by less than half of it


@functools.cache
def teacher_forced() -> dict:
    return json.loads((FOLDER / "teacher_forced.json").read_text())


def score(scratch: pathlib.Path, *flags: str) -> tuple[float, float]:
    """The share of positions with the reference's best token, and perplexity as a multiple of the reference's."""
    wanted = teacher_forced()
    logits = run_logits(MODEL, [wanted["tokens"]], scratch, *flags)[0]
    top1 = np.mean(np.argmax(logits, axis=1) == np.array(wanted["top1"]))
    nll = 0.0
    for position, token in enumerate(wanted["tokens"][1:]):
        row = logits[position].astype(np.float64)
        top = row.max()
        nll += top + np.log(np.exp(row - top).sum()) - row[token]
    return float(top1), float(np.exp(nll / (len(wanted["tokens"]) - 1)) / wanted["perplexity"])


def test_float32_agrees_with_the_reference_on_real_text(tmp_path):
    top1, perplexity = score(tmp_path, "--dtype", "float32")
    assert top1 >= 0.995 and abs(perplexity - 1) <= 0.001, (top1, perplexity)


def test_the_default_is_near_the_reference_on_real_text(tmp_path):
    top1, perplexity = score(tmp_path)
    assert top1 >= 0.96 and abs(perplexity - 1) <= 0.01, (top1, perplexity)


def test_greedy_answers_in_float32_are_the_references(tmp_path):
    prompts = json.loads((FOLDER / "six_greedy.json").read_text())["prompts"]
    tokens = len(prompts[0]["greedy"])
    all_logits = run_logits(MODEL, [p["tokens"] for p in prompts], tmp_path, "--dtype", "float32", new_tokens=tokens)
    for prompt, logits in zip(prompts, all_logits, strict=True):
        step = first_difference(np.argmax(logits[len(prompt["tokens"]) - 1:], axis=1).tolist(), prompt["greedy"])
        assert step is None or floats.decode(prompt["gaps"])[step] < TIE, f"{prompt['text']!r}, step {step}"


def test_greedy_answers_are_the_golden():
    """On an ISA level of the common arithmetic. To make it anew after a change of arithmetic: python -m tools.goldens.six_prompts --model FILE.gguf"""
    golden = json.loads(six_prompts.GOLDEN.read_text())["prompts"]
    assert six_prompts.differences(golden, six_prompts.make(QUIRE, MODEL)) == []


def test_prompts_become_the_references_tokens():
    for prompt in json.loads((FOLDER / "six_greedy.json").read_text())["prompts"]:
        if prompt["form"] == "raw":
            done = subprocess.run([QUIRE, "tokenize", MODEL, prompt["text"], "--ids"], capture_output=True, text=True,
                                  env=clean_environment(), stdin=subprocess.DEVNULL)
            assert [int(word) for word in done.stdout.split()] == prompt["tokens"], done.stderr


def raw_logits(scratch: pathlib.Path, tokens: list[int], *flags: str) -> bytes:
    (scratch / "ids.json").write_text(json.dumps(tokens))
    done = subprocess.run([QUIRE_LOGITS, "--model", MODEL, "--tokens", str(scratch / "ids.json"), "--out",
                           str(scratch / "rows.f32"), "--max-tokens", "4", *flags], capture_output=True, text=True,
                          env=clean_environment())
    if "is not available on this machine" in done.stderr:
        return b""
    assert done.returncode == 0, done.stderr
    return (scratch / "rows.f32").read_bytes()


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_logits_are_the_same_bytes_in_any_chunks_threads_and_isa(dtype, tmp_path):
    tokens = teacher_forced()["tokens"][:73 if dtype == "auto" else 21]  # float32 on the portable level is slow
    base = raw_logits(tmp_path, tokens, "--dtype", dtype, "--threads", "1")
    assert len(base) == (len(tokens) + 3) * 49152 * 4
    for flags in (["--threads", "2"], ["--threads", "1", "--chunk", "1"], ["--threads", "2", "--chunk", "7"],
                  ["--threads", "1", "--chunk", "64", "--block-size", "32"]):
        assert raw_logits(tmp_path, tokens, "--dtype", dtype, *flags) == base, flags
    # These three agree with each other; in float32 all levels do.
    common = ("portable", "avx2", "avx512") + (("amx", "neon_dotprod", "neon_i8mm") if dtype == "float32" else ())
    by_isa = {isa: raw_logits(tmp_path, tokens, "--dtype", dtype, "--cpu-isa", isa) for isa in common}
    assert by_isa["portable"]
    for isa, rows in by_isa.items():
        assert rows in (b"", by_isa["portable"]), isa
