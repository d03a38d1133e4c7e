# SPDX-License-Identifier: Apache-2.0
"""What the model tests share: where the binaries are, how to run quire_logits, and the rules of the goldens."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
BIN_DIR = pathlib.Path(os.environ.get("QUIRE_BIN_DIR", ROOT / "build"))
QUIRE = str(BIN_DIR / "quire")
QUIRE_LOGITS = str(BIN_DIR / "quire_logits")
MODEL = os.environ.get("QUIRE_TEST_MODEL")  # the default model, if it is available


def clean_environment() -> dict[str, str]:
    """The environment without quire's settings, which would change what is tested."""
    return {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}


def run_logits(model, prompts: list[list[int]], scratch: pathlib.Path, *flags: str, new_tokens: int = 1) -> list[np.ndarray]:
    """The logits of each prompt and its greedy answer, [positions, vocabulary] each."""
    (scratch / "prompts.json").write_text(json.dumps(prompts))
    out = scratch / "logits.f32"
    done = subprocess.run([QUIRE_LOGITS, "--model", str(model), "--tokens", str(scratch / "prompts.json"), "--out", str(out),
                           "--max-tokens", str(new_tokens), *flags], capture_output=True, text=True, env=clean_environment())
    assert done.returncode == 0, done.stderr
    lengths = [len(prompt) + new_tokens - 1 for prompt in prompts]
    rows = np.fromfile(out, dtype="<f4").reshape(sum(lengths), -1)
    out.unlink()
    return np.split(rows, np.cumsum(lengths)[:-1])


def first_difference(ours: list[int], theirs: list[int]) -> int | None:
    return next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), None)
