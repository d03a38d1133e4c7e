// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/attention_prefill.h.
#include "kernels/attention_prefill.h"

EMULATOR_KERNELS(attention_prefill)
