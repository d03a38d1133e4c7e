// SPDX-License-Identifier: Apache-2.0
// The PTX instructions of src/kernels/compat/cuda_ptx.h, with the register layouts of the PTX manual, on the emulator.
#pragma once

FN void ptx_grid_release() {}
FN void ptx_grid_wait() {}

// Lane i gives the address of row i % 8 of matrix i / 8. Register j gets two elements of matrix j: of row lane / 4 the
// columns 2 * (lane % 4) and the next; transposed, of column lane / 4 those rows.
FN void ptx_load_matrices(uint* r, const void* row, bool transposed, quire::emulator::Site site) {
  const uint lane = quire::emulator::position().lane;
  quire::emulator::tile_load(row, 16, lane, site);
  const quire::emulator::Exchanged all = quire::emulator::exchange(&row, sizeof row, site);
  for (uint j = 0; j < 4; j++) {
    ushort pair[2];
    for (uint e = 0; e < 2; e++) {
      const uint at_row = transposed ? lane % 4 * 2 + e : lane / 4,
                 at_column = transposed ? lane / 4 : lane % 4 * 2 + e;
      pair[e] = all.of<const ushort*>(j * 8 + at_row)[at_column];
    }
    r[j] = pair[0] | static_cast<uint>(pair[1]) << 16;
  }
}
FN void ptx_ldmatrix(uint* r, const void* row, QUIRE_CUDA_SITE("ldmatrix")) {
  ptx_load_matrices(r, row, false, site);
}
FN void ptx_ldmatrix_trans(uint* r, const void* row, QUIRE_CUDA_SITE("ldmatrix.trans")) {
  ptx_load_matrices(r, row, true, site);
}

FN float ptx_element(uint pair, uint which, half) {
  return __half2float(__ushort_as_half(static_cast<ushort>(pair >> 16 * which)));
}
FN float ptx_element(uint pair, uint which, bfloat) {
  return __bfloat162float(__ushort_as_bfloat16(static_cast<ushort>(pair >> 16 * which)));
}
// a[16, 16]: lane 4g + t has rows g and g + 8 (registers 0 and 1), columns 2t and the next; registers 2 and 3 columns
// + 8. b[16, 8]: rows 2t and the next of column g, register 1 rows + 8. c[16, 8]: row g (0, 1) and g + 8 (2, 3),
// columns 2t...
template <typename T>
FN void ptx_mma(float& c0, float& c1, float& c2, float& c3, const uint* a, uint b0, uint b1, T type,
                QUIRE_CUDA_SITE("mma")) {
  struct Operands {
    uint a[4], b[2];
  };
  const Operands mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const quire::emulator::Exchanged all = quire::emulator::exchange(&mine, sizeof mine, site);
  float* sums[4] = {&c0, &c1, &c2, &c3};
  for (uint i = 0; i < 4; i++) {
    const uint row = all.lane / 4 + i / 2 * 8, column = all.lane % 4 * 2 + i % 2;
    for (uint k = 0; k < 16; k++) {
      const uint t = k % 8 / 2;
      const Operands left = all.of<Operands>(row % 8 * 4 + t), right = all.of<Operands>(column * 4 + t);
      *sums[i] += ptx_element(left.a[row / 8 + k / 8 * 2], k % 2, type) * ptx_element(right.b[k / 8], k % 2, type);
    }
  }
}

FN void ptx_copy16(void* to, const void* from, QUIRE_CUDA_SITE("cp.async")) {
  quire::emulator::copy_begin(to, from, site);
}
FN void ptx_copy_commit() {
  quire::emulator::copy_commit();
}
template <int N>
FN void ptx_copy_wait() {
  quire::emulator::copy_wait(N);
}
