// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels in kernels/lora.h, and the parts of an adapter in a slot (ops/lora.h).
#pragma once

#include "kernels/compat/types.h"

enum {
  kLoraRows = 16,       // of a run
  kLoraGroup = 16,      // elements of t of a threadgroup of lora_shrink
  kLoraSimdgroups = 4,  // of lora_shrink, which share a span
  kLoraSpan = 256,      // elements of x of a threadgroup of lora_shrink
  kLoraRanks = 64,      // elements of t that lora_expand keeps at a time
  kLoraChunk = 16,      // and how many of them it multiplies at a time
  kLoraAhead = 16,      // spans that it loads together
  kLoraColumns = 4,     // of a thread of lora_expand
  kLoraThreads = 128    // of both
};

struct LoraSliceParams {
  int column, n, first, rank;
  i64 b;
};
struct LoraSiteParams {
  int rank, num_slices;
  i64 a, scales, slices;
};
struct LoraRunParams {
  int slot, first, count;
  int expert;  // added to the site
};

struct LoraParams {
  i64 slot_bytes;
  i64 x_stride, t_stride, out_stride;  // elements from row to row
  int first, rows;                     // of the step
  int site;
  int spans, span_stride;  // of t: sums over spans of x, and elements between them
  int k;                   // lora_shrink
  int from_tokens;         // lora_shrink: 1: rows of A are looked up
  int aligned;             // lora_shrink: rows of x start on 16 bytes; lora_expand: those of out on four elements
  int scaled;              // lora_expand: t has been scaled
  int cols;                // lora_expand: of the output
  int sorted;              // 1: launches of this step wrote the lists of rows and runs
  int of_row;              // lora_shrink: so many neighbours in the lists have the same row of x
};

// ---- sm_90a (kernels/cuda/lora.cuh) ----

enum {
  kHopperLoraCluster = 8,    // threadgroups of the first product that share a run of rows
  kHopperLoraRuns = 32,      // runs of rows for which there is shared memory,
  kHopperLoraSlices = 4,     // and slices that an adapter has for one linear
  kHopperLoraMostItems = 4,  // of the first product, where the threadgroups of a linear share them
  kHopperLoraItems = 128     // parts of a tile of the second product: four columns of a run of rows
};
// What the first product has beside t where it is a part of a linear, for so many groups of 16 ranks of a run: the sums
// of its parts, and counters (kernels/cuda/lora_first.cuh).
constexpr i64 hopper_lora_first_floats(int groups) {
  return i64{groups} * (int{kHopperLoraCluster} * int{kLoraRows} * int{kLoraGroup});
}
constexpr int hopper_lora_first_counters(int groups) {
  return 2 + groups;
}
// Bytes that so many parts have in shared memory.
constexpr int hopper_lora_room(int items) {
  const int runs = kHopperLoraRuns;
  return items * (int{kLoraGroup} * 8 + 8) + runs * (int{kLoraRows} * 4 + int{kHopperLoraSlices} * 24 + 16) + 16;
}

// The second product, as a part of another kernel.
struct HopperLoraParams {
  i64 slot_bytes, t_stride;
  int site;
  int first;         // the row of the step that is row 0
  int runs;          // 0: no adapters
  int room;          // 1: the kernel has hopper_lora_room() bytes for it
  int staged_ranks;  // behind that, this many elements for each row of the tile; 0: none
  int early;         // 1: what precedes the launch of the first product has ended when this launch begins
  int groups;        // > 0: this launch computes the first product itself, in so many groups of 16 ranks
};
