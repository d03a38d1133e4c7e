// SPDX-License-Identifier: Apache-2.0
// The block formats of quantised tensors, and slow, simple reference conversions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/dtype.h"

namespace quire::weights {

// Blocks as files store them (little-endian). fp16 scales are raw bits, read with fp16_to_float (base/half.h). In the
// formulas x is the value, q the stored number, d and m the scale and offset.

// x = d * q, q a signed byte.
struct BlockQ8_0 {
  uint16_t d;
  int8_t qs[32];
};
// x = d * (q - 8). Byte j holds element j in its low and element j + 16 in its high four bits.
struct BlockQ4_0 {
  uint16_t d;
  uint8_t qs[16];
};
// x = d * q + m, nibbles as in Q4_0.
struct BlockQ4_1 {
  uint16_t d;
  uint16_t m;
  uint8_t qs[16];
};
// x = d * (q - 16); bit j of qh is the fifth bit of element j, the nibbles as in Q4_0.
struct BlockQ5_0 {
  uint16_t d;
  uint8_t qh[4];
  uint8_t qs[16];
};
// x = d * q + m, bits as in Q5_0.
struct BlockQ5_1 {
  uint16_t d;
  uint16_t m;
  uint8_t qh[4];
  uint8_t qs[16];
};

// The K formats: 256 elements in sub-blocks whose scales are small integers times the scale of the block.

// x = (d * sc) * q - (dmin * mn), q of 2 bits; scales[s] has sc in its low and mn in its high four bits for the 16
// elements of sub-block s. Byte 32 * h + i of qs holds elements 128 * h + 32 * b + i in bits 2b, 2b + 1.
struct BlockQ2_K {
  uint8_t scales[16];
  uint8_t qs[64];
  uint16_t d;
  uint16_t dmin;
};
// x = (d * (sc - 32)) * q, q of 3 bits in -4..3: two low bits as in Q2_K; bit c of hmask[i] is set for element
// 32 * c + i when its third bit is. sc has 6 bits: low nibbles of the 16 first (8 low, 8 high), two high bits after.
struct BlockQ3_K {
  uint8_t hmask[32];
  uint8_t qs[64];
  uint8_t scales[12];
  uint16_t d;
};
// x = (d * sc) * q - (dmin * mn), q of 4 bits; 8 sub-blocks of 32, sc and mn of 6 bits packed in 12 bytes. Byte 32 * p
// + i of qs holds element 64 * p + i in its low and 64 * p + 32 + i in its high four bits.
struct BlockQ4_K {
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];
  uint8_t qs[128];
};
// As Q4_K with a fifth bit: bit c of qh[i] belongs to element 32 * c + i.
struct BlockQ5_K {
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];
  uint8_t qh[32];
  uint8_t qs[128];
};
// x = (d * sc) * (q - 32), q of 6 bits; 16 sub-blocks of 16, sc a signed byte. For half h and i < 32: ql[64 * h + i]
// has the low bits of elements 128 * h + i and + 64, ql[64 * h + 32 + i] those of + 32 and + 96; qh[32 * h + i] has the
// two high bits of the four elements, lowest first.
struct BlockQ6_K {
  uint8_t ql[128];
  uint8_t qh[64];
  int8_t scales[16];
  uint16_t d;
};

// Formats whose 4-bit codes are indices into a table (kIq4Values, kFp4Values of ops/dtype.h); nibbles as in Q4_0.

// x = d * t[q].
struct BlockIQ4_NL {
  uint16_t d;
  uint8_t qs[16];
};
// x = (d * (ls - 32)) * t[q], ls of 6 bits per 32 elements: four in the nibbles of scales_l, two in scales_h, low ones
// first.
struct BlockIQ4_XS {
  uint16_t d;
  uint16_t scales_h;
  uint8_t scales_l[4];
  uint8_t qs[128];
};
// x = 2^(e - 128) * t[q]; the table has twice the values of e2m1.
struct BlockMXFP4 {
  uint8_t e;
  uint8_t qs[16];
};

static_assert(sizeof(BlockQ8_0) == info(DType::kQ8_0).block_bytes && alignof(BlockQ8_0) == 2);
static_assert(sizeof(BlockQ4_0) == info(DType::kQ4_0).block_bytes && alignof(BlockQ4_0) == 2);
static_assert(sizeof(BlockQ4_1) == info(DType::kQ4_1).block_bytes && alignof(BlockQ4_1) == 2);
static_assert(sizeof(BlockQ5_0) == info(DType::kQ5_0).block_bytes && alignof(BlockQ5_0) == 2);
static_assert(sizeof(BlockQ5_1) == info(DType::kQ5_1).block_bytes && alignof(BlockQ5_1) == 2);
static_assert(sizeof(BlockQ2_K) == info(DType::kQ2_K).block_bytes && alignof(BlockQ2_K) == 2);
static_assert(sizeof(BlockQ3_K) == info(DType::kQ3_K).block_bytes && alignof(BlockQ3_K) == 2);
static_assert(sizeof(BlockQ4_K) == info(DType::kQ4_K).block_bytes && alignof(BlockQ4_K) == 2);
static_assert(sizeof(BlockQ5_K) == info(DType::kQ5_K).block_bytes && alignof(BlockQ5_K) == 2);
static_assert(sizeof(BlockQ6_K) == info(DType::kQ6_K).block_bytes && alignof(BlockQ6_K) == 2);
static_assert(sizeof(BlockIQ4_NL) == info(DType::kIQ4_NL).block_bytes && alignof(BlockIQ4_NL) == 2);
static_assert(sizeof(BlockIQ4_XS) == info(DType::kIQ4_XS).block_bytes && alignof(BlockIQ4_XS) == 2);
static_assert(sizeof(BlockMXFP4) == info(DType::kMXFP4).block_bytes);

// Scale and offset of sub-block s (0..7) of a Q4_K or Q5_K block, each 0..63.
struct ScaleMin {
  uint8_t scale;
  uint8_t min;
};
ScaleMin unpack_scale_min_k4(const uint8_t scales[12], int s);
// The scale of sub-block s (0..15) of a Q3_K block, -32..31.
int unpack_scale_q3_k(const uint8_t scales[12], int s);
// The scale of sub-block s (0..7) of an IQ4_XS block, -32..31.
int unpack_scale_iq4_xs(const BlockIQ4_XS& block, int s);

// MXFP4 as in the safetensors of GPT-OSS: each block has 16 bytes of codes, byte j with elements 2j (low) and 2j + 1
// (high), and its scale byte is in another tensor. Writes `count` blocks of DType::kMXFP4, 17 bytes each.
void mxfp4_from_blocks(const std::byte* blocks, const std::byte* scales, int64_t count, std::byte* out);

// Converts k elements of a row to floats. Every operation is rounded to float in the order of the brackets above, so
// the result is exact and not within a tolerance. `src` needs no alignment. REQUIRES: k is a multiple of the block.
void dequantise_row(DType type, const std::byte* src, float* dst, int64_t k);

// Converts k floats to blocks by rounding to nearest: for tests and tools, not tuned for quality. REQUIRES: the values
// are finite and, if the type's scales are fp16, within fp16's range.
void quantise_row(DType type, const float* src, std::byte* dst, int64_t k);

}  // namespace quire::weights
