// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/attention_cache.h.
#include "kernels/attention_cache.h"

EMULATOR_KERNELS(attention_cache)
