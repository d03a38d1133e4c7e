// SPDX-License-Identifier: Apache-2.0
// Functions on objects with many members whose names come from untrusted input: never worse than O(n log n).
#pragma once

#include "base/json.h"

namespace quire::json {

// Makes names unique: a repeated one keeps its first place and takes its last value, as Python's reader does. It sorts
// instead of hashing, so that no choice of names makes it slow.
void remove_repeats(Object& members);

}  // namespace quire::json
