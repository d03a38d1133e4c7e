#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the files of the page at / as strings of a C++ file: embed_page.py OUT.cc page.html page.css a.js b.js

Files of the same kind become one string, in the order given.
"""

import pathlib
import sys

PIECE = 8192  # characters per literal: compilers need not accept long ones


def literal(text: str) -> str:
    pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
    return "\n".join('R"~page~(%s)~page~"' % piece for piece in pieces)


def main(out: str, *files: str) -> None:
    lines = ['#include "api/page_texts.h"', "", "namespace quire::api {", ""]
    texts: dict[str, str] = {}
    for file in map(pathlib.Path, files):
        texts[file.suffix] = texts.get(file.suffix, "") + file.read_text()
    for suffix, text in texts.items():
        lines += ["const std::string_view k%s =" % suffix[1:].capitalize(), literal(text) + ";", ""]
    pathlib.Path(out).write_text("\n".join([*lines, "}  // namespace quire::api", ""]))


if __name__ == "__main__":
    main(*sys.argv[1:])
