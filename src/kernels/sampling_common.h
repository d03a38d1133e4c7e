// SPDX-License-Identifier: Apache-2.0
// What the sampling kernels share: a token's value, its random number and score, and the best of a threadgroup. No
// kernels here.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/compat/float_math.h"
#include "kernels/params/sampling.h"
#include "kernels/philox.h"

FN float sample_negative_infinity() {
  return as_float(0xff800000u);
}

// Maps floats to unsigned keys of the same order, and back. REQUIRES: x is not -0.
FN uint sample_key(float x) {
  const uint bits = as_uint(x);
  return (bits >> 31) != 0u ? ~bits : bits | 0x80000000u;
}
FN float sample_of_key(uint key) {
  return as_float((key >> 31) != 0u ? key & 0x7fffffffu : ~key);
}

// The logit after a mask; -1: no mask.
FN float sample_masked(float x, int token, CONSTANT const SampleParams& p, int mask, DEVICE const uint* masks) {
  if (mask < 0) return x;
  const uint word = masks[(i64)mask * p.words + token / 32];
  return ((word >> (uint)(token % 32)) & 1u) == 0u ? sample_negative_infinity() : x;
}

// The logit after mask and temperature. Adding 0 turns -0 into 0.
FN float sample_value(float x, int token, CONSTANT const SampleParams& p, DEVICE const SampleRowData* row,
                      DEVICE const uint* masks) {
  return sample_masked(x, token, p, row->mask, masks) / row->settings.temperature + 0.0f;
}

// The random words of tokens 4 * block to 4 * block + 3: counter (position, block), keyed by the seed.
FN uint4 sample_words(DEVICE const SampleRowData* row, uint block) {
  return philox_words(make_uint4(row->position_low, row->position_high, block, 0u), row->seed_low, row->seed_high);
}

// Gumbel noise -ln(-ln(1 - v)) with v = (word + 1/2) / 2^32. Near v = 1 it is computed from 1 - v, which a float holds
// more exactly.
FN float sample_gumbel(uint word) {
  const float v = ((float)word + 0.5f) * 0x1p-32f;
  const float left = ((float)(~word) + 0.5f) * 0x1p-32f;
  const float e = word < 0x80000000u ? -q_log1p(-v) : -q_log(left);
  return -q_log(e);
}
// An upper bound of it without a logarithm: -ln(1 - v) >= v >= 2^exponent.
FN float sample_gumbel_bound(uint word) {
  const float v = ((float)word + 0.5f) * 0x1p-32f;
  return (float)(127 - (int)(as_uint(v) >> 23)) * 0.693148f + 0.001f;
}

// The largest value over the lanes, and among equal ones the lowest token. All lanes get it.
FN void sample_best_of_lanes(THREAD float& value, THREAD int& token) {
  const float best = simd_max(value);
  token = simd_min(value == best ? token : 0x7fffffff);
  value = best;
}

struct SampleBest {
  float value[16];
  int token[16];
};
// The same over a threadgroup of `simdgroups`. It ends with a barrier, after which `sm` may be reused.
FN void sample_best(Ctx c, TGROUP SampleBest& sm, int simdgroups, THREAD float& value, THREAD int& token) {
  sample_best_of_lanes(value, token);
  if (c.lane == 0) {
    sm.value[c.sg] = value;
    sm.token[c.sg] = token;
  }
  TG_BARRIER();
  value = sm.value[0];
  token = sm.token[0];
  for (int i = 1; i < simdgroups; i++) {
    const float other = sm.value[i];
    if (other > value || (other == value && sm.token[i] < token)) {
      value = other;
      token = sm.token[i];
    }
  }
  TG_BARRIER();
}

// Whether min_p, top_k or top_p limits the candidates, so that the draw must wait for the cut-off.
FN bool sample_has_cut(DEVICE const SampleRowData* row) {
  return row->greedy == 0 && (row->settings.top_k > 0 || row->settings.top_p < 1.0f || row->settings.log_min_p <= 0.0f);
}

// A thread has 16 tokens of a chunk: four groups of four neighbours. Past the vocabulary the values are -infinity.
FN int sample_token(int begin, uint tid, int k) {
  return begin + (k >> 2) * (4 * kSampleThreads) + (int)tid * 4 + (k & 3);
}
FN void sample_load(CONSTANT const SampleParams& p, DEVICE const float* row, int begin, uint tid, THREAD float* x) {
  UNROLL for (int k = 0; k < 16; k += 4) {
    const int token = sample_token(begin, tid, k);
    if (p.aligned != 0 && token + 3 < p.vocab) {
      const float4 four = *(DEVICE const float4*)(row + token);
      x[k] = four.x;
      x[k + 1] = four.y;
      x[k + 2] = four.z;
      x[k + 3] = four.w;
    } else {
      UNROLL for (int j = 0; j < 4; j++) x[k + j] = token + j < p.vocab ? row[token + j] : sample_negative_infinity();
    }
  }
}
