// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/attention_f32.h.
#include "kernels/attention_f32.h"

EMULATOR_KERNELS(attention_f32)
