# SPDX-License-Identifier: Apache-2.0
"""--profile FILE: the trace of run, bench and serve has steps, ops and threads, and its spans are nested."""

import json
import re
import signal
import subprocess
import urllib.request


def spans_by_thread(path):
    trace = json.loads(path.read_text())
    events = trace["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    found = {name: [] for name in names.values()}
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["ts"] >= 0 and event["pid"] > 0
            found[names[event["tid"]]].append((event["ts"], event["ts"] + event["dur"], event["name"]))
    for spans in found.values():
        spans.sort(key=lambda span: (span[0], -span[1]))
        around = []
        for begin, end, name in spans:
            while around and around[-1] <= begin:
                around.pop()
            assert not around or end <= around[-1] + 0.002, name  # inside the span that is open
            around.append(end)
    return found


def parents(spans, pattern):
    """The name of the innermost span around each span that matches."""
    out = set()
    for begin, end, name in spans:
        if re.match(pattern, name):
            around = [span for span in spans if span[0] <= begin and span[1] >= end and span[2] != name]
            out.add(max(around)[2].split()[0] if around else "")
    return out


def test_run_traces_steps_ops_and_workers(bench):
    trace = bench.folder / "run.json"
    command = [bench.path, "run", bench.model, "Hello", "--max-tokens", "4", "--ignore-eos", "--threads", "2", "--temperature", "0"]
    plain, done = (subprocess.run(command + more, capture_output=True, text=True, cwd=bench.folder, env=bench.environment)
                   for more in ([], ["--profile", str(trace)]))
    assert done.returncode == 0 and done.stdout == plain.stdout, (plain, done)
    found = spans_by_thread(trace)
    main = found["main"]
    names = [name for _, _, name in main]
    assert sum(name.startswith("step ") for name in names) == 4
    assert any(re.fullmatch(r"forward \d+ tokens 1 seqs", name) for name in names)
    assert any(re.fullmatch(r"linear 1 rows \d+x\d+ \w+", name) for name in names)
    assert any(name.startswith("attention 1 rows 1 seqs") for name in names)
    assert parents(main, "forward") == {"step"} and parents(main, "attention") == {"forward"}
    assert "worker 1" in found or len(found) == 1  # a worker that was never in time leaves no span


def test_bench_latency_traces_and_a_wrong_path_is_known_at_once(bench):
    flags = ("latency", "--model", bench.model, "--input-len", 4, "--output-len", 2, "--num-iters", 1, "--num-iters-warmup", 0)
    trace = bench.folder / "latency.json"
    assert bench(*flags, env={"QUIRE_PROFILE": str(trace)}).returncode == 0
    assert sum(name.startswith("step ") for _, _, name in spans_by_thread(trace)["main"]) == 2
    done = bench(*flags, "--profile", bench.folder / "none" / "x.json")
    assert done.returncode == 2 and "--profile" in done.stderr and done.stdout == ""


def test_serve_writes_the_trace_when_it_is_stopped(bench):
    trace = bench.folder / "serve.json"
    server = subprocess.Popen([bench.path, "serve", bench.model, "--port", "0", "--profile", str(trace)], text=True,
                              stderr=subprocess.PIPE, cwd=bench.folder, env=bench.environment)
    try:
        url = None
        for line in server.stderr:
            if match := re.search(r"Serving .* at (http://\S+)", line):
                url = match.group(1)
                break
        assert url is not None
        body = json.dumps({"prompt": [1, 2, 3], "max_tokens": 3, "ignore_eos": True}).encode()
        request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
        assert json.load(urllib.request.urlopen(request, timeout=60))["usage"]["completion_tokens"] == 3
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
        assert server.returncode == 0
    finally:
        server.kill()
        server.wait()
    assert sum(name.startswith("step ") for _, _, name in spans_by_thread(trace)["engine"]) >= 3
