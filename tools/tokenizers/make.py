#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the small tokenizers in tests/text/tokenizers: one or more for each model, and together every normalizer,
pre-tokenizer, post-processor and decoder that tokenizer.json knows. Trained on this repository's own documents.

usage: make.py OUTPUT_FOLDER   (needs PyPI tokenizers)
"""
import json
import sys
from pathlib import Path

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers)

TEXT = [
    "The quick brown fox jumps over the lazy dog; it's the dog's day, they'll say, and we've 1234567 reasons.",
    "Ein Text über Äpfel, Öl und Straßen. Une phrase avec des accents: déjà vu, naïve, garçon, œuvre.",
    "Съешь ещё этих мягких французских булок да выпей чаю. Καλημέρα κόσμε, τι κάνεις;",
    "これは日本語の文章です。中文字符也在这里。한국어 문장도 있습니다. हिन्दी में एक वाक्य। สวัสดีชาวโลก שלום עולם مرحبا بالعالم",
    "def main(argc: int) -> None:\n    for i in range(10):\n\tprint(f'{i} -> {i ** 2}')\n\n    return None\r\n",
    "😀 👩‍👩‍👧 🇩🇪 … “quotes” — dashes – x² ½ ① Ⅷ ﬁ ﬂ e\u0301 \u00a0 nbsp\u3000wide",
    "An inference server keeps pages of keys and values; the same request gives the same bits whatever else is running.",
] * 4
SPECIAL = ["<s>", "</s>", "<unk>", "<pad>"]


def added(tokenizer):
    # A token that its normalizer empties makes the reference split between all characters (or panic).
    stripped = tokenizer.normalizer is not None and tokenizer.normalizer.normalize_str("   ") == ""
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", normalized=False, special=True),
                                  AddedToken("<mask>", lstrip=True, normalized=False, special=True),
                                  AddedToken("<strip>", rstrip=True, normalized=False, special=True)])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("Word", single_word=True, normalized=True),
                          AddedToken("Éa", normalized=True)])
    if not stripped:
        tokenizer.add_tokens([AddedToken("   ", normalized=True)])


def bpe(normalizer=None, pre=None, post=None, decoder=None, vocab=420, byte_level=True, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre:
        tokenizer.pre_tokenizer = pre
    extra = {}
    if byte_level:
        extra["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    if options.get("end_of_word_suffix"):
        extra["end_of_word_suffix"] = options["end_of_word_suffix"]
    if options.get("continuing_subword_prefix"):
        extra["continuing_subword_prefix"] = options["continuing_subword_prefix"]
    special = list(SPECIAL)
    if options.get("byte_fallback"):
        special += [f"<0x{b:02X}>" for b in range(256)]
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, show_progress=False,
                                                            limit_alphabet=120, **extra))
    if options.get("byte_fallback"):  # in real files, byte tokens are not added tokens
        data = json.loads(tokenizer.to_str())
        data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x")]
        tokenizer = Tokenizer.from_str(json.dumps(data))
    if post:
        tokenizer.post_processor = post
    if decoder:
        tokenizer.decoder = decoder
    added(tokenizer)
    return tokenizer


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
LLAMA_DECODER = lambda: decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
BYTES = lambda **k: pre_tokenizers.ByteLevel(**{**dict(add_prefix_space=False, use_regex=True), **k})
TEMPLATE = lambda: processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1",
                                                 special_tokens=[("<s>", 0), ("</s>", 1)])


def byte_level_family():
    yield "gpt2", bpe(pre=BYTES(), decoder=decoders.ByteLevel(), post=processors.ByteLevel(trim_offsets=False))
    yield "roberta", bpe(pre=BYTES(add_prefix_space=True), decoder=decoders.ByteLevel(),
                         post=processors.RobertaProcessing(("</s>", 1), ("<s>", 0)))
    yield "llama3", bpe(pre=pre_tokenizers.Sequence([split(LLAMA3), BYTES(use_regex=False)]), decoder=decoders.ByteLevel(),
                        post=processors.Sequence([processors.ByteLevel(trim_offsets=False), TEMPLATE()]), ignore_merges=True)
    yield "qwen2", bpe(normalizer=normalizers.NFC(), decoder=decoders.ByteLevel(),
                       pre=pre_tokenizers.Sequence([split(LLAMA3.replace("{1,3}", "")), BYTES(use_regex=False)]))
    yield "smollm", bpe(pre=pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES()]),
                        decoder=decoders.ByteLevel())
    yield "falcon", bpe(pre=pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), BYTES(), pre_tokenizers.Digits(),
                                                     split("[0-9][0-9][0-9]")]), decoder=decoders.ByteLevel())
    yield "own_regex", bpe(pre=pre_tokenizers.Sequence([split(r"(?<=[a-z])(?=[A-Z])|[\p{Greek}&&[^\p{Lu}]]+|\bdog\b", "isolated"),
                                                        split(r"\p{Cyrillic}+", "contiguous"), split(r"[,;.]", "merged_with_next"),
                                                        BYTES(use_regex=False)]), decoder=decoders.ByteLevel())
    yield "byte_normalizer", bpe(normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.ByteLevel()]),
                                 decoder=decoders.ByteLevel())


def sentencepiece_family():
    replace = lambda: normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    yield "llama2", bpe(normalizer=replace(), decoder=LLAMA_DECODER(), post=TEMPLATE(), byte_level=False, vocab=700,
                        unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    yield "mistral", bpe(pre=pre_tokenizers.Metaspace(prepend_scheme="first", split=False), decoder=LLAMA_DECODER(), vocab=700,
                         byte_level=False, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    yield "gemma", bpe(normalizer=normalizers.Replace(" ", "▁"), vocab=700, byte_level=False, unk_token="<unk>", fuse_unk=True,
                       byte_fallback=True, pre=split(" ", "merged_with_previous"),
                       decoder=decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]))
    yield "unk_fused", bpe(pre=pre_tokenizers.Metaspace(), byte_level=False, unk_token="<unk>", fuse_unk=True,
                           decoder=decoders.Metaspace())
    yield "unk_apart", bpe(pre=pre_tokenizers.Metaspace(prepend_scheme="never"), byte_level=False, unk_token="<unk>",
                           decoder=decoders.Metaspace(prepend_scheme="never"))
    yield "clip", bpe(normalizer=normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "),
                                                       normalizers.Lowercase()]),
                      pre=pre_tokenizers.Sequence([split(r"'s|'t|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+", "removed", True),
                                                   BYTES(use_regex=False)]), unk_token="<unk>", end_of_word_suffix="</w>",
                      decoder=decoders.BPEDecoder())
    yield "prefixed", bpe(normalizer=normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Strip()]),
                          pre=pre_tokenizers.WhitespaceSplit(), byte_level=False, unk_token="<unk>",
                          continuing_subword_prefix="##", decoder=decoders.WordPiece())


def unigram(pre, decoder, normalizer=None, byte_fallback=False, vocab=400):
    tokenizer = Tokenizer(models.Unigram())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre
    tokenizer.train_from_iterator(TEXT, trainers.UnigramTrainer(vocab_size=vocab, special_tokens=SPECIAL, unk_token="<unk>",
                                                                show_progress=False))
    data = json.loads(tokenizer.to_str())
    if byte_fallback:
        data["model"]["vocab"] += [[f"<0x{b:02X}>", 0.0] for b in range(256)]
        data["model"]["byte_fallback"] = True
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.decoder = decoder
    added(tokenizer)
    return tokenizer


def other_models():
    # The trie: "①" -> "1", "ﬁ" -> "fi", "\t" -> " ", "a\u0301" stays; built by hand below.
    yield "unigram", unigram(pre_tokenizers.Metaspace(), decoders.Metaspace(), normalizers.Nmt())
    yield "unigram_bytes", unigram(pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
                                   LLAMA_DECODER(), normalizers.NFKC(), byte_fallback=True)
    for name, lower, accents in (("bert_uncased", True, None), ("bert_cased", False, False)):
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower, strip_accents=accents)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.train_from_iterator(TEXT, trainers.WordPieceTrainer(vocab_size=500, special_tokens=SPECIAL, show_progress=False))
        tokenizer.post_processor = processors.BertProcessing(("</s>", 1), ("<s>", 0))
        tokenizer.decoder = decoders.WordPiece(cleanup=lower)
        added(tokenizer)
        yield name, tokenizer
    for name, pre, decoder, normalizer in (
            ("wordlevel", pre_tokenizers.Whitespace(), None, normalizers.NFD()),
            ("wordlevel_scripts", pre_tokenizers.Sequence([pre_tokenizers.UnicodeScripts(), pre_tokenizers.CharDelimiterSplit(" ")]),
             decoders.CTC(pad_token="<pad>"), normalizers.Lowercase()),
            ("wordlevel_fixed", pre_tokenizers.FixedLength(length=3),
             decoders.Sequence([decoders.Fuse(), decoders.Replace("e", "E"), decoders.Strip("T", 2, 0)]),
             normalizers.Replace(Regex("[aeiou]{2}"), "")),
            ("wordlevel_split", pre_tokenizers.Sequence([split("o", "merged_with_previous"), split(r"\d+", "removed"),
                                                         pre_tokenizers.Punctuation("merged_with_next")]),
             decoders.Strip(" ", 1, 0), normalizers.Strip(left=True, right=True))):
        tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
        tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre
        tokenizer.train_from_iterator(TEXT, trainers.WordLevelTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False))
        if decoder:
            tokenizer.decoder = decoder
        added(tokenizer)
        yield name, tokenizer


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    total = 0
    for family in (byte_level_family(), sentencepiece_family(), other_models()):
        for name, tokenizer in family:
            text = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
            (out / f"{name}.json").write_text(text + "\n", encoding="utf-8")
            total += len(text)
    print(f"{out}: {total} bytes")


if __name__ == "__main__":
    main()
