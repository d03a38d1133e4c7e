# SPDX-License-Identifier: Apache-2.0
"""`quire serve` on a tiny model: on the emulator, and on the Metal driver with a fake of Metal."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

import openai
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tools.goldens import export  # noqa: E402

BIN_DIR = pathlib.Path(os.environ.get("QUIRE_BIN_DIR", ROOT / "build"))
FAKE = BIN_DIR / "quire_fake_metal"


class Server:
    """A server process with a client; its log is kept."""

    def __init__(self, folder: pathlib.Path, program: pathlib.Path, model: str, device: str, **environment):
        self.lines: list[str] = []
        self.url = ""
        self._ready = threading.Event()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "HF_", "VLLM_", "FAKE_"))}
        self.process = subprocess.Popen(
            [str(program), "serve", model, "--device", device, "--port", "0", "--max-model-len", "256", "--max-num-seqs", "8"],
            cwd=folder, env=kept | {"QUIRE_HOME": str(folder / "home")} | environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._ready.wait(120) and self.url, self.log
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=120)

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"Serving .* at (https?://\S+)", line):
                self.url = found.group(1)
                self._ready.set()
        self._ready.set()  # it ended

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self._reader.join(10)
        return code


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """llama and qwen3.5: attention only, and gated delta nets with attention; each with a tokenizer and a chat
    template."""
    folder = tmp_path_factory.mktemp("metal")
    for case in ("llama", "qwen3.5"):
        export.main(["--case", case, "--out", str(folder / case)])
    return folder


@pytest.fixture(scope="session")
def start(folder):
    """start(program, model, device, NAME="value", ...): a server that is stopped at the end, unless the test has
    stopped it."""
    servers = []

    def make(*arguments, **environment):
        servers.append(Server(folder, *arguments, **environment))
        return servers[-1]

    yield make
    for one in servers:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
