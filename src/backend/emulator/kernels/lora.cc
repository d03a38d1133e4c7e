// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/lora.h.
#include "kernels/lora.h"

EMULATOR_KERNELS(lora)
