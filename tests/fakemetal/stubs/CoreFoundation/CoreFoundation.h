// SPDX-License-Identifier: Apache-2.0
// Stand-in for Apple's header: the types that metal-cpp mentions.
#pragma once

#include <math.h>

typedef double CFTimeInterval;
typedef const void* CFTypeRef;
