# SPDX-License-Identifier: Apache-2.0
"""The type hints: mypy accepts the package, and finds a user's mistakes with them."""

import os
import subprocess
import sys

import pytest

from conftest import PACKAGE, ROOT

GOOD = """
from quire import (AsyncEngineArgs, AsyncLLM, AsyncLLMEngine, BeamSearchParams, EngineArgs, LLM, RequestOutput,
                   SamplingParams)
outputs: list[RequestOutput] = LLM("x", max_model_len=5).generate(["a", "b"], SamplingParams(top_k=3))
outputs += LLM("x").generate([[1, 2], [3]]) + LLM("x").generate({"prompt": "b"})
text: str = outputs[0].outputs[0].text
args = EngineArgs(model="x", max_model_len="8k", trust_remote_code=True)
score: float = LLM.from_engine_args(args).beam_search("a", BeamSearchParams(beam_width=2, max_tokens=3))[0].sequences[0].cum_logprob
engine: AsyncLLM = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model="x", task="generate"))
async def main() -> None:
    async for output in AsyncLLM().chat([{"role": "user", "content": "x"}]):
        finished: bool = output.finished
"""
BAD = """
from quire import EngineArgs, LLM, SamplingParams
number: int = LLM("x").generate("a")[0].outputs[0].text
SamplingParams(temperature="hot")
EngineArgs(max_model_len=[])
"""


def mypy(folder, *arguments):
    pytest.importorskip("mypy")
    return subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", folder / "cache", *arguments], cwd=folder,
                          capture_output=True, text=True, env=os.environ | {"MYPYPATH": str(PACKAGE)})


def test_the_package_passes_mypy(tmp_path):
    done = mypy(tmp_path, ROOT / "python" / "quire")
    assert done.returncode == 0, done.stdout + done.stderr


def test_programs_are_checked(tmp_path):
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "bad.py").write_text(BAD)
    good = mypy(tmp_path, "good.py")
    assert good.returncode == 0, good.stdout
    bad = mypy(tmp_path, "bad.py")
    assert bad.returncode == 1 and bad.stdout.count("error:") == 3, bad.stdout
