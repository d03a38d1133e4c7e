// SPDX-License-Identifier: Apache-2.0
// What the readers of tokenizer.json's sections have in common.
#pragma once

namespace quire::text {

// Sequences in sequences (of normalizers, decoders and so on) that a section may have: they are read by recursion.
constexpr int kMaxNesting = 16;

}  // namespace quire::text
