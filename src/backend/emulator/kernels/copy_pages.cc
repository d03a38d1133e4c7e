// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/copy_pages.h.
#include "kernels/copy_pages.h"

EMULATOR_KERNELS(copy_pages)
