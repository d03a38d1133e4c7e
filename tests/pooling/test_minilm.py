# SPDX-License-Identifier: Apache-2.0
"""The real all-MiniLM-L6-v2 gives the vectors of sentence-transformers.

The weights come from scripts/get-minilm: QUIRE_MINILM names their folder, else they are looked for in the cache. What
sentence-transformers answered is in minilm.json (made by `python tests/pooling/test_minilm.py FOLDER`).
"""

import base64
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

HERE = pathlib.Path(__file__).resolve().parent
SENTENCES = [
    "A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby.", "A man is riding a horse.",
    "A woman is playing violin.", "Two men pushed carts through the woods.", "A cheetah is running behind its prey.",
    "Someone has a meal.", "", "Ünïcödé, 漢字 and emoji 🙂 — all in one line.", "x = [1, 2, 3]; print(sum(x))",
    "The KV cache is divided into pages, so that sequences of any length share memory. " * 6]


def find_model() -> pathlib.Path | None:
    home = pathlib.Path(os.environ.get("QUIRE_HOME", pathlib.Path.home() / ".cache" / "quire"))
    folder = pathlib.Path(os.environ.get("QUIRE_MINILM", home / "models" / "all-MiniLM-L6-v2"))
    return folder if (folder / "model.safetensors").exists() else None


MODEL = find_model()
needs_model = pytest.mark.skipif(MODEL is None, reason="all-MiniLM-L6-v2 is not in the cache; scripts/get-minilm downloads it")


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def ours(texts: list[str]) -> np.ndarray:
    from conftest import BIN_DIR
    done = subprocess.run([BIN_DIR / "quire", "embed", "--model", MODEL, "--dtype", "float32", "--lines"], text=True,
                          input="".join(text + "\n" for text in texts), capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return np.array([json.loads(line) for line in done.stdout.splitlines()])


@needs_model
def test_vectors_are_those_of_sentence_transformers():
    stored = json.loads((HERE / "minilm.json").read_text())
    theirs = np.array([np.frombuffer(base64.b64decode(text), "<f4") for text in stored["vectors"]], dtype=np.float64)
    found = ours(SENTENCES)
    assert cosines(found, theirs).min() >= 0.99999
    assert (np.argsort(-found @ found.T, axis=1, kind="stable")[:, :4] ==
            np.argsort(-theirs @ theirs.T, axis=1, kind="stable")[:, :4]).all()


@needs_model
def test_hundreds_of_sentences_have_the_same_ranks():
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    words = (HERE.parents[1] / "README.md").read_text().split()
    texts = [" ".join(words[i:i + 3 + i % 40]) for i in range(0, min(len(words), 1200), 4)]
    theirs = sentence_transformers.SentenceTransformer(str(MODEL)).encode(texts).astype(np.float64)
    found = ours(texts)
    assert cosines(found, theirs).min() >= 0.99999
    ranks, reference = (np.argsort(-v @ v.T, axis=1, kind="stable") for v in (found, theirs))
    assert (ranks[:, :3] == reference[:, :3]).mean() > 0.999  # near ties may swap


if __name__ == "__main__":
    import sentence_transformers
    made = sentence_transformers.SentenceTransformer(sys.argv[1]).encode(SENTENCES)
    lines = [base64.b64encode(vector.astype("<f4").tobytes()).decode() for vector in made]
    (HERE / "minilm.json").write_text(json.dumps({"made_with": sentence_transformers.__version__, "vectors": lines}, indent=0) + "\n")
