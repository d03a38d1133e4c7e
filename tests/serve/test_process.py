# SPDX-License-Identifier: Apache-2.0
"""The server as a process: its flags, its signals, and clients that go away."""

import contextlib
import json
import os
import re
import signal
import shutil
import socket
import subprocess
import threading
import time

import httpx
import pytest
from conftest import BIN_DIR

ENDLESS = {"prompt": "hello", "max_tokens": 100000, "ignore_eos": True, "stream": True}


def wait_until(check, seconds=60):
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def endless(start):
    return start("long", "--max-model-len", "200k", "--kv-cache-memory-bytes", "160MiB", "--max-num-seqs", 4)


def refused(folder, *flags) -> str:
    done = subprocess.run([BIN_DIR / "quire", "serve", "tiny", *([] if "--port" in flags else ["--port", "0"]), *flags], cwd=folder, capture_output=True,
                          text=True, timeout=60)
    assert done.returncode != 0
    return done.stderr


@pytest.mark.parametrize("flags, words", [
    (("--tensor-parallel-size", "3"), ["--tensor-parallel-size is 3", "heads"]),
    (("-tp", "3"), ["--tensor-parallel-size is 3", "heads"]), (("-tp=3",), ["--tensor-parallel-size is 3", "heads"]),
    (("--speculative_config.method", "ngram", "--speculative-config.num_speculative_tokens=0"), ["num_speculative_tokens"]),
    (("--kv-transfer-config", "{}"), ["--kv-transfer-config", "yet"]),
    (("--structured-outputs-config.backend", "xgrammar"), ["--structured-outputs-config", "no settings"]),
    (("--middleware", "x.y"), ["--middleware", "Python"]), (("--swap-space", "much"), ["--swap-space must be a number"]),
    (("--swap-space",), ["--swap-space must be a number"]), (("--enforce-eager=maybe",), ["--enforce-eager takes no value"]),
    (("--task",), ["--task is ''"]), (("--task", "sing"), ["--task is 'sing'", "choose auto, generate"]),
    (("--task", "embed", "--runner", "pooling"), ["--task", "--runner", "leave one or the other out"]),
    (("--allowed-origins", "x"), ["--allowed-origins", "JSON list"]),
    (("--default-chat-template-kwargs", "[]"), ["--default-chat-template-kwargs", "object"]),
    (("--ssl-certfile", "nowhere.pem"), ["nowhere.pem"]),
    (("--port", "70000"), ["70000"]),
    (("--host", "256.1.2.3"), ["256.1.2.3"]),
    (("--max-num-queued-reqs", "0"), ["--max-num-queued-reqs"]),
    (("--no-such-flag",), ["--no-such-flag"]),
    (("--no-enable-server-load-tracking",), ["--no-enable-server-load-tracking", "always counted"]),
    (("--custom-histogram-buckets", "{"), ["--custom-histogram-buckets"]),
])
def test_flags_that_are_refused(folder, flags, words):
    message = refused(folder, *flags)
    assert all(word in message for word in words) and "Serving" not in message, message


def test_a_port_that_is_taken(folder, server):
    port = server.url.rsplit(":", 1)[1]
    assert port in refused(folder, "--port", port)


@pytest.mark.parametrize("flags, words", [
    (["--host", "no.such.host.invalid"], ["--host", "cannot be resolved"]),
    (["--host", "192.0.2.1"], ["--host", "no address of this machine"]),  # an address of documents
    (["--uds", "/nonexistent/socket"], ["--uds", "No such file"]), (["--uds", "tiny/config.json"], ["--uds", "not a socket"]),
    (["--uds", "x" * 200], ["--uds", "too long"]), (["--ssl-certfile", "missing.pem"], ["--ssl-certfile", "missing.pem"]),
    (["--ssl-keyfile", "key.pem"], ["--ssl-certfile"]), (["--root-path", "llm"], ["--root-path", "slash"])])
def test_what_is_wrong_with_the_address_is_said_before_the_model_is_loaded(folder, flags, words):
    message = refused(folder, *flags)
    assert all(word in message for word in words) and "loaded" not in message, message


def test_a_default_that_no_request_could_have_is_not_used(start, folder):
    """The bug: every request without a temperature of its own was refused, with a sentence about its temperature."""
    shutil.copytree(folder / "tiny", folder / "hot")
    (folder / "hot" / "generation_config.json").write_text('{"temperature": 9, "top_p": 0.5}')
    one = start("hot")
    assert one.ok("/v1/completions", {"prompt": "hello", "max_tokens": 2})
    assert "generation_config.json': temperature" in one.log and "It is not used." in one.log
    one.stop()


def test_fields_of_speculation_without_effect_are_named_once(start):
    """vLLM's enforce_eager among them was an error; the flag is read several times, but the log has one line."""
    config = {"model": "[ngram]", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "enforce_eager": True}
    server = start("tiny", "--speculative-config", json.dumps(config))
    assert server.log.count("'enforce_eager' has no effect") == 1, server.log
    assert server.stop() == 0


def test_neutral_values_of_refused_flags_are_fine_and_a_config_file_gives_flags(start, folder):
    (folder / "serve.yaml").write_text("# flags\nserved-model-name:\n  - filed\nmax_num_seqs: 3\nenable-prefix-caching: false\n"
                                       "port: 1\n")
    one = start("tiny", "--tensor-parallel-size", "1", "--config", "serve.yaml")  # its --port 0 wins over the file's
    assert one.http.get("/v1/models").json()["data"][0]["id"] == "filed"
    body = {"prompt": [7] * 64, "max_tokens": 1}
    one.ok("/v1/completions", body)
    assert one.ok("/v1/completions", body)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert one.stop() == 0


def test_flags_that_change_nothing_are_taken_with_a_warning(start, folder):
    """They were refused; and a MODEL behind a switch was taken for its value."""
    (folder / "eager.yaml").write_text("enforce-eager: true\ntrust-remote-code: false\n")
    one = start("--disable-log-requests", "tiny", "--swap-space", "4", "--config", "eager.yaml", "--device", "cpu",
                "--gpu-memory-utilization", "0.9", "--task", "generate")
    assert one.http.get("/v1/models").json()["data"][0]["id"] == "tiny"
    one.stop()
    for words in ("--disable-log-requests has no effect: requests are not logged", "--swap-space has no effect: pages are not",
                  "--enforce-eager has no effect: kernels are", "--gpu-memory-utilization has no effect: it is for GPUs"):
        assert one.log.count(words) == 1, one.log
    assert "--trust-remote-code" not in one.log
    two = start("--trust-remote-code", "tiny", "--swap-space=0", "--no-enforce-eager", "--task", "embed")
    assert len(two.ok("/v1/embeddings", {"input": "hello"})["data"]) == 1
    two.stop()
    assert two.log.count("has no effect") == 1 and "--trust-remote-code has no effect: quire never runs code" in two.log, two.log


def test_a_config_file_may_have_comments_and_the_members_of_an_object(start, folder):
    (folder / "whole.yaml").write_text(
        "---\nserved-model-name: 'filed'   # a name\nmax_num_seqs: 3 # at most\n\nspeculative_config:\n  method: ngram\n"
        "  num_speculative_tokens: 2   # drafts\n  prompt_lookup_max: 3\ndefault-chat-template-kwargs:\n"
        "  inner:\n    list:\n      - 1\n      - two\nallowed-origins: [\"http://a#b\"]\nenable-prefix-caching: false # no\n")
    one = start("tiny", "--config", "whole.yaml")
    assert one.http.get("/v1/models").json()["data"][0]["id"] == "filed"
    assert one.metric("vllm:cache_config_info", enable_prefix_caching="False") == 1
    assert one.http.get("/health", headers={"Origin": "http://a#b"}).headers["access-control-allow-origin"] == "http://a#b"
    assert "vllm:spec_decode_num_drafts_total" in one.http.get("/metrics").text
    one.stop()
    for text, words in (("speculative-config:\n  method: ngram\n  num_speculative_tokens: 0\n", ["num_speculative_tokens"]),
                        ("- a\n", ["line 1", "list"]), ("port 0\n", ["line 1", "flag: value"])):
        (folder / "bad.yaml").write_text(text)
        message = refused(folder, "--config", "bad.yaml")
        assert all(word in message for word in words), message


def test_several_ranks_give_the_answer_of_one(start, server):
    body = {"prompt": [5, 6, 7, 8] * 10, "max_tokens": 12, "temperature": 0.7, "seed": 3, "logprobs": 5}
    one = start("tiny", "--tensor-parallel-size", "2", "--pipeline-parallel-size", "2", "--threads", "4")
    expected, answer = server.ok("/v1/completions", body), one.ok("/v1/completions", body)
    assert answer["choices"] == expected["choices"]
    assert one.stop() == 0


def test_a_client_that_goes_away_is_aborted(endless):
    before = endless.metric("vllm:request_success_total", finished_reason="abort")
    with endless.http.stream("POST", "/v1/completions", json=ENDLESS) as answer:
        lines = answer.iter_lines()
        next(lines)
        wait_until(lambda: endless.metric("vllm:num_requests_running") == 1)
    wait_until(lambda: endless.metric("vllm:num_requests_running") == 0)
    assert endless.metric("vllm:kv_cache_usage_perc") == 0
    # A client that waits for a whole answer, and disconnects.
    port = int(endless.url.rsplit(":", 1)[1])
    body = b'{"prompt": "hello", "max_tokens": 100000, "ignore_eos": true}'
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        wait_until(lambda: endless.metric("vllm:num_requests_running") == 1)
    wait_until(lambda: endless.metric("vllm:num_requests_running") == 0)
    assert endless.metric("vllm:request_success_total", finished_reason="abort") == before + 2


def test_a_request_that_can_never_fit_is_refused_with_the_numbers(start):
    small = start("tiny", "--num-gpu-blocks-override", 17, "--max-model-len", 256)
    answer = small.post("/v1/completions", {"prompt": [5] * 300, "max_tokens": 1})
    assert answer.status_code == 400 and "256" in answer.text and "300" in answer.text
    assert small.ok("/v1/completions", {"prompt": [5] * 200, "max_tokens": 56, "ignore_eos": True})["usage"]["total_tokens"] == 256
    assert small.stop() == 0


def test_a_full_queue_is_a_503(start):
    one = start("long", "--max-model-len", "200k", "--kv-cache-memory-bytes", "160MiB", "--max-num-seqs", 1,
                "--max-num-queued-reqs", 2)
    body = json.dumps(ENDLESS).encode()
    sockets = []
    for count in range(1, 4):
        sockets.append(socket.create_connection(("127.0.0.1", int(one.url.rsplit(":", 1)[1]))))
        sockets[-1].sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                            b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        wait_until(lambda: one.metric("vllm:num_requests_running") + one.metric("vllm:num_requests_waiting") == count)
    answer = one.post("/v1/completions", {"prompt": "hello"})
    assert answer.status_code == 503 and "--max-num-queued-reqs" in answer.json()["error"]["message"]
    assert one.metric("vllm:admission_rejections_total", reason="max_num_queued_reqs") == 1
    for client in sockets:
        client.close()
    wait_until(lambda: one.metric("vllm:num_requests_running") + one.metric("vllm:num_requests_waiting") == 0)
    assert one.post("/v1/completions", {"prompt": "hello"}).status_code == 200


def test_sigterm_lets_answers_finish(start):
    one = start("long", "--max-model-len", "200k", "--kv-cache-memory-bytes", "160MiB")
    results = []

    def ask():
        results.append(one.post("/v1/completions", {"prompt": "hello", "max_tokens": 4000, "ignore_eos": True}))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: one.http.get("/load").json()["server_load"] == 4)  # long enough to run at the same time
    assert one.stop() == 0
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(r.status_code == 200 and r.json()["usage"]["completion_tokens"] == 4000 for r in results)
    assert "Stopped" in one.log


def test_sigterm_cuts_off_what_takes_too_long(start):
    one = start("long", "--max-model-len", "200k", "--kv-cache-memory-bytes", "160MiB", "--shutdown-timeout", 1)
    with one.http.stream("POST", "/v1/completions", json=ENDLESS) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert one.stop() == 0


def test_ctrl_c_twice_leaves_at_once(start):
    one = start("long", "--max-model-len", "200k", "--kv-cache-memory-bytes", "160MiB", "--shutdown-timeout", 600)
    with one.http.stream("POST", "/v1/completions", json=ENDLESS) as answer:
        lines = answer.iter_lines()
        next(lines)
        one.process.send_signal(signal.SIGINT)
        wait_until(lambda: "again to exit" in one.log)
        one.process.send_signal(signal.SIGINT)
        assert one.process.wait(30) == 130


def test_one_access_line_per_request_with_its_timings(server):
    before = len(server.lines)  # other tests share the server, and an answer of theirs may be as long

    def found():
        return [line for line in server.lines[before:] if "completion_tokens=77" in line]

    server.ok("/v1/completions", {"prompt": "hello", "max_tokens": 77, "ignore_eos": True})
    wait_until(found)
    (line,) = found()
    for part in (r"method=POST path=/v1/completions status=200", r"prompt_tokens=\d+", r"first_token_ms=[\d.]+", r"finish=\w+"):
        assert re.search(part, line), line


def test_nobody_writes_lines_of_their_own_into_the_log(start):
    one = start("tiny", "--enable-log-requests", "--enable-log-outputs")
    body = {"prompt": "hello", "max_tokens": 4, "request_id": "mine\nI 01-01 forged\r", "structured_outputs": {"regex": "a\nb"}}
    assert one.ok("/v1/completions", body)["choices"][0]["text"] == "a\nb"
    one.stop()
    assert "Received request cmpl-mine\\nI 01-01 forged?:" in one.log and "[0]: a\\nb\n" in one.log, one.log
    assert all(re.match(r"[IWE] \d\d-\d\d \d\d:", line) for line in one.lines), one.log


def test_metrics_add_up(start):
    one = start("tiny", "--served-model-name", "counted")
    for i in range(4):
        one.ok("/v1/completions", {"prompt": [9, 8, 7, i], "max_tokens": 5, "ignore_eos": True, "n": 1 + i % 2})
    assert one.metric("vllm:prompt_tokens_total") == 4 * 6
    assert one.metric("vllm:generation_tokens_total", model_name="counted") == 30
    assert one.metric("vllm:request_success_total", finished_reason="length") == 6
    assert one.metric("vllm:time_to_first_token_seconds_count") == 6
    assert one.metric("vllm:inter_token_latency_seconds_count") == 6 * 4
    assert one.metric("vllm:request_params_n_count") == 4
    assert one.metric("vllm:cache_config_info", block_size="16") == 1
    assert one.metric("http_requests_total", handler="/v1/completions", status="2xx") == 4


def test_seed_makes_requests_without_a_seed_repeatable(start):
    """--seed had no effect on requests that give no seed, although its help promised it."""
    body = {"prompt": [1, 2, 3], "max_tokens": 8, "temperature": 1, "ignore_eos": True}

    def answers(*flags):
        server = start("tiny", *flags)
        texts = [server.ok("/v1/completions", body)["choices"][0]["text"] for _ in range(3)]
        server.stop()
        return texts

    first = answers("--seed", 7)
    assert first == answers("--seed", 7)
    assert len(set(first)) == 3  # each request has a seed of its own
    assert first != answers("--seed", 8)
    assert answers() != answers()


def test_a_log_that_nobody_reads_stops_neither_the_answers_nor_the_end(folder):
    """Lines of the log waited for a reader of the pipe for ever, and with them the answers."""
    read, write = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([BIN_DIR / "quire", "serve", "tiny", "--port", str(port), "--shutdown-timeout", "0"], cwd=folder,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=write)
    try:
        os.set_blocking(read, False)
        log = b""

        def read_all():
            nonlocal log
            with contextlib.suppress(BlockingIOError):
                while more := os.read(read, 65536):
                    log += more

        while b"Serving" not in log:
            assert process.poll() is None, log
            read_all()
            time.sleep(0.02)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            for _ in range(1500):  # a pipe holds 64 KiB
                assert client.get("/version").status_code == 200
            read_all()
            assert client.get("/version").status_code == 200
            time.sleep(0.1)
            read_all()
            assert re.search(rb"\d+ lines of the log were lost because nobody read them", log)
            for _ in range(1000):
                assert client.get("/version").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(8) == 0
    finally:
        process.kill()
        process.wait()
        os.close(read)
        os.close(write)
