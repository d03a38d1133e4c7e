# SPDX-License-Identifier: Apache-2.0
"""Measures how well-formed but greedy requests affect other clients, by timing a small request beside each of them.

Usage: python bench/abuse.py --model MODEL [--seconds 60 | --attacks N] [--connections 100] [--limit 3] [--anonymous]

The greedy requests are at the limits of the API: many prompts times n, and every list, text, number and object of every
endpoint (from /openapi.json) at a large size, sent over many connections at once, with and without a key. Meanwhile another
client, with its own key, repeats a small request. Checked: the server survives and responds with 200, a 4xx or 503; the small
request always succeeds; memory is freed once the greedy clients have disconnected; SIGTERM during the attack ends the server
within its limit with exit code 0. KV pages keep their memory once they were
written, so give the server few of them (--serve-args --kv-cache-memory-bytes 64MiB), or let it run until it has used all. With --limit the small request must also
take at most that many times as long as alone, plus one step. Standard library only; Linux.
"""

import argparse
import asyncio
import collections
import json
import pathlib
import random
import statistics
import sys
import tempfile
import time

from soak import ROOT, Process

SMALL = {"prompt": "The sky is", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
CROWDS = {
    "n": {"prompt": "a", "n": 16384, "max_tokens": 64, "temperature": 1},
    "prompts times n": {"prompt": ["a"] * 1024, "n": 16, "max_tokens": 64, "temperature": 1},
    "more sequences than allowed": {"prompt": ["a"] * 1024, "n": 4000, "max_tokens": 1, "temperature": 1},
    "long stop strings": {"prompt": "a", "n": 2000, "stop": ["x" * 4096] * 4, "temperature": 1},
    "longer stop strings": {"prompt": "a", "n": 2000, "stop": ["x" * 1000000] * 4, "temperature": 1},
    "bad words": {"prompt": "a", "n": 200, "bad_words": [f"w{i}" for i in range(1024)], "temperature": 1},
    "more bad words": {"prompt": "a", "n": 200, "bad_words": [f"w{i}" for i in range(200000)], "temperature": 1},
    "logit bias": {"prompt": ["a"] * 1024, "n": 8, "logit_bias": {str(i): 1 for i in range(200)}, "temperature": 1},
    "long prompts": {"prompt": ["word " * 100] * 256, "max_tokens": 4},
    "token ids": {"prompt": [[5] * 100] * 1024, "max_tokens": 4},
    "logprobs": {"prompt": ["a b c"] * 512, "n": 16, "logprobs": 20, "max_tokens": 16, "temperature": 1},
    "streams": {"prompt": ["a"] * 64, "n": 8, "max_tokens": 64, "temperature": 1, "stream": True},
}
# Large values, made once.
TEXT = "x " * 500_000
LISTS = {"string": ["y" * 50] * 20_000, "integer": [7] * 200_000, "number": [1] * 200_000,
         "object": [{"role": "user", "content": "hi", "type": "text", "text": "hi"}] * 20_000}
OBJECT = {f"key{i}": 1 for i in range(150_000)}


def large_values(schema: dict) -> list:
    """Large values of the types that a property accepts."""
    if "anyOf" in schema:
        return [value for one in schema["anyOf"] for value in large_values(one)]
    kind = schema.get("type")
    if isinstance(kind, list):
        return [value for one in kind for value in large_values(schema | {"type": one})]
    match kind:
        case "string":
            return [TEXT]
        case "integer" | "number":
            return [schema.get("maximum", 1 << 40), schema.get("minimum", -(1 << 40))]
        case "array":
            kind = schema.get("items", {}).get("type")
            return [LISTS[kind]] if kind in LISTS else []
        case "object":
            return [OBJECT]
    return []


def requests_at_bounds(document: dict) -> dict[str, tuple[str, dict]]:
    """A request for each property of each endpoint with a body."""
    base = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "input": "a", "tokens": [5], "max_tokens": 8}
    out = {}
    for path, methods in document["paths"].items():
        try:
            reference = methods["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        except KeyError:
            continue
        properties = document["components"]["schemas"][reference.rsplit("/", 1)[1]]["properties"]
        for name, schema in properties.items():
            for number, value in enumerate(large_values(schema)):
                body = {key: base[key] for key in base if key in properties and not (path == "/tokenize" and key == "messages")}
                if "n" in properties:
                    body |= {"n": 200, "temperature": 1}
                out[f"{path} {name} {number}"] = (path, body | {name: value})
    return out


async def call(port: int, path: str, body: bytes, key: str, seconds: float) -> int:
    """The status; 0 if the client stopped waiting."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        authorization = f"Authorization: Bearer {key}\r\n" if key else ""
        writer.write((f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
                      f"{authorization}Content-Length: {len(body)}\r\n\r\n").encode() + body)
        async with asyncio.timeout(seconds):
            status = await reader.readline()
            while await reader.read(1 << 16):
                pass
        return int(status.split()[1]) if status else -1
    except TimeoutError:
        return 0
    except (ConnectionError, BrokenPipeError):
        return -1
    finally:
        writer.close()


class Abuse:
    def __init__(self, options, server: Process):
        self.options, self.server = options, server
        self.failures: list[str] = []
        self.alone = self.step = 0.0
        self.small = json.dumps(SMALL).encode()
        self.keys = ("", "") if options.anonymous else ("key-of-ada", "key-of-mallory")

    async def time_small(self) -> float:
        start = time.monotonic()
        status = await call(self.server.port, "/v1/completions", self.small, self.keys[0], 120)
        if status != 200:
            self.failures.append(f"the small request got {status}")
        return time.monotonic() - start

    async def baseline(self) -> None:
        await self.time_small()
        self.alone = statistics.median([await self.time_small() for _ in range(9)])

    async def attack(self, name: str, path: str, body: dict, key: str) -> None:
        text = json.dumps(body).encode()
        statuses: collections.Counter = collections.Counter()

        async def greedy() -> None:
            statuses[await call(self.server.port, path, text, key, self.options.patience)] += 1

        clients = [asyncio.create_task(greedy()) for _ in range(self.options.connections)]
        times = []
        while not all(client.done() for client in clients) or not times:
            times.append(await self.time_small())
        bad = [status for status in statuses if status == -1 or (status >= 500 and status != 503)]
        if bad:
            self.failures.append(f"{name}: greedy clients got {dict(statuses)}")
        worst = max(times) / self.alone
        print(f"{name:44} {self.options.connections} x {len(text):9,} bytes {dict(statuses)!s:28} small x{len(times):3}: "
              f"median {statistics.median(times) / self.alone:5.1f}, worst {worst:5.1f} times alone; "
              f"{self.server.memory_mb():6.0f} MB", flush=True)
        if self.options.limit and statistics.median(times) > self.options.limit * self.alone + self.options.step:
            self.failures.append(f"{name}: the small request took {statistics.median(times):.2f} s, alone {self.alone:.2f} s")

    async def memory_goes_back(self, before: float) -> None:
        # What stays by design: pages and scratch that were used for the first time, and what the allocator keeps of its arenas.
        allowed = 1.1 * before + 32
        end = time.monotonic() + 60
        while (now := self.server.memory_mb()) > allowed and time.monotonic() < end:
            await asyncio.sleep(0.5)
        print(f"memory: {before:.0f} MB before, {now:.0f} MB after")
        if now > allowed:
            self.failures.append(f"memory went from {before:.0f} MB to {now:.0f} MB and did not go back")

    async def run(self) -> int:
        document = json.loads(await asyncio.to_thread(self.fetch, "/openapi.json"))
        at_bounds = list(requests_at_bounds(document).items())
        random.Random(self.options.seed).shuffle(at_bounds)
        attacks = [(name, "/v1/completions", body) for name, body in CROWDS.items()]
        attacks += [(name, path, body) for name, (path, body) in at_bounds]
        await self.baseline()
        print(f"{len(attacks)} kinds of request; the small one alone takes {self.alone:.3f} s")
        warm = [{"prompt": [5 + i] * 100, "max_tokens": 8} for i in range(200)]  # memory of pages stays allocated once they are written
        await asyncio.gather(*(call(self.server.port, "/v1/completions", json.dumps(body).encode(), self.keys[0], 120)
                               for body in warm))
        for name, path, body in attacks[:3]:
            await self.attack(name, path, body, self.keys[1])
        await asyncio.sleep(3)
        before = self.server.memory_mb()
        end = time.monotonic() + self.options.seconds
        done = 0
        while not self.failures and (done < self.options.attacks if self.options.attacks else time.monotonic() < end):
            name, path, body = attacks[done % len(attacks)]
            key = "" if done // len(attacks) % 2 else self.keys[1]
            await self.attack(name, path, body, key)
            done += 1
        print(f"{done} attacks")
        await self.memory_goes_back(before)
        load = [asyncio.create_task(call(self.server.port, "/v1/completions", json.dumps(body).encode(), self.keys[1], 60))
                for body in CROWDS.values()]
        await asyncio.sleep(1)
        start = time.monotonic()
        code = await asyncio.to_thread(self.server.stop)
        seconds = time.monotonic() - start
        await asyncio.gather(*load, return_exceptions=True)
        print(f"SIGTERM under attack: exit code {code} after {seconds:.1f} s")
        if code != 0 or seconds > self.options.shutdown + 10:
            self.failures.append(f"SIGTERM: exit code {code} after {seconds:.1f} s")
        for failure in self.failures[:20]:
            print("FAILED:", failure)
        return 1 if self.failures else 0

    def fetch(self, path: str) -> bytes:
        import urllib.request
        with urllib.request.urlopen(f"http://127.0.0.1:{self.server.port}{path}", timeout=30) as answer:
            return answer.read()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--quire", type=pathlib.Path, default=ROOT / "build" / "quire")
    parser.add_argument("--seconds", type=float, default=60, help="duration of the test")
    parser.add_argument("--attacks", type=int, default=0, help="how many kinds of greedy requests are sent, instead of --seconds")
    parser.add_argument("--connections", type=int, default=100, help="number of concurrent greedy clients")
    parser.add_argument("--patience", type=float, default=3, help="seconds after which a greedy client disconnects")
    parser.add_argument("--limit", type=float, default=0, help="fail if the small request takes more than this multiple of its time alone")
    parser.add_argument("--step", type=float, default=0.5, help="seconds that a step may take in addition to --limit")
    parser.add_argument("--shutdown", type=int, default=5, help="the server's --shutdown-timeout")
    parser.add_argument("--anonymous", action="store_true", help="without keys, so that the server cannot tell clients apart")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--serve-args", nargs=argparse.REMAINDER, default=[], help="additional arguments for quire serve; must be last")
    options = parser.parse_args()
    with tempfile.NamedTemporaryFile("w", suffix=".json") as keys:
        json.dump({"keys": [{"name": name, "key": "key-of-" + name} for name in ("ada", "mallory")]}, keys)
        keys.flush()
        flags = [] if options.anonymous else ["--api-key-file", keys.name]
        server = Process(options.quire, options.model, "--shutdown-timeout", str(options.shutdown), *flags, *options.serve_args)
        try:
            return asyncio.run(Abuse(options, server).run())
        finally:
            server.process.kill()


if __name__ == "__main__":
    sys.exit(main())
