# SPDX-License-Identifier: Apache-2.0
"""SamplingParams, BeamSearchParams and what belongs to them, with vLLM's names and defaults."""

from __future__ import annotations

import copy
import dataclasses
import enum
import json as json_module
import math
import numbers
import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any


class RequestOutputKind(enum.Enum):
    """What a stream yields."""

    CUMULATIVE = 0
    """Each time the whole answer so far."""
    DELTA = 1
    """Each time only what is new."""
    FINAL_ONLY = 2
    """Once, at the end."""


@dataclasses.dataclass(kw_only=True)
class StructuredOutputsParams:
    """What the answer must look like: exactly one of the first six."""

    json: str | Mapping[str, Any] | None = None
    """A JSON Schema, as a dict or as text."""
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    """EBNF, GBNF or Lark."""
    json_object: bool | None = None
    structural_tag: str | Mapping[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = True
    whitespace_pattern: str | None = None


@dataclasses.dataclass(kw_only=True)
class SamplingParams:
    """How tokens are chosen, and when an answer ends. The values are checked with the request that uses them."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    seed: int | None = None
    """None, or -1: another one for each request."""
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    """None: as many as fit into the model's context."""
    min_tokens: int = 0
    logprobs: int | None = None  # True: 1
    """The number of likeliest tokens whose log probabilities are returned; -1: all."""
    prompt_logprobs: int | None = None
    detokenize: bool = True
    """False: answers have token ids and no text."""
    truncate_prompt_tokens: int | None = None
    """The prompt's last tokens that are used; -1: as many as fit."""
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    structured_outputs: StructuredOutputsParams | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    # Of vLLM's, and only as they are here.
    logits_processors: None = None
    extra_args: None = None
    flat_logprobs: bool = False
    skip_clone: bool = False

    def __post_init__(self) -> None:
        for name, why in (("logits_processors", "no Python runs between two tokens; logit_bias, bad_words and "
                           "structured_outputs say what a processor would"),
                          ("extra_args", "there are no plugins that would read them"),
                          ("flat_logprobs", "logprobs are a list with a dict for each token")):
            if getattr(self, name):
                raise ValueError(f"{name} is not supported: {why}")
        # The forms that vLLM gives them, which programs rely on when they change the parameters.
        self.stop = [self.stop] if isinstance(self.stop, str) else [] if self.stop is None else self.stop
        self.stop_token_ids = [] if self.stop_token_ids is None else self.stop_token_ids
        self.bad_words = [] if self.bad_words is None else self.bad_words
        self.seed = None if self.seed == -1 else self.seed
        self.logprobs = 1 if self.logprobs is True else self.logprobs
        self.prompt_logprobs = 1 if self.prompt_logprobs is True else self.prompt_logprobs

    @classmethod
    def from_optional(cls, **params: Any) -> SamplingParams:
        """With the default of each parameter that is None, but for max_tokens."""
        return cls(**{name: value for name, value in params.items() if value is not None or name == "max_tokens"})

    def clone(self) -> SamplingParams:
        """A copy that shares nothing with this one."""
        return copy.deepcopy(self)

    def _fields(self) -> dict[str, Any]:
        """The fields of a request. What is None is left out, except for max_tokens, where it has a meaning."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name in ("output_kind", "detokenize", "logits_processors", "extra_args", "flat_logprobs", "skip_clone"):
            del fields[name]
        for name in ("stop", "stop_token_ids", "bad_words"):
            if isinstance(fields[name], list) and not fields[name]:
                del fields[name]
        if self.structured_outputs is not None:
            if not isinstance(self.structured_outputs, StructuredOutputsParams):
                raise TypeError("structured_outputs must be a StructuredOutputsParams, not "
                                f"{type(self.structured_outputs).__name__}")
            constraint = vars(self.structured_outputs)
            fields["structured_outputs"] = {name: value for name, value in constraint.items() if value is not None}
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, Mapping):
                raise TypeError(f"logit_bias must map token ids to numbers, not be a {type(self.logit_bias).__name__}")
            fields["logit_bias"] = {str(token): value for token, value in self.logit_bias.items()}
        return {name: value for name, value in fields.items() if value is not None or name == "max_tokens"}


@dataclasses.dataclass(kw_only=True)
class BeamSearchParams:
    beam_width: int
    """How many answers are pursued, and returned."""
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    """Only 0: the likeliest tokens are taken."""
    length_penalty: float = 1.0
    """A beam's score is the sum of its log probabilities, divided by its length, prompt included, to this power."""
    include_stop_str_in_output: bool = False
    """Whether the end token is among the tokens of an answer that ended."""

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_tokens"):
            try:
                setattr(self, name, operator.index(getattr(self, name)))
            except TypeError:
                raise TypeError(f"{name} must be an integer, not {type(getattr(self, name)).__name__}") from None
        if not isinstance(self.length_penalty, numbers.Real):
            raise TypeError(f"length_penalty must be a number, not {type(self.length_penalty).__name__}")
        if not math.isfinite(self.length_penalty):
            raise ValueError(f"length_penalty must be finite, got {self.length_penalty}")
        if self.beam_width < 1 or self.max_tokens < 1:
            raise ValueError("beam_width and max_tokens must be at least 1")
        if self.temperature != 0:
            raise ValueError("temperature must be 0: beam search takes the likeliest tokens, and none at random")

    def _step_params(self) -> SamplingParams:
        """What a step asks for, for each beam."""
        return SamplingParams(temperature=0, max_tokens=1, logprobs=2 * self.beam_width, ignore_eos=True,
                              detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)


def to_json(value: Any) -> str:
    """JSON text, also of numpy's numbers and arrays and of sequences and mappings of other types."""
    return json_module.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"a request cannot have a value of type {type(value).__name__}")
