// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/dummy.h.
#include "kernels/dummy.h"

EMULATOR_KERNELS(dummy)
