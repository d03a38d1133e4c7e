# SPDX-License-Identifier: Apache-2.0
"""A small OpenAI-compatible server whose answers are all known beforehand, for the tests of the load client."""

import asyncio
import json
import ssl
import threading

SPLITS = ("whole", "bytes", "merged", "multiline", "comments", "crlf", "unended")


class Plan:
    """What one request gets. The words of `text` are the messages; `split` is how the bytes of the events are
    divided."""

    def __init__(self, words=("a", " b", " c"), status=200, split="whole", usage=True, prompt_tokens=None, break_after=None,
                 close=False, hold=False, error_after=None, raw=None, gap=0.0, bare=False):
        self.words, self.status, self.split, self.usage, self.prompt_tokens = list(words), status, split, usage, prompt_tokens
        self.break_after, self.close, self.hold, self.error_after, self.raw = break_after, close, hold, error_after, raw
        self.gap, self.bare = gap, bare  # bare: no chunked encoding, the end of the connection is the end


class FakeServer:
    """Runs on its own thread. plan(index, body) returns the Plan for each POST; index is the number in x-request-id."""

    def __init__(self, plan=lambda index, body: Plan(), metrics=("",), barrier=0, tls=None, model="fake", root=None, tokens=None):
        self.plan, self.metrics, self.barrier, self.tls = plan, list(metrics), barrier, tls
        self.model, self.root, self.tokens = model, root or model, tokens
        self.requests = []      # (path, headers, body) of each POST to an API, in order of arrival
        self.connections = self.running = self.peak = self.started = 0
        self.released = threading.Event()
        self.enough = threading.Event()

    def __enter__(self):
        ready = threading.Event()
        self.loop = asyncio.new_event_loop()

        def run():
            asyncio.set_event_loop(self.loop)
            self.gathered = asyncio.Event()
            server = self.loop.run_until_complete(asyncio.start_server(self.serve, "127.0.0.1", 0, ssl=self.tls, backlog=4096))
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            self.loop.run_forever()
            server.close()
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.close()
        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        ready.wait()
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()

    @property
    def url(self):
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    async def serve(self, reader, writer):
        self.connections += 1
        try:
            while await self.exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def exchange(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if path.startswith("/v1/") and method == "POST":
            return await self.answer(path, headers, json.loads(body), writer)
        if path == "/v1/models":
            reply = 200, json.dumps({"data": [{"id": self.model, "root": self.root}]})
        elif path == "/metrics":
            reply = 200, self.metrics.pop(0) if len(self.metrics) > 1 else self.metrics[0]
        elif path == "/tokenize" and self.tokens:
            reply = 200, json.dumps({"tokens": self.tokens(json.loads(body)["prompt"])})
        else:
            reply = 404, "{}"
        writer.write(f"HTTP/1.1 {reply[0]} X\r\nContent-Length: {len(reply[1].encode())}\r\n\r\n{reply[1]}".encode())
        await writer.drain()
        return True

    async def answer(self, path, headers, body, writer):
        index = int(headers["x-request-id"].rsplit("-", 1)[1])
        self.requests.append((path, headers, body))
        self.running += 1
        self.peak = max(self.peak, self.running)
        self.started += 1
        try:
            # Nobody is answered before that many requests are in flight: with fewer the run would never end.
            if self.barrier:
                if self.running >= self.barrier and not self.gathered.is_set():
                    await asyncio.sleep(0.3)  # a request too many would arrive now
                    self.gathered.set()
                await self.gathered.wait()
            plan = self.plan(index, body)
            while plan.hold and not self.released.is_set():
                self.enough.set()
                await asyncio.sleep(0.01)
            if plan.status != 200:
                text = json.dumps({"error": {"message": f"told to fail {plan.status}", "code": plan.status}})
                writer.write(f"HTTP/1.1 {plan.status} Told To\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
                await writer.drain()
                return True
            close = "Connection: close\r\n" if plan.close or plan.bare else ""
            coding = "" if plan.bare else "Transfer-Encoding: chunked\r\n"
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{close}{coding}\r\n".encode())
            if not await self.stream(plan, path, body, writer):
                writer.transport.abort()
                return False
            writer.write(b"" if plan.bare else b"0\r\n\r\n")
            await writer.drain()
            return not plan.close and not plan.bare
        finally:
            self.running -= 1

    async def stream(self, plan, path, body, writer):
        async def send(data):
            writer.write(data if plan.bare else f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()
        if plan.raw is not None:
            for start in range(0, len(plan.raw), 777):
                await send(plan.raw[start:start + 777])
            return True
        events = list(self.events(plan, path, body))
        if plan.break_after is not None:
            events = events[:plan.break_after]
        if plan.split == "merged":
            await send(b"".join(events))
        for event in events if plan.split != "merged" else ():
            if plan.split == "bytes":
                for byte in event:
                    await send(bytes([byte]))
            else:
                await send(event)
            if plan.gap:
                await asyncio.sleep(plan.gap)
        return plan.break_after is None

    @staticmethod
    def events(plan, path, body):
        def event(value):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=bool(plan.split == "bytes"))
            if plan.split == "multiline" and text.startswith("{"):
                text = json.dumps(value, indent=1)
            end = "\r\n" if plan.split == "crlf" else "\n"
            lines = [f"data: {line}" for line in text.split("\n")]
            comment = [": keep-alive", "event: message"] if plan.split == "comments" else []
            return (end.join(comment + lines) + end + end).encode()
        chat = path.endswith("chat/completions")
        responses = path.endswith("responses")
        usage = {"prompt_tokens": plan.prompt_tokens or 7, "completion_tokens": len(plan.words)}
        if chat:
            yield event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for number, word in enumerate(plan.words):
            if number == plan.error_after:
                yield event({"error": {"message": "broke inside"}})
                return
            if responses:
                yield event({"type": "response.output_text.delta", "delta": word})
            elif chat:
                yield event({"choices": [{"index": 0, "delta": {"content": word}}]})
            else:
                yield event({"choices": [{"index": 0, "text": word, "finish_reason": None}], "usage": None})
        if responses:
            counts = {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}
            yield event({"type": "response.completed", "response": {"usage": counts}})
            return
        if plan.usage:
            yield event({"choices": [], "usage": usage})
        yield event("[DONE]") if plan.split != "unended" else b"data: [DONE]"


def self_signed(folder, openssl):
    """An SSL context of a server with a self-signed certificate, which nobody trusts."""
    import subprocess
    subprocess.run([openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout",
                    str(folder / "key.pem"), "-out", str(folder / "cert.pem")], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context
