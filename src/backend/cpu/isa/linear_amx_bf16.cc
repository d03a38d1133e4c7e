// SPDX-License-Identifier: Apache-2.0
// linear of BF16 weights with AMX, the rounded form: 16 rows of x, rounded to bf16, x 32 k times 32 k x 16 outputs,
// which is how weights are packed. Few rows are tiles of as many rows: the same products in the same order.
#include "backend/cpu/isa/activation_functions.h"
#include "backend/cpu/isa/linear_amx.h"
#include "backend/cpu/isa/linear_outputs_amx.h"
#include "backend/cpu/isa/tiles_amx.h"
#include "base/math.h"

namespace quire::cpu::QUIRE_ISA_NS {

namespace {

#define QUIRE_KERNEL_INLINE static inline __attribute__((always_inline))

constexpr int64_t kTileBytes = 2 * kPanel * kBlock;  // of a weight
constexpr int64_t kPairRows = 2 * kRowTile;          // two tiles of rows are multiplied at a time

// Rows in a tile of x, and bytes of one block of such a tile.
QUIRE_KERNEL_INLINE int tile_height(int64_t rows) {
  return rows < kRowTile ? static_cast<int>(rows) : kRowTile;
}
QUIRE_KERNEL_INLINE int64_t x_block_bytes(int height) {
  return 2 * kBlock * height;
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
};
Task task_of(const PreparedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin, int64_t row_end) {
  Task t;
  t.w = &w;
  t.args = &args;
  t.blocks = ceil_div(w.k, int64_t{kBlock});
  t.x_block = x_block_bytes(tile_height(x.rows));
  t.x_tile = t.blocks * t.x_block;
  t.x = reinterpret_cast<const uint8_t*>(x.data) + row_begin / kRowTile * t.x_tile;
  t.row_begin = row_begin;
  t.row_end = row_end;
  return t;
}

// Two panels: neighbours, or those of gate and up. If there is no second neighbour, both are the same, and the second
// is not written.
struct Panels {
  const uint8_t* w[2];
  const uint8_t* soon[2];  // those that are multiplied next
  Columns columns[2];
  int64_t first;  // panel of outputs
  bool alone;
};
Panels panels_of(const Task& t, int64_t first, int64_t second, int64_t step) {
  Panels p;
  p.first = first;
  p.alone = first == second;
  const int64_t panels[2] = {first, second};
  for (int i = 0; i < 2; ++i) {
    p.w[i] = t.w->panel(panels[i]);
    p.soon[i] = t.w->panel(panels[i] + step);
    p.columns[i] = columns_of(*t.w, *t.args, panels[i]);
  }
  return p;
}

// The sums of a tile of rows and a panel. Of two tiles and two panels, 0 and 1 are the first tile's.
using Sums = float[kRowTile][kPanel];

// What becomes of the two panels' sums of a row.
struct Neighbours {
  QUIRE_KERNEL_INLINE void put(const Panels& p, const Sums* sums, int64_t r, float* y) {
    put_values(p.columns[0], with_bias(p.columns[0], _mm512_load_ps(sums[0][r])), y);
    if (!p.alone) put_values(p.columns[1], with_bias(p.columns[1], _mm512_load_ps(sums[1][r])), y + kPanel);
  }
};
template <typename Act>
struct GateAndUp {
  QUIRE_KERNEL_INLINE void put(const Panels& p, const Sums* sums, int64_t r, float* y) {
    const F32x16 gate = {with_bias(p.columns[0], _mm512_load_ps(sums[0][r]))};
    const F32x16 up = {with_bias(p.columns[1], _mm512_load_ps(sums[1][r]))};
    put_values(p.columns[0], (Act::of(gate) * up).v, y);
  }
};

// 32 k of few rows: one or two tiles.
template <int kTiles>
QUIRE_KERNEL_INLINE void multiply_few(const uint8_t* x, int64_t x_tile, const uint8_t* w0, const uint8_t* w1) {
  QUIRE_TILE_LOAD(6, w0, 64);
  QUIRE_TILE_LOAD(4, x, 64);
  QUIRE_TILE_MULTIPLY(0, 4, 6);
  QUIRE_TILE_LOAD(7, w1, 64);
  QUIRE_TILE_MULTIPLY(1, 4, 7);
  if constexpr (kTiles == 2) {
    QUIRE_TILE_LOAD(5, x + x_tile, 64);
    QUIRE_TILE_MULTIPLY(2, 5, 6);
    QUIRE_TILE_MULTIPLY(3, 5, 7);
  }
}
// The same of many rows, which pass by while the weights stay in L1.
QUIRE_KERNEL_INLINE void multiply_many(const uint8_t* x0, const uint8_t* x1, const uint8_t* w0, const uint8_t* w1) {
  QUIRE_TILE_LOAD_ONCE(4, x0, 64);
  QUIRE_TILE_LOAD(6, w0, 64);
  QUIRE_TILE_MULTIPLY(0, 4, 6);
  QUIRE_TILE_LOAD(7, w1, 64);
  QUIRE_TILE_MULTIPLY(1, 4, 7);
  QUIRE_TILE_LOAD_ONCE(5, x1, 64);
  QUIRE_TILE_MULTIPLY(2, 5, 6);
  QUIRE_TILE_MULTIPLY(3, 5, 7);
}

// A share of the panels that come after these two, which lie behind them, is prefetched with this block: with few rows
// this loop waits for memory.
QUIRE_KERNEL_INLINE void prefetch(const uint8_t* panel, int64_t stride, int64_t block, int64_t blocks) {
  const int64_t share = stride / blocks;
  const uint8_t* soon = panel + 2 * stride + block * share;
  for (int64_t i = 0; i < share; i += 64) _mm_prefetch(soon + i, _MM_HINT_T1);
}

// One or two tiles of rows and two panels from memory.
template <int kTiles>
static __attribute__((noinline)) void few_rows(const Task& t, const Panels& p) {
  const uint8_t* x = t.x;
  clear_sums();
  for (int64_t b = 0; b < t.blocks; ++b, x += t.x_block) {
    prefetch(p.w[0], t.w->panel_stride, b, t.blocks);
    prefetch(p.w[1], t.w->panel_stride, b, t.blocks);
    multiply_few<kTiles>(x, t.x_tile, p.w[0] + b * kTileBytes, p.w[1] + b * kTileBytes);
  }
  alignas(64) Sums sums[4];
  store_sums(sums);
  const int64_t stride = t.args->out.stride;
  float* y = static_cast<float*>(t.args->out.data) + t.row_begin * stride + p.first * kPanel;
  for (int64_t r = 0; r < t.row_end - t.row_begin; ++r, y += stride) {
    Neighbours::put(p, sums + r / kRowTile * 2, r % kRowTile, y);
  }
}

// Steps before the first outputs of the last tiles are written: until then their sums are on their way to memory.
constexpr int64_t kSumsOnTheirWay = 2;

// Two panels of up to kBlocksInL1 blocks stay in L1 while rows pass by. Longer ones are taken in parts of about
// kPartBlocks, each for kGroupPairs pairs of tiles of rows, whose sums are kept in between.
constexpr int64_t kBlocksInL1 = 20;
constexpr int64_t kPartBlocks = 16;
constexpr int64_t kGroupPairs = 8;

// Many tiles of rows, two at a time. Their outputs are written a few rows at a time between the products of the next
// two, and the next panels come into L2 meanwhile.
template <typename Outputs>
static __attribute__((noinline)) void many_rows(const Task& t, const Panels& p) {
  const int64_t all = t.row_end - t.row_begin;
  const int64_t pairs = ceil_div(all, kPairRows);
  const int64_t parts = t.blocks <= kBlocksInL1 ? 1 : ceil_div(t.blocks, kPartBlocks);
  const int64_t group = parts == 1 ? pairs : kGroupPairs;
  const int64_t stride = t.args->out.stride;
  const int64_t soon_bytes = ceil_div(kTileBytes, pairs);
  int64_t soon = 0;
  float* y = static_cast<float*>(t.args->out.data) + t.row_begin * stride + p.first * kPanel;
  alignas(64) Sums buffers[kGroupPairs][4];  // with one part, two take turns
  const Sums* sums = buffers[0];
  int64_t rows = 0, done = 0;
  const auto put = [&](int64_t most) __attribute__((always_inline)) {
    const int64_t end = rows - done < most ? rows : done + most;
    for (; done < end; ++done, y += stride) Outputs::put(p, sums + done / kRowTile * 2, done % kRowTile, y);
  };
  for (int64_t first = 0; first < pairs; first += group) {
    const int64_t last = pairs - first < group ? pairs : first + group;
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t begin = t.blocks * part / parts, end = t.blocks * (part + 1) / parts;
      const bool ends = part + 1 == parts;
      const int64_t free_steps = end - begin > kSumsOnTheirWay ? end - begin - kSumsOnTheirWay : 1;
      const int64_t share = ends ? ceil_div(kPairRows, free_steps) : 0;
      for (int64_t pair = first; pair < last; ++pair) {
        const uint8_t* x0 = t.x + 2 * pair * t.x_tile;
        const uint8_t* x1 = pair * kPairRows + kRowTile < all ? x0 + t.x_tile : x0;
        Sums* now = buffers[parts == 1 ? pair % 2 : pair - first];
        if (part == 0) {
          clear_sums();
        } else {
          load_sums(now);
        }
        for (int64_t b = begin; b < end; ++b) {
          const int64_t at = b * kTileBytes;
          multiply_many(x0 + at, x1 + at, p.w[0] + at, p.w[1] + at);
          for (const int64_t until = soon + soon_bytes; soon < until; soon += 64) {
            _mm_prefetch(p.soon[0] + soon, _MM_HINT_T1);
            _mm_prefetch(p.soon[1] + soon, _MM_HINT_T1);
          }
          if (b >= begin + kSumsOnTheirWay) put(share);
        }
        if (ends) put(kPairRows);
        store_sums(now);
        if (!ends) continue;
        sums = now;
        const int64_t left = all - pair * kPairRows;
        rows = left < kPairRows ? left : kPairRows;
        done = 0;
      }
    }
    put(kPairRows);
  }
}

template <typename Act>
void gated_rows(const Task& t, const Panels& p) {
  many_rows<GateAndUp<Act>>(t, p);
}

}  // namespace

int64_t rounded_bytes(const PackedView& w, int64_t rows) {
  return ceil_div(rows, kRowTile) * ceil_div(w.k, int64_t{kBlock}) * x_block_bytes(tile_height(rows));
}

void rounded_prepare(const Tensor& x, const PackedView& w, int64_t row_begin, int64_t row_end,
                     const PreparedRows& out) {
  const int64_t blocks = ceil_div(w.k, int64_t{kBlock});
  const int64_t block_bytes = x_block_bytes(tile_height(out.rows));
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* from = static_cast<const float*>(x.data) + row * x.stride;
    std::byte* to = out.data + row / kRowTile * blocks * block_bytes + row % kRowTile * 2 * kBlock;
    for (int64_t b = 0; b < blocks; ++b, to += block_bytes) _mm512_store_si512(to, round_block(from, w.k, b));
  }
}

void rounded_product(const PreparedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                     int64_t row_end, int64_t panel_begin, int64_t panel_end) {
  const Task t = task_of(x, w, args, row_begin, row_end);
  configure_tiles(tile_height(x.rows), kPanel);
  const int64_t rows = row_end - row_begin;
  for (int64_t p = panel_begin; p < panel_end; p += 2) {
    const Panels panels = panels_of(t, p, p + 1 < panel_end ? p + 1 : p, 2);
    if (rows <= kRowTile) {
      few_rows<1>(t, panels);
    } else if (rows <= kPairRows) {
      few_rows<2>(t, panels);
    } else {
      many_rows<Neighbours>(t, panels);
    }
  }
  release_tiles();
}

bool rounded_gated(const PreparedRows& x, const PackedView& w, const LinearArgs& args, int64_t row_begin,
                   int64_t row_end, int64_t panel_begin, int64_t panel_end) {
  if (x.rows <= kPairRows || args.gated->limit > 0) return false;
  const Task t = task_of(x, w, args, row_begin, row_end);
  configure_tiles(kRowTile, kPanel);
  const int64_t half = w.panels() / 2;
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    const Panels panels = panels_of(t, p, half + p, 1);
    [&] { QUIRE_DISPATCH_ACTIVATION(args.gated->activation, gated_rows, t, panels) }();
  }
  release_tiles();
  return true;
}

}  // namespace quire::cpu::QUIRE_ISA_NS
