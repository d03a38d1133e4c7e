# SPDX-License-Identifier: Apache-2.0
"""Writes a Hugging Face folder (safetensors, one file or shards with an index) with only numpy."""

import json
import pathlib
import struct

import numpy as np

DTYPES = {"F32": 4, "F16": 2, "BF16": 2}


def to_bytes(values: np.ndarray, dtype: str) -> bytes:
    if dtype == "F32":
        return values.astype("<f4").tobytes()
    if dtype == "F16":
        return values.astype("<f2").tobytes()
    if dtype == "BF16":  # to the nearest, ties to even; the weights are finite
        bits = values.astype("<f4").view("<u4").astype(np.uint64)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    raise ValueError(f"safetensors: the type is one of {', '.join(DTYPES)}, not {dtype}")


def write_file(path: pathlib.Path, tensors: dict[str, np.ndarray], dtype: str) -> int:
    """Returns the bytes of tensor data."""
    header, offset, blobs = {"__metadata__": {"format": "pt"}}, 0, []
    for name, values in tensors.items():
        whole = values.dtype == np.int64  # such tensors keep their type
        blob = values.tobytes() if whole else to_bytes(values, dtype)
        header[name] = {"dtype": "I64" if whole else dtype, "shape": list(values.shape), "data_offsets": [offset, offset + len(blob)]}
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)  # data begins at a multiple of eight
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for blob in blobs:
            file.write(blob)
    return offset


def write_folder(folder: pathlib.Path, tensors: dict[str, np.ndarray], dtype: str, shards: int) -> None:
    if shards <= 1:
        write_file(folder / "model.safetensors", tensors, dtype)
        return
    names, total, where = list(tensors), 0, {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = names[len(names) * i // shards:len(names) * (i + 1) // shards]
        total += write_file(folder / file, {name: tensors[name] for name in part}, dtype)
        where.update({name: file for name in part})
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
