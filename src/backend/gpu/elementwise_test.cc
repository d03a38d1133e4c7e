// SPDX-License-Identifier: Apache-2.0
// Norms and elementwise ops on a GPU: doubles within the output type's rounding for all types; the same bits for a row
// alone, in a batch and under another order of lanes; the norms' order of sums by bits.
#include <cmath>

#include "backend/gpu/test_device.h"

namespace quire::gpu {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
struct TypePair {
  DType in, out;
};
constexpr TypePair kPairs[] = {{DType::kF32, DType::kF32}, {DType::kF32, DType::kF16}, {DType::kF32, DType::kBF16},
                               {DType::kF16, DType::kF16}, {DType::kF16, DType::kF32}, {DType::kBF16, DType::kBF16},
                               {DType::kBF16, DType::kF32}};

std::string text(const char* op, DType in, DType out, int64_t size) {
  return std::string(op) + " " + name(in) + " to " + name(out) + ", " + std::to_string(size);
}

// |got - truth| is at most the output's rounding and `floats` roundings of floats of this size.
void expect_close(float got, double truth, DType out, double size, double floats, const std::string& what) {
  const double bound = std::fabs(truth) * rounding(out) * 1.01 + size * floats * 0x1p-24 +
                       (out == DType::kF16 ? 0x1p-25 : 0x1p-140);  // subnormals
  ASSERT_NEAR(double{got}, truth, bound) << what;
}

// The sum of norm_sum.h: eight chains a lane.
template <typename F>
float norm_sum(int64_t n, const F& add) {
  float chains[32][8] = {}, lanes[32];
  for (int64_t j = 0; j < n; ++j) {
    float& chain = chains[j % 32][j / 32 % 8];
    chain = add(chain, j);
  }
  for (int lane = 0; lane < 32; ++lane) {
    const float* c = chains[lane];
    lanes[lane] = ((c[0] + c[1]) + (c[2] + c[3])) + ((c[4] + c[5]) + (c[6] + c[7]));
  }
  for (int width = 16; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

TEST(GpuNorms, RmsNormHasTheOrderOfItsRuleAndTheValueOfDoubles) {
  const float eps = 1e-5f;
  for (const int64_t group : {1, 31, 64, 200, 256, 257, 1024, 2500}) {
    const int64_t groups = group < 300 ? 3 : 1;
    for (const TypePair& types : kPairs) {
      const std::string what = text("rms_norm", types.in, types.out, group);
      HostMatrix x(3, group * groups, types.in, 1), w(1, group, DType::kF32, 2);
      const auto run = [&](TestDevice& device, int64_t first, int64_t count) {
        const Tensor out = device.room(count, x.cols, types.out);
        const float* weight = device.put(w).f32();
        device.ops().rms_norm({device.put(x).some_rows(first, count), weight, group, eps, out});
        return device.rows_of(out);
      };
      const std::vector<float> got = run_rows(3, types.out, run, what);
      for (int64_t r = 0; r < 3; ++r) {
        for (int64_t g = 0; g < groups; ++g) {
          const auto v = [&](int64_t i) { return x.at(r, g * group + i); };
          const float sum = norm_sum(group, [&](float acc, int64_t i) { return std::fma(v(i), v(i), acc); });
          const float inverse = 1.0f / std::sqrt(sum / static_cast<float>(group) + eps);
          double exact = 0;
          for (int64_t i = 0; i < group; ++i) exact += double{v(i)} * double{v(i)};
          const double scale = 1 / std::sqrt(exact / static_cast<double>(group) + double{eps});
          for (int64_t i = 0; i < group; ++i) {
            const float y = got[static_cast<size_t>(r * x.cols + g * group + i)];
            ASSERT_EQ(y, rounded((v(i) * inverse) * w.at(0, i), types.out)) << what << ", element " << i;
            const double truth = double{v(i)} * scale * double{w.at(0, i)};
            expect_close(y, truth, types.out, std::fabs(truth), 20, what);
          }
        }
      }
    }
  }
}

// Rows with one lane that counts: whose sums another order would change more often.
TEST(GpuNorms, RmsNormFoldsChainsAsItsRuleSays) {
  for (const int64_t group : {200, 256, 1024}) {
    HostMatrix x(60, group, DType::kF32, 21), ones(1, group, DType::kF32, 2);
    for (float& w : ones.values) w = 1.0f;
    for (int64_t r = 0; r < x.rows; ++r) {
      for (int64_t c = 0; c < group; ++c) x.at(r, c) = c % 32 == r % 32 ? x.at(r, c) : 0.0f;
    }
    TestDevice& device = test_device();
    const Tensor out = device.room(x.rows, group, DType::kF32);
    device.ops().rms_norm({device.put(x), device.put(ones).f32(), group, 1e-5f, out});
    const std::vector<float> got = floats_of(device.rows_of(out), DType::kF32);
    for (int64_t r = 0; r < x.rows; ++r) {
      const float sum = norm_sum(group, [&](float acc, int64_t i) { return std::fma(x.at(r, i), x.at(r, i), acc); });
      const float inverse = 1.0f / std::sqrt(sum / static_cast<float>(group) + 1e-5f);
      for (int64_t c = 0; c < group; ++c) {
        ASSERT_EQ(got[static_cast<size_t>(r * group + c)], x.at(r, c) * inverse) << "group " << group << " row " << r;
      }
    }
    device.clear();
  }
}

TEST(GpuNorms, LayerNormHasTheValueOfDoubles) {
  const float eps = 1e-3f;
  for (const int64_t group : {5, 64, 256, 300, 2100}) {
    for (const TypePair& types : kPairs) {
      for (const bool with_bias : {false, true}) {
        const std::string what = text("layer_norm", types.in, types.out, group);
        HostMatrix x(2, 2 * group, types.in, 3), w(1, group, DType::kF32, 4), b(1, group, DType::kF32, 5);
        const auto run = [&](TestDevice& device, int64_t first, int64_t count) {
          const Tensor out = device.room(count, x.cols, types.out);
          const float* bias = with_bias ? device.put(b).f32() : nullptr;
          device.ops().layer_norm({device.put(x).some_rows(first, count), device.put(w).f32(), bias, group, eps, out});
          return device.rows_of(out);
        };
        const std::vector<float> got = run_rows(2, types.out, run, what);
        for (int64_t r = 0; r < 2; ++r) {
          for (int64_t c = 0; c < x.cols; c += group) {
            double sum = 0, squares = 0;
            for (int64_t i = 0; i < group; ++i) sum += double{x.at(r, c + i)};
            const double mean = sum / static_cast<double>(group);
            for (int64_t i = 0; i < group; ++i) squares += std::pow(double{x.at(r, c + i)} - mean, 2);
            const double scale = 1 / std::sqrt(squares / static_cast<double>(group) + double{eps});
            for (int64_t i = 0; i < group; ++i) {
              const double weight = double{w.at(0, i)}, bias = with_bias ? double{b.at(0, i)} : 0;
              const double truth = (double{x.at(r, c + i)} - mean) * scale * weight + bias;
              const double size = 4 * scale * std::fabs(weight) + std::fabs(bias);
              expect_close(got[static_cast<size_t>(r * x.cols + c + i)], truth, types.out, size, 30, what);
            }
          }
        }
      }
    }
  }
}

TEST(GpuNorms, GatedRmsNormHasTheValueOfDoubles) {
  const float eps = 1e-5f;
  for (const int64_t group : {17, 128, 300}) {
    for (const DType type : kTypes) {
      for (const bool gate_first : {false, true}) {
        for (const int64_t weight_groups : {1, 2}) {
          const std::string what = text("gated_rms_norm", type, type, group);
          HostMatrix x(2, 2 * group, type, 6), gate(2, 2 * group, type, 7, 9.0f), w(1, 2 * group, DType::kF32, 8);
          const auto run = [&](TestDevice& device, int64_t first, int64_t count) {
            const Tensor out = device.put(x).some_rows(first, count);  // in place
            device.ops().gated_rms_norm({out, device.put(gate).some_rows(first, count), device.put(w).f32(),
                                         weight_groups * group, group, eps, gate_first, out});
            return device.rows_of(out, false);
          };
          const std::vector<float> got = run_rows(2, type, run, what);
          for (int64_t r = 0; r < 2; ++r) {
            for (int64_t c = 0; c < x.cols; c += group) {
              const auto silu = [&](int64_t i) {
                const double z = double{gate.at(r, c + i)};
                return z / (1 + std::exp(-z));
              };
              const auto v = [&](int64_t i) { return double{x.at(r, c + i)} * (gate_first ? silu(i) : 1); };
              double squares = 0;
              for (int64_t i = 0; i < group; ++i) squares += v(i) * v(i);
              const double scale = 1 / std::sqrt(squares / static_cast<double>(group) + double{eps});
              for (int64_t i = 0; i < group; ++i) {
                const double weight = double{w.at(0, weight_groups == 1 ? i : c + i)};
                const double truth = v(i) * scale * weight * (gate_first ? 1 : silu(i));
                expect_close(got[static_cast<size_t>(r * x.cols + c + i)], truth, type, std::fabs(truth), 40, what);
              }
            }
          }
        }
      }
    }
  }
}

TEST(GpuNorms, WorkInPlace) {
  for (const DType type : kTypes) {
    for (const int64_t group : {64, 600}) {
      HostMatrix x(2, group, type, 1), w(1, group, DType::kF32, 2);
      TestDevice& device = test_device();
      const Tensor out = device.room(2, group, type), in_place = device.put(x);
      const float* weight = device.put(w).f32();
      device.ops().rms_norm({in_place, weight, group, 1e-5f, out});
      device.ops().rms_norm({in_place, weight, group, 1e-5f, in_place});
      EXPECT_EQ(device.rows_of(in_place, false), device.rows_of(out)) << name(type) << " " << group;
      const Tensor again = device.put(x), layer = device.room(2, group, type);
      device.ops().layer_norm({again, weight, nullptr, group, 1e-5f, layer});
      device.ops().layer_norm({again, weight, nullptr, group, 1e-5f, again});
      EXPECT_EQ(device.rows_of(again, false), device.rows_of(layer)) << name(type) << " " << group;
      device.clear();
    }
  }
}

TEST(GpuRope, RotatesPairsOfBothKindsAndLeavesTheRest) {
  struct Shape {
    int64_t head_dim, rot_dim, offset;
  };
  for (const Shape s : {Shape{64, 64, 0}, Shape{80, 32, 0}, Shape{24, 6, 18}}) {
    for (const DType type : kTypes) {
      for (const bool interleaved : {false, true}) {
        const int64_t half = s.rot_dim / 2;
        HostMatrix x(3, 3 * s.head_dim, type, 9), cosines(1, 50 * half, DType::kF32, 10, 1.0f, 0),
            sines(1, 50 * half, DType::kF32, 11, 1.0f, 0);
        const std::vector<int32_t> positions = {49, 0, 7};
        const auto run = [&](TestDevice& device, int64_t first, int64_t count) {
          const Tensor on_device = device.put(x);
          const Tensor part = on_device.some_rows(first, count);
          const std::span<const int32_t> all(device.put(positions), 3);
          device.ops().rope({part, s.head_dim, s.rot_dim, interleaved, device.put(cosines).f32(),
                             device.put(sines).f32(),
                             all.subspan(static_cast<size_t>(first), static_cast<size_t>(count)), s.offset});
          return device.rows_of(part, false);
        };
        const std::string what = text("rope", type, type, s.rot_dim);
        const std::vector<float> got = run_rows(3, type, run, what);
        for (int64_t r = 0; r < 3; ++r) {
          for (int64_t c = 0; c < x.cols; ++c) {
            const int64_t head = c / s.head_dim * s.head_dim, i = c - head - s.offset;
            const float y = got[static_cast<size_t>(r * x.cols + c)];
            if (i < 0 || i >= s.rot_dim) {
              ASSERT_EQ(y, x.at(r, c)) << what;
              continue;
            }
            const int64_t pair = interleaved ? i / 2 : i % half;
            const bool second = interleaved ? i % 2 == 1 : i >= half;
            const int64_t a = head + s.offset + (interleaved ? 2 * pair : pair), b = a + (interleaved ? 1 : half);
            const int64_t angle = positions[static_cast<size_t>(r)] * half + pair;
            const double cosine = double{cosines.at(0, angle)}, sine = double{sines.at(0, angle)};
            const double truth = second ? double{x.at(r, b)} * cosine + double{x.at(r, a)} * sine
                                        : double{x.at(r, a)} * cosine - double{x.at(r, b)} * sine;
            expect_close(y, truth, type, 4, 2, what);
          }
        }
      }
    }
  }
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

TEST(GpuActivations, HaveTheValueOfDoubles) {
  for (const Activation activation : {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu,
                                      Activation::kRelu2, Activation::kSigmoid}) {
    for (const DType type : kTypes) {
      for (const int64_t cols : {1, 7, 64}) {
        const std::string what =
            text("activation", type, type, cols) + " " + std::to_string(static_cast<int>(activation));
        HostMatrix gate(3, cols, type, 12, 12.0f), up(3, cols, type, 13);
        const auto glu = [&](TestDevice& device, int64_t first, int64_t count) {
          const Tensor out = device.room(count, cols, type);
          device.ops().glu(
              {device.put(gate).some_rows(first, count), device.put(up).some_rows(first, count), activation, out});
          return device.rows_of(out);
        };
        const auto plain = [&](TestDevice& device, int64_t first, int64_t count) {
          const Tensor out = device.put(gate).some_rows(first, count);  // in place
          device.ops().activation({out, activation, out});
          return device.rows_of(out, false);
        };
        const std::vector<float> gated = run_rows(3, type, glu, what), got = run_rows(3, type, plain, what);
        for (int64_t r = 0; r < 3; ++r) {
          for (int64_t c = 0; c < cols; ++c) {
            const double x = double{gate.at(r, c)}, u = double{up.at(r, c)};
            const double truth = activation_truth(activation, x);
            const double size = std::fabs(x) + std::fabs(truth) + 1;  // 1 + erf cancels where x is negative
            expect_close(got[static_cast<size_t>(r * cols + c)], truth, type, size, 8, what);
            expect_close(gated[static_cast<size_t>(r * cols + c)], truth * u, type, size * std::fabs(u), 10, what);
          }
        }
      }
    }
  }
}

TEST(GpuActivations, ClampAsGptOssDoes) {
  const double limit = 7;
  for (const DType type : kTypes) {
    HostMatrix gate(2, 70, type, 14, 20.0f), up(2, 70, type, 15, 20.0f);
    const auto run = [&](TestDevice& device, int64_t first, int64_t count) {
      const Tensor out = device.room(count, 70, type);
      device.ops().glu({device.put(gate).some_rows(first, count), device.put(up).some_rows(first, count),
                        Activation::kSilu, out, 7.0f});
      return device.rows_of(out);
    };
    const std::vector<float> got = run_rows(2, type, run, "clamped glu");
    for (int64_t r = 0; r < 2; ++r) {
      for (int64_t c = 0; c < 70; ++c) {
        const double g = std::min(limit, double{gate.at(r, c)});
        const double u = std::clamp(double{up.at(r, c)}, -limit, limit);
        const double truth = (u + 1) * g / (1 + std::exp(-1.702 * g));
        expect_close(got[static_cast<size_t>(r * 70 + c)], truth, type, std::fabs(truth), 100, "clamped glu");
      }
    }
  }
}

TEST(GpuResidual, AddsAScaledRow) {
  constexpr TypePair kAdded[] = {{DType::kF32, DType::kF32},
                                 {DType::kF16, DType::kF32},
                                 {DType::kBF16, DType::kF32},
                                 {DType::kF16, DType::kF16},
                                 {DType::kBF16, DType::kBF16}};
  for (const TypePair& types : kAdded) {
    for (const int64_t cols : {3, 64, 66}) {
      const std::string what = text("residual_add", types.in, types.out, cols);
      HostMatrix x(3, cols, types.in, 16), residual(3, cols, types.out, 17);
      const auto run = [&](TestDevice& device, int64_t first, int64_t count) {
        const Tensor out = device.put(residual).some_rows(first, count);
        device.ops().residual_add({device.put(x).some_rows(first, count), out, 0.25f, out});
        return device.rows_of(out, false);
      };
      const std::vector<float> got = run_rows(3, types.out, run, what);
      for (int64_t r = 0; r < 3; ++r) {
        for (int64_t c = 0; c < cols; ++c) {
          const float want = rounded(std::fma(x.at(r, c), 0.25f, residual.at(r, c)), types.out);
          ASSERT_EQ(got[static_cast<size_t>(r * cols + c)], want) << what;
        }
      }
    }
  }
}

TEST(GpuScale, TakesAFactorForAllRowsAndOneForEachAndCasts) {
  const std::vector<float> factors = {0.5f, -3.0f, 1.75f};
  for (const TypePair& types : kPairs) {
    for (const int64_t cols : {5, 64}) {
      for (const bool by_row : {false, true}) {
        const std::string what = text("scale", types.in, types.out, cols);
        HostMatrix x(3, cols, types.in, 18);
        const auto run = [&](TestDevice& device, int64_t first, int64_t count) {
          const Tensor out = device.room(count, cols, types.out);
          std::span<const float> rows;
          if (by_row) {
            rows = std::span<const float>(device.put(factors), 3)
                       .subspan(static_cast<size_t>(first), static_cast<size_t>(count));
          }
          device.ops().scale({device.put(x).some_rows(first, count), 1.1f, rows, out});
          return device.rows_of(out);
        };
        const std::vector<float> got = run_rows(3, types.out, run, what);
        for (int64_t r = 0; r < 3; ++r) {
          const float factor = by_row ? 1.1f * factors[static_cast<size_t>(r)] : 1.1f;
          for (int64_t c = 0; c < cols; ++c) {
            ASSERT_EQ(got[static_cast<size_t>(r * cols + c)], rounded(x.at(r, c) * factor, types.out)) << what;
          }
        }
      }
    }
  }
}

TEST(GpuSoftCap, HasTheValueOfDoubles) {
  for (const DType type : kTypes) {
    HostMatrix x(2, 65, type, 19, 100.0f);
    const auto run = [&](TestDevice& device, int64_t first, int64_t count) {
      const Tensor out = device.put(x).some_rows(first, count);
      device.ops().soft_cap({out, 30.0f, out});
      return device.rows_of(out, false);
    };
    const std::vector<float> got = run_rows(2, type, run, "soft_cap");
    for (int64_t r = 0; r < 2; ++r) {
      for (int64_t c = 0; c < 65; ++c) {
        const double truth = 30 * std::tanh(double{x.at(r, c)} / 30);
        expect_close(got[static_cast<size_t>(r * 65 + c)], truth, type, 30, 6, "soft_cap");
      }
    }
  }
}

TEST(GpuGather, CopiesRowsAndColumnsInAnyOrder) {
  const std::vector<int32_t> rows = {4, 0, 4, 2}, columns = {40, 41, 7, 7, 6, 0, 69};
  for (const DType type : kTypes) {
    HostMatrix x(5, 70, type, 20);
    TestDevice& device = test_device();
    const Tensor on_device = device.put(x), by_row = device.room(4, 70, type), by_column = device.room(5, 7, type);
    device.ops().gather({on_device, {device.put(rows), rows.size()}, by_row});
    device.ops().gather_columns({on_device, {device.put(columns), columns.size()}, by_column});
    const std::vector<float> got = floats_of(device.rows_of(by_row), type);
    for (size_t r = 0; r < rows.size(); ++r) {
      for (size_t c = 0; c < 70; ++c) ASSERT_EQ(got[r * 70 + c], x.at(rows[r], static_cast<int64_t>(c)));
    }
    const std::vector<float> cut = floats_of(device.rows_of(by_column), type);
    for (size_t r = 0; r < 5; ++r) {
      for (size_t c = 0; c < columns.size(); ++c) {
        ASSERT_EQ(cut[r * columns.size() + c], x.at(static_cast<int64_t>(r), columns[c]));
      }
    }
    device.clear();
  }
}

TEST(GpuElementwise, TakesNoRows) {
  TestDevice& device = test_device();
  const Tensor none = {device.room(1, 64, DType::kF32).data, DType::kF32, 0, 64, 64};
  const float* weight = none.f32();
  device.ops().rms_norm({none, weight, 64, 1e-5f, none});
  device.ops().glu({none, none, Activation::kSilu, none});
  device.ops().rope({none, 64, 64, false, weight, weight, {}});
  device.ops().gather({none, {}, none});
  device.clear();
}

}  // namespace
}  // namespace quire::gpu
