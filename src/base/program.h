// SPDX-License-Identifier: Apache-2.0
// Which build of quire this is.
#pragma once

#include "base/digest.h"

namespace quire {

// The digest of the running machine code and constants: of the program, or of libquire where quire is a library. Two
// builds with the same digest compute the same bits.
Digest program_digest();

}  // namespace quire
