// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/rope.h.
#include "kernels/rope.h"

EMULATOR_KERNELS(rope)
