# SPDX-License-Identifier: Apache-2.0
"""Tiny models on disk, and a helper that calls the binary, for the tests of the command line."""

import json
import os
import pathlib
import resource
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tools.goldens import export  # noqa: E402

BIN_DIR = pathlib.Path(os.environ.get("QUIRE_BIN_DIR", ROOT / "build"))


class Quire:
    """The binary, without any of the caller's settings, with an empty cache, and with one thread, as the models are
    tiny."""

    def __init__(self, folder: pathlib.Path):
        self.path = str(BIN_DIR / "quire")
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "HF_"))}
        self.environment |= {"QUIRE_HOME": str(folder / "home"), "QUIRE_THREADS": "1", "TERM": "xterm"}

    def __call__(self, *arguments, stdin: bytes | str | None = None, env: dict[str, str] | None = None, most_memory: int = 0):
        """Standard input is /dev/null, or a pipe with `stdin` in it."""
        def limit_memory():
            if most_memory:
                resource.setrlimit(resource.RLIMIT_AS, (most_memory, most_memory))
        source = {"stdin": subprocess.DEVNULL} if stdin is None else {
            "input": stdin.encode() if isinstance(stdin, str) else stdin}
        done = subprocess.run([self.path, *map(str, arguments)], capture_output=True, cwd=self.folder, timeout=300,
                              env=self.environment | (env or {}), preexec_fn=limit_memory, **source)
        done.text = done.stdout.decode("utf-8", "strict")
        done.errors = done.stderr.decode("utf-8", "strict")
        return done

    def json(self, *arguments, **options):
        done = self(*arguments, "--json", **options)
        assert done.returncode == 0, done.errors
        return json.loads(done.text)

    def start(self, *arguments, **options) -> subprocess.Popen:
        return subprocess.Popen([self.path, *map(str, arguments)], cwd=self.folder, env=self.environment,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


@pytest.fixture(scope="session")
def quire(tmp_path_factory):
    """Its folder has: tiny (safetensors), tiny.gguf, and endless, whose context is so long that it keeps answering."""
    folder = tmp_path_factory.mktemp("cli")
    export.main(["--case", "llama", "--out", str(folder / "tiny")])
    export.main(["--case", "llama", "--out", str(folder / "tiny.gguf")])
    config = json.loads((export.GOLDENS / "llama" / "config.json").read_text())
    (folder / "endless.json").write_text(json.dumps(config | {"max_position_embeddings": 1 << 20}))
    export.main(["--config", str(folder / "endless.json"), "--out", str(folder / "endless")])
    return Quire(folder)


@pytest.fixture(scope="session")
def llama_goldens():
    return json.loads((export.GOLDENS / "llama" / "expected.json").read_text())["prompts"]
