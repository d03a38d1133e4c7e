# SPDX-License-Identifier: Apache-2.0
"""quire bench serve against a server that counts: requests, messages, failures, files, flags. Nothing asserts on time.
"""

import json
import os
import pathlib
import re
import shutil
import signal

import pytest

from fake_server import SPLITS, FakeServer, Plan, self_signed

RANDOM = ("--dataset-name", "random", "--random-input-len", "8", "--random-output-len", "3")


def words(index):
    return [f"w{index}"] + [f" {index}-{i}\n\"é🙂\"" for i in range(index % 5)]


def report_line(text, label):
    return re.search(r"^" + re.escape(label) + r"\s+(\S+)\s*$", text, re.M).group(1)


def test_counts_requests_tokens_and_texts(bench):
    with FakeServer(lambda index, body: Plan(words(index), prompt_tokens=100 + index)) as server:
        out = bench.serve(server, *RANDOM, "--num-prompts", "40")
    assert (out["completed"], out["failed"]) == (40, 0)
    assert out["total_input_tokens"] == sum(100 + i for i in range(40))
    assert out["total_output_tokens"] == sum(len(words(i)) for i in range(40))
    assert out["generated_texts"] == ["".join(words(i)) for i in range(40)]
    assert out["output_lens"] == [len(words(i)) for i in range(40)]
    assert [len(gaps) for gaps in out["itls"]] == [len(words(i)) - 1 for i in range(40)]
    assert out["errors"] == [""] * 40
    assert report_line(out["stdout"], "Successful requests:") == "40"
    assert report_line(out["stdout"], "Total generated tokens:") == str(out["total_output_tokens"])


def test_the_result_has_vllms_keys_in_order(bench):
    with FakeServer() as server:
        out = bench.serve(server, *RANDOM, "--num-prompts", "3", "--metadata", "version=1.0", "tp=2", "--label", "trial")
        bench("serve", "--base-url", server.url, "--model", bench.model, *RANDOM, "--num-prompts", "2", "--save-result",
              "--result-dir", bench.folder / "plain", "--max-concurrency", "2", "--request-rate", "500")
    metrics = [f"{kind}_{metric}_ms" for metric in ("ttft", "tpot", "itl") for kind in ("mean", "median", "std", "p99")]
    assert list(out)[:-2] == [
        "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "version", "tp", "request_rate",
        "burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
        "request_throughput", "request_goodput", "output_throughput", "total_token_throughput", "input_lens", "output_lens", "ttfts",
        "itls", "start_times", "generated_texts", "errors", "latencies", "queue_times", "max_output_tokens_per_s",
        "max_concurrent_requests", "rtfx", *metrics]
    assert out["request_rate"] == "inf" and out["max_concurrency"] is None and out["request_goodput"] is None
    assert out["label"] == "trial" and out["version"] == "1.0" and out["endpoint_type"] == "openai"
    [path] = (bench.folder / "plain").iterdir()
    assert re.fullmatch(r"openai-500\.0qps-concurrency2-tiny-\d{8}-\d{6}\.json", path.name)
    plain = json.loads(path.read_text())
    assert not {"input_lens", "ttfts", "itls", "generated_texts", "errors"} & set(plain)
    assert {"latencies", "queue_times"} <= set(plain) and plain["request_rate"] == 500.0 and plain["max_concurrency"] == 2


def test_results_are_appended_line_by_line(bench):
    with FakeServer() as server:
        for _ in range(2):
            bench("serve", "--base-url", server.url, "--model", bench.model, *RANDOM, "--num-prompts", "2", "--append-result",
                  "--result-filename", "lines.json")
    lines = (bench.folder / "lines.json").read_text().splitlines()
    assert [json.loads(line)["completed"] for line in lines] == [2, 2]


@pytest.mark.parametrize("backend", ["openai", "openai-chat", "openai-responses"])
def test_reads_streams_however_they_are_cut(bench, backend):
    with FakeServer(lambda index, body: Plan(words(index), split=SPLITS[index % len(SPLITS)], close=index % 3 == 0,
                                             bare=index % 4 == 0)) as server:
        out = bench.serve(server, *RANDOM, "--num-prompts", "35", "--max-concurrency", "4", "--backend", backend)
    assert out["failed"] == 0 and out["generated_texts"] == ["".join(words(i)) for i in range(35)]
    role = 1 if backend == "openai-chat" else 0  # the message with the role counts, as in vLLM
    assert [len(gaps) for gaps in out["itls"]] == [len(words(i)) - 1 + role for i in range(35)]
    assert out["output_lens"] == [len(words(i)) for i in range(35)]


def test_failures_are_counted_and_shown_and_do_not_affect_others(bench):
    def plan(index, body):
        if index % 4 == 1:
            return Plan(status=503)
        if index % 4 == 2:
            return Plan(words(9), break_after=2)
        if index % 4 == 3:
            return Plan([], usage=False)
        return Plan(words(index))
    with FakeServer(plan) as server:
        out = bench.serve(server, *RANDOM, "--num-prompts", "40")
    assert (out["completed"], out["failed"]) == (10, 30)
    assert out["errors"][0] == "" and "503" in out["errors"][1] and "told to fail 503" in out["errors"][1]
    assert "closed the connection" in out["errors"][2] and "without a message" in out["errors"][3]
    assert "30 requests failed" in out["stderr"] and "10 x HTTP 503 Told To: told to fail 503" in out["stderr"]
    assert out["output_lens"][1] == 0 and out["total_output_tokens"] == sum(len(words(i)) for i in range(0, 40, 4))


def test_an_error_inside_a_stream_is_skipped_after_the_first_message_as_in_vllm(bench):
    with FakeServer(lambda index, body: Plan(words(3), error_after=index)) as server:
        out = bench.serve(server, *RANDOM, "--num-prompts", "2", "--max-concurrency", "1")
    assert out["errors"] == ["broke inside", ""]
    assert out["output_lens"][1] > 0  # the server sent no usage: counted by the tokenizer


def test_a_missing_server_fails_every_request(bench):
    with FakeServer() as server:
        pass
    out = bench.serve(server, *RANDOM, "--num-prompts", "3", code=1)
    assert out["failed"] == 3 and "connecting failed" in out["errors"][0]
    done = bench("serve", "--base-url", server.url, "--model", bench.model, *RANDOM, "--ready-check-timeout-sec", "1")
    assert done.returncode == 1 and "not ready after 1 s" in done.stderr and "connecting failed" in done.stderr


def test_a_missing_server_is_named_with_its_address(bench):
    """It said only that connecting failed, not where to or what to do."""
    with FakeServer() as server:
        pass
    done = bench("serve", "--base-url", server.url, *RANDOM, "--num-prompts", "1")
    assert done.returncode == 1 and server.url in done.stderr and "--base-url" in done.stderr, done.stderr


def test_concurrency_is_reached_and_never_passed_and_connections_are_reused(bench):
    with FakeServer(barrier=7) as server:
        out = bench.serve(server, *RANDOM, "--num-prompts", "60", "--max-concurrency", "7", "--client-threads", "3")
    assert out["completed"] == 60 and server.peak == 7
    assert server.connections <= 7 * 3 + 3  # one per place on each thread, and those of the requests around the run


def test_hundreds_of_streams_at_once(bench):
    with FakeServer(lambda index, body: Plan(words(index), gap=0.001), barrier=600) as server:
        out = bench.serve(server, *RANDOM, "--num-prompts", "600")
    assert out["completed"] == 600 and server.peak == 600


def test_a_stale_connection_is_replaced(bench):
    class Closing(FakeServer):  # announces keep-alive, then closes after the answer
        async def answer(self, *arguments):
            return await super().answer(*arguments) and False
    with Closing() as server:
        out = bench.serve(server, *RANDOM, "--num-prompts", "30", "--max-concurrency", "3")
    assert (out["completed"], out["failed"]) == (30, 0)


def test_ctrl_c_prints_the_report_of_what_was_done(bench):
    with FakeServer(lambda index, body: Plan(hold=index >= 12)) as server:
        process = bench.start(*bench.serve_arguments(server, *RANDOM, "--num-prompts", "50", "--max-concurrency", "5"))
        try:
            assert server.enough.wait(60)
            while server.started < 17:
                pass
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, stderr
    assert report_line(stdout, "Successful requests:") == "12" and report_line(stdout, "Failed requests:") == "0"


def test_bodies_and_headers(bench):
    with FakeServer() as server:
        bench.serve(server, *RANDOM, "--num-prompts", "1", "--temperature", "0.5", "--top-k", "3", "--logprobs", "2", "--extra-body",
                    '{"max_tokens": 9, "cache_salt": "x"}', "--header", "X-A=b=c", "--request-id-prefix", "mine-",
                    env={"OPENAI_API_KEY": "secret"})
        bench.serve(server, *RANDOM, "--num-prompts", "1", "--backend", "openai-chat", "--chat-template-kwargs", '{"a": 1}')
        bench.serve(server, *RANDOM, "--num-prompts", "1", model=False, env={"QUIRE_TOKENIZER": bench.model})
    (path, headers, body), (chat_path, _, chat), (_, _, found) = server.requests
    prompt = body.pop("prompt")
    assert path == "/v1/completions" and isinstance(prompt, str)
    assert body == {"model": "fake", "repetition_penalty": 1.0, "max_tokens": 9, "logprobs": 2, "stream": True,
                    "stream_options": {"include_usage": True}, "ignore_eos": True, "temperature": 0.5, "top_k": 3, "cache_salt": "x"}
    assert headers["x-request-id"] == "mine-0" and headers["authorization"] == "Bearer secret" and headers["x-a"] == "b=c"
    assert chat_path == "/v1/chat/completions"
    assert chat == {"model": "fake", "messages": [{"role": "user", "content": [{"type": "text", "text": prompt}]}],
                    "max_completion_tokens": 3, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True,
                    "chat_template_kwargs": {"a": 1}}
    assert found["model"] == "fake"


def test_warmups_probes_adapters_and_the_ready_check_are_apart(bench):
    with FakeServer() as server:
        out = bench.serve(server, *RANDOM, "--num-prompts", "6", "--num-warmups", "4", "--ready-check-timeout-sec", "5", "--lora-modules",
                          "one", "two", "--lora-assignment", "round-robin", "--max-concurrency", "1")
    models = [body["model"] for _, _, body in server.requests]
    assert models == ["fake"] * 5 + ["one", "two"] * 3 and out["completed"] == 6
    with FakeServer(lambda index, body: Plan(gap=0.02)) as server:
        out = bench.serve(server, *RANDOM, "--num-prompts", "20", "--max-concurrency", "2", "--probe-request-rate", "50")
    assert out["completed"] == 20 and out["probe_completed"] == len(server.requests) - 20 > 0
    assert "Probe requests completed:" in out["stdout"]


def test_chosen_metrics_percentiles_and_goodput(bench):
    with FakeServer() as server:
        out = bench.serve(server, *RANDOM, "--num-prompts", "5", "--percentile-metrics", "e2el,client_queue_time", "--metric-percentiles",
                          "50,99.9", "--goodput", "ttft:1000000", "e2el:1000000", "--request-rate", "1000", "--max-concurrency", "3")
    assert {"p50_e2el_ms", "p99.9_e2el_ms", "mean_client_queue_time_ms"} <= set(out) and "mean_ttft_ms" not in out
    assert out["request_goodput"] == out["request_throughput"]
    titles = re.findall(r"^-+([A-Z][^-\n].*?[a-z])-+$", out["stdout"], re.M)
    assert titles == ["End-to-end Latency", "Client-side Queueing"]
    assert report_line(out["stdout"], "Request rate configured (RPS):") == "1000.00"
    with FakeServer() as server:
        none = bench.serve(server, *RANDOM, "--num-prompts", "2", "--goodput", "ttft:0")
    assert none["request_goodput"] == 0


def test_spec_decode_counters_are_read_before_and_after(bench):
    def text(drafts):
        return "".join(f"vllm:spec_decode_num_{name}_total{{engine=\"0\"{label}}} {value}\n" for name, label, value in (
            ("drafts", "", drafts), ("draft_tokens", "", 3 * drafts), ("accepted_tokens", "", 2 * drafts),
            ("accepted_tokens_per_pos", ",position=\"0\"", drafts), ("accepted_tokens_per_pos", ",position=\"1\"", drafts / 2)))
    with FakeServer(metrics=[text(10), text(30)]) as server:
        out = bench.serve(server, *RANDOM, "--num-prompts", "1")
    assert out["spec_decode_num_drafts"] == 20 and out["spec_decode_draft_tokens"] == 60
    assert out["spec_decode_acceptance_length"] == 3 and round(out["spec_decode_acceptance_rate"], 3) == 66.667
    assert out["spec_decode_per_position_acceptance_rates"] == [1, 0.5]
    assert report_line(out["stdout"], "  Position 1:") == "50.00"


def test_without_a_tokenizer_the_server_counts(bench, sharegpt):
    with FakeServer(lambda index, body: Plan(words(index), usage=index != 3)) as server:
        out = bench.serve(server, "--skip-tokenizer-init", "--dataset-name", "sharegpt", "--dataset-path", sharegpt, "--sharegpt-output-len",
                          "5", "--num-prompts", "8")
    assert out["output_lens"] == [len(words(i)) if i != 3 else 1 for i in range(8)]


def test_tls(bench):
    openssl = shutil.which("openssl")
    if not openssl:
        pytest.skip("openssl is not installed")
    with FakeServer(lambda index, body: Plan(words(index)), tls=self_signed(bench.folder, openssl)) as server:
        out = bench.serve(server, *RANDOM, "--num-prompts", "12", "--max-concurrency", "4", "--insecure")
        assert out["completed"] == 12 and out["generated_texts"] == ["".join(words(i)) for i in range(12)]
        refused = bench.serve(server, *RANDOM, "--num-prompts", "1", code=1)
    assert "TLS handshake failed" in refused["errors"][0]


@pytest.mark.parametrize("arguments, said", [
    (["--backend", "tgi"], "--backend is 'tgi'"),
    (["--backend", "openai-chat", "--endpoint", "/v1/completions"], "must end with chat/completions"),
    (["--use-beam-search"], "--use-beam-search is not supported"),
    (["--plot-timeline"], "--plot-timeline is not supported"),
    (["--hf-name", "x"], "--hf-name is not supported"),
    (["--request-rate", "0"], "--request-rate must be greater than 0"),
    (["--request-rate", "fast"], "--request-rate is 'fast'"),
    (["--goodput", "latency:3"], "--goodput has 'latency'"),
    (["--percentile-metrics", "ttft,x"], "--percentile-metrics has 'x'"),
    (["--metadata", "alone"], "--metadata has 'alone'"),
    (["--extra-body", "[]"], "--extra-body must be a JSON object"),
    (["--dataset-name", "hf"], "--dataset-name"),
    (["--dataset-name", "sharegpt"], "needs --dataset-path"),
    (["--random-range-ratio", "1"], "--random-range-ratio must be"),
    (["--ramp-up-strategy", "linear", "--ramp-up-start-rps", "1", "--ramp-up-end-rps", "9", "--request-rate", "3"], "cannot be used together"),
    (["--base-url", "ftp://x"], "is not the URL"),
    (["--num-prompts", "0"], "--num-prompts is 0"),
    (["--seed", "-1"], "--seed must be"),
])
def test_wrong_flags_get_a_sentence(bench, arguments, said):
    url = [] if "--base-url" in arguments else ["--base-url", "http://127.0.0.1:9"]
    done = bench("serve", *url, "--model", bench.model, *arguments)
    assert done.returncode == 2 and said in done.stderr, (done.returncode, done.stderr)
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("quire: ")


def test_a_flag_of_vllms_client_that_changes_nothing_is_taken_with_a_warning(bench):
    with FakeServer(lambda index, body: Plan(words(index))) as server:
        done = bench("serve", "--base-url", server.url, "--model", bench.model, *RANDOM, "--num-prompts", "1", "--trust-remote-code")
    assert done.returncode == 0 and "--trust-remote-code has no effect: quire never runs" in done.stderr, done.stderr


def test_a_model_without_a_local_tokenizer_is_explained(bench):
    with FakeServer(model="owner/elsewhere") as server:
        done = bench("serve", "--base-url", server.url, "--num-prompts", "1")
    assert done.returncode == 1 and "--skip-tokenizer-init" in done.stderr and "elsewhere" in done.stderr


def replays():
    shared = os.environ.get("QUIRE_SHARED")
    folder = pathlib.Path(shared, "data", "api", "sse-replays") if shared else None
    if not folder or not folder.is_dir():
        return []
    return [path for path in sorted(folder.rglob("*")) if re.search(r"streaming\.\d$|stream\.\d$|\.sse$|/valid[^/]*$", str(path))]


@pytest.mark.parametrize("path", replays(), ids=lambda path: "-".join(path.parts[-3:]))
def test_recorded_streams(bench, path):
    raw = path.read_bytes()
    events, data = [], []
    for line in raw.decode().splitlines() + [""]:
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            events.append("\n".join(data))
            data = []
    chunks = [json.loads(event) for event in events if event.startswith("{")]
    chunks = [chunk for chunk in chunks if chunk.get("choices")]
    chat = "delta" in chunks[0]["choices"][0]
    text = ""
    for chunk in chunks:
        choice = chunk["choices"][0]
        parts = [choice["delta"].get(key) for key in choice["delta"] if key in ("content", "reasoning_content", "reasoning")] if chat \
            else [choice["text"]]
        text += "".join(part for part in parts if part)
    with FakeServer(lambda index, body: Plan(raw=raw)) as server:
        out = bench.serve(server, *RANDOM, "--num-prompts", "1", "--backend", "openai-chat" if chat else "openai")
    assert out["generated_texts"] == [text]
    assert len(out["itls"][0]) == len(chunks) - 1
