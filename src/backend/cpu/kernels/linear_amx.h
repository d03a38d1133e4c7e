// SPDX-License-Identifier: Apache-2.0
// The quantised linear with AMX: a tile is 16 rows x 16 columns of integer dots over one block of 32 k.
//
// Activations are X = 16 * high + low (packed.h). Codes of 4 bits leave room for the 16: the second operand is [16 q;
// q] and the first [high, low], 64 deep, one instruction, at no cost over 32 deep. Wider codes take two products and a
// shift.
//
// The multiplier is not what limits this: each block's dots must be folded into float accumulators with that block's
// scales. Near tile instructions only one port runs 512-bit multiplications, two otherwise; so the two kinds of work
// alternate in phases of some blocks: all dots of a phase go to L1, then they are folded into the 16 accumulators of
// the tile, which live in registers throughout.
#pragma once

#include "backend/cpu/kernels/linear_avx512.h"

namespace quire::cpu::QUIRE_ISA_NS {

// A block of a panel made ready: codes less their offset as AMX's second operand (16 q first where they are narrow),
// scales.
struct AmxBlock {
  int8_t codes[16][64];
  float sw[kPanel];
  float wm[kPanel];
};
static_assert(sizeof(AmxBlock) == kAmxBlockBytes);

constexpr bool is_narrow(DType type) {
  return quant_format(type).low_bits + quant_format(type).high_bits <= 4;
}

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// Tiles 0 to 3: dots; 4, 5: rows of x; 6, 7: codes.
static void configure_tiles(bool narrow) {
  const int depth = narrow ? 2 * kBlock : kBlock;
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    config.row_bytes[t] = static_cast<uint16_t>(t == 4 || t == 5 ? depth : 64);
    config.rows[t] = static_cast<uint8_t>(t >= 6 ? depth / 4 : 16);
  }
  // gcc 12's intrinsic tells the compiler of the first eight bytes only; without this it may drop the other stores.
  __asm__ volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

// Blocks [begin, begin + count) of a panel.
template <DType kType>
QUIRE_KERNEL_INLINE void unpack_blocks(const uint8_t* panel_codes, const uint8_t* panel_scales, int64_t begin,
                                       int64_t count, AmxBlock* out) {
  constexpr QuantFormat kFormat = quant_format(kType);
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(kFormat.offset));
  for (int64_t b = 0; b < count; ++b) {
    const Codes512 codes = load_codes<kType>(panel_codes + (begin + b) * code_bytes(kFormat));
    for (int g = 0; g < 8; ++g) {
      const __m512i q = _mm512_sub_epi8(codes.group[g], offset);
      if constexpr (is_narrow(kType)) {
        // Shifts of 16 bits: the mask drops what came from the neighbouring byte.
        const __m512i sixteen = _mm512_and_si512(_mm512_slli_epi16(q, 4), _mm512_set1_epi8(static_cast<char>(0xf0)));
        _mm512_store_si512(out[b].codes[g], sixteen);
        _mm512_store_si512(out[b].codes[8 + g], q);
      } else {
        _mm512_store_si512(out[b].codes[g], q);
      }
    }
    const Scales512 s = load_scales<kType>(panel_scales, begin + b);
    _mm512_store_ps(out[b].sw, s.sw);
    if constexpr (has_min(kFormat)) _mm512_store_ps(out[b].wm, s.wm);
  }
}

using Dots = int32_t[kRowTile][kPanel];

// Products in a phase: their dots take 12 KiB, and leave room in L1 for x and codes (measured: 8 to 12 is best).
constexpr int64_t kPhase = 12;

// How the integers of one block come from the tiles: one product of narrow codes, or two of wide ones.
enum class AmxKind { kNarrowSigned, kNarrowUnsigned, kWide };

// The same where a phase unpacks its own codes.
template <AmxKind kKind>
constexpr int64_t kOwnPhase = kKind == AmxKind::kWide ? 8 : 6;

constexpr AmxKind amx_kind(DType type) {
  if (!is_narrow(type)) return AmxKind::kWide;
  return quant_format(type).offset != 0 ? AmxKind::kNarrowSigned : AmxKind::kNarrowUnsigned;
}

template <bool kMin, bool kWide>
QUIRE_KERNEL_INLINE void fold_tile(__m512* acc, const Dots* dots, const AmxBlock& w, const RowTileBlock& x) {
  const __m512 sw = _mm512_load_ps(w.sw);
  const __m512 wm = _mm512_load_ps(w.wm);
#pragma GCC unroll 16
  for (int r = 0; r < kRowTile; ++r) {
    __m512i sum = _mm512_load_si512(dots[0][r]);
    if constexpr (kWide) sum = _mm512_add_epi32(_mm512_slli_epi32(sum, 4), _mm512_load_si512(dots[1][r]));
    const __m512 dot = _mm512_cvtepi32_ps(sum);
    acc[r] = _mm512_fmadd_ps(dot, _mm512_mul_ps(_mm512_set1_ps(x.sa[r]), sw), acc[r]);
    if constexpr (kMin) acc[r] = _mm512_fmadd_ps(wm, splat_bits(x.aux[r]), acc[r]);
  }
}

// The dots of two products into tiles c0, c1. Narrow: blocks i and i+1 (past the end the last one again, into room that
// is there). Wide: high and low parts of block i/2, whose codes are loaded once. (gcc's intrinsics paste tile numbers,
// so they must be literals.)
#define QUIRE_MULTIPLY_TWO(c0, c1, i)                           \
  do {                                                          \
    _tile_zero(c0);                                             \
    _tile_zero(c1);                                             \
    if constexpr (kKind == AmxKind::kWide) {                    \
      _tile_loadd(6, w[(i) / 2].codes, 64);                     \
      _tile_loadd(4, x[(i) / 2].codes, 2 * kBlock);             \
      _tile_dpbssd(c0, 4, 6);                                   \
      _tile_loadd(5, &x[(i) / 2].codes[0][kBlock], 2 * kBlock); \
      _tile_dpbssd(c1, 5, 6);                                   \
    } else {                                                    \
      const int64_t next = (i) + 1 < count ? (i) + 1 : (i);     \
      _tile_loadd(4, x[i].codes, 2 * kBlock);                   \
      _tile_loadd(6, w[i].codes, 64);                           \
      if constexpr (kKind == AmxKind::kNarrowSigned) {          \
        _tile_dpbssd(c0, 4, 6);                                 \
      } else {                                                  \
        _tile_dpbsud(c0, 4, 6);                                 \
      }                                                         \
      _tile_loadd(5, x[next].codes, 2 * kBlock);                \
      _tile_loadd(7, w[next].codes, 64);                        \
      if constexpr (kKind == AmxKind::kNarrowSigned) {          \
        _tile_dpbssd(c1, 5, 7);                                 \
      } else {                                                  \
        _tile_dpbsud(c1, 5, 7);                                 \
      }                                                         \
    }                                                           \
  } while (0)

// Dots of `count` products. A pair is stored while the next one is multiplied.
template <AmxKind kKind>
QUIRE_KERNEL_INLINE void multiply_phase(const RowTileBlock* x, const AmxBlock* w, int64_t count, Dots* dots) {
  QUIRE_MULTIPLY_TWO(0, 1, 0);
  int64_t b = 0;
  for (; b + 2 < count; b += 4) {
    QUIRE_MULTIPLY_TWO(2, 3, b + 2);
    _tile_stored(0, dots[b], 64);
    _tile_stored(1, dots[b + 1], 64);
    if (b + 4 < count) QUIRE_MULTIPLY_TWO(0, 1, b + 4);
    _tile_stored(2, dots[b + 2], 64);
    _tile_stored(3, dots[b + 3], 64);
  }
  if (b < count) {
    _tile_stored(0, dots[b], 64);
    _tile_stored(1, dots[b + 1], 64);
  }
}
#undef QUIRE_MULTIPLY_TWO

// A tile of rows times a panel. kOwn: each phase unpacks its own blocks, so few that they, x and the dots stay in L1; a
// whole panel unpacked does not, and its stores then cost more than the unpacking. Else `w` is the panel unpacked,
// which pays where many tiles of rows share it. (Measured for 16 rows: own 1.2 to 2 times faster; even at 128; 512:
// 0.85.)
template <DType kType, bool kOwn>
static __attribute__((noinline)) void amx_tile(const PanelTask& t, const AmxBlock* w) {
  constexpr AmxKind kKind = amx_kind(kType);
  constexpr bool kMin = has_min(quant_format(kType));
  constexpr int64_t kProducts = kKind == AmxKind::kWide ? 2 : 1;  // of a block
  constexpr int64_t kSteps = kOwn ? kOwnPhase<kKind> : kPhase;
  constexpr int64_t kBlocks = kSteps / kProducts;
  alignas(64) Dots dots[kSteps + 1];
  alignas(64) AmxBlock own[kOwn ? kBlocks : 1];
  const int64_t ahead = t.panel_stride / t.blocks;
  __m512 acc[kRowTile];
#pragma GCC unroll 16
  for (int r = 0; r < kRowTile; ++r) acc[r] = _mm512_setzero_ps();
  for (int64_t begin = 0; begin < t.blocks; begin += kBlocks) {
    const int64_t count = t.blocks - begin < kBlocks ? t.blocks - begin : kBlocks;
    if constexpr (kOwn) unpack_blocks<kType>(t.codes, t.scales, begin, count, own);
    const AmxBlock* blocks = kOwn ? own : w + begin;
    multiply_phase<kKind>(t.x + begin, blocks, count * kProducts, dots);
    for (int64_t b = 0; b < count; ++b) {
      if constexpr (kOwn) {
        // A share of the next panel, which lies behind this one, is on its way while the block is folded: small batches
        // wait for memory otherwise.
        const uint8_t* soon = t.codes + t.panel_stride + (begin + b) * ahead;
        for (int64_t i = 0; i < ahead; i += 64) _mm_prefetch(soon + i, _MM_HINT_T0);
      }
      fold_tile<kMin, kKind == AmxKind::kWide>(acc, dots + b * kProducts, blocks[b], t.x[begin + b]);
    }
  }
  store_rows<kRowTile>(t, acc);
}

// Panels whose unpacked form shares L1 with a tile of rows.
constexpr int64_t kAmxPanelBytes = 24 << 10;
// Up to this many rows each tile unpacks for itself.
constexpr int64_t kOwnUnpackRows = 64;

template <DType kType>
static void amx_panels(const QuantisedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                       int64_t row_end, int64_t panel_begin, int64_t panel_end, AmxBlock* scratch) {
  const int64_t together = kAmxPanelBytes / (x.blocks * static_cast<int64_t>(sizeof(AmxBlock)));
  const int64_t step = together < 1 ? 1 : together;
  configure_tiles(is_narrow(kType));
  if (row_end - row_begin <= kOwnUnpackRows) {
    for (int64_t i = panel_begin; i < panel_end; ++i) {
      for (int64_t row = row_begin; row < row_end; row += kRowTile) {
        amx_tile<kType, true>(make_task(x, w, args, row, row_end, i), nullptr);
      }
    }
    _tile_release();
    return;
  }
  for (int64_t p = panel_begin; p < panel_end; p += step) {
    const int64_t end = p + step < panel_end ? p + step : panel_end;
    for (int64_t i = p; i < end; ++i) {
      const uint8_t* panel = w.data + i * w.panel_stride;
      unpack_blocks<kType>(panel, panel + w.scale_offset, 0, x.blocks, scratch + (i - p) * x.blocks);
    }
    for (int64_t row = row_begin; row < row_end; row += kRowTile) {
      for (int64_t i = p; i < end; ++i) {
        amx_tile<kType, false>(make_task(x, w, args, row, row_end, i), scratch + (i - p) * x.blocks);
      }
    }
  }
  _tile_release();
}

}  // namespace quire::cpu::QUIRE_ISA_NS
