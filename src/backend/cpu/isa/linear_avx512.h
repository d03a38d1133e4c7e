// SPDX-License-Identifier: Apache-2.0
// The quantised linear with AVX-512 VNNI: one panel is one register of outputs, vpdpbusd takes a group of codes.
#pragma once

#include <immintrin.h>

#include "backend/cpu/isa/linear_block.h"

namespace quire::cpu::QUIRE_ISA_NS {

#define QUIRE_KERNEL_INLINE static inline __attribute__((always_inline))

struct Codes512 {
  __m512i group[8];
};

template <DType kType, int kAdd>
alignas(64) static constexpr TableBytes kTable512 = table_bytes(quant_format(kType), kAdd);

// The eight groups of a block as bytes; kAdd is added to the entries of a table and makes them unsigned. Shifts are of
// 16 bits: the mask drops what came from the neighbour.
template <DType kType, int kAdd = quant_format(kType).offset>
QUIRE_KERNEL_INLINE Codes512 load_codes(const uint8_t* src) {
  constexpr QuantFormat kFormat = quant_format(kType);
  Codes512 w;
  if constexpr (kFormat.low_bits == 8) {
    for (int g = 0; g < 8; ++g) w.group[g] = _mm512_loadu_si512(src + 64 * g);
  } else if constexpr (kFormat.low_bits == 4) {
    const __m512i mask = _mm512_set1_epi8(15);
    for (int i = 0; i < 4; ++i) {
      const __m512i v = _mm512_loadu_si512(src + 64 * i);
      w.group[2 * i] = _mm512_and_si512(v, mask);
      w.group[2 * i + 1] = _mm512_and_si512(_mm512_srli_epi16(v, 4), mask);
    }
  } else {
    const __m512i mask = _mm512_set1_epi8(3);
    for (int i = 0; i < 2; ++i) {
      const __m512i v = _mm512_loadu_si512(src + 64 * i);
      w.group[4 * i] = _mm512_and_si512(v, mask);
      w.group[4 * i + 1] = _mm512_and_si512(_mm512_srli_epi16(v, 2), mask);
      w.group[4 * i + 2] = _mm512_and_si512(_mm512_srli_epi16(v, 4), mask);
      w.group[4 * i + 3] = _mm512_and_si512(_mm512_srli_epi16(v, 6), mask);
    }
  }
  if constexpr (has_table(kFormat)) {
    const __m512i table = _mm512_load_si512(kTable512<kType, kAdd>.bytes);
    for (int g = 0; g < 8; ++g) w.group[g] = _mm512_shuffle_epi8(table, w.group[g]);
  }
  const uint8_t* high = src + 64 * kFormat.low_bits;
  if constexpr (kFormat.high_bits == 1) {
    const __m512i bit = _mm512_set1_epi8(1 << kFormat.low_bits);
    for (int g = 0; g < 8; ++g) {
      __mmask64 set;
      std::memcpy(&set, high + 8 * g, sizeof set);
      w.group[g] = _mm512_mask_add_epi8(w.group[g], set, w.group[g], bit);
    }
  } else if constexpr (kFormat.high_bits == 2) {
    const __m512i mask = _mm512_set1_epi8(3 << 4);
    for (int i = 0; i < 2; ++i) {
      const __m512i v = _mm512_loadu_si512(high + 64 * i);
      const __m512i bits[4] = {_mm512_slli_epi16(v, 4), _mm512_slli_epi16(v, 2), v, _mm512_srli_epi16(v, 2)};
      for (int s = 0; s < 4; ++s) {  // low | (bits & mask)
        w.group[4 * i + s] = _mm512_ternarylogic_epi32(w.group[4 * i + s], bits[s], mask, 0xf8);
      }
    }
  }
  return w;
}

struct Scales512 {
  __m512 sw, wm;
  __m512 sc[2], mn[2];  // integer scales of halves, exact in float
};

QUIRE_KERNEL_INLINE __m512 load_halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
QUIRE_KERNEL_INLINE __m512 load_bytes(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
QUIRE_KERNEL_INLINE __m512 load_signed_bytes(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
// 2^(e-128) of bytes, zero of 0.
QUIRE_KERNEL_INLINE __m512 load_exponents(const uint8_t* p) {
  const __m128i less = _mm_subs_epu8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), _mm_set1_epi8(1));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(less), 23));
}
QUIRE_KERNEL_INLINE __m512 negate(__m512 v) {
  return _mm512_xor_ps(v, _mm512_set1_ps(-0.0f));
}

// What the blocks of one record of scales share.
struct Header512 {
  __m512 sw, wm;
};
template <DType kType>
QUIRE_KERNEL_INLINE Header512 load_header(const uint8_t* record) {
  constexpr Scheme kScheme = quant_format(kType).scheme;
  if constexpr (kScheme == Scheme::kGroupMin) return {_mm512_loadu_ps(record), _mm512_loadu_ps(record + 4 * kPanel)};
  if constexpr (kScheme == Scheme::kExponent) return {load_exponents(record), _mm512_setzero_ps()};
  Header512 h = {load_halves(record), _mm512_setzero_ps()};
  if constexpr (kScheme == Scheme::kScaleMin) h.wm = load_halves(record + 2 * kPanel);
  if constexpr (kScheme == Scheme::kSuperMin || kScheme == Scheme::kSubScaleMin) {
    h.wm = negate(load_halves(record + 2 * kPanel));
  }
  return h;
}

// The scales of one block, given its record and the record's header.
template <DType kType>
QUIRE_KERNEL_INLINE Scales512 block_scales(const Header512& header, const uint8_t* record, int64_t block) {
  constexpr QuantFormat kFormat = quant_format(kType);
  const uint8_t* part =
      record + scale_header_bytes(kFormat) + block % scale_group(kFormat) * block_scale_bytes(kFormat);
  Scales512 s = {};
  s.sw = header.sw;
  s.wm = header.wm;
  if constexpr (kFormat.scheme == Scheme::kSuperScale) {
    s.sw = _mm512_mul_ps(s.sw, load_signed_bytes(part));
  } else if constexpr (kFormat.scheme == Scheme::kSuperMin) {
    s.sw = _mm512_mul_ps(s.sw, load_bytes(part));
    s.wm = _mm512_mul_ps(s.wm, load_bytes(part + kPanel));
  } else if constexpr (kFormat.scheme == Scheme::kSubScale) {
    s.sc[0] = load_signed_bytes(part);
    s.sc[1] = load_signed_bytes(part + kPanel);
  } else if constexpr (kFormat.scheme == Scheme::kSubScaleMin) {
    for (int h = 0; h < 2; ++h) {
      const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(part + h * kPanel));
      const __m512i both = _mm512_cvtepu8_epi32(packed);
      s.sc[h] = _mm512_cvtepi32_ps(_mm512_and_si512(both, _mm512_set1_epi32(15)));
      s.mn[h] = _mm512_cvtepi32_ps(_mm512_srli_epi32(both, 4));
    }
  }
  return s;
}
template <DType kType>
QUIRE_KERNEL_INLINE Scales512 load_scales(const uint8_t* panel_scales, int64_t block, int group_shift) {
  const uint8_t* record = panel_scales + scale_record_at(quant_format(kType), block, group_shift);
  return block_scales<kType>(load_header<kType>(record), record, block);
}

QUIRE_KERNEL_INLINE __m512i four_codes(const int8_t* x) {
  int32_t four;
  std::memcpy(&four, x, sizeof four);
  return _mm512_set1_epi32(four);
}

// Dots of groups [kBegin, kEnd) with one row's codes, on top of `dot`: two chains, the high parts' times 16.
template <int kBegin, int kEnd>
QUIRE_KERNEL_INLINE __m512i dot_codes(__m512i dot, const Codes512& w, const int8_t* x) {
  __m512i high = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (int g = kBegin; g < kEnd; ++g) {
    high = _mm512_dpbusd_epi32(high, w.group[g], four_codes(x + 4 * g));
    dot = _mm512_dpbusd_epi32(dot, w.group[g], four_codes(x + kBlock + 4 * g));
  }
  return _mm512_add_epi32(dot, _mm512_slli_epi32(high, 4));
}

QUIRE_KERNEL_INLINE __m512 splat_bits(int32_t bits) {
  return _mm512_castsi512_ps(_mm512_set1_epi32(bits));
}

// Adds one block to the accumulator of one row, given the integer dots.
template <DType kType>
QUIRE_KERNEL_INLINE __m512 fold_dots(__m512 acc, __m512i low, __m512i high, const Scales512& s, const RowTileBlock& x,
                                     const int32_t* x_high, int r) {
  constexpr QuantFormat kFormat = quant_format(kType);
  const __m512 sa = _mm512_set1_ps(x.sa[r]);
  __m512 dot = _mm512_cvtepi32_ps(low);
  if constexpr (has_halves(kFormat)) {  // from +0 on, so that a zero is +0
    dot = _mm512_fmadd_ps(dot, s.sc[0], _mm512_setzero_ps());
    dot = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), s.sc[1], dot);
  }
  acc = _mm512_fmadd_ps(dot, _mm512_mul_ps(sa, s.sw), acc);
  if constexpr (kFormat.scheme == Scheme::kSubScaleMin) {
    __m512 sum = _mm512_fmadd_ps(s.mn[0], _mm512_set1_ps(static_cast<float>(x.aux[r])), _mm512_setzero_ps());
    sum = _mm512_fmadd_ps(s.mn[1], _mm512_set1_ps(static_cast<float>(x_high[r])), sum);
    acc = _mm512_fmadd_ps(s.wm, _mm512_mul_ps(sa, sum), acc);
  } else if constexpr (has_min(kFormat)) {
    acc = _mm512_fmadd_ps(s.wm, splat_bits(x.aux[r]), acc);
  }
  return acc;
}

template <DType kType>
QUIRE_KERNEL_INLINE __m512 add_block(__m512 acc, const Codes512& w, const Scales512& s, const RowTileBlock& x,
                                     const int32_t* x_high, int r) {
  constexpr QuantFormat kFormat = quant_format(kType);
  constexpr bool kOffset = kFormat.offset != 0;
  const int32_t* offsets = has_min(kFormat) ? x_high : x.aux;
  const __m512i first = kOffset ? _mm512_set1_epi32(offsets[r]) : _mm512_setzero_si512();
  if constexpr (has_halves(kFormat)) {
    const __m512i second = kOffset ? _mm512_set1_epi32(x_high[r]) : _mm512_setzero_si512();
    const __m512i low = dot_codes<0, 4>(first, w, x.codes[r]);
    const __m512i high = dot_codes<4, 8>(second, w, x.codes[r]);
    return fold_dots<kType>(acc, low, high, s, x, x_high, r);
  } else {
    return fold_dots<kType>(acc, dot_codes<0, 8>(first, w, x.codes[r]), first, s, x, x_high, r);
  }
}

// One tile of rows times some panels that follow each other, as kernels below see it.
struct PanelTask {
  const RowTileBlock* x;
  const int32_t (*x_high)[kRowTile];
  int64_t blocks;
  const uint8_t* codes;  // of the first panel
  const uint8_t* scales;
  int64_t panel_stride;
  int group_shift;
  float* out;  // first row, first column
  int64_t out_stride;
  const float* bias;  // of the first column, or null
  int64_t columns;    // from the first one to the end of the matrix
  int rows;
};

// Every index of acc is a constant once unrolled: with a variable one the compiler would keep acc in memory throughout.
template <int kRows, typename Task>
QUIRE_KERNEL_INLINE void store_rows(const Task& t, int panel, const __m512* acc) {
  const int64_t columns = t.columns - panel * kPanel;
  const __mmask16 mask = static_cast<__mmask16>(columns < kPanel ? (1u << columns) - 1u : 0xffffu);
  const __m512 bias = t.bias == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, t.bias + panel * kPanel);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    if (r >= t.rows) return;
    const __m512 y = t.bias == nullptr ? acc[r] : _mm512_add_ps(acc[r], bias);
    _mm512_mask_storeu_ps(t.out + r * t.out_stride + panel * kPanel, mask, y);
  }
}

// Asks for this panel's codes some blocks ahead, at its end for those of the panel that comes after it, kPanels further
// on; and for the scales of that one, which lie elsewhere.
constexpr int64_t kBlocksAhead = 2;
template <DType kType, int kPanels>
QUIRE_KERNEL_INLINE void prefetch_block(const PanelTask& t, int64_t block, int panel) {
  constexpr QuantFormat kFormat = quant_format(kType);
  constexpr int kBytes = code_bytes(kFormat);
  const int64_t ahead = block + kBlocksAhead;
  const int64_t at = ahead < t.blocks ? ahead * kBytes : (ahead - t.blocks) * kBytes + kPanels * t.panel_stride;
  const uint8_t* codes = t.codes + panel * t.panel_stride + at;
#pragma GCC unroll 8
  for (int i = 0; i < kBytes; i += 64) _mm_prefetch(codes + i, _MM_HINT_T0);
  const int64_t record = scale_record_at(kFormat, block, t.group_shift);
  _mm_prefetch(t.scales + (panel + kPanels) * t.panel_stride + record +
                   block % scale_group(kFormat) * block_scale_bytes(kFormat),
               _MM_HINT_T0);
}

// The groups of a block in some panels, as bytes in a near cache.
struct BlockGroups {
  const uint8_t* first;
  int64_t stride;  // from panel to panel
};
template <DType kType, int kPanels>
QUIRE_KERNEL_INLINE BlockGroups unpacked_groups(const PanelTask& t, int64_t block, uint8_t (*memory)[8][64]) {
  constexpr QuantFormat kFormat = quant_format(kType);
  const uint8_t* codes = t.codes + block * code_bytes(kFormat);
  if constexpr (kFormat.low_bits == 8) {
    return {codes, t.panel_stride};
  } else {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const Codes512 w = load_codes<kType>(codes + p * t.panel_stride);
#pragma GCC unroll 8
      for (int g = 0; g < 8; ++g) _mm512_store_si512(memory[p][g], w.group[g]);
    }
    return {memory[0][0], sizeof memory[0]};
  }
}

// dot_codes for some panels: each code of the row is broadcast once for all of them.
template <int kBegin, int kEnd, int kPanels>
QUIRE_KERNEL_INLINE void dot_panels(const BlockGroups& w, const int8_t* x, __m512i* dots) {
  __m512i high[kPanels];
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) high[p] = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (int g = kBegin; g < kEnd; ++g) {
    const __m512i x_high = four_codes(x + 4 * g), x_low = four_codes(x + kBlock + 4 * g);
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const __m512i group = _mm512_loadu_si512(w.first + p * w.stride + 64 * g);
      high[p] = _mm512_dpbusd_epi32(high[p], group, x_high);
      dots[p] = _mm512_dpbusd_epi32(dots[p], group, x_low);
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) dots[p] = _mm512_add_epi32(dots[p], _mm512_slli_epi32(high[p], 4));
}

// add_block for some panels.
template <DType kType, int kPanels, int kRows>
QUIRE_KERNEL_INLINE void add_blocks(__m512 (&acc)[kPanels][kRows], const BlockGroups& w, const Scales512* s,
                                    const RowTileBlock& x, const int32_t* x_high, int r) {
  constexpr QuantFormat kFormat = quant_format(kType);
  constexpr bool kOffset = kFormat.offset != 0;
  const int32_t* offsets = has_min(kFormat) ? x_high : x.aux;
  __m512i low[kPanels], high[kPanels];
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) {
    low[p] = kOffset ? _mm512_set1_epi32(offsets[r]) : _mm512_setzero_si512();
    high[p] = kOffset && has_halves(kFormat) ? _mm512_set1_epi32(x_high[r]) : _mm512_setzero_si512();
  }
  if constexpr (has_halves(kFormat)) {
    dot_panels<0, 4, kPanels>(w, x.codes[r], low);
    dot_panels<4, 8, kPanels>(w, x.codes[r], high);
  } else {
    dot_panels<0, 8, kPanels>(w, x.codes[r], low);
  }
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) acc[p][r] = fold_dots<kType>(acc[p][r], low[p], high[p], s[p], x, x_high, r);
}

// kRows rows at once, idle ones included, and kPanels panels side by side: a core reads several places together faster
// than one after the other. One or two rows keep a panel's codes in registers. With more rows the broadcasts of x are
// what takes time, so that all panels share them, and codes, unpacked once for all rows, come from the first-level
// cache.
template <DType kType, int kRows, int kPanels>
static __attribute__((noinline)) void rows_times_panels(const PanelTask& t) {
  constexpr QuantFormat kFormat = quant_format(kType);
  __m512 acc[kPanels][kRows];
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) acc[p][r] = _mm512_setzero_ps();
  }
  for (int64_t b = 0; b < t.blocks; ++b) {
    const RowTileBlock& x = t.x[b];
    const int32_t* x_high = has_second_sum(kFormat) ? t.x_high[b] : nullptr;
    if constexpr (kPanels == 1 || kRows <= 2) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        prefetch_block<kType, kPanels>(t, b, p);
        const Codes512 w = load_codes<kType>(t.codes + p * t.panel_stride + b * code_bytes(kFormat));
        const Scales512 s = load_scales<kType>(t.scales + p * t.panel_stride, b, t.group_shift);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) acc[p][r] = add_block<kType>(acc[p][r], w, s, x, x_high, r);
      }
    } else {
      alignas(64) uint8_t memory[kPanels][8][64];
      Scales512 s[kPanels];
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        prefetch_block<kType, kPanels>(t, b, p);
        s[p] = load_scales<kType>(t.scales + p * t.panel_stride, b, t.group_shift);
      }
      const BlockGroups w = unpacked_groups<kType, kPanels>(t, b, memory);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) add_blocks<kType, kPanels, kRows>(acc, w, s, x, x_high, r);
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) store_rows<kRows>(t, p, acc[p]);
}

// The task of the row tile that starts at `row`, and the panels from p on.
QUIRE_KERNEL_INLINE PanelTask make_task(const QuantisedRows& x, const PackedView& w, const LinearArgs& args,
                                        int64_t row, int64_t row_end, int64_t p) {
  const int64_t first = row / kRowTile * x.blocks;
  const uint8_t* panel = w.data + p * w.panel_stride;
  PanelTask t;
  t.x = x.tiles + first;
  t.x_high = x.high == nullptr ? nullptr : x.high + first;
  t.blocks = x.blocks;
  t.codes = panel;
  t.scales = panel + w.scale_offset;
  t.panel_stride = w.panel_stride;
  t.group_shift = w.group_shift;
  t.out = static_cast<float*>(args.out.data) + row * args.out.stride + p * kPanel;
  t.out_stride = args.out.stride;
  t.bias = args.bias == nullptr ? nullptr : args.bias + p * kPanel;
  t.columns = w.n - p * kPanel;
  t.rows = static_cast<int>(row_end - row < kRowTile ? row_end - row : kRowTile);
  return t;
}

template <DType kType, int kPanels>
static void tile_times_panels(const PanelTask& t) {
  if (t.rows <= 1) return rows_times_panels<kType, 1, kPanels>(t);
  if (t.rows <= 2) return rows_times_panels<kType, 2, kPanels>(t);
  if (t.rows <= 4) return rows_times_panels<kType, 4, kPanels>(t);
  return rows_times_panels<kType, 8, kPanels>(t);
}

// Tiles of up to eight rows take four panels at a time, those of 16 rows two: what the registers hold, or nearly so.
constexpr int kWideSet = 4;
constexpr int kNarrowSet = 2;
constexpr int64_t kMostWideRows = 8;

template <DType kType>
static void quantised_panels(const QuantisedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                             int64_t row_end, int64_t panel_begin, int64_t panel_end) {
  const int64_t rest = (row_end - row_begin) % kRowTile;
  const int64_t few_begin = rest <= kMostWideRows ? row_end - rest : row_end;
  int64_t p = panel_begin;
  for (; p < panel_end && row_begin < few_begin; p += kNarrowSet) {
    for (int64_t row = row_begin; row < few_begin; row += kRowTile) {
      const PanelTask t = make_task(x, w, args, row, few_begin, p);
      if (p + kNarrowSet <= panel_end) {
        rows_times_panels<kType, kRowTile, kNarrowSet>(t);
      } else {
        rows_times_panels<kType, kRowTile, 1>(t);
      }
    }
  }
  if (few_begin == row_end) return;
  for (p = panel_begin; p + kWideSet <= panel_end; p += kWideSet) {
    tile_times_panels<kType, kWideSet>(make_task(x, w, args, few_begin, row_end, p));
  }
  for (; p < panel_end; ++p) tile_times_panels<kType, 1>(make_task(x, w, args, few_begin, row_end, p));
}

}  // namespace quire::cpu::QUIRE_ISA_NS
