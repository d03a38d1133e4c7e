// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/recurrent.h.
#include "kernels/recurrent.h"

EMULATOR_KERNELS(recurrent)
