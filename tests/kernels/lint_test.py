#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The lint finds each seeded error of tests/kernels/bad at its line, finds nothing in right kernels, and passes src/kernels."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINT = ROOT / "tools" / "kernels" / "lint.py"
SKIPPED = 77


def run(*files):
    return subprocess.run([sys.executable, str(LINT), *map(str, files)], capture_output=True, text=True)


def main():
    failures = []
    seeded = sorted(path for path in (ROOT / "tests" / "kernels" / "bad").glob("*.h") if path.name != "params.h")
    done = run(*seeded)
    if done.returncode == SKIPPED:
        print(done.stdout.strip())
        return SKIPPED
    found = set(":".join(line.split(":")[:2]) for line in done.stdout.splitlines())
    for path in seeded:
        name = path.relative_to(ROOT)
        marked = [number for number, line in enumerate(path.read_text().splitlines(), 1) if line.endswith("// bad")]
        if not marked:
            failures.append("%s marks no line as bad" % name)
        if not any("%s:%d" % (name, number) in found for number in marked):
            failures.append("%s:%s: the lint missed it" % (name, marked))
        lines = [int(place.rsplit(":", 1)[1]) for place in found if place.startswith("%s:" % name)]
        failures += ["%s:%d: a finding in a line that is right" % (name, line) for line in lines if line not in marked]
    right = run(ROOT / "tests" / "kernels" / "dialect_kernels.h")
    if right.returncode != 0:
        failures.append("a false alarm in right kernels:\n" + right.stdout)
    kernels = run()
    if kernels.returncode != 0:
        failures.append("src/kernels:\n" + kernels.stdout)
    for failure in failures:
        print(failure)
    print("%d seeded errors, %d failures" % (len(seeded), len(failures)))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
