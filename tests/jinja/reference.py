# SPDX-License-Identifier: Apache-2.0
"""Jinja2 with the settings of transformers for chat templates, and the engine under test behind a pipe."""

import functools
import json
import os
import pathlib
import subprocess
from datetime import datetime

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment

NOW = [2026, 1, 2, 3, 4, 5]
ROOT = pathlib.Path(__file__).resolve().parents[2]


class Generation(jinja2.ext.Extension):
    """{% generation %}: prints its body, which has a scope of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_pass"), [], [], body).set_lineno(line)

    def _pass(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment(mutable=False):
    env = (SandboxedEnvironment if mutable else ImmutableSandboxedEnvironment)(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols, jinja2.ext.do]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: datetime(*NOW).strftime(format)
    return env


ENVIRONMENTS = {False: environment(), True: environment(mutable=True)}


@functools.lru_cache(maxsize=256)
def compiled(template, mutable):
    return ENVIRONMENTS[mutable].from_string(template)


def expected(template, context, mutable=False):
    """The result of Jinja2: (True, text) or (False, error)."""
    try:
        text = compiled(template, mutable).render(**json.loads(json.dumps(context)))
        text.encode()
        return True, text
    except Exception as error:  # noqa: BLE001 - whatever goes wrong there must go wrong here
        return False, f"{type(error).__name__}: {error}"


def binary():
    for name in ("QUIRE_BIN_DIR", "QUIRE_BUILD_DIR"):
        if os.environ.get(name):
            return pathlib.Path(os.environ[name]) / "quire_jinja_check"
    return ROOT / "build" / "quire_jinja_check"


def answers(requests):
    """The engine's answers to a list of {template, context, mutable, marked}."""
    lines = "".join(json.dumps({"now": NOW, **request}) + "\n" for request in requests)
    done = subprocess.run([binary()], input=lines, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(found) == len(requests)
    return found


def actual(requests):
    """The same as a list of (ok, text or error)."""
    return [(answer["ok"], answer.get("text", answer.get("error"))) for answer in answers(requests)]


def differences(requests):
    """The requests whose results differ, each with the expected and the actual one."""
    found = []
    for request, got in zip(requests, actual(requests)):
        wanted = expected(request["template"], request.get("context", {}), request.get("mutable", False))
        if wanted[0] != got[0] or (wanted[0] and wanted[1] != got[1]):
            found.append({"request": request, "expected": wanted, "actual": got})
    return found


def shared_data():
    """The folder of extra test data, or None."""
    for candidate in (os.environ.get("QUIRE_SHARED"), ROOT.parent / "shared"):
        if candidate and (pathlib.Path(candidate) / "data" / "chat-templates").is_dir():
            return pathlib.Path(candidate) / "data"
    return None


@functools.lru_cache(maxsize=None)
def read_shared(path):
    """A file of the extra test data, which may exist only in compressed form; None if it does not exist at all."""
    if path.exists():
        with open(path, newline="", encoding="utf-8") as file:
            return file.read()
    packed = path.with_name(path.name + ".zst")
    if packed.exists():
        return subprocess.run(["zstd", "-dc", packed], capture_output=True, check=True).stdout.decode()
    return None
