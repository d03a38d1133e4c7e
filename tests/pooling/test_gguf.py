# SPDX-License-Identifier: Apache-2.0
"""Encoders from GGUF files with llama.cpp's names and keys give the numbers of the same goldens."""

import json
import re

import gguf
import numpy as np
import pytest
from test_families import expected, tolerance
from tools.goldens import floats, gguf_families, philox, pooling_cases

BERT = [(r"^(bert\.)?embeddings\.word_embeddings", "token_embd"), (r"^(bert\.)?embeddings\.position_embeddings", "position_embd"),
        (r"^(bert\.)?embeddings\.token_type_embeddings", "token_types"), (r"^(bert\.)?embeddings\.LayerNorm", "token_embd_norm"),
        (r"^(bert\.)?encoder\.layer\.(\d+)", r"blk.\2"), (r"attention\.self\.query", "attn_q"), (r"attention\.self\.key", "attn_k"),
        (r"attention\.self\.value", "attn_v"), (r"attention\.output\.dense", "attn_output"),
        (r"attention\.output\.LayerNorm", "attn_output_norm"), (r"intermediate\.dense", "ffn_up"), (r"output\.dense", "ffn_down"),
        (r"output\.LayerNorm", "layer_output_norm"), (r"^bert\.pooler\.dense", "cls"), (r"^classifier", "cls.output")]
NOMIC = [(r"^embeddings\.word_embeddings", "token_embd"), (r"^embeddings\.token_type_embeddings", "token_types"),
         (r"^emb_ln", "token_embd_norm"), (r"^encoder\.layers\.", "blk."), (r"attn\.Wqkv", "attn_qkv"),
         (r"attn\.out_proj", "attn_output"), (r"norm1", "attn_output_norm"), (r"mlp\.fc11", "ffn_up"), (r"mlp\.fc12", "ffn_gate"),
         (r"mlp\.fc2", "ffn_down"), (r"norm2", "layer_output_norm")]
MODERN = [(r"^model\.", ""), (r"^embeddings\.tok_embeddings", "token_embd"), (r"^embeddings\.norm", "token_embd_norm"),
          (r"^final_norm", "output_norm"), (r"^layers\.", "blk."), (r"attn\.Wqkv", "attn_qkv"), (r"attn\.Wo", "attn_output"),
          (r"mlp_norm", "ffn_norm"), (r"mlp\.Wi", "ffn_up"), (r"mlp\.Wo", "ffn_down"), (r"^head\.dense", "cls"),
          (r"^head\.norm", "cls.norm"), (r"^classifier", "cls.output")]
MEAN, CLS, RANK = 1, 2, 4
FILES = {"bert": ("bert", BERT, MEAN), "bert-cross": ("bert", BERT, RANK), "nomic-bert": ("nomic-bert", NOMIC, MEAN),
         "modernbert": ("modern-bert", MODERN, CLS), "modernbert-classify": ("modern-bert", MODERN, RANK)}


def write_gguf(case, path) -> None:
    architecture, names, pooling = FILES[case.name]
    config = json.loads((pooling_cases.GOLDENS / case.name / "config.json").read_text())
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_uint32(f"{architecture}.block_count", config["num_hidden_layers"])
    writer.add_uint32(f"{architecture}.context_length", config["max_position_embeddings"])
    writer.add_uint32(f"{architecture}.embedding_length", config["hidden_size"])
    writer.add_uint32(f"{architecture}.feed_forward_length", config["intermediate_size"])
    writer.add_uint32(f"{architecture}.attention.head_count", config["num_attention_heads"])
    writer.add_float32(f"{architecture}.attention.layer_norm_epsilon", config.get("layer_norm_eps", config.get("norm_eps")))
    writer.add_bool(f"{architecture}.attention.causal", False)
    writer.add_uint32(f"{architecture}.pooling_type", pooling)
    if architecture == "modern-bert":
        writer.add_float32(f"{architecture}.rope.freq_base", config["rope_parameters"]["full_attention"]["rope_theta"])
        writer.add_uint32(f"{architecture}.attention.sliding_window", config["local_attention"])
        writer.add_uint32(f"{architecture}.attention.sliding_window_pattern", config["global_attn_every_n_layers"])
        writer.add_string(f"{architecture}.hidden_activation", config["hidden_activation"])
        if case.classifies:
            writer.add_array(f"{architecture}.classifier.output_labels", ["no", "yes"])
    else:
        writer.add_float32(f"{architecture}.rope.freq_base", 1000.0)
        writer.add_uint32("tokenizer.ggml.token_type_count", config["type_vocab_size"])
    for name, shape in json.loads((pooling_cases.GOLDENS / case.name / "tensors.json").read_text()).items():
        if name.startswith("pooler.") or "position_ids" in name:
            continue
        short = name
        for pattern, replacement in names:
            short = re.sub(pattern, replacement, short)
        writer.add_tensor(short, philox.tensor(name, tuple(shape)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_embedding_gemma(case, path) -> None:
    """As Gemma 3, with the dense layers and another name; the window is the one of config.json."""
    config = json.loads((pooling_cases.GOLDENS / case.name / "config.json").read_text())
    listed = json.loads((pooling_cases.GOLDENS / case.name / "tensors.json").read_text())
    model = gguf_families.gemma(config, {f"model.{name}": philox.tensor(name, tuple(shape)) for name, shape in listed.items()})
    dense = {f"dense_{i + 2}.weight": weight for i, weight in enumerate(pooling_cases.dense_tensors(case))}
    writer = gguf.GGUFWriter(str(path), "gemma-embedding")
    keys = model.keys | {"attention.sliding_window_pattern": config["layer_types"].index("full_attention") + 1,
                         "attention.causal": False, "pooling_type": MEAN}
    for name, value in keys.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}[type(value)]
        add(f"gemma-embedding.{name}", value)
    for name, values in (model.tensors | dense).items():
        writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def files(start, folder):
    (folder / "gguf").mkdir()
    for name in FILES:
        write_gguf(pooling_cases.find_case(name), folder / "gguf" / f"{name}.gguf")
    write_embedding_gemma(pooling_cases.find_case("gemma3-embedding"), folder / "gguf" / "gemma3-embedding.gguf")
    return start("--models-dir=gguf", "--dtype", "float32")


@pytest.mark.parametrize("name", ["bert", "nomic-bert", "modernbert", "gemma3-embedding"])
def test_embeddings_from_gguf(files, name):
    prompts = expected(pooling_cases.find_case(name))["prompts"]
    answer = files.ok("/v1/embeddings", {"model": name, "input": [prompt["tokens"] for prompt in prompts]})
    for prompt, item in zip(prompts, answer["data"], strict=True):
        ours, theirs = np.array(item["embedding"]), floats.decode(prompt["embedding"])
        assert ours @ theirs >= 0.999999


@pytest.mark.parametrize("name", ["bert-cross", "modernbert-classify"])
def test_scores_from_gguf(files, name):
    prompts = expected(pooling_cases.find_case(name))["prompts"]
    answer = files.ok("/classify", {"model": name, "use_activation": False,
                                    "input": [prompt["tokens"] for prompt in prompts]})
    for prompt, item in zip(prompts, answer["data"], strict=True):
        logits = floats.decode(prompt["logits"])
        assert np.abs(np.array(item["probs"]) - logits).max() <= tolerance(prompt["noise"], 4 * np.abs(logits).max() + 1)
