// SPDX-License-Identifier: Apache-2.0
// The emulator's build of kernels/attention_rows.h.
#include "kernels/attention_rows.h"

EMULATOR_KERNELS(attention_rows)
