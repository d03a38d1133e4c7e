// SPDX-License-Identifier: Apache-2.0
// Streams: from the engine's tokens to text, for all requests that are under way.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "engine/request.h"
#include "llm/stop_strings.h"
#include "text/detokenizer.h"

namespace quire::llm {

// What one step brought to one stream.
struct Delta {
  engine::RequestId id = 0;
  int32_t child = 0;
  std::string text;  // certain text; never half a character, never the beginning of a stop string
  std::vector<int32_t> tokens;
  std::vector<std::vector<sampling::TokenLogprob>> logprobs;
  std::vector<std::vector<sampling::TokenLogprob>> prompt_logprobs;
  engine::FinishReason finish = engine::FinishReason::kNone;
  std::variant<std::monostate, int32_t, std::string> stop_reason;  // a stop token, a stop string, or neither
  std::optional<Error> error;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
};

// The text side of each sequence in the engine: its detokenizer and its watch for stop strings. Made with a sequence's
// first output, so that one that waits costs nothing. One thread at a time.
class Streams {
 public:
  explicit Streams(text::TokenizerPtr tokenizer) : tokenizer_(std::move(tokenizer)) {}

  // Expects the outputs of a request and its n sequences.
  void open(engine::RequestId id, engine::RequestPtr request);
  // Forgets a request; outputs that still come for it give nothing.
  void close(engine::RequestId id);
  // What an output means to its stream, which begins with its first output. A stream that ended is forgotten;
  // `stopped_above` says that a stop string ended it, so that the engine does not know yet. Nothing for a stream that
  // is not (or no longer) open.
  std::optional<Delta> translate(engine::Output output, bool& stopped_above);

 private:
  struct Stream {
    std::optional<text::Detokenizer> detokenizer;
    StopStrings stops;
    int64_t min_tokens = 0;
    int64_t num_tokens = 0;
    int64_t prompt_tokens = 0;
    bool include_stop = false;
  };
  struct Open {
    engine::RequestPtr request;
    std::unordered_map<int32_t, Stream> children;  // those that began and did not end
    int64_t ended = 0;
    std::unordered_set<int32_t> stopped;  // children that a stop string ended; the engine may still send outputs
  };
  Stream begin(const engine::Request& request) const;
  Delta read(engine::Output output, Stream& stream) const;

  text::TokenizerPtr tokenizer_;
  std::unordered_map<engine::RequestId, Open> open_;
};

}  // namespace quire::llm
