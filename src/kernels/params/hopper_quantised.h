// SPDX-License-Identifier: Apache-2.0
// Parameters of linear for quantised weights on Hopper (kernels/cuda/linear_quantised.cuh), and what the host needs to
// start it.
#pragma once

#include "kernels/params/hopper.h"
#include "kernels/params/linear.h"

enum {
  kHopperQuantisedRows = 64,      // at most
  kHopperQuantisedNormed = 2,     // rows that are normed in the kernel; more of them are quicker in one of their own
  kHopperUnpackers = 8,           // warps
  kHopperUnpackDepth = 8,         // chunks of 128 k that are unpacked ahead, at most
  kHopperRawSlots = 6,            // chunks that a warp has asked for ahead, at most
  kHopperTileRow = 128 * 2 + 16,  // bytes of a row in a chunk; what is over lets eight rows meet all banks
  kHopperPairBytes = 2 * 16 * kHopperTileRow,
  kHopperHalfShared = 113664,       // that each of two threadgroups on a multiprocessor may have
  kHopperResidentBytes = 16 * 1024  // x up to this size waits in shared memory, else it streams
};

constexpr int hopper_quantised_threads(int chains) {
  return 32 * (chains + kHopperUnpackers);
}

// A part of a panel (low codes, high codes, heads or subs, see params/linear.h) has `unit_bytes` per unit of steps.
struct HopperRawPart {
  int at;          // bytes from the start of a panel
  int unit_bytes;  // 0: the format has no such part
  int slot_at;     // bytes from the start of a slot
};

struct HopperQuantisedParams {
  HopperLinearParams linear;
  WeightParams weight;
  HopperRawPart parts[4];
  uint group_inverse;  // 2^32 / group_steps, rounded up
  int kind;            // hopper_quantised_kind()
  int units;           // pairs of panels: two neighbours, or (gated) a panel of gate and the matching one of up
  int panels;          // panels of W (not gated)
  int gate_panels;     // panels of each half (gated)
  int groups;          // groups of rows of x; each is the work of one pair of multiplying warps
  int whole_k;         // K rounded up to whole chunks
  int resident;        // x stays in shared memory as a whole
  int x_row;           // bytes from row to row of x in shared memory
  int stage_bytes;     // bytes of a chunk: two tiles of W, and x where it is streamed
  int depth, slots;
  int slot_bytes;
};

constexpr int hopper_quantised_kind(int low_bits, int high_bits, int table, int scheme) {
  return low_bits | high_bits << 4 | table << 8 | scheme << 12;
}

constexpr void hopper_quantised_parts(HopperQuantisedParams* p) {
  const WeightParams& w = p->weight;
  const bool by_two = w.scheme == kSchemeScale || w.scheme == kSchemeScaleMin || w.scheme == kSchemeExponent;
  const int head_bytes = w.scheme == kSchemeGroup                                  ? 8
                         : w.scheme == kSchemeExponent                             ? 1
                         : w.scheme == kSchemeScale || w.scheme == kSchemeSubScale ? 2
                                                                                   : 4;
  const int head_steps = w.scheme == kSchemeGroup ? w.group_steps : by_two ? 2 : 16;
  const bool has_subs = !by_two && w.scheme != kSchemeGroup;
  const int sub_steps = w.scheme == kSchemeSuperMin ? 2 : 1 << w.sub_shift;
  p->parts[0] = {0, 32 * w.low_bits, 0};
  p->parts[1] = {w.high_at, 32 * w.high_bits, 0};
  p->parts[2] = {w.head_at, 16 * head_bytes, 0};
  p->parts[3] = {w.sub_at, has_subs ? (w.scheme == kSchemeSuperMin ? 32 : 16) : 0, 0};
  p->group_inverse = w.group_steps < 2 ? 0 : (uint)((0x100000000ull + (uint)w.group_steps - 1) / (uint)w.group_steps);
  // A chunk has eight steps; a group may begin inside one.
  const int units[4] = {
      8, 8, head_steps >= 8 ? (8 % head_steps == 0 || head_steps % 8 == 0 ? 1 : 2) : 8 / head_steps + 1, 8 / sub_steps};
  p->slot_bytes = 0;
  for (int i = 0; i < 4; i++) {
    p->parts[i].slot_at = p->slot_bytes;
    p->slot_bytes += units[i] * p->parts[i].unit_bytes;
  }
}

// Depth and slots that fit `budget`; the plan's dynamic memory, or 0.
constexpr int hopper_quantised_fit(HopperQuantisedParams* p, int resident_bytes, int budget) {
  for (int depth = 6; depth >= 4; depth--) {
    const int left = budget - resident_bytes - depth * p->stage_bytes;
    int slots = left / (kHopperUnpackers * p->slot_bytes);
    if (left < 0 || slots < (depth > 4 ? 3 : 2)) continue;
    slots = slots < kHopperRawSlots ? slots : kHopperRawSlots;
    int room = left - slots * kHopperUnpackers * p->slot_bytes;
    while (depth < kHopperUnpackDepth && room >= p->stage_bytes) {
      depth++;
      room -= p->stage_bytes;
    }
    p->depth = depth;
    p->slots = slots;
    return resident_bytes + depth * p->stage_bytes + slots * kHopperUnpackers * p->slot_bytes;
  }
  return 0;
}

// Fills in what follows from `linear` and `weight`. Two threadgroups share a multiprocessor wherever they fit, so that
// the next launch's weights are on their way while this one ends.
constexpr HopperLinearPlan hopper_quantised_plan(HopperQuantisedParams* p, int multiprocessors) {
  HopperLinearPlan plan = {nullptr, 0, 0, 0};
  HopperLinearParams& l = p->linear;
  const bool gated = l.epilogue == kHopperGated;
  if (l.m < 1 || l.m > kHopperQuantisedRows || l.k % 32 != 0 || l.k > 1 << 20 || p->weight.form != kWeightQuantised)
    return plan;
  if ((gated && l.n % 32 != 0) || (l.normed && l.m > kHopperQuantisedNormed)) return plan;
  hopper_quantised_parts(p);
  p->kind = hopper_quantised_kind(p->weight.low_bits, p->weight.high_bits, p->weight.table, p->weight.scheme);
  p->panels = (l.n + 15) / 16;
  p->gate_panels = l.n / 32;
  p->units = gated ? p->gate_panels : (p->panels + 1) / 2;
  l.tiles = 2 * p->units;
  const int rows = l.m <= 8 ? 8 : l.m <= 32 ? 16 : 32;  // of a chain
  p->groups = (l.m + rows - 1) / rows;
  p->whole_k = (l.k + 127) / 128 * 128;
  plan.threads = hopper_quantised_threads(l.m <= 16 ? 2 : 4);
  const i64 all_of_x = (i64)l.m * (l.k + 8) * 2;
  p->resident = l.normed || all_of_x <= kHopperResidentBytes;
  // The chains read past the end of a row, up to a whole chunk. Where a row is normed, it first stands there as floats.
  const i64 resident_bytes = p->resident ? all_of_x + 256 + (l.normed ? (i64)l.k * 4 : 0) : 0;
  p->x_row = p->resident ? (l.k + 8) * 2 : kHopperTileRow;
  p->stage_bytes = kHopperPairBytes + (p->resident ? 0 : p->groups * rows * kHopperTileRow);
  if (resident_bytes > kHopperMaxShared) return plan;
  int per_multiprocessor = 2;
  plan.dynamic_memory = hopper_quantised_fit(p, (int)resident_bytes, kHopperHalfShared);
  if (plan.dynamic_memory == 0 || rows == 32) {
    per_multiprocessor = 1;
    plan.dynamic_memory = hopper_quantised_fit(p, (int)resident_bytes, kHopperMaxShared);
  }
  if (plan.dynamic_memory == 0) return plan;
  const int places = per_multiprocessor * multiprocessors, rounds = (p->units + places - 1) / places;
  plan.grid = (p->units + rounds - 1) / rounds;
  plan.kernel = l.m <= 8 ? "m8" : l.m <= 16 ? "m16" : l.m <= 32 ? "m32" : "m64";
  return plan;
}
