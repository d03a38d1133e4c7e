// SPDX-License-Identifier: Apache-2.0
// Cases of the recurrent layers for the tests of every backend: layers with two slow oracles (the contract of
// ops/recurrent.h in floats by bits, and the textbook in doubles), sequences, and the ways to divide them into steps.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/testing/scalar_math.h"

namespace quire::cases {

// Puts the constants of a layer where a backend reads them; null for an empty array.
using PlaceFloats = std::function<const float*(const std::vector<float>&)>;
inline const float* on_host(const std::vector<float>& values) {
  return values.empty() ? nullptr : values.data();
}

// The arguments of one step. All inputs of a token are one row.
struct LayerStep {
  Tensor in;
  StateLayer state;
  StateSequences sequences;
  Tensor out;
};

// Element [i][j] of a head's matrix, in the layout of ops/recurrent.h.
inline float& state_at(float* matrix, int64_t rows, int64_t cols, int64_t i, int64_t j) {
  const int64_t begin = j / kStateSlice * kStateSlice;
  const int64_t width = std::min(kStateSlice, cols - begin);
  return matrix[rows * begin + i * width + (j - begin)];
}

// A layer with its weights. `step` is the oracle by bits: one token on a state, in floats. `exact` is the textbook's
// recurrence over all tokens of a sequence from its beginning, in doubles.
class RecurrentLayer {
 public:
  RecurrentLayer(std::string name, int64_t channels, int64_t kernel, bool bias, int64_t in_cols, int64_t out_cols,
                 int64_t matrix_floats)
      : name(std::move(name)),
        in_cols(in_cols),
        out_cols(out_cols),
        state_floats(channels * (kernel - 1) + matrix_floats),
        weight_(random_floats(channels * kernel, 11)),
        bias_(random_floats(bias ? channels : 0, 12)) {
    conv_ = {channels, kernel, weight_.data(), bias ? bias_.data() : nullptr};
  }
  virtual ~RecurrentLayer() = default;
  RecurrentLayer(const RecurrentLayer&) = delete;
  RecurrentLayer& operator=(const RecurrentLayer&) = delete;

  virtual void run(Backend& backend, const PlaceFloats& place, const LayerStep& step) const = 0;
  virtual void step(float* state, const float* in, float* out) const = 0;
  virtual std::vector<double> exact(const std::vector<float>& in) const = 0;

  // A state in chunks has another layout, of which only these floats are defined after so many tokens.
  virtual bool chunked() const { return false; }
  virtual int64_t page_floats() const { return state_floats; }
  virtual std::vector<std::pair<int64_t, int64_t>> defined(int64_t /*tokens*/) const { return {{0, state_floats}}; }

  const std::string name;
  const int64_t in_cols, out_cols, state_floats;

 protected:
  CausalConv conv(const PlaceFloats& place) const {
    return {conv_.channels, conv_.kernel, place(weight_), place(bias_)};
  }
  // The convolution at one token; the tail advances by one.
  std::vector<float> convolve(float* tail, const float* x) const {
    std::vector<float> out(static_cast<size_t>(conv_.channels));
    const int64_t taps = conv_.kernel;
    for (int64_t c = 0; c < conv_.channels; ++c) {
      float sum = conv_.bias != nullptr ? conv_.bias[c] : 0.0f;
      for (int64_t j = 0; j < taps; ++j) {
        sum = std::fma(conv_.weight[c * taps + j], j + 1 < taps ? tail[j * conv_.channels + c] : x[c], sum);
      }
      out[static_cast<size_t>(c)] = sum;
      for (int64_t j = 0; j + 1 < taps; ++j) {
        tail[j * conv_.channels + c] = j + 2 < taps ? tail[(j + 1) * conv_.channels + c] : x[c];
      }
    }
    return out;
  }
  // The convolution of channel c at token t; input(token, channel) is what is convolved.
  template <typename F>
  double exact_conv(int64_t t, int64_t c, const F& input) const {
    double sum = conv_.bias != nullptr ? double{conv_.bias[c]} : 0;
    for (int64_t j = 0; j < conv_.kernel; ++j) {
      const int64_t from = t - conv_.kernel + 1 + j;
      if (from >= 0) sum += double{conv_.weight[c * conv_.kernel + j]} * input(from, c);
    }
    return sum;
  }

  CausalConv conv_;

 private:
  std::vector<float> weight_, bias_;
};

// The floats of a state in chunks that are defined after so many tokens.
inline std::vector<std::pair<int64_t, int64_t>> defined_in_chunks(const DeltaChunkLayout& at, int64_t key_heads,
                                                                  int64_t value_heads, int64_t dk, int64_t dv,
                                                                  int64_t tokens) {
  const int64_t kept = tokens % kStateChunk;
  std::vector<std::pair<int64_t, int64_t>> out = {{0, at.values / 4}};
  const auto add = [&](int64_t bytes, int64_t count, int64_t each) {  // `each` floats per token
    for (int64_t i = 0; i < count; ++i) {
      const int64_t begin = bytes / 4 + i * kStateChunk * each;
      out.emplace_back(begin, begin + kept * each);
    }
  };
  add(at.values, value_heads, dv / 2);
  add(at.keys, key_heads, dk / 2);
  add(at.decays, value_heads * (dv / kStateChunkColumns), 1);
  return out;
}

class GatedDeltaNet final : public RecurrentLayer {
 public:
  GatedDeltaNet(int64_t key_heads, int64_t value_heads, int64_t dk, int64_t dv, int64_t kernel, bool bias,
                bool tiled = false, bool chunked = false)
      : RecurrentLayer((chunked ? "gated delta net in chunks " : "gated delta net ") + std::to_string(key_heads) + "/" +
                           std::to_string(value_heads) + (tiled ? " tiled heads, " : " heads, ") + std::to_string(dk) +
                           "x" + std::to_string(dv) + ", kernel " + std::to_string(kernel),
                       2 * key_heads * dk + value_heads * dv, kernel, bias,
                       2 * key_heads * dk + value_heads * dv + 2 * value_heads, value_heads * dv,
                       value_heads * dk * dv),
        hk_(key_heads),
        hv_(value_heads),
        dk_(dk),
        dv_(dv),
        tiled_(tiled),
        chunked_(chunked),
        decay_(random_floats(value_heads, 13)),
        dt_bias_(random_floats(value_heads, 14, 4.0f)) {
    for (float& x : decay_) x = -std::fabs(x) * 0.5f;
    EXPECT_EQ(state_floats * 4, gated_delta_net_state_bytes(hk_, hv_, dk_, dv_, kernel));
  }

  void run(Backend& backend, const PlaceFloats& place, const LayerStep& step) const override {
    backend.gated_delta_net({.qkv = step.in.columns(0, conv_.channels),
                             .a = step.in.columns(conv_.channels, hv_),
                             .b = step.in.columns(conv_.channels + hv_, hv_),
                             .key_heads = hk_,
                             .value_heads = hv_,
                             .dk = dk_,
                             .dv = dv_,
                             .conv = conv(place),
                             .decay = place(decay_),
                             .dt_bias = place(dt_bias_),
                             .state = step.state,
                             .sequences = step.sequences,
                             .out = step.out,
                             .tiled = tiled_,
                             .chunked = chunked_});
  }

  bool chunked() const override { return chunked_; }
  int64_t page_floats() const override { return chunked_ ? layout().bytes / 4 : state_floats; }
  std::vector<std::pair<int64_t, int64_t>> defined(int64_t tokens) const override {
    if (!chunked_) return RecurrentLayer::defined(tokens);
    return defined_in_chunks(layout(), hk_, hv_, dk_, dv_, tokens);
  }

  int64_t key_head_of(int64_t h) const { return tiled_ ? h % hk_ : h / (hv_ / hk_); }

  void step(float* state, const float* in, float* out) const override {
    std::vector<float> c = convolve(state, in);
    for (float& x : c) x = silu(x);
    for (int64_t h = 0; h < hv_; ++h) {
      const int64_t key_head = key_head_of(h);
      std::vector<float> q(c.data() + key_head * dk_, c.data() + (key_head + 1) * dk_);
      std::vector<float> k(c.data() + (hk_ + key_head) * dk_, c.data() + (hk_ + key_head + 1) * dk_);
      const float* v = c.data() + 2 * hk_ * dk_ + h * dv_;
      const float q_length = 1.0f / std::sqrt(lane_dot(q.data(), q.data(), dk_) + 1e-6f);
      const float k_length = 1.0f / std::sqrt(lane_dot(k.data(), k.data(), dk_) + 1e-6f);
      const float scale = 1.0f / std::sqrt(static_cast<float>(dk_));
      for (float& x : q) x = (x * q_length) * scale;
      for (float& x : k) x = x * k_length;
      const float qk = lane_dot(q.data(), k.data(), dk_);
      const float dt = in[conv_.channels + h] + dt_bias_[static_cast<size_t>(h)];
      const float g = exp_of(decay_[static_cast<size_t>(h)] * softplus_of(dt));
      const float beta = sigmoid_of(in[conv_.channels + hv_ + h]);
      float* matrix = state + conv_.tail_floats() + h * dk_ * dv_;
      for (int64_t j = 0; j < dv_; ++j) {
        float m = 0, p = 0;
        for (int64_t i = 0; i < dk_; ++i) {
          m = std::fma(k[static_cast<size_t>(i)], state_at(matrix, dk_, dv_, i, j), m);
          p = std::fma(q[static_cast<size_t>(i)], state_at(matrix, dk_, dv_, i, j), p);
        }
        const float d = std::fma(m, -g, v[j]) * beta;
        out[h * dv_ + j] = std::fma(d, qk, p * g);
        for (int64_t i = 0; i < dk_; ++i) {
          float& s = state_at(matrix, dk_, dv_, i, j);
          s = std::fma(k[static_cast<size_t>(i)], d, s * g);
        }
      }
    }
  }

  // Decay the state, read it with k, correct it, read it with q.
  std::vector<double> exact(const std::vector<float>& in) const override {
    const int64_t tokens = static_cast<int64_t>(in.size()) / in_cols;
    const auto input = [&](int64_t t, int64_t c) { return double{in[static_cast<size_t>(t * in_cols + c)]}; };
    std::vector<double> out(static_cast<size_t>(tokens * out_cols));
    for (int64_t h = 0; h < hv_; ++h) {
      const int64_t q0 = key_head_of(h) * dk_, k0 = q0 + hk_ * dk_, v0 = 2 * hk_ * dk_ + h * dv_;
      std::vector<std::vector<double>> s(static_cast<size_t>(dk_), std::vector<double>(static_cast<size_t>(dv_)));
      for (int64_t t = 0; t < tokens; ++t) {
        std::vector<double> q, k;
        double qq = 0, kk = 0;
        for (int64_t i = 0; i < dk_; ++i) {
          q.push_back(silu(exact_conv(t, q0 + i, input)));
          k.push_back(silu(exact_conv(t, k0 + i, input)));
          qq += q.back() * q.back();
          kk += k.back() * k.back();
        }
        const double dt = input(t, conv_.channels + h) + double{dt_bias_[static_cast<size_t>(h)]};
        const double g = std::exp(double{decay_[static_cast<size_t>(h)]} * softplus(dt));
        const double beta = 1 / (1 + std::exp(-input(t, conv_.channels + hv_ + h)));
        for (int64_t j = 0; j < dv_; ++j) {
          const auto col = static_cast<size_t>(j);
          double memory = 0, result = 0;
          for (size_t i = 0; i < k.size(); ++i) {
            s[i][col] *= g;
            memory += k[i] / std::sqrt(kk + 1e-6) * s[i][col];
          }
          const double delta = (silu(exact_conv(t, v0 + j, input)) - memory) * beta;
          for (size_t i = 0; i < k.size(); ++i) {
            s[i][col] += k[i] / std::sqrt(kk + 1e-6) * delta;
            result += q[i] / std::sqrt((qq + 1e-6) * static_cast<double>(dk_)) * s[i][col];
          }
          out[static_cast<size_t>(t * out_cols + h * dv_ + j)] = result;
        }
      }
    }
    return out;
  }

 private:
  DeltaChunkLayout layout() const { return {hk_, hv_, dk_, dv_, conv_.kernel}; }

  int64_t hk_, hv_, dk_, dv_;
  bool tiled_, chunked_;
  std::vector<float> decay_, dt_bias_;
};

class Mamba2 final : public RecurrentLayer {
 public:
  Mamba2(int64_t heads, int64_t head_dim, int64_t groups, int64_t state_size, int64_t kernel, bool bias,
         bool chunked = false)
      : RecurrentLayer((chunked ? "Mamba-2 in chunks " : "Mamba-2 ") + std::to_string(heads) + "/" +
                           std::to_string(groups) + " heads, " + std::to_string(state_size) + "x" +
                           std::to_string(head_dim) + ", kernel " + std::to_string(kernel),
                       heads * head_dim + 2 * groups * state_size, kernel, bias,
                       heads * head_dim + 2 * groups * state_size + heads, heads * head_dim,
                       heads * head_dim * state_size),
        heads_(heads),
        groups_(groups),
        dim_(head_dim),
        size_(state_size),
        chunked_(chunked),
        decay_(random_floats(heads, 15)),
        skip_(random_floats(heads, 16)),
        dt_bias_(random_floats(heads, 17)) {
    for (float& x : decay_) x = -std::fabs(x);
    EXPECT_EQ(state_floats * 4, mamba2_state_bytes(heads_, dim_, groups_, size_, kernel));
  }

  void run(Backend& backend, const PlaceFloats& place, const LayerStep& step) const override {
    backend.mamba2({.xbc = step.in.columns(0, conv_.channels),
                    .dt = step.in.columns(conv_.channels, heads_),
                    .heads = heads_,
                    .head_dim = dim_,
                    .groups = groups_,
                    .state_size = size_,
                    .conv = conv(place),
                    .decay = place(decay_),
                    .skip = place(skip_),
                    .dt_bias = place(dt_bias_),
                    .dt_min = kLeast,
                    .dt_max = kMost,
                    .state = step.state,
                    .sequences = step.sequences,
                    .out = step.out,
                    .chunked = chunked_});
  }

  bool chunked() const override { return chunked_; }
  int64_t page_floats() const override { return chunked_ ? layout().bytes / 4 : state_floats; }
  std::vector<std::pair<int64_t, int64_t>> defined(int64_t tokens) const override {
    if (!chunked_) return RecurrentLayer::defined(tokens);
    return defined_in_chunks(layout(), groups_, heads_, size_, dim_, tokens);
  }

  void step(float* state, const float* in, float* out) const override {
    std::vector<float> c = convolve(state, in);
    for (float& x : c) x = silu(x);
    for (int64_t h = 0; h < heads_; ++h) {
      const int64_t group = h / (heads_ / groups_);
      const float* x = c.data() + h * dim_;
      const float* b = c.data() + heads_ * dim_ + group * size_;
      const float* right = b + groups_ * size_;
      const float raw = softplus_of(in[conv_.channels + h] + dt_bias_[static_cast<size_t>(h)]);
      const float dt = std::clamp(raw, kLeast, kMost);
      const float g = exp_of(dt * decay_[static_cast<size_t>(h)]);
      float* matrix = state + conv_.tail_floats() + h * size_ * dim_;
      for (int64_t p = 0; p < dim_; ++p) {
        float sum = 0;
        for (int64_t n = 0; n < size_; ++n) {
          float& s = state_at(matrix, size_, dim_, n, p);
          s = std::fma(b[n], x[p] * dt, s * g);
          sum = std::fma(right[n], s, sum);
        }
        out[h * dim_ + p] = std::fma(x[p], skip_[static_cast<size_t>(h)], sum);
      }
    }
  }

  std::vector<double> exact(const std::vector<float>& in) const override {
    const int64_t tokens = static_cast<int64_t>(in.size()) / in_cols;
    const auto input = [&](int64_t t, int64_t c) { return double{in[static_cast<size_t>(t * in_cols + c)]}; };
    std::vector<double> out(static_cast<size_t>(tokens * out_cols));
    for (int64_t h = 0; h < heads_; ++h) {
      const int64_t b0 = heads_ * dim_ + h / (heads_ / groups_) * size_, c0 = b0 + groups_ * size_;
      for (int64_t p = 0; p < dim_; ++p) {
        std::vector<double> s(static_cast<size_t>(size_));
        for (int64_t t = 0; t < tokens; ++t) {
          const double raw = input(t, conv_.channels + h) + double{dt_bias_[static_cast<size_t>(h)]};
          const double dt = std::clamp(softplus(raw), double{kLeast}, double{kMost});
          const double x = silu(exact_conv(t, h * dim_ + p, input));
          double y = double{skip_[static_cast<size_t>(h)]} * x;
          for (int64_t n = 0; n < size_; ++n) {
            double& element = s[static_cast<size_t>(n)];
            element = element * std::exp(dt * double{decay_[static_cast<size_t>(h)]}) +
                      dt * silu(exact_conv(t, b0 + n, input)) * x;
            y += silu(exact_conv(t, c0 + n, input)) * element;
          }
          out[static_cast<size_t>(t * out_cols + h * dim_ + p)] = y;
        }
      }
    }
    return out;
  }

 private:
  static constexpr float kLeast = 0.3f, kMost = 1.1f;  // so that both bounds occur
  DeltaChunkLayout layout() const { return {groups_, heads_, size_, dim_, conv_.kernel}; }

  int64_t heads_, groups_, dim_, size_;
  bool chunked_;
  std::vector<float> decay_, skip_, dt_bias_;
};

class ShortConv final : public RecurrentLayer {
 public:
  ShortConv(int64_t channels, int64_t kernel, bool bias)
      : RecurrentLayer("short conv of " + std::to_string(channels) + ", kernel " + std::to_string(kernel), channels,
                       kernel, bias, 3 * channels, channels, 0) {
    EXPECT_EQ(state_floats * 4, short_conv_state_bytes(channels, kernel));
  }
  void run(Backend& backend, const PlaceFloats& place, const LayerStep& step) const override {
    backend.short_conv({step.in, conv(place), step.state, step.sequences, step.out});
  }
  void step(float* state, const float* in, float* out) const override {
    std::vector<float> x(static_cast<size_t>(out_cols));
    for (int64_t c = 0; c < out_cols; ++c) x[static_cast<size_t>(c)] = in[c] * in[2 * out_cols + c];
    const std::vector<float> y = convolve(state, x.data());
    for (int64_t c = 0; c < out_cols; ++c) out[c] = in[out_cols + c] * y[static_cast<size_t>(c)];
  }
  std::vector<double> exact(const std::vector<float>& in) const override {
    const auto part = [&](int64_t t, int64_t c, int which) {
      return double{in[static_cast<size_t>(t * in_cols + which * out_cols + c)]};
    };
    std::vector<double> out;
    for (int64_t t = 0; t < static_cast<int64_t>(in.size()) / in_cols; ++t) {
      for (int64_t c = 0; c < out_cols; ++c) {
        const auto input = [&](int64_t from, int64_t channel) {
          return part(from, channel, 0) * part(from, channel, 2);
        };
        out.push_back(part(t, c, 1) * exact_conv(t, c, input));
      }
    }
    return out;
  }
};

// Sequences from their beginnings, their inputs rounded to `type`, with the oracle's output and state after every
// token.
struct Truth {
  struct Sequence {
    std::vector<float> in, out;
    std::vector<std::vector<float>> states;  // [tokens + 1]
  };
  Truth(const RecurrentLayer& layer, const std::vector<int64_t>& lengths, DType type = DType::kF32) {
    for (const int64_t length : lengths) {
      Sequence s;
      s.in = random_floats(length * layer.in_cols, static_cast<uint32_t>(21 + sequences.size()), 2.0f);
      for (float& x : s.in) x = rounded(x, type);
      s.out.resize(static_cast<size_t>(length * layer.out_cols));
      s.states.emplace_back(static_cast<size_t>(layer.state_floats));
      for (int64_t t = 0; t < length; ++t) {
        s.states.push_back(s.states.back());
        layer.step(s.states.back().data(), s.in.data() + t * layer.in_cols, s.out.data() + t * layer.out_cols);
      }
      sequences.push_back(std::move(s));
    }
  }
  int64_t length(size_t s) const { return static_cast<int64_t>(sequences[s].states.size()) - 1; }
  std::vector<Sequence> sequences;
};

// A part of a sequence in a step.
struct Chunk {
  size_t sequence;
  int64_t begin, end;
  int32_t source, destination;
  std::vector<int32_t> rows = {};  // row destinations; empty: none
};

// The row destinations of all tokens of a step; empty if there are none.
inline std::vector<int32_t> row_destinations(const std::vector<Chunk>& chunks) {
  std::vector<int32_t> out;
  bool any = false;
  for (const Chunk& c : chunks) {
    any |= !c.rows.empty();
    out.insert(out.end(), c.rows.begin(), c.rows.end());
    out.resize(out.size() + static_cast<size_t>(c.end - c.begin) - c.rows.size(), -1);
  }
  if (!any) out.clear();
  return out;
}

struct RecurrentCase {
  std::unique_ptr<RecurrentLayer> layer;
  std::vector<int64_t> lengths;   // of sequences
  std::optional<DType> gpu = {};  // the type of activations on a GPU; none: too slow on the emulator
};

inline std::vector<RecurrentCase> recurrent_cases() {
  std::vector<RecurrentCase> cases;
  const auto add = [&](std::unique_ptr<RecurrentLayer> layer, std::vector<int64_t> lengths,
                       std::optional<DType> gpu = {}) {
    cases.push_back({std::move(layer), std::move(lengths), gpu});
  };
  add(std::make_unique<GatedDeltaNet>(1, 1, 16, 16, 4, false), {70, 1, 5}, DType::kF32);
  add(std::make_unique<GatedDeltaNet>(2, 4, 24, 40, 4, true), {9, 2, 5}, DType::kBF16);
  add(std::make_unique<GatedDeltaNet>(2, 6, 24, 70, 4, false, true), {5, 1, 3}, DType::kF16);
  add(std::make_unique<GatedDeltaNet>(2, 2, 40, 96, 3, false), {4, 1, 7});
  add(std::make_unique<GatedDeltaNet>(1, 2, 7, 71, 2, false), {6, 66, 1}, DType::kF32);
  add(std::make_unique<GatedDeltaNet>(1, 3, 33, 130, 1, true), {3, 5}, DType::kF32);
  add(std::make_unique<GatedDeltaNet>(2, 4, 128, 128, 4, false), {2, 3}, DType::kBF16);
  add(std::make_unique<GatedDeltaNet>(2, 4, 128, 128, 4, true, true), {3, 1}, DType::kF16);
  add(std::make_unique<GatedDeltaNet>(1, 1, 256, 256, 8, false), {2, 2});
  add(std::make_unique<GatedDeltaNet>(1, 1, 200, 33, 8, false), {2, 9}, DType::kF32);
  add(std::make_unique<Mamba2>(2, 24, 1, 16, 4, true), {70, 1, 5}, DType::kF32);
  add(std::make_unique<Mamba2>(6, 40, 2, 33, 3, true), {4, 6}, DType::kBF16);
  add(std::make_unique<Mamba2>(3, 5, 3, 7, 1, false), {5, 1, 66}, DType::kF16);
  add(std::make_unique<Mamba2>(4, 64, 1, 128, 4, true), {2, 3}, DType::kBF16);
  add(std::make_unique<Mamba2>(2, 100, 1, 256, 8, false), {3, 1}, DType::kF32);
  add(std::make_unique<ShortConv>(1, 3, false), {4, 70}, DType::kF32);
  add(std::make_unique<ShortConv>(17, 1, true), {4, 2}, DType::kF32);
  add(std::make_unique<ShortConv>(300, 3, false), {5, 1, 66}, DType::kBF16);
  add(std::make_unique<ShortConv>(512, 4, true), {40, 6});
  add(std::make_unique<ShortConv>(33, 8, true), {3, 12}, DType::kF16);
  return cases;
}

// States in chunks, for backends that have them: sequences that end within and behind the first chunks.
inline std::vector<RecurrentCase> chunk_cases() {
  std::vector<RecurrentCase> cases;
  const auto add = [&](std::unique_ptr<RecurrentLayer> layer, std::vector<int64_t> lengths, DType gpu) {
    cases.push_back({std::move(layer), std::move(lengths), gpu});
  };
  add(std::make_unique<GatedDeltaNet>(1, 2, 16, 32, 4, false, false, true), {150, 1, 64}, DType::kBF16);
  add(std::make_unique<GatedDeltaNet>(2, 4, 48, 64, 3, true, true, true), {70, 33}, DType::kF16);
  add(std::make_unique<GatedDeltaNet>(1, 2, 128, 128, 4, false, false, true), {68, 5}, DType::kBF16);
  add(std::make_unique<Mamba2>(2, 32, 1, 16, 4, true, true), {150, 1, 64}, DType::kBF16);
  add(std::make_unique<Mamba2>(4, 64, 2, 48, 3, false, true), {70, 33}, DType::kF16);
  add(std::make_unique<Mamba2>(2, 64, 1, 128, 4, true, true), {68, 5}, DType::kBF16);
  return cases;
}

// Steps that divide the sequences at random: pages change, checkpoints stay, and some steps only copy a state. Sequence
// s uses pages 4s to 4s+3; what it leaves in a page must stay there. The first step has no tokens.
inline std::vector<std::vector<Chunk>> random_steps(const std::vector<int64_t>& lengths, int steps, uint32_t most) {
  std::vector<std::vector<Chunk>> out = {{{0, 0, 0, -1, 3}}};
  std::mt19937 random(5);
  std::vector<int64_t> done(lengths.size());
  std::vector<int32_t> page(lengths.size(), -1);
  page[0] = 3;
  for (int step = 0; step < steps; ++step) {
    std::vector<Chunk> chunks;
    for (size_t s = 0; s < lengths.size(); ++s) {
      const int64_t left = lengths[s] - done[s];
      const int64_t tokens = std::min<int64_t>(left, random() % (step % 3 == 0 ? 3 : most));
      if (step > 5 && left == 0) continue;
      const bool in_place = page[s] >= 0 && random() % 2 == 0;
      const auto next = in_place ? page[s] : static_cast<int32_t>(4 * s + random() % 4);
      chunks.push_back({s, done[s], done[s] + tokens, page[s], next});
      done[s] += tokens;
      page[s] = next;
    }
    if (chunks.empty()) break;
    out.push_back(std::move(chunks));
  }
  return out;
}

// Steps with drafts: sequence s has up to five tokens, leaves the state after each of them in one of its pages 6s to
// 6s+5, and goes on after any of them. The first state may replace the one that is read. Some sequences have no drafts.
inline std::vector<std::vector<Chunk>> draft_steps(const std::vector<int64_t>& lengths, int steps) {
  std::vector<std::vector<Chunk>> out;
  std::mt19937 random(6);
  std::vector<int64_t> done(lengths.size());
  std::vector<int32_t> page(lengths.size(), -1);
  for (int step = 0; step < steps; ++step) {
    std::vector<Chunk> chunks;
    for (size_t s = 0; s < lengths.size(); ++s) {
      const int64_t tokens = std::min<int64_t>(lengths[s] - done[s], 1 + random() % 5);
      if (tokens == 0) continue;
      const auto first = static_cast<int32_t>(6 * s);
      std::vector<int32_t> pages;
      if (page[s] >= 0 && random() % 2 == 0) pages.push_back(page[s]);
      for (int32_t p = first; std::ssize(pages) < tokens; ++p) {
        if (p != page[s]) pages.push_back(p);
      }
      Chunk c{s, done[s], done[s] + tokens, page[s], pages[static_cast<size_t>(tokens - 1)]};
      int64_t kept = tokens;
      if (random() % 3 != 0) {
        c.rows.assign(pages.begin(), pages.begin() + tokens - 1);
        c.rows.push_back(-1);
        kept = 1 + random() % tokens;
      }
      done[s] += kept;
      page[s] = pages[static_cast<size_t>(kept - 1)];
      chunks.push_back(std::move(c));
    }
    if (chunks.empty()) break;
    out.push_back(std::move(chunks));
  }
  return out;
}

}  // namespace quire::cases
