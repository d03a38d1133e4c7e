# SPDX-License-Identifier: Apache-2.0
"""The peak memory of a run, loading included: the weights, the KV pages in use, and a little more."""

import json
import os
import re
import subprocess

import pytest

from models import MODEL, QUIRE, clean_environment

pytestmark = pytest.mark.skipif(not MODEL, reason="QUIRE_TEST_MODEL does not name SmolLM2-135M-Instruct.Q4_1.gguf")
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
LITTLE_MORE = 150_000_000


def peak_and_plan(prompt_tokens: int, new_tokens: int, *flags: str) -> tuple[int, int, int]:
    """Runs one request; returns its peak resident memory, the weights by the memory plan's line, and the pages that it
    filled."""
    prompt = json.dumps([100 + i % 1000 for i in range(prompt_tokens)])
    process = subprocess.Popen(
        [QUIRE, "--log-level", "info", "run", MODEL, prompt, "--prompt-token-ids", "--ignore-eos", "--max-tokens",
         str(new_tokens), *flags], env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = process.stderr.read()
    process.stderr.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, said
    size = r"([0-9.]+) ([KMGi]*B)"
    weights, weights_unit, tokens, page, page_unit = re.search(
        rf"weights {size}, KV cache .*? pages of (\d+) tokens, \w+, {size} each", said).groups()
    pages = -(-(prompt_tokens + new_tokens) // int(tokens)) + 1  # and the null page
    return usage.ru_maxrss * 1024, int(float(weights) * UNITS[weights_unit]), int(pages * float(page) * UNITS[page_unit])


@pytest.mark.parametrize("prompt_tokens, flags", [(4, ()), (2040, ()), (700, ("--kv-cache-dtype", "float32"))])
def test_a_run_holds_weights_and_pages_in_use_and_little_more(prompt_tokens, flags):
    peak, weights, pages = peak_and_plan(prompt_tokens, 4, *flags)
    assert peak <= weights + pages + LITTLE_MORE, f"{peak / 1e6:.0f} MB, {(peak - weights - pages) / 1e6:.0f} above"


def test_a_short_answer_costs_no_more_than_it_needs():
    """Pages of the KV cache and of the scratch memory that were never written take no memory."""
    peak, weights, pages = peak_and_plan(4, 4)
    assert peak <= weights + pages + 75_000_000, f"{(peak - weights - pages) / 1e6:.0f} MB above weights and pages"
