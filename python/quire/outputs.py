# SPDX-License-Identifier: Apache-2.0
"""Answers, in vLLM's shapes, and the collector that makes them from the pieces of a stream."""

from __future__ import annotations

import dataclasses
import os

import numpy

from . import _quire
from .sampling_params import RequestOutputKind


@dataclasses.dataclass(frozen=True)
class LoRARequest:
    """A LoRA adapter: a folder or a GGUF file. An adapter stays in memory under its name and number; give another number
    if its files have changed."""

    lora_name: str
    lora_int_id: int
    lora_path: str | os.PathLike[str]

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def path(self) -> str:
        return os.fspath(self.lora_path)


@dataclasses.dataclass
class Logprob:
    logprob: float
    rank: int | None = None
    """1 is the likeliest token."""
    decoded_token: str | None = None


@dataclasses.dataclass
class CompletionOutput:
    """One of the n answers."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    """The sum of the log probabilities of its tokens; None without logprobs."""
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    """stop, length or abort; None while the answer goes on."""
    stop_reason: int | str | None = None
    """The stop token or the stop string that ended the answer; None for others."""
    lora_request: LoRARequest | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclasses.dataclass
class RequestOutput:
    """The answers to one prompt, or what there is of them."""

    request_id: str
    prompt: str | None
    """The text of the prompt; None if it was given as token ids or as messages."""
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    lora_request: LoRARequest | None = None
    metrics: None = None
    encoder_prompt: None = None
    encoder_prompt_token_ids: None = None
    kv_transfer_params: None = None
    """The last four are vLLM's and always None."""


class TokenTexts:
    """The text of each token by itself, decoded once."""

    def __init__(self, model: _quire.Model):
        self._model = model
        self._texts: dict[int, str] = {}

    def __call__(self, token: int) -> str:
        text = self._texts.get(token)
        if text is None:
            try:
                text = self._model.detokenize(numpy.array([token], dtype=numpy.int32), False)
            except ValueError:  # the model has no tokenizer
                text = ""
            self._texts[token] = text
        return text

    def rows(self, rows: _quire.Rows) -> list[dict[int, Logprob]]:
        """The token itself comes first, as in vLLM; among the likeliest ones it is there a second time."""
        out = []
        for row in rows:
            entries: dict[int, Logprob] = {}
            for token, rank, logprob in row:
                entries.setdefault(token, Logprob(logprob, rank, self(token)))
            out.append(entries)
        return out


class Collector:
    """Puts the pieces of one stream together. One thread."""

    def __init__(self, stream: _quire.Stream, texts: TokenTexts, request_id: str, prompt: str | None, n: int,
                 kind: RequestOutputKind, lora_request: LoRARequest | None = None, detokenize: bool = True):
        self.stream = stream
        self.kind = kind
        self._lora_request = lora_request
        self._detokenize = detokenize
        self.finished = False
        self._texts = texts
        self._request_id = request_id
        self._prompt = prompt
        self._prompt_token_ids = stream.prompt()
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self._cached = 0
        self._outputs = [CompletionOutput(index, "", [], lora_request=lora_request) for index in range(n)]

    def add(self, delta: _quire.Delta) -> RequestOutput | None:
        """What to yield after this piece: by `kind` the whole so far, the piece alone, or nothing before the end."""
        index, text, token_ids, logprobs, prompt_logprobs, finish_reason, stop_reason, cached = delta
        piece = CompletionOutput(index, text if self._detokenize else "", token_ids, finish_reason=finish_reason,
                                 stop_reason=stop_reason, lora_request=self._lora_request)
        if logprobs is not None:
            piece.logprobs = self._texts.rows(logprobs)
            piece.cumulative_logprob = sum(row[0][2] for row in logprobs)
        if prompt_logprobs is not None:
            self._prompt_logprobs = (self._prompt_logprobs or [None]) + list(self._texts.rows(prompt_logprobs))
        self._cached = max(self._cached, cached)
        whole = self._outputs[index]
        whole.text += piece.text
        whole.token_ids += piece.token_ids
        whole.finish_reason, whole.stop_reason = finish_reason, stop_reason
        if piece.logprobs is not None:
            whole.logprobs = (whole.logprobs or []) + piece.logprobs
            whole.cumulative_logprob = (whole.cumulative_logprob or 0.0) + (piece.cumulative_logprob or 0.0)
        self.finished = all(output.finished() for output in self._outputs)
        if self.kind is RequestOutputKind.DELTA:
            return self._result([piece])
        return self.result() if self.kind is RequestOutputKind.CUMULATIVE or self.finished else None

    def result(self) -> RequestOutput:
        """All there is, in objects that later pieces do not change."""
        copies = [dataclasses.replace(output, token_ids=list(output.token_ids),
                                      logprobs=None if output.logprobs is None else list(output.logprobs))
                  for output in self._outputs]
        return self._result(copies)

    def _result(self, outputs: list[CompletionOutput]) -> RequestOutput:
        return RequestOutput(self._request_id, self._prompt, self._prompt_token_ids, self._prompt_logprobs, outputs,
                             self.finished, self._cached, self._lora_request)
