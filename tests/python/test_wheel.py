# SPDX-License-Identifier: Apache-2.0
"""The wheel, made from what the build folder has: its contents, and a first answer from a fresh environment."""

import os
import pathlib
import re
import subprocess
import sys
import venv
import zipfile

import pytest

from conftest import BIN_DIR, PACKAGE, ROOT

FIRST_ANSWER = """
import sys
from quire import LLM, SamplingParams
[output] = LLM(sys.argv[1], max_model_len=256).generate("The capital of France is", SamplingParams(temperature=0))
print(output.outputs[0].text)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    if sys.platform != "linux":
        pytest.skip("wheels are made on Linux only")
    out = tmp_path_factory.mktemp("dist")
    [library] = BIN_DIR.glob("libquire.so.?")
    done = subprocess.run([sys.executable, ROOT / "tools/package/wheel.py", "--library", library, "--program",
                           BIN_DIR / "launcher/quire", "--module", PACKAGE / "quire/_quire.abi3.so", "--out", out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [path] = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A fresh environment that has the wheel, with the tests' numpy and nanobind-backend."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    import numpy
    packages = subprocess.run([python, "-c", "import site; print(site.getsitepackages()[0])"], capture_output=True,
                              text=True, check=True).stdout.strip()
    pathlib.Path(packages, "tests.pth").write_text(str(pathlib.Path(numpy.__file__).parents[1]) + "\n")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel], check=True)
    return folder / "bin"


def run(*arguments):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LD_", "QUIRE_"))}
    return subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True, env=clean, timeout=300)


def test_the_wheel_says_what_it_needs(wheel):
    assert re.fullmatch(r"quire-[\d.]+-cp310-abi3-(manylinux\w+\.?)+\.whl", wheel.name), wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        text = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    assert {"quire/py.typed", "quire/_quire.pyi", "quire/bin/quire"} <= set(names)
    assert "Requires-Python: >=3.10\n" in text
    assert set(re.findall(r"Requires-Dist: ([\w-]+)", text)) == {"nanobind-backend", "numpy"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    shown = run(sys.executable, "-m", "auditwheel", "show", wheel)
    assert shown.returncode == 0 and "is consistent with" in shown.stdout, shown.stdout + shown.stderr


def test_a_first_answer_from_a_fresh_environment(environment, model_path):
    done = run(environment / "python", "-c", FIRST_ANSWER, model_path)
    assert done.returncode == 0 and "Paris" in done.stdout, done.stderr


def test_the_command_of_the_wheel(environment, model_path):
    import quire
    for command in ([environment / "quire"], [environment / "python", "-m", "quire"]):
        assert run(*command, "--version").stdout == f"quire {quire.__version__}\n"
    done = run(environment / "quire", "run", model_path, "What is the capital of France?", "--temperature", "0")
    assert done.returncode == 0 and "Paris" in done.stdout, done.stderr


def test_nothing_is_taken_from_the_build_folder(environment):
    [package] = environment.parent.glob("lib/python*/site-packages/quire")
    for binary in [*package.glob("_quire*.so"), package / "bin" / "quire", *package.glob("lib/*")]:
        shown = run("ldd", binary)
        assert "not found" not in shown.stdout and str(BIN_DIR) not in shown.stdout, shown.stdout
