// SPDX-License-Identifier: Apache-2.0
// The measured policy of matrix products: from how many rows on which path is faster, and which tiles it takes. All
// paths give the same bits, so every number here is about speed alone.
//
// Measured on an H200 with `quire bench kernels --device cuda`: weights that walk through 1 GB so that no cache holds
// them, launches recorded, bf16, shapes of Qwen3-0.6B and Qwen3-8B (docs/notes/gpu-products.md has the tables).
// "The library" is cuBLASLt, of which the fastest algorithm without a split of K counts.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/gpu/kernel_table.h"
#include "kernels/params/hopper.h"
#include "ops/linear.h"

namespace quire::gpu {

// Rows from which the library serves a weight of the activations' type. At 64 rows it takes 11.7 us for 4096x4096 and
// 30.3 us for 4096x12288; quire's kernels for up to 32 rows take 17.0 us and 35.5 us with 16 rows already.
inline constexpr int64_t kLibraryRows = 33;
inline constexpr int kHopperFewRows = 32;  // the most rows of linear_few and linear_wide
// The most rows of linear_quantised_few and linear_quantised_wide. With 256 rows linear_quantised_wide takes 32 us for
// 4096x4096 in Q4_0 and 130 us for 24576x4096; the library takes 33 and 180 us, with the dequantised weight.
inline constexpr int kHopperQuantisedFewRows = 8;
inline constexpr int kHopperQuantisedWideRows = 256;
// Rows from which the library serves what these do not. For 64 rows of 4096x4096 the portable kernel takes 176 us.
inline constexpr int64_t kLibraryRowsQuantised = 17;
// Rows up to which linear_quantised_few computes an RMS norm itself; for more a launch of its own is faster.
inline constexpr int kHopperQuantisedNormRows = 2;
// Elements of a quantised weight that are dequantised at a time for the library: 128 MiB.
inline constexpr int64_t kDequantisedElements = int64_t{64} << 20;
// Rows of a weight that the library takes at a time, with activations of this type: all, or as many as are dequantised
// at once.
inline int64_t library_rows(const PackedMatrix& w, DType activation) {
  if (w.dtype() == activation) return w.n();
  return std::min(w.n(), std::max<int64_t>(64, kDequantisedElements / w.k() / 64 * 64));
}
// Rows up to which the portable kernel computes an RMS norm in every threadgroup.
inline constexpr int64_t kPortableNormRows = 4;

// Tiles of linear_tall: a threadgroup multiplies w_rows of W with x_rows of x; two peers share what they load. They
// serve first to last rows of x. Tiles of more than 64 rows of W are wide: they may also have fewer rows.
struct HopperTallTile {
  KernelId kernel;
  int w_rows, x_rows, peers, first, last;
};
constexpr bool is_wide(const HopperTallTile& tile) {
  return tile.w_rows > 64;
}
// From the narrowest tiles of W to the widest. The first whose threadgroups all fit the chip at once is taken: the
// product waits for memory, so what counts is how many multiprocessors load. (3072x8192 with 128 rows takes 18.8 us in
// tiles of 48 rows and 20.4 us in tiles of 64.) Each tile loads x again, so with more than 64 rows of x tiles that are
// not pairs must be wide.
inline constexpr HopperTallTile kHopperTallTiles[] = {
    {KernelId::kHopperTallN16, 16, 64, 1, 1, 64},             // narrow
    {KernelId::kHopperTallN32, 32, 64, 1, 1, 64},             // narrow
    {KernelId::kHopperTallN48, 48, 64, 1, 1, 64},             // narrow
    {KernelId::kHopperTallN128, 128, 64, 1, 17, 64},          // wide
    {KernelId::kHopperTallN192, 192, 64, 1, 17, 64},          // wide
    {KernelId::kHopperTallN256, 256, 64, 1, 17, 64},          // wide
    {KernelId::kHopperTallN32Pair, 32, 64, 2, 65, 256},       // pair
    {KernelId::kHopperTallN48Pair, 48, 64, 2, 65, 256},       // pair
    {KernelId::kHopperTallN64Pair, 64, 64, 2, 65, 256},       // pair
    {KernelId::kHopperTallN192M128, 192, 128, 1, 65, 128},    // wide
    {KernelId::kHopperTallN256M128, 256, 128, 1, 65, 128},    // wide
    {KernelId::kHopperTallAcrossPair, 64, 128, 2, 129, 256},  // across
};
// With 65 to 128 rows a wide tile must be so wide, or loading x again takes longer than loading W.
inline constexpr int kHopperTallLeastWidth = 144;
inline constexpr int kHopperTallRows = 256;

// Whether linear_tall is faster than the library. Wide tiles are not (24576x4096 with 64 rows takes 54 us, and 51 us
// with the library), but where something follows the sums, for which the library needs a launch of its own. Narrow ones
// always are faster up to 128 rows (10.9 us to 11.7 us for 4096x4096 with 64 rows, 30.5 us to 32.8 us for 4096x12288
// with 128). Above that the product must have narrow tiles (1024x3072 with 256 rows: 6.7 us to 7.6 us), or most of the
// chip and a long K (4096x12288 with 256 rows: 41.2 us to 43.1 us), or something that follows the sums. `adapted`:
// adapters are added to them. `groups`: threadgroups of the product.
constexpr bool tall_beats_library(const HopperLinearParams& p, bool adapted, const HopperTallTile& tile, int groups,
                                  int multiprocessors) {
  const bool more = adapted || p.epilogue == kHopperGated || p.epilogue == kHopperResidual ||
                    (p.biased && p.epilogue == kHopperStore);
  if (is_wide(tile)) return more;
  if (p.m <= 128) return true;
  if (tile.x_rows == 64) return tile.w_rows == 32 || more;
  if (more) return groups * 10 >= multiprocessors * 7;
  return groups * 10 >= multiprocessors * 9 && p.k >= (p.m > 160 ? 8192 : 4096);
}

// linear_tall computes the first product of its adapters where a threadgroup loads so many bytes of W for each part of
// that product that it computes; otherwise that is a launch of its own. The parts take a while beside the loads of W,
// and the end of the product waits for all of them. With 64 rows and eight adapters of rank 16, together against apart:
// 4096x12288 takes 6.9 us less (768 KB for one part), 24576x4096 in two halves 6.0 us less (768 KB each for two),
// 4096x4096 0.2 us less (256 KB for one), 6144x4096 in three 3.1 us more (128 KB each for three).
inline constexpr int64_t kHopperLoraHidingBytes = 256 << 10;

}  // namespace quire::gpu
