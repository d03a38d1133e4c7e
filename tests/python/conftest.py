# SPDX-License-Identifier: Apache-2.0
"""The package from the build folder, and the default model loaded once."""

import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN_DIR = pathlib.Path(os.environ.get("QUIRE_BIN_DIR", ROOT / "build"))
PACKAGE = pathlib.Path(os.environ.get("QUIRE_PYTHON_PACKAGE", BIN_DIR / "python"))
sys.path.insert(0, str(PACKAGE))


def pytest_collection_modifyitems(items):
    missing = os.environ.get("QUIRE_PYTHON_MISSING", "")
    if missing:
        reason = f"the Python package is not built, since {missing}"
    elif "QUIRE_TEST_MODEL" not in os.environ:
        reason = "needs the default model: scripts/get-default-model"
    else:
        return
    for item in items:
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def model_path():
    return os.environ["QUIRE_TEST_MODEL"]


@pytest.fixture(scope="session")
def llm(model_path):
    from quire import LLM
    return LLM(model_path, max_model_len=1024, max_num_seqs=16)
