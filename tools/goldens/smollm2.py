# SPDX-License-Identifier: Apache-2.0
"""The reference for a real model: transformers in float32 on the dequantised weights of SmolLM2-135M-Instruct Q4_1.

Usage: python -m tools.goldens.smollm2 --model FILE.gguf            writes tests/goldens/smollm2
       python -m tools.goldens.smollm2 --model FILE.gguf --check    compares instead
       python -m tools.goldens.smollm2 --model FILE.gguf --logits OUT.f32   raw float32 rows [tokens, vocabulary] of the text
       ... --text FILE    takes the first 2,000 tokens of another text and stores that excerpt
"""

import argparse
import json
import pathlib
import sys

import gguf
import jinja2
import numpy as np
import tokenizers
import torch
import transformers

from tools.goldens import floats, make, reference

FOLDER = make.ROOT / "smollm2"
TEXT_TOKENS = 2000
GREEDY_TOKENS = 48
PROMPTS = [
    "The capital of France is",
    "Why is the sky blue? Answer in one sentence.",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "List three fruits that are red.",
    "Once upon a time, in a village by the sea, there lived",
    "What is 12 + 30?",
]


def read_field(reader: gguf.GGUFReader, name: str):
    return reader.fields[name].contents()


def make_config(reader: gguf.GGUFReader) -> transformers.LlamaConfig:
    return transformers.LlamaConfig(
        hidden_size=read_field(reader, "llama.embedding_length"),
        intermediate_size=read_field(reader, "llama.feed_forward_length"),
        num_hidden_layers=read_field(reader, "llama.block_count"),
        num_attention_heads=read_field(reader, "llama.attention.head_count"),
        num_key_value_heads=read_field(reader, "llama.attention.head_count_kv"),
        vocab_size=read_field(reader, "llama.vocab_size"),
        max_position_embeddings=read_field(reader, "llama.context_length"),
        rms_norm_eps=read_field(reader, "llama.attention.layer_norm_rms_epsilon"), tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": read_field(reader, "llama.rope.freq_base")})


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """GGUF interleaves the two halves of each head of Llama's q and k; Hugging Face does not."""
    return rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def hf_name(name: str) -> str:
    top = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if name in top:
        return top[name]
    _, layer, kind, _ = name.split(".")
    parts = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    return f"model.layers.{layer}.{parts[kind]}.weight"


def load_model(path: pathlib.Path):
    reader = gguf.GGUFReader(path)
    config = make_config(reader)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    parameters = dict(model.named_parameters())
    for t in reader.tensors:
        values = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        if ".attn_q." in t.name:
            values = unpermute(values, config.num_attention_heads)
        if ".attn_k." in t.name:
            values = unpermute(values, config.num_key_value_heads)
        with torch.no_grad():
            parameters.pop(hf_name(t.name)).copy_(torch.from_numpy(np.ascontiguousarray(values)))
    if parameters:
        raise RuntimeError(f"{path} lacks {sorted(parameters)}")
    return reader, model.eval()


def load_tokenizer(reader: gguf.GGUFReader) -> tokenizers.Tokenizer:
    """SmolLM's tokenizer: digits one by one, then byte-level BPE with GPT-2's pattern."""
    if read_field(reader, "tokenizer.ggml.pre") != "smollm":
        raise RuntimeError("tokenizer.ggml.pre is not smollm: this reference is only for SmolLM2")
    tokens = read_field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in read_field(reader, "tokenizer.ggml.merges")]
    out = tokenizers.Tokenizer(tokenizers.models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    out.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)])
    out.decoder = tokenizers.decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, read_field(reader, "tokenizer.ggml.token_type")) if kind == gguf.TokenType.CONTROL]
    out.add_special_tokens(special)
    return out


def score_text(model, tokens: list[int], logits_out: pathlib.Path | None) -> dict:
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([tokens])).logits[0]
    if logits_out:
        logits.numpy().astype("<f4").tofile(logits_out)
    top = torch.topk(logits, 2, dim=-1)
    nll = -torch.log_softmax(logits[:-1].double(), dim=-1)[torch.arange(len(tokens) - 1), torch.tensor(tokens[1:])]
    return {"tokens": tokens, "top1": torch.argmax(logits, dim=-1).tolist(),
            "nll": floats.encode(nll.numpy()),
            "gaps": floats.encode((top.values[:, 0] - top.values[:, 1]).numpy()),
            "perplexity": float(torch.exp(nll.mean()))}


def run_greedy(reader, tokenizer, model) -> list[dict]:
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(read_field(reader, "tokenizer.chat_template"))
    out = []
    for text in PROMPTS:
        chat = template.render(messages=[{"role": "user", "content": text}], add_generation_prompt=True)
        for form, rendered in (("raw", text), ("chat", chat)):
            ids = tokenizer.encode(rendered, add_special_tokens=False).ids
            with torch.inference_mode():
                _, answer, gaps = reference.greedy(model, ids, GREEDY_TOKENS)
            out.append({"text": text, "form": form, "tokens": ids, "greedy": answer, "gaps": floats.encode(gaps),
                        "answer": tokenizer.decode(answer, skip_special_tokens=False)})
    return out


def check(text: dict, greedy: list[dict]) -> list[str]:
    problems = []
    old = json.loads((FOLDER / "teacher_forced.json").read_text())
    if old["tokens"] != text["tokens"]:
        return ["teacher_forced.json: the tokens differ"]
    worst = np.abs(floats.decode(old["nll"]) - floats.decode(text["nll"])).max()
    if not worst <= 1e-3:
        problems.append(f"teacher_forced.json: a position's nll differs by {worst:.3g}")
    gaps = floats.decode(old["gaps"])
    problems += [f"teacher_forced.json: top-1 of position {i} differs with a gap of {gaps[i]:.3g}"
                 for i, (a, b) in enumerate(zip(old["top1"], text["top1"], strict=True)) if a != b and gaps[i] > 1e-3]
    for a, b in zip(json.loads((FOLDER / "six_greedy.json").read_text())["prompts"], greedy, strict=True):
        gaps = floats.decode(a["gaps"])
        step = next((i for i, (x, y) in enumerate(zip(a["greedy"], b["greedy"], strict=True)) if x != y), None)
        if a["tokens"] != b["tokens"] or (step is not None and gaps[step] > 1e-3):
            problems.append(f"six_greedy.json: {a['text']!r} ({a['form']}) differs at step {step}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, type=pathlib.Path)
    parser.add_argument("--text", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--logits", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(1)  # on a busy machine, threads that wait for each other slow it down
    reader, model = load_model(options.model)
    tokenizer = load_tokenizer(reader)
    source = (options.text or FOLDER / "text.txt").read_text(encoding="utf-8")
    tokens = tokenizer.encode(source, add_special_tokens=False).ids[:TEXT_TOKENS]
    excerpt = tokenizer.decode(tokens)
    if tokenizer.encode(excerpt, add_special_tokens=False).ids != tokens:
        raise RuntimeError("the excerpt does not encode to its own tokens; choose another text")
    text = score_text(model, tokens, options.logits)
    if options.logits:
        return 0
    greedy = run_greedy(reader, tokenizer, model)
    if options.check:
        problems = check(text, greedy)
        for problem in problems:
            print(problem, file=sys.stderr)
        return 1 if problems else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "text.txt").write_text(excerpt, encoding="utf-8")
    # One field per line.
    (FOLDER / "teacher_forced.json").write_text(
        "{\n" + ",\n".join(f' "{k}": {json.dumps(v, separators=(",", ":"))}' for k, v in text.items()) + "\n}\n")
    make.write_object(FOLDER / "six_greedy.json", {}, prompts=greedy)
    return 0


if __name__ == "__main__":
    sys.exit(main())
