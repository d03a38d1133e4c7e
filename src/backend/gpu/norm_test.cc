// SPDX-License-Identifier: Apache-2.0
// The norms on a GPU: doubles within the rounding of the output for all types; the same bits for a row alone, in a
// batch and under another order of lanes; the order of sums by bits.
#include <cmath>

#include "backend/gpu/test_device.h"
#include "backend/testing/norm_oracle.h"

namespace quire::gpu {
namespace {

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
  for (const int64_t group : {1, 31, 64, 200, 256, 257, 1024, 2500, 4096, 4100}) {
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
          const std::vector<double> exact =
              cases::exact_rms_norm(x.part(r, g * group, group), w.part(0, 0, group), eps);
          for (int64_t i = 0; i < group; ++i) {
            const float y = got[static_cast<size_t>(r * x.cols + g * group + i)];
            ASSERT_EQ(y, rounded((v(i) * inverse) * w.at(0, i), types.out)) << what << ", element " << i;
            const double truth = exact[static_cast<size_t>(i)];
            expect_close(y, truth, types.out, std::fabs(truth), 20, what);
          }
        }
      }
    }
  }
}

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

// The norm before the addition, the addition and the norm after it, one by one and joined, in place.
TEST(GpuNorms, AddNormHasTheBitsOfTheSingleOps) {
  for (const int64_t columns : {64, 264, 576, 2560, 6144}) {
    for (const DType type : {DType::kF16, DType::kBF16}) {
      for (const bool normed_x : {false, true}) {
        for (const bool normed_sum : {false, true}) {
          if (!normed_x && !normed_sum) continue;
          std::vector<uint8_t> got[2];
          for (const bool joined : {false, true}) {
            TestDevice& device = test_device();
            GpuBackend& ops = device.ops();
            const Tensor x = device.put(HostMatrix(3, columns, type, 1, 2.0f, 8));
            const Tensor residual = device.put(HostMatrix(3, columns, DType::kF32, 2, 2.0f, 8));
            AddNormArgs args{x, nullptr, 0.75f, residual, nullptr, 1e-6f, {}};
            if (normed_x) args.post_weight = device.put(HostMatrix(1, columns, DType::kF32, 3)).f32();
            if (normed_sum) {
              args.weight = device.put(HostMatrix(1, columns, DType::kF32, 4)).f32();
              args.out = x;
            }
            ASSERT_TRUE(ops.joins_add_norm(args));
            if (joined) {
              ops.add_norm(args);
            } else {
              if (normed_x) ops.rms_norm({x, args.post_weight, columns, args.eps, x});
              ops.residual_add({x, residual, args.scale, residual});
              if (normed_sum) ops.rms_norm({residual, args.weight, columns, args.eps, x});
            }
            got[joined] = device.rows_of(residual, false);
            const std::vector<uint8_t> out = device.rows_of(x, false);
            if (normed_sum) got[joined].insert(got[joined].end(), out.begin(), out.end());
            device.clear();
          }
          ASSERT_TRUE(got[0] == got[1]) << columns << " columns of " << name(type) << (normed_x ? ", x normed" : "")
                                        << (normed_sum ? ", the sum normed" : "");
        }
      }
    }
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
            const cases::LayerNormTruth exact = cases::exact_layer_norm(x.part(r, c, group), w.part(0, 0, group),
                                                                        with_bias ? b.values.data() : nullptr, eps);
            for (int64_t i = 0; i < group; ++i) {
              const double truth = exact.y[static_cast<size_t>(i)];
              const double size =
                  4 * exact.scale * std::fabs(double{w.at(0, i)}) + (with_bias ? std::fabs(double{b.at(0, i)}) : 0);
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
  for (const int64_t group : {17, 128, 300, 1028}) {
    const int64_t groups = group > 1000 ? 1 : 2;
    for (const DType type : kTypes) {
      for (const bool gate_first : {false, true}) {
        for (int64_t weight_groups = 1; weight_groups <= groups; ++weight_groups) {
          const std::string what = text("gated_rms_norm", type, type, group);
          const int64_t columns = groups * group;
          HostMatrix x(2, columns, type, 6), gate(2, columns, type, 7, 9.0f), w(1, columns, DType::kF32, 8);
          const auto run = [&](TestDevice& device, int64_t first, int64_t count) {
            const Tensor out = device.put(x).some_rows(first, count);  // in place
            device.ops().gated_rms_norm({out, device.put(gate).some_rows(first, count), device.put(w).f32(),
                                         weight_groups * group, group, eps, gate_first, out});
            return device.rows_of(out, false);
          };
          const std::vector<float> got = run_rows(2, type, run, what);
          for (int64_t r = 0; r < 2; ++r) {
            for (int64_t c = 0; c < x.cols; c += group) {
              const std::vector<double> exact =
                  cases::exact_gated_rms_norm(x.part(r, c, group), gate.part(r, c, group),
                                              w.part(0, weight_groups == 1 ? 0 : c, group), eps, gate_first);
              for (int64_t i = 0; i < group; ++i) {
                const double truth = exact[static_cast<size_t>(i)];
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

}  // namespace
}  // namespace quire::gpu
