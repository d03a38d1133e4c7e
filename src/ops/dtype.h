// SPDX-License-Identifier: Apache-2.0
// Element and block types of tensors: one table with each type's name and geometry.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace quire {

// Storage types. The quantised types of GGUF divide a row along K into blocks with their own scales. Three types are
// elements of KV pages only. Three are codes whose scales are stored separately (RawMatrix in ops/linear.h): the loader
// converts MLX, AWQ, GPTQ, compressed-tensors and FP8 checkpoints to them.
enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
  kI8,      // pages: int8 with a float scale for each (token, kv head)
  kF8E4M3,  // pages
  kF8E5M2,  // pages
  kG4,      // 4-bit codes in groups
  kG8,      // 8-bit codes in groups
  kGF8,     // fp8 (E4M3) in groups; only on backends that pack it (Backend::packs)
};

struct DTypeInfo {
  DType type;
  const char* name;     // in files and flags
  int64_t block_elems;  // elements along K in one block; 1 for plain types
  int64_t block_bytes;
  int gguf_type;  // ggml's number of the type; -1: not a type of GGUF files
};

inline constexpr DTypeInfo kDTypes[] = {
    {DType::kF32, "F32", 1, 4, 0},
    {DType::kF16, "F16", 1, 2, 1},
    {DType::kBF16, "BF16", 1, 2, 30},
    {DType::kQ8_0, "Q8_0", 32, 34, 8},
    {DType::kQ4_0, "Q4_0", 32, 18, 2},
    {DType::kQ4_1, "Q4_1", 32, 20, 3},
    {DType::kQ5_0, "Q5_0", 32, 22, 6},
    {DType::kQ5_1, "Q5_1", 32, 24, 7},
    {DType::kQ2_K, "Q2_K", 256, 84, 10},
    {DType::kQ3_K, "Q3_K", 256, 110, 11},
    {DType::kQ4_K, "Q4_K", 256, 144, 12},
    {DType::kQ5_K, "Q5_K", 256, 176, 13},
    {DType::kQ6_K, "Q6_K", 256, 210, 14},
    {DType::kIQ4_NL, "IQ4_NL", 32, 18, 20},
    {DType::kIQ4_XS, "IQ4_XS", 256, 136, 23},
    {DType::kMXFP4, "MXFP4", 32, 17, 39},
    {DType::kI8, "I8", 1, 1, -1},
    {DType::kF8E4M3, "F8_E4M3", 1, 1, -1},
    {DType::kF8E5M2, "F8_E5M2", 1, 1, -1},
    {DType::kG4, "G4", 32, 16, -1},
    {DType::kG8, "G8", 32, 32, -1},
    {DType::kGF8, "GF8", 32, 32, -1},
};
inline constexpr int kNumDTypes = static_cast<int>(sizeof kDTypes / sizeof kDTypes[0]);
inline constexpr int kNumGgufDTypes = static_cast<int>(DType::kI8);  // GGUF's are the first ones
inline constexpr std::span<const DTypeInfo> kGgufDTypes(kDTypes, kNumGgufDTypes);

// The values of 4-bit codes that are indices: in IQ4_NL and IQ4_XS, and in MXFP4 (fp4 e2m1, doubled).
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr int8_t kFp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

constexpr const DTypeInfo& info(DType type) {
  return kDTypes[static_cast<int>(type)];
}
constexpr const char* name(DType type) {
  return info(type).name;
}
constexpr bool is_quantised(DType type) {
  return info(type).block_elems > 1;
}
// Bytes of one row of k elements. REQUIRES: k is a multiple of the block.
constexpr int64_t row_bytes(DType type, int64_t k) {
  return k / info(type).block_elems * info(type).block_bytes;
}

constexpr bool dtype_table_is_in_order() {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (static_cast<int>(kDTypes[i].type) != i) return false;
  }
  return true;
}
static_assert(dtype_table_is_in_order());

}  // namespace quire
