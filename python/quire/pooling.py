# SPDX-License-Identifier: Apache-2.0
"""Embeddings, classes and scores: what is asked for and what comes back, in vLLM's shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy
import numpy.typing

from . import _quire

Vector = numpy.typing.NDArray[numpy.float32]
_Output = TypeVar("_Output")


@dataclasses.dataclass(kw_only=True)
class PoolingParams:
    """What becomes of the hidden states. The values are checked with the request that uses them."""

    use_activation: bool | None = None
    """Whether embeddings are normalised, or scores go through sigmoid or softmax; None: as the model's files say."""
    dimensions: int | None = None
    """The size to which embeddings are cut, for models that were made for it (matryoshka)."""
    truncate_prompt_tokens: int | None = None
    """Longer prompts are cut to so many tokens; -1: to what the model takes; None: they are refused."""
    task: str | None = None
    """embed, classify, token_embed, token_classify, or embed&token_classify (BGE-M3)."""

    def _fields(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


def same_vectors(one: Vector, other: Vector) -> bool:
    return one.shape == other.shape and bool((one == other).all())


@dataclasses.dataclass(eq=False)
class PoolingOutput:
    """What a task makes: a vector, or a row for each token."""

    data: Vector

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PoolingOutput) and same_vectors(self.data, other.data)


@dataclasses.dataclass(eq=False)
class EmbeddingOutput:
    embedding: Vector

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EmbeddingOutput) and same_vectors(self.embedding, other.embedding)

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclasses.dataclass(eq=False)
class ClassificationOutput:
    probs: Vector

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClassificationOutput) and same_vectors(self.probs, other.probs)

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclasses.dataclass
class ScoringOutput:
    score: float


@dataclasses.dataclass
class PoolingRequestOutput(Generic[_Output]):
    """The answer to one prompt."""

    request_id: str
    outputs: _Output
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """The embedding of one prompt."""


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """The probabilities of the classes of one prompt."""


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """How well a text answers another."""


def pool_fields(fields: Mapping[str, Any], params: PoolingParams | None, task: str | None,
                tokenization_kwargs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The fields of a request with a task."""
    if params is not None and not isinstance(params, PoolingParams):
        raise TypeError(f"pooling_params must be of the type PoolingParams, not {type(params).__name__}")
    out = {**fields, **(params._fields() if params is not None else {}), **(tokenization_kwargs or {})}
    if task is not None:
        if out.get("task", task) != task:
            raise ValueError(f"the task of pooling_params is {out['task']}, but {task} was called for")
        out["task"] = task
    if "task" not in out:
        raise ValueError("encode needs a pooling_task: embed, classify, token_embed or token_classify")
    return out


def take(stream: _quire.Stream, request_id: str, delta: _quire.Delta) -> PoolingRequestOutput[PoolingOutput]:
    """The answer of a stream behind its only piece."""
    data = stream.pooled()
    if data is None:
        raise RuntimeError("the request was aborted")
    return PoolingRequestOutput(request_id, PoolingOutput(data), stream.prompt(), delta[-1])


def pair_up(first: str | Sequence[str], second: str | Sequence[str]) -> tuple[list[str], list[str]]:
    """Queries and documents, matched 1:1, 1:N or N:N: as many of each."""
    if isinstance(first, Mapping) or isinstance(second, Mapping):
        raise TypeError("score takes texts, or lists of texts")
    queries = [first] if isinstance(first, str) else list(first)
    documents = [second] if isinstance(second, str) else list(second)
    if not all(isinstance(text, str) for text in queries + documents):
        raise TypeError("score takes texts, or lists of texts")
    if not queries or not documents:
        raise ValueError("score needs at least one text on each side")
    if len(queries) == 1:
        queries *= len(documents)
    if len(queries) != len(documents):
        raise ValueError(f"there are {len(queries)} first texts and {len(documents)} second ones; give one first text, "
                         "or one for each")
    return queries, documents
