// SPDX-License-Identifier: Apache-2.0
// The ops that CpuBackend makes from QUIRE_ROW_OPS, and gather: the number of threads changes no bit.
#include <gtest/gtest.h>

#include <cstring>

#include "backend/backend.h"
#include "backend/cpu/cpu_kernels.h"
#include "backend/testing/guarded_matrix.h"

namespace quire::cpu {
namespace {

using namespace cases;
using Matrix = GuardedMatrix;

// Any number of rows, with one thread and with three, on every level.
TEST(RowOps, ThreadsChangeNoBit) {
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
