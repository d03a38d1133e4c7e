# SPDX-License-Identifier: Apache-2.0
"""A crowd of good and bad clients against a real server: nothing leaks, nothing stops, no answer is wrong.

QUIRE_SOAK=20000 is the long form; by default the crowd is small enough for every run.
"""

import asyncio
import collections
import contextlib
import json
import os
import pathlib
import random
import signal
import socket
import struct
import time

VISITS = int(os.environ.get("QUIRE_SOAK", "1200"))
IDLE = 1000 if VISITS > 5000 else 300
AT_ONCE = 48
PROMPTS = [f"{word} {index}" for index, word in enumerate("the quick brown fox jumps over a lazy dog".split())]


def body_of(prompt: str, stream: bool = False, tokens: int = 12) -> dict:
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 2, "stream": stream,
            "ignore_eos": True}


def request_of(body: dict, *headers: str) -> bytes:
    data = json.dumps(body).encode()
    head = ["POST /v1/completions HTTP/1.1", "Host: test", "Content-Type: application/json",
            f"Content-Length: {len(data)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Reads one answer; an interim 100 before it is skipped."""
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        status = int(head.split(" ", 2)[1])
        if status >= 200:
            break
    headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
    if "content-length" in headers:
        return status, await reader.readexactly(int(headers["content-length"]))
    body = b""
    while size := int(await reader.readline(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return status, body


def streamed(body: bytes) -> tuple[str, list]:
    """Text and logprobs of a stream, put together."""
    events = [event[len("data: "):] for event in body.decode().split("\n\n") if event]
    assert events[-1] == "[DONE]", events[-1]
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    return ("".join(choice["text"] for choice in choices),
            [value for choice in choices for value in (choice["logprobs"] or {}).get("token_logprobs", [])])


def whole(body: bytes) -> tuple[str, list]:
    (choice,) = json.loads(body)["choices"]
    return choice["text"], choice["logprobs"]["token_logprobs"]


class Crowd:
    """Clients that arrive in a random order, AT_ONCE at a time; their results are counted."""

    def __init__(self, port: int, expected: dict[str, tuple[str, list]]):
        self.port = port
        self.expected = expected
        self.random = random.Random(4)
        self.met = collections.Counter()

    async def connect(self, receive_buffer: int = 0):
        made = socket.socket()
        if receive_buffer:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", self.port))
        return await asyncio.open_connection(sock=made, limit=1 << 20 if not receive_buffer else 1024)

    def leave(self, writer: asyncio.StreamWriter, reset: bool):
        if reset:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        else:
            writer.close()

    async def good(self):
        """Two requests on one connection, pipelined half of the time."""
        reader, writer = await self.connect()
        prompts = self.random.choices(PROMPTS, k=2)
        together = self.random.random() < 0.5
        for prompt in prompts:
            writer.write(request_of(body_of(prompt)))
            if not together:
                status, body = await read_answer(reader)
                assert status == 200 and whole(body) == self.expected[prompt]
        if together:
            for prompt in prompts:
                status, body = await read_answer(reader)
                assert status == 200 and whole(body) == self.expected[prompt]
        self.leave(writer, False)

    async def stream(self):
        reader, writer = await self.connect()
        prompt = self.random.choice(PROMPTS)
        writer.write(request_of(body_of(prompt, stream=True)))
        status, body = await read_answer(reader)
        assert status == 200 and streamed(body) == self.expected[prompt]
        self.leave(writer, False)

    async def half_closed(self):
        reader, writer = await self.connect()
        prompt = self.random.choice(PROMPTS)
        stream = self.random.random() < 0.5
        writer.write(request_of(body_of(prompt, stream)))
        writer.write_eof()
        status, body = await read_answer(reader)
        assert status == 200 and (streamed if stream else whole)(body) == self.expected[prompt]
        self.leave(writer, False)

    async def vanish(self):
        """Disconnects at once, or in the middle of a stream."""
        reader, writer = await self.connect()
        writer.write(request_of(body_of(self.random.choice(PROMPTS), stream=True, tokens=1000)))
        await writer.drain()
        if self.random.random() < 0.7:
            await reader.readexactly(self.random.randrange(1, 4000))
        self.leave(writer, self.random.random() < 0.5)

    async def slow(self):
        """Asks for much and reads nothing; the server disconnects it."""
        reader, writer = await self.connect(receive_buffer=4096)
        writer.transport.pause_reading()
        writer.write(request_of(body_of(self.random.choice(PROMPTS), stream=True, tokens=4000) | {"logprobs": 20}))
        await asyncio.sleep(self.random.uniform(0.5, 3))
        self.leave(writer, self.random.random() < 0.5)

    async def garbage(self):
        reader, writer = await self.connect()
        post = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
        start = self.random.choice([b"", b"GET / HTTP/1.1\r\nHost: x\r\n", post + b"Transfer-Encoding: chunked\r\n\r\n",
                                    request_of({"prompt": 1})])
        writer.write(start + self.random.randbytes(self.random.randrange(1, 3000)))
        with contextlib.suppress(OSError):  # it may have been disconnected already
            await writer.drain()
            if self.random.random() < 0.5:
                writer.write_eof()
            if self.random.random() < 0.5:
                await reader.read(1000)  # a refusal, or the end of the connection if the head is late
        self.leave(writer, self.random.random() < 0.5)

    async def unfinished(self):
        reader, writer = await self.connect()
        request = request_of(body_of("x"))
        writer.write(request[:self.random.randrange(1, len(request))])
        await writer.drain()
        self.leave(writer, self.random.random() < 0.5)

    async def visit(self):
        kinds = {self.good: 30, self.stream: 25, self.half_closed: 8, self.vanish: 20, self.slow: 1, self.garbage: 10,
                 self.unfinished: 6}
        kind = self.random.choices(list(kinds), list(kinds.values()))[0]
        await asyncio.wait_for(kind(), 120)
        self.met[kind.__name__] += 1

    async def come(self, count: int):
        left = iter(range(count))

        async def one_after_another():
            for _ in left:
                await self.visit()

        await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))


def descriptors(server) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def resident(server) -> int:
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmRSS"))


def settled(server, base: int):
    """Waits until nothing of the crowd is left in the server."""
    for _ in range(300):
        if (server.metric("vllm:num_requests_running") == server.metric("vllm:num_requests_waiting") == 0
                and descriptors(server) <= base):
            break
        time.sleep(0.1)
    assert server.metric("vllm:num_requests_running") == 0 and server.metric("vllm:num_requests_waiting") == 0
    assert server.metric("vllm:kv_cache_usage_perc") == 0
    assert descriptors(server) <= base


def test_a_crowd_leaves_nothing_behind(start):
    server = start("long", "--max-model-len", 4096, "--max-num-seqs", 16, "--kv-cache-memory-bytes", "8M",
                   "--write-timeout", 2, "--max-write-buffer-bytes", "256K", "--header-timeout", 2, "--body-timeout", 2,
                   "--disable-uvicorn-access-log")
    port = int(server.url.rsplit(":", 1)[1])
    expected = {prompt: whole(server.post("/v1/completions", body_of(prompt)).content) for prompt in PROMPTS}
    base = descriptors(server)

    crowd = Crowd(port, expected)
    asyncio.run(crowd.come(VISITS // 4))
    settled(server, base)
    before = resident(server)

    async def rest():
        idle = [await crowd.connect() for _ in range(IDLE)]
        await crowd.come(VISITS - VISITS // 4)
        for _, writer in idle:
            writer.close()

    asyncio.run(rest())
    settled(server, base)
    print(dict(crowd.met), "resident", before >> 20, "->", resident(server) >> 20, "MiB")
    assert sum(crowd.met.values()) == VISITS and min(crowd.met[kind] for kind in ("good", "slow", "vanish")) > 0
    assert resident(server) - before < 24 << 20, "memory grows with the visits"
    assert server.metric("vllm:request_success_total", finished_reason="abort") > 0
    for prompt in PROMPTS:
        assert whole(server.post("/v1/completions", body_of(prompt)).content) == expected[prompt]
    assert server.stop() == 0, server.log


def test_sigterm_in_a_crowd_finishes_the_answers_and_exits_0(start):
    server = start("long", "--max-model-len", 4096, "--shutdown-timeout", 60)
    port = int(server.url.rsplit(":", 1)[1])
    prompt = PROMPTS[0]
    expected = {prompt: whole(server.post("/v1/completions", body_of(prompt, tokens=200)).content)}
    crowd = Crowd(port, expected)

    async def ask(started: asyncio.Queue) -> bool:
        reader, writer = await crowd.connect()
        writer.write(request_of(body_of(prompt, stream=True, tokens=200)))
        await reader.readuntil(b"\r\n\r\n")
        started.put_nowait(None)
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        writer.close()
        return streamed(body) == expected[prompt]

    async def storm():
        started = asyncio.Queue()
        asks = [asyncio.create_task(ask(started)) for _ in range(20)]
        idle = [await crowd.connect() for _ in range(50)]
        for _ in asks:
            await started.get()
        server.process.send_signal(signal.SIGTERM)
        assert all(await asyncio.gather(*asks))
        for reader, writer in idle:
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 30) == b""
            writer.close()

    asyncio.run(storm())
    assert server.process.wait(60) == 0, server.log  # a second signal would cut it off
