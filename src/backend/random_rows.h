// SPDX-License-Identifier: Apache-2.0
// Rows of random codes (RandomElements::Codes), made on the host. kernels/dummy.h makes the same on a GPU.
//
// Row r of the tensor has elements i = r * k + c; the rows of a stack of experts follow each other. All floats are
// rounded after each operation.
//   code    byte i % 16 of Philox4x32-10(key, counter = i / 16), words in order and low bytes first, shifted right so
//           that its bits are left. E4M3: the byte's highest bit is the sign, and its bits 2 to 6 plus 88 the rest: 16
//           to 240
//   scale   w = Philox4x32-10(key XOR kRandomScales, counter = r / scale_rows * S + c / scale_columns), where a row has
//           S scales; v = 2 (w[0] >> 8) 2^-24 - 1; d = scale * (1 + 0.25 v). It is negative if w[0] is odd, unless
//           there are minima or the codes are E4M3, so that the mean of the elements is zero. MXFP4 has the exponent of
//           `scale`, less 1 if w[0] is odd
//   minima  -(middle * d); K types have middle * d as the scale of theirs. G4 and G8 have an fp16 number as d, and a
//           whole zero point z beside the middle: middle + 1/2 if w[0] is odd, else middle - 1/2; the minimum is -(z d)
//   sub-scales, and their minima: sub + (t * sub / 16), where t is nibble c / 16 % 16 of w[1] and w[2]
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/raw_matrix.h"

namespace quire {

inline constexpr uint64_t kRandomScales = 0x6a09e667f3bcc908;

// The memory of one row at a time. One thread uses it.
class RandomRow {
 public:
  // Row `row` of the random elements of a part. REQUIRES: they are codes.
  SourceRow make(const RawMatrix& part, int64_t row);
  // A block of that row.
  void block(DType type, int64_t index, UnpackedBlock& out) const;

 private:
  struct Scale {
    float d;
    uint32_t first, subs[2];  // words of Philox

    int nibble(int i) const { return static_cast<int>(subs[i / 8] >> (4 * (i % 8)) & 15); }
  };
  Scale scale_at(int64_t column) const;
  void make_codes(int64_t begin);
  void make_groups(DType type, int64_t group);
  void make_values(DType type);

  RandomElements random_;
  int64_t row_ = 0, k_ = 0;     // of the tensor
  std::vector<uint8_t> bytes_;  // whole blocks of Philox
  uint8_t* codes_ = nullptr;    // [k], within them
  std::vector<std::byte> data_;
  std::vector<float> scales_, mins_;
};

}  // namespace quire
