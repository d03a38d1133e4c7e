// SPDX-License-Identifier: Apache-2.0
// Parameters of linear and of the grouped products of experts: the layout of a weight, and the epilogue of a product.
//
// A plain weight has rows of k elements, each padded with zeros to a multiple of 16 bytes. A quantised weight is
// divided into panels of 16 rows (the last one padded with zero codes) and into steps of 16 k. A panel has four parts,
// each on a 16-byte boundary. Row r of step s has the element with index 16 * s + r of a part; where several steps
// share one element, the index is 16 * (s / steps) + r.
//   low codes   low_bits of each of the 16 k. 8 bits: element i of a step is in bits 8 * (i % 4) of word i / 4; 4 bits:
//               in byte i % 8, as the low nibble for i < 8; 2 bits: in bits 2 * i of one word
//   high codes  high_bits. 1 bit: bit i of a 16-bit word; 2 bits: bits 2 * i of a 32-bit word
//   heads       the scales of a block, by scheme (see below)
//   subs        bytes with the scales of sub-blocks inside a head's block
#pragma once

#include "kernels/compat/types.h"

enum WeightForm { kWeightF32 = 0, kWeightF16 = 1, kWeightBF16 = 2, kWeightQuantised = 3 };

// The scale s and minimum b of a step; a value is fma(s, q, b), or s * q for schemes without a minimum.
enum WeightScheme {
  kSchemeScale = 0,        // head: fp16 d for 2 steps. s = d
  kSchemeScaleMin = 1,     // head: fp16 d, m for 2 steps. s = d, b = m
  kSchemeSuperMin = 2,     // head: fp16 d, dmin for 16; sub: u8 sc, mn for 2. s = d * sc, b = -(dmin * mn)
  kSchemeSubScale = 3,     // head: fp16 d for 16; sub: i8 sc for one step or for 2. s = d * sc
  kSchemeSubScaleMin = 4,  // head: fp16 d, dmin for 16; sub: u8 sc | mn << 4 for one. s = d * sc, b = -(dmin * mn)
  kSchemeGroup = 5,        // head: float d, m for group_steps. s = d, b = m
  kSchemeExponent = 6,     // head: u8 e for 2 steps. s = 2^(e - 128), or 0 if e is 0
  kSchemeE4M3 = 7          // head: float d for group_steps; codes are fp8 numbers. s = d
};

struct WeightParams {
  i64 expert_stride;  // bytes from one expert's (or head's) weight to the next
  i64 stride;         // bytes from row to row (plain), or from panel to panel (quantised)
  int form;           // WeightForm
  int n, k;
  int low_bits, high_bits, scheme;
  int offset;                    // subtracted from each code
  int table;                     // codes are indices into `values`, a table of 16 signed bytes
  int high_at, head_at, sub_at;  // bytes from the start of a panel
  int sub_shift;                 // 2^sub_shift steps share a sub-scale
  int group_steps;
  int rounded;      // kSchemeE4M3: values are rounded to bf16
  int zero_points;  // kSchemeGroup: every d is an fp16 number, and m is -z d with a whole z from 0 to 31
  uint values[4];
};

// What is stored for a sum acc; y is T(acc), or with a bias T(float(T(acc)) + bias).
enum LinearEpilogue {
  kLinearStore = 0,     // out[m, n] = y
  kLinearStoreF32 = 1,  // out F32: acc, or with a bias acc + bias
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
  kLinearFloatRows = 16,
  kLinearDeepStages = 12  // chunks of 32 k that a threadgroup of one simdgroup has in flight
};

// The epilogue of a product.
struct LinearLast {
  i64 out_stride, residual_stride;  // elements
  int epilogue;                     // LinearEpilogue
  int activation;                   // the value of quire::Activation
  int biased;
  int columns;  // of out
  float scale;  // of the residual
  float limit;  // > 0: the limit of GPT-OSS's clamped gate
};

struct LinearParams {
  WeightParams weight;
  LinearLast last;
  i64 x_stride;    // elements
  int m;           // rows of x
  int normed;      // x is F32, and the kernel applies an RMS norm to it first
  int aligned;     // rows of x start on 16 bytes
  int tiles;       // tiles of 16 rows of W (gated: 8 rows of gate and the matching 8 of up)
  int simdgroups;  // few rows: simdgroups per threadgroup, one tile each
  int tile_rows;   // grouped: rows of the order per expert's tile
  int choices;     // grouped: row order[i] / choices of x gives row order[i] of out
  float eps;       // of the norm
};

// The products of heads (linear_heads): head z of the grid has weight z, `weight.expert_stride` apart.
struct LinearHeadsParams {
  LinearParams linear;
  i64 x_head, out_head;  // bytes from one head to the next
};

// The epilogue as a kernel of its own, for sums that the library (cuBLASLt) computed: y is [m, n] in T, or in F32 for
// kLinearStoreF32.
struct LinearFinishParams {
  LinearLast last;
  i64 y_stride;
  int m;
  int aligned;     // four neighbouring sums may be loaded at once
  int plain_silu;  // gated by silu, without bias or limit, and four neighbouring results may be stored at once
};
