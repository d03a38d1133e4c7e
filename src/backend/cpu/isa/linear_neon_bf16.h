// SPDX-License-Identifier: Apache-2.0
// BF16 weights with bfmmla: two rows x two columns x 4 k per instruction, one chain per output, K ascending.
//
// Activations, rounded to bf16 and padded with zeros to whole blocks: up to two rows as [4 k][2 rows][4 k], more in
// tiles of eight rows, [4 k][row pair][2 rows][4 k]. Rows past the last hold anything: a row's sums depend on that row
// alone. A single row uses the same instruction and leaves the second row idle.
#pragma once

#include "backend/cpu/isa/linear_neon.h"
#include "base/math.h"

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

namespace quire::cpu::QUIRE_ISA_NS {

constexpr int64_t kBf16RowBlock = 64;        // rows whose activations stay in L2
constexpr int kWeightStep = 4 * kPanel * 2;  // bytes of a panel's 4 k

QUIRE_NEON_INLINE int64_t bf16_steps(const PackedView& w) {
  return (w.k + kBlock - 1) / kBlock * (kBlock / 4);
}
QUIRE_NEON_INLINE int64_t x_step_bytes(int64_t rows) {
  return rows <= 2 ? 16 : 64;
}

static inline int64_t rounded_bytes(const PackedView& w, int64_t rows) {
  return ceil_div(rows, kTileRows) * bf16_steps(w) * x_step_bytes(rows);
}

static inline void round_rows(const Tensor& x, const PackedView& w, int64_t row_begin, int64_t row_end,
                              const PreparedRows& out) {
  const int64_t step_bytes = x_step_bytes(out.rows);
  const int64_t steps = bf16_steps(w);
  if (out.rows == 1) std::memset(out.data, 0, static_cast<size_t>(steps * step_bytes));
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* from = static_cast<const float*>(x.data) + row * x.stride;
    auto* to = reinterpret_cast<uint8_t*>(out.data) + row / kTileRows * steps * step_bytes + row % kTileRows * 8;
    const int64_t whole = w.k / 4;
    for (int64_t s = 0; s < whole; ++s) {
      vst1_bf16(reinterpret_cast<bfloat16_t*>(to + s * step_bytes), vcvt_bf16_f32(vld1q_f32(from + 4 * s)));
    }
    for (int64_t s = whole; s < steps; ++s) {
      float rest[4] = {0, 0, 0, 0};
      for (int64_t i = 0; 4 * s + i < w.k && i < 4; ++i) rest[i] = from[4 * s + i];
      vst1_bf16(reinterpret_cast<bfloat16_t*>(to + s * step_bytes), vcvt_bf16_f32(vld1q_f32(rest)));
    }
  }
}

QUIRE_NEON_INLINE bfloat16x8_t load_pair(const uint8_t* p) {
  return vreinterpretq_bf16_u8(vld1q_u8(p));
}

// One or two row pairs times one panel, straight through memory.
template <int kRows>
static __attribute__((noinline)) void few_rows_times_panel(const uint8_t* x, int64_t x_step, const uint8_t* w,
                                                           int64_t steps, const Output& out, int64_t row, int64_t rows,
                                                           int64_t column) {
  float32x4_t acc[kRows][8];
  for (int i = 0; i < 8 * kRows; ++i) acc[i / 8][i % 8] = vdupq_n_f32(0);
#pragma GCC unroll 2
  for (int64_t s = 0; s < steps; ++s, x += x_step, w += kWeightStep) {
    __builtin_prefetch(w + 2048);
    __builtin_prefetch(w + 2048 + 64);
    bfloat16x8_t xs[kRows];
    for (int r = 0; r < kRows; ++r) xs[r] = load_pair(x + 16 * r);
#pragma GCC unroll 8
    for (int c = 0; c < 8; ++c) {
      const bfloat16x8_t columns = load_pair(w + 16 * c);
      for (int r = 0; r < kRows; ++r) acc[r][c] = vbfmmlaq_f32(acc[r][c], xs[r], columns);
    }
  }
  for (int r = 0; r < kRows && 2 * r < rows; ++r) {
    for (int c = 0; c < 8; c += 2) {
      put_pair(out, row + 2 * r, rows - 2 * r, column + 2 * c, acc[r][c], acc[r][c + 1]);
    }
  }
}

// Four row pairs times six or four column pairs in assembly: g++ spills what intrinsics keep in 28 registers. Sums are
// v0..v23, four row pairs a column pair; x in v24..v27; column pairs come by twos from the pointers w0, w1, w2.
#define QUIRE_BFMMLA(sum, x, w) "bfmmla v" #sum ".4s, v" #x ".8h, v" #w ".8h\n"
#define QUIRE_TWO_PAIRS(pointer, offset, a, b, s0, s1, s2, s3, s4, s5, s6, s7)                              \
  "ldp q" #a ", q" #b ", [%[" #pointer "], #" #offset "]\n" QUIRE_BFMMLA(s0, 24, a) QUIRE_BFMMLA(s1, 25, a) \
      QUIRE_BFMMLA(s2, 26, a) QUIRE_BFMMLA(s3, 27, a) QUIRE_BFMMLA(s4, 24, b) QUIRE_BFMMLA(s5, 25, b)       \
          QUIRE_BFMMLA(s6, 26, b) QUIRE_BFMMLA(s7, 27, b)
#define QUIRE_EIGHT_ROWS(offset)    \
  "ldp q24, q25, [%[x], #(" #offset \
  ")]\n"                            \
  "ldp q26, q27, [%[x], #(" #offset "+32)]\n"
#define QUIRE_STEP_8X8(x, w) \
  QUIRE_EIGHT_ROWS(x)        \
  QUIRE_TWO_PAIRS(w0, w, 28, 29, 0, 1, 2, 3, 4, 5, 6, 7) QUIRE_TWO_PAIRS(w1, w, 30, 31, 8, 9, 10, 11, 12, 13, 14, 15)
#define QUIRE_STEP_8X12(x, w) QUIRE_STEP_8X8(x, w) QUIRE_TWO_PAIRS(w2, w, 28, 29, 16, 17, 18, 19, 20, 21, 22, 23)
#define QUIRE_BF16_TILE(step, store, moves) \
  __asm__ volatile(                                                                                                 \
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\nmovi v\\r\\().4s, #0\n.endr\n"         \
      "1:\n" step(0, 0) step(64, 128) step(128, 256) step(192, 384) "add %[x], %[x], #256\n"                        \
      "add %[w0], %[w0], #512\nadd %[w1], %[w1], #512\n" moves                                                      \
      "subs %[steps], %[steps], #4\nb.ne 1b\n" store                                                                \
      : [x] "+r"(x), [steps] "+r"(steps), [w0] "+r"(w0), [w1] "+r"(w1), [w2] "+r"(w2)                               \
      : [out] "r"(out)                                                                                              \
      : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13",     \
        "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28",    \
        "v29", "v30", "v31")
#define QUIRE_STORE_16                                                                    \
  "stp q0, q1, [%[out]]\nstp q2, q3, [%[out], #32]\nstp q4, q5, [%[out], #64]\n"          \
  "stp q6, q7, [%[out], #96]\nstp q8, q9, [%[out], #128]\nstp q10, q11, [%[out], #160]\n" \
  "stp q12, q13, [%[out], #192]\nstp q14, q15, [%[out], #224]\n"
#define QUIRE_STORE_24                                                                         \
  QUIRE_STORE_16                                                                               \
  "stp q16, q17, [%[out], #256]\nstp q18, q19, [%[out], #288]\nstp q20, q21, [%[out], #320]\n" \
  "stp q22, q23, [%[out], #352]\n"

// kPairs column pairs; w: where each two of them begin. Puts rows to y.
template <int kPairs>
static __attribute__((noinline)) void bf16_tile(const uint8_t* x, const uint8_t* w0, const uint8_t* w1,
                                                const uint8_t* w2, int64_t steps, const Output& to, int64_t row,
                                                int64_t rows, int64_t column) {
  float out[kPairs][4][4];
  if constexpr (kPairs == 6) {
    QUIRE_BF16_TILE(QUIRE_STEP_8X12, QUIRE_STORE_24, "add %[w2], %[w2], #512\n");
  } else {
    QUIRE_BF16_TILE(QUIRE_STEP_8X8, QUIRE_STORE_16, "");
  }
  for (int r = 0; r < 4 && 2 * r < rows; ++r) {
    for (int c = 0; c < kPairs; c += 2) {
      put_pair(to, row + 2 * r, rows - 2 * r, column + 2 * c, vld1q_f32(out[c][r]), vld1q_f32(out[c + 1][r]));
    }
  }
}

// A block of rows times one or two panels: 32 columns are 12, 12 and 8, sixteen are 8 and 8. x: tiles of eight rows.
static inline void rows_times_panels(const uint8_t* x, const uint8_t* w, int64_t panel_stride, bool two, int64_t steps,
                                     const Output& out, int64_t row_begin, int64_t row_end, int64_t column) {
  const uint8_t* next = w + panel_stride;
  for (int part = 0; part < (two ? 3 : 2); ++part) {
    const uint8_t* tile = x;
    for (int64_t row = row_begin; row < row_end; row += kTileRows, tile += steps * x_step_bytes(kTileRows)) {
      const int64_t rows = row_end - row < kTileRows ? row_end - row : kTileRows;
      if (!two) {
        bf16_tile<4>(tile, w + 64 * part, w + 64 * part + 32, nullptr, steps, out, row, rows, column + 8 * part);
      } else if (part == 0) {
        bf16_tile<6>(tile, w, w + 32, w + 64, steps, out, row, rows, column);
      } else if (part == 1) {
        bf16_tile<6>(tile, w + 96, next, next + 32, steps, out, row, rows, column + 12);
      } else {
        bf16_tile<4>(tile, next + 64, next + 96, nullptr, steps, out, row, rows, column + 24);
      }
    }
  }
}

static inline void multiply_rounded(const PreparedRows& prepared, const PackedView& w, const Output& out,
                                    int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end) {
  const int64_t steps = bf16_steps(w);
  const int64_t x_step = x_step_bytes(prepared.rows);
  const auto* x = reinterpret_cast<const uint8_t*>(prepared.data);
  for (int64_t first = row_begin; first < row_end; first += kBf16RowBlock) {
    const int64_t end = row_end < first + kBf16RowBlock ? row_end : first + kBf16RowBlock;
    const int64_t rest = (end - first) % kTileRows;  // up to four of them go in narrower tiles
    const int64_t tiles_end = rest <= 4 ? end - rest : end;
    for (int64_t p = panel_begin; p < panel_end; p += 2) {
      const bool two = p + 1 < panel_end;
      if (first < tiles_end) {
        rows_times_panels(x + first / kTileRows * steps * x_step, w.panel(p), w.panel_stride, two, steps, out, first,
                          tiles_end, p * kPanel);
      }
      if (tiles_end == end) continue;
      const uint8_t* tile = x + tiles_end / kTileRows * steps * x_step;
      for (int64_t q = p; q < p + (two ? 2 : 1); ++q) {
        if (rest <= 2) {
          few_rows_times_panel<1>(tile, x_step, w.panel(q), steps, out, tiles_end, rest, q * kPanel);
        } else {
          few_rows_times_panel<2>(tile, x_step, w.panel(q), steps, out, tiles_end, rest, q * kPanel);
        }
      }
    }
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS

#endif
