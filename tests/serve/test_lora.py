# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters through the server: by name, loaded and unloaded while it works, in receipts, and wrong ones."""

import concurrent.futures
import json
import os
import re
import shutil
import subprocess

import gguf
import numpy as np
import pytest
from conftest import BIN_DIR, ROOT, export

from tools.goldens import gguf_file, philox, safetensors_file

ASK = {"prompt": [5, 6, 7, 8, 9], "max_tokens": 6, "temperature": 0, "return_token_ids": True}
HEADS = {"q_proj": 4, "k_proj": 2}


def golden(name: str) -> dict:
    return json.loads((ROOT / "tests" / "goldens" / "lora" / f"{name}.json").read_text())


def tensors_of(name: str, seed: int) -> dict[str, np.ndarray]:
    return {key: philox.tensor(key, tuple(shape), seed) for key, shape in golden(name)["tensors"].items()}


def write_peft(folder, name="llama-all", seed=0, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(golden(name)["adapter_config"] | changes))
    safetensors_file.write_file(folder / "adapter_model.safetensors", tensors_of(name, seed), "F32")
    return folder


def module_of(key: str) -> tuple[str, str]:
    return re.fullmatch(r"base_model\.model\.(.*)\.lora_([AB])\.weight", key).groups()


def write_mlx(folder, name="llama-all", seed=0):
    folder.mkdir()
    config = golden(name)["adapter_config"]
    scale = config["lora_alpha"] / config["r"]
    (folder / "adapter_config.json").write_text(json.dumps(
        {"fine_tune_type": "lora", "num_layers": -1, "lora_parameters": {"rank": config["r"], "scale": scale}}))
    turned = {}
    for key, value in tensors_of(name, seed).items():
        module, which = module_of(key)
        turned[f"{module}.lora_{which.lower()}"] = np.ascontiguousarray(value.T)
    safetensors_file.write_file(folder / "adapters.safetensors", turned, "F32")
    return folder


def write_gguf(file, name="llama-all", seed=0, architecture="llama"):
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(golden(name)["adapter_config"]["lora_alpha"]))
    for key, value in tensors_of(name, seed).items():
        module, which = module_of(key)
        part = module.rsplit(".", 1)[1]
        if which == "B" and part in HEADS:  # the order of rows of llama.cpp's converter
            heads = HEADS[part]
            value = value.reshape(heads, 2, -1, value.shape[1]).swapaxes(1, 2).reshape(value.shape)
        writer.add_tensor(f"{gguf_file.gguf_name(module + '.weight', 'llama')}.lora_{which.lower()}",
                          np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(scope="module")
def adapters(folder):
    for i in range(4):
        write_peft(folder / "adapters" / f"a{i}", seed=i + 1)
    return folder / "adapters"


@pytest.fixture(scope="module")
def lora(start, adapters):
    return start("tiny", "--enable-lora", "--max-loras", 2, "--max-lora-rank", 8, "--max-cpu-loras", 3, "--runner",
                 "generate", "--convert", "embed", "--lora-modules", f"a0={adapters / 'a0'}",
                 json.dumps({"name": "a1", "path": str(adapters / "a1")}), env={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"})


def ids(server, **changes):
    return server.ok("/v1/completions", ASK | changes)["choices"][0]["token_ids"]


def run(folder, *arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "HF_", "VLLM_"))}
    return subprocess.run([str(BIN_DIR / "quire"), *map(str, arguments)], cwd=folder, capture_output=True, text=True,
                          env=environment | {"QUIRE_HOME": str(folder / "home")}, stdin=subprocess.DEVNULL, timeout=300)


def test_the_adapters_name_is_the_model(lora, server):
    base = ids(server)
    assert ids(lora) == ids(lora, model="tiny") == base
    answers = {name: ids(lora, model=name) for name in ("a0", "a1")}
    assert answers["a0"] != base and answers["a1"] != base and answers["a0"] != answers["a1"]
    whole = lora.ok("/v1/completions", ASK | {"model": "a0"})
    assert whole["model"] == "a0"
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "model": "a1", "temperature": 0}
    assert lora.ok("/v1/chat/completions", chat)["model"] == "a1"
    assert lora.ok("/v1/responses", {"input": "hello", "max_output_tokens": 16, "model": "a1"})["model"] == "a1"
    message = {"messages": chat["messages"], "max_tokens": 3, "model": "a1"}
    assert lora.ok("/v1/messages", message)["model"] == "a1"
    assert lora.ok("/tokenize", {"prompt": "hello", "model": "a1"})["count"] > 0
    unknown = lora.post("/v1/completions", ASK | {"model": "nobody"})
    assert unknown.status_code == 404 and "a0" in unknown.json()["error"]["message"]
    assert server.post("/v1/completions", ASK | {"model": "a0"}).status_code == 404


def test_embeddings_and_scores_take_adapters(lora):
    def embedding(model):
        answer = lora.ok("/v1/embeddings", {"input": [[5, 6, 7, 8], [9, 10]], "model": model})
        assert answer["model"] == model
        return np.array([item["embedding"] for item in answer["data"]])

    base, first, second = embedding("tiny"), embedding("a0"), embedding("a1")
    assert np.abs(first - base).max() > 1e-3 and np.abs(first - second).max() > 1e-3
    pair = {"queries": "a b", "documents": ["c", "d e"]}
    scores = {model: [item["score"] for item in lora.ok("/score", pair | {"model": model})["data"]] for model in ("tiny", "a0")}
    assert scores["tiny"] != scores["a0"]
    assert lora.ok("/rerank", {"query": "a", "documents": ["b"], "model": "a1"})["model"] == "a1"
    with concurrent.futures.ThreadPoolExecutor(6) as pool:  # among requests that generate, with the same bits
        busy = [pool.submit(ids, lora, model=name) for name in ("a0", "a1", "tiny")]
        together = list(pool.map(embedding, ["a0", "tiny", "a1"]))
        for one in busy:
            one.result()
    assert all(np.array_equal(a, b) for a, b in zip(together, [first, base, second], strict=True))


def test_models_lists_them_with_their_parent(lora):
    cards = {card["id"]: card for card in lora.http.get("/v1/models").json()["data"]}
    assert cards["tiny"]["parent"] is None
    assert cards["a0"]["parent"] == "tiny" and cards["a0"]["root"] == "a0" and cards["a0"]["max_model_len"] is None
    assert lora.http.get("/v1/models/a1").json()["parent"] == "tiny"


def test_load_and_unload(lora, adapters):
    load = {"lora_name": "later", "lora_path": str(adapters / "a2")}
    assert lora.post("/v1/completions", ASK | {"model": "later"}).status_code == 404
    done = lora.post("/v1/load_lora_adapter", load)
    assert (done.status_code, done.text) == (200, "Success: LoRA adapter 'later' added successfully.")
    second = ids(lora, model="later")
    again = lora.post("/v1/load_lora_adapter", load)
    assert again.status_code == 400 and again.json()["error"]["type"] == "InvalidUserInput"
    replaced = lora.post("/v1/load_lora_adapter", load | {"lora_path": str(adapters / "a3"), "load_inplace": True})
    assert replaced.status_code == 200
    third = ids(lora, model="later")
    assert third != second  # not the cached prefix of the weights before
    done = lora.post("/v1/unload_lora_adapter", {"lora_name": "later"})
    assert (done.status_code, done.text) == (200, "Success: LoRA adapter 'later' removed successfully.")
    assert lora.post("/v1/completions", ASK | {"model": "later"}).status_code == 404
    assert lora.post("/v1/unload_lora_adapter", {"lora_name": "later"}).status_code == 404


def test_wrong_adapters_are_one_sentence(lora, adapters, tmp_path):
    good = adapters / "a0"

    def changed(name, change):
        shutil.copytree(good, tmp_path / name)
        change(tmp_path / name)
        return tmp_path / name

    def config(**fields):
        def write(folder):
            file = folder / "adapter_config.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | fields))
        return write

    def pickle(folder):
        (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")

    def cut(folder):
        file = folder / "adapter_model.safetensors"
        file.write_bytes(file.read_bytes()[:-100])

    def nan(folder):
        tensors = tensors_of("llama-all", 0)
        next(iter(tensors.values()))[0, 0] = np.nan
        safetensors_file.write_file(folder / "adapter_model.safetensors", tensors, "F32")

    cases = [
        (tmp_path / "nowhere", 404, "there is no adapter"),
        (changed("dora", config(use_dora=True)), 400, "DoRA"),
        (changed("saved", config(modules_to_save=["lm_head"])), 400, "modules_to_save"),
        (changed("rank", config(r=9)), 400, "has rank 8"),
        (changed("pickle", pickle), 400, "pickle"),
        (changed("cut", cut), 400, "adapter_model.safetensors"),
        (changed("nan", nan), 400, "finite"),
        (changed("bare", lambda folder: (folder / "adapter_config.json").unlink()), 404, "adapter_config.json"),
        (write_peft(tmp_path / "large", "qwen3-regex"), 400, "--max-lora-rank"),
        (write_peft(tmp_path / "other", "phi3"), 400, "another model"),
        (write_gguf(tmp_path / "a.gguf"), 400, "GGUF"),
    ]
    before = ids(lora, model="a0")
    for path, status, part in cases:
        answer = lora.post("/v1/load_lora_adapter", {"lora_name": "wrong", "lora_path": str(path)})
        message = answer.json()["error"]["message"]
        assert answer.status_code == status and part in message and "\n" not in message, (path, answer.text)
    for body in ({}, {"lora_name": "x"}, {"lora_name": "", "lora_path": "x"}, {"lora_name": 5, "lora_path": "x"},
                 {"lora_name": "tiny", "lora_path": str(good)}):
        assert lora.post("/v1/load_lora_adapter", body).status_code == 400
    assert ids(lora, model="a0") == before
    assert "wrong" not in [card["id"] for card in lora.http.get("/v1/models").json()["data"]]


def test_loading_and_unloading_under_load_drops_nobody(lora, adapters):
    """Every answer is complete and has the tokens that its adapter gives alone."""
    for i in (2, 3):
        load = {"lora_name": f"a{i}", "lora_path": str(adapters / f"a{i}")}
        assert lora.post("/v1/load_lora_adapter", load).status_code == 200
    names = ["tiny", "a0", "a1", "a2", "a3"]

    def body(i):
        return ASK | {"model": names[i % 5], "prompt": [3 + i % 7] * (4 + i % 30), "max_tokens": 12, "ignore_eos": True}

    alone = [ids(lora, **body(i)) for i in range(40)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        jobs = [pool.submit(ids, lora, **body(i)) for i in range(40)]
        for _ in range(6):  # the same weights again, under other registrations; requests that run keep theirs
            for i in (2, 3):
                load = {"lora_name": f"a{i}", "lora_path": str(adapters / f"a{i}"), "load_inplace": True}
                assert lora.post("/v1/load_lora_adapter", load).status_code == 200
        assert [job.result() for job in jobs] == alone
    for i in (2, 3):
        assert lora.post("/v1/unload_lora_adapter", {"lora_name": f"a{i}"}).status_code == 200


def test_metric_names_the_adapters(lora):
    ids(lora, model="a0")
    lines = [line for line in lora.http.get("/metrics").text.splitlines() if line.startswith("vllm:lora_requests_info{")]
    assert len(lines) == 1 and 'max_lora="2"' in lines[0]
    assert "running_lora_adapters=" in lines[0] and "waiting_lora_adapters=" in lines[0]


def test_changes_need_permission_and_the_key(start, adapters):
    closed = start("tiny", "--enable-lora", "--max-lora-rank", 8, "--api-key", "secret")
    load = {"lora_name": "a", "lora_path": str(adapters / "a0")}
    assert closed.post("/v1/load_lora_adapter", load).status_code == 401
    closed.http.headers["Authorization"] = "Bearer secret"
    refused = closed.post("/v1/load_lora_adapter", load)
    assert refused.status_code == 404 and "VLLM_ALLOW_RUNTIME_LORA_UPDATING" in refused.json()["error"]["message"]
    assert closed.stop() == 0


def test_receipts_name_the_adapter(lora, folder, adapters, tmp_path):
    reply = lora.ok("/v1/completions", ASK | {"model": "a1", "return_receipt": True})
    receipt = reply["choices"][0]["receipt"]
    assert re.fullmatch("[0-9a-f]{32}", receipt["adapter"])
    assert "adapter" not in lora.ok("/v1/completions", ASK | {"return_receipt": True})["choices"][0]["receipt"]
    file = tmp_path / "reply.json"
    file.write_text(json.dumps(reply))
    good = run(folder, "verify", file, "--model", "tiny", "--lora", adapters / "a1")
    assert (good.returncode, "same bits" in good.stdout) == (0, True), good
    for flags in ((), ("--lora", adapters / "a0")):
        missing = run(folder, "verify", file, "--model", "tiny", *flags)
        assert missing.returncode == 2 and "--lora" in missing.stdout + missing.stderr, missing


def test_several_models(start, adapters):
    several = start("tiny", "long", "--enable-lora", "--max-lora-rank", 8, "--max-model-len", 512, "--lora-modules",
                    json.dumps({"name": "a0", "path": str(adapters / "a0"), "base_model_name": "long"}),
                    env={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"})
    assert ids(several, model="a0") != ids(several, model="long") == ids(several, model="tiny")
    cards = {card["id"]: card for card in several.http.get("/v1/models").json()["data"]}
    assert cards["a0"]["parent"] == "long"
    path = str(adapters / "a1")
    taken = several.post("/v1/load_lora_adapter", {"lora_name": "long", "lora_path": path, "model": "tiny"})
    assert taken.status_code == 400 and "a base model" in taken.json()["error"]["message"]
    moved = several.post("/v1/load_lora_adapter", {"lora_name": "a0", "lora_path": path, "model": "tiny", "load_inplace": True})
    assert moved.status_code == 400 and "another model" in moved.json()["error"]["message"]
    assert several.stop() == 0


def test_every_format_on_both_kinds_of_base(folder, adapters, tmp_path):
    """PEFT, MLX and GGUF adapters with the same weights, on safetensors and GGUF, give the same answers."""
    export.main(["--case", "llama", "--out", str(tmp_path / "base.gguf"), "--type", "F32"])
    export.main(["--case", "llama", "--out", str(tmp_path / "q8.gguf"), "--type", "Q8_0"])
    peft = write_peft(tmp_path / "peft")
    mlx = write_mlx(tmp_path / "mlx")
    file = write_gguf(tmp_path / "adapter.gguf")

    def answer(model, *flags):
        done = run(folder, "run", model, "[5, 6, 7, 8, 9]", "--prompt-token-ids", "--json", "--logprobs", 5, "--dtype",
                   "float32", "--temperature", 0, "--max-tokens", 4, "--ignore-eos", *flags)
        assert done.returncode == 0, done.stderr
        choice = json.loads(done.stdout)["choices"][0]
        return choice["token_ids"], [row[0]["logprob"] for row in choice["logprobs"]]

    tokens, logprobs = answer("tiny", "--lora", peft)
    assert tokens != answer("tiny")[0]
    for model, adapter in (("tiny", mlx), (tmp_path / "base.gguf", peft), (tmp_path / "base.gguf", mlx),
                           (tmp_path / "base.gguf", file)):
        again, again_logprobs = answer(model, "--lora", adapter)
        assert again == tokens and np.allclose(again_logprobs, logprobs, atol=1e-4), (model, adapter)
    quantised = answer(tmp_path / "q8.gguf", "--lora", peft)[1]
    assert np.allclose(quantised[0], logprobs[0], atol=0.3)
    wrong = write_gguf(tmp_path / "wrong.gguf", architecture="qwen2")
    refused = run(folder, "run", tmp_path / "base.gguf", "hi", "--lora", wrong)
    assert refused.returncode == 2 and "qwen2" in refused.stderr


def test_experts_in_every_format(folder, tmp_path):
    """One by one as PEFT has them, and as the stacks of MLX and GGUF, on a GGUF base: the same answers."""
    export.main(["--case", "glm4-moe", "--out", str(tmp_path / "moe.gguf"), "--type", "F32"])
    hidden, inner, experts, rank = 96, 24, 6, 4
    shapes = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    peft, mlx = {}, {}
    writer = gguf.GGUFWriter(tmp_path / "experts.gguf", "glm4moe")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    for part, (rows, columns) in shapes.items():
        for which, shape in (("a", (experts, rank, columns)), ("b", (experts, rows, rank))):
            stack = philox.tensor(f"{part}.{which}", shape, 3)
            mlx[f"model.layers.1.mlp.switch_mlp.{part}.lora_{which}"] = stack
            writer.add_tensor(f"blk.1.ffn_{part.removesuffix('_proj')}_exps.weight.lora_{which}", stack)
            for e in range(experts):
                peft[f"base_model.model.model.layers.1.mlp.experts.{e}.{part}.lora_{which.upper()}.weight"] = stack[e]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for name, tensors, config in (("adapter_model", peft, {"peft_type": "LORA", "r": rank, "lora_alpha": 8}),
                                  ("adapters", mlx, {"lora_parameters": {"rank": rank, "scale": 2.0}})):
        (tmp_path / name).mkdir()
        safetensors_file.write_file(tmp_path / name / f"{name}.safetensors", tensors, "F32")
        (tmp_path / name / "adapter_config.json").write_text(json.dumps(config))

    def answer(*flags):
        done = run(folder, "run", tmp_path / "moe.gguf", "[5, 6, 7, 8, 9]", "--prompt-token-ids", "--json", "--logprobs", 5,
                   "--dtype", "float32", "--temperature", 0, "--max-tokens", 4, "--ignore-eos", *flags)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["choices"][0]["logprobs"]

    expected = answer("--lora", tmp_path / "adapter_model")
    assert expected != answer()
    assert answer("--lora", tmp_path / "adapters") == answer("--lora", tmp_path / "experts.gguf") == expected


def test_wrong_flags(folder, adapters):
    for flags, part in ((("--lora-modules", "a=b"), "--enable-lora"),
                        (("--enable-lora", "--lora-modules", "a"), "NAME=PATH"),
                        (("--enable-lora", "--lora-modules", "a=nowhere"), "nowhere"),
                        (("--enable-lora", "--max-lora-rank", 8, "--lora-modules", f"tiny={adapters / 'a0'}"), "taken"),
                        (("--enable-lora", "--max-loras", 0), "--max-loras"),
                        (("--enable-lora", "--max-lora-rank", 4096), "--max-lora-rank"),
                        (("--enable-lora", "--max-loras", 4, "--max-cpu-loras", 2), "--max-cpu-loras"),
                        (("--enable-lora", "--lora-dtype", "int8"), "--lora-dtype")):
        done = run(folder, "serve", "tiny", "--port", 0, *flags)
        assert done.returncode in (1, 2) and part in done.stderr, (flags, done.stderr)


def test_only_target_modules_take_adapters(folder, start, adapters):
    few = write_peft(folder / "few", seed=3)
    own = {key: value for key, value in tensors_of("llama-all", 3).items() if "self_attn" in key}
    safetensors_file.write_file(few / "adapter_model.safetensors", own, "F32")
    server = start("tiny", "--enable-lora", "--max-lora-rank", 8, "--lora-target-modules", "qkv_proj", "o_proj",
                   "--lora-modules", f"few={few}", env={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"})
    assert ids(server, model="few") != ids(server)
    refused = server.post("/v1/load_lora_adapter", {"lora_name": "all", "lora_path": str(adapters / "a1")})
    message = refused.json()["error"]["message"]
    assert refused.status_code == 400 and "is not among --lora-target-modules, which are qkv_proj, o_proj" in message
    for names, sentence in [(["q_proj,nobody"], "has 'nobody', which names no module of the model; it has lm_head, mlp.down_proj"),
                            ([""], "empty name")]:
        wrong = run(folder, "serve", "tiny", "--enable-lora", "--lora-target-modules", *names)
        assert wrong.returncode != 0 and sentence in wrong.stderr and len(wrong.stderr.splitlines()) < 4, wrong.stderr
    (folder / "few.yaml").write_text("enable-lora: true\nlora-target-modules: [q_proj, o_proj, nobody]\n")
    assert "has 'nobody'" in run(folder, "serve", "--config", "few.yaml", "tiny").stderr
    lonely = run(folder, "serve", "tiny", "--lora-target-modules", "q_proj")
    assert lonely.returncode != 0 and "--lora-target-modules needs --enable-lora" in lonely.stderr
