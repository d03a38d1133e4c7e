# SPDX-License-Identifier: Apache-2.0
"""--data-parallel-size: several engines of a model behind one server, which answer as one engine does."""

import asyncio
import json
import random
import subprocess
import threading
import time

import httpx
import msgspec
import pytest
import zmq
from conftest import BIN_DIR
from test_kv_events import KVEventBatch, find_libzmq
from test_lora import write_peft
from test_same_bits import FIELDS, essence, make_request, storm

TWO = ("--data-parallel-size", 2, "--threads", 2)
ASK = {"prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0, "return_token_ids": True}
ENDLESS = {"prompt": [5, 6, 7], "max_tokens": 60000, "ignore_eos": True, "stream": True}


def rank(number) -> dict:
    return {"X-data-parallel-rank": str(number)}


def wait_until(check, seconds=60):
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def served(server, engine: int) -> float:
    return server.metric("vllm:request_success_total", engine=engine)


@pytest.fixture(scope="module")
def two(start):
    return start("tiny", *TWO, "--enable-reset-prefix-cache")


async def ask_all(url: str, bodies: list[dict], at_once: int) -> list:
    gate = asyncio.Semaphore(at_once)

    async def ask(client, body):
        async with gate:
            answer = await client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            return essence(answer.json())

    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        return await asyncio.gather(*(ask(client, body) for body in bodies))


def test_shared_prefixes_are_hit_as_often_as_by_one_engine(start):
    """24 prefixes of 384 tokens: one request each, then five more in random order, four at once. The tokens of hits are
    counted, not the time. Three sequences more weigh less than a prefix, so none of them is computed twice; if engines
    were chosen without a look at prefixes, every fifth hit would be lost."""
    rng = random.Random(1)
    prefixes = [[rng.randrange(3, 250) for _ in range(384)] for _ in range(24)]
    later = prefixes * 5
    rng.shuffle(later)
    bodies = [{"prompt": prefix + [rng.randrange(3, 250) for _ in range(rng.randrange(1, 20))], "max_tokens": 4,
               "temperature": 1, "seed": i, "ignore_eos": True} | FIELDS
              for i, prefix in enumerate(prefixes + later)]
    rates, answers = [], []
    for flags in (("--threads", 2), TWO):
        server = start("long", "--max-model-len", 512, "--kv-cache-memory-bytes", "16MiB", *flags)
        answers.append(asyncio.run(ask_all(server.url, bodies[:24], 1)) + asyncio.run(ask_all(server.url, bodies[24:], 4)))
        queried, hit = (server.metric(f"vllm:prefix_cache_{name}_total") for name in ("queries", "hits"))
        assert queried == sum(len(body["prompt"]) for body in bodies)
        rates.append(hit / queried)
    assert server.metric("vllm:prefix_cache_queries_total", engine=1) > 0
    assert served(server, 0) + served(server, 1) == len(bodies)
    assert min(served(server, 0), served(server, 1)) >= len(bodies) / 4, "one engine did nearly everything"
    assert rates[1] >= 0.95 * rates[0] > 0.5
    assert answers[0] == answers[1]


def test_each_prefix_has_its_engine_when_nothing_else_runs(two):
    """One after the other, the hits are those of one engine to the token."""
    rng = random.Random(2)
    prefixes = [[rng.randrange(3, 250) for _ in range(64)] for _ in range(3)]  # odd: taking turns would not do
    assert two.http.post("/reset_prefix_cache").json() == {"success": True}
    before = two.metric("vllm:prefix_cache_hits_total"), served(two, 0), served(two, 1)
    cached = []
    for i in range(12):
        body = {"prompt": prefixes[i % 3] + [i], "max_tokens": 1}
        cached.append(two.ok("/v1/completions", body)["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0] * 3 + [64] * 9
    assert two.metric("vllm:prefix_cache_hits_total") - before[0] == 9 * 64
    assert sorted([served(two, 0) - before[1], served(two, 1) - before[2]]) == [4, 8]
    # A prefix that was forgotten binds nobody.
    assert two.http.post("/reset_prefix_cache").json() == {"success": True}
    assert two.ok("/v1/completions", body)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("more", [(), ("--speculative-config", '{"model": "tiny", "num_speculative_tokens": 3}')],
                         ids=["plain", "draft model"])
def test_answers_do_not_depend_on_the_engine(start, more):
    """Random traffic with preemptions, prefix hits and clients that leave, on engines with too few pages."""
    rng = random.Random(5)
    prefixes = [[rng.randrange(3, 250) for _ in range(80)] for _ in range(3)]
    bodies = [make_request(rng, prefixes) for _ in range(60)]
    crowded = start("tiny", "--max-model-len", 256, "--num-gpu-blocks-override", 24, "--max-num-seqs", 16,
                    "--max-num-batched-tokens", 64, *TWO, *more)
    answers = asyncio.run(storm(crowded.url, bodies, 9))
    assert served(crowded, 0) > 0 and served(crowded, 1) > 0
    assert crowded.metric("vllm:prefix_cache_hits_total") > 0
    wait_until(lambda: crowded.metric("vllm:num_requests_running") == 0)
    assert crowded.metric("vllm:kv_cache_usage_perc") == 0 and crowded.metric("vllm:num_requests_waiting") == 0
    alone = start("tiny", "--no-enable-prefix-caching", "--max-num-seqs", 1, "--max-model-len", 256)
    compared = 0
    for body, answer in zip(bodies, answers):
        if answer is not None:
            assert essence(alone.ok("/v1/completions", body)) == answer, body
            compared += 1
    assert compared > 30
    assert crowded.stop() == 0 and alone.stop() == 0


def test_a_long_request_does_not_block_the_other_engine(start):
    server = start("long", *TWO, "--max-num-seqs", 1)
    with server.http.stream("POST", "/v1/completions", json=ENDLESS, headers=rank(0)) as stream:
        lines = stream.iter_lines()  # as long as it lives, the stream stays open
        next(lines)
        for i in range(4):
            server.ok("/v1/completions", ASK | {"prompt": [9, 8, i]})
        assert served(server, 0) == 0 and served(server, 1) == 4
        # Who insists on the busy engine waits for it.
        waiting = threading.Thread(target=lambda: server.post("/v1/completions", ASK, headers=rank(0)))
        waiting.start()
        wait_until(lambda: server.metric("vllm:num_requests_waiting", engine=0) == 1)
        assert server.http.get("/load").json() == {"server_load": 2}
        assert server.metric("vllm:num_requests_waiting", engine=1) == 0
    waiting.join(60)  # the client of the endless answer has left
    assert not waiting.is_alive()
    assert server.stop() == 0


def test_both_engines_stop_while_they_work(start):
    server = start("long", *TWO, "--shutdown-timeout", 0)
    streams = []
    for number in (0, 1):
        manager = server.http.stream("POST", "/v1/completions", json=ENDLESS, headers=rank(number))
        streams.append((manager, manager.__enter__().iter_lines()))
        next(streams[-1][1])
    assert [server.metric("vllm:num_requests_running", engine=number) for number in (0, 1)] == [1, 1]
    assert server.stop() == 0
    for manager, _ in streams:
        manager.__exit__(None, None, None)


@pytest.mark.parametrize("flags, sentence", [
    (("--data-parallel-size", "0"), "--data-parallel-size is 0; it must be 1 to 256"),
    (("--data-parallel-size", "-1"), "--data-parallel-size is -1; it must be 1 to 256"),
    (("--data-parallel-size", "257"), "--data-parallel-size is 257; it must be 1 to 256"),
    (("--data-parallel-size", "two"), "--data-parallel-size"),
    (("--data-parallel-size", "3", "--threads", "2"), "--data-parallel-size is 3, but there are 2 threads"),
    (("--data-parallel-size", "2", "--threads", "3", "--tensor-parallel-size", "2"), "for each of its 2 ranks"),
    (("--data-parallel-size", "2", "--threads", "2", "--kv-events-config",
      '{"enable_kv_cache_events": true, "endpoint": "tcp://*:65535"}'), "the last one is 65535"),
])
def test_bad_sizes_are_refused(folder, flags, sentence):
    done = subprocess.run([str(BIN_DIR / "quire"), "serve", "tiny", "--port", "0", *flags], cwd=folder,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and sentence in done.stderr, done.stderr


@pytest.mark.parametrize("value", ["2", "-1", "", "one", "0x1", "99999999999999999999"])
def test_a_rank_that_is_none_is_refused(two, value):
    answer = two.http.post("/v1/completions", json=ASK, headers=rank(value))
    assert answer.status_code == 400
    assert "X-data-parallel-rank" in answer.json()["error"]["message"]
    assert "0 to 1" in answer.json()["error"]["message"]


def test_one_engine_has_rank_0(server):
    assert server.post("/v1/completions", ASK, headers=rank(0)).status_code == 200
    answer = server.post("/v1/completions", ASK, headers=rank(1))
    assert answer.status_code == 400 and "this server has one: 0" in answer.json()["error"]["message"]


def test_every_endpoint_on_every_engine(two, server):
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 6, "seed": 1}
    cases = [("/v1/chat/completions", chat | {"n": 3, "logprobs": True, "top_logprobs": 2}),
             ("/v1/completions", {"prompt": ["one", "two"], "n": 2, "max_tokens": 5, "seed": 3, "echo": True}),
             ("/v1/completions", {"prompt": [5] * 40, "max_tokens": 2, "prompt_logprobs": 1, "seed": 5, "return_receipt": True}),
             ("/v1/responses", {"input": "hello", "max_output_tokens": 16, "seed": 4}),
             ("/v1/messages", {"messages": chat["messages"], "max_tokens": 16})]

    def contents(answer: dict) -> str:
        for name in ("id", "created", "created_at", "system_fingerprint", "usage", "completed_at"):
            answer.pop(name, None)
        return json.dumps(answer, sort_keys=True)

    for path, body in cases:
        if path == "/v1/messages":
            body = body | {"temperature": 0}
        expected = None
        for number in (0, 1):
            before = served(two, number)
            answer = two.http.post(path, json=body, headers=rank(number))
            assert answer.status_code == 200, answer.text
            assert served(two, number) > before
            text = contents(answer.json())
            if path not in ("/v1/responses", "/v1/messages"):  # whose parts have ids
                assert text == (expected or text)
                expected = text
    # A stream of several answers, by either engine.
    for number in (0, 1):
        pieces = {0: "", 1: ""}
        with two.http.stream("POST", "/v1/completions", headers=rank(number),
                             json={"prompt": "x", "n": 2, "max_tokens": 8, "seed": 2, "stream": True}) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        pieces[choice["index"]] += choice["text"]
        whole = server.ok("/v1/completions", {"prompt": "x", "n": 2, "max_tokens": 8, "seed": 2})
        assert [pieces[0], pieces[1]] == [choice["text"] for choice in whole["choices"]]


def test_seeds_are_drawn_in_the_order_of_requests(start):
    """With --seed, requests without one get the seeds that one engine would give them."""
    body = {"prompt": "x", "max_tokens": 6, "temperature": 1}
    texts = []
    for flags in ((), TWO):
        server = start("tiny", "--seed", 7, *flags)
        texts.append([server.ok("/v1/completions", body)["choices"][0]["text"] for _ in range(6)])
        server.stop()
    assert texts[0] == texts[1] and len(set(texts[0])) > 1


def test_embeddings(start):
    bodies = [{"input": [[5, 6, i] for i in range(n)], "encoding_format": "float"} for n in (1, 3, 8)]
    vectors = []
    for flags in ((), TWO):
        server = start("tiny", "--runner", "pooling", *flags)
        vectors.append([[row["embedding"] for row in server.ok("/v1/embeddings", body)["data"]] for body in bodies])
    assert vectors[0] == vectors[1]
    assert server.http.post("/v1/embeddings", json=bodies[0], headers=rank(2)).status_code == 400
    assert all(served(server, engine) > 0 for engine in (0, 1))
    server.stop()


def test_adapters_on_all_engines(start, tmp_path):
    ranks = ("--data-parallel-size", 2, "--threads", 4, "--tensor-parallel-size", 2)  # each engine has its own
    servers = [start("tiny", "--enable-lora", "--max-loras", 2, *flags, env={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"})
               for flags in ((), TWO, ranks)]
    path = str(write_peft(tmp_path / "sql"))
    sql = ASK | FIELDS | {"model": "sql"}
    for server in servers:
        assert server.post("/v1/load_lora_adapter", {"lora_name": "sql", "lora_path": path}).status_code == 200
    adapted = essence(servers[0].ok("/v1/completions", sql))
    plain = essence(servers[0].ok("/v1/completions", ASK | FIELDS))
    for several in servers[1:]:
        for number in (0, 1, 1, 0):
            answer = several.http.post("/v1/completions", json=sql, headers=rank(number)).json()
            assert essence(answer) == adapted
            answer = several.http.post("/v1/completions", json=ASK | FIELDS, headers=rank(number)).json()
            assert essence(answer) == plain != adapted
        # An adapter that does not load is on no engine, and one that is unloaded on none any more.
        assert several.post("/v1/load_lora_adapter", {"lora_name": "bad", "lora_path": "nowhere"}).status_code == 404
        assert several.post("/v1/unload_lora_adapter", {"lora_name": "sql"}).status_code == 200
        for number in (0, 1):
            for name in ("bad", "sql"):
                answer = several.http.post("/v1/completions", json=ASK | {"model": name}, headers=rank(number))
                assert answer.status_code == 404
            assert essence(several.http.post("/v1/completions", json=ASK | FIELDS, headers=rank(number)).json()) == plain
        assert several.stop() == 0
    servers[0].stop()


def test_several_models_have_their_engines(start):
    server = start("a=tiny", "b=bare", *TWO)
    for name in ("a", "b"):
        tokens = [server.http.post("/v1/completions", json=ASK | {"model": name}, headers=rank(number)).json()
                  ["choices"][0]["token_ids"] for number in (0, 1)]
        assert tokens[0] == tokens[1]
        for number in (0, 1):
            assert server.metric("vllm:request_success_total", model_name=name, engine=number) == 1
            assert server.metric("vllm:cache_config_info", model_name=name, engine=number) == 1
    assert server.metric("quire:model_loaded") == 2
    assert server.stop() == 0


def test_what_the_server_shows(two):
    two.ok("/v1/completions", ASK)
    assert two.http.get("/health").status_code == 200
    pages = two.http.get("/ps").json()["models"][0]["pages"]
    lines = [line for line in two.http.get("/metrics").text.splitlines() if line.startswith("vllm:cache_config_info{")]
    assert [f'engine="{number}"' in line for number, line in enumerate(lines)] == [True, True]
    blocks = int(lines[0].split('num_gpu_blocks="')[1].split('"')[0])
    assert pages == 2 * (blocks - 1)
    assert "once for 2 engines" in two.log and "KV cache 2 x " in two.log
    with two.http.stream("GET", "/live") as stream:
        state = json.loads(next(line for line in stream.iter_lines() if line.startswith("data: "))[6:])
    shown = state["pages"]
    assert shown["engines"] == 2 and shown["total"] == pages
    runs = shown["cells"]
    cells = sum(runs[1::2])
    assert cells <= 4096 and shown["last"] <= cells * shown["per_cell"]
    groups = shown["groups"]
    assert shown["free"] + sum(one[name] for one in groups for name in ("used", "shared", "cached")) == pages
    assert two.metric("vllm:generation_tokens_total") == state["generated"]
    for page in (1, shown["last"]):
        assert two.http.get("/live/page", params={"id": page}).json()["id"] == page
    for page in (0, shown["last"] + 1):
        assert two.http.get("/live/page", params={"id": page}).status_code == 404


@pytest.mark.skipif(not find_libzmq(), reason="needs ZeroMQ's library (Debian: apt-get install libzmq5)")
def test_kv_events_of_each_engine(start):
    context = zmq.Context()
    sockets = [context.socket(zmq.SUB) for _ in range(2)]
    port = sockets[0].bind_to_random_port("tcp://127.0.0.1", min_port=20000, max_port=40000)
    sockets[1].bind(f"tcp://127.0.0.1:{port + 1}")
    for socket in sockets:
        socket.subscribe(b"")
        socket.setsockopt(zmq.RCVTIMEO, 60000)
    config = {"enable_kv_cache_events": True, "endpoint": f"tcp://127.0.0.1:{port}"}
    server = start("tiny", *TWO, "--kv-events-config", json.dumps(config))
    sources = server.http.get("/kv_event_sources").json()
    assert [source["data_parallel_rank"] for source in sources] == [0, 1]
    for number, socket in enumerate(sockets):
        prompt = [number + 3] * 40
        batch = None
        for salt in range(50):  # what is sent before the connection stands is lost
            server.http.post("/v1/completions", json=ASK | {"prompt": prompt, "cache_salt": str(salt)},
                             headers=rank(number))
            if socket.poll(200):
                batch = msgspec.msgpack.decode(socket.recv_multipart()[2], type=KVEventBatch)
                break
        assert batch is not None and batch.data_parallel_rank == number
        assert batch.events[0].token_ids[:16] == prompt[:16]
    server.stop()
    context.destroy(linger=0)


def test_an_engine_copies_the_pages_of_another(two, server):
    """What one engine has computed is a hit for the other, with the same answer; salts stay apart."""
    rng = random.Random(3)
    body = ASK | {"prompt": [rng.randrange(3, 250) for _ in range(120)], "max_tokens": 12, "logprobs": 2}
    expected = essence(server.ok("/v1/completions", body))
    before = two.metric("vllm:prefix_cache_hits_total", engine=1)
    cached = []
    for number, salt in ((0, None), (1, None), (1, "mine"), (0, "mine"), (0, None)):
        answer = two.http.post("/v1/completions", json=body | ({"cache_salt": salt} if salt else {}), headers=rank(number))
        assert answer.status_code == 200, answer.text
        assert essence(answer.json()) == expected
        cached.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 112, 0, 112, 112]
    assert two.metric("vllm:prefix_cache_hits_total", engine=1) - before == 112


@pytest.mark.parametrize("flag", ["--tensor-parallel-size", "--pipeline-parallel-size"])
def test_engines_with_several_ranks(start, server, flag):
    """Each engine has ranks of its own, with the weights of the first one's; the answers are those of one rank."""
    both = start("tiny", "--data-parallel-size", 2, flag, 2, "--threads", 4, "--max-model-len", 512)
    rng = random.Random(4)
    bodies = [ASK | {"prompt": [rng.randrange(3, 250) for _ in range(length)], "max_tokens": 12, "logprobs": 2}
              for length in (3, 90, 200)]
    for body in bodies:
        expected = essence(server.ok("/v1/completions", body))
        for number in (0, 1, 0):
            answer = both.http.post("/v1/completions", json=body, headers=rank(number))
            assert answer.status_code == 200 and essence(answer.json()) == expected
    assert [both.metric("quire:rank_steps_total", engine=e, rank=r) > 0 for e in (0, 1) for r in (0, 1)] == [True] * 4
    assert "once for 2 engines" in both.log
    assert both.stop() == 0


@pytest.mark.parametrize("more", [(), ("--tensor-parallel-size", 2)], ids=["one rank", "two ranks"])
def test_engines_of_gpus_have_the_bits_of_one(start, tmp_path, more):
    """Each engine has a GPU, here an emulator, with weights of its own; adapters and the memory of the host serve all."""
    same = ("--device", "emulator", "--max-model-len", 256, "--num-gpu-blocks-override", 40, "--max-num-batched-tokens", 64,
            "--enable-lora", "--lora-modules", f"sql={write_peft(tmp_path / 'sql')}", "--kv-offload-host-bytes", "8MiB")
    one, both = start("tiny", *same), start("tiny", *same, "--data-parallel-size", 2, *more)
    assert "engine 1: " in both.log and "once for 2 engines" not in both.log
    rng = random.Random(6)
    for length in (3, 90):
        body = ASK | FIELDS | {"prompt": [rng.randrange(3, 250) for _ in range(length)], "max_tokens": 8, "temperature": 1,
                               "seed": length}
        for model in ("tiny", "sql"):
            expected = essence(one.ok("/v1/completions", body | {"model": model}))
            for number in (0, 1):
                answer = both.http.post("/v1/completions", json=body | {"model": model}, headers=rank(number))
                assert answer.status_code == 200 and essence(answer.json()) == expected
    bodies = [make_request(rng, [[rng.randrange(3, 250) for _ in range(40)]]) for _ in range(8)]
    assert asyncio.run(ask_all(both.url, bodies, 8)) == asyncio.run(ask_all(one.url, bodies, 1))
    assert served(both, 0) > 4 and served(both, 1) > 4, "one engine did everything"
    assert both.stop() == 0 and one.stop() == 0


def test_engines_share_the_tier_on_disk(start, folder):
    """A page that one engine wrote is found by the other after a restart, too, and the files are counted once."""
    server = start("tiny", *TWO, "--kv-offload-dir", folder / "pages", "--kv-offload-size", "64MiB")
    body = ASK | {"prompt": [7] * 100}
    expected = server.http.post("/v1/completions", json=body, headers=rank(0)).json()["choices"][0]["token_ids"]
    wait_until(lambda: server.metric("quire:kv_offload_pages_total", engine=0, direction="write") >= 6)
    assert server.stop() == 0
    server = start("tiny", *TWO, "--kv-offload-dir", folder / "pages", "--kv-offload-size", "64MiB")
    answer = server.http.post("/v1/completions", json=body, headers=rank(1)).json()
    assert answer["choices"][0]["token_ids"] == expected
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
    assert server.metric("quire:kv_offload_pages_total", engine=1, direction="read") > 0
    assert server.metric("quire:kv_offload_files", engine=0) >= 6 and server.metric("quire:kv_offload_files", engine=1) == 0
    assert server.stop() == 0
