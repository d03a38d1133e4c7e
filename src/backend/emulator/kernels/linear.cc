// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/linear.h.
#include "kernels/linear.h"

EMULATOR_KERNELS(linear)
