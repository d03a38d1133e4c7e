// SPDX-License-Identifier: Apache-2.0
// Parameters of linear for quantised weights on Hopper (kernels/cuda/linear_quantised.cuh).
#pragma once

#include "kernels/params/hopper.h"
#include "kernels/params/linear.h"

enum {
  kHopperUnpackers = 8,           // warps
  kHopperUnpackDepth = 8,         // chunks of 128 k that are unpacked ahead, at most
  kHopperRawSlots = 6,            // chunks that a warp has asked for ahead, at most
  kHopperTileRow = 128 * 2 + 16,  // bytes of a row in a chunk; what is over lets eight rows meet all banks
  kHopperPairBytes = 2 * 16 * kHopperTileRow
};

constexpr int hopper_quantised_threads(int chains) {
  return 32 * (chains + kHopperUnpackers);
}

// A part of a panel (low codes, high codes, heads, subs): `unit_bytes` of 16 rows for each `unit_steps` of k.
struct HopperRawPart {
  int at;          // bytes from a panel's start
  int unit_bytes;  // 0: there is no such part
  int slot_at;     // bytes from a slot's start
};

struct HopperQuantisedParams {
  HopperLinearParams linear;
  WeightParams weight;
  HopperRawPart parts[4];
  uint group_inverse;  // 2^32 / group_steps, rounded up
  int kind;            // hopper_quantised_kind()
  int units;           // pairs of panels: neighbours, or (gated) one of the gate and its one of the up
  int panels;          // not gated: of W
  int gate_panels;     // gated: of each half
  int groups;          // of rows of x, one chain's each
  int whole_k;         // whole chunks
  int resident;        // x waits in shared memory
  int x_row;           // bytes from row to row of x in shared memory
  int stage_bytes;     // of a chunk: two tiles, and x where it streams
  int depth, slots;
  int slot_bytes;
};

constexpr int hopper_quantised_kind(int low_bits, int high_bits, int table, int scheme) {
  return low_bits | high_bits << 4 | table << 8 | scheme << 12;
}
