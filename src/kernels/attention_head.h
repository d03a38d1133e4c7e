// SPDX-License-Identifier: Apache-2.0
// Norm and rope of one head of q or k between the projection and attention, in the registers of a simdgroup. No kernels
// here.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/norm_sum.h"
#include "kernels/rope_pair.h"

// x[i], i < Held (at most 8), is element lane + 32 * i of a head, zero past the head's end. Values are rounded to T
// between two ops, as tensors would hold them. Rope rotates `rot_dim` elements in pairs of neighbours (`interleaved`),
// or of elements half of rot_dim apart.
template <typename T, int Held>
struct QkvHead {
  static FN int pair_of(int d, int rot_dim, int interleaved) {
    const int half_dim = rot_dim / 2;
    return interleaved != 0 ? d / 2 : (d < half_dim ? d : d - half_dim);
  }

  // Loads elements lane, lane + 32, ... of `count`, and zeros past the end.
  static FN void load(THREAD float* to, DEVICE const float* from, int count, uint lane) {
    UNROLL for (int i = 0; i < Held; i++) to[i] = (int)lane + 32 * i < count ? from[lane + 32 * i] : 0.0f;
  }
  static FN void load_pairs(THREAD float* to, DEVICE const float* from, int rot_dim, int interleaved, uint lane) {
    UNROLL for (int i = 0; i < Held; i++) {
      const int d = (int)lane + 32 * i;
      to[i] = d < rot_dim ? from[pair_of(d, rot_dim, interleaved)] : 0.0f;
    }
  }

  static FN void norm(THREAD float* x, int dim, float eps, THREAD const float* weight, uint lane) {
    float all[8];
    UNROLL for (int i = 0; i < 8; i++) all[i] = i < Held ? x[i < Held ? i : 0] : 0.0f;
    const float inverse = norm_inverse(norm_sum_of_squares(all), dim, eps);
    UNROLL for (int i = 0; i < Held; i++) {
      const int d = (int)lane + 32 * i;
      if (d < dim) x[i] = to_f(to<T>((x[i] * inverse) * weight[i]));
    }
  }

  // Rope of a whole head of 32 * Held elements in pairs half of it apart, which one lane holds both. cosine[i] and
  // sine[i] are those of pair lane + 32 * i.
  static FN void rotate_halves(THREAD float* x, THREAD const float* cosine, THREAD const float* sine) {
    UNROLL for (int i = 0; i < Held / 2; i++) {
      const float2 turned = rotate_pair(x[i], x[i + Held / 2], cosine[i], sine[i]);
      x[i] = to_f(to<T>(turned.x));
      x[i + Held / 2] = to_f(to<T>(turned.y));
    }
  }

  // The other element of a pair belongs to another lane, so the head goes through threadgroup memory.
  static FN void rotate(THREAD float* x, TGROUP float* shared, int rot_dim, int interleaved, THREAD const float* cosine,
                        THREAD const float* sine, uint lane) {
    UNROLL for (int i = 0; i < Held; i++) shared[lane + 32 * i] = x[i];
    SG_BARRIER();
    UNROLL for (int i = 0; i < Held; i++) {
      const int d = (int)lane + 32 * i;
      if (d < rot_dim) {
        const int pair = pair_of(d, rot_dim, interleaved);
        const int first = rotate_first(pair, interleaved);
        const int second = rotate_second(pair, rot_dim / 2, interleaved);
        const float2 turned = rotate_pair(shared[first], shared[second], cosine[i], sine[i]);
        x[i] = to_f(to<T>(d == first ? turned.x : turned.y));
      }
    }
  }
};
