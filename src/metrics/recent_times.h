// SPDX-License-Identifier: Apache-2.0
// RecentTimes: the latest times to the first token and between tokens, with their medians, and counts of tokens.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace quire::metrics {

// The last N values.
template <size_t N>
class Ring {
 public:
  void add(double value) { values_[count_++ % N] = static_cast<float>(value); }
  std::span<const float> kept() const { return {values_.data(), std::min(count_, N)}; }
  // Of the values that are kept; nothing if there are none.
  std::optional<double> median() const { return median(kept()); }
  static std::optional<double> median(std::span<const float> values) {
    if (values.empty()) return std::nullopt;
    std::vector<float> sorted(values.begin(), values.end());
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    return *middle;
  }

 private:
  std::array<float, N> values_{};
  size_t count_ = 0;
};

// Copied whole; not synchronised.
struct RecentTimes {
  Ring<64> to_first;      // seconds, of the last answers that began
  Ring<256> between;      // seconds, of the last steps of all answers
  int64_t prompted = 0;   // tokens of the prompts of answers that have begun
  int64_t generated = 0;  // tokens

  void on_first_token(double seconds, int64_t prompt_tokens) {
    to_first.add(seconds);
    prompted += prompt_tokens;
  }
  void on_inter_token(double seconds) { between.add(seconds); }
};

}  // namespace quire::metrics
