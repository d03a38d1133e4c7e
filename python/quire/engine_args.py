# SPDX-License-Identifier: Apache-2.0
"""EngineArgs: the arguments of LLM and AsyncLLM as an object, as vLLM has them, and as flags of a program."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, Union

from . import _quire

_Parser = TypeVar("_Parser", bound=argparse._ActionsContainer)
_Args = TypeVar("_Args", bound="EngineArgs")

Size: TypeAlias = Union[int, str]
"""Bytes or tokens: a number, or a text such as "4GiB" or "8k"."""
JsonObject: TypeAlias = Union[str, Mapping[str, Any]]


@dataclasses.dataclass
class EngineArgs:
    """The flags of `quire run --help` with underscores, and what programs for vLLM give besides. None: not given."""

    model: str | os.PathLike[str] = ""
    """A folder, a .gguf, a cached name, or "" for the default model."""
    dtype: str | None = None
    load_format: str | None = None
    quantization: str | None = None
    max_model_len: Size | None = None
    tokenizer: str | os.PathLike[str] | None = None
    chat_template: str | os.PathLike[str] | None = None
    allow_special_tokens_in_content: bool | None = None
    generation_config: str | None = None
    override_generation_config: JsonObject | None = None
    runner: str | None = None
    convert: str | None = None
    pooler_config: JsonObject | None = None
    hf_overrides: JsonObject | None = None
    seed: int | None = None
    kv_cache_dtype: str | None = None
    block_size: int | None = None
    kv_cache_memory_bytes: Size | None = None
    gpu_memory_utilization: float | None = None
    num_gpu_blocks_override: int | None = None
    enable_prefix_caching: bool | None = None
    prefix_match_unit: int | None = None
    prefix_cache_retention_interval: int | None = None
    kv_offload_dir: str | os.PathLike[str] | None = None
    kv_offload_size: Size | None = None
    kv_offload_host_bytes: Size | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    fair_share_tokens: int | None = None
    long_prefill_token_threshold: int | None = None
    enable_chunked_prefill: bool | None = None
    scheduling_policy: str | None = None
    async_scheduling: bool | None = None
    speculative_config: JsonObject | None = None
    max_logprobs: int | None = None
    enable_lora: bool | None = None
    max_loras: int | None = None
    max_lora_rank: int | None = None
    max_cpu_loras: int | None = None
    lora_dtype: str | None = None
    lora_target_modules: Sequence[str] | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    enable_expert_parallel: bool | None = None
    device: str | None = None
    threads: int | None = None
    cpu_isa: str | None = None
    profile: str | os.PathLike[str] | None = None
    # vLLM's, of which task sets runner and convert; the others change nothing, and a warning says why.
    task: str | None = None
    trust_remote_code: bool | None = None
    enforce_eager: bool | None = None
    max_seq_len_to_capture: int | None = None
    swap_space: float | None = None
    disable_custom_all_reduce: bool | None = None
    disable_log_stats: bool | None = None
    attention_backend: str | None = None
    calculate_kv_scales: bool | None = None
    config_format: str | None = None
    disable_cascade_attn: bool | None = None
    disable_hybrid_kv_cache_manager: bool | None = None
    distributed_executor_backend: str | None = None
    enable_dbo: bool | None = None
    guided_decoding_backend: str | None = None
    language_model_only: bool | None = None
    max_parallel_loading_workers: int | None = None
    mm_processor_cache_gb: float | None = None
    model_impl: str | None = None
    num_scheduler_steps: int | None = None
    optimization_level: int | None = None
    served_model_name: str | Sequence[str] | None = None
    stream_interval: int | None = None
    use_tqdm_on_load: bool | None = None
    use_v2_block_manager: bool | None = None
    # vLLM's, which are refused with the reason unless the value asks for nothing.
    additional_config: JsonObject | None = None
    compilation_config: int | JsonObject | None = None
    cpu_offload_gb: float | None = None
    data_parallel_size: int | None = None
    disable_sliding_window: bool | None = None
    download_dir: str | None = None
    enable_prompt_embeds: bool | None = None
    enable_sleep_mode: bool | None = None
    fully_sharded_loras: bool | None = None
    hf_token: bool | str | None = None
    kv_transfer_config: JsonObject | None = None
    limit_mm_per_prompt: JsonObject | None = None
    logits_processors: Sequence[Any] | None = None
    logprobs_mode: str | None = None
    mm_processor_kwargs: JsonObject | None = None
    model_loader_extra_config: JsonObject | None = None
    nnodes: int | None = None
    reasoning_parser: str | None = None
    revision: str | None = None
    skip_tokenizer_init: bool | None = None
    structured_outputs_config: JsonObject | None = None
    tokenizer_mode: str | None = None
    tokenizer_revision: str | None = None
    worker_cls: str | None = None

    @staticmethod
    def add_cli_args(parser: _Parser) -> _Parser:
        """Adds a flag for each field to an argparse parser or to a group of one. What is not given is None."""
        return add_flags(parser, dataclasses.fields(EngineArgs))

    @classmethod
    def from_cli_args(cls: type[_Args], args: argparse.Namespace) -> _Args:
        """The arguments among those that a parser found; it may have others, too."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in vars(args).items() if name in names})

    def _options(self) -> dict[str, Any]:
        """The keyword arguments of LLM that are given."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in fields.items() if value is not None}


@dataclasses.dataclass
class AsyncEngineArgs(EngineArgs):
    """The same with what vLLM has for AsyncLLM alone: requests are not logged, whatever these say."""

    enable_log_requests: bool | None = None
    disable_log_requests: bool | None = None

    @staticmethod
    def add_cli_args(parser: _Parser, async_args_only: bool = False) -> _Parser:
        """The same with those that only AsyncEngineArgs has, or with these alone."""
        if not async_args_only:
            EngineArgs.add_cli_args(parser)
        inherited = {field.name for field in dataclasses.fields(EngineArgs)}
        return add_flags(parser, [field for field in dataclasses.fields(AsyncEngineArgs) if field.name not in inherited])


SHORT_NAMES = {"tensor_parallel_size": ["-tp"], "pipeline_parallel_size": ["-pp"], "data_parallel_size": ["-dp"]}


def size(text: str) -> Size:
    return int(text) if text.isdecimal() else text


def add_flags(parser: _Parser, fields: Iterable[dataclasses.Field[Any]]) -> _Parser:
    helps: dict[str, str] = json.loads(_quire.options())
    for field in fields:
        kinds = {kind.strip() for kind in str(field.type).split("|")}
        more: dict[str, Any] = {}
        if kinds == {"bool", "None"}:
            more["action"] = argparse.BooleanOptionalAction
        elif "bool" in kinds:
            more |= {"nargs": "?", "const": True}
        elif any(kind.startswith("Sequence[") for kind in kinds):
            more["nargs"] = "+"
        elif "Size" in kinds:
            more["type"] = size
        elif kinds == {"int", "None"}:
            more["type"] = int
        elif kinds == {"float", "None"}:
            more["type"] = float
        parser.add_argument("--" + field.name.replace("_", "-"), *SHORT_NAMES.get(field.name, []), dest=field.name,
                            default=field.default, help=helps[field.name].replace("%", "%%"), **more)
    return parser


class FlexibleArgumentParser(argparse.ArgumentParser):
    """argparse's parser, which takes --max_model_len for --max-model-len, as vLLM's parser does."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        given = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args([self._dashed(one) for one in given], namespace)

    @staticmethod
    def _dashed(given: str) -> str:
        name, equals, value = given.partition("=")
        return name.replace("_", "-") + equals + value if given.startswith("--") else given
