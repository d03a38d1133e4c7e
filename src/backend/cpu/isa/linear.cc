// SPDX-License-Identifier: Apache-2.0
// linear with float activations: plain weights, and quantised weights that are expanded block by block.
//
// One register tile for all: R rows x P panels of accumulators, one fma chain per output in k order. The choice of R
// and P changes no bit. With few rows more panels run side by side, since one chain alone would wait for its own
// latency.
#include "backend/cpu/isa/linear_values.h"

namespace quire::cpu::QUIRE_ISA_NS {

namespace {

// Rows of the tile with one and two panels: what the registers hold.
#if defined(__AVX512F__)
constexpr int kRowsOfOne = 16;
constexpr int kRowsOfTwo = 12;
#elif defined(__AVX2__) || defined(__aarch64__)
constexpr int kRowsOfOne = 6;
constexpr int kRowsOfTwo = 2;
#else
constexpr int kRowsOfOne = 1;
constexpr int kRowsOfTwo = 1;
#endif

// Rows times a stretch of k: acc[r][p] goes on from what is there.
template <typename Stored, int kRows, int kPanels>
QUIRE_INLINE void tile(const float* x, int64_t x_stride, const typename Stored::Type* const* w, int64_t k,
                       F32x16 (&acc)[kRows][kPanels]) {
  for (int64_t i = 0; i < k; ++i) {
    F32x16 values[kPanels];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) values[p] = Stored::get(w[p] + i * kPanel);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const F32x16 xs = splat(x[r * x_stride + i]);
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) acc[r][p] = fma(xs, values[p], acc[r][p]);
    }
  }
}

QUIRE_INLINE void put_row(const PackedView& w, const LinearArgs& args, int64_t row, int64_t panel, F32x16 acc) {
  const int64_t columns = w.n - panel * kPanel < kPanel ? w.n - panel * kPanel : kPanel;
  float* y = static_cast<float*>(args.out.data) + row * args.out.stride + panel * kPanel;
  store_n(y, args.bias == nullptr ? acc : acc + load_n(args.bias + panel * kPanel, columns), columns);
}

template <typename Stored, int kRows, int kPanels>
static __attribute__((noinline)) void plain_tile(const PackedView& w, const LinearArgs& args, int64_t row,
                                                 int64_t panel) {
  const float* x = static_cast<const float*>(args.x.data) + row * args.x.stride;
  const typename Stored::Type* values[kPanels];
  for (int p = 0; p < kPanels; ++p) {
    values[p] = reinterpret_cast<const typename Stored::Type*>(w.data + (panel + p) * w.panel_stride);
  }
  F32x16 acc[kRows][kPanels];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) acc[r][p] = zero();
  }
  tile<Stored, kRows, kPanels>(x, args.x.stride, values, w.k, acc);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) put_row(w, args, row + r, panel + p, acc[r][p]);
  }
}

// All rows of kPanels panels.
template <typename Stored, int kPanels, int kMostRows>
void plain_rows(const PackedView& w, const LinearArgs& args, int64_t row, int64_t row_end, int64_t panel) {
  for (; row + kMostRows <= row_end; row += kMostRows) plain_tile<Stored, kMostRows, kPanels>(w, args, row, panel);
  if constexpr (kMostRows > 4) {
    for (; row + 4 <= row_end; row += 4) plain_tile<Stored, 4, kPanels>(w, args, row, panel);
  }
  if constexpr (kMostRows > 1) {
    for (; row < row_end; ++row) plain_tile<Stored, 1, kPanels>(w, args, row, panel);
  }
}

// One or two rows: as many panels side by side as keep the fma units busy.
constexpr int64_t kFewRows = 2;
constexpr int kPanelsOfFew = 4;

template <typename Stored>
void plain_panels(const PackedView& w, const LinearArgs& args, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                  int64_t panel_end) {
  int64_t p = panel_begin;
  if (row_end - row_begin <= kFewRows) {
    for (; p + kPanelsOfFew <= panel_end; p += kPanelsOfFew) {
      plain_rows<Stored, kPanelsOfFew, 1>(w, args, row_begin, row_end, p);
    }
  }
  for (; p + 2 <= panel_end; p += 2) plain_rows<Stored, 2, kRowsOfTwo>(w, args, row_begin, row_end, p);
  for (; p < panel_end; ++p) plain_rows<Stored, 1, kRowsOfOne>(w, args, row_begin, row_end, p);
}

// Rows whose accumulators wait in L1 while a block is expanded once for all of them.
constexpr int64_t kExpandRows = 64;

template <int kRows>
QUIRE_INLINE void expanded_tile(const float* x, int64_t x_stride, const float* values, float (*sums)[kPanel]) {
  F32x16 acc[kRows][1];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) acc[r][0] = load(sums[r]);
  tile<StoredF32, kRows, 1>(x, x_stride, &values, kBlock, acc);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) store(sums[r], acc[r][0]);
}

template <DType kType>
void dequantised_panels(const PackedView& w, const LinearArgs& args, int64_t row_begin, int64_t row_end,
                        int64_t panel_begin, int64_t panel_end) {
  alignas(64) float values[kBlock * kPanel];
  alignas(64) float sums[kExpandRows][kPanel];
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    for (int64_t row = row_begin; row < row_end; row += kExpandRows) {
      const int64_t rows = row_end - row < kExpandRows ? row_end - row : kExpandRows;
      for (int64_t r = 0; r < rows; ++r) store(sums[r], zero());
      for (int64_t b = 0; b < w.k / kBlock; ++b) {
        block_values<kType>(w, w.data + p * w.panel_stride, b, values);
        const float* x = static_cast<const float*>(args.x.data) + row * args.x.stride + b * kBlock;
        int64_t r = 0;
        for (; r + kRowsOfOne <= rows; r += kRowsOfOne) {
          expanded_tile<kRowsOfOne>(x + r * args.x.stride, args.x.stride, values, sums + r);
        }
        for (; r < rows; ++r) expanded_tile<1>(x + r * args.x.stride, args.x.stride, values, sums + r);
      }
      for (int64_t r = 0; r < rows; ++r) put_row(w, args, row + r, p, load(sums[r]));
    }
  }
}

}  // namespace

void linear_plain(const PackedView& w, const LinearArgs& args, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                  int64_t panel_end) {
  switch (w.dtype) {
    case DType::kF32:
      return plain_panels<StoredF32>(w, args, row_begin, row_end, panel_begin, panel_end);
    case DType::kF16:
      return plain_panels<StoredF16>(w, args, row_begin, row_end, panel_begin, panel_end);
    default:
      return plain_panels<StoredBF16>(w, args, row_begin, row_end, panel_begin, panel_end);
  }
}

void linear_dequantised(const PackedView& w, const LinearArgs& args, int64_t row_begin, int64_t row_end,
                        int64_t panel_begin, int64_t panel_end, void* scratch) {
  (void)scratch;
  QUIRE_DISPATCH_QUANT(w.dtype, dequantised_panels, w, args, row_begin, row_end, panel_begin, panel_end)
}

}  // namespace quire::cpu::QUIRE_ISA_NS
