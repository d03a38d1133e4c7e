// SPDX-License-Identifier: Apache-2.0
// Checks and normalises sampling settings; each error names the field, the value and the range.
#include "sampling/params.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string_view>

#include "base/philox.h"
#include "sampling/param_table.h"

namespace quire::sampling {
namespace {

constexpr double kGreedyBelow = 1e-5;
constexpr double kLeastTemperature = 0.01;

Failure out_of_range(std::string_view field, int64_t value, const std::string& range) {
  return invalid_field(std::string(field), {"must be ", range, ", got ", value, "."});
}

Status check_numbers(const SamplingParams& p) {
  for (const ParamInfo& info : param_table()) QUIRE_TRY(check_range(info, p));
  if (p.max_tokens && p.min_tokens > *p.max_tokens) {
    return out_of_range("min_tokens", p.min_tokens, "at most max_tokens (" + std::to_string(*p.max_tokens) + ")");
  }
  return {};
}

Status check_logprobs(std::string_view field, const std::optional<int64_t>& value, int64_t most) {
  if (!value || most < 0 || (*value >= 0 && *value <= most)) return {};
  if (*value == -1) {
    return invalid_field(std::string(field),
                         {"of -1 are those of the whole vocabulary, which needs --max-logprobs -1; ask "
                          "for at most ",
                          most, "."});
  }
  return out_of_range(field, *value, "at most " + std::to_string(most) + " (--max-logprobs)");
}

Status check_id(std::string_view field, int32_t id, int64_t vocab_size) {
  if (id < 0 || (vocab_size > 0 && id >= vocab_size)) {
    return invalid_field(std::string(field), {"has the token id ", id, ", which is not in the vocabulary (0 to ",
                                              (vocab_size > 0 ? std::to_string(vocab_size - 1) : "its size"), ")."});
  }
  return {};
}

Status check_ids(const SamplingParams& p, int64_t vocab_size) {
  for (const auto& [token, bias] : p.logit_bias) {
    QUIRE_TRY(check_id("logit_bias", token, vocab_size));
    if (std::isnan(bias)) return invalid_field("logit_bias", {"of token ", token, " is not a number."});
  }
  if (p.allowed_token_ids) {
    if (p.allowed_token_ids->empty()) return invalid_field("allowed_token_ids", "must not be empty.");
    for (const int32_t token : *p.allowed_token_ids) QUIRE_TRY(check_id("allowed_token_ids", token, vocab_size));
  }
  for (const int32_t token : p.stop_token_ids) QUIRE_TRY(check_id("stop_token_ids", token, vocab_size));
  for (const auto& word : p.bad_word_ids) {
    if (word.empty()) return invalid_field("bad_words", "has a word without tokens.");
    for (const int32_t token : word) QUIRE_TRY(check_id("bad_words", token, vocab_size));
  }
  return {};
}

Status check_strings(std::string_view field, const SharedList<std::string>& strings) {
  if (std::ranges::any_of(strings, &std::string::empty)) {
    return invalid_field(std::string(field), "must not contain an empty string.");
  }
  return {};
}

Status too_many(std::string_view field, size_t have, std::string_view what, size_t most) {
  return invalid_field(std::string(field), {"has ", have, " ", what, "; at most ", most, " are accepted."});
}

Status check_sizes(const SamplingParams& p, int64_t vocab_size) {
  for (const std::string& stop : p.stop) {
    if (stop.size() > kMaxStopBytes) return too_many("stop", stop.size(), "bytes in one string", kMaxStopBytes);
  }
  if (p.stop_token_ids.size() > kMaxStopTokenIds) {
    return too_many("stop_token_ids", p.stop_token_ids.size(), "entries", kMaxStopTokenIds);
  }
  if (p.bad_words.size() > kMaxBadWords) return too_many("bad_words", p.bad_words.size(), "words", kMaxBadWords);
  size_t bytes = 0;
  for (const std::string& word : p.bad_words) bytes += word.size();
  if (bytes > kMaxBadWordBytes) return too_many("bad_words", bytes, "bytes", kMaxBadWordBytes);
  if (vocab_size > 0 && p.allowed_token_ids && p.allowed_token_ids->size() > static_cast<size_t>(vocab_size)) {
    return too_many("allowed_token_ids", p.allowed_token_ids->size(), "entries", static_cast<size_t>(vocab_size));
  }
  return {};
}

void normalise(SamplingParams& p) {
  if (p.top_k == -1) p.top_k = 0;
  if (p.seed == -1) p.seed.reset();
  if (p.temperature < kGreedyBelow) {
    p.temperature = 0;
    p.top_p = 1;
    p.top_k = 0;
    p.min_p = 0;
  } else {
    p.temperature = std::max(p.temperature, kLeastTemperature);
  }
  if (p.logit_bias.empty()) return;
  std::map<int32_t, float> unique;
  for (const auto& [token, bias] : p.logit_bias) unique[token] = std::clamp(bias, -100.0f, 100.0f);
  p.logit_bias = std::vector<std::pair<int32_t, float>>(unique.begin(), unique.end());
}

}  // namespace

Status SamplingParams::validate(const ParamLimits& limits) {
  QUIRE_TRY(check_numbers(*this));
  QUIRE_TRY(check_logprobs("logprobs", logprobs, limits.max_logprobs));
  QUIRE_TRY(check_logprobs("prompt_logprobs", prompt_logprobs, limits.max_logprobs));
  QUIRE_TRY(check_sizes(*this, limits.vocab_size));
  QUIRE_TRY(check_ids(*this, limits.vocab_size));
  QUIRE_TRY(check_strings("stop", stop));
  QUIRE_TRY(check_strings("bad_words", bad_words));
  normalise(*this);
  if (greedy() && n > 1) {
    return invalid_field("n", {"must be 1 when temperature is 0, got ", n, ": all answers would be the same."});
  }
  return {};
}

int64_t SamplingParams::list_bytes() const {
  size_t bytes = logit_bias.size() * sizeof(std::pair<int32_t, float>);
  bytes += (stop_token_ids.size() + eos_token_ids.size()) * sizeof(int32_t);
  if (allowed_token_ids) bytes += allowed_token_ids->size() * sizeof(int32_t);
  for (const auto* strings : {&stop, &bad_words}) {
    for (const std::string& text : *strings) bytes += sizeof(text) + text.size();
  }
  for (const std::vector<int32_t>& word : bad_word_ids) bytes += sizeof(word) + word.size() * sizeof(int32_t);
  return static_cast<int64_t>(bytes);
}

uint64_t SeedGenerator::next() {
  if (seed_) {
    const Philox::Block words = Philox::generate(static_cast<uint64_t>(*seed_), count_++, 0);
    return (uint64_t{words[0]} << 32) | words[1];
  }
  std::random_device device;
  const uint64_t high = device();
  return (high << 32) | device();
}

}  // namespace quire::sampling
