// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/linear_heads.h.
#include "kernels/linear_heads.h"

EMULATOR_KERNELS(linear_heads)
