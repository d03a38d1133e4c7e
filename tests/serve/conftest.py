# SPDX-License-Identifier: Apache-2.0
"""A running server on a tiny model, for the tests of `quire serve`."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

import httpx
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tools.goldens import export  # noqa: E402

BIN_DIR = pathlib.Path(os.environ.get("QUIRE_BIN_DIR", ROOT / "build"))


class Server:
    """`quire serve` as a process of its own, on a free port; its log is kept."""

    def __init__(self, folder: pathlib.Path, model: str, *flags, env: dict[str, str] | None = None):
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("QUIRE_", "HF_", "VLLM_"))}
        environment |= {"QUIRE_HOME": str(folder / "home"), "QUIRE_THREADS": "1"} | (env or {})
        self.process = subprocess.Popen([str(BIN_DIR / "quire"), "serve", model, "--port", "0", *map(str, flags)],
                                        cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self.url = ""
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._ready.wait(120), self.log
        assert self.url, self.log
        self.http = httpx.Client(base_url=self.url, timeout=120, verify=False)

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

    def post(self, path: str, body: dict, **options) -> httpx.Response:
        return self.http.post(path, json=body, **options)

    def ok(self, path: str, body: dict) -> dict:
        answer = self.post(path, body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def metric(self, name: str, **labels) -> float:
        """The sum of the series of that name that have the given labels."""
        total = 0.0
        for line in self.http.get("/metrics").text.splitlines():
            found = re.fullmatch(r"(\S+?)(?:\{(.*)\})? (\S+)", line)
            if found and found.group(1) == name and all(f'{k}="{v}"' in (found.group(2) or "") for k, v in labels.items()):
                total += float(found.group(3))
        return total

    def stop(self, seconds: float = 60) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(seconds)
        self._reader.join(10)
        return code


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """tiny: a Llama with a tokenizer and a chat template; bare: the same without a tokenizer; long: with a long
    context."""
    folder = tmp_path_factory.mktemp("serve")
    export.main(["--case", "llama", "--out", str(folder / "tiny")])
    export.main(["--case", "llama", "--out", str(folder / "bare")])
    for file in (folder / "bare").iterdir():
        if "token" in file.name or "template" in file.name:
            file.unlink()
    config = json.loads((export.GOLDENS / "llama" / "config.json").read_text())
    (folder / "long.json").write_text(json.dumps(config | {"max_position_embeddings": 1 << 20}))
    export.main(["--config", str(folder / "long.json"), "--out", str(folder / "long")])
    return folder


@pytest.fixture(scope="session")
def start(folder):
    """start("tiny", "--flag", ...): a server that is stopped at the end, unless the test has stopped it."""
    servers = []

    def make(*arguments, **options):
        servers.append(Server(folder, *arguments, **options))
        return servers[-1]

    yield make
    for one in servers:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


@pytest.fixture(scope="session")
def server(start):
    """The server that most tests share."""
    return start("tiny", "--enable-reset-prefix-cache", "--enable-tokenizer-info-endpoint")
