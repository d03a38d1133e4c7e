// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/elementwise.h.
#include "kernels/elementwise.h"

EMULATOR_KERNELS(elementwise)
