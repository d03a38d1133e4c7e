# SPDX-License-Identifier: Apache-2.0
"""tokenizer.model files against PyPI's `sentencepiece` (needs the shared data)."""
import pytest

from support import Quire, binary, random_texts, real_texts, shared_data

sentencepiece = pytest.importorskip("sentencepiece")
DATA = shared_data()
pytestmark = pytest.mark.skipif(binary() is None or DATA is None, reason="needs quire_tokenize_check and the shared data")
FILES = [] if DATA is None else sorted((DATA / "tokenizers" / "sentencepiece").iterdir())


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_ids_and_texts(path):
    reference = sentencepiece.SentencePieceProcessor(model_file=str(path))
    # SentencePiece treats U+2581 in a text as a space; a model's own tokenizer.json does not, and quire follows that.
    texts = [t for t in random_texts(9, 400) + real_texts(DATA)[::32] if "\u2581" not in t and "\0" not in t]
    quire = Quire(path)
    for text, ids in zip(texts, quire.encode(texts, special=False, parse=False)):
        assert ids == reference.encode(text), f"{path.name}: {text[:200]!r}"
