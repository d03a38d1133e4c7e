// SPDX-License-Identifier: Apache-2.0
// Norms, rope, activations, residual_add, scale, soft_cap and the gathers: a double oracle with a derived tolerance,
// the contract in scalar floats by bits, on every ISA level, all lengths around the lanes, misaligned.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "backend/backend.h"
#include "backend/cpu/cpu_kernels.h"
#include "backend/cpu/simd_probe.h"
#include "backend/testing/attention_cases.h"

namespace quire::cpu {
namespace {

constexpr double kEps = 0x1p-24;  // half an ulp of 1

float call(ProbeOp op, float x) {  // one of our own functions on one number
  float out;
  simd_probe(Isa::kPortable).map(op, &x, &x, &x, &out, 1);
  return out;
}

// A matrix that starts `shift` floats past an allocation and has guard elements around every row.
struct Matrix {
  Matrix(int64_t rows, int64_t cols, int64_t shift, uint32_t seed, float range = 2.0f)
      : rows(rows), cols(cols), stride(cols + 5), shift(shift), data(static_cast<size_t>(shift + rows * stride + 16)) {
    std::mt19937 random(seed);
    for (float& x : data) x = range * random_float(random);
  }
  Tensor tensor() { return {data.data() + shift, DType::kF32, rows, cols, stride}; }
  float* row(int64_t r) { return data.data() + shift + r * stride; }

  int64_t rows, cols, stride, shift;
  std::vector<float> data;
};

// Whole allocations, so that a write outside a row shows.
void expect_same_bits(const Matrix& got, const Matrix& want, const std::string& what) {
  for (size_t i = 0; i < got.data.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(got.data[i]), std::bit_cast<uint32_t>(want.data[i]))
        << what << ": element " << i << " is " << got.data[i] << ", want " << want.data[i];
  }
}

// The 16-lane sum of the contract.
template <typename F>
float lane_sum(int64_t n, const F& add) {
  float lanes[16] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i % 16] = add(lanes[i % 16], i);
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

TEST(RmsNorm, HasTheBitsOfTheContractAndTheValueOfDoubles) {
  for (const Isa isa : probed_isas()) {
    for (int64_t group = 1; group <= 34; ++group) {
      for (const int64_t groups : {1, 3}) {
        const auto seed = static_cast<uint32_t>(group);
        Matrix x(3, group * groups, group % 4, seed), out(3, group * groups, group % 3, 99), w(1, group, 1, 5);
        Matrix want = out;
        const float eps = 1e-5f;
        for (int64_t r = 0; r < 3; ++r) {
          for (int64_t g = 0; g < groups; ++g) {
            const float* v = x.row(r) + g * group;
            const float sum = lane_sum(group, [&](float acc, int64_t i) { return std::fma(v[i], v[i], acc); });
            const float inverse = 1.0f / std::sqrt(sum / static_cast<float>(group) + eps);
            double exact = 0;
            for (int64_t i = 0; i < group; ++i) exact += double{v[i]} * double{v[i]};
            const double scale = 1 / std::sqrt(exact / static_cast<double>(group) + double{eps});
            for (int64_t i = 0; i < group; ++i) {
              float& y = want.row(r)[g * group + i];
              y = (v[i] * inverse) * w.row(0)[i];
              const double truth = double{v[i]} * scale * double{w.row(0)[i]};
              ASSERT_NEAR(double{y}, truth, std::fabs(truth) * kEps * (static_cast<double>(group) + 6));
            }
          }
        }
        kernels(isa).rms_norm({x.tensor(), w.row(0), group, eps, out.tensor()}, 0, 3);
        expect_same_bits(out, want, std::string(name(isa)) + " group " + std::to_string(group));
        kernels(isa).rms_norm({x.tensor(), w.row(0), group, eps, x.tensor()}, 0, 3);  // in place
        for (int64_t r = 0; r < 3; ++r) {
          ASSERT_EQ(std::memcmp(x.row(r), want.row(r), static_cast<size_t>(x.cols) * sizeof(float)), 0);
        }
      }
    }
  }
}

TEST(GatedRmsNorm, HasTheBitsOfTheContractAndTheValueOfDoubles) {
  const float eps = 1e-5f;
  for (const Isa isa : probed_isas()) {
    for (const int64_t group : {1, 2, 15, 16, 17, 24, 33, 48}) {
      for (const bool gate_first : {false, true}) {
        for (const int64_t weight_groups : {1, 3}) {  // one weight for all groups, or each its own
          const int64_t cols = 3 * group;
          Matrix x(2, cols, group % 4, 7), gate(2, cols, 1, 8, 9.0f), out(2, cols, 2, 99), w(1, cols, 3, 5);
          Matrix want = out;
          for (int64_t r = 0; r < 2; ++r) {
            std::vector<float> v(x.row(r), x.row(r) + cols), silu(static_cast<size_t>(cols));
            std::vector<double> exact(v.begin(), v.end()), exact_silu(silu.size());
            for (size_t c = 0; c < silu.size(); ++c) {
              const float z = gate.row(r)[c];
              silu[c] = z / (1.0f + call(ProbeOp::kExp, -z));
              exact_silu[c] = double{z} / (1 + std::exp(-double{z}));
              if (gate_first) v[c] = v[c] * silu[c];
              if (gate_first) exact[c] *= exact_silu[c];
            }
            for (int64_t g = 0; g < 3; ++g) {
              const float* u = v.data() + g * group;
              const float sum = lane_sum(group, [&](float acc, int64_t i) { return std::fma(u[i], u[i], acc); });
              const float inverse = 1.0f / std::sqrt(sum / static_cast<float>(group) + eps);
              double squares = 0;
              for (int64_t i = 0; i < group; ++i) {
                squares += exact[static_cast<size_t>(g * group + i)] * exact[static_cast<size_t>(g * group + i)];
              }
              const double scale = 1 / std::sqrt(squares / static_cast<double>(group) + double{eps});
              for (int64_t i = 0; i < group; ++i) {
                const int64_t c = g * group + i;
                const float weight = w.row(0)[weight_groups == 1 ? i : c];
                const float normed = (v[static_cast<size_t>(c)] * inverse) * weight;
                want.row(r)[c] = gate_first ? normed : normed * silu[static_cast<size_t>(c)];
                const double truth = exact[static_cast<size_t>(c)] * scale * double{weight} *
                                     (gate_first ? 1 : exact_silu[static_cast<size_t>(c)]);
                ASSERT_NEAR(double{want.row(r)[c]}, truth, std::fabs(truth) * kEps * (static_cast<double>(group) + 20));
              }
            }
          }
          const std::string what =
              std::string(name(isa)) + " group " + std::to_string(group) + (gate_first ? " gate first" : " gate last");
          GatedRmsNormArgs args{.x = x.tensor(),
                                .gate = gate.tensor(),
                                .weight = w.row(0),
                                .weight_size = weight_groups * group,
                                .group = group,
                                .eps = eps,
                                .gate_first = gate_first,
                                .out = out.tensor()};
          kernels(isa).gated_rms_norm(args, 0, 1);
          kernels(isa).gated_rms_norm(args, 1, 2);
          expect_same_bits(out, want, what);
          args.out = x.tensor();
          kernels(isa).gated_rms_norm(args, 0, 2);  // in place
          for (int64_t r = 0; r < 2; ++r) {
            ASSERT_EQ(std::memcmp(x.row(r), want.row(r), static_cast<size_t>(cols) * sizeof(float)), 0) << what;
          }
        }
      }
    }
  }
}

TEST(LayerNorm, HasTheBitsOfTheContractAndTheValueOfDoubles) {
  for (const Isa isa : probed_isas()) {
    for (int64_t group = 1; group <= 34; ++group) {
      for (const bool with_bias : {false, true}) {
        Matrix x(2, group * 2, group % 4, static_cast<uint32_t>(group)), out(2, group * 2, 1, 99);
        Matrix w(1, group, 1, 5), b(1, group, 2, 6), want = out;
        const float eps = 1e-3f;
        const auto n = static_cast<float>(group);
        for (int64_t r = 0; r < 2; ++r) {
          for (int64_t g = 0; g < 2; ++g) {
            const float* v = x.row(r) + g * group;
            const float mean = lane_sum(group, [&](float acc, int64_t i) { return acc + v[i]; }) / n;
            const float squares =
                lane_sum(group, [&](float acc, int64_t i) { return std::fma(v[i] - mean, v[i] - mean, acc); });
            const float rstd = 1.0f / std::sqrt(squares / n + eps);
            double sum = 0, exact = 0;
            for (int64_t i = 0; i < group; ++i) sum += double{v[i]};
            const double centre = sum / static_cast<double>(group);
            for (int64_t i = 0; i < group; ++i) exact += (double{v[i]} - centre) * (double{v[i]} - centre);
            const double scale = 1 / std::sqrt(exact / static_cast<double>(group) + double{eps});
            for (int64_t i = 0; i < group; ++i) {
              const float z = (v[i] - mean) * rstd;
              const float weight = w.row(0)[i], bias = with_bias ? b.row(0)[i] : 0.0f;
              float& y = want.row(r)[g * group + i];
              y = with_bias ? std::fma(z, weight, bias) : z * weight;
              const double truth = (double{v[i]} - centre) * scale * double{weight} + double{bias};
              // The mean's error counts in units of the values (at most 2), blown up by scale.
              const double size = (2 + 2) * scale * std::fabs(double{weight}) + std::fabs(double{bias});
              ASSERT_NEAR(double{y}, truth, size * kEps * (2 * static_cast<double>(group) + 8));
            }
          }
        }
        kernels(isa).layer_norm({x.tensor(), w.row(0), with_bias ? b.row(0) : nullptr, group, eps, out.tensor()}, 0, 2);
        expect_same_bits(out, want, std::string(name(isa)) + " group " + std::to_string(group));
      }
    }
  }
}

TEST(Rope, RotatesPairsOfBothKindsAndLeavesTheRest) {
  struct Shape {
    int64_t head_dim, rot_dim;
  };
  std::vector<Shape> shapes;
  for (int64_t rot = 0; rot <= 70; rot += 2) shapes.push_back({rot + 1, rot});
  for (const Shape s : {Shape{64, 64}, Shape{80, 32}, Shape{128, 128}, Shape{256, 64}, Shape{100, 100}}) {
    shapes.push_back(s);
  }
  for (const Isa isa : probed_isas()) {
    for (const Shape s : shapes) {
      for (const bool interleaved : {false, true}) {
        const int64_t half = s.rot_dim / 2;
        Matrix x(4, s.head_dim * 3, s.rot_dim % 4, 8), want = x;
        Matrix cosines(1, 50 * half, 1, 9, 1.0f), sines(1, 50 * half, 3, 10, 1.0f);
        const std::vector<int32_t> positions = {0, 7, 49, 7};
        for (int64_t r = 0; r < 4; ++r) {
          for (int64_t head = 0; head < 3; ++head) {
            for (int64_t i = 0; i < half; ++i) {
              float* h = want.row(r) + head * s.head_dim;
              float& a = h[interleaved ? 2 * i : i];
              float& b = h[interleaved ? 2 * i + 1 : i + half];
              const float c = cosines.row(0)[positions[static_cast<size_t>(r)] * half + i];
              const float d = sines.row(0)[positions[static_cast<size_t>(r)] * half + i];
              const double ta = double{a} * double{c} - double{b} * double{d};
              const double tb = double{b} * double{c} + double{a} * double{d};
              const float y = std::fma(a, c, -(b * d)), z = std::fma(b, c, a * d);
              ASSERT_NEAR(double{y}, ta, 4 * kEps * 2);  // two roundings of products below 2
              ASSERT_NEAR(double{z}, tb, 4 * kEps * 2);
              a = y;
              b = z;
            }
          }
        }
        RopeArgs args{x.tensor(), s.head_dim, s.rot_dim, interleaved, cosines.row(0), sines.row(0), positions};
        kernels(isa).rope(args, 0, 2);
        kernels(isa).rope(args, 2, 4);
        expect_same_bits(x, want,
                         std::string(name(isa)) + " rot_dim " + std::to_string(s.rot_dim) +
                             (interleaved ? " interleaved" : " halves"));
      }
    }
  }
}

float activation_oracle(Activation activation, float x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1.0f + call(ProbeOp::kExp, -x));
    case Activation::kGelu:
      return (x * 0.5f) * (1.0f + call(ProbeOp::kErf, x * 0.70710678118654752f));
    case Activation::kGeluTanh: {
      const float cubic = std::fma((x * x) * 0.044715f, x, x);
      return (x * 0.5f) * (1.0f + call(ProbeOp::kTanh, cubic * 0.79788456080286536f));
    }
    case Activation::kRelu:
      return 0.0f > x ? 0.0f : x;
    case Activation::kRelu2:
      return 0.0f > x ? 0.0f : x * x;
    case Activation::kSigmoid:
      return 1.0f / (1.0f + call(ProbeOp::kExp, -x));
  }
  return 0;
}
double activation_truth(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kRelu2:
      return std::max(x, 0.0) * std::max(x, 0.0);
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
  }
  return 0;
}

constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGelu,  Activation::kGeluTanh,
                                       Activation::kRelu, Activation::kRelu2, Activation::kSigmoid};

TEST(ActivationOps, HaveTheBitsOfTheContractAndTheValueOfDoubles) {
  for (const Isa isa : probed_isas()) {
    for (const Activation activation : kActivations) {
      for (int64_t cols = 0; cols <= 34; ++cols) {
        Matrix gate(2, cols, cols % 4, static_cast<uint32_t>(cols), 12.0f), up(2, cols, 1, 77), out(2, cols, 2, 99);
        Matrix plain(2, cols, 3, 98), want = out, want_plain = plain;
        for (int64_t r = 0; r < 2; ++r) {
          for (int64_t c = 0; c < cols; ++c) {
            const float x = gate.row(r)[c];
            want_plain.row(r)[c] = activation_oracle(activation, x);
            want.row(r)[c] = want_plain.row(r)[c] * up.row(r)[c];
            // Some ulps of the function; gelu's 1 + erf cancels for negative x, so the bound is in units of |x|.
            const double truth = activation_truth(activation, double{x});
            const double bound = (std::fabs(double{x}) + std::fabs(truth) + 1) * 8 * kEps;
            ASSERT_NEAR(double{want_plain.row(r)[c]}, truth, bound) << x;
          }
        }
        const std::string what = std::string(name(isa)) + " activation " +
                                 std::to_string(static_cast<int>(activation)) + " cols " + std::to_string(cols);
        kernels(isa).glu({gate.tensor(), up.tensor(), activation, out.tensor()}, 0, 2);
        expect_same_bits(out, want, what);
        kernels(isa).activation({gate.tensor(), activation, plain.tensor()}, 0, 2);
        expect_same_bits(plain, want_plain, what);
        kernels(isa).glu({gate.tensor(), up.tensor(), activation, gate.tensor()}, 0, 2);  // in place
        for (int64_t r = 0; r < 2; ++r) {
          ASSERT_EQ(std::memcmp(gate.row(r), want.row(r), static_cast<size_t>(cols) * sizeof(float)), 0) << what;
        }
      }
    }
  }
}

TEST(ResidualAdd, IsOneFma) {
  for (const Isa isa : probed_isas()) {
    for (const float scale : {1.0f, 0.22f}) {
      for (int64_t cols = 0; cols <= 34; ++cols) {
        Matrix x(2, cols, cols % 4, 1), residual(2, cols, 1, 2), want = residual;
        for (int64_t r = 0; r < 2; ++r) {
          for (int64_t c = 0; c < cols; ++c) want.row(r)[c] = std::fma(x.row(r)[c], scale, residual.row(r)[c]);
        }
        kernels(isa).residual_add({x.tensor(), residual.tensor(), scale, residual.tensor()}, 0, 2);
        expect_same_bits(residual, want, name(isa));
      }
    }
  }
}

TEST(Glu, ClampsWithALimitAsGptOssDoes) {
  const float limit = 7.0f;
  for (const Isa isa : probed_isas()) {
    for (int64_t cols = 0; cols <= 34; ++cols) {
      Matrix gate(2, cols, cols % 4, 3, 12.0f), up(2, cols, 1, 4, 12.0f), out(2, cols, 2, 99), want = out;
      for (int64_t r = 0; r < 2; ++r) {
        for (int64_t c = 0; c < cols; ++c) {
          const float g = limit < gate.row(r)[c] ? limit : gate.row(r)[c];
          const float u = std::clamp(up.row(r)[c], -limit, limit);
          want.row(r)[c] = (u + 1.0f) * (g * (1.0f / (1.0f + call(ProbeOp::kExp, -(1.702f * g)))));
          const double exact_g = std::min(double{gate.row(r)[c]}, 7.0);
          const double truth = (double{u} + 1) * exact_g / (1 + std::exp(-1.702 * exact_g));
          // exp turns an error in 1.702 g into one times its size; 1.702 itself is rounded.
          ASSERT_NEAR(double{want.row(r)[c]}, truth, (std::fabs(truth) * (2 * std::fabs(exact_g) + 12) + 1) * 2 * kEps);
        }
      }
      kernels(isa).glu({gate.tensor(), up.tensor(), Activation::kGelu, out.tensor(), limit}, 0, 2);
      expect_same_bits(out, want, std::string(name(isa)) + " cols " + std::to_string(cols));
    }
    float nan = std::nanf(""), one = 1.0f, out = 0;
    const auto scalar = [](float* x) { return Tensor{x, DType::kF32, 1, 1, 1}; };
    kernels(isa).glu({scalar(&nan), scalar(&one), Activation::kSilu, scalar(&out), limit}, 0, 1);
    EXPECT_TRUE(std::isnan(out));
    kernels(isa).glu({scalar(&one), scalar(&nan), Activation::kSilu, scalar(&out), limit}, 0, 1);
    EXPECT_TRUE(std::isnan(out));
  }
}

TEST(ScaleAndSoftCap, HaveTheBitsOfTheContract) {
  const float factor = 0.3f, cap = 30.0f;
  const std::vector<float> rows = {1.5f, -0.7f};
  for (const Isa isa : probed_isas()) {
    for (int64_t cols = 0; cols <= 34; ++cols) {
      Matrix x(2, cols, cols % 4, 3, 90.0f), plain(2, cols, 1, 4), by_row(2, cols, 2, 5), capped(2, cols, 3, 6);
      Matrix want_plain = plain, want_by_row = by_row, want_capped = capped;
      for (int64_t r = 0; r < 2; ++r) {
        for (int64_t c = 0; c < cols; ++c) {
          const float v = x.row(r)[c];
          want_plain.row(r)[c] = v * factor;
          want_by_row.row(r)[c] = v * (factor * rows[static_cast<size_t>(r)]);
          want_capped.row(r)[c] = cap * call(ProbeOp::kTanh, v / cap);
          ASSERT_NEAR(double{want_capped.row(r)[c]}, 30 * std::tanh(double{v} / 30), 30 * 6 * kEps);
        }
      }
      kernels(isa).scale({.x = x.tensor(), .factor = factor, .out = plain.tensor()}, 0, 2);
      expect_same_bits(plain, want_plain, name(isa));
      kernels(isa).scale({x.tensor(), factor, rows, by_row.tensor()}, 0, 2);
      expect_same_bits(by_row, want_by_row, name(isa));
      kernels(isa).soft_cap({x.tensor(), cap, capped.tensor()}, 0, 2);
      expect_same_bits(capped, want_capped, name(isa));
      kernels(isa).soft_cap({x.tensor(), cap, x.tensor()}, 1, 2);  // in place
      ASSERT_EQ(std::memcmp(x.row(1), want_capped.row(1), static_cast<size_t>(cols) * sizeof(float)), 0);
    }
  }
}

TEST(GatherColumns, CopiesRunsAndSingleColumnsInAnyOrder) {
  auto backend = make_cpu_backend({3, ""});
  ASSERT_TRUE(backend.ok());
  const std::vector<int32_t> columns = {40, 41, 42, 43, 7, 7, 6, 5, 0, 1, 2, 3, 4, 5, 6, 99, 98};
  for (const int64_t rows : {0, 1, 300}) {
    Matrix x(rows, 100, 1, 3), out(rows, static_cast<int64_t>(columns.size()), 2, 4), want = out;
    for (int64_t r = 0; r < rows; ++r) {
      for (size_t c = 0; c < columns.size(); ++c) want.row(r)[c] = x.row(r)[columns[c]];
    }
    backend.value()->gather_columns({x.tensor(), columns, out.tensor()});
    expect_same_bits(out, want, "gather_columns");
  }
}

// The backend cuts rows over threads: any number of rows, with one thread and with three, on every level.
TEST(ElementwiseOps, ThreadsChangeNoBit) {
  for (const Isa isa : probed_isas()) {
    auto one = make_cpu_backend({1, name(isa)});
    auto three = make_cpu_backend({3, name(isa)});
    ASSERT_TRUE(one.ok() && three.ok());
    for (const int64_t rows : {0, 1, 2, 37, 200}) {
      const int64_t cols = 576;
      Matrix x(rows, cols, 0, 1), y(rows, cols, 0, 2), w(1, cols, 0, 3), table(1, 100 * 32, 0, 4);
      Matrix results[2] = {Matrix(rows, cols, 0, 9), Matrix(rows, cols, 0, 9)};
      std::vector<int32_t> positions(static_cast<size_t>(rows)), picked(static_cast<size_t>(rows));
      for (size_t i = 0; i < positions.size(); ++i) {
        positions[i] = static_cast<int32_t>(i * 7 % 100);
        picked[i] = static_cast<int32_t>(positions.size() - 1 - i);
      }
      const std::vector<float> factors(static_cast<size_t>(rows), 1.25f);
      for (int i = 0; i < 2; ++i) {
        Backend& backend = *(i == 0 ? one : three).value();
        Matrix a(rows, cols, 0, 9), b(rows, cols, 0, 9);
        backend.rms_norm({x.tensor(), w.row(0), 64, 1e-5f, a.tensor()});
        backend.layer_norm({a.tensor(), w.row(0), nullptr, cols, 1e-5f, b.tensor()});
        backend.rope({b.tensor(), 64, 64, false, table.row(0), table.row(0), positions});
        backend.glu({b.tensor(), y.tensor(), Activation::kSilu, a.tensor()});
        backend.residual_add({a.tensor(), x.tensor(), 0.5f, b.tensor()});
        backend.activation({b.tensor(), Activation::kGeluTanh, a.tensor()});
        backend.scale({a.tensor(), 0.5f, factors, a.tensor()});
        backend.soft_cap({a.tensor(), 5.0f, a.tensor()});
        backend.gated_rms_norm({a.tensor(), b.tensor(), w.row(0), 64, 64, 1e-5f, true, a.tensor()});
        backend.gather({a.tensor(), picked, results[i].tensor()});
        for (int64_t r = 0; r < rows; ++r) {
          ASSERT_EQ(std::memcmp(results[i].row(r), a.row(picked[static_cast<size_t>(r)]), 4 * size_t{576}), 0);
        }
      }
      expect_same_bits(results[0], results[1], name(isa));
    }
  }
}

}  // namespace
}  // namespace quire::cpu
