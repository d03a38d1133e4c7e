# SPDX-License-Identifier: Apache-2.0
"""AsyncLLM: the same model for asyncio; answers are async generators."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from . import _quire
from .llm import Conversation, Engine, Prompt, Tokenizer, chat_fields, prompt_fields, tokenization_fields
from .outputs import Collector, CompletionOutput, LoRARequest, RequestOutput
from .pooling import PoolingOutput, PoolingParams, PoolingRequestOutput, pool_fields, take
from .sampling_params import BeamSearchParams, SamplingParams


class AsyncTokenizer(Tokenizer):
    """The tokenizer. `await` gives it, too, as programs for vLLM wait for it."""

    def __await__(self) -> Generator[None, None, AsyncTokenizer]:
        return self
        yield


class Job:
    """A request that was made: its streams (several in a beam search, none while its prompt is prepared)."""

    def __init__(self) -> None:
        self.aborted = False
        self.streams: set[_quire.Stream] = set()

    def add(self, stream: _quire.Stream) -> None:
        self.streams.add(stream)
        if self.aborted:
            stream.abort()

    def abort(self) -> None:
        self.aborted = True
        for stream in self.streams:
            stream.abort()


class AsyncLLM(Engine):
    """A model for the coroutines of one event loop, the one that runs when the first request is made. It takes the
    arguments of LLM. The loop never waits for the model: prompts are prepared on a thread of the loop's executor, and
    new pieces wake it through a file descriptor."""

    def __init__(self, model: str | os.PathLike[str] = "", **engine_args: Any):
        super().__init__(model, **engine_args)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Event] = set()
        self._running: dict[str, Job] = {}

    def __del__(self) -> None:
        loop = getattr(self, "_loop", None)
        if loop is not None and not loop.is_closed():  # this may be another thread than the loop's
            loop.call_soon_threadsafe(stop_reading, loop, self._model)

    def generate(self, prompt: Prompt, sampling_params: SamplingParams | None = None, request_id: str | None = None, *,
                 lora_request: LoRARequest | None = None, priority: int = 0,
                 tokenization_kwargs: Mapping[str, Any] | None = None) -> AsyncGenerator[RequestOutput, None]:
        """Continues a prompt, and yields while it does: by sampling_params.output_kind the whole answer so far, only
        what is new, or the answer at its end. A generator that is closed early aborts the request."""
        return self._answer(prompt_fields(prompt) | tokenization_fields(tokenization_kwargs), sampling_params, request_id,
                            priority, lora_request)

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
        with self._job(request_id) as (name, job):
            async with contextlib.aclosing(self._pieces(job, lambda: self._submit(fields, priority,
                                                                                  lora_request))) as pieces:
                async for stream, delta in pieces:
                    yield take(stream, name, delta)

    async def beam_search(self, prompt: Prompt, request_id: str | None = None, params: BeamSearchParams | None = None, *,
                          lora_request: LoRARequest | None = None,
                          priority: int = 0) -> AsyncGenerator[RequestOutput, None]:
        """The likeliest continuations of a prompt as a whole; yields once, the best answer first. Text and tokens of an
        answer are without the prompt, unlike those of LLM.beam_search."""
        if params is None:
            raise TypeError("beam_search needs params, a BeamSearchParams")
        step_params = params._step_params()
        with self._job(request_id) as (name, job):
            beams = await asyncio.to_thread(self._beams, prompt, params, lora_request)
            while (requests := beams.requests()) and not job.aborted:
                steps = [asyncio.create_task(self._last(job, fields, step_params, priority, lora_request))
                         for fields in requests]
                try:
                    beams.add(await asyncio.gather(*steps))
                finally:
                    for step in steps:
                        step.cancel()  # does nothing after the end
            answers = []
            for index, beam in enumerate(beams.result()):
                tokens = beam.tokens[len(beams.prompt):]
                unfinished = job.aborted and beam.stop_reason is None
                answers.append(CompletionOutput(index, "", tokens, beam.cum_logprob, beam.logprobs,
                                                "abort" if unfinished else beam.finish_reason, beam.stop_reason,
                                                lora_request))
                if tokens and tokens[-1] == beam.stop_reason:
                    tokens = tokens[:-1]  # the text is without the end token
                answers[-1].text = self.get_tokenizer().decode(tokens, skip_special_tokens=False)
            yield RequestOutput(name, prompt if isinstance(prompt, str) else None, beams.prompt, None, answers, True,
                                lora_request=lora_request)

    def get_tokenizer(self) -> AsyncTokenizer:
        return AsyncTokenizer(self._model)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Ends a request, or several; their answers finish with "abort". An id that is not running is ignored."""
        for name in [request_id] if isinstance(request_id, str) else request_id:
            if (job := self._running.get(name)) is not None:
                job.abort()

    async def reset_prefix_cache(self) -> bool:
        """Forgets the pages of earlier prompts. False, and nothing is forgotten, if a request is using some."""
        return await asyncio.to_thread(self._model.reset_prefix_cache)

    def shutdown(self) -> None:
        """Ends all requests, and no longer uses the event loop."""
        for job in self._running.values():
            job.abort()
        if self._loop is not None and not self._loop.is_closed():
            stop_reading(self._loop, self._model)
        self._loop = None
        for news in self._waiting:
            news.set()

    async def _answer(self, fields: dict[str, Any], params: SamplingParams | None, request_id: str | None,
                      priority: int, lora_request: LoRARequest | None) -> AsyncGenerator[RequestOutput, None]:
        with self._job(request_id) as (name, job):
            async with contextlib.aclosing(self._outputs(job, name, fields, params, priority, lora_request)) as outputs:
                async for output in outputs:
                    yield output

    async def _last(self, job: Job, fields: dict[str, Any], params: SamplingParams, priority: int,
                    lora_request: LoRARequest | None) -> RequestOutput:
        last = None
        async for output in self._outputs(job, "", fields, params, priority, lora_request):
            last = output
        assert last is not None, "a stream ends with an answer or an error"
        return last

    async def _outputs(self, job: Job, name: str, fields: dict[str, Any], params: SamplingParams | None, priority: int,
                       lora_request: LoRARequest | None) -> AsyncGenerator[RequestOutput, None]:
        collectors: list[Collector] = []

        def start() -> _quire.Stream:
            collectors.append(self._start(fields, params, request_id=name, priority=priority,
                                          lora_request=lora_request))
            return collectors[0].stream

        async with contextlib.aclosing(self._pieces(job, start)) as pieces:
            async for _, delta in pieces:
                output = collectors[0].add(delta)
                if output is not None:
                    yield output

    @contextlib.contextmanager
    def _job(self, request_id: str | None) -> Iterator[tuple[str, Job]]:
        """A request under its id, as long as it runs."""
        name = request_id or f"request-{next(self._numbers)}"
        if name in self._running:
            raise ValueError(f"a request with the id {name!r} is running already")
        self._running[name] = job = Job()
        try:
            yield name, job
        finally:
            del self._running[name]

    async def _pieces(self, job: Job, start: Callable[[], _quire.Stream]
                      ) -> AsyncGenerator[tuple[_quire.Stream, _quire.Delta], None]:
        """Starts a stream on a thread, and yields it with each piece."""
        self._attach()
        stream = None
        news = asyncio.Event()
        self._waiting.add(news)
        try:
            stream = await asyncio.to_thread(start)
            job.add(stream)
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
            if stream is not None:
                stream.abort()
                job.streams.discard(stream)

    def _attach(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            if self._waiting:
                raise RuntimeError("an AsyncLLM serves one event loop at a time, and requests of another still run")
            stop_reading(self._loop, self._model)
        descriptor = self._model.event_fd()
        if descriptor < 0:
            raise OSError("the model's events cannot be read: the system has no file descriptor left, or this process "
                          "was forked from the one that loaded the model")
        # The loop has the model and the set, not this object, so that this can be freed while the loop runs.
        loop.add_reader(descriptor, wake, self._model, descriptor, self._waiting)
        self._loop = loop


def wake(model: _quire.Model, descriptor: int, waiting: set[asyncio.Event]) -> None:
    """Called by the event loop when a stream of the model has something new."""
    try:
        os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return
    for news in waiting:
        news.set()


def stop_reading(loop: asyncio.AbstractEventLoop, model: _quire.Model) -> None:
    descriptor = model.event_fd()
    if descriptor >= 0:  # else this process was forked, and shares what the loop waits for with its parent
        loop.remove_reader(descriptor)


AsyncLLMEngine = AsyncLLM
"""vLLM's other name for it."""
