#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the rules that every file of the house keeps; needs nothing but Python's standard library.

- In src/ a folder includes itself and what stands below it in FOLDERS, never what stands above.
- Each file starts with the licence line and a sentence of purpose.
- No file has more than MAX_LINES lines, names a path of somebody's machine, or leaves a note for later.
- C++ is as clang-format 14 writes it (only where that version is installed).
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

# From the roof to the ground.
FOLDERS = ["cli", "bench", "http", "api", "llm", "text", "engine", "sampling", "kv", "model", "weights", "backend",
           "kernels", "ops", "distributed", "metrics", "base"]
MAX_LINES = 900
SPDX = "SPDX-License-Identifier: Apache-2.0"
CPP = {".cc", ".h", ".cpp", ".hpp", ".cu", ".metal"}
SCRIPTS = {".py", ".sh", ".cmake"}
SKIPPED_FOLDERS = {".git", "__pycache__", ".venv", "venv", "node_modules"}
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


def check_includes(root, path, lines):
    folder = path.relative_to(root / "src").parts[0]
    if folder not in FOLDERS:
        if len(path.relative_to(root / "src").parts) > 1:
            yield 1, "src/%s is no folder of the house: add it to FOLDERS in tests/house/check_house.py" % folder
        return
    height = FOLDERS.index(folder)
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        bracket, name = match.groups()
        target = included_folder(root, path, name)
        if bracket == '"' and target == "":
            yield number, 'includes "%s", which is not in src/' % name
        elif target in FOLDERS and FOLDERS.index(target) < height:
            yield number, "%s includes %s (\"%s\"), which stands above it" % (folder, target, name)


def check_head(path, lines):
    start = 1 if lines and lines[0].startswith("#!") else 0
    if len(lines) <= start or SPDX not in lines[start]:
        yield start + 1, "must begin with the line: " + SPDX
        return
    purpose = lines[start + 1] if len(lines) > start + 1 else ""
    if path.suffix in CPP and not purpose.startswith("//"):
        yield start + 2, "must say its purpose in one sentence after the licence line"


def check_text(root, path, lines, in_source):
    generated = any(GENERATED.search(line) for line in lines[:6])
    if len(lines) > MAX_LINES and not generated:
        yield MAX_LINES, "has %d lines, more than %d: split it" % (len(lines), MAX_LINES)
    for number, line in enumerate(lines, 1):
        if NOTE_FOR_LATER.search(line):
            yield number, "leaves a note for later: do it, or write an issue"
        if MACHINE_PATH.search(line) or (in_source and TEMPORARY_PATH.search(line)):
            yield number, "names a path of somebody's machine"


def check_format(root, files):
    """Problems that clang-format finds; a warning when it is not the version that the house uses."""
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
    for path in files:
        relative = path.relative_to(root)
        if relative.parts[0] == "fuzz" and "seeds" in relative.parts or "goldens" in relative.parts and path.suffix == ".json":
            continue
        cpp = path.suffix in CPP
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            if cpp:
                problems.append((str(relative), 1, "is not UTF-8"))
            continue
        if not cpp and not is_script(path, lines):
            continue
        in_source = relative.parts[0] == "src" and not path.stem.endswith("_test")
        found = list(check_head(path, lines)) + list(check_text(root, path, lines, in_source))
        if cpp and relative.parts[0] == "src" and not path.stem.endswith("_test"):  # a test may look up for its oracle
            found += check_includes(root, path, lines)
        problems += [(str(relative), number, message) for number, message in found]
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
