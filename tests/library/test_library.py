# SPDX-License-Identifier: Apache-2.0
"""quire as a library: installs it, and compiles and runs the examples of examples/library with find_package(quire)."""

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN_DIR = pathlib.Path(os.environ.get("QUIRE_BIN_DIR", ROOT / "build"))
REQUEST = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 8}

if not list(BIN_DIR.glob("libquire.*")):
    pytest.skip("libquire is not built (QUIRE_LIBRARY)", allow_module_level=True)


def run(*arguments, **options):
    done = subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True, timeout=600, **options)
    return done


@pytest.fixture(scope="session")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prefix")
    for component in ("library", "development"):
        done = run("cmake", "--install", BIN_DIR, "--prefix", folder, "--component", component)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def examples(prefix, tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    for step in (["cmake", "-S", ROOT / "examples/library", "-B", folder, *generator, f"-DCMAKE_PREFIX_PATH={prefix}",
                  "-DCMAKE_C_FLAGS=-std=c99 -Wall -Wextra -Werror -pedantic"],
                 ["cmake", "--build", folder, "-j", "1"]):
        done = run(*step)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="session")
def model():
    if "QUIRE_TEST_MODEL" not in os.environ:
        pytest.skip("needs the default model: scripts/get-default-model")
    return os.environ["QUIRE_TEST_MODEL"]


def test_the_cpp_example_answers(examples, model):
    done = run(examples / "generate_cpp", model, "What is the capital of France?")
    assert done.returncode == 0 and "Paris" in done.stdout, done.stderr


def test_the_cpp_example_says_what_is_wrong(examples):
    done = run(examples / "generate_cpp", "nothing-here.gguf", "x")
    assert done.returncode == 1 and "nothing-here.gguf" in done.stderr


def test_the_c_example_answers(examples, model):
    done = run(examples / "generate_c", json.dumps({"model": model, "max_model_len": 256}), json.dumps(REQUEST))
    assert done.returncode == 0 and "Paris" in done.stdout, done.stderr


@pytest.mark.parametrize("options,request_json,words", [
    ({"model": "nothing-here"}, REQUEST, "nothing-here"),
    ({"max_model_length": 5}, REQUEST, "did you mean 'max_model_len'"),
    ({}, REQUEST | {"temprature": 1}, "did you mean 'temperature'"),
    ({}, REQUEST | {"temperature": 9}, "temperature must be"),
    ({}, {"max_tokens": 3}, "one of prompt, prompt_token_ids and messages"),
    ({}, "{", "the request is not valid JSON: "),
    ({}, [], "must be a JSON object"),
    ("[]", REQUEST, "must be a JSON object"),
])
def test_the_c_example_says_what_is_wrong(examples, model, options, request_json, words):
    options = {"model": model, "max_model_len": 256} | options if isinstance(options, dict) else options
    texts = [value if isinstance(value, str) else json.dumps(value) for value in (options, request_json)]
    done = run(examples / "generate_c", *texts)
    assert done.returncode == 1 and words in done.stderr and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("components,found", [("COMPONENTS java", False), ("COMPONENTS c OPTIONAL_COMPONENTS java", True)])
def test_a_component_that_does_not_exist_is_named(prefix, tmp_path, components, found):
    """The message was only that quire was not found; an optional component was treated like any other."""
    (tmp_path / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.20)\nproject(x C)\n"
                                             f"find_package(quire REQUIRED {components})\n")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    done = run("cmake", "-S", tmp_path, "-B", tmp_path / "build", *generator, f"-DCMAKE_PREFIX_PATH={prefix}")
    assert (done.returncode == 0) == found, done.stderr
    assert found or "quire has no component 'java'; its components are c and cpp" in " ".join(done.stderr.split())


def test_the_library_exports_the_functions_of_its_header_only(prefix):
    if shutil.which("nm") is None:
        pytest.skip("needs nm")
    header = next(prefix.glob("include/quire/quire.h")).read_text()
    library = next(path for path in sorted(prefix.glob("lib*/**/libquire.so.?")))
    symbols = run("nm", "-D", "--defined-only", library).stdout.split("\n")
    exported = {line.split()[2].split("@")[0] for line in symbols if line}
    declared = set(re.findall(r"^[\w *]*\b(quire_\w+)\(", header, re.MULTILINE))
    assert exported == declared and len(declared) >= 15
