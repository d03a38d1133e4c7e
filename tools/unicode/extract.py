#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/text/unicode_tables.inc: what Hugging Face's `tokenizers` answers for every code point.

Each property is asked of the library itself (a normalizer or pre-tokenizer run over all code points), because its
parts follow different Unicode versions: the Split regex (Oniguruma), Rust's char methods, the regex crate, and two
older tables for punctuation and normalization. Python's unicodedata gives combining classes and composition pairs,
each of which is then checked against the library.

usage: extract.py OUTPUT   (needs PyPI tokenizers; the version used is written into the file)
"""
import base64
import json
import struct
import sys
import unicodedata
from importlib.metadata import version

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

ALL = [cp for cp in range(0x110000) if not 0xD800 <= cp <= 0xDFFF]
TEXT = "".join(map(chr, ALL))

CATEGORIES = ["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
              "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn"]
SCRIPTS = """Arabic Armenian Bengali Bopomofo Braille Buginese Buhid Canadian_Aboriginal Cherokee Common Coptic Cuneiform Cypriot
Cyrillic Deseret Devanagari Ethiopic Georgian Glagolitic Gothic Greek Gujarati Gurmukhi Han Hangul Hanunoo Hebrew
Hiragana Inherited Kannada Katakana Kharoshthi Khmer Lao Latin Limbu Linear_B Malayalam Mongolian Myanmar New_Tai_Lue
Nko Ogham Old_Italic Old_Persian Oriya Osmanya Phags_Pa Phoenician Runic Shavian Sinhala Syloti_Nagri Syriac Tagalog
Tagbanwa Tai_Le Tamil Telugu Thaana Thai Tibetan Tifinagh Ugaritic Yi Balinese Lepcha Ol_Chiki Vai Sundanese Saurashtra
Kayah_Li Rejang Lycian Carian Lydian Cham Tai_Tham Tai_Viet Avestan Samaritan Lisu Bamum Javanese Meetei_Mayek
Egyptian_Hieroglyphs Adlam Osage Nushu Tangut""".split()


def matched(pattern):
    """The code points that an Oniguruma pattern for one character matches."""
    kept = normalizers.Replace(Regex(pattern), "").normalize_str(TEXT)
    return set(ALL) - set(map(ord, kept))


def removed_by(normalizer, text=TEXT):
    return set(map(ord, text)) - set(map(ord, normalizer.normalize_str(text)))


def dropped_by(pre_tokenizer):
    """The code points that a pre-tokenizer drops or splits off, found by their offsets."""
    out = set(ALL)
    for piece, _ in pre_tokenizer.pre_tokenize_str(TEXT):
        out -= set(map(ord, piece))
    return out


def isolated_by(pre_tokenizer):
    """The code points c for which "a" + c + "a" is split in three; found with one text that has 'a' between all."""
    out = set()
    text = "a" + "a".join(chr(c) for c in ALL if chr(c) != "a") + "a"
    for piece, _ in pre_tokenizer.pre_tokenize_str(text):
        if len(piece) == 1 and piece != "a":
            out.add(ord(piece))
    return out


def one_by_one(normalizer):
    """The normalized form of each code point that the normalizer changes."""
    out = {}
    for cp in ALL:
        c = chr(cp)
        n = normalizer.normalize_str(c)
        if n != c:
            out[cp] = [ord(x) for x in n]
    return out


def ranges(points):
    out = []
    for p in sorted(points):
        if out and out[-1][1] + 1 == p:
            out[-1][1] = p
        else:
            out.append([p, p])
    return out


def charsmap_of_a():
    """A precompiled charsmap with the single rule "a" -> "X": the smallest double array that has it."""
    units = [0] * 256
    root_offset = 1
    units[0] = root_offset << 10
    # The node of 'a' is at offset ^ 'a' with label 'a', a leaf flag and its own offset; the value is next to it.
    node = root_offset ^ ord("a")
    leaf_offset = 2
    units[node] = ord("a") | (1 << 8) | ((leaf_offset ^ 0) << 10)
    units[node ^ leaf_offset] = 0x80000000 | 0
    trie = b"".join(struct.pack("<I", u) for u in units)
    return base64.b64encode(struct.pack("<I", len(trie)) + trie + b"X\0").decode()


def grapheme_extenders():
    """Code points that join the grapheme of a preceding 'a' (Extend, SpacingMark and ZWJ)."""
    tok = json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
                      "normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap_of_a()},
                      "pre_tokenizer": None, "post_processor": None, "decoder": None,
                      "model": {"type": "WordLevel", "vocab": {"u": 0}, "unk_token": "u"}})
    normalizer = Tokenizer.from_str(tok).normalizer
    assert normalizer.normalize_str("aba") == "XbX"
    out = set()
    for cp in ALL:
        if normalizer.normalize_str("a" + chr(cp)) == "X":
            out.add(cp)
    return out


def combining_classes():
    """Canonical combining classes, as in the library's normalization."""
    nfd = normalizers.NFD().normalize_str
    reference = {}
    for cp in ALL:
        k = unicodedata.combining(chr(cp))
        if k and k not in reference:
            reference[k] = cp
    last = 0x0345  # class 240, the highest
    out = {}
    for cp in ALL:
        c = chr(cp)
        k = unicodedata.combining(c)
        known = nfd("a" + chr(last) + c) == "a" + nfd(c) + chr(last) if k != 240 else nfd("a" + c + "\u0301") != "a" + c + "\u0301"
        if not known:
            continue
        if len(nfd(c)) > 1:
            continue
        if k == 0:  # newer than Python's table: find its class by comparing with neighbours
            below = [r for r in sorted(reference) if nfd("a" + c + chr(reference[r])) == "a" + chr(reference[r]) + c]
            equal_or_above = [r for r in sorted(reference) if r not in below]
            same = [r for r in equal_or_above if nfd("a" + chr(reference[r]) + c) == "a" + chr(reference[r]) + c]
            assert same, hex(cp)
            k = same[0]
        out[cp] = k
    return out


def compositions(decompositions):
    """Primary composites: (first, second) -> composed; pairs from Python, each checked."""
    nfc = normalizers.NFC().normalize_str
    out = {}
    for cp in ALL:
        if 0xAC00 <= cp < 0xD7A4:
            continue
        parts = unicodedata.decomposition(chr(cp)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            a, b = (int(p, 16) for p in parts)
            if nfc(chr(a) + chr(b)) == chr(cp):
                out[(a, b)] = cp
        elif cp in decompositions and len(decompositions[cp]) > 1 and nfc(chr(cp)) == chr(cp):
            d = decompositions[cp]
            head = nfc("".join(map(chr, d[:-1])))
            if len(head) == 1 and nfc(head + chr(d[-1])) == chr(cp):
                out[(ord(head), d[-1])] = cp
    return out


FLAGS = ["rust_whitespace", "rust_numeric", "punctuation", "bert_control", "bert_mark", "combining_mark", "rust_word",
         "onig_space", "onig_word", "onig_digit", "grapheme_extend", "bert_whitespace"]


def properties():
    bert = lambda **k: normalizers.BertNormalizer(**{**dict(clean_text=False, handle_chinese_chars=False,
                                                            strip_accents=False, lowercase=False), **k})
    sets = {
        "rust_whitespace": dropped_by(pre_tokenizers.WhitespaceSplit()),
        "rust_numeric": isolated_by(pre_tokenizers.Digits(individual_digits=True)),
        "punctuation": isolated_by(pre_tokenizers.Punctuation()),
        "onig_space": matched(r"\s"), "onig_word": matched(r"\w"), "onig_digit": matched(r"\d"),
        "combining_mark": removed_by(normalizers.StripAccents()),
        "grapheme_extend": grapheme_extenders(),
    }
    clean = bert(clean_text=True)
    sets["bert_control"] = {cp for cp in ALL if clean.normalize_str(chr(cp)) == ""}
    sets["bert_whitespace"] = {cp for cp in ALL if clean.normalize_str(chr(cp)) == " "}
    # Marks are dropped after NFD, so a mark gives an empty result; one that NFD changes is tested by its parts.
    strip = bert(strip_accents=True)
    sets["bert_mark"] = {cp for cp in ALL if strip.normalize_str(chr(cp)) == ""}
    # Whitespace is `\w+|[^\w\s]+` of the regex crate: a word character next to 'a' stays with it.
    word = set()
    text = " ".join("a" + chr(c) for c in ALL)
    for piece, _ in pre_tokenizers.Whitespace().pre_tokenize_str(text):
        if len(piece) == 2 and piece[0] == "a":
            word.add(ord(piece[1]))
    sets["rust_word"] = word
    return sets


def scripts_of_pre_tokenizer():
    """Classes of the UnicodeScripts pre-tokenizer: 0 never splits; others are equal if there is no split between them."""
    cut = pre_tokenizers.UnicodeScripts()
    runs = []
    pieces = cut.pre_tokenize_str(TEXT)
    first = pieces[0][1][0]
    classes = {}
    representatives = []  # (class, character)

    def split(a, b):
        return len(cut.pre_tokenize_str(a + b)) == 2

    def is_any(c):
        return not cut.pre_tokenize_str(c)

    def class_of(c):
        if is_any(c):
            return 0
        for k, r in representatives:
            if not split(r, c):
                return k
        representatives.append((len(representatives) + 1, c))
        return len(representatives)

    memo = None
    del runs, first
    for piece, _ in pieces:
        k = None
        for c in piece:
            if is_any(c):
                continue
            if k is None:
                k = class_of(c)
            classes[ord(c)] = k
    del memo
    return classes


def emit_u32(out, name, values, per_line=12):
    out.append(f"constexpr uint32_t {name}[] = {{")
    for i in range(0, len(values), per_line):
        out.append("    " + ", ".join(f"{v}" if v < 10 else f"0x{v:x}" for v in values[i:i + per_line]) + ",")
    out.append("};")


def emit_mapping(out, name, mapping):
    """Sorted code points with (offset << 5 | length) into one pool of code points."""
    keys, where, pool = [], [], []
    index = {}
    for cp in sorted(mapping):
        value = tuple(mapping[cp])
        assert len(value) < 32
        if value not in index:
            index[value] = len(pool)
            pool.extend(value)
        keys.append(cp)
        where.append(index[value] << 5 | len(value))
    emit_u32(out, f"k{name}Keys", keys)
    emit_u32(out, f"k{name}Where", where)
    emit_u32(out, f"k{name}Pool", pool if pool else [0])


def main():
    out = ["// SPDX-License-Identifier: Apache-2.0",
           f"// Made by tools/unicode/extract.py from tokenizers {version('tokenizers')}; do not edit.", "// clang-format off", ""]
    category = {}
    for i, name in enumerate(CATEGORIES):
        for cp in matched(r"\p{%s}" % name):
            category[cp] = i
    assert all(cp in category for cp in ALL), "every code point has a category"
    sets = properties()
    starts, values, last = [], [], None
    for cp in range(0x110000):
        v = category.get(cp, CATEGORIES.index("Cn"))
        for bit, name in enumerate(FLAGS):
            if cp in sets[name]:
                v |= 1 << (8 + bit)
        if v != last:
            starts.append(cp)
            values.append(v)
            last = v
    emit_u32(out, "kPropertyStarts", starts)
    emit_u32(out, "kPropertyValues", values)

    out.append("struct ScriptName { const char* name; uint32_t begin; uint32_t end; };")
    pool, names = [], []
    for name in SCRIPTS:
        r = ranges(matched(r"\p{%s}" % name))
        begin = len(pool)
        for a, b in r:
            pool += [a, b]
        names.append((name, begin, len(pool)))
    out.append("constexpr ScriptName kScripts[] = {")
    out += [f'    {{"{n.lower().replace("_", "")}", {a}, {b}}},' for n, a, b in names]
    out.append("};")
    emit_u32(out, "kScriptRanges", pool)

    classes = scripts_of_pre_tokenizer()
    starts, values, last = [], [], None
    for cp in range(0x110000):
        v = classes.get(cp, 0)
        if v != last:
            starts.append(cp)
            values.append(v)
            last = v
    emit_u32(out, "kScriptClassStarts", starts)
    emit_u32(out, "kScriptClassValues", values)

    nfd = {k: v for k, v in one_by_one(normalizers.NFD()).items() if not 0xAC00 <= k < 0xD7A4}
    nfkd = {k: v for k, v in one_by_one(normalizers.NFKD()).items() if not 0xAC00 <= k < 0xD7A4 and nfd.get(k) != v}
    emit_mapping(out, "Canonical", nfd)
    emit_mapping(out, "Compatible", nfkd)
    emit_mapping(out, "Lower", one_by_one(normalizers.Lowercase()))
    ccc = combining_classes()
    emit_u32(out, "kCombining", [cp << 8 | k for cp, k in sorted(ccc.items())])
    pairs = compositions(nfd)
    flat = []
    for (a, b), c in sorted(pairs.items()):
        flat += [a, b, c]
    emit_u32(out, "kCompositions", flat)

    # Letters that a case-insensitive Oniguruma pattern considers equal to an ASCII letter.
    folds = []
    for letter in "abcdefghijklmnopqrstuvwxyz":
        for cp in sorted(matched(f"(?i:{letter})")):
            if cp >= 128:
                folds += [ord(letter), cp]
    emit_u32(out, "kAsciiFolds", folds)
    # Code points that differ only in case, by simple folding: pairs in both directions.
    open(sys.argv[1], "w").write("\n".join(out) + "\n")
    print(f"{sys.argv[1]}: {len(starts)} script runs, {len(nfd)} canonical, {len(nfkd)} compatible, {len(ccc)} marks, {len(pairs)} pairs")


if __name__ == "__main__":
    main()
