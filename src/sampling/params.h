// SPDX-License-Identifier: Apache-2.0
// SamplingParams: the sampling settings of one request, with vLLM's names and ranges.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/shared_list.h"

namespace quire::sampling {

// Bounds on a request's settings that depend on the model and the server.
struct ParamLimits {
  int64_t vocab_size = 0;     // larger token ids are refused; 0: not checked
  int64_t max_logprobs = 20;  // --max-logprobs; -1: no bound
};

// Bounds on the lists of one request. The lists are read for every token, so this bounds the work of a step, too.
inline constexpr size_t kMaxStopBytes = 4096;        // of one stop string
inline constexpr size_t kMaxStopTokenIds = 4096;     // entries of stop_token_ids
inline constexpr size_t kMaxBadWords = 1024;         // entries of bad_words
inline constexpr size_t kMaxBadWordBytes = 1 << 16;  // of all bad_words together
inline constexpr int64_t kMaxSequences = 16384;      // n, and prompts times n of one API request

inline constexpr int64_t kDefaultMaxTokens = 16;  // as in OpenAI's completions

// How rows of logits are digested: by the version of the receipts (docs/receipts.md) that the digests are for.
enum class RowDigests : uint8_t {
  kNone = 0,
  kFirst = 1,   // base/digest.h, on the host
  kSecond = 2,  // ops/row_digest.h, where the logits are
};
inline constexpr RowDigests kNewestDigests = RowDigests::kSecond;

// The settings of one request; param_table.h has the range and the description of each. A plain value: validate() once
// at admission, read-only afterwards. Lists are shared between copies, so that each of a request's n sequences may hold
// a copy at the cost of a few pointers.
struct SamplingParams {
  int64_t n = 1;
  double temperature = 1.0;                               // below 1e-5: greedy
  int64_t top_k = 0;                                      // 0: off
  double top_p = 1.0;                                     // 1: off
  double min_p = 0.0;                                     // 0: off
  double repetition_penalty = 1.0;                        // 1: off; on tokens of the prompt and the output
  double presence_penalty = 0.0;                          // on tokens of the output
  double frequency_penalty = 0.0;                         // on tokens of the output
  SharedList<std::pair<int32_t, float>> logit_bias = {};  // if an id occurs twice, the last entry counts
  std::optional<SharedList<int32_t>> allowed_token_ids = {};
  SharedList<std::string> bad_words = {};
  SharedList<std::vector<int32_t>> bad_word_ids = {};  // bad_words as token ids; filled in where the tokenizer is known
  std::optional<int64_t> seed = {};                    // none: drawn at admission

  SharedList<std::string> stop = {};  // matched against the text, above the engine
  SharedList<int32_t> stop_token_ids = {};
  // The model's, filled in at admission. min_tokens masks them even with ignore_eos.
  SharedList<int32_t> eos_token_ids = {};
  bool ignore_eos = false;
  int64_t min_tokens = 0;
  std::optional<int64_t> max_tokens = kDefaultMaxTokens;  // none: up to max_model_len

  std::optional<int64_t> logprobs = {};         // top N besides the sampled token; -1: the whole vocabulary
  std::optional<int64_t> prompt_logprobs = {};  // the same for each prompt token
  RowDigests row_digests = RowDigests::kNone;   // of the row of logits of each output token, for receipts

  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  bool spaces_between_special_tokens = true;

  bool greedy() const { return temperature < 1e-5; }
  bool has_penalties() const { return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0; }
  // Checks the settings and normalises them: temperatures between 0 and 0.01 become 0.01; greedy turns off top_k, top_p
  // and min_p; top_k -1 becomes 0, seed -1 none; biases are clamped and unique by id. The Error names the field, its
  // value and the range.
  Status validate(const ParamLimits& limits);
  // Bytes that the lists hold, however many copies share them.
  int64_t list_bytes() const;
};

// The seed of child i of a request with n > 1.
constexpr uint64_t child_seed(uint64_t seed, int64_t child) {
  return seed + static_cast<uint64_t>(child);
}

// Seeds for requests that give none. From a seed of its own it makes the same series in every process; without one,
// each seed is drawn from the system's random numbers. One thread at a time.
class SeedGenerator {
 public:
  explicit SeedGenerator(std::optional<int64_t> seed = {}) : seed_(seed) {}
  uint64_t next();

 private:
  std::optional<int64_t> seed_;
  uint64_t count_ = 0;
};

}  // namespace quire::sampling
