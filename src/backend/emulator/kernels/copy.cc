// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/copy.h.
#include "kernels/copy.h"

EMULATOR_KERNELS(copy)
