// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels in kernels/lora.h, and the parts of an adapter in a slot (ops/lora.h).
#pragma once

#include "kernels/compat/types.h"

enum {
  kLoraTile = 8,    // rows of a threadgroup
  kLoraGroup = 16,  // elements of t of a threadgroup of lora_shrink
  kLoraParts = 32,  // parts of k, whose sums are added in their order
  kLoraShrinkThreads = kLoraGroup * kLoraParts,
  kLoraThreads = 256,
  kLoraAhead = 4  // elements of a sum that are loaded together
};

struct LoraSliceParams {
  int column, n, first, rank;
  i64 b;
};
struct LoraSiteParams {
  int rank, num_slices;
  i64 a, scales, slices;
};

struct LoraParams {
  i64 slot_bytes;
  i64 x_stride, t_stride, out_stride;  // elements from row to row
  int first, rows;                     // of the step
  int listed;                          // rows of the step
  int site;
  int k;            // lora_shrink
  int from_tokens;  // lora_shrink: 1: rows of A are looked up
  int cols;         // lora_expand: of the output
};
