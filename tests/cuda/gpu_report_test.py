# SPDX-License-Identifier: Apache-2.0
"""bench/gpu's table, from made-up figures: what is compared with what, and what stays open where a part is missing."""

import importlib.machinery
import importlib.util
import pathlib
import sys

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.dont_write_bytecode = True
sys.path.insert(0, str(BENCH))
loader = importlib.machinery.SourceFileLoader("gpu", str(BENCH / "gpu"))
gpu = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu", loader))
loader.exec_module(gpu)


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


def main():
    rows = gpu.table(FIGURES)
    assert found(rows, "paged decode")[1:4] == ("80.0%", "75.0% (1000 us)", "0.94"), rows
    assert found(rows, "prefill")[2:4] == ("-", "-"), "it was not measured"
    assert found(rows, "GEMM, from 64")[2] == "90.0% (a, 64 rows)", rows
    assert found(rows, "GEMM, below 64")[2] == "60.0% (d, 32 rows)", rows
    assert found(rows, "Qwen3-0.6B")[2:4] == ("1,800", "1.20"), rows
    assert found(rows, "  against transformers' 200")[2] == "9.0x", rows
    # 1.19 GB of weights and 15.0 GB of K and V per step, at 4 TB/s.
    assert 595e6 < gpu.weight_bytes() / 2 < 597e6 and gpu.kv_bytes(256 * 512) == 15032385536
    assert "bound of 63" in found(rows, "the same, 256")[0], rows
    assert all(row[2] == "-" for row in gpu.table({})), "nothing measured, nothing told"
    gpu.print_report(FIGURES)


if __name__ == "__main__":
    main()
