# SPDX-License-Identifier: Apache-2.0
"""A soak test of `quire serve`: thousands of requests from good and bad clients, with too few KV cache pages.

Usage: python bench/soak.py --model FOLDER [--requests 20000] [--concurrency 64] [--idle 1000]

Most requests are normal, streamed or not; some clients disconnect early, read slowly, half-close their socket, truncate
their body or send garbage; a thousand connections stay idle all the time. Checked: every complete answer equals that of the
same request alone; pages, file descriptors and memory stay constant once warm; at the end, SIGTERM under load gives exit
code 0. With a tiny model, an hour's worth of requests takes minutes (tools/goldens/export.py makes one).
Standard library only; Linux.
"""

import argparse
import asyncio
import collections
import json
import pathlib
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]


class Process:
    """The server, its address, and its memory and open files."""

    def __init__(self, quire: pathlib.Path, model: str, *flags: str):
        self.process = subprocess.Popen([str(quire), "serve", model, "--port", "0", "--disable-uvicorn-access-log", *flags],
                                        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.port = 0
        for line in self.process.stderr:
            if found := re.search(r"Serving .* at http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found.group(1))
                break
        else:
            sys.exit("the server did not start")
        # Its log continues and must not fill the pipe.
        threading.Thread(target=lambda: collections.deque(self.process.stderr, maxlen=0), daemon=True).start()

    def memory_mb(self) -> float:
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024

    def files(self) -> int:
        return len(list(pathlib.Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


def make_body(rng: random.Random) -> dict:
    family = rng.randrange(4)
    shared = [3 + (i * 7 + family * 31) % 200 for i in range(rng.randrange(60))]
    return {"prompt": shared + [3 + rng.randrange(200) for _ in range(1 + rng.randrange(20))], "logprobs": 1,
            "max_tokens": 1 + rng.randrange(60), "seed": rng.randrange(1 << 30), "temperature": rng.choice([0, 1]),
            "ignore_eos": True, "return_token_ids": True}


def head(body: bytes, more: str = "") -> bytes:
    return (f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{more}"
            f"Content-Length: {len(body)}\r\n\r\n").encode()


async def read_reply(reader: asyncio.StreamReader) -> bytes:
    """Checks status line and headers; returns the whole body."""
    status = await reader.readline()
    length, chunked = None, False
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode().partition(":")
        if name.lower() == "content-length":
            length = int(value)
        chunked = chunked or (name.lower() == "transfer-encoding" and "chunked" in value)
    if b" 200 " not in status:
        raise RuntimeError(status.decode().strip() + " " + (await reader.readexactly(length or 0)).decode()[:200])
    if length is not None:
        return await reader.readexactly(length)
    body = b""
    while chunked:
        size = int(await reader.readline(), 16)
        body += (await reader.readexactly(size + 2))[:size]
        if size == 0:
            break
    return body


def essence(body: bytes, stream: bool) -> list:
    """Token ids and logprobs of a whole answer or of its events."""
    answers = [json.loads(body)] if not stream else [
        json.loads(event[6:]) for event in body.decode().split("\n\n") if event.startswith("data: {")]
    tokens, logprobs = [], []
    for answer in answers:
        tokens += answer["choices"][0]["token_ids"]
        logprobs += answer["choices"][0]["logprobs"]["token_logprobs"]
    return [tokens, logprobs]


class Soak:
    def __init__(self, options, server: Process):
        self.options, self.server = options, server
        self.rng = random.Random(options.seed)
        self.bodies = [make_body(self.rng) for _ in range(options.distinct)]
        self.expected: list = [None] * len(self.bodies)
        self.left = options.requests
        self.counts: dict[str, int] = {}
        self.wrong: list[str] = []

    async def ask(self, index: int, stream: bool, connection=None) -> list:
        body = json.dumps(self.bodies[index] | {"stream": stream}).encode()
        reader, writer = connection or await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(head(body) + body)
        answer = essence(await read_reply(reader), stream)
        if connection is None:
            writer.close()
        return answer

    async def alone(self) -> None:
        for index in range(len(self.bodies)):
            self.expected[index] = await self.ask(index, False)

    async def bad(self, kind: str, index: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        body = json.dumps(self.bodies[index] | {"stream": True, "max_tokens": 60}).encode()
        if kind == "vanish":
            writer.write(head(body) + body)
            await reader.read(200)
        elif kind == "reset":
            writer.write(head(body) + body)
            await reader.read(200)
            writer.transport.abort()
        elif kind == "slow":
            writer.write(head(body) + body)
            while await reader.read(64):
                await asyncio.sleep(0.005)
                if self.rng.random() < 0.02:
                    break
        elif kind == "half-closed":
            writer.write(head(body, "Connection: close\r\n") + body)
            writer.write_eof()
            await reader.read()
        elif kind == "cut off":
            writer.write(head(body + b" " * 100) + body[:20])
        else:
            writer.write(bytes(self.rng.randrange(256) for _ in range(200)) + b"\r\n\r\n")
            await reader.read()
        writer.close()

    async def client(self) -> None:
        connection = None
        while self.left > 0:
            self.left -= 1
            index = self.rng.randrange(len(self.bodies))
            kind = self.rng.choices(["whole", "stream", "vanish", "reset", "slow", "half-closed", "cut off", "garbage"],
                                    [50, 30, 6, 4, 2, 3, 2, 3])[0]
            self.counts[kind] = self.counts.get(kind, 0) + 1
            try:
                if kind in ("whole", "stream"):
                    if connection is None:
                        connection = await asyncio.open_connection("127.0.0.1", self.server.port)
                    answer = await self.ask(index, kind == "stream", connection)
                    if answer != self.expected[index]:
                        self.wrong.append(f"a {kind} answer to request {index} differs from the one given alone")
                    if self.rng.random() < 0.2:  # keep-alive, but not for ever
                        connection[1].close()
                        connection = None
                else:
                    await asyncio.wait_for(self.bad(kind, index), 60)
            except (ConnectionError, asyncio.IncompleteReadError, TimeoutError) as error:
                connection = None
                if kind in ("whole", "stream"):
                    self.wrong.append(f"a {kind} request failed: {error!r}")

    async def watch(self) -> list[tuple]:
        """Records (requests done, MB, files) periodically."""
        rows = []
        step = max(1, self.options.requests // 20)
        following = step
        while self.left > 0:
            await asyncio.sleep(0.2)
            done = self.options.requests - self.left
            if done >= following:
                rows.append((done, self.server.memory_mb(), self.server.files()))
                print(f"{done:8d} requests  {rows[-1][1]:8.1f} MB  {rows[-1][2]:6d} files", flush=True)
                following += step
        return rows

    async def metric(self, name: str) -> float:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        text = (await read_reply(reader)).decode()
        writer.close()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))

    async def run(self) -> int:
        await self.alone()
        idle = [await asyncio.open_connection("127.0.0.1", self.server.port) for _ in range(self.options.idle)]
        start = time.monotonic()
        watcher = asyncio.create_task(self.watch())
        await asyncio.gather(*(self.client() for _ in range(self.options.concurrency)))
        rows = await watcher
        seconds = time.monotonic() - start
        for _ in range(200):
            if await self.metric("vllm:num_requests_running") == 0 and await self.metric("vllm:kv_cache_usage_perc") == 0:
                break
            await asyncio.sleep(0.1)
        usage, running = await self.metric("vllm:kv_cache_usage_perc"), await self.metric("vllm:num_requests_running")
        preempted = await self.metric("vllm:num_preemptions_total")
        print(f"{self.options.requests} requests in {seconds:.0f} s: {self.counts}; {preempted:.0f} preemptions")
        failures = list(self.wrong[:10])
        if usage != 0 or running != 0:
            failures.append(f"{running:.0f} requests run and {usage:.1%} of the pages are in use when all clients are gone")
        if preempted == 0:
            failures.append("nothing was preempted: the pool of pages was not small enough to test anything")
        warm = rows[len(rows) // 4:]
        if len(warm) > 1:
            growth = warm[-1][1] - warm[0][1]
            print(f"memory once warm: {warm[0][1]:.1f} MB, at the end {warm[-1][1]:.1f} MB")
            if growth > 0.05 * warm[0][1] + 4:
                failures.append(f"memory grew by {growth:.1f} MB once warm")
        for _, writer in idle:
            writer.close()
        await asyncio.sleep(1)
        files = self.server.files()
        print(f"files open when all clients are gone: {files}")
        if files > 60:
            failures.append(f"{files} files are open when all clients are gone")
        # SIGTERM under load: answers finish or are aborted, and the exit code is 0.
        self.left = 10**9
        load = [asyncio.create_task(self.client()) for _ in range(self.options.concurrency)]
        await asyncio.sleep(1)
        code = await asyncio.to_thread(self.server.stop)
        self.left = 0
        for task in load:
            task.cancel()
        await asyncio.gather(*load, return_exceptions=True)
        print(f"SIGTERM under load: exit code {code}")
        if code != 0:
            failures.append(f"the exit code after SIGTERM was {code}")
        for failure in failures:
            print("FAILED:", failure)
        return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--quire", type=pathlib.Path, default=ROOT / "build" / "quire")
    parser.add_argument("--requests", type=int, default=20000)
    parser.add_argument("--distinct", type=int, default=400, help="different requests among them")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--idle", type=int, default=1000, help="number of idle connections")
    parser.add_argument("--pages", type=int, default=48, help="of the KV cache; recurrent models with speculation need more")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--serve-args", nargs=argparse.REMAINDER, default=[], help="additional arguments for quire serve; must be last")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    server = Process(options.quire, options.model, "--max-model-len", "192", "--num-gpu-blocks-override", str(options.pages), "--threads", "1",
                     "--max-num-seqs", "32", "--max-num-batched-tokens", "128", "--header-timeout", "0",
                     "--keep-alive-timeout", "0", "--body-timeout", "5", *options.serve_args)
    try:
        return asyncio.run(Soak(options, server).run())
    finally:
        server.process.kill()


if __name__ == "__main__":
    sys.exit(main())
