// SPDX-License-Identifier: Apache-2.0
// Adapters for the tests of lora on all backends, and their oracle in doubles.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "backend/lora_image.h"
#include "backend/testing/scalar_math.h"

namespace quire::cases {

// A linear of K inputs whose output has three matrices with gaps between them, and adapters of it in slots: of
// different ranks, with some of the matrices, with rows of B in another order, and one that leaves the linear alone.
struct LoraCase {
  struct Part {
    int64_t column, n, rank;
    bool shared;  // takes A of the part before
    std::vector<float> a, b;
    std::vector<int32_t> map;
    float scale;
  };
  static constexpr int64_t kSites = 3, kSite = 1, kNone = 3;
  int64_t k, n;
  DType dtype;
  std::vector<std::vector<Part>> adapters;
  std::vector<std::byte> memory;
  int64_t slot_bytes = 0;
  int64_t most_rank = 0;

  LoraCase(int64_t k_in, int64_t n_in, DType dtype_in) : k(k_in), n(n_in), dtype(dtype_in) {
    const int64_t third = n / 3;
    adapters.resize(4);
    adapters[0] = {part(0, third, 1, 10), part(2 * third, third, 16, 20)};
    adapters[1] = {part(0, third, 8, 30), part(third, third, 5, 40), part(2 * third, n - 2 * third, 19, 50)};
    adapters[2] = {part(third, third, 33, 60), part(2 * third, third, 33, 70)};
    adapters[2][1].shared = true;
    adapters[2][1].a = adapters[2][0].a;
    adapters[2][1].scale = adapters[2][0].scale;
    for (int64_t i = 0; i < third; ++i) adapters[2][1].map.push_back(static_cast<int32_t>(third - 1 - i));
    make_memory();
    most_rank = 48;
  }
  // One adapter for each rank, of so many matrices side by side.
  LoraCase(int64_t k_in, int64_t n_in, DType dtype_in, const std::vector<int64_t>& ranks, int64_t matrices)
      : k(k_in), n(n_in), dtype(dtype_in) {
    uint32_t seed = 10;
    for (const int64_t rank : ranks) {
      std::vector<Part>& adapter = adapters.emplace_back();
      for (int64_t i = 0; i < matrices; ++i) {
        const int64_t column = n / matrices * i, end = i + 1 < matrices ? column + n / matrices : n;
        adapter.push_back(part(column, end - column, rank, seed += 2));
      }
      most_rank = std::max(most_rank, lora_padded(matrices * rank));
    }
    make_memory();
  }

  void make_memory() {
    std::vector<std::vector<std::byte>> images;
    for (const std::vector<Part>& adapter : adapters) {
      LoraImage image(kSites, dtype);
      if (!adapter.empty()) {
        std::vector<LoraPart> parts;
        for (const Part& p : adapter) {
          parts.push_back({p.column, p.n, p.rank, p.shared ? std::span<const float>() : p.a, p.b, p.map, p.scale});
        }
        image.add(kSite, k, parts);
      }
      slot_bytes = std::max(slot_bytes, image.bytes());
      images.push_back(image.take());
    }
    memory.resize(static_cast<size_t>(slot_bytes) * images.size());
    for (size_t i = 0; i < images.size(); ++i) {
      std::copy(images[i].begin(), images[i].end(), memory.begin() + static_cast<ptrdiff_t>(i) * slot_bytes);
    }
  }

  Part part(int64_t column, int64_t columns, int64_t rank, uint32_t seed) const {
    Part out{column,
             columns,
             rank,
             false,
             random_floats(rank * k, seed, 1.0f),
             random_floats(columns * rank, seed + 1, 1.0f),
             {},
             0.5f + 0.25f * static_cast<float>(seed % 7)};
    for (std::vector<float>* values : {&out.a, &out.b}) {
      for (float& value : *values) value = rounded(value, dtype);
    }
    return out;
  }

  // y = y + s (x A^T) B^T in doubles; with `size` the same sum of absolute values.
  void add(int slot, const float* x, double* y, double* size) const {
    if (slot < 0) return;
    for (const Part& p : adapters[static_cast<size_t>(slot)]) {
      for (int64_t j = 0; j < p.rank; ++j) {
        double t = 0, absolute = 0;
        for (int64_t i = 0; i < k; ++i) {
          const double product = double{x[i]} * double{p.a[static_cast<size_t>(j * k + i)]};
          t += product;
          absolute += std::abs(product);
        }
        for (int64_t c = 0; c < p.n; ++c) {
          const int64_t row = p.map.empty() ? c : p.map[static_cast<size_t>(c)];
          const double b = double{p.scale} * double{p.b[static_cast<size_t>(row * p.rank + j)]};
          y[p.column + c] += t * b;
          size[p.column + c] += absolute * std::abs(b);
        }
      }
    }
  }
};

// Slots of rows in a random mixture, and the lists that the ops take.
struct LoraMixture {
  std::vector<int32_t> slots_by_row, rows, slots;
  std::vector<LoraRun> runs;
  int64_t num_adapted = 0, num_slots = 4;

  // `num_slots` slots, or none, for each row.
  LoraMixture(int64_t count, uint32_t seed, int64_t num_slots = 4)
      : slots_by_row(static_cast<size_t>(count)), num_slots(num_slots) {
    std::mt19937 random(seed);
    for (int32_t& slot : slots_by_row) slot = static_cast<int32_t>(random() % (num_slots + 1)) - 1;
    sort();
  }
  explicit LoraMixture(std::vector<int32_t> by_row, int64_t num_slots = 4)
      : slots_by_row(std::move(by_row)), num_slots(num_slots) {
    sort();
  }

  LoraRows list(int64_t first = 0) const { return {rows, slots, num_adapted, first, runs}; }

 private:
  void sort() {
    rows.resize(slots_by_row.size());
    std::iota(rows.begin(), rows.end(), 0);
    const auto key = [&](int32_t row) { return static_cast<uint32_t>(slots_by_row[static_cast<size_t>(row)]); };
    std::ranges::stable_sort(rows, {}, key);
    for (const int32_t row : rows) slots.push_back(slots_by_row[static_cast<size_t>(row)]);
    num_adapted = std::ranges::count_if(slots, [](int32_t slot) { return slot >= 0; });
    runs = list_lora_runs(slots, num_slots);
  }
};

}  // namespace quire::cases
