// SPDX-License-Identifier: Apache-2.0
// Element types of the KV cache, and which one a model gets.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "ops/dtype.h"

namespace quire::kv {

enum class KvDType : uint8_t { kFloat32, kFloat16, kBFloat16, kFp8E4M3, kFp8E5M2, kInt8PerTokenHead };

struct KvDTypeInfo {
  KvDType type;
  const char* name;  // as --kv-cache-dtype spells it
  DType storage;     // as the ops take it
};

inline constexpr KvDTypeInfo kKvDTypes[] = {
    {KvDType::kFloat32, "float32", DType::kF32},     {KvDType::kFloat16, "float16", DType::kF16},
    {KvDType::kBFloat16, "bfloat16", DType::kBF16},  {KvDType::kFp8E4M3, "fp8_e4m3", DType::kF8E4M3},
    {KvDType::kFp8E5M2, "fp8_e5m2", DType::kF8E5M2}, {KvDType::kInt8PerTokenHead, "int8_per_token_head", DType::kI8},
};

constexpr const KvDTypeInfo& info(KvDType type) {
  return kKvDTypes[static_cast<int>(type)];
}
constexpr const char* name(KvDType type) {
  return info(type).name;
}
constexpr DType storage_type(KvDType type) {
  return info(type).storage;
}

// What decides the element type; see resolve_kv_dtype.
struct KvDTypeChoice {
  std::string_view kv_cache_dtype = "auto";  // --kv-cache-dtype
  std::string_view dtype = "auto";           // --dtype
  std::optional<DType> checkpoint = {};      // the checkpoint's own type (config.json, else its tensors), if known
  bool quantised_file = false;               // GGUF with quantised tensors, or a quantised checkpoint
  KvDType fallback = KvDType::kFloat16;      // the backend's preferred 16-bit type
};

// The element type: --kv-cache-dtype unless it is auto, else --dtype unless it is auto, else the checkpoint's type,
// else the fallback. A quantised file gets the fallback too: its plain tensors (norms in F32, scales in F16) show how
// it was packed, not which range its keys have. Only bfloat16 is kept, whose range float16 does not have. "fp8" means
// fp8_e4m3, as in vLLM. An Error lists the choices for an unknown name, and the supported types for one that the
// backend lacks.
Result<KvDType> resolve_kv_dtype(const KvDTypeChoice& choice, std::span<const KvDType> supported);

}  // namespace quire::kv
