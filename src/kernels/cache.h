// SPDX-License-Identifier: Apache-2.0
// The kernels that write K and V to pages.
#pragma once

#include "kernels/qkv_to_cache.h"
#include "kernels/reshape_and_cache.h"
