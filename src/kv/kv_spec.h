// SPDX-License-Identifier: Apache-2.0
// Element types of the KV cache and the bytes of a page: the one place where they are computed.
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
  const char* name;     // as --kv-cache-dtype spells it
  int64_t bytes;        // of one element
  int64_t scale_bytes;  // stored in the page for each (token, kv head) of K and again of V
};

inline constexpr KvDTypeInfo kKvDTypes[] = {
    {KvDType::kFloat32, "float32", 4, 0},   {KvDType::kFloat16, "float16", 2, 0},
    {KvDType::kBFloat16, "bfloat16", 2, 0}, {KvDType::kFp8E4M3, "fp8_e4m3", 1, 0},
    {KvDType::kFp8E5M2, "fp8_e5m2", 1, 0},  {KvDType::kInt8PerTokenHead, "int8_per_token_head", 1, 4},
};

constexpr const KvDTypeInfo& info(KvDType type) {
  return kKvDTypes[static_cast<int>(type)];
}
constexpr const char* name(KvDType type) {
  return info(type).name;
}
// The storage type that the ops take; nothing for those that no op reads yet.
std::optional<DType> storage_type(KvDType type);

// What decides the element type; see resolve_kv_dtype.
struct KvDTypeChoice {
  std::string_view kv_cache_dtype = "auto";  // --kv-cache-dtype
  std::string_view dtype = "auto";           // --dtype
  std::optional<DType> checkpoint = {};      // the checkpoint's own type (config.json, else its tensors), if known
  bool quantised_file = false;               // GGUF with quantised tensors, or a quantised checkpoint
  KvDType fallback = KvDType::kFloat16;      // what the backend likes best of 16 bits
};

// The element type: --kv-cache-dtype if it names one; else (auto) --dtype; else the checkpoint's type; else the
// fallback, as for quantised files. An Error lists the choices for an unknown spelling, and the supported ones for a
// type that the backend (which lists what it computes with) does not have. "fp8" means fp8_e4m3, as in vLLM.
Result<KvDType> resolve_kv_dtype(const KvDTypeChoice& choice, std::span<const KvDType> supported);

// The shape of a model's KV cache. Plain data; validate() before the sizes are asked for.
struct KvSpec {
  int64_t num_layers = 0;
  int64_t num_kv_heads = 0;
  int64_t k_head_dim = 0;
  int64_t v_head_dim = 0;
  int64_t block_size = 16;  // positions in a page
  KvDType dtype = KvDType::kFloat16;

  // All counts positive and sane (they come from files), block_size a multiple of 16: kernels work on absolute groups
  // of 16 positions.
  Status validate() const;

  int64_t token_bytes_per_layer() const;  // K and V of one position with their scales
  int64_t layer_page_bytes() const { return token_bytes_per_layer() * block_size; }
  int64_t page_bytes() const { return layer_page_bytes() * num_layers; }  // one page over all layers
  int64_t bytes_per_token() const { return token_bytes_per_layer() * num_layers; }
  int64_t blocks_for(int64_t num_tokens) const { return (num_tokens + block_size - 1) / block_size; }
};

}  // namespace quire::kv
