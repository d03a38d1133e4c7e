# SPDX-License-Identifier: Apache-2.0
"""tiktoken files and tekken.json: against tokenizer.json files of the same models, and against plain ranked merging."""
import base64
import json
import re
import shutil
from pathlib import Path

import pytest

from support import Quire, binary, random_texts, real_texts, shared_data

tokenizers = pytest.importorskip("tokenizers")
pytestmark = pytest.mark.skipif(binary() is None, reason="quire_tokenize_check is not built (set QUIRE_BIN_DIR)")
DATA = shared_data()
# (rank file, its name in model folders, the tokenizer.json of a model with the same vocabulary)
SAME = [("llama3.tokenizer.model.tiktoken", "tokenizer.model", "llama-3.1"), ("qwen.tiktoken", "qwen.tiktoken", "qwen2.5")]


@pytest.mark.skipif(DATA is None, reason="needs the shared data")
@pytest.mark.parametrize("file, name, model", SAME)
def test_a_rank_file_gives_the_ids_of_the_tokenizer_json(file, name, model, tmp_path):
    shutil.copyfile(DATA / "tokenizers" / "tiktoken" / file, tmp_path / name)
    reference = tokenizers.Tokenizer.from_file(str(DATA / "tokenizers" / "hf-derived" / model / "tokenizer.json"))
    texts = [t for t in random_texts(11, 300) + real_texts(DATA)[::40] if "<|" not in t]
    for text, ids in zip(texts, Quire(tmp_path).encode(texts, special=False)):
        assert ids == reference.encode(text, add_special_tokens=False).ids, text[:200]


@pytest.mark.skipif(DATA is None, reason="needs the shared data")
def test_the_control_tokens_of_llama_3(tmp_path):
    shutil.copyfile(DATA / "tokenizers" / "tiktoken" / SAME[0][0], tmp_path / "tokenizer.model")
    text = "<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|><|python_tag|><|reserved_special_token_247|>"
    (ids,) = Quire(tmp_path).encode([text])
    assert [i for i in ids if i >= 128000] == [128000, 128006, 128007, 128009, 128010, 128255]


PATTERN = r" ?[A-Za-z]+|\s+|[^\sA-Za-z]+"


def train(text, count):
    """Ranks as byte-pair training finds them: the bytes, then the most frequent pair joined, repeatedly."""
    pieces = [[bytes([b]) for b in word.encode()] for word in re.findall(PATTERN, text)]
    tokens = [bytes([b]) for b in range(256)]
    while len(tokens) < count:
        pairs = {}
        for piece in pieces:
            for pair in zip(piece, piece[1:]):
                pairs[pair] = pairs.get(pair, 0) + 1
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        tokens.append(best[0] + best[1])
        for piece in pieces:
            i = 0
            while i + 1 < len(piece):
                if (piece[i], piece[i + 1]) == best:
                    piece[i:i + 2] = [tokens[-1]]
                i += 1
    return tokens


def encode(ranks, text):
    """Ranked merging, the slow and obvious way."""
    out = []
    for word in re.findall(PATTERN, text):
        word = word.encode()
        parts = [word] if word in ranks else [bytes([b]) for b in word]
        while len(parts) > 1:
            rank, i = min((ranks.get(a + b, 1 << 30), i) for i, (a, b) in enumerate(zip(parts, parts[1:])))
            if rank == 1 << 30:
                break
            parts[i:i + 2] = [parts[i] + parts[i + 1]]
        out += [ranks[part] for part in parts]
    return out


def test_tekken_merges_by_rank(tmp_path):
    corpus = Path(__file__).read_text() + " naïve café 你好 " * 20
    tokens = train(corpus, 400)
    # A long token that no two others form: only the whole piece gives it.
    tokens.append(b" zyxwvq")
    specials = [{"rank": 0, "token_str": "<unk>", "is_control": True}, {"rank": 1, "token_str": "<s>", "is_control": True}]
    whole = {"config": {"pattern": PATTERN, "default_vocab_size": len(tokens) + 10, "default_num_special_tokens": 10},
             "vocab": [{"rank": i, "token_bytes": base64.b64encode(t).decode(), "token_str": None} for i, t in enumerate(tokens)] +
                      [{"rank": len(tokens), "token_bytes": base64.b64encode(b"unused").decode()}],
             "special_tokens": specials}
    (tmp_path / "tekken.json").write_text(json.dumps(whole))
    ranks = {token: i for i, token in enumerate(tokens)}
    texts = random_texts(12, 200) + [corpus[i:i + 200] for i in range(0, len(corpus), 200)] + [" zyxwvq", " zyxwvqs", "unused"]
    texts = [t for t in texts if not re.search("[\x1c-\x1f\x85]", t)]  # white space only to Python
    quire = Quire(tmp_path)
    found = quire.encode(texts, special=False, parse=False)
    assert found == [[i + 10 for i in encode(ranks, text)] for text in texts]
    assert quire.decode(found) == texts
    assert quire.encode(["<s>a"]) == [[1, 1, ranks[b"a"] + 10]]
