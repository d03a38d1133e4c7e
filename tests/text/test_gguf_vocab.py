# SPDX-License-Identifier: Apache-2.0
"""The vocabularies in GGUF files against the test vectors that come with them (needs the shared data)."""
import pytest

from support import Quire, binary, shared_data

DATA = shared_data()
pytestmark = pytest.mark.skipif(binary() is None or DATA is None, reason="needs quire_tokenize_check and the shared data")
FILES = [] if DATA is None else sorted((DATA / "tokenizers" / "gguf-vocab").glob("*.gguf"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem.removeprefix("ggml-vocab-"))
def test_vectors(path):
    texts = (path.parent / (path.name + ".inp")).read_bytes().decode().split("\n__ggml_vocab_test__\n")
    wanted = [[int(i) for i in line.split()] for line in (path.parent / (path.name + ".out")).read_bytes().decode().splitlines()]
    texts = texts[:len(wanted)]
    assert len(texts) == len(wanted)
    for text, ids, got in zip(texts, wanted, Quire(path).encode(texts, special=False, parse=False)):
        assert got == ids, f"{path.stem}: {text!r}"
