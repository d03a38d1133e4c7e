# SPDX-License-Identifier: Apache-2.0
"""Writes a GGUF of a real model's shape with seeded random weights: for measuring speed, not for answers.

Usage: python -m tools.shapes.make --out FILE.gguf --type Q8_0                        Qwen3-0.6B's shape
       python -m tools.shapes.make --out FILE.gguf --type Q4_0 --shape llama-3.2-1b
       python -m tools.shapes.make --out FILE.gguf --type Q8_0 --shape qwen3.5-0.8b        gated delta nets and attention
       python -m tools.shapes.make --out FILE.gguf --type Q8_0 --shape qwen3-moe-small     64 experts, 8 for each token
       python -m tools.shapes.make --out FILE.gguf --type BF16 --layers 12 --hidden 768 --ffn 2304 --heads 12 --kv-heads 4
       python -m tools.shapes.make --out FILE.gguf --tokenizer-from SmolLM2-135M-Instruct.Q4_1.gguf

quire and llama.cpp both load the file. A weight is a function of (seed, tensor name), so that all types of one shape are
roundings of the same model. Matrices have variance 1/inputs, those that write into the residual stream 1/(2 * layers) of
that, so that activations keep their size through any number of layers and logits have a variance of about one.
One tensor at a time is in memory. Needs numpy and the gguf package (build/venv, made by scripts/test, has both).
"""

import argparse
import dataclasses
import math
import pathlib
import sys
import time
import zlib
from collections.abc import Iterator

import gguf
import numpy as np

from tools.goldens import kquants, tiny_tokenizer

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", *kquants.PACKERS)
FILE_TYPES = {"F32": "ALL_F32", "Q3_K": "MOSTLY_Q3_K_M", "Q4_K": "MOSTLY_Q4_K_M", "Q5_K": "MOSTLY_Q5_K_M"}
MIXES = {"Q4_K_M": ("Q4_K", "Q6_K"), "Q5_K_M": ("Q5_K", "Q6_K")}  # what people download: some matrices are wider
PIECE = 1 << 22  # values drawn and quantised at a time


@dataclasses.dataclass
class Shape:
    """The numbers that a shape has; each is a flag of the same name."""
    architecture: str = "qwen3"  # llama has no norms on q and k; qwen3moe has experts; qwen35 three gated delta nets to one attention
    layers: int = 28
    hidden: int = 1024
    heads: int = 16
    kv_heads: int = 8
    head_dim: int = 128
    ffn: int = 3072
    vocab: int = 151936
    tied: bool = True
    rope_theta: float = 1e6
    context: int = 40960
    norm_eps: float = 1e-6
    experts: int = 0  # of qwen3moe; ffn is then the width of one expert
    experts_used: int = 0
    delta_key_heads: int = 0  # of qwen35's gated delta nets
    delta_value_heads: int = 0
    delta_head_dim: int = 128
    rotary_dim: int = 0  # elements of a head that rotate; 0: all
    full_every: int = 4  # qwen35: every fourth layer has attention


SHAPES = {
    "qwen3-0.6b": Shape(),
    "qwen3-1.7b": Shape(hidden=2048, ffn=6144),
    "qwen3-4b": Shape(layers=36, hidden=2560, heads=32, ffn=9728),
    "qwen3-moe-small": Shape("qwen3moe", 12, 1024, 16, 4, 128, 384, 151936, True, 1e6, 40960, 1e-6, experts=64, experts_used=8),
    "qwen3.5-0.8b": Shape("qwen35", 24, 1024, 8, 2, 256, 3584, 248320, True, 1e7, 262144, 1e-6, delta_key_heads=16,
                          delta_value_heads=16, rotary_dim=64),
    "smollm2-135m": Shape("llama", 30, 576, 9, 3, 64, 1536, 49152, True, 1e5, 8192, 1e-5),
    "llama-3.2-1b": Shape("llama", 16, 2048, 32, 8, 64, 8192, 128256, True, 5e5, 131072, 1e-5),
    "tinyllama-1.1b": Shape("llama", 22, 2048, 32, 4, 64, 5632, 32000, False, 1e4, 2048, 1e-5),
}


@dataclasses.dataclass
class Tensor:
    """One tensor to be drawn: its name in GGUF, shape with the columns last, type, standard deviation and mean."""
    name: str
    shape: tuple[int, ...]
    dtype: str
    deviation: float
    mean: float = 0.0


class Layers:
    """The tensors of a shape's layers, part by part."""

    def __init__(self, shape: Shape, dtype: str):
        self.shape = shape
        self.dtype, self.wider = MIXES.get(dtype, (dtype, dtype))
        self.into_residual = 1 / math.sqrt(2 * shape.layers)

    def matrix(self, name: str, *size: int, dtype: str = "", scale: float = 1.0) -> Tensor:
        return Tensor(name + ".weight", size, dtype or self.dtype, scale / math.sqrt(size[-1]))

    def more_bits(self, at: str) -> str:
        """The type of attn_v and ffn_down: wider in the first and last eighth of the layers, and in every third between."""
        index, eighth = int(at.split(".")[1]), self.shape.layers // 8
        wide = index < eighth or index >= self.shape.layers - eighth or (index - eighth) % 3 == 2
        return self.wider if wide else self.dtype

    @staticmethod
    def norm(name: str, width: int) -> Tensor:
        return Tensor(name + ".weight", (width,), "F32", 0.1, 1.0)

    def attention(self, at: str) -> Iterator[Tensor]:
        s = self.shape
        q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
        yield self.matrix(at + "attn_q", 2 * q if s.architecture == "qwen35" else q, s.hidden)  # with a gate per head
        yield self.matrix(at + "attn_k", kv, s.hidden)
        yield self.matrix(at + "attn_v", kv, s.hidden, dtype=self.more_bits(at))
        yield self.matrix(at + "attn_output", s.hidden, q, scale=self.into_residual)
        if s.architecture != "llama":
            yield self.norm(at + "attn_q_norm", s.head_dim)
            yield self.norm(at + "attn_k_norm", s.head_dim)

    def delta_net(self, at: str) -> Iterator[Tensor]:
        s = self.shape
        values, channels = s.delta_value_heads * s.delta_head_dim, (2 * s.delta_key_heads + s.delta_value_heads) * s.delta_head_dim
        yield self.matrix(at + "attn_qkv", channels, s.hidden)
        yield self.matrix(at + "attn_gate", values, s.hidden)
        yield self.matrix(at + "ssm_conv1d", channels, 4, dtype="F32")
        yield Tensor(at + "ssm_dt.bias", (s.delta_value_heads,), "F32", 0.5, -2.0)  # a state decays by about a tenth per token
        yield Tensor(at + "ssm_a", (s.delta_value_heads,), "F32", 0.1, -1.0)
        yield self.matrix(at + "ssm_beta", s.delta_value_heads, s.hidden)
        yield self.matrix(at + "ssm_alpha", s.delta_value_heads, s.hidden)
        yield self.norm(at + "ssm_norm", s.delta_head_dim)
        yield self.matrix(at + "ssm_out", s.hidden, values, scale=self.into_residual)

    def feed(self, at: str) -> Iterator[Tensor]:
        s = self.shape
        stack, end = ((s.experts,), "_exps") if s.experts else ((), "")
        if s.experts:
            yield self.matrix(at + "ffn_gate_inp", s.experts, s.hidden, dtype="F32")
        yield self.matrix(at + "ffn_gate" + end, *stack, s.ffn, s.hidden)
        yield self.matrix(at + "ffn_up" + end, *stack, s.ffn, s.hidden)
        yield self.matrix(at + "ffn_down" + end, *stack, s.hidden, s.ffn, dtype=self.more_bits(at),
                          scale=self.into_residual)

    def layer(self, index: int) -> Iterator[Tensor]:
        s, at = self.shape, f"blk.{index}."
        hybrid = s.architecture == "qwen35"
        yield self.norm(at + "attn_norm", s.hidden)
        yield from self.delta_net(at) if hybrid and (index + 1) % s.full_every else self.attention(at)
        yield self.norm(at + ("post_attention_norm" if hybrid else "ffn_norm"), s.hidden)
        yield from self.feed(at)


def tensors(shape: Shape, dtype: str, embedding_type: str) -> Iterator[Tensor]:
    """Every tensor in the order of the file."""
    layers = Layers(shape, dtype)
    yield layers.matrix("token_embd", shape.vocab, shape.hidden, dtype=embedding_type)
    if not shape.tied:
        yield layers.matrix("output", shape.vocab, shape.hidden, dtype=embedding_type)
    yield layers.norm("output_norm", shape.hidden)
    for index in range(shape.layers):
        yield from layers.layer(index)


def row_bytes(columns: int, dtype: str) -> int:
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype]]
    if columns % block:
        raise ValueError(f"{dtype} needs rows of a multiple of {block} values; this shape has rows of {columns}")
    return columns // block * size


def pack(rows: np.ndarray, dtype: str) -> np.ndarray:
    """[rows, columns] float32 -> the bytes of the rows."""
    if dtype in kquants.PACKERS:
        return kquants.quantize(rows, dtype)
    return gguf.quants.quantize(rows, gguf.GGMLQuantizationType[dtype]).view(np.uint8)


def draw(tensor: Tensor, seed: int) -> np.ndarray:
    """The tensor as in the file: float32 for F32, else the bytes of the rows."""
    random = np.random.Generator(np.random.SFC64([seed, zlib.crc32(tensor.name.encode())]))
    if len(tensor.shape) == 1:  # the weight of a norm is around one
        return np.float32(tensor.mean) + random.standard_normal(tensor.shape, dtype=np.float32) * np.float32(tensor.deviation)
    rows, columns = math.prod(tensor.shape[:-1]), tensor.shape[-1]
    out = np.empty((rows, row_bytes(columns, tensor.dtype)), dtype=np.uint8)
    step = max(1, PIECE // columns)
    for at in range(0, rows, step):
        values = random.standard_normal((min(step, rows - at), columns), dtype=np.float32)
        values *= np.float32(tensor.deviation)
        out[at:at + step] = pack(values, tensor.dtype)
    return out.reshape(*tensor.shape[:-1], -1)


def add_kind(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """The keys of an architecture in addition to the common ones."""
    if shape.architecture == "llama":
        writer.add_rope_dimension_count(shape.head_dim)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.experts_used)
        writer.add_expert_feed_forward_length(shape.ffn)
    if shape.architecture == "qwen35":
        pairs = shape.rotary_dim // 2  # shared by the three axes of a picture's positions; text has the same position on all axes
        writer.add_rope_dimension_count(shape.rotary_dim)
        writer.add_array("qwen35.rope.dimension_sections", [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0])
        sizes = {"conv_kernel": 4, "state_size": shape.delta_head_dim, "group_count": shape.delta_key_heads,
                 "time_step_rank": shape.delta_value_heads, "inner_size": shape.delta_value_heads * shape.delta_head_dim}
        for key, value in sizes.items():  # by name, since older gguf packages lack some of the methods
            writer.add_uint32(f"qwen35.ssm.{key}", value)
        writer.add_uint32("qwen35.full_attention_interval", shape.full_every)


def add_metadata(writer: gguf.GGUFWriter, shape: Shape, name: str, dtype: str) -> None:
    writer.add_type("model")
    writer.add_name(name)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_vocab_size(shape.vocab)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    add_kind(writer, shape)
    writer.add_file_type(gguf.LlamaFileType[FILE_TYPES.get(dtype, f"MOSTLY_{dtype}")])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def read_tokenizer(path: pathlib.Path) -> dict:
    """The vocabulary of another GGUF: its tokenizer.* keys."""
    reader = gguf.GGUFReader(path)
    return {key: field.contents() for key, field in reader.fields.items() if key.startswith("tokenizer.")}


def tiny_keys(vocab: int) -> dict:
    """A byte-level BPE with a few merges, for files that are not used with text."""
    tokens = tiny_tokenizer.vocabulary(min(vocab, 512))
    control = {tiny_tokenizer.BOS_TEXT, tiny_tokenizer.EOS_TEXT}
    tokens = [t for t in tokens if t in control or not t.startswith("<|")]
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [int(gguf.TokenType.CONTROL if t in control else gguf.TokenType.NORMAL) for t in tokens],
            "tokenizer.ggml.merges": tiny_tokenizer.usable_merges(vocab), "tokenizer.ggml.bos_token_id": tiny_tokenizer.BOS,
            "tokenizer.ggml.eos_token_id": tiny_tokenizer.EOS, "tokenizer.ggml.padding_token_id": tiny_tokenizer.EOS,
            "tokenizer.ggml.add_bos_token": False, "tokenizer.chat_template": tiny_tokenizer.CHAT_TEMPLATE}


def add_tokenizer(writer: gguf.GGUFWriter, keys: dict, vocab: int) -> None:
    """Writes `keys` with the vocabulary filled up to `vocab` with tokens that no merge produces: they can be printed, but no text encodes to them."""
    tokens, kinds = list(keys["tokenizer.ggml.tokens"]), list(keys["tokenizer.ggml.token_type"])
    if len(tokens) > vocab:
        raise ValueError(f"the tokenizer has {len(tokens)} tokens and the shape's vocabulary {vocab}: raise --vocab or use another one")
    more = [f"word{i}" for i in range(len(tokens), vocab)]
    filled = {**keys, "tokenizer.ggml.tokens": tokens + more,
              "tokenizer.ggml.token_type": kinds + [int(gguf.TokenType.NORMAL)] * len(more)}
    if "tokenizer.ggml.scores" in filled:
        filled["tokenizer.ggml.scores"] = list(filled["tokenizer.ggml.scores"]) + [-1e6] * len(more)
    for key, value in filled.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)


def write_model(path: pathlib.Path, shape: Shape, dtype: str, embedding_type: str, seed: int, tokenizer: dict) -> None:
    wanted = list(tensors(shape, dtype, embedding_type))
    sizes = [row_bytes(t.shape[-1], t.dtype) for t in wanted]  # reports what does not fit before anything is written
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, shape.architecture)
    add_metadata(writer, shape, "Random weights", dtype)
    add_tokenizer(writer, tokenizer, shape.vocab)
    for tensor, size in zip(wanted, sizes):
        if len(tensor.shape) == 1:
            writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), 4 * tensor.shape[0])
        else:
            packed = (*tensor.shape[:-1], size)
            writer.add_tensor_info(tensor.name, packed, np.dtype(np.uint8), math.prod(packed),
                                   raw_dtype=gguf.GGMLQuantizationType[tensor.dtype])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in wanted:
        writer.write_tensor_data(draw(tensor, seed))
    writer.close()


def read_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the .gguf to write")
    parser.add_argument("--type", choices=[*TYPES, *MIXES], default="Q8_0", help="of the matrices; norms are F32")
    parser.add_argument("--embedding-type", choices=TYPES, help="of token_embd and output; default: --type, but Q8_0 for "
                        "types below eight bits, as quantisers keep these tensors wider, too, and Q6_K for mixes")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b", help="defaults of the flags below")
    for field in dataclasses.fields(Shape):
        kind = {"type": str, "choices": ["qwen3", "llama", "qwen3moe", "qwen35"]} if field.name == "architecture" else \
            {"action": argparse.BooleanOptionalAction} if field.name == "tied" else {"type": type(field.default)}
        parser.add_argument("--" + field.name.replace("_", "-"), default=None, **kind)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer-from", type=pathlib.Path, metavar="GGUF", help="use the vocabulary of this file (filled up to the "
                        "shape's), so that text has as many tokens as for a real model; default: a tiny one of bytes")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = read_options(arguments)
    given = {f.name: getattr(options, f.name) for f in dataclasses.fields(Shape) if getattr(options, f.name) is not None}
    shape = dataclasses.replace(SHAPES[options.shape], **given)
    embedding = options.type if options.type in ("F32", "F16", "BF16", "Q8_0") else MIXES.get(options.type, ("", "Q8_0"))[1]
    begin = time.monotonic()
    try:
        tokenizer = read_tokenizer(options.tokenizer_from) if options.tokenizer_from else tiny_keys(shape.vocab)
        write_model(options.out, shape, options.type, options.embedding_type or embedding, options.seed, tokenizer)
    except (ValueError, OSError) as error:
        print(f"{options.out}: {error}", file=sys.stderr)
        return 1
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.0f} MB in {time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
