# SPDX-License-Identifier: Apache-2.0
"""Rewrites a GGUF file with its matrices in another type, so that every type of weight can be compared on one real model."""

import functools
import sys

import gguf
import numpy as np

import serving

sys.path.insert(0, str(serving.ROOT))
from tools.goldens import gguf_file  # noqa: E402

TYPES = gguf_file.TYPES


def type_of(columns, wanted):
    """The type of one tensor: what is wanted where a row is whole blocks of it, else Q8_0, else F32."""
    for choice in (wanted, "Q8_0"):
        if columns % gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[choice]][0] == 0:
            return choice
    return "F32"


@functools.cache
def read(source):
    """A file's reader; it takes seconds to read a vocabulary."""
    return gguf.GGUFReader(source)


def copy_fields(reader, writer):
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, inner)


def requantise(source, target, wanted):
    """Writes `target` from `source`; returns the number of matrices of each type."""
    reader = read(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    copy_fields(reader, writer)
    counts = {}
    for tensor in reader.tensors:
        shape = [int(n) for n in reversed(tensor.shape)]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)
        if len(shape) < 2:
            writer.add_tensor(tensor.name, values)
            continue
        name = type_of(shape[-1], wanted)
        counts[name] = counts.get(name, 0) + 1
        if name == "F32":
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, gguf_file.quantize(values, name), raw_dtype=gguf.GGMLQuantizationType[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return counts
