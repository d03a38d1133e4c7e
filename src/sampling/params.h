// SPDX-License-Identifier: Apache-2.0
// The sampling settings of one request, under vLLM's names and ranges.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/shared_list.h"

namespace quire::sampling {

// Bounds that a request's settings are held to.
struct ParamLimits {
  int64_t vocab_size = 0;     // ids at or above it are refused; 0: not checked
  int64_t max_logprobs = 20;  // --max-logprobs; -1: no bound
};

// Bounds on the lists of one request. What they hold is looked at for every token, so they bound a step's work too.
inline constexpr size_t kMaxStopBytes = 4096;        // of one stop string
inline constexpr size_t kMaxStopTokenIds = 4096;     // entries of stop_token_ids
inline constexpr size_t kMaxBadWords = 1024;         // entries of bad_words
inline constexpr size_t kMaxBadWordBytes = 1 << 16;  // of all bad_words together
inline constexpr int64_t kMaxSequences = 16384;      // n, and prompts times n of one API request

// The settings of one request. A plain value; validate() once at admission, read-only afterwards. Lists are shared
// between copies, so that each of a request's n sequences may hold its own copy at the cost of a few pointers.
struct SamplingParams {
  int64_t n = 1;
  double temperature = 1.0;         // [0, 2]; below 1e-5 greedy, other values below 0.01 are raised to it
  int64_t top_k = 0;                // 0 or -1: off
  double top_p = 1.0;               // (0, 1]
  double min_p = 0.0;               // [0, 1]
  double repetition_penalty = 1.0;  // [0.001, 1000]; tokens of prompt and output
  double presence_penalty = 0.0;    // [-2, 2]; tokens of the output
  double frequency_penalty = 0.0;   // [-2, 2]; tokens of the output
  SharedList<std::pair<int32_t, float>> logit_bias = {};  // clamped to [-100, 100]; the last entry of an id wins
  std::optional<SharedList<int32_t>> allowed_token_ids = {};
  SharedList<std::string> bad_words = {};
  SharedList<std::vector<int32_t>> bad_word_ids =
      {};                            // bad_words as token ids; filled by the layer that has the tokenizer
  std::optional<int64_t> seed = {};  // -1: none

  SharedList<std::string> stop = {};  // looked for in the text, above the engine
  SharedList<int32_t> stop_token_ids = {};
  SharedList<int32_t> eos_token_ids =
      {};  // the model's; filled at admission. Masked under min_tokens also with ignore_eos
  bool ignore_eos = false;
  int64_t min_tokens = 0;
  std::optional<int64_t> max_tokens = 16;  // nothing: up to max_model_len

  std::optional<int64_t> logprobs = {};         // top N besides the sampled token; -1: the whole vocabulary
  std::optional<int64_t> prompt_logprobs = {};  // the same for each prompt token

  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  bool spaces_between_special_tokens = true;

  bool greedy() const { return temperature < 1e-5; }
  // Brings the settings to their normal form (temperature floor, greedy turns top_k, top_p and min_p off, top_k -1 is
  // 0, bias clamped and unique by id, seed -1 is none) and checks them; the Error names the field, its value and the
  // range.
  Status validate(const ParamLimits& limits);
  // Bytes that the lists hold, however many copies share them.
  int64_t list_bytes() const;
};

// The seed of child i of a request with n > 1.
constexpr uint64_t child_seed(uint64_t seed, int64_t child) {
  return seed + static_cast<uint64_t>(child);
}
// A seed for a request that came without one: drawn once at admission, then kept.
uint64_t draw_seed();

}  // namespace quire::sampling
