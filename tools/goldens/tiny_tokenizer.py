# SPDX-License-Identifier: Apache-2.0
"""A tokenizer for the tiny models: byte-level BPE with a few merges, the same in tokenizer.json and in GGUF.

Ids 0-255 are the bytes, 256 and 257 the specials, then one token a merge; what is left of the vocabulary is unused.
"""

BOS, EOS = 256, 257
BOS_TEXT, EOS_TEXT = "<|bos|>", "<|eos|>"
# In order of rank; U+0120 is a space in GPT-2's alphabet.
MERGES = ["h e", "i n", "r e", "a n", "o n", "e r", "a t", "e n", "o r", "e s", "i s", "i t", "a r", "t h", "o u", "l l",
          "n d", "t i", "e d", "s t", "Ġ t", "Ġ a", "Ġ o", "Ġ s", "Ġ w", "Ġ b", "Ġ c", "Ġ f", "Ġ m", "Ġ p", "in g", "an d",
          "Ġt he", "Ġa nd", "Ġo f", "th e", "Ġt o", "ti on", "Ġ in", "Ġ th", "he r", "a l", "l e", "o f", "e ll", "ell o",
          "H ello", "w or", "wor l", "worl d", "Ġwor ld", "Ġw or", "Ġwor l"]
CHAT_TEMPLATE = ("{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
                 "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}")


def byte_alphabet() -> list[str]:
    """GPT-2's printable character for each byte: itself if it is printable Latin-1, else the next from U+0100 on."""
    out, extra = [], 0
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255:
            out.append(chr(byte))
        else:
            out.append(chr(256 + extra))
            extra += 1
    return out


def usable_merges(vocab_size: int) -> list[str]:
    known, out = set(byte_alphabet()), []
    for merge in MERGES[:vocab_size - 258]:
        left, right = merge.split(" ")
        if left in known and right in known and left + right not in known:
            known.add(left + right)
            out.append(merge)
    return out


def vocabulary(vocab_size: int) -> list[str]:
    if vocab_size < 258:
        raise ValueError(f"the tiny tokenizer needs a vocabulary of at least 258 tokens, not {vocab_size}")
    tokens = byte_alphabet() + [BOS_TEXT, EOS_TEXT] + [m.replace(" ", "") for m in usable_merges(vocab_size)]
    return tokens + [f"<|unused_{i}|>" for i in range(len(tokens), vocab_size)]


def tokenizer_json(vocab_size: int) -> dict:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, text in ((BOS, BOS_TEXT), (EOS, EOS_TEXT))]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {t: i for i, t in enumerate(vocabulary(vocab_size))},
                      "merges": usable_merges(vocab_size)}}


def tokenizer_config() -> dict:
    return {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS_TEXT, "eos_token": EOS_TEXT,
            "pad_token": EOS_TEXT, "add_bos_token": False, "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE}
