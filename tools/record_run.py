#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what tools/diagrams.py draws of a real run: the map of KV pages at some moments, and the blocks of a prefix tree.

usage: tools/record_run.py QUIRE MODEL    writes docs/img/run.json; MODEL is the default model, or another small one

Starts `QUIRE serve` with few pages, sends requests that share a beginning, and listens to /live and to the KV events.
A second server with a hybrid test model shows pages of several groups. Needs the packages of tests/requirements.txt.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

import httpx
import msgspec
import zmq

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tools.goldens import export  # noqa: E402

SYSTEM = ("You are a librarian who knows how books are made. A quire is a set of sheets of paper that are folded together and "
          "sewn; several quires make a book. Answer each question in plain words, and say where the words come from.")
QUESTIONS = ["What is a folio?", "How is paper made?", "Who binds books?", "What is a ream?", "Why is it called a page?",
             "What is vellum?"]


class Run:
    """A server, and every state that its live view has shown."""

    def __init__(self, quire, model, *flags):
        self.process = subprocess.Popen([quire, "serve", str(model), "--port", "0", *flags], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"Serving .* at (http\S+)", line):
                break
        else:
            raise SystemExit("the server did not start")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        self.url = found.group(1)
        self.http = httpx.Client(base_url=self.url, timeout=600)
        self.events = []
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        with httpx.stream("GET", self.url + "/live", timeout=600) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    self.events.append(json.loads(line[6:]))

    def chat(self, question, tokens):
        return self.http.post("/v1/chat/completions", json={
            "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
            "max_tokens": tokens, "ignore_eos": True, "temperature": 0}).raise_for_status().json()

    def wait(self, condition, what):
        """The first state from now on that meets a condition."""
        at, end = max(0, len(self.events) - 1), time.monotonic() + 200
        while time.monotonic() < end:
            while at < len(self.events):
                if condition(self.events[at]):
                    return self.events[at]
                at += 1
            time.sleep(0.02)
        raise SystemExit("never seen: " + what)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def moment(event, title):
    """What a picture needs of a state. Owners are numbered by the requests' own keys, so that colours stay."""
    runs, cells, keys = event["pages"]["cells"], [], [one["key"] for one in event["requests"]]
    for code, count in zip(runs[::2], runs[1::2]):
        owner = keys[(code >> 10) - 1] if code >> 10 else -1
        cells += [["free", "cached", "used", "shared"][code & 3] + (":%d:%d" % (code >> 2 & 255, owner) if code & 3 else "")] * count
    return {"title": title, "cells": cells, "kinds": [group["kind"] for group in event["pages"]["groups"]]}


def blocks_of(run, socket):
    """The blocks that were stored, with their texts, from the KV events of the run."""
    found, kept = {}, {}
    socket.send_multipart([b"", (0).to_bytes(8, "big")])
    while (parts := socket.recv_multipart())[2] != b"\xff" * 8:
        for event in msgspec.msgpack.decode(parts[3])[1]:
            parent, size = event.get("parent_block_hash"), event.get("block_size", 0)
            for i, block in enumerate(event["block_hashes"] if event["type"] == "BlockStored" else []):
                found[block] = (parent, event["token_ids"][i * size:(i + 1) * size])
                parent = block
    for block, (parent, tokens) in found.items():
        text = run.http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
        kept["%016x" % block] = {"parent": None if parent is None else "%016x" % parent, "text": text}
    return kept


def record_maps(quire, model):
    run = Run(quire, model, "--max-model-len", "512", "--num-gpu-blocks-override", "41")
    run.wait(lambda event: event["running"] == 0, "an idle server")
    threads = [threading.Thread(target=run.chat, args=(question, 150)) for question in QUESTIONS]
    threads[0].start()
    # Pages are published when they are full, and a page is shared once another request has found it.
    moments = [moment(run.wait(lambda e: e["running"] == 1 and e["requests"][0]["state"] == "decode", "one request"),
                      "one request")]
    for thread in threads[1:3]:
        thread.start()
    moments.append(moment(run.wait(lambda e: e["running"] == 3 and sum(g["shared"] for g in e["pages"]["groups"]) > 2,
                                   "shared pages"), "two more with the same beginning"))
    for thread in threads[3:]:
        thread.start()
    moments.append(moment(run.wait(lambda e: any(r["state"] == "preempted" for r in e["requests"]) and e["pages"]["free"] < 6,
                                   "a preemption"), "six: pages ran out, and one was preempted"))
    for thread in threads:
        thread.join()
    moments.append(moment(run.wait(lambda e: e["running"] == 0 and e["waiting"] == 0, "the end"), "all have ended"))
    run.stop()
    return moments


def record_groups(quire, folder):
    export.main(["--case", "qwen3-next", "--out", str(folder / "hybrid")])
    run = Run(quire, folder / "hybrid", "--max-model-len", "512", "--num-gpu-blocks-override", "60")
    stop = threading.Event()

    def ask(first):
        while not stop.is_set():
            run.http.post("/v1/completions", json={"prompt": [first, *range(5, 200)], "max_tokens": 200, "ignore_eos": True})

    threads = [threading.Thread(target=ask, args=(first,)) for first in (3, 4)]
    for thread in threads:
        thread.start()
    state = run.wait(lambda e: e["running"] == 2 and all(r["state"] == "decode" for r in e["requests"]), "two requests")
    stop.set()
    for thread in threads:
        thread.join()
    run.stop()
    return moment(state, "two requests of a hybrid model")


def record_blocks(quire, model, folder):
    replay = "ipc://%s/replay" % folder
    config = {"enable_kv_cache_events": True, "endpoint": "ipc://%s/events" % folder, "replay_endpoint": replay}
    run = Run(quire, model, "--max-model-len", "512", "--num-gpu-blocks-override", "41", "--kv-events-config", json.dumps(config))
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.connect(replay)
    for question in QUESTIONS[:3]:
        run.chat(question, 20)
    blocks = blocks_of(run, socket)
    run.stop()
    return blocks


def main(quire, model):
    with tempfile.TemporaryDirectory(prefix="r") as name:
        folder = pathlib.Path(name)
        out = {"model": pathlib.Path(model).name, "maps": record_maps(quire, model), "groups": record_groups(quire, folder),
               "blocks": record_blocks(quire, model, folder)}
    (ROOT / "docs/img/run.json").write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(sys.argv[1], sys.argv[2])
