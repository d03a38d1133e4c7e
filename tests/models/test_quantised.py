# SPDX-License-Identifier: Apache-2.0
"""Quantised Hugging Face folders: each format is written here in its published layout, and must give the results of the
same weights stored as floats. The formats are described in docs/quantised-checkpoints.md."""

import json
import struct
import subprocess

import numpy as np
import pytest

from models import QUIRE, clean_environment, run_logits
from tools.goldens import cases, export

CASE = "llama-wide"  # rows of 256 and 512
PROMPTS = [cases.make_prompt(length, 512) for length in (3, 70)]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def config(case: str = CASE) -> dict:
    return json.loads((export.GOLDENS / case / "config.json").read_text())


def write(folder, settings: dict, tensors: dict, case: str = CASE) -> None:
    """`tensors`: name -> array, or (safetensors type, array) if numpy has no such type."""
    export.write_folder(folder, config(case), {}, "F32", 1)
    (folder / "config.json").write_text(json.dumps({**config(case), **settings}))
    names = {np.dtype("<f4"): "F32", np.dtype("<f2"): "F16", np.dtype("<i4"): "I32", np.dtype("<u4"): "U32",
             np.dtype("i1"): "I8", np.dtype("u1"): "U8", np.dtype("<i8"): "I64"}
    header, data = {}, b""
    for name, value in tensors.items():
        kind, array = value if isinstance(value, tuple) else (names[value.dtype], value)
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def codes_of(weight: np.ndarray, bits: int, group: int, symmetric: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unsigned codes [n, k], scales [n, k/group] (float16 values) and integer zeros [n, k/group]."""
    n, k = weight.shape
    parts = weight.reshape(n, k // group, group)
    top = 2**bits - 1
    low, high = parts.min(axis=2), parts.max(axis=2)
    if symmetric:
        scale = np.maximum(np.abs(low), np.abs(high)) / (2 ** (bits - 1) - 1)
        zero = np.full(scale.shape, 2 ** (bits - 1))
    else:
        scale = (high - low) / top
        zero = np.clip(np.round(-low / scale), 1, top)
    scale = scale.astype("<f2").astype(np.float64)
    codes = np.clip(np.round(parts / scale[..., None] + zero[..., None]), 0, top).astype(np.int64)
    return codes.reshape(n, k), scale, zero.astype(np.int64)


def values_of(codes: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    n, k = codes.shape
    parts = codes.reshape(n, scale.shape[1], -1)
    return ((parts - zero[..., None]) * scale[..., None]).reshape(n, k).astype("<f4")


def words(codes: np.ndarray, bits: int, kind: str = "<i4") -> np.ndarray:
    """Codes along the last axis as 32-bit words, the first code in the lowest bits; codes may straddle words."""
    stream = ((codes[..., None] >> np.arange(bits)) & 1).astype(np.uint8).reshape(*codes.shape[:-1], -1)
    packed = np.packbits(stream, axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view(kind)


def mlx(bits: int, group: int):
    def make(prefix, weight):
        n, k = weight.shape
        parts = weight.reshape(n, k // group, group)
        low, high = parts.min(axis=2), parts.max(axis=2)
        scale = ((high - low) / (2**bits - 1)).astype("<f2")
        bias = low.astype("<f2")
        codes = np.clip(np.round((parts - bias[..., None]) / scale[..., None]), 0, 2**bits - 1).astype(np.int64)
        value = (codes * scale[..., None].astype(np.float64) + bias[..., None]).reshape(n, k).astype("<f4")
        return {f"{prefix}.weight": words(codes.reshape(n, k), bits, "<u4"), f"{prefix}.scales": scale,
                f"{prefix}.biases": bias}, value
    return {"quantization": {"group_size": group, "bits": bits, "mode": "affine"}}, make


def awq(group: int):
    def make(prefix, weight):
        codes, scale, zero = codes_of(weight, 4, group, False)
        pack = lambda a: words(a.reshape(a.shape[0], -1, 8)[..., AWQ_ORDER].reshape(a.shape), 4)
        return {f"{prefix}.qweight": pack(np.ascontiguousarray(codes.T)), f"{prefix}.qzeros": pack(np.ascontiguousarray(zero.T)),
                f"{prefix}.scales": np.ascontiguousarray(scale.T).astype("<f2")}, values_of(codes, scale, zero)
    return {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True,
                                    "version": "gemm"}}, make


def gptq(bits: int, group: int, act_order: bool):
    def make(prefix, weight):
        n, k = weight.shape
        order = np.random.default_rng(k).permutation(k) if act_order else np.arange(k)
        codes, scale, zero = codes_of(weight[:, order], bits, group, not act_order)
        value = np.empty_like(weight)
        value[:, order] = values_of(codes, scale, zero)
        in_file = np.empty_like(codes)
        in_file[:, order] = codes  # columns in the model's order, with their groups in g_idx
        g_idx = np.empty(k, dtype="<i4")
        g_idx[order] = np.arange(k) // group
        return {f"{prefix}.qweight": np.ascontiguousarray(words(in_file, bits).T), f"{prefix}.g_idx": g_idx,
                f"{prefix}.qzeros": words(np.ascontiguousarray(zero.T) - 1, bits),
                f"{prefix}.scales": np.ascontiguousarray(scale.T).astype("<f2")}, value
    return {"quantization_config": {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act_order,
                                    "sym": not act_order}}, make


def e4m3_values() -> np.ndarray:
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    value = np.where(code & 128, -value, value)
    return np.where((code & 127) == 127, np.nan, value)


def to_e4m3(x: np.ndarray) -> np.ndarray:
    table = e4m3_values()
    order = np.argsort(np.where(np.isnan(table), np.inf, table))[:254]
    at = np.clip(np.searchsorted(table[order], x), 1, 253)
    nearer = np.abs(table[order][at] - x) < np.abs(table[order][at - 1] - x)
    return order[np.where(nearer, at, at - 1)].astype("u1")


def fp8_blocks():
    def make(prefix, weight):
        n, k = weight.shape
        rows, columns = -(-n // 128), -(-k // 128)
        scale = np.empty((rows, columns), dtype="<f4")
        codes, value = np.empty((n, k), dtype="u1"), np.empty((n, k), dtype="<f4")
        for i in range(rows):
            for j in range(columns):
                at = np.s_[i * 128:(i + 1) * 128, j * 128:(j + 1) * 128]
                scale[i, j] = np.abs(weight[at]).max() / 448
                codes[at] = to_e4m3(weight[at] / scale[i, j])
                value[at] = e4m3_values()[codes[at]] * np.float64(scale[i, j])
        return {f"{prefix}.weight": ("F8_E4M3", codes), f"{prefix}.weight_scale_inv": scale}, value
    return {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}}, make


def fp8_rows(per_tensor: bool):
    def make(prefix, weight):
        n, k = weight.shape
        scale = (np.abs(weight).max(axis=1, keepdims=True) / 448).astype("<f4")
        if per_tensor:
            scale = np.full((n, 1), scale.max(), dtype="<f4")
        codes = to_e4m3(weight / scale)
        stored = scale[0] if per_tensor else scale
        return {f"{prefix}.weight": ("F8_E4M3", codes), f"{prefix}.weight_scale": stored}, e4m3_values()[codes] * scale.astype(np.float64)
    settings = {"quant_method": "modelopt", "quant_algo": "FP8"} if per_tensor else {"quant_method": "fbgemm_fp8"}
    return {"quantization_config": settings}, make


def compressed(kind: str, bits: int, group: int, symmetric: bool):
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group" if group > 0 else "channel",
               "group_size": group if group > 0 else None, "dynamic": False}

    def make(prefix, weight):
        n, k = weight.shape
        codes, scale, zero = codes_of(weight, bits, group if group > 0 else k, symmetric)
        out = {f"{prefix}.weight_scale": scale.astype("<f4")}
        if kind == "int-quantized":
            out[f"{prefix}.weight"] = (codes - 128).astype("i1")
        else:
            out[f"{prefix}.weight_packed"] = words(codes, bits)
            out[f"{prefix}.weight_shape"] = np.array([n, k], dtype="<i8")
            if not symmetric:
                out[f"{prefix}.weight_zero_point"] = np.ascontiguousarray(words(np.ascontiguousarray(zero.T), bits).T)
        return out, values_of(codes, scale, zero)
    return {"quantization_config": {"quant_method": "compressed-tensors", "format": kind, "ignore": ["lm_head"],
                                    "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}}, make


FORMATS = {
    "mlx-2-32": mlx(2, 32), "mlx-3-64": mlx(3, 64), "mlx-4-64": mlx(4, 64), "mlx-4-128": mlx(4, 128), "mlx-5-32": mlx(5, 32),
    "mlx-6-64": mlx(6, 64), "mlx-8-128": mlx(8, 128), "awq": awq(128), "gptq-4": gptq(4, 128, False),
    "gptq-4-act-order": gptq(4, 64, True), "gptq-8": gptq(8, 128, False), "fp8-blocks": fp8_blocks(),
    "compressed-w4a16": compressed("pack-quantized", 4, 128, True),
    "compressed-w4a16-asymmetric": compressed("pack-quantized", 4, 64, False),
    "compressed-w8a8": compressed("int-quantized", 8, -1, True),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_quantised_folder_gives_the_results_of_its_float_weights(name, tmp_path):
    settings, make = FORMATS[name]
    source = export.make_tensors(export.GOLDENS / CASE / "config.json", config(), 0)
    stored, plain = {}, {}
    for tensor, weight in source.items():
        quantised = tensor.endswith("_proj.weight")  # the embedding and the head are not quantised
        if not quantised:
            stored[tensor] = plain[tensor] = weight.astype("<f4")
            continue
        more, plain[tensor] = make(tensor.removesuffix(".weight"), weight)
        stored.update(more)
    for folder, extra, tensors in (("quantised", settings, stored), ("plain", {}, plain)):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, extra, tensors)
    exact = run_logits(tmp_path / "plain", PROMPTS, tmp_path, "--dtype", "float32")
    ours = run_logits(tmp_path / "quantised", PROMPTS, tmp_path, "--dtype", "float32")
    near = run_logits(tmp_path / "quantised", PROMPTS, tmp_path)
    for want, got, rounded in zip(exact, ours, near, strict=True):
        # float32 against float32: d * q + m is rounded, where the plain weight was rounded once.
        assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()
        spread = np.sqrt(np.mean((rounded - want) ** 2)) / np.std(want)
        assert spread < 0.06, f"activations in 8 to 12 bits move logits by {spread:.3f} of their spread"


FP8 = {"blocks": fp8_blocks(), "rows": fp8_rows(False), "tensor": fp8_rows(True)}


def bf16(value: np.ndarray) -> tuple[str, np.ndarray]:
    bits = value.astype("<f4").view("<u4")
    return "BF16", ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


def make_fp8_and_plain(tmp_path, case: str, form: str, dtype: str, mixed: bool = False) -> None:
    """The folders "fp8" and "plain", which has the values that fp8 stands for. `mixed`: one expert is not quantised."""
    settings, make = FP8[form]
    sizes = {"moe_intermediate_size": 64} if "moe" in case else {}  # instead of 40: whole groups, in down_proj too
    stored, plain = {}, {}
    for tensor, weight in export.make_tensors(export.GOLDENS / case / "config.json", config(case), 0).items():
        if ".experts." in tensor:
            weight = np.resize(weight, [64 if size == 40 else size for size in weight.shape])
        if not tensor.endswith("_proj.weight") or (mixed and ".experts.1." in tensor):
            stored[tensor] = plain[tensor] = weight.astype("<f4") if dtype == "float32" else bf16(weight)
            continue
        more, value = make(tensor.removesuffix(".weight"), weight)
        stored.update(more)
        plain[tensor] = value.astype("<f4") if dtype == "float32" else bf16(value)
    for folder, extra, tensors in (("fp8", settings, stored), ("plain", {}, plain)):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, {**sizes, **extra}, tensors, case)


@pytest.mark.parametrize("case", [CASE, "qwen3-moe"])
@pytest.mark.parametrize("form, dtype", [("blocks", "bfloat16"), ("rows", "float16"), ("tensor", "float32"), ("blocks", "float16")])
def test_fp8_that_a_gpu_keeps_has_the_bits_of_the_expanded_weights(case, form, dtype, tmp_path):
    make_fp8_and_plain(tmp_path, case, form, dtype)
    flags = ("--device", "emulator", "--dtype", dtype)
    want = run_logits(tmp_path / "plain", [PROMPTS[0]], tmp_path, *flags)
    got = run_logits(tmp_path / "fp8", [PROMPTS[0]], tmp_path, *flags)
    for a, b in zip(want, got, strict=True):
        assert a.tobytes() == b.tobytes()


def test_experts_of_which_one_is_not_fp8_are_expanded(tmp_path):
    make_fp8_and_plain(tmp_path, "qwen3-moe", "blocks", "bfloat16", mixed=True)
    flags = ("--device", "emulator", "--dtype", "bfloat16")
    want, got = (run_logits(tmp_path / folder, [PROMPTS[0]], tmp_path, *flags) for folder in ("plain", "fp8"))
    assert want[0].tobytes() == got[0].tobytes()


def test_fp8_takes_one_byte_per_weight_on_a_gpu(tmp_path):
    make_fp8_and_plain(tmp_path, CASE, "blocks", "bfloat16")

    def weights(folder: str, device: str) -> int:
        done = subprocess.run([QUIRE, "bench", "latency", "--model", str(tmp_path / folder), "--dtype", "bfloat16", "--device", device,
                               "--batch-size", "1", "--input-len", "3", "--output-len", "2", "--num-iters", "1", "--num-iters-warmup", "0",
                               "--max-model-len", "64", "--json"], capture_output=True, text=True, env=clean_environment())
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])["weights_bytes"]

    source = export.make_tensors(export.GOLDENS / CASE / "config.json", config(), 0)
    linears = sum(weight.size for name, weight in source.items() if name.endswith("_proj.weight"))
    assert weights("plain", "emulator") - weights("fp8", "emulator") == pytest.approx(linears * (1 - 4 / 128), rel=0.01)
    assert weights("plain", "cpu") == weights("fp8", "cpu")


FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def mxfp4(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[..., k] as blocks of 32 with a power of two each: bytes [..., k/32, 16], exponents [..., k/32], and the values."""
    parts = weight.reshape(*weight.shape[:-1], -1, 32)
    exponent = np.floor(np.log2(np.abs(parts).max(axis=-1) / 6)) + 1
    scaled = parts / 2.0 ** exponent[..., None]
    codes = np.abs(scaled[..., None] - FP4).argmin(axis=-1)
    value = (FP4[codes] * 2.0 ** exponent[..., None]).reshape(weight.shape)
    blocks = (codes[..., 0::2] | codes[..., 1::2] << 4).astype("u1")
    return blocks, (exponent + 127).astype("u1"), value


def test_gpt_oss_takes_mxfp4_experts(tmp_path):
    source = export.make_tensors(export.GOLDENS / "gpt-oss" / "config.json", config("gpt-oss"), 0)
    stored, plain = {}, {}
    for name, weight in source.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            stored[name] = plain[name] = weight.astype("<f4")
            continue
        blocks, exponents, value = mxfp4(np.ascontiguousarray(weight.swapaxes(1, 2)))  # [experts, out, in]
        stored[f"{name}_blocks"], stored[f"{name}_scales"] = blocks, exponents
        plain[name] = np.ascontiguousarray(value.swapaxes(1, 2)).astype("<f4")
    settings = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}}
    for folder, extra, tensors in (("quantised", settings, stored), ("plain", {}, plain)):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, extra, tensors, "gpt-oss")
    exact = run_logits(tmp_path / "plain", PROMPTS, tmp_path, "--dtype", "float32")
    ours = run_logits(tmp_path / "quantised", PROMPTS, tmp_path, "--dtype", "float32")
    for want, got in zip(exact, ours, strict=True):
        assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


def test_random_weights_have_the_type_of_the_configs_experts(tmp_path):
    """GPT-OSS by config.json alone: its experts are in MXFP4, as in the published folder, except with --dtype float32."""
    settings = {"quantization_config": {"quant_method": "mxfp4"}}

    def weights(dtype: str, more: dict) -> int:
        (tmp_path / "config.json").write_text(json.dumps({**config("gpt-oss"), **more}))
        done = subprocess.run([QUIRE, "bench", "latency", "--model", str(tmp_path), "--load-format", "dummy", "--dtype", dtype, "--device", "cpu",
                               "--batch-size", "1", "--input-len", "3", "--output-len", "2", "--num-iters", "1", "--num-iters-warmup", "0",
                               "--max-model-len", "64", "--json"], capture_output=True, text=True, env=clean_environment())
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])["weights_bytes"]

    experts = 4 * 6 * 3 * 96 * 64  # layers, experts, gate and up and down
    saved = weights("bfloat16", {}) - weights("bfloat16", settings)
    assert saved == pytest.approx(experts * (2 - 17 / 32), rel=0.1)  # with AMX, 16 outputs have 64 bytes of bounds beside them
    assert weights("float32", {}) == weights("float32", settings)
