// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/norm.h.
#include "kernels/norm.h"

EMULATOR_KERNELS(norm)
