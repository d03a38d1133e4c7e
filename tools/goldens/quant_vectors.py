# SPDX-License-Identifier: Apache-2.0
"""Known answers for dequantising every GGUF block type that quire reads, from the gguf package.

Blocks are random bytes (Philox words) whose half-precision scales are replaced by ordinary numbers, so every bit
pattern of the packed codes and sub-scales occurs and no infinity does.
"""

import base64

import gguf
import numpy as np

from tools.goldens import floats, philox

TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
         "IQ4_NL", "IQ4_XS", "MXFP4")
BLOCKS = 3
# Byte offsets of the float16 fields in a block.
HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
          "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": ()}


def random_blocks(name: str, count: int) -> np.ndarray:
    _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    data = philox.words(philox.fnv1a64(name), (count * size + 3) // 4).view(np.uint8)[:count * size].reshape(count, size).copy()
    scales = philox.tensor(f"{name}.scale.bias", (count * len(HALVES[name]),)).astype(np.float16).reshape(count, -1)
    if name == "MXFP4":  # the scale is an exponent; the largest ones would overflow
        data[:, 0] = 100 + data[:, 0] % 56
    for i, offset in enumerate(HALVES[name]):
        data[:, offset:offset + 2] = scales[:, i:i + 1].copy().view(np.uint8)
    return data


def known_answers() -> list[dict]:
    out = []
    for name in TYPES:
        data = random_blocks(name, BLOCKS)
        values = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name])
        out.append({"type": name, "blocks": base64.b64encode(data.tobytes()).decode("ascii"),
                    "values": floats.encode(values)})
    return out
