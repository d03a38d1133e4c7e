# SPDX-License-Identifier: Apache-2.0
"""Runs quire_tokenize_check, and finds the texts and tokenizers for the comparisons."""
import atexit
import functools
import json
import os
import random
import shutil
import subprocess
import tempfile
import threading
import weakref
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent


def binary():
    name = "quire_tokenize_check"
    for folder in (os.environ.get("QUIRE_BIN_DIR"), REPO / "build", REPO / "build-debug"):
        if folder and (Path(folder) / name).exists():
            return Path(folder) / name
    return None


# The files of the shared data that the tests read.
PARTS = ["tokenizers/hf", "tokenizers/hf-derived", "tokenizers/tiktoken", "tokenizers/gguf-vocab", "tokenizers/sentencepiece", "json/blns.json",
         "workloads/sharegpt/sharegpt_1k_multiturn.json", "evals/wikitext-2-raw", "workloads/prompts"]
# The whole comparison with the real tokenizers takes minutes per tokenizer; by default they get a sample.
FULL = os.environ.get("QUIRE_TEST_FULL") == "1"


@functools.lru_cache(maxsize=1)
def shared_data():
    """The optional folder of real tokenizers and texts; None if it does not exist.

    QUIRE_SHARED_DATA names an unpacked copy. Otherwise QUIRE_SHARED (or ../shared) has it with large files packed by
    zstd, and what the tests need is unpacked into a folder that is removed with this process.
    """
    unpacked = os.environ.get("QUIRE_SHARED_DATA")
    if unpacked:
        return Path(unpacked)
    source = Path(os.environ.get("QUIRE_SHARED") or REPO.parent / "shared") / "data"
    if not (source / "tokenizers").is_dir() or shutil.which("zstd") is None:
        return None
    target = tempfile.mkdtemp(prefix="quire-text-data-")
    atexit.register(shutil.rmtree, target, ignore_errors=True)
    for part in PARTS:
        here = source / part
        files = [f for f in here.rglob("*") if f.is_file()] if here.is_dir() else [f for f in here.parent.glob(here.name + "*")]
        for file in files:
            to = Path(target) / file.relative_to(source)
            to.parent.mkdir(parents=True, exist_ok=True)
            if file.suffix == ".zst":
                subprocess.run(["zstd", "-dqf", str(file), "-o", str(to.with_suffix(""))], check=True)
            else:
                shutil.copyfile(file, to)
    return Path(target)


class Quire:
    """One tokenizer behind the check binary, which reads it once; requests are sent in bulk."""

    def __init__(self, path):
        self.path = str(path)
        self.said = tempfile.TemporaryFile()
        self.process = subprocess.Popen([str(binary()), self.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said)
        weakref.finalize(self, self.process.kill)

    def ask(self, requests):
        sender = threading.Thread(target=self.send, args=("".join(json.dumps(r) + "\n" for r in requests).encode(),))
        sender.start()
        lines = [self.process.stdout.readline() for _ in requests]
        sender.join()
        if not all(lines):
            self.process.wait()
            self.said.seek(0)
            raise RuntimeError(f"{self.path}: {self.said.read().decode()}")
        return [json.loads(line) for line in lines]

    def send(self, data):
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, and ask() says why

    def encode(self, texts, special=True, parse=True):
        return [a["ids"] for a in self.ask([{"text": t, "special": special, "parse": parse} for t in texts])]

    def encode_bytes(self, blobs):
        return [a["ids"] for a in self.ask([{"bytes": b.hex()} for b in blobs])]

    def decode(self, lists, skip=(True,)):
        """The texts of all lists for each value of `skip`; one process answers them all, since it reads the tokenizer first."""
        answers = self.ask([{"ids": ids, "skip": value} for value in skip for ids in lists])
        for ids, answer in zip(lists * len(skip), answers):
            assert answer["stream"], f"{self.path}: push and flush differ from decode for {ids[:40]}"
        return [a["text"] for a in answers]


SCRIPTS = [(0x20, 0x7e), (0xa0, 0x24f), (0x250, 0x36f), (0x370, 0x3ff), (0x400, 0x52f), (0x530, 0x5ff), (0x600, 0x6ff),
           (0x700, 0x8ff), (0x900, 0x97f), (0x980, 0xdff), (0xe00, 0xfff), (0x1000, 0x139f), (0x13a0, 0x1aff),
           (0x1b00, 0x1fff), (0x2000, 0x206f), (0x2070, 0x2bff), (0x2c00, 0x2fff), (0x3000, 0x30ff), (0x3100, 0x33ff),
           (0x3400, 0x4dff), (0x4e00, 0x9fff), (0xa000, 0xabff), (0xac00, 0xd7ff), (0xe000, 0xf8ff), (0xf900, 0xfaff),
           (0xfb00, 0xffff), (0x10000, 0x10fff), (0x11000, 0x12fff), (0x13000, 0x16fff), (0x17000, 0x1afff),
           (0x1b000, 0x1d0ff), (0x1d100, 0x1d7ff), (0x1d800, 0x1efff), (0x1f000, 0x1faff), (0x20000, 0x2a6df),
           (0x2a700, 0x323af), (0xe0000, 0xe01ef), (0x10ff00, 0x10ffff)]
CLASSIC = ["\r\n", "\n\n", "   ", "\t", "\u00a0", "\u3000", "\u2028", "'s", "'LL", "'\u017f", "'re ", "don't", "1234567", "\u0301",
           "\u200d", "\ufe0f", "👩‍👩‍👧", "🇩🇪", "\ufffd", "\u2581", "\u212a", "\u00df", "\u0130", "\x00", "\x1f", "...", "!?", "<|", "|>"]


def random_texts(seed, count, specials=()):
    """Short texts that mix scripts, spaces, marks and special tokens."""
    rng = random.Random(seed)
    out = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(1, 12)):
            kind = rng.random()
            if kind < 0.25:
                parts.append(rng.choice(CLASSIC))
            elif kind < 0.32 and specials:
                parts.append(rng.choice(specials))
            elif kind < 0.45:
                parts.append(" " * rng.randint(1, 4))
            else:
                low, high = rng.choice(SCRIPTS)
                parts.append("".join(chr(c) for c in (rng.randint(low, high) for _ in range(rng.randint(1, 8)))
                                     if not 0xd800 <= c <= 0xdfff))
        out.append("".join(parts))
    return out


@functools.lru_cache(maxsize=1)
def every_code_point():
    """All code points that any Unicode version has assigned (and some of the rest), each between a letter and a
    digit."""
    points = [c for c in range(0x110000) if not 0xd800 <= c <= 0xdfff]
    if not FULL:
        points = [c for c in points if c < 0x323b0 or 0xe0000 <= c < 0xe0200 or c % 997 == 0]
        points = [c for c in points if not (0x3400 <= c < 0x9f00 or 0xac00 <= c < 0xd700 or 0x17000 <= c < 0x18d00 or
                                            0x20000 <= c < 0x32300) or c % 31 == 0]  # long runs of one kind
    return ["".join(f"a{chr(c)}1 " for c in points[i:i + 2048]) for i in range(0, len(points), 2048)]


@functools.lru_cache(maxsize=1)
def real_texts(data):
    """Texts of many kinds from the shared data, each at most some kilobytes."""
    texts = json.loads((data / "json" / "blns.json").read_text())
    conversations = json.loads((data / "workloads" / "sharegpt" / "sharegpt_1k_multiturn.json").read_text())
    for conversation in conversations[:200]:
        texts += [m["value"] for m in conversation["conversations"]]
    wiki = (data / "evals" / "wikitext-2-raw" / "wiki.test.raw").read_text()
    texts += [wiki[i:i + 4000] for i in range(0, len(wiki), 4000)]
    for path in sorted((data / "workloads" / "prompts").iterdir()):
        if path.suffix == ".txt":
            text = path.read_text()
            texts += [text[i:i + 20000] for i in range(0, len(text), 20000)]
    return texts
