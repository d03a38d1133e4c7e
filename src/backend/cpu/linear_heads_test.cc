// SPDX-License-Identifier: Apache-2.0
// linear_heads has the bits of a linear for each head, on every ISA level of this machine and with any threads.
#include <gtest/gtest.h>

#include "backend/backend.h"
#include "backend/cpu/isa_level.h"
#include "backend/testing/linear_heads_cases.h"

namespace quire {
namespace {

constexpr int64_t kMostRows = 600;  // more than a piece takes
constexpr float kUntouched = -12345.0f;

void check_shape_of(DType type, const cases::HeadsShape& shape, bool quantise, cpu::Isa isa, int threads) {
  const cases::HeadWeights weights(type, shape);
  const int64_t k = weights.heads[0].k, x_head = k + 5, out_head = shape.n + 3;
  auto backend = make_cpu_backend({.threads = threads, .isa = cpu::name(isa)});
  ASSERT_TRUE(backend.ok());
  const auto packed = [&](std::span<const RawMatrix> parts) {
    return (*backend)->pack(parts, {.quantise_activations = quantise});
  };
  const auto all = packed(weights.parts());
  ASSERT_TRUE(all.ok());
  std::vector<float> x = cases::random_rows(kMostRows, shape.heads * x_head, 3);
  std::vector<int64_t> rows_of_calls(std::begin(cases::kHeadsRows), std::end(cases::kHeadsRows));
  if (shape.n * k < 4000) rows_of_calls.push_back(kMostRows);
  for (const int64_t rows : rows_of_calls) {
    const int64_t cols = shape.heads * out_head;
    std::vector<float> got(static_cast<size_t>(rows * cols), kUntouched), want = got;
    const Tensor in{x.data(), DType::kF32, rows, shape.heads * x_head, shape.heads * x_head};
    const Tensor out{got.data(), DType::kF32, rows, cols, cols}, apart{want.data(), DType::kF32, rows, cols, cols};
    (*backend)->linear_heads({in, all->get(), shape.heads, shape.n, out});
    for (int64_t h = 0; h < shape.heads; ++h) {
      const RawMatrix raw = weights.heads[static_cast<size_t>(h)].raw();
      const auto one = packed({&raw, 1});
      ASSERT_TRUE(one.ok());
      (*backend)->linear({in.columns(h * x_head, k), one->get(), nullptr, apart.columns(h * out_head, shape.n)});
    }
    ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0)
        << (*backend)->describe() << " " << name(type) << " " << shape.heads << " heads " << shape.n << "x" << k << ", "
        << rows << " rows";
  }
}

TEST(LinearHeads, HaveTheBitsOfALinearForEachHead) {
  for (const cpu::Isa isa : cpu::available_isas()) {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_1, DType::kG4}) {
      for (const cases::HeadsShape& shape : cases::kHeadsShapes) {
        check_shape_of(type, shape, true, isa, 1);
        check_shape_of(type, shape, false, isa, 3);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(LinearHeads, TakeNoRowsAtAll) {
  auto backend = make_cpu_backend({.threads = 1, .isa = {}});
  ASSERT_TRUE(backend.ok());
  const cases::HeadWeights weights(DType::kBF16, {2, 16, 32});
  const auto all = (*backend)->pack(weights.parts(), {});
  ASSERT_TRUE(all.ok());
  (*backend)->linear_heads({{nullptr, DType::kF32, 0, 64, 64}, all->get(), 2, 16, {nullptr, DType::kF32, 0, 32, 32}});
}

}  // namespace
}  // namespace quire
