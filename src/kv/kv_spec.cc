// SPDX-License-Identifier: Apache-2.0
// Chooses the element type of the KV cache.
#include "kv/kv_spec.h"

#include <algorithm>

#include "base/check.h"

namespace quire::kv {
namespace {

constexpr bool table_is_in_order() {
  int i = 0;
  for (const KvDTypeInfo& row : kKvDTypes) {
    if (static_cast<int>(row.type) != i++) return false;
  }
  return true;
}
static_assert(table_is_in_order());

// The values of --dtype, with vLLM's aliases.
struct DTypeName {
  std::string_view name;
  KvDType type;
};
constexpr DTypeName kDTypeNames[] = {{"half", KvDType::kFloat16},
                                     {"float16", KvDType::kFloat16},
                                     {"bfloat16", KvDType::kBFloat16},
                                     {"float", KvDType::kFloat32},
                                     {"float32", KvDType::kFloat32}};

std::optional<KvDType> parse_kv_dtype(std::string_view text) {
  if (text == "fp8") return KvDType::kFp8E4M3;
  for (const KvDTypeInfo& row : kKvDTypes) {
    if (text == row.name) return row.type;
  }
  return std::nullopt;
}

std::string join_names(std::span<const KvDType> types) {
  std::string out;
  for (const KvDType type : types) {
    if (!out.empty()) out += ", ";
    out += name(type);
  }
  return out;
}

std::optional<KvDType> from_storage(DType type) {
  switch (type) {
    case DType::kF32:
      return KvDType::kFloat32;
    case DType::kF16:
      return KvDType::kFloat16;
    case DType::kBF16:
      return KvDType::kBFloat16;
    default:
      return std::nullopt;
  }
}

struct Chosen {
  KvDType type;
  std::string source;  // where it comes from, for the error
};

Result<Chosen> choose(const KvDTypeChoice& choice) {
  if (choice.kv_cache_dtype != "auto") {
    if (const auto type = parse_kv_dtype(choice.kv_cache_dtype)) {
      return Chosen{*type, "--kv-cache-dtype " + std::string(choice.kv_cache_dtype)};
    }
    std::string names = "auto, fp8";
    for (const KvDTypeInfo& row : kKvDTypes) names += std::string(", ") + row.name;
    return invalid_argument({"--kv-cache-dtype: '", std::string(choice.kv_cache_dtype),
                             "' is not an element type; the choices are ", names, "."});
  }
  if (choice.dtype != "auto") {
    for (const DTypeName& row : kDTypeNames) {
      if (choice.dtype == row.name) return Chosen{row.type, "--dtype " + std::string(choice.dtype)};
    }
    return invalid_argument({"--dtype: '", std::string(choice.dtype),
                             "' is not a type; the choices are auto, half, float16, bfloat16, float, float32."});
  }
  if (choice.checkpoint && (!choice.quantised_file || choice.checkpoint == DType::kBF16)) {
    if (const auto type = from_storage(*choice.checkpoint)) return Chosen{*type, "the checkpoint's type"};
  }
  return Chosen{choice.fallback, "the fallback for a quantised or unknown checkpoint"};
}

}  // namespace

Result<KvDType> resolve_kv_dtype(const KvDTypeChoice& choice, std::span<const KvDType> supported) {
  QUIRE_ASSIGN(const Chosen chosen, choose(choice));
  if (std::ranges::find(supported, chosen.type) == supported.end()) {
    return unsupported({"The KV cache cannot hold ", std::string(name(chosen.type)), " (from ", chosen.source,
                        ") on this backend; set --kv-cache-dtype to one of ", join_names(supported), "."});
  }
  return chosen.type;
}

}  // namespace quire::kv
