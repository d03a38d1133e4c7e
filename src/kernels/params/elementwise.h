// SPDX-License-Identifier: Apache-2.0
// The threadgroup size of the kernels in which a thread computes elements of its own: activation.h, rope.h, gather.h.
#pragma once

#include "kernels/compat/types.h"

// A grid of them has fewer than 2^31 threads, because 64-bit divisions are slow on a GPU.
enum { kElementThreads = 256 };
