// SPDX-License-Identifier: Apache-2.0
// Elements of a weight of any type as floats, 16 k at a time. No kernels here.
//
// The type is a run-time parameter, not a template argument: all threads of a launch take the same branches, and one
// body serves every type. The values are those of the formulas in weights/quant.h. Products of scales are exact in a
// float, so each value is rounded once.
#pragma once

#include "kernels/compat/dialect.h"
#include "kernels/fp8.h"
#include "kernels/params/linear.h"

// The raw bits of one row and step, fetched some time before they are unpacked.
struct WeightRaw {
  uint low[4];
  uint high, head, second, sub;
};

FN void weight_fetch(CONSTANT const WeightParams& w, DEVICE const uchar* data, int n, int step, THREAD WeightRaw& raw) {
  DEVICE const uchar* panel = data + (i64)(n >> 4) * w.stride;
  const int row = n & 15, at = step * 16 + row;
  if (w.low_bits == 4) {
    const uint2 v = ((DEVICE const uint2*)panel)[at];
    raw.low[0] = v.x;
    raw.low[1] = v.y;
  } else if (w.low_bits == 8) {
    const uint4 v = ((DEVICE const uint4*)panel)[at];
    raw.low[0] = v.x;
    raw.low[1] = v.y;
    raw.low[2] = v.z;
    raw.low[3] = v.w;
  } else {
    raw.low[0] = ((DEVICE const uint*)panel)[at];
  }
  if (w.high_bits == 1) raw.high = ((DEVICE const ushort*)(panel + w.high_at))[at];
  if (w.high_bits == 2) raw.high = ((DEVICE const uint*)(panel + w.high_at))[at];
  DEVICE const uchar* heads = panel + w.head_at;
  DEVICE const uchar* subs = panel + w.sub_at;
  const int by_two = (step >> 1) * 16 + row, by_sixteen = (step >> 4) * 16 + row;
  if (w.scheme == kSchemeScale) {
    raw.head = ((DEVICE const ushort*)heads)[by_two];
  } else if (w.scheme == kSchemeScaleMin) {
    raw.head = ((DEVICE const uint*)heads)[by_two];
  } else if (w.scheme == kSchemeExponent) {
    raw.head = heads[by_two];
  } else if (w.scheme == kSchemeE4M3) {
    raw.head = ((DEVICE const uint*)heads)[step / w.group_steps * 16 + row];
  } else if (w.scheme == kSchemeGroup) {
    const uint2 v = ((DEVICE const uint2*)heads)[step / w.group_steps * 16 + row];
    raw.head = v.x;
    raw.second = v.y;
  } else if (w.scheme == kSchemeSubScale) {
    raw.head = ((DEVICE const ushort*)heads)[by_sixteen];
    raw.sub = subs[(step >> w.sub_shift) * 16 + row];
  } else {
    raw.head = ((DEVICE const uint*)heads)[by_sixteen];
    if (w.scheme == kSchemeSuperMin) {
      raw.sub = ((DEVICE const ushort*)subs)[by_two];
    } else {
      raw.sub = subs[at];
    }
  }
}

FN float weight_half(uint bits) {
  return to_f(from_bits16<half>((ushort)(bits & 0xffffu)));
}

struct WeightScale {
  float scale, minimum;
  bool has_minimum;
};

FN WeightScale weight_scale(CONSTANT const WeightParams& w, THREAD const WeightRaw& raw) {
  WeightScale out;
  out.minimum = 0.0f;
  out.has_minimum = false;
  if (w.scheme == kSchemeGroup) {
    out.scale = as_float(raw.head);
    out.minimum = as_float(raw.second);
    out.has_minimum = true;
  } else if (w.scheme == kSchemeE4M3) {
    out.scale = as_float(raw.head);
  } else if (w.scheme == kSchemeExponent) {
    out.scale = raw.head == 0 ? 0.0f : as_float((raw.head - 1) << 23);
  } else {
    const float d = weight_half(raw.head), m = weight_half(raw.head >> 16);
    out.scale = d;
    if (w.scheme == kSchemeScaleMin) {
      out.minimum = m;
      out.has_minimum = true;
    } else if (w.scheme == kSchemeSuperMin) {
      out.scale = d * (float)(raw.sub & 255);
      out.minimum = -(m * (float)(raw.sub >> 8));
      out.has_minimum = true;
    } else if (w.scheme == kSchemeSubScale) {
      out.scale = d * (float)(int)(i8)(uchar)raw.sub;
    } else if (w.scheme == kSchemeSubScaleMin) {
      out.scale = d * (float)(raw.sub & 15);
      out.minimum = -(m * (float)(raw.sub >> 4));
      out.has_minimum = true;
    }
  }
  return out;
}

FN void weight_codes(CONSTANT const WeightParams& w, THREAD const WeightRaw& raw, THREAD int* q) {
  if (w.low_bits == 4) {
    UNROLL for (int i = 0; i < 16; i++) q[i] = (int)((raw.low[(i >> 2) & 1] >> (8 * (i & 3) + 4 * (i >> 3))) & 15);
  } else if (w.low_bits == 8) {
    UNROLL for (int i = 0; i < 16; i++) q[i] = (int)((raw.low[i >> 2] >> (8 * (i & 3))) & 255);
  } else {
    UNROLL for (int i = 0; i < 16; i++) q[i] = (int)((raw.low[0] >> (2 * i)) & 3);
  }
  if (w.high_bits == 1) {
    UNROLL for (int i = 0; i < 16; i++) q[i] |= (int)((raw.high >> i) & 1) << w.low_bits;
  } else if (w.high_bits == 2) {
    UNROLL for (int i = 0; i < 16; i++) q[i] |= (int)((raw.high >> (2 * i)) & 3) << w.low_bits;
  }
  if (w.table != 0) {
    UNROLL for (int i = 0; i < 16; i++) {
      const uint four = (q[i] & 8) != 0 ? ((q[i] & 4) != 0 ? w.values[3] : w.values[2])
                                        : ((q[i] & 4) != 0 ? w.values[1] : w.values[0]);
      q[i] = (int)(i8)(uchar)((four >> (8 * (q[i] & 3))) & 255);
    }
  } else {
    UNROLL for (int i = 0; i < 16; i++) q[i] -= w.offset;
  }
}

// Twice the value of an MXFP4 code (a sign, two bits of exponent and one of mantissa), composed from its bits: integers
// and a table would take four times the instructions.
FN float weight_e2m1_twice(uint code) {
  const uint size = code & 7u, bits = size < 2u ? size * 0x3f800000u : (size << 22) + 0x3f800000u;
  return as_float(size == 0u ? 0u : bits | (code & 8u) << 28);
}

// The value of an fp8 number and its scale, as the loader of a plain weight computes it.
FN float weight_e4m3(CONSTANT const WeightParams& w, float scale, float q) {
  const float v = q * scale;
  return w.rounded != 0 ? to_f(to<bfloat>(v)) : v;
}

FN void weight_values(CONSTANT const WeightParams& w, THREAD const WeightRaw& raw, THREAD float* v) {
  const WeightScale s = weight_scale(w, raw);
  if (w.scheme == kSchemeE4M3) {
    UNROLL for (int i = 0; i < 16; i++) {
      v[i] = weight_e4m3(w, s.scale, e4m3_to_f((raw.low[i >> 2] >> (8 * (i & 3))) & 255));
    }
    return;
  }
  if (w.scheme == kSchemeExponent) {
    UNROLL for (int i = 0; i < 16; i++) {
      v[i] = s.scale * weight_e2m1_twice(raw.low[(i >> 2) & 1] >> (8 * (i & 3) + 4 * (i >> 3)));
    }
    return;
  }
  int q[16];
  weight_codes(w, raw, q);
  if (s.has_minimum) {
    UNROLL for (int i = 0; i < 16; i++) v[i] = fma(s.scale, (float)q[i], s.minimum);
  } else {
    UNROLL for (int i = 0; i < 16; i++) v[i] = s.scale * (float)q[i];
  }
}

template <typename T>
FN void weight_plain(CONSTANT const WeightParams& w, DEVICE const uchar* data, int n, int step, THREAD float* v) {
  DEVICE const T* row = (DEVICE const T*)(data + (i64)n * w.stride) + step * 16;
  const int count = w.k - step * 16;
  UNROLL for (int i = 0; i < 16; i++) v[i] = i < count ? to_f(row[i]) : 0.0f;
}

// The same for any plain type.
FN void weight_load_plain(CONSTANT const WeightParams& w, DEVICE const uchar* data, int n, int step, THREAD float* v) {
  if (w.form == kWeightF32) {
    weight_plain<float>(w, data, n, step, v);
  } else if (w.form == kWeightF16) {
    weight_plain<half>(w, data, n, step, v);
  } else {
    weight_plain<bfloat>(w, data, n, step, v);
  }
}

// Loads elements 16 * step to 16 * step + 15 of row n, zeros past k, in two halves: weight_begin() fetches the raw bits
// (of quantised weights only), weight_finish() computes the values.
FN void weight_begin(CONSTANT const WeightParams& w, DEVICE const uchar* data, int n, int step, THREAD WeightRaw& raw) {
  if (w.form == kWeightQuantised && step * 16 < w.k) weight_fetch(w, data, n, step, raw);
}
FN void weight_finish(CONSTANT const WeightParams& w, DEVICE const uchar* data, int n, int step,
                      THREAD const WeightRaw& raw, THREAD float* v) {
  if (step * 16 >= w.k) {
    UNROLL for (int i = 0; i < 16; i++) v[i] = 0.0f;
  } else if (w.form == kWeightQuantised) {
    weight_values(w, raw, v);
  } else {
    weight_load_plain(w, data, n, step, v);
  }
}
FN void weight_load16(CONSTANT const WeightParams& w, DEVICE const uchar* data, int n, int step, THREAD float* v) {
  WeightRaw raw;
  weight_begin(w, data, n, step, raw);
  weight_finish(w, data, n, step, raw, v);
}
