# SPDX-License-Identifier: Apache-2.0
"""scripts/quickstart without a compiler: stand-ins for cmake, the wheel's environment and the program."""

import os
import pathlib
import shutil
import stat
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]

# A program that prints what `quire serve` prints, and answers one request.
PROGRAM = """#!/usr/bin/env python3
import http.server, json, signal, sys
if sys.argv[1] == "--version":
    sys.exit(print("quire test"))
class Answer(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.dumps({"choices": [{"message": {"content": "answer of " + sys.argv[0]}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
print("Serving", sys.argv[2], "at http://127.0.0.1:%d" % server.server_port, flush=True)
server.serve_forever()
"""


def write_program(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def run(root: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess:
    for name in ("lib.sh", "quickstart"):
        (root / "scripts").mkdir(exist_ok=True)
        shutil.copy(ROOT / "scripts" / name, root / "scripts" / name)
    write_program(root / "program", PROGRAM)
    write_program(root / "scripts" / "get-default-model", "#!/bin/sh\necho models/small/small.gguf\n")
    write_program(root / "scripts" / "get-coder-model", "#!/bin/sh\necho models/coder/coder.gguf\n")
    write_program(root / "bin" / "cmake", f"#!/bin/sh\nmkdir -p {root}/build && cp {root}/program {root}/build/quire\n")
    environment = dict(os.environ, PATH=f"{root}/bin:{os.environ['PATH']}")
    return subprocess.run(["bash", "scripts/quickstart", "--no-install", "--stop", "--port", "0", *arguments], cwd=root, env=environment,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)


def test_it_builds_where_there_is_no_wheel(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "answer of build/quire" in done.stdout and "build/quire serve small" in done.stdout
    done = run(tmp_path, "--model", "coder")
    assert done.returncode == 0 and "build/quire serve coder" in done.stdout, done.stdout + done.stderr


def test_it_takes_a_wheel_from_dist(tmp_path):
    machine = os.uname().machine
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / f"quire-0.1.0-cp310-abi3-manylinux_2_31_{machine}.whl").write_text("")
    venv = tmp_path / "build" / "wheel-venv" / "bin"
    write_program(venv / "python", "#!/bin/sh\nexit 0\n")
    write_program(venv / "quire", PROGRAM)
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "answer of build/wheel-venv/bin/quire" in done.stdout and "building" not in done.stdout
    assert "answer of build/quire" in run(tmp_path, "--build").stdout
    # A wheel that does not work is no reason to stop.
    write_program(venv / "quire", "#!/bin/sh\nexit 1\n")
    done = run(tmp_path)
    assert done.returncode == 0 and "does not work here" in done.stdout and "answer of build/quire" in done.stdout, done.stdout + done.stderr


def test_unknown_models_and_flags_are_refused(tmp_path):
    for arguments in (["--model", "large"], ["--model"], ["--fast"]):
        done = run(tmp_path, *arguments)
        assert done.returncode == 1 and "see --help" in done.stderr, done.stderr
