// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/attention.h.
#include "kernels/attention.h"

EMULATOR_KERNELS(attention)
