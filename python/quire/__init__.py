# SPDX-License-Identifier: Apache-2.0
"""quire: run language models, with vLLM's Python API. docs/python.md describes it."""

from ._quire import version as _version
from .async_llm import AsyncLLM, AsyncLLMEngine
from .beam_search import BeamSearchOutput, BeamSearchSequence
from .engine_args import AsyncEngineArgs, EngineArgs, FlexibleArgumentParser
from .llm import LLM, TextPrompt, Tokenizer, TokensPrompt
from .llm_engine import LLMEngine
from .outputs import CompletionOutput, Logprob, LoRARequest, RequestOutput
from .pooling import (ClassificationOutput, ClassificationRequestOutput, EmbeddingOutput, EmbeddingRequestOutput,
                      PoolingOutput, PoolingParams, PoolingRequestOutput, ScoringOutput, ScoringRequestOutput)
from .sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams, StructuredOutputsParams
from .vllm_modules import register as _register

__version__: str = _version()

__all__ = ["AsyncEngineArgs", "AsyncLLM", "AsyncLLMEngine", "BeamSearchOutput", "BeamSearchParams", "BeamSearchSequence",
           "ClassificationOutput", "ClassificationRequestOutput", "CompletionOutput", "EmbeddingOutput",
           "EmbeddingRequestOutput", "EngineArgs", "FlexibleArgumentParser", "LLM", "LLMEngine", "LoRARequest", "Logprob",
           "PoolingOutput", "PoolingParams", "PoolingRequestOutput", "RequestOutput", "RequestOutputKind",
           "SamplingParams", "ScoringOutput", "ScoringRequestOutput", "StructuredOutputsParams", "TextPrompt", "Tokenizer",
           "TokensPrompt", "__version__"]

_register()
