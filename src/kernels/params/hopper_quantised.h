// SPDX-License-Identifier: Apache-2.0
// Parameters of linear for quantised weights on Hopper (kernels/cuda/linear_quantised_few.cuh,
// linear_quantised_wide.cuh).
#pragma once

#include "kernels/params/hopper.h"
#include "kernels/params/linear.h"

struct HopperQuantisedParams {
  HopperLinearParams linear;
  WeightParams weight;
  uint group_inverse;  // 2^32 / group_steps, rounded up
  int kind;            // hopper_quantised_kind()
  int panels;          // panels of W (not gated)
  int gate_panels;     // panels of each half (gated)
  int units;           // linear_quantised_few: panels, or (gated) pairs of them; linear_quantised_wide: tiles
  int at_once, turns;  // tiles at once, and warps (wide: warpgroups) that share a tile
  int depth;           // pieces that a warp has requested ahead
  int slot_bytes;      // of a piece in shared memory
  int scale_bytes;     // of a warp's scales
  int x_row;           // few: bytes from row to row of x in shared memory
  int gate_barrier;    // few: the first of the barriers of gate and up
};

enum {
  kHopperPieceSteps = 16,  // of a piece
  kHopperPieceDepth = 3    // most pieces that a warp has requested ahead
};
// Beside WeightScheme: kSchemeGroup with WeightParams::zero_points.
enum { kHopperSchemeZeroPoint = 8 };
// Steps that share one entry of a warp's scales, and bytes: of an entry, of the entries of these steps, and of a piece.
template <int Table, int Scheme>
struct HopperPieceScales {
  static constexpr int steps = (Scheme == kSchemeSubScale && Table == 0) || Scheme == kSchemeSubScaleMin ? 1 : 2;
  static constexpr int entry = Scheme == kHopperSchemeZeroPoint ? 16 : 8;
  static constexpr int unit = entry == 16 ? 16 * 16 + 16 : 16 * 8;  // padded, where entries are stored one by one
  static constexpr int bytes = kHopperPieceSteps / steps * unit;
};

// ---- 1 to 8 rows (kernels/cuda/linear_quantised_few.cuh) ----

enum {
  kHopperFewAtOnce = 12,             // most tiles at once
  kHopperFewTurns = 4,               // most warps that share a tile
  kHopperFewQuantisedThreads = 480,  // at most
  kHopperFewBarriers = 15            // named barriers beside that of all threads
};

// ---- more rows, and experts (kernels/cuda/linear_quantised_wide.cuh) ----

enum {
  kHopperQuantisedWideStages = 8,        // most stages of x in the ring
  kHopperQuantisedWideSumsRow = 64 + 4,  // floats; padded so that neighbouring rows are in different banks
  kHopperQuantisedWideAlignment = 1024   // of the ring
};
// Whether warpgroups take turns. With many rows of x each has a tile alone, and room for fewer operands.
constexpr bool hopper_quantised_wide_turns(int rows) {
  return rows <= 32;
}
// Most warpgroups that unpack and multiply, and threads: one more warp loads x.
constexpr int hopper_quantised_wide_groups(int rows) {
  return hopper_quantised_wide_turns(rows) ? 3 : 4;
}
constexpr int hopper_quantised_wide_threads(int rows) {
  return 128 * hopper_quantised_wide_groups(rows) + 32;
}
// Bytes of a stage, 256 k of x, and of the sums of a tile, for so many rows of x.
constexpr int hopper_quantised_wide_stage(int rows) {
  return rows * 512;
}
constexpr int hopper_quantised_wide_sums(int rows) {
  return rows * kHopperQuantisedWideSumsRow * 4;
}
// A tile is four panels, or (gated) two of gate and two of up.
struct HopperQuantisedWideParams {
  HopperTensorMap x;
  HopperQuantisedParams product;
  int rows;       // of x, for each threadgroup; experts: in a tile
  int stages;     // of the ring
  int row_tiles;  // experts: tiles of rows that there is room for (HopperMoeSortParams::max_tiles); one matrix: 0
  int late;       // the weights, or the tables of experts, are only known after the preceding launch
};

// ---- kinds of weights ----

constexpr int hopper_quantised_kind(int low_bits, int high_bits, int table, int scheme) {
  return low_bits | high_bits << 4 | table << 8 | scheme << 12;
}

// The kinds of weights: X(name, low bits, high bits, table, scheme).
#define HOPPER_QUANTISED_KINDS(X)        \
  X(q8_0, 8, 0, 0, kSchemeScale)         \
  X(q4_0, 4, 0, 0, kSchemeScale)         \
  X(q4_1, 4, 0, 0, kSchemeScaleMin)      \
  X(q5_0, 4, 1, 0, kSchemeScale)         \
  X(q5_1, 4, 1, 0, kSchemeScaleMin)      \
  X(q2_k, 2, 0, 0, kSchemeSubScaleMin)   \
  X(q3_k, 2, 1, 0, kSchemeSubScale)      \
  X(q4_k, 4, 0, 0, kSchemeSuperMin)      \
  X(q5_k, 4, 1, 0, kSchemeSuperMin)      \
  X(q6_k, 4, 2, 0, kSchemeSubScale)      \
  X(iq4_nl, 4, 0, 1, kSchemeScale)       \
  X(iq4_xs, 4, 0, 1, kSchemeSubScale)    \
  X(mxfp4, 4, 0, 1, kSchemeExponent)     \
  X(g4, 4, 0, 0, kSchemeGroup)           \
  X(z4, 4, 0, 0, kHopperSchemeZeroPoint) \
  X(g8, 8, 0, 0, kSchemeGroup)           \
  X(gf8, 8, 0, 0, kSchemeE4M3)

// ---- the products of experts in MXFP4 (kernels/cuda/moe_fp4.cuh) ----

enum {
  kHopperFp4Steps = 8,  // steps of 16 k in a chunk
  kHopperFp4Chunk = kHopperFp4Steps * (128 + 8),
  kHopperFp4Rows = 16,
  kHopperFp4Threads = 768  // at most
};
struct HopperMoeFp4Params {
  HopperLinearParams linear;  // of one expert; m: the most rows of a tile
  WeightParams weight;
  int tile_rows, max_tiles;  // as in HopperMoeSortParams
  int early;                 // as in HopperMoeParams
};
// Chunks that a warp has requested ahead, of tiles of so many rows, and bytes of shared memory.
constexpr int hopper_fp4_depth(int tile_rows) {
  return tile_rows > 8 ? 4 : 6;
}
constexpr i64 hopper_fp4_memory(int warps, int tile_rows, int rows, int k) {
  return (i64)warps * hopper_fp4_depth(tile_rows) * kHopperFp4Chunk + (i64)rows * (k * 2 + 16);
}
