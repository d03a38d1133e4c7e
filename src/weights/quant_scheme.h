// SPDX-License-Identifier: Apache-2.0
// What a config.json says about quantised weights: which method, with which numbers, and for which modules not.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "weights/tensor_ref.h"

namespace quire::weights {

enum class QuantMethod : uint8_t {
  kNone,
  kMlx,         // "quantization": {"group_size", "bits", "mode"}; affine or mxfp4
  kAwq,         // "quant_method": "awq", the GEMM layout
  kGptq,        // "gptq"
  kFp8,         // "fp8", "fbgemm_fp8", "modelopt" with FP8
  kCompressed,  // "compressed-tensors"
  kMxfp4,       // "mxfp4": GPT-OSS
};

// A list of modules as configs write it: names, names from a module on down, name endings, "*" for any text, and
// patterns behind "re:" that match from the name's start. A plain value; matching is thread-safe.
class ModuleList {
 public:
  // An Error names the pattern that is none.
  Status add(std::string_view pattern);
  bool contains(std::string_view module) const;

 private:
  struct Pattern;  // a compiled regular expression
  std::vector<std::string> names_;
  std::vector<std::shared_ptr<const Pattern>> patterns_;
};

// How the quantised linears of a checkpoint are stored. Numbers that the tensors' own shapes tell are read there, so
// that layers may differ; what stands here is what shapes cannot tell, and what they must agree with.
struct QuantScheme {
  QuantMethod method = QuantMethod::kNone;
  int bits = 0;             // MLX: of modules without an override; GPTQ: of all, 0 when modules differ
  int64_t group = 0;        // MLX likewise; AWQ and GPTQ: -1 is a whole row, 0 what the scales say
  bool fp4 = false;         // MLX: mode mxfp4
  bool stored_less = true;  // GPTQ: zeros are stored less one (checkpoint_format gptq)
  int64_t block_rows = 0;   // FP8: a scale for each block of weights; 0: a scale a row or one for all
  int64_t block_columns = 0;
  struct Override {
    std::string module;
    int bits;
    int64_t group;
    bool fp4;
  };
  std::vector<Override> overrides;  // MLX
  ModuleList ignored;

  // Whether the linear (or embedding) of that name is quantised: the config does not say no, and the tensors are there.
  // "model.layers.0.self_attn.q_proj", without ".weight".
  bool applies_to(const WeightSource& source, std::string_view prefix) const;
};

// Reads quantization_config (or MLX's quantization) of a whole config.json; without either the method is kNone. An
// Error says which field asks for something that quire does not read.
Result<QuantScheme> parse_quantisation(const json::Value& config);

// Scales of activations and of KV caches that such checkpoints carry beside the weights: not needed, since activations
// are quantised by their own values here.
bool is_activation_scale(std::string_view tensor);

}  // namespace quire::weights
