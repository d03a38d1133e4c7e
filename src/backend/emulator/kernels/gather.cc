// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/gather.h.
#include "kernels/gather.h"

EMULATOR_KERNELS(gather)
