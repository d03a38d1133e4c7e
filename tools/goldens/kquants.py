# SPDX-License-Identifier: Apache-2.0
"""Packs float32 rows into the K-quant block types, which the gguf package can only unpack.

A plain round-to-nearest: each sub-block's scale (and minimum) comes from its own extremes. Worse than a tuned
quantiser and good enough to make valid files; gguf.quants.dequantize() is the judge of the layout.
"""

import numpy as np

BLOCK = 256


def _half_bytes(values: np.ndarray) -> np.ndarray:
    return values.astype("<f2").reshape(-1, 1).view(np.uint8)


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)


def _with_minimum(rows: np.ndarray, sub: int, q_max: int, scale_max: int):
    """x ~ d * scale * q - dmin * minimum: returns d, dmin [n] and scale, minimum [n, subs], q [n, 256] as uint8."""
    x = rows.reshape(rows.shape[0], -1, sub)
    low = np.maximum(0, -x.min(axis=2))
    step = (np.maximum(0, x.max(axis=2)) + low) / q_max
    d = (step.max(axis=1) / scale_max).astype(np.float16).astype(np.float32)
    dmin = (low.max(axis=1) / scale_max).astype(np.float16).astype(np.float32)
    scale = np.clip(np.rint(_divide(step, np.broadcast_to(d[:, None], step.shape))), 0, scale_max)
    minimum = np.clip(np.rint(_divide(low, np.broadcast_to(dmin[:, None], low.shape))), 0, scale_max)
    unit = np.broadcast_to((d[:, None] * scale)[:, :, None], x.shape)
    q = np.clip(np.rint(_divide(x + (dmin[:, None] * minimum)[:, :, None], unit)), 0, q_max)
    return d, dmin, scale.astype(np.uint8), minimum.astype(np.uint8), q.reshape(rows.shape).astype(np.uint8)


def _symmetric(rows: np.ndarray, sub: int, q_low: int, scale_max: int):
    """x ~ d * scale * (q + q_low): returns d [n], scale [n, subs] (signed), q [n, 256] from 0."""
    x = rows.reshape(rows.shape[0], -1, sub)
    step = np.abs(x).max(axis=2) / -q_low
    d = (step.max(axis=1) / scale_max).astype(np.float16).astype(np.float32)
    scale = np.clip(np.rint(_divide(step, np.broadcast_to(d[:, None], step.shape))), 0, scale_max)
    unit = np.broadcast_to((d[:, None] * scale)[:, :, None], x.shape)
    q = np.clip(np.rint(_divide(x, unit)), q_low, -q_low - 1) - q_low
    return d, scale.astype(np.int16), q.reshape(rows.shape).astype(np.uint8)


def _pack_scales_6bit(scale: np.ndarray, minimum: np.ndarray) -> np.ndarray:
    """Eight 6-bit scales and minimums in 12 bytes: the first four whole, the last four split into nibble and top bits."""
    out = np.zeros((scale.shape[0], 12), dtype=np.uint8)
    out[:, 0:4] = scale[:, :4] | (scale[:, 4:] >> 4 << 6)
    out[:, 4:8] = minimum[:, :4] | (minimum[:, 4:] >> 4 << 6)
    out[:, 8:12] = (scale[:, 4:] & 15) | (minimum[:, 4:] & 15) << 4
    return out


def _pack_two_bits(q: np.ndarray) -> np.ndarray:
    """Four groups of 32 values share 32 bytes, two bits each; two such halves."""
    groups = q.reshape(-1, 2, 4, 32)
    return np.bitwise_or.reduce(groups << np.array([0, 2, 4, 6], dtype=np.uint8)[:, None], axis=2).reshape(-1, 64)


def _pack_nibbles_by_64(q: np.ndarray) -> np.ndarray:
    groups = q.reshape(-1, 4, 2, 32)
    return (groups[:, :, 0] | groups[:, :, 1] << 4).reshape(-1, 128)


def pack_q2_k(rows: np.ndarray) -> np.ndarray:
    d, dmin, scale, minimum, q = _with_minimum(rows, 16, 3, 15)
    return np.concatenate([scale | minimum << 4, _pack_two_bits(q), _half_bytes(d), _half_bytes(dmin)], axis=1)


def pack_q3_k(rows: np.ndarray) -> np.ndarray:
    d, scale, q = _symmetric(rows, 16, -4, 31)
    stored = (scale + 32).astype(np.uint8)
    high = (q >> 2).reshape(-1, 8, 32) << np.arange(8, dtype=np.uint8)[:, None]
    packed = np.zeros((rows.shape[0], 12), dtype=np.uint8)
    packed[:, :8] = (stored[:, :8] & 15) | (stored[:, 8:] & 15) << 4
    for i in range(4):
        packed[:, 8:12] |= stored[:, 4 * i:4 * i + 4] >> 4 << (2 * i)
    return np.concatenate([np.bitwise_or.reduce(high, axis=1), _pack_two_bits(q & 3), packed, _half_bytes(d)], axis=1)


def pack_q4_k(rows: np.ndarray) -> np.ndarray:
    d, dmin, scale, minimum, q = _with_minimum(rows, 32, 15, 63)
    return np.concatenate([_half_bytes(d), _half_bytes(dmin), _pack_scales_6bit(scale, minimum), _pack_nibbles_by_64(q)], axis=1)


def pack_q5_k(rows: np.ndarray) -> np.ndarray:
    d, dmin, scale, minimum, q = _with_minimum(rows, 32, 31, 63)
    high = (q >> 4).reshape(-1, 8, 32) << np.arange(8, dtype=np.uint8)[:, None]
    return np.concatenate([_half_bytes(d), _half_bytes(dmin), _pack_scales_6bit(scale, minimum),
                           np.bitwise_or.reduce(high, axis=1), _pack_nibbles_by_64(q & 15)], axis=1)


def pack_q6_k(rows: np.ndarray) -> np.ndarray:
    d, scale, q = _symmetric(rows, 16, -32, 127)
    quarters = q.reshape(-1, 2, 4, 32)
    low = np.concatenate([(quarters[:, :, 0] & 15) | (quarters[:, :, 2] & 15) << 4,
                          (quarters[:, :, 1] & 15) | (quarters[:, :, 3] & 15) << 4], axis=2).reshape(-1, 128)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    high = np.bitwise_or.reduce((quarters >> 4) << shifts, axis=2).reshape(-1, 64)
    return np.concatenate([low, high, scale.astype(np.int8).view(np.uint8), _half_bytes(d)], axis=1)


PACKERS = {"Q2_K": pack_q2_k, "Q3_K": pack_q3_k, "Q4_K": pack_q4_k, "Q5_K": pack_q5_k, "Q6_K": pack_q6_k}


def quantize(values: np.ndarray, name: str) -> np.ndarray:
    """[..., columns] float32 -> [..., bytes of a row] uint8."""
    if values.shape[-1] % BLOCK:
        raise ValueError(f"{name} needs rows of a multiple of {BLOCK} values, this tensor has {values.shape[-1]}")
    packed = PACKERS[name](values.reshape(-1, BLOCK).astype(np.float32))
    return packed.reshape(*values.shape[:-1], -1)
