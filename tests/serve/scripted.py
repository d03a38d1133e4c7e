# SPDX-License-Identifier: Apache-2.0
"""A model that says what it is told to: each of its scripts is a list of texts, which it writes token by token.

The weights make it a table from the last token to the next one: attention and MLP add nothing, each token of a script
has a dimension of its own, and the output row of its successor looks at that dimension. So every token may occur only
once; a text that a script repeats is cut in two at another place each time.
"""

import json
import pathlib

import numpy
from safetensors.numpy import load_file, save_file
from tools.goldens import export, tiny_tokenizer

FIRST, VOCAB, HIDDEN = 400, 1024, 512


class Script:
    """The tokens of all scripts, with ids from FIRST on."""

    def __init__(self):
        self.texts: list[str] = []
        self.successor: dict[int, int] = {}

    def add(self, text: str) -> int:
        self.texts.append(text)
        return FIRST + len(self.texts) - 1

    def pieces(self, text: str) -> list[str]:
        """The text itself, or two new tokens that make it."""
        if text not in self.texts:
            return [text]
        for cut in [*range(2, len(text) - 1), 1, len(text) - 1]:  # single characters last: there are few of them
            if not {text[:cut], text[cut:]} & set(self.texts) and text[:cut] != text[cut:]:
                return [text[:cut], text[cut:]]
        raise ValueError(f"{text!r} occurs too often")

    def chain(self, start: str, texts: list[str]) -> None:
        last = self.add(start)
        for text in texts:
            for piece in self.pieces(text):
                self.successor[last] = last = self.add(piece)
        self.successor[last] = tiny_tokenizer.EOS


def make_scripted(folder: pathlib.Path, name: str, scripts: dict[str, list[str]], special: tuple[str, ...] = (),
                  template: str = "") -> str:
    """Writes the model. chat_template_kwargs {"script": key} chooses the script; a conversation that ends with a tool's
    result is answered by the script "after". The texts in `special` become special tokens."""
    script = Script()
    for key, texts in scripts.items():
        script.chain(f"<|go_{key}|>", texts)
    config = json.loads((export.GOLDENS / "llama" / "config.json").read_text())
    config |= {"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": 1, "max_position_embeddings": 4096}
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config))
    export.main(["--config", str(path), "--out", str(folder / name)])

    weights = {key: numpy.zeros_like(value) for key, value in load_file(folder / name / "model.safetensors").items()}
    for key in weights:
        if "norm" in key:
            weights[key][:] = 1
    for token, following in script.successor.items():
        weights["model.embed_tokens.weight"][token, token - FIRST] = 1
        weights["lm_head.weight"][following, token - FIRST] = 10
    save_file(weights, folder / name / "model.safetensors")

    tokenizer = json.loads((folder / name / "tokenizer.json").read_text())
    by_id = {index: text for text, index in tokenizer["model"]["vocab"].items()}
    for index, text in enumerate(script.texts, FIRST):
        del tokenizer["model"]["vocab"][by_id[index]]
        tokenizer["model"]["vocab"][text] = index  # an added token has the id of its text in the vocabulary
        tokenizer["added_tokens"].append({"id": index, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                                          "normalized": False, "special": text in special or text.startswith("<|go_")})
    (folder / name / "tokenizer.json").write_text(json.dumps(tokenizer))
    cases = "".join(f"{{% elif script == '{key}' %}}<|go_{key}|>" for key in scripts)
    settings = json.loads((folder / name / "tokenizer_config.json").read_text())
    settings["chat_template"] = (
        "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}" + template +
        "{% for m in messages %}{{ m.role }}: {{ m.reasoning_content }}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}\n{% endfor %}"
        "{% if not add_generation_prompt %}{% elif messages[-1].role == 'tool' %}<|go_after|>" + cases + "{% endif %}")
    (folder / name / "tokenizer_config.json").write_text(json.dumps(settings))
    return name
