// SPDX-License-Identifier: Apache-2.0
// The digest of a checkpoint's tensors: their names, types, shapes and bytes.
#pragma once

#include <string>

#include "weights/tensor_ref.h"

namespace quire::weights {

// Reads every tensor, on several threads, and lets its pages go again. The order of the tensors in their files does not
// count. REQUIRES: the source is no dummy.
std::string weights_digest(const WeightSource& source);

// The same of the tensors' names, types and shapes, and of some bytes of up to 2048 tensors. Reads megabytes instead of
// all weights, and tells a model from another one or from another training of it; a single changed weight escapes it.
std::string weights_sample_digest(const WeightSource& source);

}  // namespace quire::weights
