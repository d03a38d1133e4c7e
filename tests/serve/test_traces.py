# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry: a collector gets one span per request, and one that is away disturbs nothing."""

import http.server
import json
import subprocess
import threading
import time

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from conftest import BIN_DIR

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "20"}


class Collector:
    """A collector of OTLP over HTTP. It answers with `statuses`, one after the other, and then with 200."""

    def __init__(self):
        self.spans, self.requests, self.statuses, self.changed = [], [], [], threading.Condition()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with collector.changed:
                    status = collector.statuses.pop(0) if collector.statuses else 200
                    collector.take(self.path, self.headers, body, status)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path, headers, body, status):
        message = ExportTraceServiceRequest.FromString(body)
        self.requests.append((path, dict(headers), message, status))
        if status == 200:
            for resource in message.resource_spans:
                for scope in resource.scope_spans:
                    self.spans += scope.spans
        self.changed.notify_all()

    def wait_for(self, count: int) -> list[Span]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.spans) >= count, 60), f"{len(self.spans)} spans came"
            return list(self.spans)


@pytest.fixture
def collector():
    one = Collector()
    yield one
    one.server.shutdown()
    one.server.server_close()


def values_of(span: Span) -> dict:
    def value(any_value):
        kind = any_value.WhichOneof("value")
        inner = getattr(any_value, kind)
        return [value(item) for item in inner.values] if kind == "array_value" else inner

    return {pair.key: value(pair.value) for pair in span.attributes}


def test_a_request_is_a_span_with_vllms_attributes(start, collector):
    server = start("tiny", "--otlp-traces-endpoint", collector.url + "/v1/traces",
                   env=QUICK | {"OTEL_SERVICE_NAME": "my service", "OTEL_RESOURCE_ATTRIBUTES": "zone=a%20b,pod=7",
                                "OTEL_EXPORTER_OTLP_HEADERS": "x-token=se%3Dcret"})
    before = time.time_ns()
    answer = server.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 9, "ignore_eos": True, "temperature": 0.5,
                                             "top_p": 0.75}, headers={"traceparent": PARENT, "tracestate": "vendor=x"})
    assert answer.status_code == 200
    (span,) = collector.wait_for(1)
    assert span.name == "llm_request" and span.kind == Span.SPAN_KIND_SERVER
    assert span.trace_id.hex() == PARENT.split("-")[1] and span.parent_span_id.hex() == PARENT.split("-")[2]
    assert len(span.span_id) == 8 and any(span.span_id) and span.trace_state == "vendor=x"
    assert span.flags & 0x301 == 0x301
    assert before < span.start_time_unix_nano < span.end_time_unix_nano < time.time_ns()
    values = values_of(span)
    times = {name: values.pop("gen_ai.latency." + name)
             for name in ("time_to_first_token", "e2e", "time_in_queue", "time_in_model_prefill", "time_in_model_decode",
                          "time_in_model_inference")}
    assert values == {"gen_ai.request.id": answer.json()["id"], "gen_ai.response.model": "tiny",
                      "gen_ai.usage.prompt_tokens": 3, "gen_ai.usage.completion_tokens": 9, "gen_ai.request.top_p": 0.75,
                      "gen_ai.request.temperature": 0.5, "gen_ai.request.max_tokens": 9, "gen_ai.request.n": 1,
                      "gen_ai.response.finish_reasons": ["length"]}
    assert 0 <= times["time_in_queue"] < times["time_to_first_token"] < times["e2e"]
    assert times["time_in_model_inference"] == pytest.approx(times["time_in_model_prefill"] + times["time_in_model_decode"])
    (path, headers, message, _), = collector.requests
    assert path == "/v1/traces" and headers["Content-Type"] == "application/x-protobuf" and headers["x-token"] == "se=cret"
    (resource,) = message.resource_spans
    named = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
    assert named["service.name"] == "my service" and named["zone"] == "a b" and named["pod"] == "7"
    assert resource.scope_spans[0].scope.name == "quire"
    while server.metric("quire:trace_spans_total") == 0:  # counted when the collector's answer has come
        pass
    assert server.metric("quire:trace_spans_total") == 1 and server.metric("quire:trace_spans_dropped_total") == 0


def test_every_endpoint_and_every_end_has_a_span(start, collector):
    server = start("long", "--max-model-len", 100000, "--num-gpu-blocks-override", 8000, "--otlp-traces-endpoint", collector.url,
                   env=QUICK)
    chat = [{"role": "user", "content": "Hello"}]
    server.ok("/v1/completions", {"prompt": [[5, 6, 7], [8, 9]], "n": 2, "max_tokens": 4, "ignore_eos": True})
    server.ok("/v1/chat/completions", {"messages": chat, "max_tokens": 5, "ignore_eos": True})
    server.post("/v1/messages", {"model": "long", "messages": chat, "max_tokens": 5, "stream": True})
    server.ok("/v1/responses", {"input": "Hello", "max_output_tokens": 5})
    spans = collector.wait_for(5)
    counts = [values_of(span)["gen_ai.usage.completion_tokens"] for span in spans[:3]]
    assert counts == [8, 8, 5] and values_of(spans[0])["gen_ai.request.n"] == 2
    assert values_of(spans[0])["gen_ai.response.finish_reasons"] == ["length", "length"]
    assert len({span.trace_id for span in spans}) == 5 and not any(span.parent_span_id for span in spans)
    assert {path for path, *_ in collector.requests} == {"/v1/traces"}, "the usual path is added"
    # A client that goes away.
    with httpx.stream("POST", server.url + "/v1/completions", timeout=60,
                      json={"prompt": [5, 6], "max_tokens": 50000, "ignore_eos": True, "stream": True}) as answer:
        next(answer.iter_lines())
    last = values_of(collector.wait_for(6)[5])
    assert last["gen_ai.response.finish_reasons"] == ["abort"] and 0 < last["gen_ai.usage.completion_tokens"] < 50000
    # A trace that is not recorded has no span; a header that is none begins a new trace. Spans are sent at the end.
    for parent in (PARENT[:-1] + "0", "nonsense", "\u00e9" * 55):
        server.post("/v1/completions", {"prompt": [5], "max_tokens": 1}, headers={"traceparent": parent.encode()})
    assert server.stop() == 0
    assert len(collector.wait_for(8)) == 8
    assert all(span.status.code == Status.STATUS_CODE_UNSET for span in collector.spans)


def test_a_collector_that_comes_back_gets_the_spans(start, collector):
    collector.statuses = [503, 429]
    server = start("tiny", "--otlp-traces-endpoint", collector.url.replace("//", "//me:secret@"), env=QUICK)
    server.ok("/v1/completions", {"prompt": [5], "max_tokens": 1})
    collector.wait_for(1)
    assert [status for *_, status in collector.requests] == [503, 429, 200]
    assert server.stop() == 0
    assert server.log.count("takes no spans (it answered with status 503)") == 1
    assert server.log.count("takes spans again") == 1
    assert collector.requests[0][1]["Authorization"].startswith("Basic ") and "secret" not in server.log


def test_a_collector_that_refuses_is_not_asked_again(start, collector):
    collector.statuses = [400]
    server = start("tiny", "--otlp-traces-endpoint", collector.url, env=QUICK)
    server.ok("/v1/completions", {"prompt": [5], "max_tokens": 1})
    with collector.changed:
        assert collector.changed.wait_for(lambda: collector.requests, 60)
    server.ok("/v1/completions", {"prompt": [5], "max_tokens": 1})
    assert len(collector.wait_for(1)) == 1
    assert server.metric("quire:trace_spans_dropped_total") == 1


def test_without_a_collector_requests_are_answered_and_spans_counted(start):
    server = start("tiny", "--otlp-traces-endpoint", "http://127.0.0.1:9",
                   env=QUICK | {"OTEL_BSP_MAX_QUEUE_SIZE": "2"})
    for _ in range(12):
        server.ok("/v1/completions", {"prompt": [5], "max_tokens": 1})
    assert server.metric("quire:trace_spans_dropped_total") >= 12 - 2 - 2
    assert server.metric("quire:trace_spans_total") == 0
    assert server.stop() == 0
    assert server.log.count("takes no spans") == 1


@pytest.mark.parametrize("endpoint, env, sentence", [
    ("localhost:4317", {}, "it must be an address such as http://127.0.0.1:4318/v1/traces"),
    ("grpc://localhost:4317", {}, "it must be an address such as http://127.0.0.1:4318/v1/traces"),
    ("http://localhost:4317", {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, "quire sends traces as http/protobuf only"),
    ("http://localhost:4318", {"OTEL_EXPORTER_OTLP_HEADERS": "nonsense"}, "must be a list such as name=value"),
    ("http://localhost:4318", {"OTEL_BSP_SCHEDULE_DELAY": "soon"}, "OTEL_BSP_SCHEDULE_DELAY is 'soon'")])
def test_a_wrong_setting_is_refused_with_a_sentence(folder, endpoint, env, sentence):
    done = subprocess.run([str(BIN_DIR / "quire"), "serve", "tiny", "--port", "0", "--otlp-traces-endpoint", endpoint],
                          cwd=folder, text=True, capture_output=True, timeout=60,
                          env={"QUIRE_HOME": str(folder / "home")} | env)
    assert done.returncode == 2 and sentence in done.stderr, done.stderr


def test_several_models_share_one_collector(start, folder, collector):
    server = start("tiny", "b=bare", "--otlp-traces-endpoint", collector.url, env=QUICK)
    for model in ("tiny", "b"):
        server.ok("/v1/completions", {"model": model, "prompt": [5], "max_tokens": 1})
    assert [values_of(span)["gen_ai.response.model"] for span in collector.wait_for(2)] == ["tiny", "b"]
    assert json.loads(server.http.get("/v1/models").text)["data"]
