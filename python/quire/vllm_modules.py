# SPDX-License-Identifier: Apache-2.0
"""The modules in which vLLM has its names, so that `from vllm.lora.request import LoRARequest` works with quire, too."""

import sys
import types

POOLING = ("ClassificationOutput", "ClassificationRequestOutput", "EmbeddingOutput", "EmbeddingRequestOutput",
           "PoolingOutput", "PoolingRequestOutput", "ScoringOutput", "ScoringRequestOutput")
MODULES = {
    "engine.arg_utils": ("AsyncEngineArgs", "EngineArgs"),
    "engine.async_llm_engine": ("AsyncLLMEngine",),
    "engine.llm_engine": ("LLMEngine",),
    "entrypoints.llm": ("LLM",),
    "inputs": ("TextPrompt", "TokensPrompt"),
    "logprobs": ("Logprob",),
    "lora.request": ("LoRARequest",),
    "outputs": POOLING,
    "pooling_params": ("PoolingParams",),
    "utils": ("FlexibleArgumentParser",),
    "utils.argparse_utils": ("FlexibleArgumentParser",),
    "v1.engine.async_llm": ("AsyncLLM",),
    "v1.engine.llm_engine": ("LLMEngine",),
}


def register() -> None:
    """Makes the modules, with names that the package has already. Called once, when the package is imported."""
    package = sys.modules[__package__]
    for path, names in MODULES.items():
        module = package
        for part in path.split("."):
            name = f"{module.__name__}.{part}"
            if name not in sys.modules:
                made = types.ModuleType(name, "Names of vLLM's module of this name (vllm_modules.py).")
                made.__path__ = []  # a package, since it may have modules
                sys.modules[name] = made
                setattr(module, part, made)
            module = sys.modules[name]
        for one in names:
            setattr(module, one, getattr(package, one))
