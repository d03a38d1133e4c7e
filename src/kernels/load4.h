// SPDX-License-Identifier: Apache-2.0
// Loads and stores four neighbouring elements of a row as floats. No kernels here.
#pragma once

#include "kernels/compat/dialect.h"

template <typename T>
FN float4 floats_of(uint2 u) {  // four 16-bit elements
  return make_float4(to_f(from_bits16<T>((ushort)(u.x & 0xffffu))), to_f(from_bits16<T>((ushort)(u.x >> 16))),
                     to_f(from_bits16<T>((ushort)(u.y & 0xffffu))), to_f(from_bits16<T>((ushort)(u.y >> 16))));
}
template <typename T>
FN uint2 bits_of(float4 v) {
  return make_uint2((uint)to_bits16(to<T>(v.x)) | (uint)to_bits16(to<T>(v.y)) << 16,
                    (uint)to_bits16(to<T>(v.z)) | (uint)to_bits16(to<T>(v.w)) << 16);
}

// REQUIRES: `p` is aligned to four elements.
FN float4 load4(DEVICE const float* p) {
  return *(DEVICE const float4*)p;
}
FN float4 load4(DEVICE const half* p) {
  return floats_of<half>(*(DEVICE const uint2*)p);
}
FN float4 load4(DEVICE const bfloat* p) {
  return floats_of<bfloat>(*(DEVICE const uint2*)p);
}
FN void store4(DEVICE float* p, float4 v) {
  *(DEVICE float4*)p = v;
}
FN void store4(DEVICE half* p, float4 v) {
  *(DEVICE uint2*)p = bits_of<half>(v);
}
FN void store4(DEVICE bfloat* p, float4 v) {
  *(DEVICE uint2*)p = bits_of<bfloat>(v);
}

// Elements [i, i + 4) of a row of n, zeros past its end. `aligned`: rows start at multiples of four elements and have a
// multiple of four of them, so a vector access is allowed.
template <typename T>
FN float4 row_load4(DEVICE const T* row, int i, int n, int aligned) {
  if (aligned != 0) return load4(row + i);
  return make_float4(to_f(row[i]), i + 1 < n ? to_f(row[i + 1]) : 0.0f, i + 2 < n ? to_f(row[i + 2]) : 0.0f,
                     i + 3 < n ? to_f(row[i + 3]) : 0.0f);
}
template <typename T>
FN void row_store4(DEVICE T* row, int i, int n, int aligned, float4 v) {
  if (aligned != 0) {
    store4(row + i, v);
    return;
  }
  row[i] = to<T>(v.x);
  if (i + 1 < n) row[i + 1] = to<T>(v.y);
  if (i + 2 < n) row[i + 2] = to<T>(v.z);
  if (i + 3 < n) row[i + 3] = to<T>(v.w);
}
