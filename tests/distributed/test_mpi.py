# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes of Open MPI: they keep the contract of a group, and notice when one of them is lost."""

import contextlib
import os
import re
import signal
import subprocess
import sys

import pytest

from launch import BIN_DIR, needs_mpirun, ranks


@needs_mpirun
@pytest.mark.parametrize("size", [1, 3])
def test_contract(tmp_path, size):
    with ranks(tmp_path, size, "contract") as job:
        assert job.wait() == 0, job.log
        assert [job.exit_code(rank) for rank in range(size)] == [0] * size, job.log
        assert job.log.count("done") == size


@needs_mpirun
@pytest.mark.parametrize(("mode", "victim"), [("busy", 1), ("busy", 0), ("idle", 0), ("idle", 2)])
def test_a_killed_rank_ends_the_others(tmp_path, mode, victim):
    """Whether ranks compute or wait for work, they notice within the 30 minutes of this limit, which nobody awaits."""
    with ranks(tmp_path, 3, mode, 1800) as job:
        pid = job.pids()[victim]
        os.kill(pid, signal.SIGKILL)
        assert job.wait() != 0
        for other in set(range(3)) - {victim}:
            assert job.exit_code(other) == 1, job.log
            job.rank_says(other, rf"rank {victim} \(\S+, pid {pid}\) ended; the other ranks cannot go on without it")


@needs_mpirun
@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_rank_ends_the_others_after_the_limit(tmp_path, victim):
    with ranks(tmp_path, 2, "busy", 1) as job:
        pid = job.pids()[victim]
        os.kill(pid, signal.SIGSTOP)
        try:
            # By the watch, or in the middle of a gather.
            job.rank_says(1 - victim, rf"rank {victim} \(\S+, pid {pid}\) "
                                      r"(has not answered for|did not do its part within) 1 s")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        assert job.wait() != 0
        assert job.exit_code(1 - victim) == 1, job.log


@needs_mpirun
def test_a_rank_that_does_not_do_its_part_is_named(tmp_path):
    with ranks(tmp_path, 3, "stall", 5) as job:
        assert job.wait() != 0
        assert re.search(r"rank 1 \(\S+, pid \d+\) did not do its part within 5 s", job.log), job.log
        assert {job.exit_code(rank) for rank in (0, 2)} == {1}, job.log


@needs_mpirun
def test_a_rank_that_gives_up_ends_the_others(tmp_path):
    with ranks(tmp_path, 2, "leave", 1800) as job:
        assert job.wait() != 0
        assert re.search(r"rank 0 \(\S+, pid \d+\) left the group", job.log), job.log
        assert [job.exit_code(0), job.exit_code(1)] == [2, 1], job.log


@needs_mpirun
def test_handshake_refuses_another_isa_level(tmp_path):
    with ranks(tmp_path, 3, "handshake") as job:
        job.wait()
        assert len(re.findall(r"rank 1 \(\S+, pid \d+\) does not fit to rank 0: the ISA level is avx2 there and amx on "
                              r"rank 0", job.log)) == 3, job.log
        assert {job.exit_code(rank) for rank in range(3)} == {1}


@pytest.mark.parametrize(("library", "sentence"), [
    ("libmpi-of-nobody.so", "cannot be loaded: install the package libopenmpi3"),
    pytest.param("libm.so.6", "libm.so.6 is no MPI, but ranks as processes need Open MPI 3 to 5",
                 marks=pytest.mark.skipif(sys.platform != "linux", reason="that library is Linux's")),
])
def test_library_that_is_not_there(library, sentence):
    done = subprocess.run([BIN_DIR / "quire_ranks", "contract"], env=os.environ | {"QUIRE_LIBMPI": library},
                          capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert sentence in done.stderr
