// SPDX-License-Identifier: Apache-2.0
// The processors in vLLM's order, then argmax or the Gumbel-max draw.
#include "sampling/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>

#include "base/check.h"
#include "base/philox.h"
#include "ops/sampling.h"
#include "sampling/portable_math.h"
#include "sampling/select.h"

namespace quire::sampling {
namespace {

constexpr float kPosInf = std::numeric_limits<float>::infinity();

Status check_row(const RowScan& scan) {
  if (scan.has_nan) return broken_row(kSampleNan);
  if (scan.max == kPosInf) return broken_row(kSampleInfinite);
  if (scan.max == kNegInf) return broken_row(kSampleEmpty);
  return {};
}

void mask_token(std::span<float> row, int32_t token) {
  if (token >= 0 && static_cast<size_t>(token) < row.size()) row[static_cast<size_t>(token)] = kNegInf;
}

bool needs_processing(const SamplingParams& p, const History& history) {
  return p.allowed_token_ids || !p.bad_word_ids.empty() || history.num_output() < p.min_tokens ||
         !p.logit_bias.empty() || p.has_penalties();
}

void keep_allowed(std::span<float> row, std::span<const float> source, const std::vector<int32_t>& allowed) {
  std::ranges::fill(row, kNegInf);
  for (const int32_t token : allowed) {
    if (token >= 0 && static_cast<size_t>(token) < row.size()) {
      row[static_cast<size_t>(token)] = source[static_cast<size_t>(token)];
    }
  }
}

void apply_penalties(std::span<float> row, const SamplingParams& p, const History& history) {
  const float repetition = static_cast<float>(p.repetition_penalty);
  const float frequency = static_cast<float>(p.frequency_penalty);
  const float presence = static_cast<float>(p.presence_penalty);
  for (const History::Seen& seen : history.seen()) {
    if (seen.token < 0 || static_cast<size_t>(seen.token) >= row.size()) continue;
    if (!seen.in_prompt && seen.output_count == 0) continue;  // no longer in the output
    float x = row[static_cast<size_t>(seen.token)];
    x = x > 0 ? x / repetition : x * repetition;
    if (seen.output_count > 0) {
      x -= frequency * static_cast<float>(seen.output_count);
      x -= presence;
    }
    row[static_cast<size_t>(seen.token)] = x;
  }
}

// Applies allowed ids, bad words, min_tokens, bias and penalties to `source`, into `row`.
void process(std::span<float> row, std::span<const float> source, const SamplingParams& p, const History& history,
             std::span<const uint32_t> grammar_mask) {
  if (p.allowed_token_ids) {
    keep_allowed(row, source, *p.allowed_token_ids);
  } else {
    std::ranges::copy(source, row.begin());
  }
  for_each_forbidden(p, history, history.num_output(), grammar_mask, [&](int32_t token) { mask_token(row, token); });
  for (const auto& [token, bias] : p.logit_bias) {
    if (token >= 0 && static_cast<size_t>(token) < row.size()) row[static_cast<size_t>(token)] += bias;
  }
  if (p.has_penalties()) apply_penalties(row, p, history);
}

// The last candidate that min_p, top_k and top_p keep; they keep all better ones, too.
Candidate last_candidate(std::span<const float> row, float max, const SamplingParams& p, Scratch& scratch) {
  float lowest = std::numeric_limits<float>::lowest();
  if (p.min_p > 0) lowest = std::max(lowest, round_up(static_cast<double>(max) + log_positive(p.min_p)));
  if (p.top_k > 0) lowest = std::max(lowest, kth_largest(row, p.top_k, scratch));
  if (p.top_p < 1) return nucleus_end(row, max, lowest, p.top_p, scratch);
  return {lowest, std::numeric_limits<int32_t>::max()};
}

// The random words of the 16 tokens of a group. The four tokens 4b..4b+3 share the Philox block of counter (position,
// b) under the key `seed`, each with its own word, so a token's number depends on (seed, position, token) alone.
using GroupWords = std::array<uint32_t, kGroup>;
GroupWords random_words(uint64_t seed, int64_t position, size_t group) {
  GroupWords words;
  for (size_t b = 0; b < kGroup / 4; ++b) {
    const Philox::Block block = Philox::generate(seed, static_cast<uint64_t>(position), group * (kGroup / 4) + b);
    std::ranges::copy(block, words.begin() + static_cast<ptrdiff_t>(4 * b));
  }
  return words;
}

// Whether a token can win in a group whose best logit is `lead` below the best score so far and whose smallest word is
// `word`. Its variate is at most -ln((word + 1/2) / 2^32), see gumbel_bound(); the factor leaves room for rounding.
bool may_win(double lead, uint32_t word) {
  if (lead <= 0) return true;
  const double reach = static_cast<double>(exp_nonpositive(static_cast<float>(-lead))) * 1.0001;
  return (static_cast<double>(word) + 0.5) * 0x1p-32 <= reach;
}

// argmax of row[i] + gumbel(word of i) over the candidates. It starts with the score of the best logit; groups and
// tokens whose logit and word cannot beat it are skipped without computing a logarithm.
int32_t draw(std::span<const float> row, float max, const Candidate& last, uint64_t seed, int64_t position,
             std::span<const float> group_max) {
  int32_t best_token = first_equal(row, max);
  const size_t best_index = static_cast<size_t>(best_token);
  double best =
      static_cast<double>(max) + gumbel(random_words(seed, position, best_index / kGroup)[best_index % kGroup]);
  for (size_t g = 0; g < group_max.size(); ++g) {
    const double lead = best - static_cast<double>(group_max[g]);
    if (group_max[g] < last.logit || lead > kMaxGumbel) continue;
    const GroupWords words = random_words(seed, position, g);
    uint32_t least = words[0];
    for (const uint32_t word : words) least = word < least ? word : least;
    if (!may_win(lead, least)) continue;
    const size_t first = g * kGroup, end = std::min(row.size(), first + kGroup);
    for (size_t i = first; i < end; ++i) {
      const Candidate c = {row[i], static_cast<int32_t>(i)};
      if (better(last, c) || static_cast<double>(c.logit) + gumbel_bound(words[i - first]) < best) continue;
      const double score = static_cast<double>(c.logit) + gumbel(words[i - first]);
      if (score > best || (score == best && c.token < best_token)) {
        best = score;
        best_token = c.token;
      }
    }
  }
  return best_token;
}

int32_t sample_random(std::span<const float> row, float max, const SamplingParams& p, uint64_t seed, int64_t position,
                      Scratch& scratch) {
  find_group_maxima(row, scratch.group_max);
  const Candidate last = last_candidate(row, max, p, scratch);
  return draw(row, max, last, seed, position, scratch.group_max);
}

// log_softmax of a checked row: the chosen token first, then the top n.
std::vector<TokenLogprob> logprobs_of(std::span<const float> row, float max, int32_t token, int64_t n,
                                      Scratch& scratch) {
  const float log_sum = static_cast<float>(log_positive(sum_exp(row, max, std::numeric_limits<float>::lowest())));
  const auto logprob = [&](float x) { return (x - max) - log_sum; };
  const float own = row[static_cast<size_t>(token)];
  const auto rank = std::ranges::count_if(row, [own](float x) { return x >= own; });
  const int64_t count = n < 0 ? static_cast<int64_t>(row.size()) : n;
  find_group_maxima(row, scratch.group_max);
  top_n(row, count, scratch);
  std::vector<TokenLogprob> out;
  out.reserve(scratch.candidates.size() + 1);
  out.push_back({token, logprob(own), static_cast<int32_t>(rank)});
  int32_t place = 0;
  for (const Candidate& c : scratch.candidates) out.push_back({c.token, logprob(c.logit), ++place});
  return out;
}

}  // namespace

Failure broken_row(int faults) {
  if ((faults & kSampleNan) != 0) {
    return Error{ErrorCode::kInternal,
                 "Sampling: the model gave NaN for a logit of this request; its weights may be damaged, or --dtype too "
                 "narrow for it (try --dtype float32)."};
  }
  if ((faults & kSampleInfinite) != 0) {
    return Error{ErrorCode::kInternal,
                 "Sampling: a logit of this request is +infinity; the model may need a wider --dtype."};
  }
  return invalid_argument(
      "Sampling: no token is left: the model's own masks, allowed_token_ids, bad_words, min_tokens and the grammar "
      "(which has stop_token_ids only at its end) together forbid the whole vocabulary; loosen one of them.");
}

bool allows_only_ends(const SamplingParams& params, std::span<const uint32_t> grammar_mask) {
  if (grammar_mask.empty()) return false;
  const auto is_end = [&](int32_t token) {
    const auto in = [token](const SharedList<int32_t>& ids) {
      return std::find(ids.begin(), ids.end(), token) != ids.end();
    };
    return in(params.eos_token_ids) || in(params.stop_token_ids);
  };
  for (size_t w = 0; w < grammar_mask.size(); ++w) {
    for (uint32_t bits = grammar_mask[w]; bits != 0; bits &= bits - 1) {
      if (!is_end(static_cast<int32_t>(32 * w) + std::countr_zero(bits))) return false;
    }
  }
  return true;
}

void apply_mask(std::span<float> row, std::span<const uint32_t> mask) {
  if (mask.empty()) return;
  for (size_t begin = 0; begin < row.size(); begin += 32) {
    const std::span<float> part = row.subspan(begin, std::min<size_t>(32, row.size() - begin));
    const uint32_t word = begin / 32 < mask.size() ? mask[begin / 32] : 0;
    if (word == ~uint32_t{0}) continue;
    if (word == 0) {
      std::ranges::fill(part, kNegInf);
      continue;
    }
    for (size_t i = 0; i < part.size(); ++i) part[i] = ((word >> i) & 1) != 0 ? part[i] : kNegInf;
  }
}

Result<SampleResult> sample_row(std::span<const float> logits, const SamplingParams& params, const History& history,
                                uint64_t seed, int64_t position, Scratch& scratch,
                                std::span<const uint32_t> grammar_mask) {
  std::span<const float> row = logits;
  RowScan scan = scan_row(row);
  QUIRE_TRY(check_row(scan));
  if (!grammar_mask.empty()) {
    scratch.masked.assign(logits.begin(), logits.end());
    apply_mask(scratch.masked, grammar_mask);
    row = scratch.masked;
    scan = scan_row(row);
    QUIRE_TRY(check_row(scan));
  }
  const std::span<const float> raw = row;
  const float raw_max = scan.max;

  if (needs_processing(params, history)) {
    scratch.processed.resize(row.size());
    process(scratch.processed, row, params, history, grammar_mask);
    row = scratch.processed;
    scan = scan_row(row);
    QUIRE_TRY(check_row(scan));
  }
  SampleResult result;
  if (params.greedy()) {
    result.token = first_equal(row, scan.max);
  } else {
    const float temperature = static_cast<float>(params.temperature);
    if (temperature != 1.0f) {
      scratch.processed.resize(row.size());
      for (size_t i = 0; i < row.size(); ++i) scratch.processed[i] = row[i] / temperature;
      row = scratch.processed;
      scan.max = scan.max / temperature;  // division is monotone, so this is the maximum, to the bit
      QUIRE_TRY(check_row(scan));
    }
    result.token = sample_random(row, scan.max, params, seed, position, scratch);
  }
  if (params.logprobs) result.logprobs = logprobs_of(raw, raw_max, result.token, *params.logprobs, scratch);
  return result;
}

Result<std::vector<TokenLogprob>> row_logprobs(std::span<const float> logits, int32_t token, int64_t n,
                                               Scratch& scratch) {
  QUIRE_CHECK(token >= 0 && static_cast<size_t>(token) < logits.size());
  const RowScan scan = scan_row(logits);
  QUIRE_TRY(check_row(scan));
  return logprobs_of(logits, scan.max, token, n, scratch);
}

}  // namespace quire::sampling
