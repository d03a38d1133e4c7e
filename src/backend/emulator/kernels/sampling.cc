// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/sampling.h.
#include "kernels/sampling.h"

EMULATOR_KERNELS(sampling)
