# SPDX-License-Identifier: Apache-2.0
"""One server with all tiny models that make embeddings and scores, each loaded when a test asks for it."""

import importlib.util
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tools.goldens import export, pooling_cases  # noqa: E402

_spec = importlib.util.spec_from_file_location("serve_conftest", ROOT / "tests" / "serve" / "conftest.py")
_serve = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_serve)
# start("models/bert", "--flag", ...): a server that is stopped at the end.
Server, BIN_DIR, start = _serve.Server, _serve.BIN_DIR, _serve.start


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """models/: one folder per golden case, and "llama", which generates text."""
    folder = tmp_path_factory.mktemp("pooling")
    for case in pooling_cases.CASES:
        pooling_cases.write_model(case, folder / "models" / case.name)
    export.main(["--case", "llama", "--out", str(folder / "models" / "llama")])
    return folder


@pytest.fixture(scope="session")
def server(start):
    return start("--models-dir=models", "--max-loaded-models", "3", "--dtype", "float32")
