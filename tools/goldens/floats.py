# SPDX-License-Identifier: Apache-2.0
"""Float arrays in JSON: base64 of little-endian float32."""

import base64

import numpy as np


def encode(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode("ascii")


def decode(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype="<f4")
