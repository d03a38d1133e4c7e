#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Searches the paragraphs of text files by meaning, with embeddings from a quire server.

Usage:
    quire serve "$(scripts/get-minilm)" &
    examples/search.py "how does the cache share pages" docs/*.md

Needs only Python's standard library.
"""

import argparse
import array
import base64
import json
import pathlib
import sys
import urllib.error
import urllib.request


def embed(url: str, texts: list[str]) -> list[array.array]:
    """One normalised vector per text, asked for as base64, which is smaller and faster than numbers."""
    body = {"input": texts, "encoding_format": "base64", "endianness": "little", "truncate_prompt_tokens": -1}
    request = urllib.request.Request(f"{url}/v1/embeddings", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        items = json.load(reply)["data"]
    vectors = []
    for item in items:
        vector = array.array("f", base64.b64decode(item["embedding"]))
        if sys.byteorder == "big":
            vector.byteswap()
        vectors.append(vector)
    return vectors


def paragraphs(paths: list[pathlib.Path]) -> list[tuple[pathlib.Path, int, str]]:
    """(file, line, text) of each paragraph with at least five words."""
    found = []
    for path in paths:
        line = 1
        for block in path.read_text(encoding="utf-8", errors="replace").split("\n\n"):
            text = " ".join(block.split())
            if len(text.split()) >= 5:
                found.append((path, line, text))
            line += block.count("\n") + 2
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("query")
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the server (default: %(default)s)")
    parser.add_argument("--top", type=int, default=5, help="how many paragraphs are shown (default: %(default)s)")
    options = parser.parse_args()
    blocks = paragraphs(options.files)
    if not blocks:
        print("search.py: the files have no paragraph with five words", file=sys.stderr)
        return 1
    try:
        query = embed(options.url, [options.query])[0]
        vectors = []
        for begin in range(0, len(blocks), 256):
            vectors += embed(options.url, [text for _, _, text in blocks[begin:begin + 256]])
    except urllib.error.HTTPError as error:
        print(f"search.py: the server refused: {error.read().decode(errors='replace')[:300]}", file=sys.stderr)
        return 1
    except urllib.error.URLError as error:
        print(f"search.py: no server at {options.url} ({error.reason}); start one with quire serve", file=sys.stderr)
        return 1
    scored = sorted(((sum(a * b for a, b in zip(query, vector)), block) for vector, block in zip(vectors, blocks)),
                    key=lambda pair: -pair[0])
    for score, (path, line, text) in scored[:options.top]:
        print(f"{score:.3f}  {path}:{line}  {text[:100]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
