// SPDX-License-Identifier: Apache-2.0
// linear with NEON's dot products: 8-bit activations in blocks of 32; the contract is in ops/linear.h.
//
// One row streams through the packed weight with sdot and waits for memory. For more rows a panel is unpacked once into
// a scratch in L1 and multiplied in tiles of eight rows x four columns; few rows in wider tiles of fewer rows.
#include "backend/cpu/isa/linear_neon.h"

#include "backend/cpu/isa/linear_neon_bf16.h"
#include "backend/cpu/isa/linear_neon_tile.h"
#include "base/math.h"

namespace quire::cpu::QUIRE_ISA_NS {

namespace {

// Rows whose activations stay in L2 while all panels at hand pass by.
constexpr int64_t kRowBlock = 128;

// ---- Activations ----

constexpr float kLargestCode = 127.0f;
constexpr uint32_t kTinyBits = 0x0D800000;      // 2^-100: below it a block counts as zero
constexpr uint32_t kInfinityBits = 0x7F800000;  // this and above: an infinity or a NaN in the block
constexpr uint32_t kNanBits = 0x7FC00000;

struct BlockCodes {
  int8x16_t low, high;  // k 0 to 15 and 16 to 31
  int32_t low_sum, high_sum;
  float sa;
};

QUIRE_NEON_INLINE int8x16_t narrow(int32x4_t a, int32x4_t b, int32x4_t c, int32x4_t d) {
  const int16x8_t ab = vuzp1q_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b));
  const int16x8_t cd = vuzp1q_s16(vreinterpretq_s16_s32(c), vreinterpretq_s16_s32(d));
  return vuzp1q_s8(vreinterpretq_s8_s16(ab), vreinterpretq_s8_s16(cd));
}

QUIRE_NEON_INLINE BlockCodes quantise_block(const float* x) {
  float32x4_t v[8];
  uint32x4_t most4 = vdupq_n_u32(0);
  for (int i = 0; i < 8; ++i) {
    v[i] = vld1q_f32(x + 4 * i);
    most4 = vmaxq_u32(most4, vreinterpretq_u32_f32(vabsq_f32(v[i])));  // ordered as the floats are
  }
  const uint32_t most = vmaxvq_u32(most4);
  BlockCodes out = {vdupq_n_s8(0), vdupq_n_s8(0), 0, 0, 0.0f};
  if (most >= kTinyBits && most < kInfinityBits) {
    float amax;
    std::memcpy(&amax, &most, sizeof amax);
    out.sa = amax / kLargestCode;
    const float inverse = kLargestCode / amax;
    int32x4_t q[8];
    for (int i = 0; i < 8; ++i) q[i] = vcvtnq_s32_f32(vmulq_n_f32(v[i], inverse));
    out.low = narrow(q[0], q[1], q[2], q[3]);
    out.high = narrow(q[4], q[5], q[6], q[7]);
    out.low_sum = vaddvq_s32(vdotq_s32(vdupq_n_s32(0), out.low, vdupq_n_s8(1)));
    out.high_sum = vaddvq_s32(vdotq_s32(vdupq_n_s32(0), out.high, vdupq_n_s8(1)));
  } else if (most >= kInfinityBits) {
    std::memcpy(&out.sa, &kNanBits, sizeof out.sa);
  }
  return out;
}

void quantise_one_row(const float* x, int64_t blocks, OneRowBlock* out) {
  for (int64_t b = 0; b < blocks; ++b, x += kBlock, ++out) {
    const BlockCodes c = quantise_block(x);
    vst1q_s8(out->codes[0], vcombine_s8(vget_low_s8(c.low), vget_low_s8(c.low)));
    vst1q_s8(out->codes[1], vcombine_s8(vget_high_s8(c.low), vget_high_s8(c.low)));
    vst1q_s8(out->codes[2], vcombine_s8(vget_low_s8(c.high), vget_low_s8(c.high)));
    vst1q_s8(out->codes[3], vcombine_s8(vget_high_s8(c.high), vget_high_s8(c.high)));
    out->sa = c.sa;
    out->scaled_sum = c.sa * static_cast<float>(c.low_sum + c.high_sum);
    out->sums[0] = c.low_sum;
    out->sums[1] = c.high_sum;
  }
}

template <typename T>
QUIRE_NEON_INLINE void put_twice(uint8_t* p, T value) {
  const T both[2] = {value, value};
  std::memcpy(p, both, sizeof both);
}

// Row r of a tile.
void quantise_tile_row(const float* x, QuantFormat f, int64_t blocks, uint8_t* tile, int r) {
  const int vectors = x_scale_vectors(f);
  uint8_t* codes = tile + x_scale_bytes(f) + r / 2 * 16 + r % 2 * 8;
  const int64_t scales = kXCodeBytes + r / 2 * 16 * (vectors - 1);  // from this row's codes on
  for (int64_t b = 0; b < blocks; ++b, x += kBlock, codes += kXCodeBytes + x_scale_bytes(f)) {
    const BlockCodes c = quantise_block(x);
    vst1_s8(reinterpret_cast<int8_t*>(codes), vget_low_s8(c.low));
    vst1_s8(reinterpret_cast<int8_t*>(codes + 64), vget_high_s8(c.low));
    vst1_s8(reinterpret_cast<int8_t*>(codes + 128), vget_low_s8(c.high));
    vst1_s8(reinterpret_cast<int8_t*>(codes + 192), vget_high_s8(c.high));
    put_twice(codes + scales, c.sa);
    if (vectors == 2) {
      put_twice(codes + scales + 16, c.sa * static_cast<float>(c.low_sum + c.high_sum));
    } else if (vectors == 3) {
      put_twice(codes + scales + 16, c.low_sum);
      put_twice(codes + scales + 32, c.high_sum);
    }
  }
}

// ---- One row ----

// Weights are fetched this far ahead of their use.
constexpr int64_t kAhead = 2048;

// Dots of a quad's codes, steps [from, to), with one row: four columns.
QUIRE_NEON_INLINE int32x4_t dot_steps(const int8x16_t (&codes)[8], const OneRowBlock& x, int from, int to) {
  int32x4_t left = fresh_zero();
  int32x4_t right = fresh_zero();
  for (int s = from; s < to; ++s) {
    const int8x16_t xs = vld1q_s8(x.codes[s]);
    left = vdotq_s32(left, codes[2 * s], xs);
    right = vdotq_s32(right, codes[2 * s + 1], xs);
  }
  return vpaddq_s32(left, right);
}

template <DType kType>
QUIRE_NEON_INLINE float32x4_t add_row_block(float32x4_t acc, const uint8_t* planes, const OneRowBlock& x,
                                            const HalfScales& s, int q) {
  constexpr QuantFormat kFormat = quant_format(kType);
  int8x16_t codes[8];
  unpack_quad<kType>(planes, codes);
  int32x4_t dots;
  if constexpr (has_halves(kFormat)) {
    dots = vmulq_s32(dot_steps(codes, x, 0, 2), s.sc[0][q]);
    dots = vmlaq_s32(dots, dot_steps(codes, x, 2, 4), s.sc[1][q]);
  } else {
    dots = dot_steps(codes, x, 0, 4);
  }
  acc = vfmaq_f32(acc, dots_to_float<kType>(dots), vmulq_n_f32(s.sw[q], x.sa));
  if constexpr (kFormat.scheme == Scheme::kSubScaleMin) {
    const int32x4_t sum = vmlaq_n_s32(vmulq_n_s32(s.mn[0][q], x.sums[0]), s.mn[1][q], x.sums[1]);
    acc = vfmaq_f32(acc, s.wm[q], vmulq_n_f32(vcvtq_f32_s32(sum), x.sa));
  } else if constexpr (has_min(kFormat)) {
    acc = vfmaq_n_f32(acc, s.wm[q], x.scaled_sum);
  }
  return acc;
}

// Half a panel at a time: codes are read as they lie in memory, from the first panel's to the last one's, and there are
// two chains of sums. Scales stand behind a panel's codes; those of the next panel are fetched during the second half.
template <DType kType>
void one_row(const OneRowBlock* x, const PackedView& w, const Output& out, int64_t panel_begin, int64_t panel_end) {
  constexpr QuantFormat kFormat = quant_format(kType);
  constexpr int kQuadBytes = code_bytes(kFormat) / 4;
  const int64_t blocks = w.k / kBlock;
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    const uint8_t* codes = w.panel(p);
    const uint8_t* scales = codes + w.scale_offset;
    for (int half = 0; half < 2; ++half) {
      float32x4_t acc[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
      const uint8_t* soon = scales + half * w.panel_stride;
      for (int64_t b = 0; b < blocks; ++b, codes += 2 * kQuadBytes) {
        for (int i = 0; i < 2 * kQuadBytes; i += 64) __builtin_prefetch(codes + kAhead + i);
        __builtin_prefetch(soon + (b * (scale_bytes(kFormat) / scale_group(kFormat)) >> w.group_shift));
        const HalfScales s = load_half_scales<kType>(scales, b, half, w.group_shift);
        acc[0] = add_row_block<kType>(acc[0], codes, x[b], s, 0);
        acc[1] = add_row_block<kType>(acc[1], codes + kQuadBytes, x[b], s, 1);
      }
      const int64_t column = p * kPanel + half * 8;
      if (column < out.columns) put_quad(out, 0, column, acc[0]);
      if (column + 4 < out.columns) put_quad(out, 0, column + 4, acc[1]);
    }
  }
}

// ---- Many rows ----

// A prepared panel: codes [half][block][quad][step][pair], 128 bytes per quad; scales [quad], a record of zeros and
// then one per block: sw of both pairs, {c0 c1 c0 c1} each, and likewise wm, sc of both halves, mn of both halves, as
// there are.
struct ReadyPanel {
  const uint8_t* codes;
  uint8_t* scales;
};

constexpr int kReadyCodes = 128;
constexpr int ready_scale_bytes(QuantFormat f) {
  return 32 * (1 + (has_min(f) ? 1 : 0) + (has_halves(f) ? 2 : 0) + (f.scheme == Scheme::kSubScaleMin ? 2 : 0));
}
static_assert(kQuads * (kReadyCodes + ready_scale_bytes(quant_format(DType::kQ2_K))) <= kReadyBlockBytes);

QUIRE_NEON_INLINE void put_pairs(uint8_t* to, float32x4_t v) {
  auto* p = reinterpret_cast<float*>(to);
  vst1q_f32(p, vcombine_f32(vget_low_f32(v), vget_low_f32(v)));
  vst1q_f32(p + 4, vcombine_f32(vget_high_f32(v), vget_high_f32(v)));
}
QUIRE_NEON_INLINE void put_pairs(uint8_t* to, int32x4_t v) {
  put_pairs(to, vreinterpretq_f32_s32(v));
}

// Prefetches the next panel, which follows this one in memory.
template <DType kType>
ReadyPanel make_ready(const PackedView& w, int64_t panel, uint8_t* scratch) {
  constexpr QuantFormat kFormat = quant_format(kType);
  constexpr int kQuadBytes = code_bytes(kFormat) / 4;
  constexpr int kScaleBytes = ready_scale_bytes(kFormat);
  constexpr bool kAsTheyAre = kFormat.low_bits == 8;
  const int64_t blocks = w.k / kBlock;
  const uint8_t* from = w.panel(panel);
  const ReadyPanel out = {kAsTheyAre ? from : scratch, scratch + (kAsTheyAre ? 0 : kQuads * blocks * kReadyCodes)};
  const int64_t quad = (blocks + 1) * kScaleBytes;
  for (int q = 0; q < kQuads; ++q) std::memset(out.scales + q * quad, 0, kScaleBytes);
  for (int64_t b = 0; b < blocks; ++b) {
    for (int i = 0; i < code_bytes(kFormat) + 64; i += 64) {
      __builtin_prefetch(from + w.panel_stride + b * (w.panel_stride / blocks) + i, 0, 2);
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const HalfScales s = load_half_scales<kType>(from + w.scale_offset, b, half, w.group_shift);
#pragma GCC unroll 2
      for (int q = 0; q < 2; ++q) {
        if constexpr (!kAsTheyAre) {
          const int64_t at = (half * blocks + b) * 2 + q;
          int8x16_t c[8];
          unpack_quad<kType>(from + at * kQuadBytes, c);
          for (int i = 0; i < 8; ++i) vst1q_s8(reinterpret_cast<int8_t*>(scratch) + at * kReadyCodes + 16 * i, c[i]);
        }
        uint8_t* to = out.scales + (2 * half + q) * quad + (b + 1) * kScaleBytes;
        put_pairs(to, s.sw[q]);
        if constexpr (has_min(kFormat)) put_pairs(to + 32, s.wm[q]);
        if constexpr (has_halves(kFormat)) {
          constexpr int kAt = has_min(kFormat) ? 64 : 32;
          put_pairs(to + kAt, s.sc[0][q]);
          put_pairs(to + kAt + 32, s.sc[1][q]);
        }
        if constexpr (kFormat.scheme == Scheme::kSubScaleMin) {
          put_pairs(to + 128, s.mn[0][q]);
          put_pairs(to + 160, s.mn[1][q]);
        }
      }
    }
  }
  return out;
}

// Dots of two rows with two columns, {r0c0 r0c1 r1c0 r1c1}.
#if defined(__ARM_FEATURE_MATMUL_INT8)
struct PairDots {
  int32x4_t sum = fresh_zero();
  QUIRE_NEON_MEMBER void add(int8x16_t x, int8x16_t w) { sum = vmmlaq_s32(sum, x, w); }
  QUIRE_NEON_MEMBER int32x4_t total() const { return sum; }
};
#else
struct PairDots {
  int32x4_t first = fresh_zero();
  int32x4_t second = fresh_zero();
  QUIRE_NEON_MEMBER void add(int8x16_t x, int8x16_t w) {
    const int64x2_t rows = vreinterpretq_s64_s8(x);
    first = vdotq_s32(first, w, vreinterpretq_s8_s64(vdupq_laneq_s64(rows, 0)));
    second = vdotq_s32(second, w, vreinterpretq_s8_s64(vdupq_laneq_s64(rows, 1)));
  }
  QUIRE_NEON_MEMBER int32x4_t total() const { return vpaddq_s32(first, second); }
};
#endif

QUIRE_NEON_INLINE int8x16_t load_codes(const uint8_t* p) {
  return vreinterpretq_s8_u8(vld1q_u8(p));
}
QUIRE_NEON_INLINE float32x4_t load_floats(const uint8_t* p) {
  return vreinterpretq_f32_u8(vld1q_u8(p));
}
QUIRE_NEON_INLINE int32x4_t load_integers(const uint8_t* p) {
  return vreinterpretq_s32_u8(vld1q_u8(p));
}

// One block of kRows row pairs x kPairs column pairs (two a quad) added to acc.
template <DType kType, int kRows, int kPairs>
QUIRE_NEON_INLINE void add_block(const uint8_t* x, const uint8_t* codes, int64_t code_half, const uint8_t* scales,
                                 int64_t scale_quad, float32x4_t (&acc)[kRows][kPairs]) {
  constexpr QuantFormat kFormat = quant_format(kType);
  constexpr int kHalves = has_halves(kFormat) ? 2 : 1;
  int32x4_t dots[kRows][kPairs];
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h) {
    PairDots part[kRows][kPairs];
#pragma GCC unroll 4
    for (int s = 4 / kHalves * h; s < 4 / kHalves * (h + 1); ++s) {
#pragma GCC unroll 8
      for (int c = 0; c < kPairs; ++c) {
        const int8x16_t w = load_codes(codes + c / 4 * code_half + c / 2 % 2 * kReadyCodes + 32 * s + 16 * (c % 2));
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) part[r][c].add(load_codes(x + 64 * s + 16 * r), w);
      }
    }
#pragma GCC unroll 8
    for (int c = 0; c < kPairs; ++c) {
      constexpr int kAt = has_min(kFormat) ? 64 : 32;
      int32x4_t sc = vdupq_n_s32(1);
      if constexpr (kHalves == 2) sc = load_integers(scales + c / 2 * scale_quad + kAt + 32 * h + 16 * (c % 2));
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const int32x4_t sum = part[r][c].total();
        if constexpr (kHalves == 1) {
          dots[r][c] = sum;
        } else {
          dots[r][c] = h == 0 ? vmulq_s32(sum, sc) : vmlaq_s32(dots[r][c], sum, sc);
        }
      }
    }
  }
  constexpr int kVectors = x_scale_vectors(kFormat);
#pragma GCC unroll 8
  for (int c = 0; c < kPairs; ++c) {
    const uint8_t* of = scales + c / 2 * scale_quad + 16 * (c % 2);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const uint8_t* row = x + kXCodeBytes + 16 * kVectors * r;
      const float32x4_t sa = load_floats(row);
      acc[r][c] = vfmaq_f32(acc[r][c], dots_to_float<kType>(dots[r][c]), vmulq_f32(sa, load_floats(of)));
      if constexpr (kFormat.scheme == Scheme::kSubScaleMin) {
        const int32x4_t sum = vmlaq_s32(vmulq_s32(load_integers(of + 128), load_integers(row + 16)),
                                        load_integers(of + 160), load_integers(row + 32));
        acc[r][c] = vfmaq_f32(acc[r][c], load_floats(of + 32), vmulq_f32(sa, vcvtq_f32_s32(sum)));
      } else if constexpr (has_min(kFormat)) {
        acc[r][c] = vfmaq_f32(acc[r][c], load_floats(of + 32), load_floats(row + 16));
      }
    }
  }
}

// A tile of rows times a ready panel, kRows row pairs and kPairs column pairs at a time.
template <DType kType, int kRows, int kPairs>
static __attribute__((noinline)) void tile_times_panel(const uint8_t* tile, const ReadyPanel& panel, int64_t blocks,
                                                       const Output& out, int64_t row, int64_t rows, int64_t column) {
  constexpr QuantFormat kFormat = quant_format(kType);
  constexpr int kScaleBytes = ready_scale_bytes(kFormat);
  const int64_t code_half = blocks * 2 * kReadyCodes;
  const int64_t scale_quad = (blocks + 1) * kScaleBytes;
  for (int q = 0; q < kQuads; q += kPairs / 2) {
    const uint8_t* x = tile + x_scale_bytes(kFormat);
    const uint8_t* codes = panel.codes + q / 2 * code_half + q % 2 * kReadyCodes;
    const uint8_t* scales = panel.scales + q * scale_quad;
    float32x4_t acc[kRows][kPairs];
#if defined(__ARM_FEATURE_MATMUL_INT8)
    if constexpr (kRows == 4 && kPairs == 2 && !has_halves(kFormat)) {
      float sums[kRows * kPairs][4];
      multiply_tile<has_min(kFormat), kTimes16<kType>>(x, codes, scales, blocks, sums[0]);
      for (int i = 0; i < kRows * kPairs; ++i) acc[i / kPairs][i % kPairs] = vld1q_f32(sums[i]);
    } else
#endif
    {
      for (int i = 0; i < kRows * kPairs; ++i) acc[i / kPairs][i % kPairs] = vdupq_n_f32(0);
      scales += kScaleBytes;
      for (int64_t b = 0; b < blocks; ++b) {
        add_block<kType, kRows, kPairs>(x, codes, code_half, scales, scale_quad, acc);
        x += kXCodeBytes + x_scale_bytes(kFormat);
        codes += 2 * kReadyCodes;
        scales += kScaleBytes;
      }
    }
    for (int r = 0; r < kRows && 2 * r < rows; ++r) {
      for (int c = 0; c < kPairs; c += 2) {
        put_pair(out, row + 2 * r, rows - 2 * r, column + 4 * q + 2 * c, acc[r][c], acc[r][c + 1]);
      }
    }
  }
}

template <DType kType>
void many_rows(const uint8_t* x, const PackedView& w, const Output& out, int64_t row_begin, int64_t row_end,
               int64_t panel_begin, int64_t panel_end, uint8_t* scratch) {
  const int64_t blocks = w.k / kBlock;
  const int64_t tile = x_tile_bytes(quant_format(kType), blocks);
  for (int64_t first = row_begin; first < row_end; first += kRowBlock) {
    const int64_t end = row_end < first + kRowBlock ? row_end : first + kRowBlock;
    for (int64_t p = panel_begin; p < panel_end; ++p) {
      const ReadyPanel ready = make_ready<kType>(w, p, scratch);
      for (int64_t row = first; row < end; row += kTileRows) {
        const uint8_t* at = x + row / kTileRows * tile;
        const int64_t rows = end - row < kTileRows ? end - row : kTileRows;
        if (rows <= 2) {
          tile_times_panel<kType, 1, 8>(at, ready, blocks, out, row, rows, p * kPanel);
        } else if (rows <= 4) {
          tile_times_panel<kType, 2, 4>(at, ready, blocks, out, row, rows, p * kPanel);
        } else {
          tile_times_panel<kType, 4, 2>(at, ready, blocks, out, row, rows, p * kPanel);
        }
      }
    }
  }
}

template <DType kType>
void multiply(const PreparedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin, int64_t row_end,
              int64_t panel_begin, int64_t panel_end, void* scratch) {
  const Output out = output_of(args, w);
  if (x.rows == 1) {
    one_row<kType>(reinterpret_cast<const OneRowBlock*>(x.data), w, out, panel_begin, panel_end);
  } else {
    many_rows<kType>(reinterpret_cast<const uint8_t*>(x.data), w, out, row_begin, row_end, panel_begin, panel_end,
                     static_cast<uint8_t*>(scratch));
  }
}

}  // namespace

int64_t linear_prepared_bytes(const PackedView& w, int64_t rows) {
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  if (w.dtype == DType::kBF16) return rounded_bytes(w, rows);
#endif
  const int64_t blocks = w.k / kBlock;
  if (rows == 1) return blocks * static_cast<int64_t>(sizeof(OneRowBlock));
  return ceil_div(rows, kTileRows) * x_tile_bytes(quant_format(w.dtype), blocks);
}

void linear_prepare(const Tensor& x, const PackedView& w, int64_t row_begin, int64_t row_end, const PreparedRows& out) {
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  if (w.dtype == DType::kBF16) return round_rows(x, w, row_begin, row_end, out);
#endif
  const auto* data = static_cast<const float*>(x.data);
  const int64_t blocks = w.k / kBlock;
  if (out.rows == 1) return quantise_one_row(data, blocks, reinterpret_cast<OneRowBlock*>(out.data));
  const QuantFormat f = quant_format(w.dtype);
  for (int64_t row = row_begin; row < row_end; ++row) {
    uint8_t* tile = reinterpret_cast<uint8_t*>(out.data) + row / kTileRows * x_tile_bytes(f, blocks);
    const int r = static_cast<int>(row % kTileRows);
    if (r == 0) std::memset(tile, 0, static_cast<size_t>(x_scale_bytes(f)));
    quantise_tile_row(data + row * x.stride, f, blocks, tile, r);
  }
}

void linear_product(const PreparedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                    int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch) {
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  if (w.dtype == DType::kBF16) {
    return multiply_rounded(x, w, output_of(args, w), row_begin, row_end, panel_begin, panel_end);
  }
#endif
  QUIRE_DISPATCH_QUANT(w.dtype, multiply, x, w, args, row_begin, row_end, panel_begin, panel_end, scratch)
}

}  // namespace quire::cpu::QUIRE_ISA_NS
