// SPDX-License-Identifier: Apache-2.0
// quire bench engine: what the engine itself costs a step, with a model that answers at once.
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
  int64_t vocab_size = 1024;  // the row that the sampler looks at
  bool prefix_caching = true;
  text::TokenizerPtr tokenizer;  // not null: the tokens become text as well, stream by stream
};

struct CeilingFigures {
  CeilingOptions options;
  int64_t steps = 0;
  int64_t tokens = 0;
  int64_t text_bytes = 0;  // that the tokens became
  double seconds = 0;
  double cpu_seconds = 0;  // of the engine's thread: what a busy machine does not change
  json::Value to_json() const;
  std::string to_text() const;
};

// Runs the streams through the real scheduler, KV manager, sampler and (with a tokenizer) detokenizer. The steps in
// which prompts are computed are not counted.
// `progress` is told of the tokens of each stream, every hundred of them.
Result<CeilingFigures> engine_ceiling(const CeilingOptions& options,
                                      const std::function<void(int64_t done, int64_t total)>& progress = {});

}  // namespace quire::bench
