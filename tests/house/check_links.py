#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every relative link and picture in the Markdown files leads somewhere; needs only the standard library.

- The file or folder that a link names exists inside the repository.
- An anchor ("page.md#heading") is a heading of that page, spelled as GitHub spells anchors.
Links with a scheme (https:, mailto:) are not followed, and code is not read.
"""

import argparse
import pathlib
import re
import sys
import urllib.parse

import check_house

FENCE = re.compile(r"^\s*(```|~~~)")
HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$")
INLINE_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
LINK = re.compile(r"\]\(\s*<?([^()<>\s]+(?:\([^()\s]*\)[^()<>\s]*)?)>?(?:\s+\"[^\"]*\")?\s*\)")
DEFINITION = re.compile(r"^\s{0,3}\[[^\]]+\]:\s+<?(\S+?)>?(?:\s+\"[^\"]*\")?\s*$")
SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def prose(text):
    """The lines outside of fenced code, as (number, line)."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number, line


def anchors(text):
    """The anchors that GitHub gives to the headings of a page."""
    found, used = set(), {}
    for _, line in prose(text):
        match = HEADING.match(line)
        if not match:
            continue
        title = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", match.group(2)).replace("`", "")
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        count = used.get(anchor, 0)
        used[anchor] = count + 1
        found.add(anchor if count == 0 else "%s-%d" % (anchor, count))
    return found


def links(text):
    """The targets of all links and pictures, as (line number, target)."""
    for number, line in prose(text):
        definition = DEFINITION.match(line)
        if definition:
            yield number, definition.group(1)
        for match in LINK.finditer(INLINE_CODE.sub("", line)):
            yield number, match.group(1)


def check_page(root, page):
    for number, target in links(page.read_text(encoding="utf-8")):
        if SCHEME.match(target) or target.startswith("//"):
            continue
        name, _, anchor = target.partition("#")
        goal = (page.parent / urllib.parse.unquote(name)).resolve() if name else page.resolve()
        if not goal.is_relative_to(root) or not goal.exists():
            yield number, "links to %s, which does not exist" % target
        elif anchor and goal.suffix == ".md" and anchor not in anchors(goal.read_text(encoding="utf-8")):
            yield number, "links to %s, but that page has no such heading" % target


def check(root):
    """All problems, as (path, line, message)."""
    return [(str(page.relative_to(root)), number, message) for page in check_house.all_files(root) if page.suffix == ".md"
            for number, message in check_page(root, page)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    problems = check(parser.parse_args().root.resolve())
    for path, number, message in problems:
        print("%s:%d: %s" % (path, number, message))
    print("%d problems" % len(problems) if problems else "every link leads somewhere")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
