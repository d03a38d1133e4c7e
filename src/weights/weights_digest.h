// SPDX-License-Identifier: Apache-2.0
// The digest of a checkpoint's tensors: their names, types, shapes and bytes.
#pragma once

#include <string>

#include "weights/tensor_ref.h"

namespace quire::weights {

// Reads every tensor, on several threads, and lets its pages go again. The order of the tensors in their files does not
// count. REQUIRES: the source is no dummy.
std::string weights_digest(const WeightSource& source);

}  // namespace quire::weights
