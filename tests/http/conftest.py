# SPDX-License-Identifier: Apache-2.0
"""The fixtures of tests/serve: a running server on a tiny model."""

import importlib.util
import pathlib

_PATH = pathlib.Path(__file__).resolve().parents[1] / "serve" / "conftest.py"
_SPEC = importlib.util.spec_from_file_location("serve_fixtures", _PATH)
_SERVE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_SERVE)
folder = _SERVE.folder
start = _SERVE.start
