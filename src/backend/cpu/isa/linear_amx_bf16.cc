// SPDX-License-Identifier: Apache-2.0
// linear with AMX in the rounded form: y^T = W x^T in tiles of bf16, 16 outputs x 32 k times 32 k x 16 rows.
//
// The first operand is the weight: one row of a tile is 32 k of one output, so that a block of a quantised weight,
// which has one scale (or two), is one vector, and codes of four or five bits become bf16 by a look-up in a register.
// Weights stay packed in memory. Up to two tiles of rows a panel's blocks are made ready one after the other while the
// last one is multiplied; more rows share two whole panels made ready in L1 and L2. One row is a tile one column wide:
// the same products in the same order.
#include <immintrin.h>

#include <cstring>

#include "backend/cpu/isa/linear_amx.h"
#include "backend/cpu/isa/linear_block.h"
#include "backend/cpu/isa/tiles_amx.h"
#include "base/math.h"

namespace quire::cpu::QUIRE_ISA_NS {

namespace {

#define QUIRE_KERNEL_INLINE static inline __attribute__((always_inline))

using WeightTile = uint16_t[kPanel][kBlock];  // bf16
constexpr int64_t kTileBytes = sizeof(WeightTile);

// Scales and minima of one block's columns, for the low and the high 16 k: w = code * scale + minimum.
struct alignas(64) TileScales {
  float scale[2][kPanel];
  float minimum[2][kPanel];
};

QUIRE_KERNEL_INLINE __m512 load_halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
QUIRE_KERNEL_INLINE __m512 bytes_to_float(__m128i bytes) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}
QUIRE_KERNEL_INLINE __m512 negate(__m512 v) {
  return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(v), _mm512_set1_epi32(INT32_MIN)));
}

// Products with an offset (a power of two) and of fp16 scales with small integers are exact.
template <DType kType>
QUIRE_KERNEL_INLINE void load_block_scales(const uint8_t* panel_scales, int64_t block, int group_shift,
                                           TileScales& out) {
  constexpr QuantFormat kFormat = quant_format(kType);
  constexpr int kGroup = scale_group(kFormat);
  const uint8_t* record = panel_scales + scale_record_at(kFormat, block, group_shift);
  const uint8_t* part = record + scale_header_bytes(kFormat) + block % kGroup * block_scale_bytes(kFormat);
  __m512 d;
  if constexpr (kFormat.scheme == Scheme::kGroupMin) {
    d = _mm512_loadu_ps(record);
  } else if constexpr (kFormat.scheme == Scheme::kExponent) {  // 2^(e-128), zero of 0
    const __m128i less = _mm_subs_epu8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(record)), _mm_set1_epi8(1));
    d = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(less), 23));
  } else {
    d = load_halves(record);
  }
  const __m512 offset = _mm512_set1_ps(-static_cast<float>(kFormat.offset));
  if constexpr (has_table(kFormat)) {  // values of either sign
    if constexpr (kFormat.scheme == Scheme::kSuperScale) {
      const __m128i sc = _mm_loadu_si128(reinterpret_cast<const __m128i*>(part));
      d = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sc)));
    }
    _mm512_store_ps(out.scale[0], d);
    _mm512_store_ps(out.minimum[0], _mm512_setzero_ps());
  } else if constexpr (kFormat.scheme == Scheme::kScale) {
    _mm512_store_ps(out.scale[0], d);
    _mm512_store_ps(out.minimum[0], _mm512_mul_ps(d, offset));
  } else if constexpr (kFormat.scheme == Scheme::kGroupMin) {
    _mm512_store_ps(out.scale[0], d);
    _mm512_store_ps(out.minimum[0], _mm512_loadu_ps(record + 4 * kPanel));
  } else if constexpr (kFormat.scheme == Scheme::kScaleMin) {
    _mm512_store_ps(out.scale[0], d);
    _mm512_store_ps(out.minimum[0], load_halves(record + 2 * kPanel));
  } else if constexpr (kFormat.scheme == Scheme::kSuperMin) {
    const __m128i sc = _mm_loadu_si128(reinterpret_cast<const __m128i*>(part));
    const __m128i mn = _mm_loadu_si128(reinterpret_cast<const __m128i*>(part + kPanel));
    _mm512_store_ps(out.scale[0], _mm512_mul_ps(d, bytes_to_float(sc)));
    _mm512_store_ps(out.minimum[0], negate(_mm512_mul_ps(load_halves(record + 2 * kPanel), bytes_to_float(mn))));
  } else {
    for (int h = 0; h < 2; ++h) {
      const __m128i sc = _mm_loadu_si128(reinterpret_cast<const __m128i*>(part + h * kPanel));
      if constexpr (kFormat.scheme == Scheme::kSubScale) {
        const __m512 scale = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sc)));
        _mm512_store_ps(out.scale[h], scale);
        _mm512_store_ps(out.minimum[h], _mm512_mul_ps(scale, offset));
      } else {
        const __m128i low = _mm_and_si128(sc, _mm_set1_epi8(15));
        const __m128i high = _mm_and_si128(_mm_srli_epi16(sc, 4), _mm_set1_epi8(15));
        _mm512_store_ps(out.scale[h], _mm512_mul_ps(d, bytes_to_float(low)));
        _mm512_store_ps(out.minimum[h], negate(_mm512_mul_ps(load_halves(record + 2 * kPanel), bytes_to_float(high))));
      }
    }
  }
  // Columns are broadcast from memory below; out of a register it would take a port that the look-ups need.
  __asm__ volatile("" : "+m"(out));
}

// Floats to bf16, ties away from zero: half a unit added, then the upper words of both, interleaved.
QUIRE_KERNEL_INLINE __m512i plus_half(__m512 v) {
  return _mm512_add_epi32(_mm512_castps_si512(v), _mm512_set1_epi32(0x8000));
}
QUIRE_KERNEL_INLINE __m512i interleave_upper(__m512i even, __m512i odd) {
  return _mm512_ternarylogic_epi32(_mm512_srli_epi32(even, 16), odd, _mm512_set1_epi32(-0x10000), 0xf8);
}

// The values of the sixteen codes.
struct Steps {
  float values[16];
};
constexpr Steps steps_of(QuantFormat f) {
  Steps out = {};
  for (int i = 0; i < 16; ++i) out.values[i] = static_cast<float>(has_table(f) ? table_values(f)[i] : i);
  return out;
}
template <DType kType>
alignas(64) constexpr Steps kSteps = steps_of(quant_format(kType));
alignas(64) constexpr float kSixteen[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
alignas(64) constexpr uint16_t kUpperTwice[32] = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                  1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
alignas(64) constexpr uint16_t kUpperOfTwo[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                  33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};

// Codes of four bits: a column's sixteen values are one table, twice in a register because the look-up sees five bits.
template <DType kType>
QUIRE_KERNEL_INLINE void unpack_four_bits(const uint8_t* codes, const TileScales& s, WeightTile& out) {
  const __m512 steps = _mm512_load_ps(kSteps<kType>.values);
  const __m512i upper = _mm512_load_si512(kUpperTwice);
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) {
    const __m512i v = _mm512_loadu_si512(codes + 64 * g);
    const __m512i shifted[4] = {v, _mm512_srli_epi16(v, 4), _mm512_srli_epi16(v, 8), _mm512_srli_epi16(v, 12)};
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const int c = 4 * g + j;
      const __m512 values = _mm512_fmadd_ps(steps, _mm512_set1_ps(s.scale[0][c]), _mm512_set1_ps(s.minimum[0][c]));
      const __m512i table = _mm512_permutexvar_epi16(upper, plus_half(values));
      _mm512_store_si512(out[c], _mm512_permutexvar_epi16(shifted[j], table));
    }
  }
}

// Codes of five bits: a table of 32.
QUIRE_KERNEL_INLINE void unpack_five_bits(const uint8_t* codes, const TileScales& s, WeightTile& out) {
  const __m512 steps = _mm512_load_ps(kSixteen);
  const __m512 more = _mm512_add_ps(steps, _mm512_set1_ps(16.0f));
  const __m512i upper = _mm512_load_si512(kUpperOfTwo);
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) {
    const __m512i v = _mm512_loadu_si512(codes + 64 * g);
    const __m512i shifted[4] = {v, _mm512_srli_epi16(v, 4), _mm512_srli_epi16(v, 8), _mm512_srli_epi16(v, 12)};
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const int c = 4 * g + j;
      const __m512 scale = _mm512_set1_ps(s.scale[0][c]);
      const __m512 minimum = _mm512_set1_ps(s.minimum[0][c]);
      const __m512i low = plus_half(_mm512_fmadd_ps(steps, scale, minimum));
      const __m512i high = plus_half(_mm512_fmadd_ps(more, scale, minimum));
      uint32_t fifth;
      std::memcpy(&fifth, codes + 256 + 4 * c, sizeof fifth);
      const __m512i nibble = _mm512_and_si512(shifted[j], _mm512_set1_epi16(15));
      const __m512i index = _mm512_mask_add_epi16(nibble, fifth, nibble, _mm512_set1_epi16(16));
      _mm512_store_si512(out[c], _mm512_permutexvar_epi16(index, _mm512_permutex2var_epi16(low, upper, high)));
    }
  }
}

struct BytePicks {
  uint8_t even[64];
  uint8_t odd[64];
};
constexpr BytePicks byte_picks() {
  BytePicks picks = {};
  for (int lane = 0; lane < 16; ++lane) {
    picks.even[4 * lane + 1] = static_cast<uint8_t>(2 * lane);
    picks.odd[4 * lane + 1] = static_cast<uint8_t>(2 * lane + 1);
  }
  return picks;
}
alignas(64) constexpr BytePicks kBytePicks = byte_picks();

// Codes of eight bits: put into the second byte of 0x47000000 a code u is the float 2^15 + u; its multiple of the scale
// less 2^15 times the scale is exact where the scale was an fp16. With a minimum 2^15 goes first.
template <bool kMin>
QUIRE_KERNEL_INLINE void unpack_eight_bits(const uint8_t* codes, TileScales& s, WeightTile& out) {
  const __m512 scales = _mm512_load_ps(s.scale[0]);
  const __m512 offset = _mm512_set1_ps(-32896.0f);  // -(2^15 + 128)
  if constexpr (!kMin) _mm512_store_ps(s.minimum[0], _mm512_mul_ps(scales, offset));
  __asm__ volatile("" : "+m"(s));
  const __m512i even = _mm512_load_si512(kBytePicks.even);
  const __m512i odd = _mm512_load_si512(kBytePicks.odd);
  const __m512i base = _mm512_set1_epi32(0x47000000);
  constexpr __mmask64 kSecond = 0x2222222222222222u;
#pragma GCC unroll 16
  for (int c = 0; c < kPanel; ++c) {
    const __m512i v = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 32 * c)));
    const __m512 scale = _mm512_set1_ps(s.scale[0][c]);
    const __m512 minimum = _mm512_set1_ps(s.minimum[0][c]);
    __m512 a = _mm512_castsi512_ps(_mm512_mask_permutexvar_epi8(base, kSecond, even, v));
    __m512 b = _mm512_castsi512_ps(_mm512_mask_permutexvar_epi8(base, kSecond, odd, v));
    if constexpr (kMin) {
      a = _mm512_add_ps(a, offset);
      b = _mm512_add_ps(b, offset);
    }
    _mm512_store_si512(out[c], interleave_upper(plus_half(_mm512_fmadd_ps(a, scale, minimum)),
                                                plus_half(_mm512_fmadd_ps(b, scale, minimum))));
  }
}

// Codes of two to six bits whose scale changes after 16 k.
template <DType kType>
QUIRE_KERNEL_INLINE void unpack_with_halves(const uint8_t* codes, const TileScales& s, WeightTile& out) {
  constexpr QuantFormat kFormat = quant_format(kType);
  const uint8_t* high = codes + 64 * kFormat.low_bits;
#pragma GCC unroll 16
  for (int c = 0; c < kPanel; ++c) {
    __m512i code;  // words
    if constexpr (kFormat.low_bits == 4) {
      code = _mm512_and_si512(_mm512_srli_epi16(_mm512_loadu_si512(codes + 64 * (c / 4)), 4 * (c % 4)),
                              _mm512_set1_epi16(15));
    } else {
      code = _mm512_and_si512(_mm512_srli_epi16(_mm512_loadu_si512(codes + 64 * (c / 8)), 2 * (c % 8)),
                              _mm512_set1_epi16(3));
    }
    if constexpr (kFormat.high_bits == 2) {
      const __m512i bits = _mm512_srli_epi16(_mm512_loadu_si512(high + 64 * (c / 8)), 2 * (c % 8));
      code = _mm512_or_si512(code, _mm512_slli_epi16(_mm512_and_si512(bits, _mm512_set1_epi16(3)), kFormat.low_bits));
    } else if constexpr (kFormat.high_bits == 1) {
      uint32_t bits;
      std::memcpy(&bits, high + 4 * c, sizeof bits);
      code = _mm512_mask_add_epi16(code, bits, code, _mm512_set1_epi16(1 << kFormat.low_bits));
    }
    constexpr __mmask16 kHigh = 0xff00;  // lanes of pairs of k: the upper eight are k 16 to 31
    const __m512 scale = _mm512_mask_blend_ps(kHigh, _mm512_set1_ps(s.scale[0][c]), _mm512_set1_ps(s.scale[1][c]));
    const __m512 minimum =
        _mm512_mask_blend_ps(kHigh, _mm512_set1_ps(s.minimum[0][c]), _mm512_set1_ps(s.minimum[1][c]));
    const __m512 a = _mm512_cvtepi32_ps(_mm512_and_si512(code, _mm512_set1_epi32(0xffff)));
    const __m512 b = _mm512_cvtepi32_ps(_mm512_srli_epi32(code, 16));
    _mm512_store_si512(out[c], interleave_upper(plus_half(_mm512_fmadd_ps(a, scale, minimum)),
                                                plus_half(_mm512_fmadd_ps(b, scale, minimum))));
  }
}

// One block of a panel as a tile of bf16.
template <DType kType>
QUIRE_KERNEL_INLINE void unpack_block(const PackedView& w, const uint8_t* panel, int64_t block, WeightTile& out) {
  constexpr QuantFormat kFormat = quant_format(kType);
  const uint8_t* codes = panel + block * code_bytes(kFormat);
  TileScales scales;
  load_block_scales<kType>(panel + w.scale_offset, block, w.group_shift, scales);
  if constexpr (has_halves(kFormat)) {
    unpack_with_halves<kType>(codes, scales, out);
  } else if constexpr (kFormat.low_bits == 8) {
    unpack_eight_bits<has_min(kFormat)>(codes, scales, out);
  } else if constexpr (kFormat.high_bits == 1) {
    unpack_five_bits(codes, scales, out);
  } else {
    unpack_four_bits<kType>(codes, scales, out);
  }
}

QUIRE_KERNEL_INLINE void transpose(__m512i (&r)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// Rows in a tile of x, and bytes of one block of such a tile.
QUIRE_KERNEL_INLINE int tile_width(int64_t rows) {
  return rows < kRowTile ? static_cast<int>(rows) : kRowTile;
}
QUIRE_KERNEL_INLINE int64_t x_tile_bytes(int width) {
  return 4 * kRowTile * width;
}

// k [32 b, 32 b + 32) of a row as 16 pairs of bf16; zeros past the end.
QUIRE_KERNEL_INLINE __m512i round_block(const float* x, int64_t k, int64_t b) {
  const int64_t left = k - b * kBlock;
  if (left >= kBlock) {
    return reinterpret_cast<__m512i>(
        _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + b * kBlock + 16), _mm512_loadu_ps(x + b * kBlock)));
  }
  const uint32_t mask = (1u << left) - 1;
  return reinterpret_cast<__m512i>(
      _mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), x + b * kBlock + 16),
                          _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), x + b * kBlock)));
}

// What one thread multiplies: some panels and all tiles of rows of a block.
struct Task {
  const PackedView* w;
  const LinearArgs* args;
  const uint8_t* x;  // the first tile of x
  int64_t x_tile;    // bytes from one tile of x to the next
  int64_t x_block;   // bytes from one block of a tile of x to the next
  int64_t blocks;
  int64_t row_begin;
  int64_t row_end;
  int width;
};

// Sums of one tile, [16 outputs][width rows], to rows of y.
QUIRE_KERNEL_INLINE void put_sums(const Task& t, const float* sums, int64_t panel, int64_t row) {
  const int64_t first = panel * kPanel;
  const int64_t columns = t.w->n - first < kPanel ? t.w->n - first : kPanel;
  const auto mask = static_cast<__mmask16>((1u << columns) - 1);
  const __m512 bias = t.args->bias == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, t.args->bias + first);
  const bool has_bias = t.args->bias != nullptr;
  float* y = static_cast<float*>(t.args->out.data) + row * t.args->out.stride + first;
  if (t.width == 1) {
    const __m512 sum = _mm512_load_ps(sums);
    return _mm512_mask_storeu_ps(y, mask, has_bias ? _mm512_add_ps(sum, bias) : sum);
  }
  __m512i r[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = _mm512_load_si512(sums + 16 * i);
  transpose(r);
  const int64_t rows = t.row_end - row < kRowTile ? t.row_end - row : kRowTile;
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    if (i >= rows) break;
    const __m512 sum = _mm512_castsi512_ps(r[i]);
    _mm512_mask_storeu_ps(y + i * t.args->out.stride, mask, has_bias ? _mm512_add_ps(sum, bias) : sum);
  }
}

using Sums = float[kPanel * kRowTile];

// Stores the tiles of two panels and one or two tiles of rows.
template <int kTiles>
QUIRE_KERNEL_INLINE void finish(const Task& t, int64_t panel, int64_t panel_end, int64_t row) {
  alignas(64) Sums sums[4];
  const int64_t stride = t.width == 1 ? 4 : 64;
  QUIRE_TILE_STORE(0, sums[0], stride);
  QUIRE_TILE_STORE(1, sums[1], stride);
  if constexpr (kTiles == 2) {
    QUIRE_TILE_STORE(2, sums[2], stride);
    QUIRE_TILE_STORE(3, sums[3], stride);
  }
  put_sums(t, sums[0], panel, row);
  if (panel + 1 < panel_end) put_sums(t, sums[1], panel + 1, row);
  if constexpr (kTiles == 2) {
    put_sums(t, sums[2], panel, row + kRowTile);
    if (panel + 1 < panel_end) put_sums(t, sums[3], panel + 1, row + kRowTile);
  }
}

// One step of 32 k: sums 0, 1 are panels a0, a1 with the first tile of rows; 2, 3 the same with the second.
template <int kTiles>
QUIRE_KERNEL_INLINE void step(const uint8_t* a0, const uint8_t* a1, const uint8_t* x, int64_t x_tile,
                              int64_t x_stride) {
  QUIRE_TILE_LOAD(6, x, x_stride);
  QUIRE_TILE_LOAD(4, a0, 64);
  QUIRE_TILE_MULTIPLY(0, 4, 6);
  QUIRE_TILE_LOAD(5, a1, 64);
  QUIRE_TILE_MULTIPLY(1, 5, 6);
  if constexpr (kTiles == 2) {
    QUIRE_TILE_LOAD(7, x + x_tile, x_stride);
    QUIRE_TILE_MULTIPLY(2, 4, 7);
    QUIRE_TILE_MULTIPLY(3, 5, 7);
  }
}

QUIRE_KERNEL_INLINE void clear_sums() {
  QUIRE_TILE_ZERO(0);
  QUIRE_TILE_ZERO(1);
  QUIRE_TILE_ZERO(2);
  QUIRE_TILE_ZERO(3);
}

// A share of the panels that come after the kPanels at hand, which lie behind them, is prefetched with this block:
// with few rows this loop waits for memory.
template <int kPanels>
QUIRE_KERNEL_INLINE void prefetch(const uint8_t* panel, int64_t stride, int64_t block, int64_t blocks) {
  const int64_t share = stride / blocks;
  const uint8_t* soon = panel + kPanels * stride + block * share;
  for (int64_t i = 0; i < share; i += 64) _mm_prefetch(soon + i, _MM_HINT_T1);
}

// Two panels times one or two tiles of rows, straight from the packed weight.
template <DType kType, int kTiles>
static __attribute__((noinline)) void stream_panels(const Task& t, int64_t panel, int64_t panel_end) {
  const uint8_t* w0 = t.w->panel(panel);
  const uint8_t* w1 = panel + 1 < panel_end ? t.w->panel(panel + 1) : w0;
  const PackedView packed = *t.w;
  const int64_t x_stride = 4 * t.width;
  const uint8_t* x = t.x;
  clear_sums();
  if constexpr (kType == DType::kBF16) {
    for (int64_t b = 0; b < t.blocks; ++b, x += t.x_block) {
      prefetch<2>(w0, t.w->panel_stride, b, t.blocks);
      prefetch<2>(w1, t.w->panel_stride, b, t.blocks);
      step<kTiles>(w0 + b * kTileBytes, w1 + b * kTileBytes, x, t.x_tile, x_stride);
    }
  } else {
    alignas(64) WeightTile ready[2][2];
    unpack_block<kType>(packed, w0, 0, ready[0][0]);
    unpack_block<kType>(packed, w1, 0, ready[0][1]);
    for (int64_t b = 0; b < t.blocks; ++b, x += t.x_block) {
      const WeightTile* now = ready[b % 2];
      WeightTile* next = ready[(b + 1) % 2];
      const bool more = b + 1 < t.blocks;
      if (more) unpack_block<kType>(packed, w0, b + 1, next[0]);
      prefetch<2>(w0, t.w->panel_stride, b, t.blocks);
      QUIRE_TILE_LOAD(6, x, x_stride);
      QUIRE_TILE_LOAD(4, now[0], 64);
      QUIRE_TILE_MULTIPLY(0, 4, 6);
      if constexpr (kTiles == 2) {
        QUIRE_TILE_LOAD(7, x + t.x_tile, x_stride);
        QUIRE_TILE_MULTIPLY(2, 4, 7);
      }
      if (more) unpack_block<kType>(packed, w1, b + 1, next[1]);
      prefetch<2>(w1, t.w->panel_stride, b, t.blocks);
      QUIRE_TILE_LOAD(5, now[1], 64);
      QUIRE_TILE_MULTIPLY(1, 5, 6);
      if constexpr (kTiles == 2) QUIRE_TILE_MULTIPLY(3, 5, 7);
    }
  }
  finish<kTiles>(t, panel, panel_end, t.row_begin);
}

// Four panels times one tile of rows, of a quantised weight: decoding one sequence runs here. The tile of x serves all
// four, and the sums of the panels are independent.
template <DType kType>
static __attribute__((noinline)) void stream_four_panels(const Task& t, int64_t panel) {
  const uint8_t* w[4] = {t.w->panel(panel), t.w->panel(panel + 1), t.w->panel(panel + 2), t.w->panel(panel + 3)};
  const PackedView packed = *t.w;
  const int64_t x_stride = 4 * t.width;
  const uint8_t* x = t.x;
  alignas(64) WeightTile ready[2][4];
  clear_sums();
  for (int i = 0; i < 4; ++i) unpack_block<kType>(packed, w[i], 0, ready[0][i]);
  for (int64_t b = 0; b < t.blocks; ++b, x += t.x_block) {
    const WeightTile* now = ready[b % 2];
    WeightTile* next = ready[(b + 1) % 2];
    const int64_t ahead = b + 1 < t.blocks ? b + 1 : b;  // the last one again, unused
    const auto prepare = [&](int i) __attribute__((always_inline)) {
      unpack_block<kType>(packed, w[i], ahead, next[i]);
      prefetch<4>(w[i], t.w->panel_stride, b, t.blocks);
    };
    prepare(0);
    QUIRE_TILE_LOAD(6, x, x_stride);
    QUIRE_TILE_LOAD(4, now[0], 64);
    QUIRE_TILE_MULTIPLY(0, 4, 6);
    prepare(1);
    QUIRE_TILE_LOAD(5, now[1], 64);
    QUIRE_TILE_MULTIPLY(1, 5, 6);
    prepare(2);
    QUIRE_TILE_LOAD(4, now[2], 64);
    QUIRE_TILE_MULTIPLY(2, 4, 6);
    prepare(3);
    QUIRE_TILE_LOAD(5, now[3], 64);
    QUIRE_TILE_MULTIPLY(3, 5, 6);
  }
  alignas(64) Sums sums[4];
  const int64_t stride = t.width == 1 ? 4 : 64;
  QUIRE_TILE_STORE(0, sums[0], stride);
  QUIRE_TILE_STORE(1, sums[1], stride);
  QUIRE_TILE_STORE(2, sums[2], stride);
  QUIRE_TILE_STORE(3, sums[3], stride);
  for (int i = 0; i < 4; ++i) put_sums(t, sums[i], panel + i, t.row_begin);
}

// Many tiles of rows: two panels are prepared once, then multiplied with pairs of tiles.
template <DType kType>
static __attribute__((noinline)) void unpack_panel(const PackedView& w, int64_t panel, int64_t blocks,
                                                   WeightTile* out) {
  for (int64_t b = 0; b < blocks; ++b) unpack_block<kType>(w, w.panel(panel), b, out[b]);
}

template <int kTiles>
static __attribute__((noinline)) void ready_panels(const Task& t, const uint8_t* a0, const uint8_t* a1,
                                                   const uint8_t* x, int64_t panel, int64_t panel_end, int64_t row) {
  clear_sums();
  for (int64_t b = 0; b < t.blocks; ++b) {
    step<kTiles>(a0 + b * kTileBytes, a1 + b * kTileBytes, x + b * t.x_block, t.x_tile, 64);
  }
  finish<kTiles>(t, panel, panel_end, row);
}

template <DType kType>
void many_rows(const Task& t, int64_t panel, int64_t panel_end, WeightTile* scratch) {
  const bool two = panel + 1 < panel_end;
  const uint8_t* a0 = t.w->panel(panel);
  const uint8_t* a1 = two ? t.w->panel(panel + 1) : a0;
  if constexpr (kType != DType::kBF16) {
    unpack_panel<kType>(*t.w, panel, t.blocks, scratch);
    if (two) unpack_panel<kType>(*t.w, panel + 1, t.blocks, scratch + t.blocks);
    a0 = reinterpret_cast<const uint8_t*>(scratch);
    a1 = two ? reinterpret_cast<const uint8_t*>(scratch + t.blocks) : a0;
  }
  const uint8_t* x = t.x;
  int64_t row = t.row_begin;
  for (; row + kRowTile < t.row_end; row += 2 * kRowTile, x += 2 * t.x_tile) {
    ready_panels<2>(t, a0, a1, x, panel, panel_end, row);
  }
  if (row < t.row_end) ready_panels<1>(t, a0, a1, x, panel, panel_end, row);
}

template <DType kType>
void all_panels(const Task& t, int64_t panel_begin, int64_t panel_end, WeightTile* scratch) {
  const int64_t rows = t.row_end - t.row_begin;
  int64_t p = panel_begin;
  if constexpr (kType != DType::kBF16) {
    for (; rows <= kRowTile && p + 4 <= panel_end; p += 4) stream_four_panels<kType>(t, p);
  }
  for (; p < panel_end; p += 2) {
    if (rows <= kRowTile) {
      stream_panels<kType, 1>(t, p, panel_end);
    } else if (rows <= 2 * kRowTile) {
      stream_panels<kType, 2>(t, p, panel_end);
    } else {
      many_rows<kType>(t, p, panel_end, scratch);
    }
  }
}

void multiply(const Task& t, int64_t panel_begin, int64_t panel_end, WeightTile* scratch) {
  if (t.w->dtype == DType::kBF16) return all_panels<DType::kBF16>(t, panel_begin, panel_end, scratch);
  QUIRE_DISPATCH_QUANT(t.w->dtype, all_panels, t, panel_begin, panel_end, scratch)
}

}  // namespace

int64_t rounded_bytes(const PackedView& w, int64_t rows) {
  const int64_t blocks = (w.k + kBlock - 1) / kBlock;
  return ceil_div(rows, kRowTile) * blocks * x_tile_bytes(tile_width(rows));
}

void rounded_prepare(const Tensor& x, const PackedView& w, int64_t row_begin, int64_t row_end,
                     const PreparedRows& out) {
  const int64_t blocks = (w.k + kBlock - 1) / kBlock;
  const int width = tile_width(out.rows);
  const auto* data = static_cast<const float*>(x.data);
  for (int64_t row = row_begin; row < row_end; row += kRowTile) {
    auto* tile = reinterpret_cast<uint8_t*>(out.data) + row / kRowTile * blocks * x_tile_bytes(width);
    const float* first = data + row * x.stride;
    const int64_t rows = row_end - row < kRowTile ? row_end - row : kRowTile;
    for (int64_t b = 0; b < blocks; ++b, tile += x_tile_bytes(width)) {
      if (width == 1) {
        _mm512_storeu_si512(tile, round_block(first, w.k, b));
        continue;
      }
      __m512i r[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        r[i] = i < rows ? round_block(first + i * x.stride, w.k, b) : _mm512_setzero_si512();
      }
      transpose(r);
      const auto mask = static_cast<__mmask16>((1u << width) - 1);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) _mm512_mask_storeu_epi32(tile + 4 * width * i, mask, r[i]);
    }
  }
}

void rounded_product(const PreparedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                     int64_t row_end, int64_t panel_begin, int64_t panel_end, void* scratch) {
  Task t;
  t.w = &w;
  t.args = &args;
  t.width = tile_width(x.rows);
  t.blocks = (w.k + kBlock - 1) / kBlock;
  t.x_block = x_tile_bytes(t.width);
  t.x_tile = t.blocks * t.x_block;
  t.x = reinterpret_cast<const uint8_t*>(x.data) + row_begin / kRowTile * t.x_tile;
  t.row_begin = row_begin;
  t.row_end = row_end;
  configure_tiles(kPanel, t.width);
  auto* tiles = static_cast<WeightTile*>(scratch);
  multiply(t, panel_begin, panel_end, tiles);
  release_tiles();
}

}  // namespace quire::cpu::QUIRE_ISA_NS
