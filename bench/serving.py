# SPDX-License-Identifier: Apache-2.0
"""What the serving benchmarks share: a `quire serve` that runs during a block, and a run of `quire bench serve`."""

import contextlib
import json
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def server(quire, model, *arguments):
    """Yields (url, process) of a server that is ready; it is stopped with SIGTERM and must exit with 0."""
    port = free_port()
    named = [str(model)] if model else []
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([str(quire), "serve", *named, "--port", str(port), *map(str, arguments)], stdout=log, stderr=log)
        url = f"http://127.0.0.1:{port}"
        try:
            while not is_up(url):
                if process.poll() is not None:
                    log.seek(0)
                    raise SystemExit(f"quire serve ended with {process.returncode}:\n{log.read()[-2000:]}")
                time.sleep(0.1)
            yield url, process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(60)
        if process.returncode != 0:
            log.seek(0)
            raise SystemExit(f"quire serve ended with {process.returncode} after SIGTERM:\n{log.read()[-2000:]}")


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/health", timeout=5) as reply:
            return reply.status == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def bench_serve(quire, url: str, *arguments, show: bool = True) -> dict:
    """The result JSON of one run; the report is printed."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([str(quire), "bench", "serve", "--base-url", url, "--save-result", "--result-dir", folder,
                               "--result-filename", "result.json", *map(str, arguments)], stdout=subprocess.PIPE, text=True)
        if show:
            print(done.stdout[max(done.stdout.find("====="), 0):], flush=True)
        if done.returncode != 0:
            raise SystemExit(f"quire bench serve ended with {done.returncode}")
        return json.loads(pathlib.Path(folder, "result.json").read_text())
