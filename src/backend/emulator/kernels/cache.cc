// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/cache.h.
#include "kernels/cache.h"

EMULATOR_KERNELS(cache)
