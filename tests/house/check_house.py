#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the rules that every source file keeps; needs only Python's standard library.

- In src/ a folder includes itself and the folders below it, never those above it. src/folders.txt has the order.
- The lists of folders in docs/architecture.md and CONTRIBUTING.md agree with src/folders.txt.
- Each file starts with the licence line and a sentence that says what it is for.
- No file has more than MAX_LINES lines, names a path of somebody's machine, or leaves a note for later.
- C++ is formatted as clang-format 14 does it (checked only where that version is installed).
The rules hold for tests too. Data (JSON goldens, fuzz seeds) is not source and is not read.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

MAX_LINES = 900
SPDX = "SPDX-License-Identifier: Apache-2.0"
CPP = {".cc", ".h", ".cpp", ".hpp", ".cu", ".cuh", ".metal"}
SCRIPTS = {".py", ".sh", ".cmake"}
SKIPPED_FOLDERS = {".git", "__pycache__", ".venv", "venv", "node_modules"}
# Pages that list the folders from top to bottom, and how: a row of a table each, or one indented line.
FOLDER_LISTS = {"docs/architecture.md": re.compile(r"^\| `(\w+)/` \|", re.MULTILINE),
                "CONTRIBUTING.md": re.compile(r"^    (\w+(?:  \w+)+)$", re.MULTILINE)}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
NOTE_FOR_LATER = re.compile(r"\b(%s)\b" % "|".join(["TO" + "DO", "FIX" + "ME"]))
MACHINE_PATH = re.compile(r"(?<![\w.$}-])/(%s)/[\w.]" % "|".join(["wo" + "rk", "ho" + "me", "ro" + "ot", "Us" + "ers"]))
TEMPORARY_PATH = re.compile(r"(?<![\w.$}-])/t" + r"mp/\w")
GENERATED = re.compile(r"[Gg]enerated by (tools|scripts)/")


def all_files(root):
    """The files that git knows or would take; every file when there is no git."""
    try:
        listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                                capture_output=True, check=True).stdout.decode().split("\0")
        return sorted(root / name for name in listed if name and (root / name).is_file())
    except (OSError, subprocess.CalledProcessError):
        found = []
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS and not name.startswith("build")]
            found += [pathlib.Path(folder) / name for name in names]
        return sorted(found)


def is_script(path, lines):
    return path.suffix in SCRIPTS or path.name == "CMakeLists.txt" or bool(lines and lines[0].startswith("#!"))


def included_folder(root, path, name):
    """The folder of src/ that an include leads to; "" when it leads out of src/."""
    source = root / "src"
    for candidate in (source / name, path.parent / name):
        try:
            inside = candidate.resolve().relative_to(source.resolve())
        except ValueError:
            continue
        if candidate.is_file():
            return inside.parts[0]
    return ""


def read_folders(root):
    """The folders of src/, lowest first."""
    lines = (root / "src/folders.txt").read_text(encoding="utf-8").split("\n")
    return [line for line in lines if line and not line.startswith("#")]


def check_includes(root, folders, path, lines):
    folder = path.relative_to(root / "src").parts[0]
    if folder not in folders:
        yield 1, "src/%s is not in src/folders.txt" % folder
        return
    height = folders.index(folder)
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        bracket, name = match.groups()
        target = included_folder(root, path, name)
        if bracket == '"' and target == "":
            yield number, 'includes "%s", which is not in src/' % name
        elif target in folders and folders.index(target) > height:
            yield number, "%s includes %s (\"%s\"), which is above it" % (folder, target, name)


def check_folder_lists(root, folders):
    """Pages whose list of folders differs from src/folders.txt."""
    for page, entry in FOLDER_LISTS.items():
        listed = " ".join(entry.findall((root / page).read_text(encoding="utf-8"))).split()
        if listed != folders[::-1]:
            yield page, 1, "lists the folders as %s; src/folders.txt has, from the top, %s" % (
                " ".join(listed), " ".join(folders[::-1]))


def check_head(path, lines):
    start = 1 if lines and lines[0].startswith("#!") else 0
    if len(lines) <= start or SPDX not in lines[start]:
        yield start + 1, "must begin with the line: " + SPDX
        return
    purpose = lines[start + 1] if len(lines) > start + 1 else ""
    if path.suffix in CPP and not purpose.startswith("//"):
        yield start + 2, "must say in one sentence, after the licence line, what its purpose is"


def check_text(lines):
    generated = any(GENERATED.search(line) for line in lines[:6])
    if len(lines) > MAX_LINES and not generated:
        yield MAX_LINES, "has %d lines, more than %d: split it" % (len(lines), MAX_LINES)
    for number, line in enumerate(lines, 1):
        if NOTE_FOR_LATER.search(line):
            yield number, "leaves a note for later: do it, or write an issue"
        if MACHINE_PATH.search(line) or TEMPORARY_PATH.search(line):
            yield number, "names a path of somebody's machine"


def check_format(root, files):
    """The files that clang-format would change; a warning where version 14 is not installed."""
    program = shutil.which("clang-format-14") or shutil.which("clang-format")
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout if program else ""
    if " version 14." not in version:
        print("warning: clang-format 14 is not installed, so the formatting was not checked")
        return []
    problems = []
    cpp = [str(path) for path in files if path.suffix in CPP]
    for start in range(0, len(cpp), 50):
        done = subprocess.run([program, "--dry-run", "--ferror-limit=1", *cpp[start : start + 50]], capture_output=True,
                              text=True)
        for line in done.stderr.splitlines():
            match = re.match(r"(.+?):(\d+):\d+: (?:warning|error): code should be clang-formatted", line)
            if match:
                problems.append((os.path.relpath(match.group(1), root), int(match.group(2)), "is not formatted: run scripts/format"))
    first = {}
    for path, number, message in problems:
        first.setdefault(path, (path, number, message))
    return list(first.values())


def check(root, with_format=True):
    """All problems, as (path, line, message)."""
    problems = []
    files = all_files(root)
    folders = read_folders(root)
    for path in files:
        relative = path.relative_to(root)
        cpp = path.suffix in CPP
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            if cpp:
                problems.append((str(relative), 1, "is not UTF-8"))
            continue
        if not cpp and not is_script(path, lines):
            continue
        found = [*check_head(path, lines), *check_text(lines)]
        if cpp and relative.parts[0] == "src":
            found += check_includes(root, folders, path, lines)
        problems += [(str(relative), number, message) for number, message in found]
    problems += check_folder_lists(root, folders)
    if with_format:
        problems += check_format(root, [path for path in files if path.relative_to(root).parts[0] == "src"])
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--no-format", action="store_true", help="do not run clang-format")
    arguments = parser.parse_args()
    problems = check(arguments.root.resolve(), not arguments.no_format)
    for path, number, message in problems:
        print("%s:%d: %s" % (path, number, message))
    print("%d problems" % len(problems) if problems else "the house is in order")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
