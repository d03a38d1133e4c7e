#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the seeds of the weight readers' fuzz targets (fuzz/seeds/gguf, fuzz/seeds/safetensors).

Small valid files that between them use every field, kind and tensor type, so that the fuzzer starts from all
branches. Needs Python alone; run it from anywhere, it writes the same bytes each time.
"""

import json
import struct
from pathlib import Path

SEEDS = Path(__file__).resolve().parent.parent / "fuzz" / "seeds"

# ggml number: (elements, bytes) of a block, for all types whose size the reader knows.
BLOCKS = {0: (1, 4), 1: (1, 2), 30: (1, 2), 8: (32, 34), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24),
          10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 24: (1, 1), 27: (1, 8),
          20: (32, 18), 39: (32, 17)}
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


def counting(size: int) -> bytes:
    return bytes(i * 37 % 251 for i in range(size))


def text(s: str) -> bytes:
    raw = s.encode()
    return struct.pack("<Q", len(raw)) + raw


def array(kind: int, items: list[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


def gguf(pairs: list[tuple[str, int, bytes]], tensors: list[tuple[str, list[int], int]], version: int = 3,
         alignment: int = 32) -> bytes:
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(pairs))
    for key, kind, value in pairs:
        head += text(key) + struct.pack("<I", kind) + value
    data = b""
    for name, dims, kind in tensors:
        data += b"\0" * (-len(data) % alignment)
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, len(data))
        elements, size = BLOCKS[kind]
        count = 1
        for d in dims:
            count *= d
        data += counting(count // elements * size)
    return head + b"\0" * (-len(head) % alignment) + data


def gguf_seeds() -> dict[str, bytes]:
    scalars = [(f"k{kind}", kind, struct.pack("<" + code, 1)) for kind, code in SCALARS.items()]
    arrays = [(f"a{kind}", ARRAY, array(kind, [struct.pack("<" + code, 1)] * 2)) for kind, code in SCALARS.items()]
    words = array(STRING, [text(w) for w in ("<s>", "", "hello", "\u0120w\u00f6rld")])
    nested = array(ARRAY, [array(5, [struct.pack("<i", -1)]), array(ARRAY, [array(STRING, [text("x")])])])
    seeds = {
        "empty": gguf([], []),
        "scalars": gguf(scalars + [("s", STRING, text("llama"))], []),
        "arrays": gguf(arrays + [("tokenizer.ggml.tokens", ARRAY, words), ("nested", ARRAY, nested)], []),
        "v2_aligned": gguf([("general.alignment", 4, struct.pack("<I", 8))], [("a", [3], 0), ("b", [2, 2], 1)],
                           version=2, alignment=8),
        "dims": gguf([], [("d0", [], 0), ("d1", [1], 0), ("d2", [2, 3], 30), ("d4", [2, 1, 2, 1], 0)]),
        "plain": gguf([("general.architecture", STRING, text("llama"))],
                      [(f"t{kind}", [elements, 1], kind) for kind, (elements, _) in BLOCKS.items() if elements <= 32]),
        "split_of_one": gguf([("split.no", 2, struct.pack("<H", 0)), ("split.count", 2, struct.pack("<H", 1))], []),
    }
    for kind, (elements, _) in BLOCKS.items():
        if elements == 256:
            seeds[f"k_type_{kind}"] = gguf([], [("w", [256, 1], kind)])
    return seeds


def safetensors(header: dict | str, data: bytes) -> bytes:
    raw = header if isinstance(header, str) else json.dumps(header, separators=(",", ":"))
    raw = raw.encode()
    return struct.pack("<Q", len(raw)) + raw + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_seeds() -> dict[str, bytes]:
    sizes = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "I64": 8, "U8": 1, "BOOL": 1, "F8_E4M3": 1}
    every, at = {}, 0
    for dtype, size in sizes.items():
        every["t." + dtype] = entry(dtype, [2], at, at + 2 * size)
        at += 2 * size
    return {
        "empty": safetensors({}, b""),
        "one": safetensors({"a": entry("F32", [2, 2], 0, 16)}, counting(16)),
        "metadata": safetensors({"__metadata__": {"format": "pt"}, "a": entry("BF16", [3], 0, 6)}, counting(6)),
        "every_type": safetensors(every, counting(at)),
        "scalar_and_none": safetensors({"s": entry("F32", [], 0, 4), "n": entry("F16", [0, 9], 4, 4)}, counting(4)),
        "out_of_order": safetensors({"b": entry("F16", [2], 4, 8), "a": entry("F32", [1], 0, 4)}, counting(8)),
        "padded": safetensors('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}     ', counting(4)),
        "half_bytes": safetensors({"a": entry("F4", [2, 2], 0, 2)}, counting(2)),
    }


def main() -> None:
    for folder, seeds in (("gguf", gguf_seeds()), ("safetensors", safetensors_seeds())):
        (SEEDS / folder).mkdir(parents=True, exist_ok=True)
        for name, data in seeds.items():
            (SEEDS / folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
