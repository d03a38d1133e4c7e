# SPDX-License-Identifier: Apache-2.0
"""Greedy clients beside a small one, for a while: bench/abuse.py, which can run for longer by hand."""

import subprocess
import sys

import pytest
from conftest import BIN_DIR, ROOT


# The twelve crowds, and fields of endpoints at their bounds, in two random orders.
@pytest.mark.parametrize("flags", [["--attacks", "42"], ["--attacks", "30", "--seed", "2", "--anonymous"]], ids=["keys", "anonymous"])
def test_greedy_clients_harm_nobody(folder, flags):
    run = subprocess.run([sys.executable, str(ROOT / "bench" / "abuse.py"), "--model", str(folder / "tiny"), "--quire",
                          str(BIN_DIR / "quire"), "--connections", "40", "--patience", "0.4", "--shutdown", "1", *flags,
                          # Pages that were written keep their memory.
                          "--serve-args", "--kv-cache-memory-bytes", "8MiB"],
                         capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
