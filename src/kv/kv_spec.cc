// SPDX-License-Identifier: Apache-2.0
// Which element type the KV cache has, and what a page weighs.
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

// A spelling and the type it means; the aliases are vLLM's (and --dtype's).
struct Spelling {
  std::string_view text;
  KvDType type;
};
constexpr Spelling kDTypeSpellings[] = {{"half", KvDType::kFloat16},
                                        {"float16", KvDType::kFloat16},
                                        {"bfloat16", KvDType::kBFloat16},
                                        {"float", KvDType::kFloat32},
                                        {"float32", KvDType::kFloat32}};

std::optional<KvDType> parse_kv_spelling(std::string_view text) {
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
  std::string source;  // what decided it, for the error
};

Result<Chosen> choose(const KvDTypeChoice& choice) {
  if (choice.kv_cache_dtype != "auto") {
    if (const auto type = parse_kv_spelling(choice.kv_cache_dtype)) {
      return Chosen{*type, "--kv-cache-dtype " + std::string(choice.kv_cache_dtype)};
    }
    std::string names = "auto, fp8";
    for (const KvDTypeInfo& row : kKvDTypes) names += std::string(", ") + row.name;
    return invalid_argument("--kv-cache-dtype: '" + std::string(choice.kv_cache_dtype) +
                            "' is not an element type; the choices are " + names + ".");
  }
  if (choice.dtype != "auto") {
    for (const Spelling& s : kDTypeSpellings) {
      if (choice.dtype == s.text) return Chosen{s.type, "--dtype " + std::string(choice.dtype)};
    }
    return invalid_argument("--dtype: '" + std::string(choice.dtype) +
                            "' is not a type; the choices are auto, half, float16, bfloat16, float, float32.");
  }
  if (choice.checkpoint && !choice.quantised_file) {
    if (const auto type = from_storage(*choice.checkpoint)) return Chosen{*type, "the checkpoint's type"};
  }
  return Chosen{choice.fallback, "the fallback for a quantised or unknown checkpoint"};
}

}  // namespace

std::optional<DType> storage_type(KvDType type) {
  switch (type) {
    case KvDType::kFloat32:
      return DType::kF32;
    case KvDType::kFloat16:
      return DType::kF16;
    case KvDType::kBFloat16:
      return DType::kBF16;
    default:
      return std::nullopt;
  }
}

Result<KvDType> resolve_kv_dtype(const KvDTypeChoice& choice, std::span<const KvDType> supported) {
  QUIRE_ASSIGN(const Chosen chosen, choose(choice));
  if (std::ranges::find(supported, chosen.type) == supported.end()) {
    return unsupported("The KV cache can not hold " + std::string(name(chosen.type)) + " (from " + chosen.source +
                       ") on this backend; set --kv-cache-dtype to one of " + join_names(supported) + ".");
  }
  return chosen.type;
}

Status KvSpec::validate() const {
  struct Field {
    const char* name;
    int64_t value;
    int64_t most;
  };
  const Field fields[] = {{"the number of layers", num_layers, 4096},
                          {"the number of KV heads", num_kv_heads, 8192},
                          {"the head size of K", k_head_dim, 16384},
                          {"the head size of V", v_head_dim, 16384},
                          {"--block-size", block_size, 65536}};
  for (const Field& f : fields) {
    if (f.value < 1 || f.value > f.most) {
      return invalid_argument("KV cache: " + std::string(f.name) + " is " + std::to_string(f.value) +
                              "; it must be between 1 and " + std::to_string(f.most) + ".");
    }
  }
  if (block_size % 16 != 0) {
    return invalid_argument(
        "--block-size: " + std::to_string(block_size) +
        " is not a multiple of 16 (attention works on groups of 16 positions); use 16, 32, 64, ...");
  }
  // The bounds above keep this product below 2^59, and this one keeps the bytes of any plan below 2^63.
  constexpr int64_t kMaxPageBytes = int64_t{1} << 35;
  if (page_bytes() > kMaxPageBytes) {
    return invalid_argument("KV cache: a page of " + std::to_string(block_size) + " positions would have " +
                            std::to_string(page_bytes()) + " bytes; lower --block-size.");
  }
  return {};
}

int64_t KvSpec::token_bytes_per_layer() const {
  const KvDTypeInfo& type = info(dtype);
  const int64_t k = k_head_dim * type.bytes + type.scale_bytes;
  const int64_t v = v_head_dim * type.bytes + type.scale_bytes;
  return num_kv_heads * (k + v);
}

}  // namespace quire::kv
