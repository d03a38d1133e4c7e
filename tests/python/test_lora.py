# SPDX-License-Identifier: Apache-2.0
"""LoRARequest: adapters per prompt, on a tiny model."""

import asyncio
import json
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT))
from tools.goldens import export, philox, safetensors_file  # noqa: E402


def write_adapter(folder, seed):
    golden = json.loads((ROOT / "tests" / "goldens" / "lora" / "llama-all.json").read_text())
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(golden["adapter_config"]))
    tensors = {name: philox.tensor(name, tuple(shape), seed) for name, shape in golden["tensors"].items()}
    safetensors_file.write_file(folder / "adapter_model.safetensors", tensors, "F32")
    return folder


def test_each_prompt_has_its_adapter(tmp_path):
    from quire import LLM, AsyncLLM, LoRARequest, SamplingParams
    export.main(["--case", "llama", "--out", str(tmp_path / "tiny")])
    one, two = (LoRARequest(f"a{i}", i, write_adapter(tmp_path / f"a{i}", i)) for i in (1, 2))
    llm = LLM(str(tmp_path / "tiny"), enable_lora=True, max_loras=2, max_lora_rank=8)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    prompt = [5, 6, 7, 8, 9]

    def answers(count, lora_request):
        return [output.outputs[0].token_ids for output in llm.generate([prompt] * count, params, lora_request=lora_request)]

    mixed = answers(3, [one, None, two])
    assert len({tuple(answer) for answer in mixed}) == 3
    assert [answers(1, one)[0], answers(1, None)[0], answers(1, two)[0]] == mixed
    [output] = llm.chat([{"role": "user", "content": "hello"}], params, lora_request=one)
    assert output.outputs[0].token_ids and output.lora_request == output.outputs[0].lora_request == one
    assert list(llm.stream(prompt, params, lora_request=two))[-1].outputs[0].token_ids == mixed[2]
    assert (one.name, one.adapter_id, one.path) == ("a1", 1, str(tmp_path / "a1"))
    async def alone():
        engine = AsyncLLM(str(tmp_path / "tiny"), enable_lora=True, max_lora_rank=8)
        async for output in engine.generate(prompt, params, lora_request=one):
            last = output
        engine.shutdown()
        return last.outputs[0].token_ids

    assert asyncio.run(alone()) == mixed[0]
    with pytest.raises(ValueError, match="lora_requests"):
        answers(3, [one])
    with pytest.raises(Exception, match="nowhere"):
        answers(1, LoRARequest("x", 3, "nowhere"))
    few = LLM(str(tmp_path / "tiny"), enable_lora=True, max_lora_rank=8, lora_target_modules=["q_proj", "o_proj"])
    with pytest.raises(Exception, match="lora-target-modules, which are q_proj, o_proj"):
        few.generate([prompt], params, lora_request=one)
