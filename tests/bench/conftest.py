# SPDX-License-Identifier: Apache-2.0
"""The binary, a tiny model for its tokenizer, and a helper that runs `quire bench serve` against the fake server."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(pathlib.Path(__file__).parent)]
from tools.goldens import export  # noqa: E402

BIN_DIR = pathlib.Path(os.environ.get("QUIRE_BIN_DIR", ROOT / "build"))


class Bench:
    def __init__(self, folder):
        self.path, self.folder, self.model = str(BIN_DIR / "quire"), folder, str(folder / "tiny")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "OPENAI_"))}
        self.environment = kept | {"QUIRE_HOME": str(folder / "home"), "QUIRE_THREADS": "1"}

    def __call__(self, *arguments, env=None):
        done = subprocess.run([self.path, "bench", *map(str, arguments)], capture_output=True, cwd=self.folder, timeout=300,
                              text=True, env=self.environment | (env or {}), stdin=subprocess.DEVNULL)
        return done

    def start(self, *arguments):
        return subprocess.Popen([self.path, "bench", *map(str, arguments)], cwd=self.folder, env=self.environment, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def serve_arguments(self, server, *arguments, model=True):
        named = ["--model", self.model, "--served-model-name", "fake"] if model else []
        return ["serve", "--base-url", server.url, *named, *arguments]

    def serve(self, server, *arguments, model=True, env=None, code=0):
        """Runs to the end and returns the result JSON, together with the printed report and the errors."""
        result = self.folder / "result.json"
        result.unlink(missing_ok=True)
        done = self(*self.serve_arguments(server, *arguments, model=model), "--save-result", "--save-detailed", "--result-dir",
                    self.folder, "--result-filename", "result.json", env=env)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        out = json.loads(result.read_text())
        out["stdout"], out["stderr"] = done.stdout, done.stderr
        return out


@pytest.fixture(scope="session")
def bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    export.main(["--case", "llama", "--out", str(folder / "tiny")])
    return Bench(folder)


@pytest.fixture(scope="session")
def tokenizer(bench):
    from tokenizers import Tokenizer
    return Tokenizer.from_file(bench.model + "/tokenizer.json")


@pytest.fixture(scope="session")
def sharegpt(bench):
    """A ShareGPT file with entries of every kind: usable, too short, too long, with one turn, without a list."""
    import random
    random.seed(99)
    words = "the of and to in is you that it he was for on are as with his they be at one have this from".split()

    def text(least, most):
        return " ".join(random.choice(words) for _ in range(random.randint(least, most)))
    entries = [{"id": str(i), "conversations": [{"from": "human", "value": text(1, 60)}, {"from": "gpt", "value": text(1, 80)},
                                                {"from": "human", "value": "more"}]} for i in range(120)]
    entries[3]["conversations"] = entries[3]["conversations"][:1]
    entries[7] = {"id": "none"}
    entries[11]["conversations"][0]["value"] = text(1500, 1600)
    entries[13]["conversations"][0]["from"] = "gpt"
    path = bench.folder / "sharegpt.json"
    path.write_text(json.dumps(entries))
    return path
