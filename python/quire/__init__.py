# SPDX-License-Identifier: Apache-2.0
"""quire: run language models, with vLLM's Python API. docs/python.md describes it."""

from ._quire import version as _version
from .async_llm import AsyncLLM, AsyncLLMEngine
from .beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from .engine_args import AsyncEngineArgs, EngineArgs, FlexibleArgumentParser
from .llm import LLM, TextPrompt, Tokenizer, TokensPrompt
from .outputs import CompletionOutput, Logprob, LoRARequest, RequestOutput
from .pooling import (ClassificationOutput, ClassificationRequestOutput, EmbeddingOutput, EmbeddingRequestOutput,
                      PoolingOutput, PoolingParams, PoolingRequestOutput, ScoringOutput, ScoringRequestOutput)
from .sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

__version__: str = _version()

__all__ = ["AsyncEngineArgs", "AsyncLLM", "AsyncLLMEngine", "BeamSearchOutput", "BeamSearchParams", "BeamSearchSequence",
           "ClassificationOutput", "ClassificationRequestOutput", "CompletionOutput", "EmbeddingOutput",
           "EmbeddingRequestOutput", "EngineArgs", "FlexibleArgumentParser", "LLM", "LoRARequest", "Logprob", "PoolingOutput", "PoolingParams",
           "PoolingRequestOutput", "RequestOutput", "RequestOutputKind", "SamplingParams", "ScoringOutput",
           "ScoringRequestOutput", "StructuredOutputsParams", "TextPrompt", "Tokenizer", "TokensPrompt", "__version__"]
