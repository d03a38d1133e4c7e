// SPDX-License-Identifier: Apache-2.0
// The digest of a row of logits, as ops/row_digest.h defines it.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/params/sampling.h"

FN uint sample_digest_mix(uint x) {
  x = (x ^ (x >> 16)) * (uint)kRowDigestFactor1;
  x = (x ^ (x >> 15)) * (uint)kRowDigestFactor2;
  return x ^ (x >> 16);
}

// A simdgroup takes whole chunks, a lane for each of theirs. Each threadgroup writes its sums, which the host adds.
// Grid: (parts, rows).
struct SampleDigest {
  enum { kThreads = 32 * kSampleDigestSimdgroups };
  struct Smem {
    uint high[kSampleDigestSimdgroups];
    uint low[kSampleDigestSimdgroups];
  };
  static FN void run(Ctx c, CONSTANT const SampleDigestParams& p, TGROUP Smem& sm, DEVICE SampleDigestSums* sums,
                     DEVICE const float* logits, DEVICE const SampleRowData* rows) {
    if (rows[c.tgy].digest == 0) return;
    DEVICE const float* row = logits + (i64)c.tgy * p.stride;
    uint high = 0u, low = 0u;
    for (int chunk = (int)c.tgx * p.simdgroups + (int)c.sg; chunk < p.chunks; chunk += p.parts * p.simdgroups) {
      DEVICE const float* at = row + chunk * (int)kRowDigestChunk;
      const int words = min(p.vocab - chunk * (int)kRowDigestChunk, (int)kRowDigestChunk);
      uint state = ((uint)chunk * kRowDigestLanes + c.lane + 1u) * (uint)kRowDigestStart, sum = 0u;
      if (words == (int)kRowDigestChunk) {
        uint word[kRowDigestChunk / kRowDigestLanes];
        UNROLL for (int i = 0; i < (int)(kRowDigestChunk / kRowDigestLanes); i++) {
          word[i] = as_uint(at[i * (int)kRowDigestLanes + (int)c.lane]);
        }
        UNROLL for (int i = 0; i < (int)(kRowDigestChunk / kRowDigestLanes); i++) {
          state += word[i];
          state = (state << 7) | (state >> 25);
          sum = 5u * sum + state;
        }
      } else {
        for (int i = (int)c.lane; i < words; i += (int)kRowDigestLanes) {
          state += as_uint(at[i]);
          state = (state << 7) | (state >> 25);
          sum = 5u * sum + state;
        }
      }
      const uint a = sample_digest_mix(state);
      high += a;
      low += sample_digest_mix(sum + a);
    }
    high = simd_sum(high);
    low = simd_sum(low);
    if (c.lane == 0) {
      sm.high[c.sg] = high;
      sm.low[c.sg] = low;
    }
    TG_BARRIER();
    if (c.tid != 0) return;
    for (int i = 1; i < p.simdgroups; i++) {
      high += sm.high[i];
      low += sm.low[i];
    }
    DEVICE SampleDigestSums* out = sums + c.tgy * kSampleDigestParts + c.tgx;
    out->high = high;
    out->low = low;
  }
};
KERNEL(sample_digest, SampleDigest, SampleDigestParams, SampleDigestSums, const float, const SampleRowData)
