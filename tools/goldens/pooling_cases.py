# SPDX-License-Identifier: Apache-2.0
"""The golden cases of models that make embeddings and scores, and how one is written to disk; needs numpy only.

Usage: python -m tools.goldens.pooling_cases --case bert --out DIR
"""

import argparse
import json
import pathlib
import sys
from dataclasses import dataclass, field

from tools.goldens import philox, safetensors_file, tiny_tokenizer

GOLDENS = pathlib.Path(__file__).resolve().parents[2] / "tests" / "pooling" / "goldens"
PROMPT_LENGTHS = (1, 2, 17, 64, 200)
VOCAB = 512
PAIRS = [("what is a page", "a page holds the keys and values of some tokens"), ("hello world", "hello"),
         ("the cat", "an engine of trains, and the sea"), ("a", "b c d e f g")]


@dataclass(frozen=True)
class PoolingCase:
    """One tiny model.

    tokenizer: "bytes" (byte-level BPE), "wordpiece" or "unigram"; the last two have a rule for pairs of texts.
    pooling:   a mode of sentence-transformers (cls, mean, lasttoken); "" if there are no such files.
    dense:     sizes of dense layers after pooling, the first one's input first.
    pairs:     whether the scores of PAIRS are recorded.
    fields:    members of config.json that the class in transformers does not write.
    """
    name: str
    config_class: str
    model_class: str
    arguments: dict
    tokenizer: str = "bytes"
    pooling: str = ""
    dense: tuple = ()
    normalize: bool = True
    pairs: bool = False
    fields: dict = field(default_factory=dict)

    @property
    def classifies(self) -> bool:
        return self.model_class.endswith("ForSequenceClassification")


def _encoder(**more) -> dict:
    return {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
            "num_attention_heads": 4, "max_position_embeddings": 256, "pad_token_id": 0, **more}


def _decoder(**more) -> dict:
    return {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
            "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 257, **more}


_ROBERTA = {"pad_token_id": 1, "max_position_embeddings": 258, "type_vocab_size": 1, "layer_norm_eps": 1e-5,
            "bos_token_id": 0, "eos_token_id": 2}
_MODERN = {"local_attention": 32, "global_attn_every_n_layers": 2, "num_hidden_layers": 4, "bos_token_id": None,
           "eos_token_id": None, "cls_token_id": None, "sep_token_id": None}

CASES = [
    PoolingCase("bert", "BertConfig", "BertModel", _encoder(), pooling="mean"),
    PoolingCase("bert-cls", "BertConfig", "BertModel", _encoder(hidden_size=48, num_attention_heads=3), pooling="cls",
                normalize=False),
    PoolingCase("bert-classify", "BertConfig", "BertForSequenceClassification",
                _encoder(id2label={0: "bad", 1: "good", 2: "so-so"})),
    PoolingCase("bert-cross", "BertConfig", "BertForSequenceClassification", _encoder(num_labels=1),
                tokenizer="wordpiece", pairs=True),
    PoolingCase("roberta", "RobertaConfig", "RobertaModel", _encoder(**_ROBERTA)),
    PoolingCase("xlm-roberta-cross", "XLMRobertaConfig", "XLMRobertaForSequenceClassification",
                _encoder(**_ROBERTA, num_labels=1), tokenizer="unigram", pairs=True),
    PoolingCase("mpnet", "MPNetConfig", "MPNetModel",
                _encoder(pad_token_id=1, max_position_embeddings=258, layer_norm_eps=1e-5), pooling="mean"),
    PoolingCase("modernbert", "ModernBertConfig", "ModernBertModel", _encoder(**_MODERN), pooling="cls"),
    PoolingCase("modernbert-classify", "ModernBertConfig", "ModernBertForSequenceClassification",
                _encoder(**_MODERN, classifier_pooling="mean", num_labels=2)),
    PoolingCase("nomic-bert", "NomicBertConfig", "NomicBertModel", _encoder(), pooling="mean",
                fields={"matryoshka_dimensions": [64, 32, 16]}),
    PoolingCase("gemma3-embedding", "Gemma3TextConfig", "Gemma3TextModel",
                _decoder(head_dim=32, sliding_window=32, use_bidirectional_attention=True,
                         layer_types=["sliding_attention", "sliding_attention", "full_attention"]),
                pooling="mean", dense=(64, 96, 64), fields={"sliding_window": 32}),
    PoolingCase("qwen3-embedding", "Qwen3Config", "Qwen3Model", _decoder(tie_word_embeddings=True),
                pooling="lasttoken", fields={"is_matryoshka": True}),
    PoolingCase("llama-mean", "LlamaConfig", "LlamaModel", _decoder(), pooling="mean"),
    PoolingCase("mistral-classify", "MistralConfig", "MistralForSequenceClassification",
                _decoder(sliding_window=None, num_labels=3)),
]


def find_case(name: str) -> PoolingCase:
    return next(case for case in CASES if case.name == name)


def wordpiece_json() -> dict:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ",", "."]
    letters = "abcdefghijklmnopqrstuvwxyz"
    words += list(letters) + ["##" + c for c in letters] + ["the", "page", "hello", "world", "key", "##s", "##ing"]
    vocab = {word: i for i, word in enumerate(dict.fromkeys(words))}
    special = {w: {"id": w, "ids": [vocab[w]], "tokens": [w]} for w in ("[CLS]", "[SEP]")}
    cls, sep = ({"SpecialToken": {"id": w, "type_id": 0}} for w in ("[CLS]", "[SEP]"))
    text = {"Sequence": {"id": "A", "type_id": 0}}
    pair = [cls, text, sep, {"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}]
    added = [{"id": i, "content": w, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, w in enumerate(words[:5])]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                           "strip_accents": None, "lowercase": True},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {"type": "TemplateProcessing", "single": [cls, text, sep], "pair": pair,
                               "special_tokens": special},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                      "max_input_chars_per_word": 100, "vocab": vocab}}


def unigram_json() -> dict:
    pieces = [["<s>", 0.0], ["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0], ["▁", -2.5]]
    pieces += [[c, -5.0 - i / 64] for i, c in enumerate("abcdefghijklmnopqrstuvwxyz,.")]
    pieces += [["▁the", -3.0], ["▁hello", -3.5], ["▁page", -3.6], ["▁a", -3.1], ["ing", -4.0]]
    specials = {w: {"id": w, "ids": [i], "tokens": [w]} for i, w in ((0, "<s>"), (2, "</s>"))}
    begin, end = ({"SpecialToken": {"id": w, "type_id": 0}} for w in ("<s>", "</s>"))
    first, second = ({"Sequence": {"id": w, "type_id": 0}} for w in "AB")
    added = [{"id": i, "content": w, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, (w, _) in enumerate(pieces[:4])]
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": metaspace,
            "post_processor": {"type": "TemplateProcessing", "single": [begin, first, end],
                               "pair": [begin, first, end, end, second, end], "special_tokens": specials},
            "decoder": metaspace, "model": {"type": "Unigram", "unk_id": 3, "vocab": pieces, "byte_fallback": False}}


def tokenizer_files(case: PoolingCase) -> dict:
    if case.tokenizer == "wordpiece":
        return {"tokenizer.json": wordpiece_json(), "tokenizer_config.json": {"pad_token": "[PAD]"}}
    if case.tokenizer == "unigram":
        return {"tokenizer.json": unigram_json(), "tokenizer_config.json": {"pad_token": "<pad>"}}
    return {"tokenizer.json": tiny_tokenizer.tokenizer_json(VOCAB), "tokenizer_config.json": tiny_tokenizer.tokenizer_config()}


def dense_tensors(case: PoolingCase) -> list:
    """The weights of each dense layer; they have no bias."""
    return [philox.tensor(f"dense.{i}.linear.weight", (out, into))
            for i, (into, out) in enumerate(zip(case.dense, case.dense[1:]))]


def sentence_transformers_files(case: PoolingCase) -> dict:
    """Name -> JSON, as sentence-transformers writes them."""
    if not case.pooling:
        return {}
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
    kinds += [(f"{i + 2}_Dense", "Dense") for i in range(max(len(case.dense) - 1, 0))]
    if case.normalize:
        kinds.append((f"{len(kinds)}_Normalize", "Normalize"))
    modules = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
               for i, (path, kind) in enumerate(kinds)]
    flags = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "lasttoken": "pooling_mode_lasttoken"}
    files = {"modules.json": modules, "1_Pooling/config.json": {"word_embedding_dimension": 64} |
             {flag: mode == case.pooling for mode, flag in flags.items()},
             "config_sentence_transformers.json": {"prompts": {"query": "ask: ", "document": ""},
                                                   "default_prompt_name": None}}
    for i, (into, out) in enumerate(zip(case.dense, case.dense[1:])):
        files[f"{i + 2}_Dense/config.json"] = {"in_features": into, "out_features": out, "bias": False,
                                               "activation_function": "torch.nn.modules.linear.Identity"}
    return files


def write_model(case: PoolingCase, folder: pathlib.Path) -> None:
    source = GOLDENS / case.name
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    listed = json.loads((source / "tensors.json").read_text())
    files = {"config.json": config, **tokenizer_files(case), **sentence_transformers_files(case)}
    for name, value in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    safetensors_file.write_folder(folder, {n: philox.tensor(n, tuple(s)) for n, s in listed.items()}, "F32", 1)
    for i, weight in enumerate(dense_tensors(case)):
        safetensors_file.write_file(folder / f"{i + 2}_Dense" / "model.safetensors", {"linear.weight": weight}, "F32")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", required=True, choices=[case.name for case in CASES])
    parser.add_argument("--out", required=True, type=pathlib.Path)
    options = parser.parse_args()
    write_model(find_case(options.case), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
