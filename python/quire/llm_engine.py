# SPDX-License-Identifier: Apache-2.0
"""LLMEngine: requests that are added one by one, and a step that returns what is new, as vLLM has it."""

from __future__ import annotations

import os
import select
from collections.abc import Mapping, Sequence
from typing import Any, Union

from . import _quire
from .llm import Engine, Prompt, prompt_fields, tokenization_fields
from .outputs import Collector, LoRARequest, RequestOutput
from .pooling import PoolingOutput, PoolingParams, PoolingRequestOutput, pool_fields, take
from .sampling_params import SamplingParams

Output = Union[RequestOutput, PoolingRequestOutput[PoolingOutput]]


class LLMEngine(Engine):
    """A model for a loop of one's own: add_request() starts a request, step() waits for the next pieces of answers. It
    takes the arguments of LLM. The model computes on threads of its own, also between two steps. One thread."""

    def __init__(self, model: str | os.PathLike[str] = "", **engine_args: Any):
        super().__init__(model, **engine_args)
        self._requests: dict[str, Collector | _quire.Stream] = {}  # a stream, if it pools

    def add_request(self, request_id: str, prompt: Prompt, params: SamplingParams | PoolingParams,
                    arrival_time: float | None = None, lora_request: LoRARequest | None = None,
                    tokenization_kwargs: Mapping[str, Any] | None = None, trace_headers: None = None,
                    priority: int = 0) -> None:
        """Starts a request. arrival_time has no effect: requests are served in the order in which they are added."""
        if request_id in self._requests:
            raise ValueError(f"a request with the id {request_id!r} is running already")
        fields = prompt_fields(prompt)
        if isinstance(params, PoolingParams):
            fields = pool_fields(fields, params, None, tokenization_kwargs)
            self._requests[request_id] = self._submit(fields, priority, lora_request)
        else:
            self._requests[request_id] = self._start(fields | tokenization_fields(tokenization_kwargs), params,
                                                     request_id=request_id, priority=priority,
                                                     lora_request=lora_request)

    def step(self) -> list[Output]:
        """What is new of each request, by the output_kind of its parameters; waits until there is something. Nothing if
        no request runs."""
        while self._requests:
            if outputs := self._take():
                return outputs
            descriptor = self._model.event_fd()
            if descriptor < 0:
                raise OSError("the model's events cannot be read: the system has no file descriptor left, or this "
                              "process was forked from the one that loaded the model")
            if not (outputs := self._take()):  # something may have come before the descriptor was there
                waiting = select.poll()
                waiting.register(descriptor, select.POLLIN)
                waiting.poll()
                os.read(descriptor, 1 << 16)
                outputs = self._take()
            if outputs:
                return outputs
        return []

    def _take(self) -> list[Output]:
        outputs: list[Output] = []
        for name, request in list(self._requests.items()):
            stream = request.stream if isinstance(request, Collector) else request
            try:
                delta = stream.poll()
            except Exception:
                del self._requests[name]
                raise
            if delta is None:
                del self._requests[name]
            elif not isinstance(delta, bool):
                output = request.add(delta) if isinstance(request, Collector) else take(stream, name, delta)
                if output is not None:
                    outputs.append(output)
                    if output.finished:
                        del self._requests[name]
        return outputs

    def abort_request(self, request_ids: str | Sequence[str]) -> None:
        """Ends requests; step() returns nothing more of them. An id that is not running is ignored."""
        for name in [request_ids] if isinstance(request_ids, str) else request_ids:
            request = self._requests.pop(name, None)
            if request is not None:
                (request.stream if isinstance(request, Collector) else request).abort()

    def has_unfinished_requests(self) -> bool:
        return bool(self._requests)

    def get_num_unfinished_requests(self) -> int:
        return len(self._requests)

    def reset_prefix_cache(self) -> bool:
        """Forgets the pages of earlier prompts. False, and nothing is forgotten, if a request is using some."""
        return self._model.reset_prefix_cache()
