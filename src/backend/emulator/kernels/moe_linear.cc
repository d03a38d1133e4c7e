// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/moe_linear.h.
#include "kernels/moe_linear.h"

EMULATOR_KERNELS(moe_linear)
