// SPDX-License-Identifier: Apache-2.0
// linear of BF16 weights with AMX, the rounded form: y^T = W x^T in tiles of bf16, 16 outputs x 32 k times 32 k x 16
// rows. The first operand is the weight, which is packed as tiles. One row is a tile one column wide: the same products
// in the same order.
#include <immintrin.h>

#include <cstring>

#include "backend/cpu/isa/linear_amx.h"
#include "backend/cpu/isa/tiles_amx.h"
#include "base/math.h"

namespace quire::cpu::QUIRE_ISA_NS {

namespace {

#define QUIRE_KERNEL_INLINE static inline __attribute__((always_inline))

constexpr int64_t kTileBytes = 2 * kPanel * kBlock;  // of a weight

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

template <int kTiles>
QUIRE_KERNEL_INLINE void store_sums(Sums* sums, int64_t stride) {
  QUIRE_TILE_STORE(0, sums[0], stride);
  QUIRE_TILE_STORE(1, sums[1], stride);
  if constexpr (kTiles == 2) {
    QUIRE_TILE_STORE(2, sums[2], stride);
    QUIRE_TILE_STORE(3, sums[3], stride);
  }
}

// Stores the tiles of two panels and one or two tiles of rows.
template <int kTiles>
QUIRE_KERNEL_INLINE void finish(const Task& t, int64_t panel, int64_t panel_end, int64_t row) {
  alignas(64) Sums sums[4];
  store_sums<kTiles>(sums, t.width == 1 ? 4 : 64);
  put_sums(t, sums[0], panel, row);
  if (panel + 1 < panel_end) put_sums(t, sums[1], panel + 1, row);
  if constexpr (kTiles == 2) {
    put_sums(t, sums[2], panel, row + kRowTile);
    if (panel + 1 < panel_end) put_sums(t, sums[3], panel + 1, row + kRowTile);
  }
}

// One step of 32 k: sums 0, 1 are panels a0, a1 with the first tile of rows; 2, 3 the same with the second. kOnce: the
// rows are not needed again soon.
template <int kTiles, bool kOnce>
QUIRE_KERNEL_INLINE void step(const uint8_t* a0, const uint8_t* a1, const uint8_t* x, int64_t x_tile,
                              int64_t x_stride) {
  if constexpr (kOnce) {
    QUIRE_TILE_LOAD_ONCE(6, x, x_stride);
  } else {
    QUIRE_TILE_LOAD(6, x, x_stride);
  }
  QUIRE_TILE_LOAD(4, a0, 64);
  QUIRE_TILE_MULTIPLY(0, 4, 6);
  QUIRE_TILE_LOAD(5, a1, 64);
  QUIRE_TILE_MULTIPLY(1, 5, 6);
  if constexpr (kTiles == 2) {
    if constexpr (kOnce) {
      QUIRE_TILE_LOAD_ONCE(7, x + x_tile, x_stride);
    } else {
      QUIRE_TILE_LOAD(7, x + x_tile, x_stride);
    }
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

// A share of the panels that come after these two, which lie behind them, is prefetched with this block: with few rows
// this loop waits for memory.
QUIRE_KERNEL_INLINE void prefetch(const uint8_t* panel, int64_t stride, int64_t block, int64_t blocks) {
  const int64_t share = stride / blocks;
  const uint8_t* soon = panel + 2 * stride + block * share;
  for (int64_t i = 0; i < share; i += 64) _mm_prefetch(soon + i, _MM_HINT_T1);
}

// Two panels times one or two tiles of rows from memory.
template <int kTiles>
static __attribute__((noinline)) void stream_panels(const Task& t, int64_t panel, int64_t panel_end) {
  const uint8_t* w0 = t.w->panel(panel);
  const uint8_t* w1 = panel + 1 < panel_end ? t.w->panel(panel + 1) : w0;
  const uint8_t* x = t.x;
  clear_sums();
  for (int64_t b = 0; b < t.blocks; ++b, x += t.x_block) {
    prefetch(w0, t.w->panel_stride, b, t.blocks);
    prefetch(w1, t.w->panel_stride, b, t.blocks);
    step<kTiles, false>(w0 + b * kTileBytes, w1 + b * kTileBytes, x, t.x_tile, 4 * t.width);
  }
  finish<kTiles>(t, panel, panel_end, t.row_begin);
}

// Two panels of up to kBlocksInL1 blocks stay in L1 while rows pass by. Longer ones are taken in parts of about
// kPartBlocks, each for kBlockPairs pairs of tiles of rows, whose sums are kept in between.
constexpr int64_t kBlocksInL1 = 20;
constexpr int64_t kPartBlocks = 16;
constexpr int64_t kBlockPairs = 8;

// A part of the panels, blocks [begin, end), and one or two tiles of rows.
template <int kTiles>
static __attribute__((noinline)) void ready_panels(const Task& t, const uint8_t* a0, const uint8_t* a1,
                                                   const uint8_t* x, int64_t begin, int64_t end, Sums* sums) {
  if (begin == 0) {
    clear_sums();
  } else {
    QUIRE_TILE_LOAD_ONCE(0, sums[0], 64);
    QUIRE_TILE_LOAD_ONCE(1, sums[1], 64);
    if constexpr (kTiles == 2) {
      QUIRE_TILE_LOAD_ONCE(2, sums[2], 64);
      QUIRE_TILE_LOAD_ONCE(3, sums[3], 64);
    }
  }
  for (int64_t b = begin; b < end; ++b) {
    step<kTiles, true>(a0 + b * kTileBytes, a1 + b * kTileBytes, x + b * t.x_block, t.x_tile, 64);
  }
}

// Many tiles of rows, two at a time.
void many_rows(const Task& t, int64_t panel, int64_t panel_end) {
  const uint8_t* a0 = t.w->panel(panel);
  const uint8_t* a1 = panel + 1 < panel_end ? t.w->panel(panel + 1) : a0;
  const int64_t parts = t.blocks <= kBlocksInL1 ? 1 : ceil_div(t.blocks, kPartBlocks);
  constexpr int64_t kRows = 2 * kRowTile;
  alignas(64) Sums sums[kBlockPairs][4];
  for (int64_t first = t.row_begin; first < t.row_end; first += kBlockPairs * kRows) {
    const int64_t last = t.row_end - first < kBlockPairs * kRows ? t.row_end : first + kBlockPairs * kRows;
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t begin = t.blocks * part / parts, end = t.blocks * (part + 1) / parts;
      for (int64_t row = first; row < last; row += kRows) {
        const uint8_t* x = t.x + (row - t.row_begin) / kRowTile * t.x_tile;
        Sums* kept = sums[(row - first) / kRows];
        const bool two = row + kRowTile < t.row_end;
        if (two) {
          ready_panels<2>(t, a0, a1, x, begin, end, kept);
        } else {
          ready_panels<1>(t, a0, a1, x, begin, end, kept);
        }
        if (part + 1 < parts) {
          two ? store_sums<2>(kept, 64) : store_sums<1>(kept, 64);
        } else {
          two ? finish<2>(t, panel, panel_end, row) : finish<1>(t, panel, panel_end, row);
        }
      }
    }
  }
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
                     int64_t row_end, int64_t panel_begin, int64_t panel_end) {
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
  const int64_t rows = row_end - row_begin;
  for (int64_t p = panel_begin; p < panel_end; p += 2) {
    if (rows <= kRowTile) {
      stream_panels<1>(t, p, panel_end);
    } else if (rows <= 2 * kRowTile) {
      stream_panels<2>(t, p, panel_end);
    } else {
      many_rows(t, p, panel_end);
    }
  }
  release_tiles();
}

}  // namespace quire::cpu::QUIRE_ISA_NS
