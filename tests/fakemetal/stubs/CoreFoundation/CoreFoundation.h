// SPDX-License-Identifier: Apache-2.0
// Stub of Apple's header: the types that metal-cpp refers to.
#pragma once

#include <math.h>

typedef double CFTimeInterval;
typedef const void* CFTypeRef;
