// SPDX-License-Identifier: Apache-2.0
// Grammars: compiles the grammars of requests for one model's tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "grammar/compile.h"
#include "llm/constraint.h"
#include "sampling/params.h"
#include "text/tokenizer.h"

namespace quire::llm {

// Owned by the Llm; any thread. The model's vocabulary is laid out with the first grammar, so a server that is never
// asked for one does not pay for it.
class Grammars {
 public:
  // vocab_size: the width of the model's logits, which may be more or less than the tokenizer's number of ids.
  Grammars(text::TokenizerPtr tokenizer, int64_t vocab_size)
      : tokenizer_(std::move(tokenizer)), vocab_size_(vocab_size) {}

  // The constraint that a grammar puts on an answer, which ends with EOS or a stop token of the request. Its errors,
  // also those of single tokens, name the field of the request that it is from ("": none).
  Result<TextConstraintMaker> make(const grammar::Spec& spec, const sampling::SamplingParams& params,
                                   const std::string& field);

 private:
  grammar::CompilerCache& cache();

  const text::TokenizerPtr tokenizer_;
  const int64_t vocab_size_;
  std::once_flag made_;
  std::unique_ptr<grammar::CompilerCache> cache_;
};

}  // namespace quire::llm
