// SPDX-License-Identifier: Apache-2.0
// lora: panels of sixteen columns, a few rows at a time; ops/lora.h has the order of the sums.
#include "backend/cpu/isa/declare.h"
#include "backend/cpu/lora_plan.h"
#include "backend/cpu/simd.h"

namespace quire::cpu::QUIRE_ISA_NS {
namespace {

// Rows at a time: as many as there are registers for four sums of each.
#if defined(__AVX512F__)
constexpr int kRowsAtOnce = 4, kPanelsAtOnce = 2;
#else
constexpr int kRowsAtOnce = 1, kPanelsAtOnce = 1;
#endif
constexpr int kSums = 4;
// Adapters are read once in a step, so they come from far away: the reads are begun this many bytes ahead.
constexpr int64_t kAhead = 4096;

// Begins to read the cache lines of `bytes` bytes that are kAhead behind `p`.
QUIRE_INLINE void read_ahead(const void* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(p) + kAhead + i, 0, 2);
}

template <typename Stored>
const typename Stored::Type* at(const LoraBlock& block, int64_t offset) {
  return reinterpret_cast<const typename Stored::Type*>(block.slot + offset);
}

// t of kRows rows, sixteen elements from `column` on.
template <typename Stored, int kRows>
void shrink_rows(const LoraArgs& args, const LoraBlock& block, const int64_t* rows, int64_t column) {
  const int64_t k = args.x.cols;
  const typename Stored::Type* a = at<Stored>(block, block.site.a) + column * k;
  const F32x16 scale = load(reinterpret_cast<const float*>(block.slot + block.site.scales) + column);
  const float* x[kRows];
  F32x16 sums[kSums][kRows];
  for (int r = 0; r < kRows; ++r) {
    x[r] = static_cast<const float*>(args.x.data) + rows[r] * args.x.stride;
    for (int i = 0; i < kSums; ++i) sums[i][r] = zero();
  }
  int64_t at_k = 0;
  for (; at_k + kSums <= k; at_k += kSums) {
    read_ahead(a + at_k * kLanes, kSums * kLanes * static_cast<int64_t>(sizeof *a));
    for (int i = 0; i < kSums; ++i) {
      const F32x16 weights = Stored::get(a + (at_k + i) * kLanes);
      for (int r = 0; r < kRows; ++r) sums[i][r] = fma(splat(x[r][at_k + i]), weights, sums[i][r]);
    }
  }
  for (int i = 0; at_k + i < k; ++i) {
    const F32x16 weights = Stored::get(a + (at_k + i) * kLanes);
    for (int r = 0; r < kRows; ++r) sums[i][r] = fma(splat(x[r][at_k + i]), weights, sums[i][r]);
  }
  for (int r = 0; r < kRows; ++r) {
    float* out = static_cast<float*>(args.t.data) + rows[r] * args.t.stride + column;
    store(out, ((sums[0][r] + sums[1][r]) + (sums[2][r] + sums[3][r])) * scale);
  }
}

template <typename Stored>
void look_up(const LoraArgs& args, const LoraBlock& block, int64_t column) {
  const F32x16 scale = load(reinterpret_cast<const float*>(block.slot + block.site.scales) + column);
  for (int64_t i = 0; i < block.count; ++i) {
    const int64_t row = block.rows[i];
    const int64_t token = args.tokens.data()[row];
    const typename Stored::Type* a = at<Stored>(block, block.site.a) + column * args.x.cols + token * kLanes;
    store(static_cast<float*>(args.t.data) + row * args.t.stride + column, Stored::get(a) * scale);
  }
}

template <typename Stored>
void shrink(const LoraArgs& args, const LoraBlock& block, int64_t panel_begin, int64_t panel_end) {
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    if (args.tokens.data() != nullptr) {
      look_up<Stored>(args, block, p * kLanes);
      continue;
    }
    int64_t i = 0;
    for (; i + kRowsAtOnce <= block.count; i += kRowsAtOnce) {
      shrink_rows<Stored, kRowsAtOnce>(args, block, block.rows + i, p * kLanes);
    }
    for (; i < block.count; ++i) shrink_rows<Stored, 1>(args, block, block.rows + i, p * kLanes);
  }
}

// Columns [column, column + n) of kRows rows, whose B is kPanels panels from `b` on. kAheadToo: and the reads of what
// follows are begun, a few of them with each element of t: many at once would keep the loads of these panels waiting.
template <typename Stored, int kRows, int kPanels, bool kAheadToo>
void expand_rows(const LoraArgs& args, const LoraSlice& slice, const typename Stored::Type* b, const int64_t* rows,
                 int64_t column, int64_t n) {
  const float* t[kRows];
  F32x16 sums[kRows][kPanels];
  for (int r = 0; r < kRows; ++r) {
    t[r] = static_cast<const float*>(args.t.data) + rows[r] * args.t.stride + slice.first;
    for (int p = 0; p < kPanels; ++p) sums[r][p] = zero();
  }
  const int64_t panel = slice.rank * kLanes;
  for (int64_t j = 0; j < slice.rank; ++j) {
    constexpr int64_t kStep = kPanels * kLanes;
    if constexpr (kAheadToo) read_ahead(b + j * kStep, kStep * static_cast<int64_t>(sizeof *b));
    F32x16 weights[kPanels];
    for (int p = 0; p < kPanels; ++p) weights[p] = Stored::get(b + p * panel + j * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const F32x16 factor = splat(t[r][j]);
      for (int p = 0; p < kPanels; ++p) sums[r][p] = fma(factor, weights[p], sums[r][p]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) {
      float* out = static_cast<float*>(args.out.data) + rows[r] * args.out.stride + column + p * kLanes;
      const int64_t left = n - p * kLanes;
      if (left >= kLanes) {
        store(out, load(out) + sums[r][p]);
      } else {
        store_n(out, load_n(out, left) + sums[r][p], left);
      }
    }
  }
}

template <typename Stored, int kPanels>
void expand_panels(const LoraArgs& args, const LoraBlock& block, const LoraSlice& slice, int64_t panel) {
  constexpr int kMost = 4;
  const typename Stored::Type* b = at<Stored>(block, slice.b) + panel * kLanes * slice.rank;
  const int64_t column = slice.column + panel * kLanes;
  const int64_t n = slice.n - panel * kLanes;
  int64_t i = 0;
  if (block.count >= kMost) {
    expand_rows<Stored, kMost, kPanels, true>(args, slice, b, block.rows, column, n);
    i = kMost;
  } else {
    expand_rows<Stored, 1, kPanels, true>(args, slice, b, block.rows, column, n);
    i = 1;
  }
  for (; i + kMost <= block.count; i += kMost) {
    expand_rows<Stored, kMost, kPanels, false>(args, slice, b, block.rows + i, column, n);
  }
  for (; i < block.count; ++i) expand_rows<Stored, 1, kPanels, false>(args, slice, b, block.rows + i, column, n);
}

template <typename Stored>
void expand(const LoraArgs& args, const LoraBlock& block, const LoraSlice& slice, int64_t panel_begin,
            int64_t panel_end) {
  int64_t p = panel_begin;
  for (; p + kPanelsAtOnce <= panel_end; p += kPanelsAtOnce)
    expand_panels<Stored, kPanelsAtOnce>(args, block, slice, p);
  for (; p < panel_end; ++p) expand_panels<Stored, 1>(args, block, slice, p);
}

}  // namespace

void lora_shrink(const LoraArgs& args, const LoraBlock& block, int64_t panel_begin, int64_t panel_end) {
  switch (args.memory.dtype) {
    case DType::kF16:
      return shrink<StoredF16>(args, block, panel_begin, panel_end);
    case DType::kBF16:
      return shrink<StoredBF16>(args, block, panel_begin, panel_end);
    default:
      return shrink<StoredF32>(args, block, panel_begin, panel_end);
  }
}

void lora_expand(const LoraArgs& args, const LoraBlock& block, const LoraSlice& slice, int64_t panel_begin,
                 int64_t panel_end) {
  switch (args.memory.dtype) {
    case DType::kF16:
      return expand<StoredF16>(args, block, slice, panel_begin, panel_end);
    case DType::kBF16:
      return expand<StoredBF16>(args, block, slice, panel_begin, panel_end);
    default:
      return expand<StoredF32>(args, block, slice, panel_begin, panel_end);
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
