// SPDX-License-Identifier: Apache-2.0
// Turns the processors of sampler.cc into edits of single tokens and masks.
#include "sampling/device_rows.h"

#include <algorithm>

#include "base/check.h"
#include "sampling/param_table.h"
#include "sampling/portable_math.h"

namespace quire::sampling {
namespace {

// The settings that a row has as they are.
using DeviceMember = std::pair<double SamplingParams::*, float SampleSettings::*>;
const std::vector<DeviceMember>& device_members() {
  static const std::vector<DeviceMember> members = [] {
    std::vector<DeviceMember> out;
    for (const ParamInfo& info : param_table()) {
      if (info.rules.device != nullptr)
        out.emplace_back(std::get<double SamplingParams::*>(info.member), info.rules.device);
    }
    return out;
  }();
  return members;
}

}  // namespace

bool looks_at_history(const SamplingParams& params) {
  return params.has_penalties() || !params.bad_word_ids.empty();
}

bool has_device_logprobs(const SamplingParams& params) {
  return params.logprobs && *params.logprobs >= 0 && *params.logprobs <= kMaxSampleLogprobs;
}

void DeviceRows::clear() {
  rows_.clear();
  edits_.clear();
  masks_.clear();
}

// The row's edit of this token, made where there is none; nullptr for a token that the vocabulary does not have.
TokenEdit* DeviceRows::edit(int32_t token) {
  if (token < 0 || static_cast<size_t>(token) >= place_.size()) return nullptr;
  int32_t& place = place_[static_cast<size_t>(token)];
  if (place < 0) {
    place = static_cast<int32_t>(edits_.size());
    edits_.push_back({.token = token});
  }
  return &edits_[static_cast<size_t>(place)];
}

void DeviceRows::add_edits(const SamplingParams& p, const History& history, int64_t num_output,
                           std::span<const uint32_t> grammar_mask) {
  if (p.has_penalties()) {
    for (const History::Seen& seen : history.seen()) {
      if (!seen.in_prompt && seen.output_count == 0) continue;
      TokenEdit* e = edit(seen.token);
      if (e == nullptr) continue;
      e->seen = true;
      e->count = seen.output_count;
    }
  }
  for_each_forbidden(p, history, num_output, grammar_mask, [&](int32_t token) {
    if (TokenEdit* e = edit(token)) e->forbidden = true;
  });
  for (const auto& [token, bias] : p.logit_bias) {
    if (TokenEdit* e = edit(token)) e->bias += bias;
  }
}

// The row's mask is what the grammar and allowed_token_ids both allow; its logprobs are those under the grammar's.
void DeviceRows::add_masks(const SamplingParams& p, int64_t vocab, std::span<const uint32_t> grammar_mask) {
  const size_t words = (static_cast<size_t>(vocab) + 31) / 32;
  const auto begin_mask = [&] {
    const auto index = static_cast<int32_t>(masks_.size() / words);
    masks_.resize(masks_.size() + words, 0);
    return index;
  };
  SampleRow& row = rows_.back();
  if (!grammar_mask.empty()) {
    QUIRE_CHECK(grammar_mask.size() == words);
    row.mask = row.logprob_mask = begin_mask();
    std::ranges::copy(grammar_mask, std::span(masks_).last(words).begin());
  }
  if (!p.allowed_token_ids) return;
  row.mask = begin_mask();
  const std::span<uint32_t> mask = std::span(masks_).last(words);
  for (const int32_t token : *p.allowed_token_ids) {
    if (token < 0 || token >= vocab) continue;
    const auto word = static_cast<size_t>(token) / 32;
    const uint32_t bit = uint32_t{1} << (static_cast<uint32_t>(token) % 32);
    mask[word] |= grammar_mask.empty() ? bit : grammar_mask[word] & bit;
  }
}

void DeviceRows::add(const SamplingParams& p, const History& history, int64_t num_output, uint64_t seed,
                     int64_t position, int64_t vocab, std::span<const uint32_t> grammar_mask, bool digest) {
  if (place_.size() != static_cast<size_t>(vocab)) place_.assign(static_cast<size_t>(vocab), -1);
  SampleRow& row = rows_.emplace_back();
  row.seed = seed;
  row.position = position;
  row.digest = digest;
  for (const auto& [member, device] : device_members()) row.*device = static_cast<float>(p.*member);
  row.top_k = static_cast<int32_t>(std::min<int64_t>(p.top_k, vocab));
  if (p.min_p > 0) row.log_min_p = static_cast<float>(log_positive(p.min_p));
  row.first_edit = static_cast<int32_t>(edits_.size());
  if (has_device_logprobs(p)) row.logprobs = static_cast<int32_t>(*p.logprobs);
  add_edits(p, history, num_output, grammar_mask);
  row.num_edits = static_cast<int32_t>(edits_.size()) - row.first_edit;
  for (const TokenEdit& e : std::span(edits_).subspan(static_cast<size_t>(row.first_edit))) {
    place_[static_cast<size_t>(e.token)] = -1;
  }
  add_masks(p, vocab, grammar_mask);
}

}  // namespace quire::sampling
