# SPDX-License-Identifier: Apache-2.0
"""Several models by name: loading on demand, making room, failures, and what clients see meanwhile."""

import asyncio
import json
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import httpx
import pytest
from conftest import BIN_DIR, ROOT, export
from test_same_bits import essence, make_request

sys.path.insert(0, str(ROOT / "tests" / "pull"))
from fake_hub import File, Hub  # noqa: E402

ASK = {"prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0, "return_token_ids": True}
ENDLESS = {"prompt": [5, 6, 7], "max_tokens": 60000, "ignore_eos": True, "stream": True}


def wait_until(check, seconds=60):
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def models(folder):
    """qwen3 and gemma2 beside tiny, and bad: tiny with half of its weights."""
    for case in ("qwen3", "gemma2"):
        export.main(["--case", case, "--out", str(folder / case)])
    shutil.copytree(folder / "tiny", folder / "bad")
    weights = folder / "bad" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    return folder


@pytest.fixture()
def hub(models):
    """A hub with the model slow/model, which sends nothing of its weights until `release` is set."""
    hub = Hub()
    hub.repositories["slow/model"] = {path.name: File(path.read_bytes()) for path in (models / "tiny").iterdir()}
    hub.release = threading.Event()
    plain = hub.answer_file

    def answer_file(request, file):
        if len(file.data) > 20000:
            while not (hub.release.is_set() or hub.stop.is_set()):
                time.sleep(0.01)
        plain(request, file)

    hub.answer_file = answer_file
    yield hub
    hub.close()


def state(server, name) -> str:
    rows = server.http.get("/ps").json()["models"]
    return next(row for row in rows if row["name"] == name)["state"]


async def traffic(url, bodies, seed):
    """Sends all requests within a short time; one in five leaves early and gives None."""
    rng = random.Random(seed)
    plans = [(rng.random() * 2, rng.random() < 0.2, rng.random() * 0.3) for _ in bodies]

    async def ask(client, body, delay, leaves, patience):
        await asyncio.sleep(delay)
        if leaves:
            try:
                await client.post("/v1/completions", json=body, timeout=patience)
            except httpx.TimeoutException:
                pass
            return None
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == body["model"]
        return essence(answer.json())

    async with httpx.AsyncClient(base_url=url, timeout=300, limits=httpx.Limits(max_connections=None)) as client:
        return await asyncio.gather(*(ask(client, body, *plan) for body, plan in zip(bodies, plans)))


@pytest.mark.parametrize("room_for_two", [
    ("--max-loaded-models", 2),
    ("--num-gpu-blocks-override", 400, "--models-memory-bytes", "36MiB"),
])
def test_answers_have_the_bits_of_a_server_with_that_model_alone(start, models, room_for_two):
    names = ["tiny", "qwen3", "gemma2"]
    rng = random.Random(7)
    prefixes = [[rng.randrange(3, 250) for _ in range(80)] for _ in range(3)]
    flags = ("--max-model-len", 256, "--max-num-seqs", 8)
    several = start(*names, *room_for_two, *flags)
    bodies = [make_request(rng, prefixes) | {"model": rng.choice(names)} for _ in range(90)]
    answers = asyncio.run(traffic(several.url, bodies, 3))
    loads = {name: several.metric("quire:model_loads_total", model_name=name) for name in names}
    assert sum(loads.values()) > 3, "no model had to make room"
    assert several.metric("quire:model_load_failures_total") == 0
    wait_until(lambda: all(row["requests"] == 0 for row in several.http.get("/ps").json()["models"]))
    for row in several.http.get("/ps").json()["models"]:
        assert row["waiting"] == 0 and row.get("pages_used", 0) == 0, row
    assert several.metric("quire:model_loaded") <= 2
    for name in names:
        assert several.metric("vllm:request_success_total", model_name=name) > 0
        alone = start(name, *flags)
        mine = [(body, answer) for body, answer in zip(bodies, answers) if body["model"] == name and answer is not None]
        assert len(mine) > 10
        for body, answer in mine:
            assert essence(alone.ok("/v1/completions", body)) == answer, body
        alone.stop()
    assert several.stop() == 0


@pytest.fixture(scope="module")
def pair(start, models):
    """Two models, a broken one, and room for one."""
    return start("tiny", "second=qwen3", "bad", "--max-loaded-models", 1, "--max-model-len", 256)


def test_names(pair):
    listed = pair.http.get("/v1/models").json()["data"]
    assert [model["id"] for model in listed] == ["tiny", "second", "bad"]
    for name, shown in (("tiny", "tiny"), ("second", "second"), ("qwen3", "second")):
        assert pair.ok("/v1/completions", ASK | {"model": name})["model"] == shown
    unknown = pair.post("/v1/chat/completions", {"model": "gpt", "messages": []})
    assert unknown.status_code == 404
    assert "`gpt` does not exist; this server has: tiny, second, bad." in unknown.json()["error"]["message"]
    missing = pair.post("/v1/completions", ASK)
    assert missing.status_code == 400 and "name one of tiny, second, bad" in missing.text
    assert pair.http.get("/v1/models/second").json()["max_model_len"] == 256
    assert pair.http.get("/v1/models/none").status_code == 404
    chat = pair.ok("/v1/chat/completions", {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "a"}]})
    assert chat["model"] == "tiny"
    assert pair.ok("/tokenize", {"model": "tiny", "prompt": "hello"})["count"] > 0
    assert pair.http.get("/tokenizer_info").status_code == 400
    assert pair.http.get("/tokenizer_info?model=tiny").status_code == 404, "the endpoint is off"


def test_a_damaged_file_fails_its_own_requests_only(pair):
    alone = pair.ok("/v1/completions", ASK | {"model": "tiny"})
    for _ in range(2):
        bad = pair.post("/v1/completions", ASK | {"model": "bad"})
        assert bad.status_code == 500, bad.text
        assert "The model `bad` could not be loaded: " in bad.json()["error"]["message"]
        assert state(pair, "bad") == "failed" and state(pair, "tiny") in ("idle", "ready"), "tiny did not make room"
        assert pair.http.get("/health").status_code == 200
        assert essence_of(pair.ok("/v1/completions", ASK | {"model": "tiny"})) == essence_of(alone)
    assert pair.metric("quire:model_load_failures_total", model_name="bad") >= 1


def essence_of(answer):
    return [choice["token_ids"] for choice in answer["choices"]]


def test_a_request_under_way_keeps_its_model(start, models):
    server = start("long", "qwen3", "--max-loaded-models", 1, "--kv-cache-memory-bytes", "64MiB", "--max-model-len", "auto")
    second: list[httpx.Response] = []
    with server.http.stream("POST", "/v1/completions", json=ENDLESS | {"model": "long"}) as stream:
        lines = stream.iter_lines()
        next(lines)
        waiting = threading.Thread(target=lambda: second.append(server.post("/v1/completions", ASK | {"model": "qwen3"})))
        waiting.start()
        other = httpx.Client(base_url=server.url, timeout=60)
        wait_until(lambda: other.get("/ps").json()["models"][1]["waiting"] == 1)
        for _ in range(50):
            assert next(lines) is not None
        row = other.get("/ps").json()["models"][0]
        assert row["state"] == "draining" and row["requests"] == 1 and row["pages_used"] > 0 and not second
    waiting.join(60)
    assert second[0].status_code == 200, second[0].text
    assert server.stop() == 0


def test_idle_models_are_unloaded(start, models):
    server = start("tiny", "qwen3", "--model-keep-alive", 0, "--max-model-len", 256)
    first = server.ok("/v1/completions", ASK | {"model": "tiny"})
    wait_until(lambda: state(server, "tiny") == "unloaded")
    assert server.metric("vllm:kv_cache_usage_perc", model_name="tiny") == 0
    assert essence_of(server.ok("/v1/completions", ASK | {"model": "tiny"})) == essence_of(first)
    assert server.metric("vllm:generation_tokens_total", model_name="tiny") == 8, "counters go on after a reload"
    assert server.stop() == 0


def test_memory_is_shared(start, models):
    room = 26 << 20  # for either, not for both
    server = start("tiny", "qwen3", "--max-model-len", 256, "--num-gpu-blocks-override", 400, "--models-memory-bytes", room)
    for name in ("tiny", "qwen3", "tiny"):
        server.ok("/v1/completions", ASK | {"model": name})
        loaded = [row for row in server.http.get("/ps").json()["models"] if row["memory_bytes"]]
        assert [row["name"] for row in loaded] == [name] and loaded[0]["memory_bytes"] <= room
    server.stop()
    little = start("tiny", "qwen3", "--max-model-len", 256, "--models-memory-bytes", 1000)
    refused = little.post("/v1/completions", ASK | {"model": "tiny"})
    assert refused.status_code == 503 and "needs at least" in refused.json()["error"]["message"]
    little.stop()


@pytest.fixture()
def loading(start, hub, tmp_path):
    """A server that is loading slow/model for one request, which waits in a thread."""
    server = start("tiny", "slow/model", "--max-model-len", 256, "--model-queue-size", 2, "--shutdown-timeout", 20,
                   env={"HF_ENDPOINT": hub.url, "QUIRE_HOME": str(tmp_path / "home")})
    server.answers = []
    server.body = ASK | {"model": "slow/model"}

    def ask():
        try:
            server.answers.append(httpx.post(server.url + "/v1/completions", json=server.body, timeout=60))
        except httpx.RemoteProtocolError:  # the server was killed
            pass

    server.first = threading.Thread(target=ask)
    server.first.start()
    wait_until(lambda: state(server, "slow/model") == "loading" and hub.requests_for("/resolve/"))
    return server


def test_others_are_served_while_a_model_loads(loading, hub):
    assert loading.http.get("/health").status_code == 200
    assert loading.metric("quire:model_waiting", model_name="slow/model") == 1
    # A client that leaves is dropped; the queue has room for one more.
    with pytest.raises(httpx.TimeoutException):
        loading.http.post("/v1/completions", json=loading.body, timeout=0.2)
    wait_until(lambda: loading.metric("quire:model_waiting", model_name="slow/model") == 1)
    second = threading.Thread(target=lambda: loading.answers.append(httpx.post(
        loading.url + "/v1/completions", json=loading.body, timeout=60)))
    second.start()
    wait_until(lambda: loading.metric("quire:model_waiting", model_name="slow/model") == 2)
    full = loading.post("/v1/completions", loading.body)
    assert full.status_code == 503 and full.headers["retry-after"] == "1"
    assert "2 requests wait for the model `slow/model`, which is loading" in full.json()["error"]["message"]
    hub.release.set()
    loading.first.join(60)
    second.join(60)
    assert [answer.status_code for answer in loading.answers] == [200, 200]
    tiny = loading.ok("/v1/completions", ASK | {"model": "tiny"})
    assert essence_of(loading.answers[0].json()) == essence_of(tiny), "it is the same model"
    assert loading.stop() == 0


def test_shutdown_during_a_load_finishes_the_request(loading, hub):
    loading.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "finishing 1 requests" in loading.log)
    hub.release.set()
    assert loading.process.wait(60) == 0
    loading.first.join(10)
    assert loading.answers[0].status_code == 200


def test_shutdown_breaks_a_load_off(start, hub, tmp_path):
    server = start("tiny", "slow/model", "--shutdown-timeout", 0,
                   env={"HF_ENDPOINT": hub.url, "QUIRE_HOME": str(tmp_path / "home")})
    answers = []
    client = threading.Thread(target=lambda: answers.append(httpx.post(
        server.url + "/v1/completions", json=ASK | {"model": "slow/model"}, timeout=60)))
    client.start()
    wait_until(lambda: state(server, "slow/model") == "loading" and hub.requests_for("/resolve/"))
    assert server.stop() == 0
    assert "although work is still running" not in server.log
    client.join(10)
    assert answers[0].status_code == 503


def test_kill_leaves_nothing_behind(loading, hub, start, tmp_path):
    loading.process.kill()
    loading.process.wait()
    hub.release.set()
    again = start("tiny", "slow/model", "--max-model-len", 256,
                  env={"HF_ENDPOINT": hub.url, "QUIRE_HOME": str(tmp_path / "home")})
    assert again.post("/v1/completions", ASK | {"model": "slow/model"}).status_code == 200
    folder = tmp_path / "home" / "models" / "slow" / "model"
    assert not list(folder.glob("*.part*"))
    assert again.stop() == 0


def test_one_model_is_pulled_at_the_start(start, hub, tmp_path):
    hub.release.set()
    server = start("slow/model", "--max-model-len", 256,
                   env={"HF_ENDPOINT": hub.url, "QUIRE_HOME": str(tmp_path / "home")})
    assert server.ok("/v1/completions", ASK)["model"] == "slow/model"
    assert server.http.get("/ps").json()["models"][0]["state"] in ("ready", "idle")
    assert server.stop() == 0


def serve(folder, *arguments):
    return subprocess.run([BIN_DIR / "quire", "serve", *map(str, arguments), "--port", "0"], cwd=folder,
                          capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("arguments, code, words", [
    (("tiny", "nowhere"), 1, ["'nowhere'", "quire pull"]),
    (("tiny", "tiny"), 2, ["two models have the name 'tiny'"]),
    (("tiny", "qwen3", "--served-model-name", "x"), 2, ["--served-model-name", "NAME=MODEL"]),
    (("tiny", "qwen3", "--chat-template", "x"), 2, ["--chat-template", "one model"]),
    (("--models-dir", "nowhere"), 1, ["--models-dir", "'nowhere'"]),
    (("tiny", "qwen3", "--max-loaded-models", "0"), 2, ["--max-loaded-models"]),
])
def test_wrong_command_lines(models, arguments, code, words):
    done = serve(models, *arguments)
    assert done.returncode == code, done.stderr
    assert all(word in done.stderr for word in words) and "Serving" not in done.stderr, done.stderr


def test_the_first_hint_names_no_route_that_a_model_may_not_have(start, models):
    """It showed a chat with the first model of the folder, which may make embeddings."""
    one = start("tiny", "qwen3")
    one.stop()
    hint = next(line for line in one.lines if "Try: curl" in line)
    assert "/v1/models " in hint and "chat" not in hint, hint


def test_a_folder_of_models_and_a_config_file(start, models, tmp_path):
    shutil.copytree(models / "tiny", tmp_path / "models" / "tiny")
    shutil.copytree(models / "qwen3", tmp_path / "models" / "owner" / "qwen3")
    server = start(f"--models-dir={tmp_path}/models", "--max-model-len", 256)
    names = [model["id"] for model in server.http.get("/v1/models").json()["data"]]
    assert names == ["owner/qwen3", "tiny"]
    for name in names:
        assert server.ok("/v1/completions", ASK | {"model": name})["model"] == name
    server.stop()
    config = tmp_path / "serve.yaml"
    config.write_text(f"model:\n  - {models}/tiny\n  - other={models}/qwen3\nmax-model-len: 256\nmax-loaded-models: 1\n")
    server = start(f"--config={config}")
    assert [model["id"] for model in server.http.get("/v1/models").json()["data"]] == [f"{models}/tiny", "other"]
    assert server.ok("/v1/completions", ASK | {"model": "other"})["model"] == "other"
    server.stop()
    server = start("tiny", "--config", config)  # the command line wins
    assert [model["id"] for model in server.http.get("/v1/models").json()["data"]] == ["tiny"]
    server.stop()


def test_ps(start, models):
    server = start("tiny", "qwen3", "--api-key", "sk-1", "--max-model-len", 256)
    server.http.headers["Authorization"] = "Bearer sk-1"
    server.ok("/v1/completions", ASK | {"model": "qwen3"})

    def ps(*flags):
        return subprocess.run([BIN_DIR / "quire", "ps", "--base-url", server.url, *flags], capture_output=True, text=True,
                              timeout=60)

    assert ps().returncode == 2 and "--api-key" in ps().stderr
    rows = json.loads(ps("--api-key", "sk-1", "--json").stdout)["models"]
    assert [row["name"] for row in rows] == ["tiny", "qwen3"] and rows[0]["state"] == "unloaded"
    lines = ps("--api-key", "sk-1").stdout.splitlines()
    assert lines[0].split()[:2] == ["NAME", "STATE"] and lines[1].split()[:2] == ["tiny", "unloaded"]
    assert lines[2].split()[0] == "qwen3" and "0/" in lines[2]
    server.stop()
    gone = ps("--api-key", "sk-1")
    assert gone.returncode == 1 and gone.stderr.count("\n") == 1, gone.stderr
