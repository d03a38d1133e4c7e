# SPDX-License-Identifier: Apache-2.0
"""LLM: a loaded model that answers prompts and conversations; calls wait for the answer."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, Union, cast

import numpy
import numpy.typing

from . import _quire
from .outputs import Collector, RequestOutput, TokenTexts
from .sampling_params import RequestOutputKind, SamplingParams, to_json

TokenIds: TypeAlias = Union[Sequence[int], numpy.typing.NDArray[numpy.integer[Any]]]
Prompt: TypeAlias = Union[str, TokenIds, Mapping[str, Any]]
"""A text, token ids, {"prompt": text} or {"prompt_token_ids": ids}, the last two optionally with "cache_salt"."""
Message: TypeAlias = Mapping[str, Any]
Conversation: TypeAlias = Sequence[Message]


@dataclasses.dataclass(frozen=True)
class LoRARequest:
    """A LoRA adapter: a folder or a GGUF file. An adapter stays in memory under its name and number; give another number
    if its files have changed."""

    lora_name: str
    lora_int_id: int
    lora_path: str | os.PathLike[str]


LoRARequests: TypeAlias = Union[LoRARequest, Sequence[Union[LoRARequest, None]], None]


class Tokenizer:
    """The tokenizer of a loaded model."""

    def __init__(self, model: _quire.Model):
        self._model = model

    def encode(self, text: str, add_special_tokens: bool = True) -> numpy.typing.NDArray[numpy.int32]:
        return self._model.tokenize(to_json({"prompt": text, "add_special_tokens": add_special_tokens}))

    def decode(self, token_ids: TokenIds, skip_special_tokens: bool = True) -> str:
        return self._model.detokenize(token_array(token_ids), skip_special_tokens)

    def apply_chat_template(self, messages: Conversation, *, add_generation_prompt: bool = True,
                            continue_final_message: bool = False, tools: Sequence[Mapping[str, Any]] | None = None,
                            **chat_template_kwargs: Any) -> numpy.typing.NDArray[numpy.int32]:
        """The token ids of the prompt that chat() would make."""
        return self._model.tokenize(to_json(chat_fields(messages, add_generation_prompt=add_generation_prompt,
                                                        continue_final_message=continue_final_message, tools=tools,
                                                        chat_template_kwargs=chat_template_kwargs or None)))


class Engine:
    """What LLM and AsyncLLM share: the model, and how a request is started."""

    def __init__(self, model: str | os.PathLike[str], engine_args: dict[str, Any]):
        self._model = _quire.Model(to_json({"model": os.fspath(model), **engine_args}))
        self._info: dict[str, Any] = json.loads(self._model.info())
        self._texts = TokenTexts(self._model)
        self._numbers = itertools.count()

    @property
    def model_name(self) -> str:
        name: str = self._info["name"]
        return name

    @property
    def max_model_len(self) -> int:
        length: int = self._info["max_model_len"]
        return length

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer(self._model)

    def get_default_sampling_params(self) -> SamplingParams:
        """The model's own, from its generation_config.json; neutral where it has none."""
        params = dict(self._info["default_sampling_params"])
        if params["max_tokens"] is None:
            del params["max_tokens"]
        return SamplingParams(**params)

    def _start(self, fields: dict[str, Any], params: SamplingParams | None, *, request_id: str | None = None,
               priority: int = 0, kind: RequestOutputKind | None = None,
               lora_request: LoRARequest | None = None) -> Collector:
        fields = {**fields, **(params._fields() if params is not None else {})}
        if lora_request is not None:
            fields |= {"lora_path": os.fspath(lora_request.lora_path),
                       "lora_name": f"{lora_request.lora_int_id} {lora_request.lora_name}"}
        if priority:
            fields["priority"] = priority
        tokens = fields.pop("prompt_token_ids", None)
        stream = self._model.start(to_json(fields), None if tokens is None else token_array(tokens))
        if kind is None:
            kind = params.output_kind if params is not None else RequestOutputKind.CUMULATIVE
        n = params.n if params is not None else self._info["default_sampling_params"]["n"]
        name = request_id or str(next(self._numbers))
        return Collector(stream, self._texts, name, fields.get("prompt"), n, kind)


class LLM(Engine):
    """A model in this process. `model` is a folder, a .gguf, a cached name, or "" for the default model; the engine
    arguments are the flags of `quire run --help` with underscores, such as max_model_len=4096."""

    def __init__(self, model: str | os.PathLike[str] = "", **engine_args: Any):
        super().__init__(model, engine_args)

    def generate(self, prompts: Prompt | Sequence[Prompt],
                 sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *,
                 use_tqdm: bool = False, lora_request: LoRARequests = None,
                 priority: Sequence[int] | None = None) -> list[RequestOutput]:
        """Continues each prompt; all run together. Without sampling_params, the model's defaults hold. There is no
        progress bar: use_tqdm is there for programs that were written for vLLM. lora_request is an adapter for all
        prompts, or a list with one, or None, for each; it needs LLM(enable_lora=True)."""
        return self._run([prompt_fields(prompt) for prompt in prompt_list(prompts)], sampling_params, priority,
                         lora_request)

    def chat(self, messages: Conversation | Sequence[Conversation],
             sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *, use_tqdm: bool = False,
             chat_template: str | None = None, add_generation_prompt: bool = True,
             continue_final_message: bool = False, tools: Sequence[Mapping[str, Any]] | None = None,
             chat_template_kwargs: Mapping[str, Any] | None = None,
             lora_request: LoRARequests = None) -> list[RequestOutput]:
        """Answers one conversation or several. The messages are those of /v1/chat/completions."""
        one = len(messages) > 0 and isinstance(messages[0], Mapping)
        conversations: Any = [messages] if one else messages
        return self._run([chat_fields(conversation, chat_template=chat_template, tools=tools,
                                      add_generation_prompt=add_generation_prompt,
                                      continue_final_message=continue_final_message,
                                      chat_template_kwargs=chat_template_kwargs) for conversation in conversations],
                         sampling_params, None, lora_request)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Continues one prompt, and yields while it does: by sampling_params.output_kind the whole answer so far, or
        only what is new. An iterator that is closed early aborts the request."""
        return self._iterate(self._start(prompt_fields(prompt), sampling_params))

    def stream_chat(self, messages: Conversation, sampling_params: SamplingParams | None = None, *,
                    chat_template: str | None = None, add_generation_prompt: bool = True,
                    continue_final_message: bool = False, tools: Sequence[Mapping[str, Any]] | None = None,
                    chat_template_kwargs: Mapping[str, Any] | None = None) -> Iterator[RequestOutput]:
        """The same for a conversation."""
        return self._iterate(self._start(chat_fields(messages, chat_template=chat_template, tools=tools,
                                                     add_generation_prompt=add_generation_prompt,
                                                     continue_final_message=continue_final_message,
                                                     chat_template_kwargs=chat_template_kwargs), sampling_params))

    @staticmethod
    def _iterate(collector: Collector) -> Iterator[RequestOutput]:
        try:
            while (delta := collector.stream.next()) is not None:
                output = collector.add(delta)
                if output is not None:
                    yield output
        finally:
            collector.stream.abort()

    def _run(self, requests: list[dict[str, Any]],
             sampling_params: SamplingParams | Sequence[SamplingParams] | None,
             priority: Sequence[int] | None, lora_request: LoRARequests = None) -> list[RequestOutput]:
        count = len(requests)
        adapters: list[LoRARequest | None]
        adapters = [lora_request] * count if lora_request is None or isinstance(lora_request, LoRARequest) \
            else list(lora_request)
        if len(adapters) != count:
            raise ValueError(f"there are {count} prompts and {len(adapters)} lora_requests; give one, or one for each")
        params: list[SamplingParams | None]
        params = [sampling_params] * count if sampling_params is None or isinstance(sampling_params, SamplingParams) \
            else list(sampling_params)
        if len(params) != count:
            raise ValueError(f"there are {count} prompts and {len(params)} sampling_params; give one, or one for each")
        if priority is not None and len(priority) != count:
            raise ValueError(f"there are {count} prompts and {len(priority)} priorities; give one for each")
        collectors: list[Collector] = []
        try:
            for number, fields in enumerate(requests):
                collectors.append(self._start(fields, params[number], kind=RequestOutputKind.FINAL_ONLY,
                                              priority=priority[number] if priority is not None else 0,
                                              lora_request=adapters[number]))
            for collector in collectors:
                collector.stream.wait()
                while (delta := collector.stream.next()) is not None:
                    collector.add(delta)
            return [collector.result() for collector in collectors]
        finally:
            for collector in collectors:
                collector.stream.abort()  # does nothing after the end


def token_array(token_ids: TokenIds) -> numpy.typing.NDArray[numpy.int32]:
    """Token ids as the engine takes them. Ids that no int32 holds are refused, not wrapped."""
    array = numpy.asarray(token_ids)
    if array.ndim != 1 or (array.size > 0 and not numpy.issubdtype(array.dtype, numpy.integer)):
        raise TypeError("token ids must be a flat sequence of integers")
    if array.size > 0 and (array.min() < 0 or array.max() > numpy.iinfo(numpy.int32).max):
        raise ValueError("a token id is negative or too large")
    return numpy.ascontiguousarray(array, dtype=numpy.int32)


def is_token_ids(prompt: Any) -> bool:
    if isinstance(prompt, numpy.ndarray):
        return prompt.ndim == 1 and prompt.dtype != object
    return isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], (int, numpy.integer))


def prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, (str, Mapping)) or is_token_ids(prompts):
        return [cast(Prompt, prompts)]
    return list(cast(Sequence[Prompt], prompts))


def prompt_fields(prompt: Prompt) -> dict[str, Any]:
    """The fields of a request for a prompt."""
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if not isinstance(prompt, Mapping):
        return {"prompt_token_ids": prompt}
    unknown = set(prompt) - {"prompt", "prompt_token_ids", "cache_salt"}
    if unknown:
        raise ValueError(f"a prompt has prompt or prompt_token_ids, and cache_salt, but not {sorted(unknown)[0]}")
    fields = {name: value for name, value in prompt.items() if value is not None}
    if "prompt_token_ids" in fields:
        fields.pop("prompt", None)  # the ids are the text's
    elif "prompt" not in fields:
        raise ValueError("a prompt needs prompt or prompt_token_ids")
    return fields


def chat_fields(messages: Conversation, **options: Any) -> dict[str, Any]:
    """The fields of a request for a conversation."""
    return {"messages": list(messages), **{name: value for name, value in options.items() if value is not None}}
