# SPDX-License-Identifier: Apache-2.0
"""KV pages on disk: they survive restarts and kill -9, and no answer ever differs from that of a server without them."""

import os
import random
import shutil
import signal
import threading
import time

import httpx

from test_lora import write_peft
from test_same_bits import FIELDS, essence, make_request

KILLS = int(os.environ.get("QUIRE_OFFLOAD_KILLS", "4"))  # 50 by hand
FEW_PAGES = ("--max-model-len", 256, "--num-gpu-blocks-override", 40)


def tier(folder, size="64MiB", pages=40):
    return ("--max-model-len", 256, "--num-gpu-blocks-override", pages, "--kv-offload-dir", folder, "--kv-offload-size", size)


def page_files(folder):
    return sorted(folder.rglob("*.kv"))


def wait_for(condition, what):
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError(what)


def long_requests(seed: int, count: int) -> list[dict]:
    rng = random.Random(seed)
    prefixes = [[rng.randrange(3, 250) for _ in range(80)] for _ in range(4)]
    return [make_request(rng, prefixes) for _ in range(count)]


def test_a_prefix_is_restored_after_a_restart(start, tmp_path):
    body = {"prompt": [7 * i % 240 + 3 for i in range(100)], "max_tokens": 8, "temperature": 0} | FIELDS
    first = start("tiny", *tier(tmp_path / "pages"))
    answer = first.ok("/v1/completions", body)
    wait_for(lambda: first.metric("quire:kv_offload_pages_total", tier="disk", direction="write") >= 6, first.log)
    assert first.metric("quire:kv_offload_files") == len(page_files(tmp_path / "pages"))
    first.process.kill()
    first.process.wait()
    second = start("tiny", *tier(tmp_path / "pages"))
    again = second.ok("/v1/completions", body)
    assert essence(again) == essence(answer)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
    assert second.metric("vllm:external_prefix_cache_hits_total") == 96
    assert second.metric("vllm:external_prefix_cache_queries_total") == 100
    assert second.metric("vllm:prefix_cache_hits_total") == 0
    assert second.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == 96
    assert second.metric("vllm:prompt_tokens_cached_by_source_total", source="disk") == 96
    assert second.metric("quire:kv_offload_pages_total", tier="disk", direction="read") == 6
    assert second.metric("quire:kv_offload_bytes_total", direction="read") > 0
    # Now it is in the cache; another user's salt keeps it apart.
    assert second.ok("/v1/completions", body)["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
    assert second.metric("vllm:prefix_cache_hits_total") == 96
    salted = second.ok("/v1/completions", body | {"cache_salt": "other"})
    assert not (salted["usage"].get("prompt_tokens_details") or {}).get("cached_tokens")
    assert essence(salted) == essence(answer)
    assert second.stop() == 0


def test_kill_at_random_moments(start, tmp_path):
    """A loaded server is killed again and again; it always starts, and answers as a server without a tier does."""
    rng = random.Random(int(os.environ.get("QUIRE_OFFLOAD_SEED", "3")))
    bodies = long_requests(5, 40)
    plain = start("tiny", *FEW_PAGES)
    truth = [essence(plain.ok("/v1/completions", body)) for body in bodies]
    assert plain.stop() == 0
    compared = restored = 0

    def load(url, stop):
        mine = random.Random(rng.random())
        with httpx.Client(base_url=url, timeout=60) as client:
            while not stop.is_set():
                i = mine.randrange(len(bodies))
                try:
                    answer = client.post("/v1/completions", json=bodies[i])
                except httpx.HTTPError:
                    return  # it was killed
                wrong.extend([] if essence(answer.json()) == truth[i] else [(i, answer.json())])
                counted.append(i)

    for kill in range(KILLS):
        server = start("tiny", *tier(tmp_path / "pages", "600K" if kill % 2 else "64MiB"))
        wrong, counted, stop = [], [], threading.Event()
        clients = [threading.Thread(target=load, args=(server.url, stop)) for _ in range(6)]
        for client in clients:
            client.start()
        time.sleep(rng.random() * 0.8)
        if rng.random() < 0.3 and page_files(tmp_path / "pages"):  # damage some files, too
            for file in rng.sample(page_files(tmp_path / "pages"), 1):
                data = bytearray(file.read_bytes() if file.exists() else b"")
                if data:
                    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                    file.write_bytes(data)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        stop.set()
        for client in clients:
            client.join()
        assert not wrong, wrong
        compared += len(counted)
    survivor = start("tiny", *tier(tmp_path / "pages"))
    for body, wanted in zip(bodies, truth):
        assert essence(survivor.ok("/v1/completions", body)) == wanted, body
    restored = survivor.metric("vllm:external_prefix_cache_hits_total")
    assert restored > 0 and compared > 0
    print(f"{KILLS} kills, {compared} answers under load compared, {restored:.0f} tokens restored at the end")
    assert survivor.stop() == 0


def test_flipped_bits_are_noticed(start, tmp_path):
    bodies = [body | {"prompt": body["prompt"][:60] + [9] * 20} for body in long_requests(8, 6)]
    first = start("tiny", *tier(tmp_path / "pages"))
    truth = [essence(first.ok("/v1/completions", body)) for body in bodies]
    assert first.stop() == 0, "what is queued is written before the end"
    files = page_files(tmp_path / "pages")
    assert len(files) > 10
    rng = random.Random(1)
    for file in files:
        data = bytearray(file.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data)
    second = start("tiny", *tier(tmp_path / "pages", pages=400))  # so many that nothing is evicted and restored here
    assert [essence(second.ok("/v1/completions", body)) for body in bodies] == truth
    assert second.metric("vllm:external_prefix_cache_hits_total") == 0
    assert second.metric("quire:kv_offload_refused_files_total") > 0
    assert " is ignored: " in second.log
    assert second.stop() == 0


def test_two_servers_on_one_folder(start, tmp_path):
    body = {"prompt": list(range(5, 105)), "max_tokens": 4, "temperature": 0} | FIELDS
    first = start("tiny", *tier(tmp_path / "pages"))
    answer = essence(first.ok("/v1/completions", body))
    wait_for(lambda: len(page_files(tmp_path / "pages")) >= 6, first.log)
    second = start("tiny", *tier(tmp_path / "pages"))
    assert "another server writes to" in second.log
    assert essence(second.ok("/v1/completions", body)) == answer
    assert second.metric("vllm:external_prefix_cache_hits_total") == 96
    second.ok("/v1/completions", body | {"prompt": list(range(105, 205))})
    assert second.stop() == 0
    assert len(page_files(tmp_path / "pages")) == first.metric("quire:kv_offload_files")
    assert first.stop() == 0


def test_pages_of_other_weights_or_settings_are_not_used(start, folder, tmp_path):
    body = {"prompt": list(range(5, 105)), "max_tokens": 4, "temperature": 0} | FIELDS
    first = start("tiny", *tier(tmp_path / "pages"))
    first.ok("/v1/completions", body)
    assert first.stop() == 0
    shutil.copytree(folder / "tiny", folder / "changed")
    [weights] = (folder / "changed").glob("*.safetensors")
    data = bytearray(weights.read_bytes())
    data[-4] ^= 1  # one bit of one weight
    weights.write_bytes(data)
    for model, flags in (("changed", ()), ("tiny", ("--block-size", 32)), ("tiny", ("--kv-cache-dtype", "float16")),
                         ("tiny", ("--cpu-isa", "portable"))):
        other = start(model, *tier(tmp_path / "pages"), *flags)
        plain = start(model, *FEW_PAGES, *flags)
        assert essence(other.ok("/v1/completions", body)) == essence(plain.ok("/v1/completions", body))
        assert other.metric("vllm:external_prefix_cache_hits_total") == 0, flags
        assert other.stop() == 0 and plain.stop() == 0


def test_a_folder_that_cannot_be_used_is_no_tier(start, tmp_path):
    (tmp_path / "file").write_text("")
    body = {"prompt": list(range(5, 105)), "max_tokens": 4, "temperature": 0} | FIELDS
    server = start("tiny", *tier(tmp_path / "file"))
    assert server.log.count("there is no disk tier") == 1
    server.ok("/v1/completions", body)
    assert server.stop() == 0
    vanishing = start("tiny", *tier(tmp_path / "pages"))
    wanted = essence(vanishing.ok("/v1/completions", body))
    wait_for(lambda: len(page_files(tmp_path / "pages")) >= 6, vanishing.log)
    shutil.rmtree(tmp_path / "pages")
    for seed in range(6):  # evicts the first prompt
        vanishing.ok("/v1/completions", body | {"prompt": [(seed + 3) * i % 240 + 3 for i in range(200)]})
    assert essence(vanishing.ok("/v1/completions", body)) == wanted
    wait_for(lambda: "no more pages are written" in vanishing.log, vanishing.log)
    assert vanishing.log.count("no more pages are written") == 1
    assert vanishing.stop() == 0


def test_pages_of_an_adapter_are_for_its_contents_alone(start, tmp_path):
    """The first adapter of every process has the same number, so that is no part of the key of a page."""
    body = {"model": "poet", "prompt": [7 * i % 240 + 3 for i in range(100)], "max_tokens": 8, "temperature": 0} | FIELDS
    answers, hits = [], []
    for seed in (0, 1, 0):
        poet = write_peft(tmp_path / f"poet-{seed}", seed=seed)
        server = start("tiny", *tier(tmp_path / "pages"), "--enable-lora", "--lora-modules", f"poet={poet}")
        answers.append(essence(server.ok("/v1/completions", body)))
        hits.append(server.metric("vllm:external_prefix_cache_hits_total"))
        assert server.stop() == 0
    assert hits == [0, 0, 96] and answers[0] == answers[2] != answers[1]
