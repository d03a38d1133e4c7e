# SPDX-License-Identifier: Apache-2.0
"""AsyncLLM: the same model for asyncio; answers are async generators."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from . import _quire
from .llm import Conversation, Engine, Prompt, chat_fields, prompt_fields
from .outputs import Collector, LoRARequest, RequestOutput
from .pooling import PoolingOutput, PoolingParams, PoolingRequestOutput, pool_fields, take
from .sampling_params import SamplingParams


class AsyncLLM(Engine):
    """A model for the coroutines of one event loop, the one that runs when the first request is made. It takes the
    arguments of LLM. The loop never waits for the model: prompts are prepared on a thread of the loop's executor, and
    new pieces wake it through a file descriptor."""

    def __init__(self, model: str | os.PathLike[str] = "", **engine_args: Any):
        super().__init__(model, **engine_args)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Event] = set()
        self._running: dict[str, _quire.Stream | None] = {}  # None: its prompt is being prepared

    def generate(self, prompt: Prompt, sampling_params: SamplingParams | None = None, request_id: str | None = None, *,
                 lora_request: LoRARequest | None = None,
                 priority: int = 0) -> AsyncGenerator[RequestOutput, None]:
        """Continues a prompt, and yields while it does: by sampling_params.output_kind the whole answer so far, only
        what is new, or the answer at its end. A generator that is closed early aborts the request."""
        return self._answer(prompt_fields(prompt), sampling_params, request_id, priority, lora_request)

    def chat(self, messages: Conversation, sampling_params: SamplingParams | None = None,
             request_id: str | None = None, *, lora_request: LoRARequest | None = None, priority: int = 0,
             chat_template: str | None = None,
             add_generation_prompt: bool = True, continue_final_message: bool = False,
             tools: Sequence[Mapping[str, Any]] | None = None,
             chat_template_kwargs: Mapping[str, Any] | None = None) -> AsyncGenerator[RequestOutput, None]:
        """The same for a conversation."""
        fields = chat_fields(messages, chat_template=chat_template, add_generation_prompt=add_generation_prompt,
                             continue_final_message=continue_final_message, tools=tools,
                             chat_template_kwargs=chat_template_kwargs)
        return self._answer(fields, sampling_params, request_id, priority, lora_request)

    async def encode(self, prompt: Prompt, pooling_params: PoolingParams, request_id: str | None = None, *,
                     lora_request: LoRARequest | None = None, priority: int = 0,
                     tokenization_kwargs: Mapping[str, Any] | None = None
                     ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput], None]:
        """What a task (pooling_params.task) makes of a prompt; yields once."""
        fields = pool_fields(prompt_fields(prompt), pooling_params, None, tokenization_kwargs)
        name = self._name(request_id)
        async with contextlib.aclosing(self._pieces(name, lambda: self._submit(fields, priority,
                                                                               lora_request))) as pieces:
            async for stream, delta in pieces:
                yield take(stream, name, delta)

    async def abort(self, request_id: str) -> None:
        """Ends a request; its answers finish with "abort". An id that is not running is ignored."""
        stream = self._running.get(request_id)
        if stream is not None:
            stream.abort()

    async def reset_prefix_cache(self) -> bool:
        """Forgets the pages of earlier prompts. False, and nothing is forgotten, if a request is using some."""
        return await asyncio.to_thread(self._model.reset_prefix_cache)

    def shutdown(self) -> None:
        """Ends all requests, and no longer uses the event loop."""
        for stream in self._running.values():
            if stream is not None:
                stream.abort()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._model.event_fd())
        self._loop = None
        for news in self._waiting:
            news.set()

    async def _answer(self, fields: dict[str, Any], params: SamplingParams | None, request_id: str | None,
                      priority: int, lora_request: LoRARequest | None) -> AsyncGenerator[RequestOutput, None]:
        name = self._name(request_id)
        collectors: list[Collector] = []

        def start() -> _quire.Stream:
            collectors.append(self._start(fields, params, request_id=name, priority=priority,
                                          lora_request=lora_request))
            return collectors[0].stream

        async with contextlib.aclosing(self._pieces(name, start)) as pieces:
            async for _, delta in pieces:
                output = collectors[0].add(delta)
                if output is not None:
                    yield output

    def _name(self, request_id: str | None) -> str:
        name = request_id or f"request-{next(self._numbers)}"
        if name in self._running:
            raise ValueError(f"a request with the id {name!r} is running already")
        return name

    async def _pieces(self, name: str, start: Callable[[], _quire.Stream]
                      ) -> AsyncGenerator[tuple[_quire.Stream, _quire.Delta], None]:
        """Starts a request on a thread, and yields its stream with each piece."""
        self._attach()
        stream = None
        news = asyncio.Event()
        self._waiting.add(news)
        self._running[name] = None
        try:
            stream = await asyncio.to_thread(start)
            self._running[name] = stream
            while True:
                news.clear()
                delta = stream.poll()
                if delta is None:
                    return
                if isinstance(delta, bool):
                    await news.wait()
                    continue
                yield stream, delta
        finally:
            self._waiting.discard(news)
            del self._running[name]
            if stream is not None:
                stream.abort()

    def _attach(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            if self._running:
                raise RuntimeError("an AsyncLLM serves one event loop at a time, and requests of another still run")
            self._loop.remove_reader(self._model.event_fd())
        descriptor = self._model.event_fd()
        if descriptor < 0:
            raise OSError("the system has no file descriptor left for the model's events")
        loop.add_reader(descriptor, self._wake, descriptor)
        self._loop = loop

    def _wake(self, descriptor: int) -> None:
        try:
            os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return
        for news in self._waiting:
            news.set()


AsyncLLMEngine = AsyncLLM
"""vLLM's other name for it."""
