// SPDX-License-Identifier: Apache-2.0
// What the kernels of recurrent layers share: elements of any type, the tail of a convolution, and numbers in two
// parts.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/params/recurrent.h"

// Elements whose type is a run-time parameter: there are few of them, and the recurrence is slow to compile, so it is
// not a template over their type.
FN float typed_load(DEVICE const uchar* p, i64 i, int type) {
  if (type == kStateF32) return ((DEVICE const float*)p)[i];
  return type == kStateF16 ? to_f(((DEVICE const half*)p)[i]) : to_f(((DEVICE const bfloat*)p)[i]);
}
FN void typed_store(DEVICE uchar* p, i64 i, int type, float v) {
  if (type == kStateF32) {
    ((DEVICE float*)p)[i] = v;
  } else if (type == kStateF16) {
    ((DEVICE half*)p)[i] = to<half>(v);
  } else {
    ((DEVICE bfloat*)p)[i] = to<bfloat>(v);
  }
}

// Writes the new tail of a channel: the newest inputs, preceded by what remains of the old tail if there are too few.
// Everything is read before the first write, which may be to the same page.
FN void state_tail(CONSTANT const StateParams& p, int first, int tokens, DEVICE const uchar* x,
                   DEVICE const float* from, DEVICE float* into, bool has_tail, int channel) {
  float v[kStateMostTaps - 1];
  UNROLL for (int j = 0; j < kStateMostTaps - 1; j++) {
    const int t = tokens - (p.taps - 1) + j;
    v[j] = 0.0f;
    if (j < p.taps - 1 && t >= 0) {
      v[j] = typed_load(x, (first + t) * p.x_stride + channel, p.type);
    } else if (j < p.taps - 1 && has_tail) {
      v[j] = from[(i64)(p.taps - 1 + t) * p.channels + channel];
    }
  }
  UNROLL for (int j = 0; j < kStateMostTaps - 1; j++) {
    if (j < p.taps - 1) into[(i64)j * p.channels + channel] = v[j];
  }
}

// Gated delta nets in chunks (kernels/delta_chunks.h).
FN float delta_bounded(float x, half) {
  return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
}
FN float delta_bounded(float x, bfloat) {
  return x;
}
template <typename T>
FN void delta_split(float x, TGROUP T* high, TGROUP T* low) {
  x = delta_bounded(x, T());
  const T rounded = to<T>(x);
  *high = rounded;
  *low = to<T>(x - to_f(rounded));
}
