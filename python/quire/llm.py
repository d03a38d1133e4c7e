# SPDX-License-Identifier: Apache-2.0
"""LLM: a loaded model that answers prompts and conversations; calls wait for the answer."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, Union, cast, overload

import numpy
import numpy.typing

from . import _quire
from .beam_search import Beams, BeamSearchOutput
from .engine_args import EngineArgs
from .outputs import Collector, LoRARequest, RequestOutput, TokenTexts
from .pooling import (ClassificationOutput, ClassificationRequestOutput, EmbeddingOutput, EmbeddingRequestOutput,
                      PoolingOutput, PoolingParams, PoolingRequestOutput, ScoringOutput, ScoringRequestOutput, pair_up,
                      pool_fields, take)
from .sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams, to_json

TokenIds: TypeAlias = Union[Sequence[int], numpy.typing.NDArray[numpy.integer[Any]]]
Prompt: TypeAlias = Union[str, TokenIds, Mapping[str, Any]]
"""A text, token ids, {"prompt": text} or {"prompt_token_ids": ids}, the last two optionally with "cache_salt"."""


class TextPrompt(TypedDict, total=False):
    prompt: str
    cache_salt: str


class TokensPrompt(TypedDict, total=False):
    prompt_token_ids: TokenIds
    prompt: str
    cache_salt: str


Message: TypeAlias = Mapping[str, Any]
Conversation: TypeAlias = Sequence[Message]
_T = TypeVar("_T")
_E = TypeVar("_E", bound="Engine")


LoRARequests: TypeAlias = Union[LoRARequest, Sequence[Union[LoRARequest, None]], None]


class Tokenizer:
    """The tokenizer of a loaded model."""

    def __init__(self, model: _quire.Model):
        self._model = model

    def __call__(self, text: str | Sequence[str], add_special_tokens: bool = True) -> dict[str, list[Any]]:
        """As encode(), in the form of transformers; a list of texts gives a list of lists."""
        if not isinstance(text, str):
            each = [self(one, add_special_tokens) for one in text]
            return {name: [one[name] for one in each] for name in ("input_ids", "attention_mask")}
        ids: list[int] = self.encode(text, add_special_tokens).tolist()
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}

    def __len__(self) -> int:
        """The size of the model's vocabulary."""
        size: int = json.loads(self._model.info())["vocab_size"]
        return size

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends an answer; of several, the first."""
        ids: list[int] = json.loads(self._model.info())["eos_token_ids"]
        return ids[0] if ids else None

    def encode(self, text: str, add_special_tokens: bool = True) -> numpy.typing.NDArray[numpy.int32]:
        return self._model.tokenize(to_json({"prompt": text, "add_special_tokens": add_special_tokens}))

    def decode(self, token_ids: TokenIds | int, skip_special_tokens: bool = True) -> str:
        ids = [token_ids] if isinstance(token_ids, (int, numpy.integer)) else token_ids
        return self._model.detokenize(token_array(ids), skip_special_tokens)

    def batch_decode(self, sequences: Iterable[TokenIds], skip_special_tokens: bool = True) -> list[str]:
        return [self.decode(token_ids, skip_special_tokens) for token_ids in sequences]

    @overload
    def apply_chat_template(self, messages: Conversation, *, tokenize: Literal[True] = True,
                            add_generation_prompt: bool = True, continue_final_message: bool = False,
                            tools: Sequence[Mapping[str, Any]] | None = None, chat_template: str | None = None,
                            **chat_template_kwargs: Any) -> numpy.typing.NDArray[numpy.int32]: ...

    @overload
    def apply_chat_template(self, messages: Conversation, *, tokenize: Literal[False],
                            add_generation_prompt: bool = True, continue_final_message: bool = False,
                            tools: Sequence[Mapping[str, Any]] | None = None, chat_template: str | None = None,
                            **chat_template_kwargs: Any) -> str: ...

    def apply_chat_template(self, messages: Conversation, *, tokenize: bool = True, add_generation_prompt: bool = True,
                            continue_final_message: bool = False, tools: Sequence[Mapping[str, Any]] | None = None,
                            chat_template: str | None = None,
                            **chat_template_kwargs: Any) -> numpy.typing.NDArray[numpy.int32] | str:
        """The token ids of the prompt that chat() would make, or with tokenize=False their text."""
        ids = self._model.tokenize(to_json(chat_fields(messages, add_generation_prompt=add_generation_prompt,
                                                       continue_final_message=continue_final_message, tools=tools,
                                                       chat_template=chat_template,
                                                       chat_template_kwargs=chat_template_kwargs or None)))
        return ids if tokenize else self._model.detokenize(ids, False)


class Engine:
    """What LLM and AsyncLLM share: the model, and how a request is started."""

    def __init__(self, model: str | os.PathLike[str] = "", **engine_args: Any):
        self._model = _quire.Model(to_json({"model": os.fspath(model), **engine_args}))
        self._info: dict[str, Any] = json.loads(self._model.info())
        self._texts = TokenTexts(self._model)
        self._numbers = itertools.count()

    @classmethod
    def from_engine_args(cls: type[_E], engine_args: EngineArgs) -> _E:
        """As with the same keyword arguments."""
        check_type(engine_args, EngineArgs, "engine_args")
        return cls(**engine_args._options())

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
        check_type(params, SamplingParams, "sampling_params")
        fields = {**fields, **(params._fields() if params is not None else {})}
        if kind is None:
            kind = params.output_kind if params is not None else RequestOutputKind.CUMULATIVE
            check_type(kind, RequestOutputKind, "output_kind")
        stream = self._submit(fields, priority, lora_request)
        n = params.n if params is not None else self._info["default_sampling_params"]["n"]
        name = request_id or str(next(self._numbers))
        # Of a conversation the text is what its template made of it, as in vLLM.
        text = Tokenizer(self._model).decode(stream.prompt(), skip_special_tokens=False) if "messages" in fields else None
        return Collector(stream, self._texts, name, fields.get("prompt", text), n, kind, lora_request,
                         params is None or params.detokenize)

    def _beams(self, prompt: Prompt, params: BeamSearchParams, lora_request: LoRARequest | None) -> Beams:
        """A beam search from a prompt."""
        check_type(params, BeamSearchParams, "params")
        fields = prompt_fields(prompt)
        more = {"cache_salt": fields.pop("cache_salt")} if "cache_salt" in fields else {}
        ids = fields["prompt_token_ids"] if "prompt_token_ids" in fields else self._model.tokenize(to_json(fields))
        return Beams(more, token_array(ids).tolist(), params, self.max_model_len, self._info["eos_token_ids"],
                     lora_request)

    def _submit(self, fields: Mapping[str, Any], priority: int = 0,
                lora_request: LoRARequest | None = None) -> _quire.Stream:
        fields = dict(fields)
        check_type(lora_request, LoRARequest, "lora_request")
        if lora_request is not None:
            fields |= {"lora_path": os.fspath(lora_request.lora_path),
                       "lora_name": f"{lora_request.lora_int_id} {lora_request.lora_name}"}
        if priority:
            fields["priority"] = priority
        tokens = fields.pop("prompt_token_ids", None)
        if tokens is not None:
            fields.pop("prompt", None)  # the text that the ids are, for the output
        return self._model.start(to_json(fields), None if tokens is None else token_array(tokens))


class LLM(Engine):
    """A model in this process. `model` is a folder, a .gguf, a cached name, or "" for the default model; the engine
    arguments are the flags of `quire run --help` with underscores, such as max_model_len=4096."""

    def generate(self, prompts: Prompt | Sequence[Prompt],
                 sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *,
                 use_tqdm: bool = False, lora_request: LoRARequests = None, priority: Sequence[int] | None = None,
                 tokenization_kwargs: Mapping[str, Any] | None = None) -> list[RequestOutput]:
        """Continues each prompt; all run together. Without sampling_params, the model's defaults hold. There is no
        progress bar: use_tqdm is there for programs that were written for vLLM. lora_request is an adapter for all
        prompts, or a list with one, or None, for each; it needs LLM(enable_lora=True)."""
        more = tokenization_fields(tokenization_kwargs)
        return self._run([prompt_fields(prompt) | more for prompt in prompt_list(prompts)], sampling_params, priority,
                         lora_request)

    def chat(self, messages: Conversation | Sequence[Conversation],
             sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, use_tqdm: bool = False,
             lora_request: LoRARequests = None, chat_template: str | None = None,
             chat_template_content_format: Literal["auto", "string", "openai"] = "auto",
             add_generation_prompt: bool = True, continue_final_message: bool = False,
             tools: Sequence[Mapping[str, Any]] | None = None, chat_template_kwargs: Mapping[str, Any] | None = None,
             tokenization_kwargs: Mapping[str, Any] | None = None,
             mm_processor_kwargs: None = None) -> list[RequestOutput]:
        """Answers one conversation or several. The messages are those of /v1/chat/completions. The form of their content
        follows from the template: chat_template_content_format is there for programs that were written for vLLM."""
        more = tokenization_fields(tokenization_kwargs)
        conversations: Any = messages
        if isinstance(messages, (str, Mapping)) or not isinstance(messages, Iterable):
            conversations = [messages]  # chat_fields() says what is wrong with it
        elif (given := list(messages)) and isinstance(given[0], Mapping):
            conversations = [given]
        else:
            conversations = given
        return self._run([chat_fields(conversation, chat_template=chat_template, tools=tools,
                                      add_generation_prompt=add_generation_prompt,
                                      continue_final_message=continue_final_message,
                                      chat_template_kwargs=chat_template_kwargs) | more
                          for conversation in conversations], sampling_params, None, lora_request)

    def beam_search(self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams,
                    lora_request: LoRARequests = None, use_tqdm: bool = False,
                    concurrency_limit: int | None = None) -> list[BeamSearchOutput]:
        """The likeliest continuations of each prompt as a whole. Each step asks for the likeliest next tokens of all
        beams of all prompts, or of concurrency_limit prompts at a time; LLM(max_logprobs=...) must allow twice the
        beam_width. The prefix cache keeps what beams have in common."""
        items = prompt_list(prompts)
        adapters = one_for_each(lora_request, len(items), LoRARequest, "lora_requests")
        searches = [self._beams(item, params, adapter) for item, adapter in zip(items, adapters)]
        together = max(concurrency_limit or len(searches), 1)
        for first in range(0, len(searches), together):
            self._search(searches[first:first + together], params._step_params())
        results = []
        for search in searches:
            for beam in (sequences := search.result()):
                beam.text = self._model.detokenize(token_array(beam.tokens), False)
            results.append(BeamSearchOutput(sequences))
        return results

    def _search(self, searches: list[Beams], params: SamplingParams) -> None:
        while True:
            steps = [search.requests() for search in searches]
            requests = [request for step in steps for request in step]
            if not requests:
                return
            adapters = [search.lora_request for search, step in zip(searches, steps) for _ in step]
            outputs = iter(self._run(requests, params, None, adapters))
            for search, step in zip(searches, steps):
                if step:
                    search.add([next(outputs) for _ in step])

    def reset_prefix_cache(self) -> bool:
        """Forgets the pages of earlier prompts. False, and nothing is forgotten, if a request is using some."""
        return self._model.reset_prefix_cache()

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None, *,
               lora_request: LoRARequest | None = None) -> Iterator[RequestOutput]:
        """Continues one prompt, and yields while it does: by sampling_params.output_kind the whole answer so far, or
        only what is new. An iterator that is closed early aborts the request."""
        return self._iterate(self._start(prompt_fields(prompt), sampling_params, lora_request=lora_request))

    def stream_chat(self, messages: Conversation, sampling_params: SamplingParams | None = None, *,
                    chat_template: str | None = None, add_generation_prompt: bool = True,
                    continue_final_message: bool = False, tools: Sequence[Mapping[str, Any]] | None = None,
                    chat_template_kwargs: Mapping[str, Any] | None = None,
                    lora_request: LoRARequest | None = None) -> Iterator[RequestOutput]:
        """The same for a conversation."""
        return self._iterate(self._start(chat_fields(messages, chat_template=chat_template, tools=tools,
                                                     add_generation_prompt=add_generation_prompt,
                                                     continue_final_message=continue_final_message,
                                                     chat_template_kwargs=chat_template_kwargs), sampling_params,
                                         lora_request=lora_request))

    def encode(self, prompts: Prompt | Sequence[Prompt],
               pooling_params: PoolingParams | Sequence[PoolingParams] | None = None, *, use_tqdm: bool = False,
               lora_request: LoRARequests = None, pooling_task: str | None = None,
               tokenization_kwargs: Mapping[str, Any] | None = None) -> list[PoolingRequestOutput[PoolingOutput]]:
        """What a task makes of each prompt (embed, classify, token_embed, token_classify, or BGE-M3's
        embed&token_classify): outputs.data is a numpy array. All prompts run together."""
        requests = [prompt_fields(prompt) for prompt in prompt_list(prompts)]
        params = one_for_each(pooling_params, len(requests), PoolingParams, "pooling_params")
        return self._pool([pool_fields(fields, param, pooling_task, tokenization_kwargs)
                           for fields, param in zip(requests, params)], lora_request)

    def embed(self, prompts: Prompt | Sequence[Prompt], *, use_tqdm: bool = False,
              pooling_params: PoolingParams | Sequence[PoolingParams] | None = None, lora_request: LoRARequests = None,
              tokenization_kwargs: Mapping[str, Any] | None = None) -> list[EmbeddingRequestOutput]:
        """The embedding of each prompt, as outputs.embedding."""
        items = self.encode(prompts, pooling_params, lora_request=lora_request, pooling_task="embed",
                            tokenization_kwargs=tokenization_kwargs)
        return [EmbeddingRequestOutput(item.request_id, EmbeddingOutput(item.outputs.data), item.prompt_token_ids,
                                       item.num_cached_tokens) for item in items]

    def classify(self, prompts: Prompt | Sequence[Prompt], *,
                 pooling_params: PoolingParams | Sequence[PoolingParams] | None = None, use_tqdm: bool = False,
                 lora_request: LoRARequests = None,
                 tokenization_kwargs: Mapping[str, Any] | None = None) -> list[ClassificationRequestOutput]:
        """The probabilities of the classes of each prompt, as outputs.probs."""
        items = self.encode(prompts, pooling_params, lora_request=lora_request, pooling_task="classify",
                            tokenization_kwargs=tokenization_kwargs)
        return [ClassificationRequestOutput(item.request_id, ClassificationOutput(item.outputs.data),
                                            item.prompt_token_ids, item.num_cached_tokens) for item in items]

    def reward(self, prompts: Prompt | Sequence[Prompt], /, *,
               pooling_params: PoolingParams | Sequence[PoolingParams] | None = None, use_tqdm: bool = False,
               lora_request: LoRARequests = None) -> list[PoolingRequestOutput[PoolingOutput]]:
        """The scores of each token of each prompt, for reward models: encode with the task token_classify."""
        return self.encode(prompts, pooling_params, lora_request=lora_request, pooling_task="token_classify")

    def score(self, data_1: str | Sequence[str], data_2: str | Sequence[str], /, *, use_tqdm: bool = False,
              pooling_params: PoolingParams | None = None, lora_request: LoRARequests = None,
              tokenization_kwargs: Mapping[str, Any] | None = None,
              instruction: str | None = None) -> list[ScoringRequestOutput]:
        """How well each text of data_2 answers that of data_1, which may be one for all: by a cross-encoder, by the
        cosine of embeddings, or by late interaction, as the model has it. instruction is for models that judge by one
        (Qwen3-Reranker)."""
        queries, documents = pair_up(data_1, data_2)
        kind = self._info["pooling"]["score"]
        if kind is None:
            raise ValueError("this model does not score pairs of texts; it has the tasks "
                             f"{', '.join(self._info['pooling']['tasks']) or 'of text generation'}")
        if kind == "cross":
            more = {} if instruction is None else {"instruction": instruction}
            items = self._pool([pool_fields({"prompt": query, "text_pair": document, **more}, pooling_params, "classify",
                                            tokenization_kwargs) for query, document in zip(queries, documents)],
                               lora_request)
            return [ScoringRequestOutput(item.request_id, ScoringOutput(float(item.outputs.data[0])),
                                         item.prompt_token_ids, item.num_cached_tokens) for item in items]
        task = "embed" if kind == "cosine" else "token_embed"
        texts = list(dict.fromkeys(queries)) + documents
        found = self.encode(texts, pooling_params, lora_request=lora_request, pooling_task=task,
                            tokenization_kwargs=tokenization_kwargs)
        by_query = dict(zip(texts, found[:len(texts) - len(documents)]))
        return [ScoringRequestOutput(item.request_id,
                                     ScoringOutput(_quire.similarity(by_query[query].outputs.data, item.outputs.data)),
                                     by_query[query].prompt_token_ids + item.prompt_token_ids, item.num_cached_tokens)
                for query, item in zip(queries, found[len(texts) - len(documents):])]

    def _pool(self, requests: list[dict[str, Any]],
              lora_request: LoRARequests) -> list[PoolingRequestOutput[PoolingOutput]]:
        adapters = one_for_each(lora_request, len(requests), LoRARequest, "lora_requests")
        streams: list[_quire.Stream] = []
        out: list[PoolingRequestOutput[PoolingOutput]] = []
        try:
            for fields, adapter in zip(requests, adapters):
                streams.append(self._submit(fields, lora_request=adapter))
            for stream in streams:
                delta = stream.next()
                if delta is not None:
                    out.append(take(stream, str(next(self._numbers)), delta))
            return out
        finally:
            for stream in streams:
                stream.abort()  # does nothing after the end

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
        adapters = one_for_each(lora_request, count, LoRARequest, "lora_requests")
        params = one_for_each(sampling_params, count, SamplingParams, "sampling_params")
        if isinstance(priority, int):
            raise TypeError("priority must be a list with one for each prompt")
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


def one_for_each(given: _T | Sequence[_T | None] | Sequence[_T] | None, count: int, kind: type[_T],
                 name: str) -> list[_T | None]:
    """One setting for all prompts, or those of each."""
    if given is None or isinstance(given, kind):
        return [given] * count
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
        raise TypeError(f"{name} must be a {kind.__name__}, or a list with one for each prompt, not a "
                        f"{type(given).__name__}")
    each = list(cast(Sequence[Union[_T, None]], given))
    if len(each) != count:
        raise ValueError(f"there are {count} prompts and {len(each)} {name}; give one, or one for each")
    for one in each:
        check_type(one, kind, name)
    return each


def check_type(given: Any, kind: type[Any], name: str) -> None:
    if given is not None and not isinstance(given, kind):
        raise TypeError(f"{name} must be of the type {kind.__name__}, not {type(given).__name__}")


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
        return prompt.ndim == 1 and prompt.dtype.kind not in "OU"  # those are texts
    return isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], (int, numpy.integer))


def prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, (str, Mapping)) or is_token_ids(prompts):
        return [cast(Prompt, prompts)]
    if not isinstance(prompts, Iterable):
        raise TypeError(f"prompts must be a text, token ids, a dict or a list of these, not {type(prompts).__name__}")
    return list(cast(Sequence[Prompt], prompts))


def prompt_fields(prompt: Prompt) -> dict[str, Any]:
    """The fields of a request for a prompt."""
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if isinstance(prompt, (bytes, bytearray)) or not (isinstance(prompt, Iterable) or hasattr(prompt, "__array__")):
        raise TypeError(f"a prompt is a text, token ids or a dict, not {type(prompt).__name__}")
    if not isinstance(prompt, Mapping):
        if isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], (str, Mapping)):
            raise TypeError("there are several prompts where one is expected")
        return {"prompt_token_ids": prompt}
    fields = {name: value for name, value in prompt.items() if value is not None}
    unknown = set(fields) - {"prompt", "prompt_token_ids", "cache_salt"}
    if unknown:
        raise ValueError(f"a prompt has prompt or prompt_token_ids, and cache_salt, but not {sorted(unknown)[0]}")
    if "prompt_token_ids" not in fields and "prompt" not in fields:
        raise ValueError("a prompt needs prompt or prompt_token_ids")
    return fields


def tokenization_fields(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields of a request for tokenization_kwargs."""
    unknown = set(options or {}) - {"truncate_prompt_tokens", "add_special_tokens"}
    if unknown:
        raise ValueError("tokenization_kwargs has truncate_prompt_tokens and add_special_tokens, but not "
                         f"{sorted(unknown)[0]}")
    return {name: value for name, value in (options or {}).items() if value is not None}


def chat_fields(messages: Conversation, **options: Any) -> dict[str, Any]:
    """The fields of a request for a conversation."""
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Iterable):
        raise TypeError("messages must be a list of messages, each a dict with role and content, not a "
                        f"{type(messages).__name__}")
    return {"messages": list(messages), **{name: value for name, value in options.items() if value is not None}}
