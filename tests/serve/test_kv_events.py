# SPDX-License-Identifier: Apache-2.0
"""KV events: a subscriber with vLLM's message classes knows which blocks a server has, as a prefix-aware router does."""

import ctypes
import json
import random
import re
import subprocess
import sys
import time
from typing import Any

import httpx
import msgspec
import pytest
import zmq

from conftest import BIN_DIR, export
from test_lora import write_peft


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True, forbid_unknown_fields=True):
    """The base of vLLM's events; unknown fields are refused here, so that the test notices a wrong name."""


class BlockStored(KVCacheEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(EventBatch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


def find_libzmq() -> bool:
    try:
        return bool(ctypes.CDLL("libzmq.5.dylib" if sys.platform == "darwin" else "libzmq.so.5"))
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not find_libzmq(), reason="needs ZeroMQ's library (Debian: apt-get install libzmq5)")
decode = msgspec.msgpack.Decoder(KVEventBatch).decode


class Router:
    """What a router learns from the replay socket: the cached blocks of each group, by hash."""

    def __init__(self, replay: str, topic: bytes, others: tuple[bytes, ...] = ()):
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.connect(replay)
        self.topic, self.others, self.next, self.payloads = topic, others, 0, {}
        self.blocks: dict[tuple[int, int], tuple[int | None, tuple[int, ...], tuple | None]] = {}
        self.sizes: dict[int, int] = {}
        self.kinds: dict[int, str] = {}
        self.adapters: set[str | None] = set()
        self.windows: dict[int, int | None] = {}
        self.removed = self.cleared = 0

    def catch_up(self):
        """Asks for what is new, and applies it."""
        self.socket.send_multipart([b"", self.next.to_bytes(8, "big")])
        while True:
            assert self.socket.poll(60_000), "no answer from the replay socket"
            empty, topic, sequence, payload = self.socket.recv_multipart()
            assert empty == b"" and len(sequence) == 8
            if sequence == b"\xff" * 8:
                assert topic == b"" and payload == b""
                return
            if topic in self.others:
                continue
            assert topic == self.topic and int.from_bytes(sequence, "big") == self.next, "a gap"
            self.payloads[self.next] = payload
            self.next += 1
            self.apply(decode(payload))

    def apply(self, batch: KVEventBatch):
        assert batch.events and batch.data_parallel_rank == 0 and abs(batch.ts - time.time()) < 3600
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.blocks.clear()
                self.cleared += 1
            elif isinstance(event, BlockRemoved):
                assert event.medium == "GPU"
                for block in event.block_hashes:
                    del self.blocks[event.group_idx, block]
                    self.removed += 1
            else:
                self.store(event)

    def store(self, event: BlockStored):
        assert event.medium == "GPU" and (event.lora_id is None) == (event.lora_name is None)
        self.adapters.add(event.lora_name)
        size = self.sizes.setdefault(event.group_idx, event.block_size)
        assert size == event.block_size
        assert self.kinds.setdefault(event.group_idx, event.kv_cache_spec_kind) == event.kv_cache_spec_kind
        self.windows[event.group_idx] = event.kv_cache_spec_sliding_window
        assert len(event.token_ids) == size * len(event.block_hashes) and len(event.extra_keys) == len(event.block_hashes)
        parent = event.parent_block_hash
        for i, block in enumerate(event.block_hashes):
            assert 0 <= block < 1 << 64 and (event.group_idx, block) not in self.blocks
            extra = list(event.extra_keys[i] or ())
            assert extra[:1] == [event.lora_name] if event.lora_name else parent is None or not extra
            assert parent is None or len(extra) <= 1, "only the first block of a sequence has a salt"
            tokens = tuple(event.token_ids[i * size:(i + 1) * size])
            self.blocks[event.group_idx, block] = (parent, tokens, event.extra_keys[i])
            parent = block

    def counts(self) -> list[int]:
        """How many blocks each group has."""
        return [sum(group == one for group, _ in self.blocks) for one in sorted(self.sizes)]

    def chain(self, tokens: list[int], group: int = 0, salt: str | None = None) -> int:
        """How many tokens of a prompt are cached, found as a router does: block by block from the beginning."""
        size, known, parent = self.sizes[group], 0, None
        children = {(block[0], block[1], block[2]): key[1] for key, block in self.blocks.items() if key[0] == group}
        while known + size <= len(tokens):
            extra = (salt,) if salt and known == 0 else None  # of requests without an adapter
            parent = children.get((parent, tuple(tokens[known:known + size]), extra))
            if parent is None:
                break
            known += size
        return known


def until(condition, what: str):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def start_with_events(start, tmp_path, model: str, *flags, topic: str = "", **more):
    """A server and a router of it. Paths of sockets are short, so they are not in the test's own folder."""
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"ipc://{tmp_path}/kv",
              "replay_endpoint": f"ipc://{tmp_path}/again", "topic": topic} | more
    server = start(model, "--max-model-len", 256, "--enable-prompt-tokens-details", "--enable-reset-prefix-cache",
                   "--kv-events-config", json.dumps(config), *flags)
    return server, Router(config["replay_endpoint"], topic.encode())


@pytest.fixture
def short_path(tmp_path_factory):
    return tmp_path_factory.mktemp("k")


def cached_pages(server) -> list[int]:
    """The pages that the prefix cache of an idle server holds, by group, from its live view."""
    with httpx.stream("GET", server.url + "/live", timeout=60) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                event = json.loads(line[6:])
                if event["running"] == 0 and event["waiting"] == 0:
                    return [group["cached"] for group in event["pages"]["groups"]]
    raise AssertionError("the live view ended")


def complete(server, prompt, **more) -> tuple[list[int], int]:
    """The tokens whose keys are in the cache after a completion, and how many of its prompt were cached before."""
    body = {"prompt": prompt, "max_tokens": 12, "ignore_eos": True, "temperature": 0, "return_token_ids": True} | more
    answer = server.ok("/v1/completions", body)
    tokens = prompt + answer["choices"][0]["token_ids"]
    return tokens[:-1], (answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0)


def make_prompts(count: int) -> list[list[int]]:
    rng = random.Random(3)
    beginnings = [[rng.randrange(3, 250) for _ in range(70)] for _ in range(3)]
    prompts = []
    for _ in range(count):
        beginning = rng.choice(beginnings)[:rng.randrange(1, 70)]
        prompts.append(beginning + [rng.randrange(3, 250) for _ in range(rng.randrange(1, 60))])
    return prompts


def test_a_router_knows_every_block(start, short_path):
    server, router = start_with_events(start, short_path, "tiny", "--num-gpu-blocks-override", 24, topic="kv@pod")
    live = zmq.Context.instance().socket(zmq.SUB)
    live.connect(f"ipc://{short_path}/kv")
    live.subscribe(b"kv@")
    hits = 0
    for i, prompt in enumerate(make_prompts(40)):
        salt = {"cache_salt": "mine"} if i % 5 == 4 else {}
        router.catch_up()
        expected = router.chain(prompt[:-1], salt=salt.get("cache_salt")) if router.blocks else 0
        tokens, cached = complete(server, prompt, **salt)
        assert cached == expected, "the server found other blocks than the router knew"
        hits += cached > 0
        whole = len(tokens) // router.sizes.get(0, 16) * router.sizes.get(0, 16)
        until(lambda: router.catch_up() or router.chain(tokens, salt=salt.get("cache_salt")) == whole,
              "the blocks of an answer were not announced")
        # The first state that the live view shows may be that of a moment ago.
        until(lambda: router.counts() == cached_pages(server), "the router's blocks are not the server's")
    assert hits > 5 and router.removed > 20
    assert router.kinds == {0: "full_attention"} and router.sizes == {0: 16} and router.windows == {0: None}
    # What was published is what is replayed. The first batches were published before the subscription.
    received = {}
    while live.poll(0) or len(received) < 5:
        assert live.poll(60_000), "nothing was published"
        topic, sequence, payload = live.recv_multipart()
        assert topic == b"kv@pod"
        received[int.from_bytes(sequence, "big")] = payload
    assert received.items() <= router.payloads.items()
    assert sorted(received) == list(range(min(received), router.next))
    assert server.post("/reset_prefix_cache", {}).status_code == 200
    until(lambda: router.catch_up() or router.cleared == 1, "the reset was not announced")
    assert not router.blocks
    assert server.metric("quire:kv_event_batches_total") == router.next
    assert server.metric("quire:kv_event_batches_dropped_total") == 0
    assert server.stop() == 0


@pytest.mark.parametrize("case, kinds", [("gemma3", {"full_attention", "sliding_window"}),
                                         ("qwen3-next", {"full_attention", "mamba"}), ("deepseek-v2", {"mla_attention"})])
def test_groups_are_announced_apart(start, folder, short_path, case, kinds):
    export.main(["--case", case, "--out", str(folder / case)])
    server, router = start_with_events(start, short_path, case, "--num-gpu-blocks-override", 120)
    for prompt in make_prompts(24):
        complete(server, prompt)
    # Pages of a hybrid that are not full may be hit as well, but are no blocks.
    def agree(blocks: int, pages: int, kind: str) -> bool:
        return blocks == pages or ("mamba" in kinds and kind != "mamba" and blocks < pages)

    until(lambda: router.catch_up() or all(map(agree, router.counts(), cached_pages(server),
                                               [router.kinds[group] for group in sorted(router.kinds)])),
          "the router's blocks are not the server's")
    assert set(router.kinds.values()) == kinds
    assert all(bool(router.windows[group]) == (kind == "sliding_window") for group, kind in router.kinds.items())
    # Blocks of different groups that end at the same token have the same hash.
    hashes = [{block for group, block in router.blocks if group == g} for g in router.sizes]
    assert len(hashes) == 1 or set.intersection(*hashes)


def test_blocks_of_an_adapter_have_its_name(start, short_path, tmp_path):
    poet = write_peft(tmp_path / "poet")
    server, router = start_with_events(start, short_path, "tiny", "--enable-lora", "--lora-modules", f"poet={poet}")
    prompt = make_prompts(1)[0] + [7] * 40
    tokens, _ = complete(server, prompt, model="poet", cache_salt="mine")
    until(lambda: router.catch_up() or len(router.blocks) == len(tokens) // 16, "the blocks were not announced")
    assert router.adapters == {"poet"}
    extras = sorted(tuple(block[2] or ()) for block in router.blocks.values())
    assert extras == [("poet",)] * (len(tokens) // 16 - 1) + [("poet", "mine")]
    complete(server, prompt)
    until(lambda: router.catch_up() or router.adapters == {"poet", None}, "a request without it has other blocks")


def test_the_server_says_where_it_publishes(start, short_path):
    server, _ = start_with_events(start, short_path, "tiny", topic="kv@pod")
    assert server.http.get("/kv_event_sources").json() == [{
        "data_parallel_rank": 0, "endpoint": f"ipc://{short_path}/kv", "replay_endpoint": f"ipc://{short_path}/again",
        "topic": "kv@pod"}]
    server = start("tiny", "--kv-events-config", '{"enable_kv_cache_events": true, "endpoint": "tcp://*:*"}')
    source, = server.http.get("/kv_event_sources").json()
    assert re.fullmatch(r"tcp://[0-9.]+:[1-9][0-9]*", source["endpoint"]) and "0.0.0.0" not in source["endpoint"]
    assert source["replay_endpoint"] is None and source["topic"] == ""
    assert start("tiny").http.get("/kv_event_sources").json() == []


def test_each_of_several_models_has_a_topic_and_numbers_of_its_own(start, short_path):
    server, _ = start_with_events(start, short_path, "a=tiny", "b=tiny", "--max-loaded-models", 1, topic="kv@pod")
    topics = [b"kv@pod@a", b"kv@pod@b"]
    routers = [Router(f"ipc://{short_path}/again", topic, (topics[1 - i],)) for i, topic in enumerate(topics)]
    assert [source["topic"].encode() for source in server.http.get("/kv_event_sources").json()] == topics
    for turn in range(2):
        for i, (router, other) in enumerate((routers, routers[::-1])):
            tokens, cached = complete(server, make_prompts(1)[0] + [7] * 40, model="ab"[i])
            assert cached == 0, "the model was not loaded again"
            until(lambda: router.catch_up() or router.chain(tokens) == len(tokens) // 16 * 16, "its blocks were not announced")
            other.catch_up()
            assert not other.blocks and other.cleared == turn + i, "the blocks of a model are gone with it"
    assert server.metric("quire:kv_event_batches_total") == sum(router.next for router in routers)


def test_only_the_last_steps_are_kept(start, short_path):
    server, router = start_with_events(start, short_path, "tiny", buffer_steps=3)
    for prompt in make_prompts(6):
        complete(server, prompt)
    router.socket.send_multipart([b"", (0).to_bytes(8, "big")])
    until(lambda: server.metric("quire:kv_event_batches_total") > 6, "too little was published")
    sequences = []
    while (message := router.socket.recv_multipart())[2] != b"\xff" * 8:
        sequences.append(int.from_bytes(message[2], "big"))
    assert len(sequences) <= 3 and sequences == sorted(sequences)


def test_strange_replay_requests_are_ignored(start, short_path):
    server, router = start_with_events(start, short_path, "tiny")
    for parts in ([b"x"], [b""], [b"", b"123456789"], [b"", b"1", b"2"], [b"a"] * 40, [b"", b"z" * 5000]):
        other = zmq.Context.instance().socket(zmq.DEALER)
        other.connect(f"ipc://{short_path}/again")
        other.send_multipart(parts)
    tokens, _ = complete(server, make_prompts(1)[0])
    until(lambda: router.catch_up() or router.blocks, "nothing is replayed")
    assert router.chain(tokens) == len(tokens) // 16 * 16


def refused(folder, *flags, env: dict | None = None) -> str:
    done = subprocess.run([str(BIN_DIR / "quire"), "serve", "tiny", "--port", "0", *flags], cwd=folder, text=True,
                          capture_output=True, timeout=120, env={"QUIRE_HOME": str(folder / "home")} | (env or {}))
    assert done.returncode != 0
    return done.stderr


def test_what_cannot_be_published_is_refused_with_a_sentence(folder, short_path):
    on = '{"enable_kv_cache_events": true, "endpoint": "%s"}'
    assert "cannot listen on 'ipc:///nowhere/at/all'" in refused(folder, "--kv-events-config", on % "ipc:///nowhere/at/all")
    assert "cannot connect to 'tcp://nonsense'" in refused(folder, "--kv-events-config", on % "tcp://nonsense")
    assert "no field 'topics'" in refused(folder, "--kv-events-config", '{"topics": "x"}')
    assert "install the package libzmq5" in refused(folder, "--kv-events-config", on % "tcp://*:*",
                                                    env={"QUIRE_LIBZMQ": "libnowhere.so"})
