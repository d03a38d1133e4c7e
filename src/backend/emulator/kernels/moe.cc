// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/moe.h.
#include "kernels/moe.h"

EMULATOR_KERNELS(moe)
