// SPDX-License-Identifier: Apache-2.0
// Streams: turns the engine's tokens into text, for all requests under way.
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

// What one step added to the answer of one sequence.
struct Delta {
  engine::RequestId id = 0;
  int32_t child = 0;
  std::string text;  // final text: never half a character, never the beginning of a stop string
  std::vector<int32_t> tokens;
  // With several tokens, as accepted drafts are: how long the text was after each of them. Whoever reads the text token
  // by token gets the same from one delta of several tokens as from several of one.
  std::vector<size_t> text_ends;
  std::vector<std::vector<sampling::TokenLogprob>> logprobs;
  std::vector<std::vector<sampling::TokenLogprob>> prompt_logprobs;
  std::vector<uint64_t> row_digests;  // one per token, with SamplingParams::row_digests
  std::vector<float> pooled;          // of a request that pools (engine::Request::pool), with its finish
  uint64_t seed = 0;                  // of this sequence
  engine::FinishReason finish = engine::FinishReason::kNone;
  std::variant<std::monostate, int32_t, std::string> stop_reason;  // a stop token, a stop string, or neither
  std::optional<Error> error;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
};

// Holds a detokenizer and a search for stop strings for each sequence in the engine, made with its first output, so
// that waiting sequences cost nothing. One thread at a time.
class Streams {
 public:
  explicit Streams(text::TokenizerPtr tokenizer) : tokenizer_(std::move(tokenizer)) {}

  // Registers a request, before the first output of its n sequences. `kept_special`: see text::Detokenizer.
  void open(engine::RequestId id, engine::RequestPtr request, SharedList<int32_t> kept_special = {});
  // Forgets a request; later outputs of it are ignored.
  void close(engine::RequestId id);
  // Turns an output into a delta; nothing if its request is not, or no longer, open. `stopped_above` is set if a stop
  // string ended the sequence: the caller must then abort it in the engine.
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
    SharedList<int32_t> kept_special;
    std::unordered_map<int32_t, Stream> children;  // those that have begun and not ended
    int64_t ended = 0;
    std::unordered_set<int32_t> stopped;  // children that a stop string ended; the engine may still send outputs
  };
  Stream begin(const engine::Request& request, const SharedList<int32_t>& kept_special) const;
  Delta read(engine::Output output, Stream& stream) const;

  text::TokenizerPtr tokenizer_;
  std::unordered_map<engine::RequestId, Open> open_;
};

}  // namespace quire::llm
