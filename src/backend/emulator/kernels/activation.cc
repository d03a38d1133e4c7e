// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/activation.h.
#include "kernels/activation.h"

EMULATOR_KERNELS(activation)
