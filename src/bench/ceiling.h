// SPDX-License-Identifier: Apache-2.0
// quire bench engine: the engine's own cost per step, measured with a model that computes nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "text/tokenizer.h"

namespace quire::bench {

struct CeilingOptions {
  int64_t num_streams = 32;
  int64_t input_len = 128;
  int64_t output_len = 2000;
  int64_t vocab_size = 1024;  // the length of the rows that the sampler reads
  bool prefix_caching = true;
  text::TokenizerPtr tokenizer;  // not null: also converts each stream's tokens to text
};

struct CeilingFigures {
  CeilingOptions options;
  int64_t steps = 0;
  int64_t tokens = 0;
  int64_t text_bytes = 0;  // of the converted text
  double seconds = 0;
  double cpu_seconds = 0;  // of the engine's thread; unlike `seconds`, independent of other load
  json::Value to_json() const;
  std::string to_text() const;
};

// Runs the streams through the real scheduler, KV manager, sampler and (with a tokenizer) detokenizer. Steps that
// compute prompts are not counted. Every hundred steps, `progress` gets the number of tokens per stream.
Result<CeilingFigures> engine_ceiling(const CeilingOptions& options,
                                      const std::function<void(int64_t done, int64_t total)>& progress = {});

}  // namespace quire::bench
