// SPDX-License-Identifier: Apache-2.0
// dialect_kernels.h through the host's branch of the dialect.
#include "tests/kernels/dialect_kernels.h"

EMULATOR_KERNELS(dialect_host)
