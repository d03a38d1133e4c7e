// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/delta_chunks.h.
#include "kernels/delta_chunks.h"

EMULATOR_KERNELS(delta_chunks)
