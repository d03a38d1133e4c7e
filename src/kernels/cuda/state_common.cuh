// SPDX-License-Identifier: Apache-2.0
// What the kernels for decode of recurrent layers share: which sequence and head a threadgroup has, its channels, and
// unit lengths.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/norm_sum.h"
#include "kernels/params/recurrent.h"

// Matrices of kHopperStateRows rows and C columns.
template <int C>
struct HopperStateParts {
  enum { kRows = kHopperStateRows };

  struct Place {
    int sequence, head, key;
    int first, tokens;
    int source, destination;
  };
  HOPPER_FN Place place(const StateParams& p, int group, const int* cu_seqlens, const int* source,
                        const int* destination) {
    Place at;
    at.sequence = group / p.heads;
    at.head = group % p.heads;
    at.key = p.tiled != 0 ? at.head % p.shared : at.head / (p.heads / p.shared);
    at.first = cu_seqlens[at.sequence];
    at.tokens = cu_seqlens[at.sequence + 1] - at.first;
    at.source = source[at.sequence];
    at.destination = destination[at.sequence];
    return at;
  }
  // Several heads share a key and its part of the convolution's tail: the last of them to have read these writes the
  // new ones. One thread calls arrive() when all threads have read them, and comes_last() with its result as late as
  // possible, so that nobody waits for the counter. `arrivals` has a counter for each sequence and key, zero before and
  // after.
  HOPPER_FN int arrive(const StateParams& p, const Place& at, int* arrivals) {
    __threadfence();
    return atomicAdd(arrivals + at.sequence * p.shared + at.key, 1);
  }
  HOPPER_FN bool comes_last(const StateParams& p, const Place& at, int* arrivals, int arrived) {
    const bool last = arrived == p.heads / p.shared - 1;
    if (last) arrivals[at.sequence * p.shared + at.key] = 0;
    return last;
  }
  // The channel of input i.
  HOPPER_FN int channel(const StateParams& p, const Place& at, int i) {
    if (i < kRows) return p.right + at.key * kRows + i;
    return i < 2 * kRows ? p.left + at.key * kRows + i - kRows : p.own + at.head * C + i - 2 * kRows;
  }

  // Unit lengths of q and k, q times 1 / sqrt(rows), and q * k, by one warp.
  template <typename S>
  HOPPER_FN void unit_lengths(S& sm, int lane) {
    float q[4], k[4];
    UNROLL for (int i = 0; i < 4; i++) {
      q[i] = sm.inputs[lane + 32 * i];
      k[i] = sm.inputs[kRows + lane + 32 * i];
    }
    const float qq = simd_sum(norm_fold(q[0] * q[0], q[1] * q[1], q[2] * q[2], q[3] * q[3], 0, 0, 0, 0));
    const float kk = simd_sum(norm_fold(k[0] * k[0], k[1] * k[1], k[2] * k[2], k[3] * k[3], 0, 0, 0, 0));
    const float q_inverse = 1.0f / sqrt(qq + 1e-6f), k_inverse = 1.0f / sqrt(kk + 1e-6f);
    const float scale = 1.0f / sqrt((float)kRows);
    UNROLL for (int i = 0; i < 4; i++) {
      q[i] = (q[i] * q_inverse) * scale;
      k[i] = k[i] * k_inverse;
      sm.inputs[lane + 32 * i] = q[i];
      sm.inputs[kRows + lane + 32 * i] = k[i];
    }
    const float cross = simd_sum(norm_fold(q[0] * k[0], q[1] * k[1], q[2] * k[2], q[3] * k[3], 0, 0, 0, 0));
    if (lane == 0) sm.cross = cross;
  }
};
