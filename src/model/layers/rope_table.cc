// SPDX-License-Identifier: Apache-2.0
// The rotary frequencies of each scaling type, and the table made from them.
#include "model/layers/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace quire::model {
namespace {

constexpr int64_t kGrowth = 1024;  // positions added at once

std::vector<double> plain_frequencies(double theta, int64_t rot_dim) {
  std::vector<double> freq;
  for (int64_t i = 0; i < rot_dim; i += 2) {
    freq.push_back(1.0 / std::pow(theta, static_cast<double>(i) / static_cast<double>(rot_dim)));
  }
  return freq;
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// YaRN (arXiv:2309.00071): pairs that rotate often within the original length keep their frequency, slow ones are
// interpolated, with a ramp in between.
double apply_yarn(const RopeConfig& c, std::vector<double>& freq) {
  const double dim = static_cast<double>(c.rot_dim);
  const auto pair_of_rotations = [&](double rotations) {
    return dim * std::log(static_cast<double>(c.original_max_position) / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(c.theta));
  };
  double low = pair_of_rotations(c.beta_fast);
  double high = pair_of_rotations(c.beta_slow);
  if (c.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < freq.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    freq[i] = freq[i] / c.factor * ramp + freq[i] * (1 - ramp);
  }
  if (c.attention_factor > 0) return c.attention_factor;
  if (c.mscale != 0 && c.mscale_all_dim != 0) {
    return yarn_mscale(c.factor, c.mscale) / yarn_mscale(c.factor, c.mscale_all_dim);
  }
  return yarn_mscale(c.factor, 1.0);
}

// Llama 3.1: low frequencies are divided by the factor, high ones are kept, with a smooth step in between.
void apply_llama3(const RopeConfig& c, std::vector<double>& freq) {
  const double original = static_cast<double>(c.original_max_position);
  for (double& f : freq) {
    const double wavelength = 2 * std::numbers::pi / f;
    if (wavelength > original / c.low_freq_factor) {
      f /= c.factor;
    } else if (wavelength >= original / c.high_freq_factor) {
      const double smooth = (original / wavelength - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor);
      f = (1 - smooth) * f / c.factor + smooth * f;
    }
  }
}

// Dynamic NTK with the base for max_model_len, so that the angle of a position never changes.
double dynamic_theta(const RopeConfig& c, int64_t max_model_len) {
  const double dim = static_cast<double>(c.rot_dim);
  const double trained = static_cast<double>(c.config_max_position);
  const double longest = std::max(static_cast<double>(max_model_len), trained);
  const double ratio = c.factor * longest / trained - (c.factor - 1);
  return c.theta * std::pow(ratio, dim / (dim - 2));
}

}  // namespace

RopeFrequencies rope_frequencies(const RopeConfig& c, int64_t max_model_len) {
  const double theta = c.type == RopeType::kDynamic && c.rot_dim > 2 ? dynamic_theta(c, max_model_len) : c.theta;
  std::vector<double> freq = plain_frequencies(theta, c.rot_dim);
  double attention = 1.0;
  switch (c.type) {
    case RopeType::kDefault:
    case RopeType::kDynamic:
      break;
    case RopeType::kProportional: {
      const auto turning = static_cast<size_t>(c.partial * static_cast<double>(c.rot_dim) / 2);
      for (size_t i = 0; i < freq.size(); ++i) freq[i] = i < turning ? freq[i] / c.factor : 0.0;
      break;
    }
    case RopeType::kLinear:
      for (double& f : freq) f /= c.factor;
      break;
    case RopeType::kYarn:
      attention = apply_yarn(c, freq);
      break;
    case RopeType::kLlama3:
      apply_llama3(c, freq);
      break;
    case RopeType::kLongRope: {
      const bool is_long = max_model_len > c.original_max_position;
      const auto& factors = is_long ? c.long_factors : c.short_factors;
      const double mscale = is_long ? c.long_mscale : c.short_mscale;
      QUIRE_CHECK(factors.size() == freq.size());
      for (size_t i = 0; i < freq.size(); ++i) freq[i] /= factors[i];
      const double scale = c.factor;
      attention = mscale > 0               ? mscale
                  : c.attention_factor > 0 ? c.attention_factor
                  : scale <= 1
                      ? 1.0
                      : std::sqrt(1 + std::log(scale) / std::log(static_cast<double>(c.original_max_position)));
      break;
    }
  }
  if (!c.freq_factors.empty()) {
    QUIRE_CHECK(c.freq_factors.size() == freq.size());
    for (size_t i = 0; i < freq.size(); ++i) freq[i] /= c.freq_factors[i];
  }
  RopeFrequencies out;
  for (const double f : freq) out.inv_freq.push_back(static_cast<float>(f));
  out.attention_factor = static_cast<float>(attention);
  return out;
}

RopeTable::RopeTable(RopeFrequencies frequencies, int64_t max_model_len)
    : frequencies_(std::move(frequencies)), max_model_len_(max_model_len) {}

void RopeTable::grow_to(int64_t end) {
  if (end <= reached_ || frequencies_.inv_freq.empty()) return;
  QUIRE_CHECK(end <= max_model_len_);
  const int64_t target = std::min((end + kGrowth - 1) / kGrowth * kGrowth, max_model_len_);
  const size_t half = frequencies_.inv_freq.size();
  cos_.resize(static_cast<size_t>(target) * half);
  sin_.resize(static_cast<size_t>(target) * half);
  for (int64_t p = reached_; p < target; ++p) {
    for (size_t i = 0; i < half; ++i) {
      // The angle is rounded to float, as in the reference implementations; its cosine is computed in double.
      const float angle = static_cast<float>(p) * frequencies_.inv_freq[i];
      const size_t at = static_cast<size_t>(p) * half + i;
      cos_[at] = static_cast<float>(std::cos(static_cast<double>(angle))) * frequencies_.attention_factor;
      sin_[at] = static_cast<float>(std::sin(static_cast<double>(angle))) * frequencies_.attention_factor;
    }
  }
  reached_ = target;
}

Status RopeTable::place(Backend& backend) {
  grow_to(max_model_len_);
  placed_cos_ = std::move(cos_);
  placed_sin_ = std::move(sin_);
  QUIRE_TRY(placed_cos_.place(backend));
  return placed_sin_.place(backend);
}

}  // namespace quire::model
