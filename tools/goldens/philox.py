# SPDX-License-Identifier: Apache-2.0
"""The random weights of a tiny model: a function of (seed, tensor name, index), so that C++ computes the same bits.

The rule, for the tensor called `name` in the Hugging Face layout and its element `i` in row-major order:

    key64   = seed XOR fnv1a64(utf-8 bytes of name)
    word    = philox4x32_10(key = (low32(key64), high32(key64)),
                            counter = (low32(i / 4), high32(i / 4), 0, 0))[i % 4]
    v       = 2 * ((word >> 8) * 2^-24) - 1                        exact in float32, in [-1, 1)
    2+ dims : v * a, where a = float32(sqrt(3 / last_dim)) taken in float64   (variance 1 / last_dim)
    1 dim   : a name that ends in ".bias": v * 0.1f;  otherwise (a norm's weight): 1 + (v * 0.1f)

Every operation after v is one float32 operation with one rounding.
"""

import math

import numpy as np

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK32 = np.uint64(0xFFFFFFFF)
_SHIFT32 = np.uint64(32)


def fnv1a64(name: str) -> int:
    h = 0xCBF29CE484222325
    for byte in name.encode("utf-8"):
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def philox4x32_10(counter: list[np.ndarray], key: tuple[int, int]) -> list[np.ndarray]:
    """Ten rounds over arrays of counters (four uint64 arrays that hold 32-bit words); returns four such arrays."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = ((p1 >> _SHIFT32) ^ c1 ^ np.uint64(k0), p1 & _MASK32,
                          (p0 >> _SHIFT32) ^ c3 ^ np.uint64(k1), p0 & _MASK32)
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def words(key64: int, count: int) -> np.ndarray:
    """The first `count` 32-bit words of the stream of one tensor."""
    block = np.arange((count + 3) // 4, dtype=np.uint64)
    zero = np.zeros_like(block)
    out = philox4x32_10([block & _MASK32, block >> _SHIFT32, zero, zero], (key64 & 0xFFFFFFFF, key64 >> 32))
    return np.stack(out, axis=1).reshape(-1)[:count].astype(np.uint32)


def tensor(name: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    count = math.prod(shape)
    w = words((seed ^ fnv1a64(name)) & 0xFFFFFFFFFFFFFFFF, count)
    v = (w >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    if len(shape) >= 2:
        v = v * np.float32(math.sqrt(3.0 / shape[-1]))
    elif name.endswith(".bias"):
        v = v * np.float32(0.1)
    else:
        v = np.float32(1) + v * np.float32(0.1)
    return v.reshape(shape)


# (name, shape): one of each kind, sizes that end within a block of four words, and a name outside ASCII.
KNOWN_ANSWERS = [
    ("model.embed_tokens.weight", (509, 64)),
    ("model.layers.0.self_attn.q_proj.weight", (64, 96)),
    ("model.layers.0.self_attn.q_proj.bias", (30,)),
    ("model.layers.11.input_layernorm.weight", (33,)),
    ("model.norm.weight", (7,)),
    ("lm_head.weight", (3, 5)),
    ("gewicht.größe.weight", (2, 2)),
]


def known_answers() -> dict:
    """The contents of tests/goldens/philox.json: test vectors of the generator, and the first and last values of tensors."""
    raw = []
    for counter, key in [((0, 0, 0, 0), (0, 0)), ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2),
                         ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0))]:
        out = philox4x32_10([np.array([c], dtype=np.uint64) for c in counter], key)
        raw.append({"counter": [f"{c:08x}" for c in counter], "key": [f"{k:08x}" for k in key],
                    "words": [f"{int(w[0]):08x}" for w in out]})
    tensors = []
    for seed in (0, 42, 0xFFFFFFFFFFFFFFFF):
        for name, shape in KNOWN_ANSWERS:
            values = tensor(name, shape, seed).reshape(-1)
            tensors.append({"seed": str(seed), "name": name, "fnv1a64": f"{fnv1a64(name):016x}", "shape": list(shape),
                            "first": [float(x).hex() for x in values[:6]], "last": float(values[-1]).hex(),
                            "bits_xor": f"{int(np.bitwise_xor.reduce(values.view(np.uint32))):08x}"})
    return {"philox4x32_10": raw, "tensors": tensors}
