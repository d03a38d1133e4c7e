// SPDX-License-Identifier: Apache-2.0
// Parameters of linear and of the grouped products of experts: a weight's layout and what is made of a product.
//
// A plain weight is rows of k elements, each row padded with zeros to a multiple of 16 bytes. A quantised one is cut
// into panels of 16 rows (the last padded with zero codes) and into steps of 16 k. A panel has four parts, each on 16
// bytes, where element `at` is that of row r in step s at index 16 * s + r (or 16 * (s / steps) + r, where some steps
// share one):
//   low codes   low_bits of each of the 16 k: element i of a step in bits 8 * (i % 4) of word i / 4 (8 bits), in byte
//               i % 8, the low nibble for i < 8 (4 bits), or in bits 2 * i of one word (2 bits)
//   high codes  high_bits: bit i of a 16-bit word (1 bit), bits 2 * i of a 32-bit one (2 bits)
//   heads       by scheme, see below
//   subs        bytes of scales inside a head's reach
#pragma once

#include "kernels/compat/types.h"

enum WeightForm { kWeightF32 = 0, kWeightF16 = 1, kWeightBF16 = 2, kWeightQuantised = 3 };

// What a step's scale s and minimum b are; a value is fma(s, q, b), or s * q where there is no minimum.
enum WeightScheme {
  kSchemeScale = 0,        // head: fp16 d for 2 steps. s = d
  kSchemeScaleMin = 1,     // head: fp16 d, m for 2 steps. s = d, b = m
  kSchemeSuperMin = 2,     // head: fp16 d, dmin for 16; sub: u8 sc, mn for 2. s = d * sc, b = -(dmin * mn)
  kSchemeSubScale = 3,     // head: fp16 d for 16; sub: i8 sc for one step or for 2. s = d * sc
  kSchemeSubScaleMin = 4,  // head: fp16 d, dmin for 16; sub: u8 sc | mn << 4 for one. s = d * sc, b = -(dmin * mn)
  kSchemeGroup = 5,        // head: float d, m for group_steps. s = d, b = m
  kSchemeExponent = 6      // head: u8 e for 2 steps. s = 2^(e - 128), 0 where e is
};

struct WeightParams {
  i64 expert_stride;  // bytes from one expert's weight to the next
  i64 stride;         // bytes from row to row, or from panel to panel
  int form;           // WeightForm
  int n, k;
  int low_bits, high_bits, scheme;
  int offset;                    // what is subtracted from a code
  int table;                     // codes are indices into `values`, 16 signed bytes
  int high_at, head_at, sub_at;  // bytes from a panel's start
  int sub_shift;                 // 2^sub_shift steps share a sub
  int group_steps;
  uint values[4];
};

// What becomes of a sum; `y` is T(acc), with a bias T(float(T(acc)) + bias).
enum LinearEpilogue {
  kLinearStore = 0,     // out[m, n] = y
  kLinearStoreF32 = 1,  // out F32: acc, with a bias acc + bias
  kLinearResidual = 2,  // out F32: fma(float(y), scale, residual)
  kLinearGated = 3,     // out[m, j] = T(act(y[m, j]) * y[m, N/2 + j])
  kLinearActivated = 4  // out[m, n] = T(act(y))
};

enum {
  kLinearThreads = 128,
  kLinearAnyThreads = 160,
  kLinearFewRows = 16,
  kLinearManyRows = 64,
  kLinearManyColumns = 64,
  kLinearFloatRows = 16
};

// What a kernel does with its sums.
struct LinearLast {
  i64 out_stride, residual_stride;  // elements
  int epilogue;                     // LinearEpilogue
  int activation;                   // as quire::Activation counts
  int biased;
  int columns;  // of out
  float scale;  // of the residual
  float limit;  // > 0: GPT-OSS's clamped gate
};

struct LinearParams {
  WeightParams weight;
  LinearLast last;
  i64 x_stride;    // elements
  int m;           // rows of x
  int normed;      // x is F32 and goes through an RMS norm first
  int aligned;     // rows of x start on 16 bytes
  int tiles;       // of 16 rows of W (gated: 8 of the gate and their 8 of the up)
  int simdgroups;  // few rows: that a threadgroup has, one tile each
  int tile_rows;   // grouped: rows of the order that belong to one expert
  int choices;     // grouped: row order[i] / choices of x becomes row order[i] of out
  float eps;       // of the norm
};

// The last step apart, where the library has made the sums: y is [m, n], T, or F32 for kLinearStoreF32.
struct LinearFinishParams {
  LinearLast last;
  i64 y_stride;
  int m;
};
