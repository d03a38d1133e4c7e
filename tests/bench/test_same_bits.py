# SPDX-License-Identifier: Apache-2.0
"""bench/same_bits.py finds nothing on a server that gives the same bits, and the first difference on one that does not.
"""

import subprocess
import sys

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import same_bits  # noqa: E402

SMALL = ["--device", "cpu", "--requests", "8", "--copies", "2", "--longest", "100", "--most-tokens", "16", "--max-model-len", "160"]


def arguments(bench):
    return ["--quire", bench.path, "--model", bench.model, *SMALL]


def test_a_server_under_load_gives_the_same_bits(bench):
    done = subprocess.run([sys.executable, str(ROOT / "bench" / "same_bits.py"), *arguments(bench)], capture_output=True, text=True,
                          timeout=300, env=bench.environment)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("alone: 8 requests") and len(lines) == 5, done.stdout
    assert all(line.endswith("preempted: the same") for line in lines[1:])


def test_a_server_with_other_arithmetic_is_detected(bench, monkeypatch):
    monkeypatch.setattr(same_bits, "other_servers", lambda args, context: [("--kv-cache-dtype", "float16")])
    monkeypatch.setattr(sys, "argv", ["same_bits.py", *arguments(bench)])
    with pytest.raises(SystemExit, match=r"different: --kv-cache-dtype float16: request \d.*, place \d+: alone token \d+ with logprob -"):
        same_bits.main()


def test_a_broken_off_stream_must_be_a_beginning():
    def answer(tokens, text, finish="length", logprobs=None):
        return {"tokens": tokens, "text": text, "finish": finish, "logprobs": {"token_logprobs": logprobs or [-1.0] * len(tokens)}}
    alone = answer([5, 6, 7], "abc")
    assert same_bits.first_difference(alone, answer([5, 6, 7], "abc"), True) is None
    assert same_bits.first_difference(alone, answer([5, 6], "ab", None), False) is None
    assert same_bits.first_difference(alone, answer([], "", None), False) is None
    for wrong, whole in ((answer([5, 6], "ab"), True), (answer([5, 8], "ab", None), False), (answer([5, 6, 7, 8], "abc"), False),
                         (answer([5, 6, 7], "abd"), True), (answer([5, 6, 7], "abc", "stop"), True), (answer([5, 6], "b", None), False),
                         (answer([5, 6, 7], "abc", logprobs=[-1.0, -1.0, -1.0000001]), True)):
        assert same_bits.first_difference(alone, wrong, whole), wrong
