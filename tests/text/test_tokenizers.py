# SPDX-License-Identifier: Apache-2.0
"""Every tokenizer against Hugging Face's `tokenizers`: ids and texts must be equal, one by one.

Small tokenizers of every kind are in the tree (made by tools/tokenizers/make.py). The large real ones are compared if
the shared data is available: on a sample, or on everything with QUIRE_TEST_FULL=1.
"""
import functools
import random

import pytest

from support import FULL, HERE, Quire, binary, every_code_point, random_texts, real_texts, shared_data

tokenizers = pytest.importorskip("tokenizers")
pytestmark = pytest.mark.skipif(binary() is None, reason="quire_tokenize_check is not built (set QUIRE_BIN_DIR)")

SMALL = sorted((HERE / "tokenizers").glob("*.json"))
DATA = shared_data()
VERSION = tuple(int(part) for part in tokenizers.__version__.split(".")[:2])
REAL = [] if DATA is None else sorted((DATA / "tokenizers").glob("hf*/*/tokenizer.json"))


def name(path):
    return path.stem if path.parent.name == "tokenizers" else path.parent.name


@functools.lru_cache(maxsize=2)
def reference(path):
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


@functools.lru_cache(maxsize=2)
def ours(path):
    return Quire(path)


def specials_of(ref):
    return [t.content for t in ref.get_added_tokens_decoder().values()][:40]


def shown_otherwise(ref):
    """Added tokens that tokenizers before 0.23 decode as they are written, and newer ones as they are normalised."""
    if VERSION >= (0, 23) or ref.normalizer is None:
        return set()
    return {i for i, t in ref.get_added_tokens_decoder().items()
            if t.normalized and ref.normalizer.normalize_str(t.content) != t.content}


def compare_decoded(path, lists):
    ref = reference(path)
    quire = ours(path)
    lists = [ids for ids in lists if not shown_otherwise(ref) & set(ids)]
    wanted = [ref.decode(ids, skip_special_tokens=skip) for skip in (True, False) for ids in lists]
    for ids, text, want in zip(lists * 2, quire.decode(lists, skip=(True, False)), wanted, strict=True):
        assert text == want, f"{name(path)}: decode {ids[:60]}"


def compare(path, texts, special=True):
    ref = reference(path)
    quire = ours(path)
    got = quire.encode(texts, special=special)
    lists = []
    for text, ids, encoding in zip(texts, got, ref.encode_batch(texts, add_special_tokens=special)):
        assert ids == encoding.ids, f"{name(path)}: {text[:300]!r}"
        lists.append(encoding.ids)
    compare_decoded(path, lists)


@pytest.mark.parametrize("path", SMALL + REAL, ids=name, scope="module")
def test_random_unicode_gives_the_same_ids_and_texts(path):
    texts = ["", " ", "a", "Hello world"] + random_texts(7, 1000 if FULL or path in SMALL else 200, specials_of(reference(path)))
    compare(path, texts)
    if FULL or path in SMALL:
        compare(path, texts[:300], special=False)


@pytest.mark.parametrize("path", SMALL + (REAL if FULL else []), ids=name, scope="module")
def test_every_code_point_gives_the_same_ids(path):
    texts = every_code_point()
    for text, ids, want in zip(texts, ours(path).encode(texts), reference(path).encode_batch(texts)):
        if ids != want.ids:  # find the first that differs
            for i in range(0, len(text), 4):
                part = text[i:i + 4]
                assert ours(path).encode([part])[0] == reference(path).encode(part).ids, f"{name(path)}: {part!r}"
        assert ids == want.ids, f"{name(path)}: {text[:40]!r}..."


@pytest.mark.parametrize("path", REAL, ids=name, scope="module")
def test_real_texts_give_the_same_ids_and_texts(path):
    texts = real_texts(DATA)
    compare(path, texts if FULL else texts[::32])


@pytest.mark.parametrize("path", SMALL + (REAL if FULL else []), ids=name, scope="module")
def test_special_tokens_can_be_left_unparsed(path):
    ref = reference(path)
    texts = random_texts(11, 200, specials_of(ref))
    ref.encode_special_tokens = True
    wanted = [ref.encode(text).ids for text in texts]
    ref.encode_special_tokens = False
    for text, ids, want in zip(texts, ours(path).encode(texts, parse=False), wanted):
        assert ids == want, f"{name(path)}: {text!r}"


@pytest.mark.parametrize("path", SMALL + REAL, ids=name, scope="module")
def test_random_ids_decode_alike(path):
    ref = reference(path)
    size = ref.get_vocab_size(with_added_tokens=True)
    rng = random.Random(5)
    count = 400 if FULL or path in SMALL else 100
    lists = [[rng.randrange(size + 3) for _ in range(rng.randint(0, 30))] for _ in range(count)]
    # Runs of low ids, which include the byte tokens, reach the byte-fallback paths.
    lists += [[rng.randrange(min(size, 300)) for _ in range(rng.randint(0, 30))] for _ in range(count)]
    compare_decoded(path, lists)


@pytest.mark.parametrize("path", SMALL + (REAL if FULL else []), ids=name, scope="module")
def test_bytes_that_are_not_utf8_become_replacement_characters(path):
    rng = random.Random(3)
    blobs = [bytes(rng.choice([rng.randrange(256), 0x61, 0xe4, 0xf0, 0x9f, 0x98]) for _ in range(rng.randint(1, 40)))
             for _ in range(300)]
    ref = reference(path)
    for blob, ids in zip(blobs, ours(path).encode_bytes(blobs)):
        assert ids == ref.encode(blob.decode("utf-8", errors="replace")).ids, f"{name(path)}: {blob!r}"


# No spaces, one space, one script, one class of character: with a quadratic step these would not end before the suite's limit.
LONG = ["a" * 300_000, "ab1 " * 75_000, "\u4e2d\u6587" * 45_000, " " * 300_000, "\n" * 300_000, "!?" * 150_000, "Aa" * 150_000,
        "0123456789" * 30_000]


@pytest.mark.parametrize("path", SMALL + (REAL if FULL else []), ids=name, scope="module")
def test_very_long_lines_finish(path):
    ids = ours(path).encode(LONG)
    assert len(ids) == len(LONG)


@pytest.mark.parametrize("path", SMALL + (REAL if FULL else []), ids=name, scope="module")
def test_long_lines_agree(path):
    texts = [t[:len(t) // (3 if FULL else 15)] for t in LONG]
    for text, ids, want in zip(texts, ours(path).encode(texts), reference(path).encode_batch(texts)):
        assert ids == want.ids, f"{name(path)}: {text[:20]!r}..."
