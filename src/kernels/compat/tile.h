// SPDX-License-Identifier: Apache-2.0
// The matrix tile of a simdgroup: 16x16 products of half or bfloat with float sums.
//
// Acc16 += FragA<T> FragB<T>. A lane holds eight of the accumulators. On every device acc_get(acc, i) is at row
// acc_row(i, lane) and column acc_col(i, lane): i / 4 selects row + 8, (i / 2) % 2 column + 8, and i % 2 the second of
// two neighbouring columns. A row is held by four lanes, acc_t(lane) = 0..3; lane t has the columns 2 * t and 2 * t + 1
// of each eight. row_max and row_sum reduce over these lanes. Only which lanes form such a group differs between
// devices.
//
// The order of the sum over k inside one acc_mma is the device's own; successive ones form a chain in call order. So
// bits depend on the device and on the order of k, never on how many rows are in use. REQUIRES: all 32 lanes call every
// function here together; rows in threadgroup memory start on 16-byte boundaries, as ldmatrix requires.
#pragma once

#include "kernels/compat/dialect.h"

#if defined(__METAL_VERSION__)

struct Acc16 {
  simdgroup_matrix<float, 8, 8> m[2][2];
};
template <typename T>
struct FragA {
  simdgroup_matrix<T, 8, 8> m[2][2];  // [row / 8][k / 8]
};
template <typename T>
struct FragB {
  simdgroup_matrix<T, 8, 8> m[2][2];  // [k / 8][column / 8]
};

FN void acc_zero(THREAD Acc16& acc) {
  acc.m[0][0] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  acc.m[0][1] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  acc.m[1][0] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  acc.m[1][1] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
}
template <typename T>
FN void frag_load_a(THREAD FragA<T>& a, TGROUP const T* p, int ld, uint lane) {
  UNROLL for (int i = 0; i < 2; i++) {
    UNROLL for (int j = 0; j < 2; j++) simdgroup_load(a.m[i][j], p + i * 8 * ld + j * 8, ulong(ld));
  }
}
template <typename T>
FN void frag_load_b(THREAD FragB<T>& b, TGROUP const T* p, int ld, uint lane) {
  UNROLL for (int i = 0; i < 2; i++) {
    UNROLL for (int j = 0; j < 2; j++) simdgroup_load(b.m[i][j], p + i * 8 * ld + j * 8, ulong(ld));
  }
}
template <typename T>
FN void frag_load_b_trans(THREAD FragB<T>& b, TGROUP const T* p, int ld, uint lane) {
  UNROLL for (int i = 0; i < 2; i++) {
    UNROLL for (int j = 0; j < 2; j++) simdgroup_load(b.m[i][j], p + j * 8 * ld + i * 8, ulong(ld), ulong2(0), true);
  }
}
template <typename T>
FN void acc_mma(THREAD Acc16& acc, THREAD const FragA<T>& a, THREAD const FragB<T>& b) {
  UNROLL for (int k = 0; k < 2; k++) {
    UNROLL for (int i = 0; i < 2; i++) {
      UNROLL for (int j = 0; j < 2; j++) {
        simdgroup_multiply_accumulate(acc.m[i][j], a.m[i][k], b.m[k][j], acc.m[i][j]);
      }
    }
  }
}
FN float acc_get(THREAD const Acc16& acc, int i) {
  return acc.m[i >> 2][(i >> 1) & 1].thread_elements()[i & 1];
}
FN void acc_set(THREAD Acc16& acc, int i, float v) {
  acc.m[i >> 2][(i >> 1) & 1].thread_elements()[i & 1] = v;
}
// Apple's layout of an 8x8 matrix (the one that MLX uses): bits 1, 2 and 4 of the lane are the row, bits 0 and 3 the
// pair of columns.
FN int acc_t(uint lane) {
  return int(((lane >> 2) & 2) | (lane & 1));
}
FN int acc_row(int i, uint lane) {
  return int(((lane >> 2) & 4) | ((lane >> 1) & 3)) + (i >> 2) * 8;
}
FN float row_max(float v) {
  v = max(v, simd_shuffle_xor(v, ushort(1)));
  return max(v, simd_shuffle_xor(v, ushort(8)));
}
FN float row_sum(float v) {
  v += simd_shuffle_xor(v, ushort(1));
  return v + simd_shuffle_xor(v, ushort(8));
}
// An accumulator already has the layout of an operand.
template <typename T>
FN void frag_from_acc(THREAD FragA<T>& a, THREAD const Acc16& acc) {
  UNROLL for (int i = 0; i < 2; i++) {
    UNROLL for (int j = 0; j < 2; j++) {
      a.m[i][j].thread_elements()[0] = T(acc.m[i][j].thread_elements()[0]);
      a.m[i][j].thread_elements()[1] = T(acc.m[i][j].thread_elements()[1]);
    }
  }
}

#elif defined(__CUDACC__) || defined(QUIRE_CUDA_SHIM)

// Two m16n8k16 products: the left and the right eight columns. Lane 4g + t has rows g and g + 8 (PTX ISA,
// mma.m16n8k16).
struct Acc16 {
  float m[8];
};
template <typename T>
struct FragA {
  uint r[4];
};
template <typename T>
struct FragB {
  uint r[4];  // left k, left k + 8, right k, right k + 8
};

FN void acc_zero(Acc16& acc) {
  UNROLL for (int i = 0; i < 8; i++) acc.m[i] = 0.0f;
}
template <typename T>
FN void frag_load_a(FragA<T>& a, const T* p, int ld, uint lane) {
  ptx_ldmatrix(a.r, p + (int)(lane & 15) * ld + (int)(lane >> 4) * 8);
}
template <typename T>
FN void frag_load_b(FragB<T>& b, const T* p, int ld, uint lane) {
  ptx_ldmatrix_trans(b.r, p + (int)(lane & 15) * ld + (int)(lane >> 4) * 8);
}
template <typename T>
FN void frag_load_b_trans(FragB<T>& b, const T* p, int ld, uint lane) {
  ptx_ldmatrix(b.r, p + (int)((lane & 7) | ((lane >> 1) & 8)) * ld + (int)(lane & 8));
}
template <typename T>
FN void acc_mma(Acc16& acc, const FragA<T>& a, const FragB<T>& b) {
  ptx_mma(acc.m[0], acc.m[1], acc.m[4], acc.m[5], a.r, b.r[0], b.r[1], T());
  ptx_mma(acc.m[2], acc.m[3], acc.m[6], acc.m[7], a.r, b.r[2], b.r[3], T());
}
FN float acc_get(const Acc16& acc, int i) {
  return acc.m[i];
}
FN void acc_set(Acc16& acc, int i, float v) {
  acc.m[i] = v;
}
FN int acc_t(uint lane) {
  return (int)(lane & 3);
}
FN int acc_row(int i, uint lane) {
  return (int)(lane >> 2) + (i >> 2) * 8;
}
FN float row_max(float v) {
  v = max(v, simd_shuffle_xor(v, 1u));
  return max(v, simd_shuffle_xor(v, 2u));
}
FN float row_sum(float v) {
  v += simd_shuffle_xor(v, 1u);
  return v + simd_shuffle_xor(v, 2u);
}
// The registers of an operand hold pairs of neighbouring columns: rows g and g + 8, then the same with k + 8.
template <typename T>
FN void frag_from_acc(FragA<T>& a, const Acc16& acc) {
  UNROLL for (int j = 0; j < 4; j++) {
    const int i = (j & 1) * 4 + (j >> 1) * 2;
    const uint low = to_bits16(to<T>(acc.m[i])), high = to_bits16(to<T>(acc.m[i + 1]));
    a.r[j] = low | high << 16;
  }
}

#elif defined(__OPENCL_CPP_VERSION__)

struct Acc16 {
  float m[8];
};
template <typename T>
struct FragA {
  uint r[4];
};
template <typename T>
struct FragB {
  uint r[4];
};
void acc_zero(THREAD Acc16& acc);
template <typename T>
void frag_load_a(THREAD FragA<T>& a, TGROUP const T* p, int ld, uint lane);
template <typename T>
void frag_load_b(THREAD FragB<T>& b, TGROUP const T* p, int ld, uint lane);
template <typename T>
void frag_load_b_trans(THREAD FragB<T>& b, TGROUP const T* p, int ld, uint lane);
template <typename T>
void acc_mma(THREAD Acc16& acc, THREAD const FragA<T>& a, THREAD const FragB<T>& b);
float acc_get(THREAD const Acc16& acc, int i);
void acc_set(THREAD Acc16& acc, int i, float v);
int acc_t(uint lane);
int acc_row(int i, uint lane);
float row_max(float v);
float row_sum(float v);
template <typename T>
void frag_from_acc(THREAD FragA<T>& a, THREAD const Acc16& acc);

#else

// The host uses CUDA's layout. A lane's fragments hold everything that its own eight sums need, as floats, so that a
// product needs no exchange between the lanes; converge() checks that all of them take part.
struct Acc16 {
  float m[8];
};
template <typename T>
struct FragA {
  float rows[16][2];  // [k][row g, g + 8]
};
template <typename T>
struct FragB {
  float columns[16][4];  // [k][column 2t, 2t + 1, 2t + 8, 2t + 9]
};

FN int acc_t(uint lane) {
  return (int)(lane & 3);
}
FN int acc_row(int i, uint lane) {
  return (int)(lane >> 2) + (i >> 2) * 8;
}
FN void acc_zero(Acc16& acc) {
  for (int i = 0; i < 8; i++) acc.m[i] = 0.0f;
}
template <typename T>
void frag_load_a(FragA<T>& a, const T* p, int ld, uint lane, QUIRE_SITE("frag_load_a")) {
  quire::emulator::tile_load(p, ld * sizeof(T), lane, site);
  const T* row = p + acc_row(0, lane) * ld;
  for (int k = 0; k < 16; k++) {
    a.rows[k][0] = to_f(row[k]);
    a.rows[k][1] = to_f(row[k + 8 * ld]);
  }
}
template <typename T>
void frag_load_b(FragB<T>& b, const T* p, int ld, uint lane, QUIRE_SITE("frag_load_b")) {
  quire::emulator::tile_load(p, ld * sizeof(T), lane, site);
  const T* column = p + acc_t(lane) * 2;
  for (int k = 0; k < 16; k++) {
    for (int j = 0; j < 4; j++) b.columns[k][j] = to_f(column[k * ld + (j >> 1) * 8 + (j & 1)]);
  }
}
template <typename T>
void frag_load_b_trans(FragB<T>& b, const T* p, int ld, uint lane, QUIRE_SITE("frag_load_b_trans")) {
  quire::emulator::tile_load(p, ld * sizeof(T), lane, site);
  for (int j = 0; j < 4; j++) {
    const T* column = p + (acc_t(lane) * 2 + (j >> 1) * 8 + (j & 1)) * ld;
    for (int k = 0; k < 16; k++) b.columns[k][j] = to_f(column[k]);
  }
}
template <typename T>
void acc_mma(Acc16& acc, const FragA<T>& a, const FragB<T>& b, QUIRE_SITE("acc_mma")) {
  quire::emulator::converge(site);
  // Products of 16-bit numbers are exact in a float, so each of the 16 steps rounds once.
  float top[4] = {acc.m[0], acc.m[1], acc.m[2], acc.m[3]}, bottom[4] = {acc.m[4], acc.m[5], acc.m[6], acc.m[7]};
  for (int k = 0; k < 16; k++) {
    for (int j = 0; j < 4; j++) {
      top[j] += a.rows[k][0] * b.columns[k][j];
      bottom[j] += a.rows[k][1] * b.columns[k][j];
    }
  }
  for (int j = 0; j < 4; j++) {
    acc.m[j] = top[j];
    acc.m[4 + j] = bottom[j];
  }
}
FN float acc_get(const Acc16& acc, int i) {
  return acc.m[i];
}
FN void acc_set(Acc16& acc, int i, float v) {
  acc.m[i] = v;
}
FN float row_max(float v, QUIRE_SITE("row_max")) {
  v = max(v, simd_shuffle_xor(v, 1u, site));
  return max(v, simd_shuffle_xor(v, 2u, site));
}
FN float row_sum(float v, QUIRE_SITE("row_sum")) {
  v += simd_shuffle_xor(v, 1u, site);
  return v + simd_shuffle_xor(v, 2u, site);
}
template <typename T>
void frag_from_acc(FragA<T>& a, const Acc16& acc, QUIRE_SITE("frag_from_acc")) {
  const quire::emulator::Exchanged all = quire::emulator::exchange(&acc, sizeof acc, site);
  for (uint t = 0; t < 4; t++) {
    const Acc16 part = all.of<Acc16>((all.lane & ~3u) | t);
    for (uint i = 0; i < 8; i++) {
      a.rows[t * 2 + ((i >> 1) & 1) * 8 + (i & 1)][i >> 2] = to_f(to<T>(part.m[i]));
    }
  }
}

#endif

FN int acc_col(int i, uint lane) {
  return acc_t(lane) * 2 + ((i >> 1) & 1) * 8 + (i & 1);
}
