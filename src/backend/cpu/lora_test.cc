// SPDX-License-Identifier: Apache-2.0
// lora on the CPU, against doubles; and the same bits in any mixture of adapters.
#include <gtest/gtest.h>

#include "backend/backend.h"
#include "backend/cpu/simd_probe.h"
#include "backend/testing/guarded_matrix.h"
#include "backend/testing/lora_cases.h"

namespace quire::cpu {
namespace {

using namespace cases;

constexpr DType kLoraTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

// Adds the adapters to `out`, rows [first, first + out.rows) of the mixture.
void run(Backend& backend, const LoraCase& c, GuardedMatrix& x, const LoraMixture& mixture, GuardedMatrix& out,
         int64_t first = 0) {
  GuardedMatrix t(out.rows, c.most_rank, 0, 99);
  const LoraMemory memory{c.memory.data(), c.slot_bytes, c.dtype};
  const Tensor rows = x.tensor().some_rows(first, out.rows);
  backend.lora({rows, {}, memory, mixture.list(first), LoraCase::kSite, t.tensor(), out.tensor(), c.most_rank});
}

TEST(Lora, IsCloseToDoubles) {
  auto backend = make_cpu_backend({2, ""});
  ASSERT_TRUE(backend.ok());
  for (const DType type : kLoraTypes) {
    for (const int64_t k : {1, 3, 64, 181}) {
      const LoraCase c(k, 100, type);
      GuardedMatrix x(37, k, 1, 5), out(37, 100, 2, 6), before = out;
      const LoraMixture mixture(37, 7);
      run(**backend, c, x, mixture, out);
      for (int64_t r = 0; r < 37; ++r) {
        std::vector<double> want(before.row(r), before.row(r) + 100), size(100, 0.0);
        c.add(mixture.slots_by_row[static_cast<size_t>(r)], x.row(r), want.data(), size.data());
        for (size_t n = 0; n < 100; ++n) {
          const double bound = (size[n] * (static_cast<double>(k) + 40) + std::abs(want[n])) * kEps;
          ASSERT_NEAR(double{out.row(r)[n]}, want[n], bound) << name(type) << " k " << k << " row " << r << " n " << n;
          if (size[n] == 0) {
            ASSERT_EQ(out.row(r)[n], before.row(r)[n]);
          }
        }
      }
    }
  }
}

// A row has the same bits alone, in every mixture, in a part of the step's rows, on every level and with more threads.
TEST(Lora, HasTheSameBitsInAnyMixture) {
  for (const DType type : kLoraTypes) {
    const LoraCase c(181, 100, type);
    GuardedMatrix x(70, 181, 1, 5);
    const LoraMixture mixture(70, 8);
    GuardedMatrix want(70, 100, 2, 6);
    auto portable = make_cpu_backend({1, "portable"});
    ASSERT_TRUE(portable.ok());
    run(**portable, c, x, mixture, want);
    for (const Isa isa : probed_isas()) {
      auto backend = make_cpu_backend({3, name(isa)});
      ASSERT_TRUE(backend.ok());
      GuardedMatrix out(70, 100, 2, 6);
      run(**backend, c, x, mixture, out);
      expect_same_bits(out, want, name(isa));
      for (int64_t r = 0; r < 70; ++r) {
        std::vector<int32_t> only(70, -1);
        only[static_cast<size_t>(r)] = mixture.slots_by_row[static_cast<size_t>(r)];
        GuardedMatrix alone(70, 100, 2, 6);
        run(**backend, c, x, LoraMixture(only), alone);
        ASSERT_EQ(std::memcmp(alone.row(r), want.row(r), 100 * sizeof(float)), 0) << name(isa) << " row " << r;
      }
      GuardedMatrix some(20, 100, 2, 6), whole(70, 100, 2, 6);
      for (int64_t r = 0; r < 20; ++r) std::copy_n(whole.row(30 + r), 100, some.row(r));
      run(**backend, c, x, mixture, some, 30);
      for (int64_t r = 0; r < 20; ++r) {
        ASSERT_EQ(std::memcmp(some.row(r), want.row(30 + r), 100 * sizeof(float)), 0) << "part, row " << r;
      }
    }
  }
}

TEST(Lora, LooksUpRowsByToken) {
  auto backend = make_cpu_backend({2, ""});
  ASSERT_TRUE(backend.ok());
  const LoraCase c(50, 90, DType::kBF16);
  const std::vector<int32_t> tokens = {0, 49, 7, 7, 12};
  GuardedMatrix one_hot(5, 50, 1, 3), out(5, 90, 0, 6), want = out, t(5, c.most_rank, 0, 9);
  for (size_t r = 0; r < 5; ++r) {
    std::fill_n(one_hot.row(static_cast<int64_t>(r)), 50, 0.0f);
    one_hot.row(static_cast<int64_t>(r))[tokens[r]] = 1.0f;
  }
  const LoraMixture mixture(std::vector<int32_t>{2, 0, 1, -1, 1});
  run(**backend, c, one_hot, mixture, want);
  const LoraMemory memory{c.memory.data(), c.slot_bytes, c.dtype};
  const Tensor vocabulary{nullptr, DType::kF32, 0, 50, 50};
  backend.value()->lora(
      {vocabulary, tokens, memory, mixture.list(), LoraCase::kSite, t.tensor(), out.tensor(), c.most_rank});
  expect_same_bits(out, want, "look up");
}

}  // namespace
}  // namespace quire::cpu
