// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/embedding.h.
#include "kernels/embedding.h"

EMULATOR_KERNELS(embedding)
