# SPDX-License-Identifier: Apache-2.0
"""Programs under mpirun, for the tests of ranks as processes."""

import os
import pathlib
import re
import shutil
import subprocess
import threading
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN_DIR = pathlib.Path(os.environ.get("QUIRE_BIN_DIR", ROOT / "build"))
LIMIT = 60  # seconds after which a test gives up; nothing is measured against it

needs_mpirun = pytest.mark.skipif(
    shutil.which("mpirun") is None or "Open MPI" not in subprocess.run(
        ["mpirun", "--version"], capture_output=True, text=True, check=False).stdout,
    reason="Open MPI's mpirun is not installed (Debian: openmpi-bin)")

# Each rank runs in a shell, which keeps its log, writes down its exit code (complete as soon as the file has its name)
# and outlives the signal by which mpirun ends a job.
RANK = 'r=$OMPI_COMM_WORLD_RANK; trap "" TERM; "$@" 2> "log.$r"; echo $? > "code.$r"; mv "code.$r" "exit.$r"'


def wait_until(what, why=lambda: ""):
    """What the function returns as soon as that is true."""
    end = time.monotonic() + LIMIT
    while not (result := what()):
        assert time.monotonic() < end, why()
        time.sleep(0.02)
    return result


class Job:
    """`mpirun -n SIZE PROGRAM...`; its output is kept."""

    def __init__(self, folder: pathlib.Path, size: int, *command, mpirun: tuple = (), then: tuple | None = None,
                 on: list | None = None, env: dict[str, str] | None = None):
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("QUIRE_", "HF_", "VLLM_", "OMPI_"))}
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                        "QUIRE_HOME": str(folder / "home"), "QUIRE_THREADS": "1"} | (env or {})
        self.folder = folder
        self.size = size
        in_shell = ["sh", "-c", RANK, "sh"]
        more = [":", "-n", str(then[0]), *in_shell, *map(str, then[1:])] if then else []  # other ranks, another command
        self.process = subprocess.Popen(
            [*(on or []), "mpirun", "--oversubscribe", "--bind-to", "none", *mpirun, "-n", str(size), *in_shell,
             *map(str, command), *more], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True)
        self._reader.start()

    @property
    def log(self) -> str:
        """What mpirun passed on, and the logs of the ranks."""
        return "".join(self.lines) + "".join(file.read_text() for file in sorted(self.folder.glob("log.*")))

    def wait_for(self, pattern: str, count: int = 1) -> list[re.Match]:
        """Waits for `count` matches of a pattern, one per line."""
        def found():
            ended = self.process.poll() is not None
            matches = [match for line in self.log.splitlines() if (match := re.search(pattern, line))]
            assert len(matches) >= count or not ended, self.log
            return len(matches) >= count and matches
        return wait_until(found, lambda: self.log)

    def pids(self) -> dict[int, int]:
        """The process ids of the ranks of quire_ranks, once all have begun."""
        return {int(found[1]): int(found[2]) for found in self.wait_for(r"^rank (\d+) pid (\d+):", self.size)}

    def wait(self) -> int:
        """mpirun's exit code. The shells of the ranks end with 0, so that mpirun does not hurry to kill the others."""
        code = self.process.wait(LIMIT)
        self._reader.join(LIMIT)
        return code

    def rank_says(self, rank: int, pattern: str) -> re.Match:
        """Waits for a pattern in the log of one rank."""
        log = self.folder / f"log.{rank}"
        return wait_until(lambda: log.exists() and re.search(pattern, log.read_text()), lambda: self.log)

    def exit_code(self, rank: int) -> int:
        """Waits for the end of one rank. (mpirun itself may wait for ever for a host that it cannot reach.)"""
        file = self.folder / f"exit.{rank}"
        return int(wait_until(lambda: file.exists() and file.read_text(), lambda: self.log))

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()


def ranks(folder: pathlib.Path, size: int, mode: str, limit: float = LIMIT, **options) -> Job:
    """The small program of this folder."""
    return Job(folder, size, BIN_DIR / "quire_ranks", mode, limit, **options)
