// SPDX-License-Identifier: Apache-2.0
// Quantises rows of activations to 12 bits, with one scale per block of 32. Nothing in it depends on the order of
// evaluation, so the compiler's vectors, the intrinsics and plain C++ give the same codes.
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "backend/cpu/isa/declare.h"

namespace quire::cpu::QUIRE_ISA_NS {

namespace {

// Adding 1.5 * 2^23 leaves the value, rounded half to even, in the low bits of the sum.
[[maybe_unused]] constexpr float kRound = 12582912.0f;
[[maybe_unused]] constexpr int32_t kRoundBits = 0x4B400000;

constexpr int32_t kTinyBits = 0x0D800000;  // 2^-100: below it 2032/amax might overflow
constexpr int32_t kHugeBits = 0x7F800000;  // this and above: an infinity or a NaN in the block
constexpr int32_t kNanBits = 0x7FC00000;

int32_t largest_magnitude_bits(const float* x) {
  int32_t bits[kBlock];
  std::memcpy(bits, x, sizeof bits);
  int32_t most = 0;
  for (int i = 0; i < kBlock; ++i) {
    const int32_t magnitude = bits[i] & 0x7fffffff;  // ordered as the floats are
    most = most > magnitude ? most : magnitude;
  }
  return most;
}

#if defined(__AVX512F__) && defined(__AVX512BW__)

// Codes as packed.h splits them; their sums over the low and the high 16 k. vcvtps2dq rounds half to even, as below.
inline void round_codes(const float* x, float inverse, int8_t* codes, int32_t sums[2]) {
  for (int h = 0; h < 2; ++h) {
    const __m512i code = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * h), _mm512_set1_ps(inverse)));
    const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(code, _mm512_set1_epi32(8)), 4);
    const __m512i low = _mm512_sub_epi32(code, _mm512_slli_epi32(high, 4));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + 16 * h), _mm512_cvtepi32_epi8(high));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + kBlock + 16 * h), _mm512_cvtepi32_epi8(low));
    sums[h] = _mm512_reduce_add_epi32(code);
  }
}

#else

// Codes as packed.h splits them; their sums over the low and the high 16 k.
void round_codes(const float* x, float inverse, int8_t* codes, int32_t sums[2]) {
  float shifted[kBlock];
  for (int i = 0; i < kBlock; ++i) shifted[i] = x[i] * inverse + kRound;
  int32_t bits[kBlock];
  std::memcpy(bits, shifted, sizeof bits);
  for (int i = 0; i < kBlock; ++i) {
    const int32_t code = bits[i] - kRoundBits;
    const int32_t high = (code + 8) >> 4;
    codes[i] = static_cast<int8_t>(high);
    codes[kBlock + i] = static_cast<int8_t>(code - 16 * high);
  }
  for (int h = 0; h < 2; ++h) {
    sums[h] = 0;
    for (int i = 0; i < 16; ++i) sums[h] += bits[16 * h + i] - kRoundBits;
  }
}

#endif

template <Scheme kScheme, int kOffset>
void quantise_row(const float* x, RowTileBlock* tile, int32_t (*high)[kRowTile], int64_t blocks, int r) {
  for (int64_t b = 0; b < blocks; ++b, x += kBlock) {
    RowTileBlock& out = tile[b];
    int8_t* codes = out.codes[r];
    const int32_t most = largest_magnitude_bits(x);
    float sa = 0;
    int32_t sums[2] = {0, 0};
    if (most >= kTinyBits && most < kHugeBits) {
      float amax;
      std::memcpy(&amax, &most, sizeof amax);
      sa = amax / static_cast<float>(kCodeMax);
      const float inverse = static_cast<float>(kCodeMax) / amax;
      round_codes(x, inverse, codes, sums);
    } else {
      std::memset(codes, 0, 2 * kBlock);
      if (most >= kHugeBits) std::memcpy(&sa, &kNanBits, sizeof sa);
    }
    out.sa[r] = sa;
    const int32_t low_sum = sums[0];
    const int32_t high_sum = sums[1];
    if constexpr (kScheme == Scheme::kScale) {
      out.aux[r] = -kOffset * (low_sum + high_sum);
    } else if constexpr (kScheme == Scheme::kScaleMin || kScheme == Scheme::kSuperMin || kScheme == Scheme::kGroupMin) {
      const float scaled = sa * static_cast<float>(low_sum + high_sum);
      std::memcpy(&out.aux[r], &scaled, sizeof scaled);
      if constexpr (kOffset != 0) high[b][r] = -kOffset * (low_sum + high_sum);
    } else if constexpr (kScheme == Scheme::kSubScale) {
      out.aux[r] = -kOffset * low_sum;
      high[b][r] = -kOffset * high_sum;
    } else {
      out.aux[r] = low_sum;
      high[b][r] = high_sum;
    }
  }
}

template <DType kType>
void quantise_rows(const Tensor& x, int64_t row_begin, int64_t row_end, const QuantisedRows& out) {
  constexpr QuantFormat kFormat = quant_format(kType);
  const float* data = static_cast<const float*>(x.data);
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t first = row / kRowTile * out.blocks;
    quantise_row<kFormat.scheme, kFormat.offset>(data + row * x.stride, out.tiles + first,
                                                 out.high == nullptr ? nullptr : out.high + first, out.blocks,
                                                 static_cast<int>(row % kRowTile));
  }
}

}  // namespace

int64_t linear_quantised_bytes(const PackedView& w, int64_t rows) {
  return quantised_rows_bytes(w.dtype, rows, w.k);
}

void linear_quantise(const Tensor& x, const PackedView& w, int64_t row_begin, int64_t row_end, const PreparedRows& to) {
  const QuantisedRows out = quantised_rows(to, w);
  switch (w.dtype) {
    case DType::kIQ4_NL:  // the same offset
    case DType::kIQ4_XS:
    case DType::kMXFP4:
    case DType::kQ8_0:
      return quantise_rows<DType::kQ8_0>(x, row_begin, row_end, out);
    case DType::kQ4_0:
      return quantise_rows<DType::kQ4_0>(x, row_begin, row_end, out);
    case DType::kQ5_0:
      return quantise_rows<DType::kQ5_0>(x, row_begin, row_end, out);
    case DType::kQ6_K:
      return quantise_rows<DType::kQ6_K>(x, row_begin, row_end, out);
    case DType::kQ3_K:
      return quantise_rows<DType::kQ3_K>(x, row_begin, row_end, out);
    case DType::kQ2_K:
      return quantise_rows<DType::kQ2_K>(x, row_begin, row_end, out);
    case DType::kG8:
      return quantise_rows<DType::kG8>(x, row_begin, row_end, out);
    default:  // the 32-wide types with a minimum and no offset
      return quantise_rows<DType::kQ4_1>(x, row_begin, row_end, out);
  }
}

}  // namespace quire::cpu::QUIRE_ISA_NS
