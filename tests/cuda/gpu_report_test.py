# SPDX-License-Identifier: Apache-2.0
"""bench/gpu: bounds against sums done by hand, tables from made-up figures, and how it starts and ends programs."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import time

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.dont_write_bytecode = True
sys.path.insert(0, str(BENCH))
loader = importlib.machinery.SourceFileLoader("gpu", str(BENCH / "gpu"))
gpu = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu", loader))
loader.exec_module(gpu)
import gpu_bounds  # noqa: E402
import gpu_loads  # noqa: E402
import gpu_report  # noqa: E402
from gpu_shapes import SHAPES  # noqa: E402


def product(case, rows, seconds, library):
    return {"kernel": "linear", "type": "BF16", "case": case, "rows": rows, "seconds": seconds, "library_seconds": library,
            "bytes": 1e6, "flops": 1e9, "share_copy": 0.1}


FIGURES = {
    "ceilings": {"device": "a GPU", "copy_tb_per_s": 4.0, "matmul_tflop_per_s": 800},
    "kernels": {"kernels": [
        {"kernel": "decode", "type": "BF16", "case": "16/8x128 64@4096", "rows": 64, "seconds": 1e-3, "bytes": 3e9, "flops": 1e9,
         "share_copy": 0.75},
        product("a", 64, 10e-6, 9e-6), product("b", 4096, 10e-6, 20e-6), product("c", 1, 10e-6, 7e-6), product("d", 32, 10e-6, 6e-6)]},
    "latency": {"decode_tokens_per_s": 1800},
    "peer-latency": {"tokens_per_s": 200},
    "batch": {"decode_tokens_per_s": 30000},
}


def found(rows, start):
    return next(row for row in rows if row[0].startswith(start))


def check_goals():
    rows = gpu_report.table(FIGURES)
    assert found(rows, "paged decode")[1:4] == ("80.0%", "75.0% (1000 us)", "0.94"), rows
    assert found(rows, "prefill")[2:4] == ("-", "-"), "it was not measured"
    assert found(rows, "GEMM, from 64")[2] == "90.0% (a, 64 rows)", rows
    assert found(rows, "GEMM, below 64")[2] == "60.0% (d, 32 rows)", rows
    assert found(rows, "Qwen3-0.6B")[2:4] == ("1,800", "1.20"), rows
    assert found(rows, "  against transformers' 200")[2] == "9.0x", rows
    # 1.19 GB of weights and 15.0 GB of K and V per step, at 4 TB/s.
    weights, kv, states = gpu_bounds.step_bytes(SHAPES["Qwen3-0.6B"], 256, 512)
    assert 1.19e9 < weights < 1.194e9 and kv == 15032385536 and states == 0
    assert "bound of 63" in found(rows, "the same, 256")[0], rows
    assert all(row[2] == "-" for row in gpu_report.table({})), "nothing measured, nothing told"


# What each model's publisher says it has, in billions of parameters.
PUBLISHED = {"Qwen3-0.6B": 0.596, "Qwen3-8B": 8.19, "Llama-3.1-8B": 8.03, "Qwen3-30B-A3B": 30.5, "gpt-oss-20b": 20.9, "DeepSeek-V2-Lite": 15.7,
             "Qwen3.5-4B": 4.2, "Gemma-3-1B": 1.0, "Gemma-3-4B": 3.88, "Granite-4.0-H-Micro": 3.19, "Nemotron-H-8B": 8.1, "LFM2-1.2B": 1.17}


def check_bounds():
    for name, config in SHAPES.items():
        held = gpu_bounds.weight_bytes(config, quantised=False) / 2e9
        method = config.get("quantization_config", {}).get("quant_method", "")
        assert abs(held / PUBLISHED[name.removesuffix(f"-{method.upper()}")] - 1) < 0.01, (name, held)
        assert len(gpu_bounds.layers(config)) == config["num_hidden_layers"], name
    # Dense: 32 layers of q and o (4096 x 4096), k and v (4096 x 1024), three of 4096 x 14336; the LM head.
    llama = SHAPES["Llama-3.1-8B"]
    weights = 2 * (32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096)
    kv = 64 * 576 * 32 * 2 * 8 * 128 * 2
    assert weights == 15009316864 and kv == 4831838208
    assert gpu_bounds.step_bytes(llama, 64, 576) == (weights, kv, 0)
    assert gpu_bounds.decode_bound(llama, 64, 576, 4e12) == 64 * 4e12 / (weights + kv)
    pairs = 512 * 513 // 2
    assert gpu_bounds.prefill_flops(llama, 2, 512) == 2 * (512 * (weights - 2 * 128256 * 4096) + 2 * 128256 * 4096 + 32 * 4 * 32 * 128 * pairs)
    # Experts: 8 of 128 for one token; 64 tokens hit 125.9 of them on average: 128 (1 - (120/128)^64).
    qwen = SHAPES["Qwen3-30B-A3B"]
    layer = 2 * 2048 * 4096 + 2 * 2048 * 512 + 2048 * 128  # q and o, k and v, the router
    expert = 3 * 2048 * 768
    assert gpu_bounds.step_bytes(qwen, 1, 576)[0] == 2 * (48 * (layer + 8 * expert) + 151936 * 2048) == 6083313664
    assert abs(gpu_bounds.expected_experts(128, 8, 64) - 125.942) < 1e-3
    assert abs(gpu_bounds.step_bytes(qwen, 64, 576)[0] - 2 * (48 * (layer + 125.94239 * expert) + 151936 * 2048)) < 1e5
    # MXFP4: 17 bytes for 32 weights of the experts alone. A window of 128 in every other layer.
    oss = SHAPES["gpt-oss-20b"]
    layer = 2880 * 64 * (2 * 64 + 2 * 8) + 2880 * 32
    weights, kv, _ = gpu_bounds.step_bytes(oss, 1, 576)
    assert weights == 24 * (2 * layer + 4 * 3 * 2880 * 2880 * 17 / 32) + 2 * 201088 * 2880
    assert kv == 12 * (576 + 128) * 2 * 8 * 64 * 2
    # Four bits and, for each group of 128, 20 bits of scale and zero point; the router and the LM head in bfloat16.
    awq = SHAPES["Qwen3-30B-A3B-AWQ"]
    attention = 2 * 2048 * 4096 + 2 * 2048 * 512
    assert gpu_bounds.step_bytes(awq, 1, 576)[0] == 48 * (2 * 2048 * 128 + (attention + 8 * expert) * (64 + 2.5) / 128) + 2 * 151936 * 2048
    assert gpu_bounds.prefill_flops(awq, 2, 512) == gpu_bounds.prefill_flops(qwen, 2, 512)
    assert abs(gpu_bounds.weight_bytes(SHAPES["Qwen3-8B-FP8"]) / 1e9 - 9.44) < 0.01, "7 GB of matrices, 2.5 GB of tables"
    # Latent pages: 512 + 64 elements of each position and layer; the first layer is dense, the others have 2 shared experts.
    deepseek = SHAPES["DeepSeek-V2-Lite"]
    layer = 2048 * 16 * 192 + 2048 * 576 + 512 * 16 * 256 + 16 * 128 * 2048
    weights = 2 * (27 * layer + 3 * 2048 * 10944 + 26 * (2048 * 64 + (2 + 6) * 3 * 2048 * 1408) + 102400 * 2048)
    assert gpu_bounds.step_bytes(deepseek, 1, 576) == (weights, 576 * 27 * 576 * 2, 0)
    # Hybrid: 8 layers of attention, whose queries have a gate; 24 states of 32 heads of 128 x 128, and three rows of 8,192
    # channels, in float32, read and written.
    weights, kv, states = gpu_bounds.step_bytes(SHAPES["Qwen3.5-4B"], 64, 576)
    delta = 2560 * (2 * 2048 + 2 * 4096 + 64) + 4096 * 2560
    attention = 2560 * 256 * (3 * 16 + 2 * 4)
    assert weights == 2 * (24 * delta + 8 * attention + 32 * 3 * 2560 * 9216 + 248320 * 2560)
    assert kv == 64 * 576 * 8 * 2 * 4 * 256 * 2
    assert states == 64 * 24 * (32 * 128 * 128 + 3 * 8192) * 4 * 2
    # Mamba-2: 36 states of 64 heads of 64 x 128, and three rows of 4,096 + 2 x 128 channels.
    assert gpu_bounds.step_bytes(SHAPES["Granite-4.0-H-Micro"], 1, 576)[2] == 36 * (64 * 64 * 128 + 3 * 4352) * 4 * 2
    assert gpu_bounds.seen(4, 0) == 10 and gpu_bounds.seen(4, 2) == 1 + 2 + 2 + 2 and gpu_bounds.seen(4, 9) == 10


SHAPE_FIGURES = {
    "ceilings": {"device": "a GPU", "copy_tb_per_s": 4.0, "matmul_tflop_per_s": 800},
    "shapes": {"Llama-3.1-8B": {"1": {"decode_tokens_per_s": 200, "prefill_tokens_per_s": 10240, "weights_bytes": 16060522496},
                                "64": {"decode_tokens_per_s": 6451.4, "prefill_tokens_per_s": 32768}},
               "gpt-oss-20b": {"1": {"decode_tokens_per_s": 400, "prefill_tokens_per_s": 5120, "weights_bytes": 41.8e9}},
               "Gemma-3-1B": {}},
    "loads": {"quire": {"Llama-3.1-8B": {"single": {"output_throughput": 180}, "batch": {"output_throughput": 6000.4}}, "Gemma-3-1B": {}},
              "vllm": {"Llama-3.1-8B": {"single": {"output_throughput": 150}}, "Gemma-3-1B": {"single": {"output_throughput": 500}}},
              "vllm-invariant": {"Llama-3.1-8B": {"single": {"output_throughput": 90}}}},
    "left_out": {"shape Gemma-3-1B, batch 64": "quire took more than 240 s", "vllm Llama-3.1-8B batch": "it went away"},
}


def check_shapes():
    rows = gpu_report.shape_rows(SHAPE_FIGURES)
    # 15.01 GB of weights and 75.5 MB of K and V: 265.2 tok/s at 4 TB/s. 512 tokens in 50 ms are 7.22 TFLOP: 144 TFLOP/s.
    assert rows[0] == ("Llama-3.1-8B", "1", "200", "265", "75%", "0.0500", "144", "18%"), rows[0]
    assert rows[1] == ("Llama-3.1-8B", "64", "6,451", "12,902", "50%", "1.0000", "462", "58%"), rows[1]
    # The weights were held in bfloat16, as their size shows, and so the bound is that of bfloat16.
    assert rows[2][0] == "gpt-oss-20b (in bfloat16)" and rows[2][3] == "553", rows[2]
    assert rows[3][:3] == ("gpt-oss-20b", "64", "-"), rows[3]
    assert rows[4][:3] == ("Gemma-3-1B", "1", "-") and rows[4][4:] == ("-",) * 4, rows[4]
    assert all(row[3] == "-" for row in gpu_report.shape_rows({"shapes": SHAPE_FIGURES["shapes"]})), "a bound needs a measured copy"
    rows = gpu_report.load_rows(SHAPE_FIGURES)
    assert rows[0] == ("Llama-3.1-8B", "1 at once, 128 in, 256 out", "180", "150", "1.20", "90", "2.00"), rows[0]
    assert rows[1] == ("Llama-3.1-8B", "64 at once, 512 in, 128 out", "6,000", "-", "-", "-", "-"), rows[1]
    assert rows[2][:4] == ("Gemma-3-1B", "1 at once, 128 in, 256 out", "-", "500") and len(rows) == 3, rows


def check_printed():
    """From a file, as --from does: both tables, and the reason of each empty cell."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "run.json")
        file.write_text(json.dumps(SHAPE_FIGURES))
        done = subprocess.run([sys.executable, str(BENCH / "gpu"), "--from", str(file)], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert any(line.startswith("| Llama-3.1-8B ") and "| 265 " in line for line in lines), done.stdout
    assert any("| 1.20 " in line for line in lines), done.stdout
    assert "skipped: shape Gemma-3-1B, batch 64: quire took more than 240 s" in lines, done.stdout
    assert not any(line.startswith("| work") for line in lines), "the goals belong to parts that did not run"
    gpu_report.print_report(FIGURES)


def check_merged():
    """A run in pieces is one run; a reason goes when a later piece has the figures."""
    first = {"ceilings": {"copy_tb_per_s": 4.0}, "shapes": {"Qwen3-8B": {"1": {"decode_tokens_per_s": 1}}},
             "loads": {"quire": {"Qwen3-8B": {}}}, "left_out": {"quire Qwen3-8B": "no", "shape Qwen3-8B, batch 64": "no", "kernels": "no"}}
    second = {"shapes": {"Qwen3-8B": {"64": {"decode_tokens_per_s": 2}}, "Gemma-3-1B": {}},
              "loads": {"quire": {"Qwen3-8B": {"batch": {"output_throughput": 3}}}}, "left_out": {"quire Qwen3-8B single": "late"}}
    out = gpu_report.merged([first, second])
    assert out["ceilings"] == first["ceilings"] and list(out["shapes"]) == ["Qwen3-8B", "Gemma-3-1B"]
    assert out["shapes"]["Qwen3-8B"] == {"1": {"decode_tokens_per_s": 1}, "64": {"decode_tokens_per_s": 2}}
    assert out["left_out"] == {"kernels": "no", "quire Qwen3-8B single": "late"}, out["left_out"]
    assert "64" not in first["shapes"]["Qwen3-8B"], "the pieces stay as they are"


def check_configs():
    """What each method needs beside its name, with the routers and the LM head left out."""
    found = {name: SHAPES["Qwen3-" + name]["quantization_config"] for name in ("8B-AWQ", "8B-GPTQ", "8B-FP8", "30B-A3B-FP8", "30B-A3B-AWQ")}
    assert [found[name]["quant_method"] for name in found] == ["awq", "gptq", "fp8", "fp8", "awq"]
    assert all(found[name]["group_size"] == 128 and found[name]["bits"] == 4 for name in found if "FP8" not in name)
    assert found["8B-FP8"]["weight_block_size"] == [128, 128] and found["8B-FP8"]["activation_scheme"] == "dynamic"
    assert ["mlp.down_proj"] in found["8B-GPTQ"]["modules_in_block_to_quantize"], "vLLM quantises only what is named"
    assert found["8B-AWQ"]["modules_to_not_convert"] == ["lm_head"]
    assert found["30B-A3B-FP8"]["modules_to_not_convert"][::48] == ["lm_head", "model.layers.47.mlp.gate"]
    assert "quantization_config" not in SHAPES["Qwen3-8B"]


def check_flags():
    args = gpu.parse(["--shapes", "qwen3-8b,gpt-oss-20b", "--loads", "batch", "--tokenizer", "A", "--tokenizer", "gpt-oss-20b=B"])
    assert args.shapes == ["Qwen3-8B", "gpt-oss-20b"] and args.loads == ["batch"]
    assert args.tokenizers == {"": "A", "gpt-oss-20b": "B"} and args.only == gpu.PARTS
    for wrong in (["--shapes", "nothing"], ["--only", "nothing"], ["--loads", "nothing"], ["--servers", "vllm"], ["--servers", "nothing"]):
        with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
            gpu.parse(wrong)
            raise AssertionError(wrong)
    command, env = gpu_loads.server_command("vllm-invariant", gpu.parse(["--vllm-python", "P"]), "M", "T", 7)
    assert command[:4] == ["P", "-m", "vllm.entrypoints.openai.api_server", "--model"] and env["VLLM_BATCH_INVARIANT"] == "1"
    assert gpu_loads.server_command("vllm", gpu.parse(["--vllm-python", "P"]), "M", "T", 7)[1] is None
    with tempfile.TemporaryDirectory() as folder:
        tokens = {"model": {"vocab": {"a": 0, "b": 7}}, "added_tokens": [{"id": 11}]}
        pathlib.Path(folder, "tokenizer.json").write_text(json.dumps(tokens))
        assert gpu_loads.vocabulary(folder) == 12 and gpu_loads.vocabulary("nowhere") == 0


def ended(pid):
    """Whether the process is gone or only waits to be collected."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def check_groups():
    """A program that takes too long is ended with its children, and its reason is told."""
    with tempfile.TemporaryDirectory() as folder:
        child = pathlib.Path(folder, "child")
        script = f"sleep 600 & echo $! > {child}; wait"
        try:
            gpu_loads.run_group(["sh", "-c", script], 1)
            raise AssertionError("it did not take too long")
        except gpu_loads.Failed as failed:
            assert "took more than 1 s" in str(failed)
        pid = int(child.read_text())
        while not ended(pid):
            time.sleep(0.05)
        for command, words in ((["sh", "-c", "echo no GPU >&2; exit 3"], "sh ended with 3: no GPU"),
                               (["sh", "-c", "echo CUDA error 2 >&2; echo bye; exit 1"], "sh ended with 1: CUDA error 2")):
            try:
                with gpu_loads.running(command, "http://127.0.0.1:9", 30):
                    raise AssertionError("it was never up")
            except gpu_loads.Failed as failed:
                assert str(failed) == words, failed
    assert gpu_loads.run_json(["sh", "-c", "echo words; echo '{\"a\": 1}'"], 30) == {"a": 1}


def main():
    for check in (check_goals, check_bounds, check_shapes, check_printed, check_merged, check_configs, check_flags, check_groups):
        check()


if __name__ == "__main__":
    main()
