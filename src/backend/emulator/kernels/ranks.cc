// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/ranks.h.
#include "kernels/ranks.h"

EMULATOR_KERNELS(ranks)
