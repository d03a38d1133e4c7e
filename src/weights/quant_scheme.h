// SPDX-License-Identifier: Apache-2.0
// How a config.json describes quantised weights: the method, its parameters, and the modules that are not quantised.
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
  kGguf,        // random weights in a type of GGUF's (--quantization)
};

// A list of modules as configs write it: names, prefixes of names, endings of names, "*" for any text, and regular
// expressions after "re:" that match from the start of the name. A plain value; matching is thread-safe.
class ModuleList {
 public:
  // An Error names a pattern that is not a regular expression.
  Status add(std::string_view pattern);
  bool contains(std::string_view module) const;

 private:
  struct Pattern;  // a compiled regular expression
  std::vector<std::string> names_;
  std::vector<std::shared_ptr<const Pattern>> patterns_;
};

// How the quantised linears of a checkpoint are stored. What the shapes of the tensors show is read from them, so that
// layers may differ; this has what shapes cannot show, and what they must agree with.
struct QuantScheme {
  QuantMethod method = QuantMethod::kNone;
  int bits = 0;                 // MLX: for modules without an override; GPTQ: for all, 0 if modules differ
  int64_t group = 0;            // MLX: the same; AWQ and GPTQ: -1 is a whole row, 0 as the scales have it
  bool fp4 = false;             // MLX: mode mxfp4
  bool zeros_minus_one = true;  // GPTQ: zeros are stored minus one (checkpoint_format gptq)
  int64_t block_rows = 0;       // FP8: a scale per block of weights; 0: one per row or per matrix
  int64_t block_columns = 0;
  struct Override {
    std::string module;
    int bits;
    int64_t group;
    bool fp4;
  };
  std::vector<Override> overrides;  // MLX
  ModuleList ignored;
  // What the tensors of a file show, and random weights have from here: the settings of these modules. The first entry
  // that has a module is its own; without an entry, it is not quantised.
  struct Stored {
    ModuleList targets = {};
    bool all = false;  // modules
    int bits = 4;
    int64_t group = 0;       // as above; 0: 128
    bool fp8 = false;        // E4M3
    int64_t scale_rows = 1;  // fp8 without blocks: rows that share a scale; 0: all
    bool act_order = false;
  };
  std::vector<Stored> stored;     // AWQ, GPTQ, FP8 and compressed-tensors
  DType gguf_type = DType::kF32;  // kGguf

  // Whether the linear (or embedding) of that name is quantised: the config does not exclude it, and its tensors exist.
  // The name is like "model.layers.0.self_attn.q_proj", without ".weight".
  bool applies_to(const WeightSource& source, std::string_view prefix) const;
};

// Reads quantization_config (or MLX's quantization) of a whole config.json; the method is kNone if it has neither. An
// Error names the field with an unsupported value.
Result<QuantScheme> parse_quantisation(const json::Value& config);

// What --quantization asks of random weights: a type of GGUF's ("q4_k") or a method with its usual settings ("awq"). An
// Error lists the choices.
Result<QuantScheme> parse_quantization_flag(std::string_view flag);

// Scales of activations and KV caches that some checkpoints have beside the weights. They are not needed: quire
// quantises activations by their own values.
bool is_activation_scale(std::string_view tensor);

}  // namespace quire::weights
