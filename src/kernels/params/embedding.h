// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels in kernels/embedding.h.
#pragma once

#include "kernels/params/linear.h"

// out[i] = scale * row tokens[i] of the table (without tokens: row first_row + i), converted to float.
struct EmbeddingParams {
  WeightParams weight;
  i64 out_stride;
  int first_row;
  int rows;  // of out, for expand_panels
  int from_tokens;
  int fours;  // rows have a multiple of 16 columns, and may be stored in vectors of four
  float scale;
};
enum { kEmbeddingThreads = 128, kExpandColumns = 512 };
