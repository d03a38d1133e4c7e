// SPDX-License-Identifier: Apache-2.0
// Name and block size of every tensor type of GGUF, so that a file is checked completely even if it has types that
// quire cannot compute with.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "ops/dtype.h"

namespace quire::weights {

struct GgmlType {
  uint32_t number;
  const char* name;
  int64_t block_elems;
  int64_t block_bytes;
};

inline constexpr GgmlType kOtherGgmlTypes[] = {
    {9, "Q8_1", 32, 36},      {15, "Q8_K", 256, 292}, {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50}, {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},
    {24, "I8", 1, 1},         {25, "I16", 1, 2},      {26, "I32", 1, 4},        {27, "I64", 1, 8},
    {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56}, {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},
    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},
};

// The DType with ggml's number, if quire computes with it.
constexpr std::optional<DType> dtype_of_ggml(uint32_t number) {
  for (const DTypeInfo& row : kGgufDTypes) {
    if (static_cast<uint32_t>(row.gguf_type) == number) return row.type;
  }
  return std::nullopt;
}

// Name and block size of any known type.
constexpr std::optional<GgmlType> ggml_type(uint32_t number) {
  for (const DTypeInfo& row : kGgufDTypes) {
    if (static_cast<uint32_t>(row.gguf_type) == number) {
      return GgmlType{number, row.name, row.block_elems, row.block_bytes};
    }
  }
  for (const GgmlType& row : kOtherGgmlTypes) {
    if (row.number == number) return row;
  }
  return std::nullopt;
}

}  // namespace quire::weights
