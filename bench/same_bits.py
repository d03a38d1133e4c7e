#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests with random traffic that a request gets the same bits alone and among others, on any device.

    python3 bench/same_bits.py --model FOLDER [--load-format dummy --tokenizer FOLDER] [--device cuda] [--requests 36]

Starts `quire serve`, sends each of the requests (random lengths, shared prefixes, settings with seeds) alone, and then all of
them at once, several times, in random order: as a whole or as streams, some of which are closed early. Then it does the same with
other flags: page size, chunks, no prefix cache, no async scheduling, too few pages. Tokens, texts and logprobs are compared to the
last digit; a stream that was closed early must be a prefix of the answer. Exits 1 with the first difference.
Arguments after `--` go to every server. Standard library only.
"""

import argparse
import concurrent.futures
import contextlib
import http.client
import json
import pathlib
import random
import sys
import threading
import time
import urllib.parse
import urllib.request

import serving

SETTINGS = [{"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.05}, {"repetition_penalty": 1.3}, {"presence_penalty": 0.7, "frequency_penalty": -0.3},
            {"logit_bias": {"40": 3, "41": -3}}, {"min_tokens": 2}, {"n": 2}]


class Different(Exception):
    pass


def make_requests(args, vocabulary, longest):
    """Half of the prompts share a prefix with another one. There are many short prompts and a few long ones."""
    draw = random.Random(args.seed)
    prefixes = [[draw.randrange(vocabulary) for _ in range(longest)] for _ in range(3)]
    requests = []
    for number in range(args.requests):
        length = max(1, int(longest ** draw.random()))
        shared = draw.choice(prefixes)[:draw.randrange(length)] if draw.random() < 0.5 else []
        body = {"prompt": shared + [draw.randrange(vocabulary) for _ in range(length - len(shared))], "seed": number,
                "max_tokens": draw.randrange(1, args.most_tokens + 1), "temperature": draw.choice([0, 0.7, 1, 1.3]), "logprobs": draw.choice([0, 3, 5]),
                "ignore_eos": draw.random() < 0.8, "return_token_ids": True}
        for setting in SETTINGS:
            if draw.random() < 0.2:
                body |= setting
        if body["temperature"] == 0:
            body.pop("n", None)
        body["min_tokens"] = min(body.get("min_tokens", 0), body["max_tokens"])
        requests.append(body)
    return requests


def connect(url):
    return contextlib.closing(http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=900))


def post(connection, model, body):
    connection.request("POST", "/v1/completions", json.dumps(body | {"model": model}), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    if reply.status != 200:
        raise Different(f"the server answered {reply.status}: {reply.read()[:500].decode(errors='replace')}")
    return reply


def new_answer():
    return {"tokens": [], "text": "", "logprobs": {}, "finish": None}


def add_choice(answer, choice):
    answer["tokens"] += choice.get("token_ids") or []
    answer["text"] += choice["text"]
    for name, values in (choice.get("logprobs") or {}).items():
        answer["logprobs"].setdefault(name, []).extend(values)
    answer["finish"] = choice.get("finish_reason") or answer["finish"]


def ask(url, model, body):
    """The answers of one request, one for each of its `n`."""
    answers = [new_answer() for _ in range(body.get("n", 1))]
    with connect(url) as connection:
        for choice in json.load(post(connection, model, body))["choices"]:
            add_choice(answers[choice["index"]], choice)
    return answers


def ask_streaming(url, model, body, patience=None):
    """The same as a stream; with `patience`, the client disconnects after that many pieces, and the answers are incomplete."""
    answers = [new_answer() for _ in range(body.get("n", 1))]
    pieces = 0
    with connect(url) as connection:
        for line in post(connection, model, body | {"stream": True}):
            if not line.startswith(b"data: {"):
                continue
            piece = json.loads(line[6:])
            if "error" in piece:
                raise Different(f"a stream ended with an error: {piece['error']}")
            for choice in piece["choices"]:
                add_choice(answers[choice["index"]], choice)
            pieces += 1
            if pieces == patience:
                break
    return answers


def shown(answer, at):
    chosen = answer["logprobs"].get("token_logprobs", [])
    return f"token {answer['tokens'][at] if at < len(answer['tokens']) else 'none'} with logprob {chosen[at] if at < len(chosen) else 'none'}"


def first_difference(alone, crowd, whole):
    """Where two answers differ, or None; unless `whole`, the second one may be a prefix."""
    lists = [("tokens", alone["tokens"], crowd["tokens"])]
    lists += [(name, values, crowd["logprobs"].get(name, [])) for name, values in alone["logprobs"].items()]
    for name, a, b in lists:
        shared = min(len(a), len(b))
        at = next((i for i in range(shared) if a[i] != b[i]), shared)
        if at < shared or len(b) > len(a) or (whole and len(a) != len(b)):
            return f"{name}, place {at}: alone {shown(alone, at)}, in the crowd {shown(crowd, at)}"
    if alone["text"] != crowd["text"] if whole else not alone["text"].startswith(crowd["text"]):
        return f"the text: alone {alone['text']!r}, in the crowd {crowd['text']!r}"
    if whole and alone["finish"] != crowd["finish"]:
        return f"the end: alone {alone['finish']}, in the crowd {crowd['finish']}"
    return None


def compare(number, body, alone, crowd, whole, how):
    for child, (a, b) in enumerate(zip(alone, crowd, strict=True)):
        if wrong := first_difference(a, b, whole):
            settings = {name: value for name, value in body.items() if name != "prompt"}
            raise Different(f"request {number} ({len(body['prompt'])} tokens, {settings}), {how}, answer {child}: {wrong}")


class Crowd:
    """All requests at once, each several times; a visit is a request and the behaviour of its client."""

    def __init__(self, args, url, model, requests, alone, draw):
        self.args, self.url, self.model, self.requests, self.alone = args, url, model, requests, alone
        self.visits = [(number, draw.choice(["whole", "stream", "stream", "leaves"]), draw.randrange(1, 6), draw.random() * args.spread)
                       for number in list(range(len(requests))) * args.copies]
        draw.shuffle(self.visits)
        self.counts = {"whole": 0, "stream": 0, "leaves": 0}
        self.lock = threading.Lock()

    def visit(self, number, how, patience, delay):
        time.sleep(delay)
        body = self.requests[number]
        if how == "whole":
            answers = ask(self.url, self.model, body)
        else:
            answers = ask_streaming(self.url, self.model, body, patience if how == "leaves" else None)
        compare(number, body, self.alone[number], answers, how != "leaves", f"{how} in the crowd")
        with self.lock:
            self.counts[how] += 1

    def run(self):
        with concurrent.futures.ThreadPoolExecutor(self.args.concurrency) as pool:
            running = [pool.submit(self.visit, *visit) for visit in self.visits]
            try:
                for done in concurrent.futures.as_completed(running):
                    done.result()
            except BaseException:
                for one in running:
                    one.cancel()
                raise
        return self.counts


def describe_model(url, args):
    with urllib.request.urlopen(url + "/v1/models", timeout=60) as reply:
        model = json.load(reply)["data"][0]
    config = pathlib.Path(args.model) / "config.json" if pathlib.Path(args.model).is_dir() else pathlib.Path(args.model)
    vocabulary = args.vocabulary
    if vocabulary is None and config.suffix == ".json":
        vocabulary = json.loads(config.read_text()).get("vocab_size")
    return model["id"], vocabulary or 200, model["max_model_len"]


def other_servers(args, context):
    """Settings that must not change an answer. The last one has few pages more than the longest request needs, so that others are preempted."""
    servers = [("--max-num-batched-tokens", 512, "--block-size", 32, "--no-enable-prefix-caching"),
               ("--no-async-scheduling", "--max-num-seqs", 7)]
    pages = context // 16 + 4 if args.few_pages is None else args.few_pages
    if pages > 0:
        servers.append(("--num-gpu-blocks-override", pages, "--block-size", 16, "--max-num-batched-tokens", 256, "--max-num-seqs", 32))
    return servers


def preemptions(url):
    with urllib.request.urlopen(url + "/metrics", timeout=60) as reply:
        return sum(float(line.rsplit(b" ", 1)[1]) for line in reply if line.startswith(b"vllm:num_preemptions_total"))


class Check:
    def __init__(self, args):
        self.args, self.draw = args, random.Random(args.seed + 1)
        self.flags = ["--device", args.device, "--load-format", args.load_format]
        for flag, value in (("--tokenizer", args.tokenizer), ("--max-model-len", args.max_model_len)):
            self.flags += [flag, value] if value else []
        self.flags += args.flags
        self.model, self.requests, self.alone = "", [], []

    def crowd(self, url, named):
        try:
            counts = Crowd(self.args, url, self.model, self.requests, self.alone, self.draw).run()
        except Different as wrong:
            raise Different(f"{named}: {wrong}") from None
        print(f"{named}: {counts['whole']} whole, {counts['stream']} streams, {counts['leaves']} left early, {preemptions(url):.0f} preempted: the same",
              flush=True)

    def run(self):
        args = self.args
        with serving.server(args.quire, args.model, *self.flags) as (url, _):
            self.model, vocabulary, context = describe_model(url, args)
            longest = min(args.longest, context - args.most_tokens - 1)
            if longest < 1:
                sys.exit(f"the model's context is too short for --most-tokens {args.most_tokens}; give a smaller one")
            self.requests = make_requests(args, vocabulary, longest)
            self.alone = [ask(url, self.model, body) for body in self.requests]
            tokens = sum(len(answer["tokens"]) for answers in self.alone for answer in answers)
            print(f"alone: {len(self.alone)} requests, {tokens} tokens", flush=True)
            self.crowd(url, "default flags")
        for more in other_servers(args, context):
            with serving.server(args.quire, args.model, *self.flags, *more) as (url, _):
                self.crowd(url, " ".join(map(str, more)))


def main():
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", default=serving.ROOT / "build" / "quire", type=pathlib.Path)
    parser.add_argument("--model", required=True, help="a folder or file, as for quire serve")
    parser.add_argument("--load-format", default="auto", help="dummy: random weights for a config.json")
    parser.add_argument("--tokenizer", help="a folder, if the model has none")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--requests", type=int, default=36)
    parser.add_argument("--copies", type=int, default=3, help="how often each request is sent concurrently")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--spread", type=float, default=0.5, help="seconds over which clients arrive")
    parser.add_argument("--longest", type=int, default=3500, help="maximum tokens of a prompt")
    parser.add_argument("--most-tokens", type=int, default=96, help="maximum tokens of an answer")
    parser.add_argument("--max-model-len", type=int, help="of all servers; a few thousand make the last server short of pages")
    parser.add_argument("--few-pages", type=int, help="pages of the last server; default: enough for one request of the full length; 0 skips that server")
    parser.add_argument("--vocabulary", type=int, help="prompts have ids below it; default: the vocabulary of config.json, else 200")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(words[:cut])
    args.flags = words[cut + 1:]
    try:
        Check(args).run()
    except Different as wrong:
        sys.exit(f"different: {wrong}")


if __name__ == "__main__":
    main()
