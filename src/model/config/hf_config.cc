// SPDX-License-Identifier: Apache-2.0
// config.json into a DecoderConfig.
#include "model/config/hf_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "base/log.h"
#include "base/utf8.h"

namespace quire::model {
namespace {

using json::Value;

constexpr int64_t kMaxLayers = 4096;

// Fields that change the results in some family, with their neutral values. A family lists those that it handles; any
// other one with a value that is not neutral is refused. null is always neutral.
struct MathField {
  std::string_view name;
  std::array<double, 2> neutral;  // numbers, or booleans as 0 and 1; NaN: none
};
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr MathField kMathFields[] = {
    {"attn_logit_softcapping", {0, 0}},
    {"final_logit_softcapping", {0, 0}},
    {"sliding_window", {0, 0}},
    {"use_sliding_window", {0, 0}},
    {"attention_chunk_size", {0, 0}},
    {"num_experts", {0, 1}},
    {"num_local_experts", {0, 1}},
    {"n_routed_experts", {0, 1}},
    {"moe_intermediate_size", {0, 0}},
    {"kv_lora_rank", {0, 0}},
    {"q_lora_rank", {0, 0}},
    {"partial_rotary_factor", {1, 1}},
    {"rotary_pct", {1, 1}},
    {"embedding_multiplier", {1, 1}},
    {"residual_multiplier", {1, 1}},
    {"attention_multiplier", {kNone, kNone}},
    {"logits_scaling", {1, 1}},
    {"logit_scale", {1, 1}},
    {"scale_emb", {1, 1}},
    {"scale_depth", {kNone, kNone}},
    {"dim_model_base", {kNone, kNone}},
    {"query_pre_attn_scalar", {kNone, kNone}},
    {"use_qk_norm", {0, 0}},
    {"qk_layernorm", {0, 0}},
    {"clip_qkv", {0, 0}},
    {"attention_bias", {0, 0}},
    {"attention_out_bias", {0, 0}},
    {"qkv_bias", {0, 0}},
    {"mlp_bias", {0, 0}},
    {"use_bias", {0, 0}},
    {"lm_head_bias", {0, 0}},
    {"no_rope_layers", {kNone, kNone}},
    {"no_rope_layer_interval", {0, 0}},
    {"use_parallel_residual", {0, 0}},
    {"parallel_attn", {0, 0}},
    {"alibi", {0, 0}},
    {"use_mup", {0, 0}},
    {"mup_width_multiplier", {1, 1}},
    {"attention_sink", {0, 0}},
    {"use_attention_sinks", {0, 0}},
    {"attn_temperature_tuning", {0, 0}},
    {"apply_residual_connection_post_layernorm", {0, 0}},
    {"compression_config", {kNone, kNone}},
    {"is_encoder_decoder", {0, 0}},
    {"add_cross_attention", {0, 0}},
    {"per_layer_intermediate_sizes", {kNone, kNone}},
    {"block_configs", {kNone, kNone}},
    {"mamba_d_state", {0, 0}},
    {"linear_num_key_heads", {0, 0}},
};

bool is_neutral(const Value& value, const MathField& field) {
  if (value.is_null()) return true;
  double number = kNone;
  if (value.is_bool()) number = value.as_bool() ? 1 : 0;
  if (value.is_number()) number = value.as_double();
  return number == field.neutral[0] || number == field.neutral[1];
}

Result<Activation> read_activation(const Value& config) {
  struct Named {
    std::string_view name;
    Activation activation;
  };
  constexpr Named kNamed[] = {{"silu", Activation::kSilu},         {"swish", Activation::kSilu},
                              {"gelu", Activation::kGelu},         {"gelu_pytorch_tanh", Activation::kGeluTanh},
                              {"gelu_new", Activation::kGeluTanh}, {"gelu_fast", Activation::kGeluTanh},
                              {"relu", Activation::kRelu},         {"relu2", Activation::kRelu2}};
  // Gemma's own field; some of its files also have the other one, with another value, which is not used.
  const Value* own = config.find("hidden_activation");
  const char* field = own != nullptr && !own->is_null() ? "hidden_activation" : "hidden_act";
  QUIRE_ASSIGN(const std::string text, json::get_string_or(config, field, "silu"));
  const auto found = std::find_if(std::begin(kNamed), std::end(kNamed), [&](const Named& n) { return n.name == text; });
  if (found != std::end(kNamed)) return found->activation;
  return unsupported(
      {"field '", field, "' is '", text, "'; quire knows silu, gelu, gelu_pytorch_tanh, relu and relu2"});
}

// Nothing if the config does not have it.
Result<std::optional<DType>> read_dtype(const Value& config) {
  // transformers 5 writes "dtype", older versions "torch_dtype".
  const Value* newer = config.find("dtype");
  const char* field = newer != nullptr && !newer->is_null() ? "dtype" : "torch_dtype";
  QUIRE_ASSIGN(std::string name, json::get_string_or(config, field, ""));
  if (name.empty()) return std::optional<DType>();
  if (name.rfind("torch.", 0) == 0) name = name.substr(6);
  if (name == "float32" || name == "float") return std::optional<DType>(DType::kF32);
  if (name == "float16" || name == "half") return std::optional<DType>(DType::kF16);
  if (name == "bfloat16") return std::optional<DType>(DType::kBF16);
  return unsupported({"field '", field, "' is '", name, "'; quire knows float32, float16 and bfloat16"});
}

Result<std::vector<double>> read_factors(const Value& rope, std::string_view field) {
  const Value* list = rope.find(field);
  if (list == nullptr || !list->is_array()) {
    return invalid_argument({"rope field '", field, "' must be a list of numbers"});
  }
  std::vector<double> factors;
  for (const Value& item : list->as_array()) {
    if (!item.is_number() || !(item.as_double() > 0) || !std::isfinite(item.as_double())) {
      return invalid_argument({"rope field '", field, "' must hold positive numbers"});
    }
    factors.push_back(item.as_double());
  }
  return factors;
}

Result<double> positive(const Value& object, std::string_view field, double fallback) {
  QUIRE_ASSIGN(const double value, json::get_double_or(object, field, fallback));
  if (!(value > 0) || !std::isfinite(value)) {
    return invalid_argument({"field '", field, "' must be a positive number"});
  }
  return value;
}

// "rope_type", or "type" in older files; "su" is an old name of longrope.
Result<RopeType> read_rope_type(const Value& rope, std::string_view model_type) {
  QUIRE_ASSIGN(std::string name, json::get_string_or(rope, "rope_type", ""));
  if (name.empty()) {
    QUIRE_ASSIGN(name, json::get_string_or(rope, "type", "default"));
  }
  if (model_type == "phi3" && name == "yarn") name = "longrope";  // its name in the first Phi-3 files
  if (name == "default") return RopeType::kDefault;
  if (name == "linear") return RopeType::kLinear;
  if (name == "dynamic") return RopeType::kDynamic;
  if (name == "yarn") return RopeType::kYarn;
  if (name == "llama3") return RopeType::kLlama3;
  if (name == "longrope" || name == "su") return RopeType::kLongRope;
  if (name == "proportional") return RopeType::kProportional;
  if (name == "mrope") return RopeType::kDefault;  // text has the same position on every axis
  return unsupported({"rope type '", name,
                      "' is unknown; quire knows default, linear, dynamic, yarn, llama3, longrope and proportional"});
}

// The object with the rope settings: rope_parameters (transformers 5) or rope_scaling. If there is one per layer type,
// that of full attention.
const Value* find_rope(const Value& config) {
  for (const char* field : {"rope_parameters", "rope_scaling"}) {
    const Value* rope = config.find(field);
    if (rope == nullptr || !rope->is_object()) continue;
    const Value* full = rope->find("full_attention");
    return full != nullptr && full->is_object() ? full : rope;
  }
  return nullptr;
}

Status read_rope_scaling(const Value& config, const Value& rope, const DecoderConfig& out, RopeConfig& r) {
  QUIRE_ASSIGN(const std::string model_type, json::get_string_or(config, "model_type", ""));
  QUIRE_ASSIGN(r.type, read_rope_type(rope, model_type));
  if (r.type == RopeType::kDefault) return {};
  if (r.type == RopeType::kProportional) {
    QUIRE_ASSIGN(r.factor, positive(rope, "factor", 1.0));
    return {};
  }
  const int64_t config_original = config.find("original_max_position_embeddings") != nullptr ? 1 : 0;
  QUIRE_ASSIGN(const int64_t top_level,
               config_original != 0 ? json::get_int(config, "original_max_position_embeddings", 1, kMaxPositions)
                                    : Result<int64_t>(out.max_position));
  QUIRE_ASSIGN(r.original_max_position,
               json::get_int_or(rope, "original_max_position_embeddings", top_level, 1, kMaxPositions));
  if (r.type != RopeType::kLongRope) {
    const Value* factor = rope.find("factor");
    if ((factor == nullptr || factor->is_null()) && r.type == RopeType::kYarn) {
      r.factor = static_cast<double>(out.max_position) / static_cast<double>(r.original_max_position);
    } else {
      if (factor == nullptr) return invalid_argument("rope field 'factor' is missing");
      QUIRE_ASSIGN(r.factor, positive(rope, "factor", 1.0));
    }
  }
  QUIRE_ASSIGN(r.attention_factor, json::get_double_or(rope, "attention_factor", 0.0));
  if (r.attention_factor < 0 || !std::isfinite(r.attention_factor)) {
    return invalid_argument("rope field 'attention_factor' must be a positive number");
  }
  if (r.type == RopeType::kYarn) {
    QUIRE_ASSIGN(r.beta_fast, positive(rope, "beta_fast", 32.0));
    QUIRE_ASSIGN(r.beta_slow, positive(rope, "beta_slow", 1.0));
    QUIRE_ASSIGN(r.mscale, json::get_double_or(rope, "mscale", 0.0));
    QUIRE_ASSIGN(r.mscale_all_dim, json::get_double_or(rope, "mscale_all_dim", 0.0));
    QUIRE_ASSIGN(r.truncate, json::get_bool_or(rope, "truncate", true));
  }
  if (r.type == RopeType::kLlama3) {
    QUIRE_ASSIGN(r.low_freq_factor, positive(rope, "low_freq_factor", 1.0));
    QUIRE_ASSIGN(r.high_freq_factor, positive(rope, "high_freq_factor", 4.0));
    if (r.low_freq_factor == r.high_freq_factor) {
      return invalid_argument("rope fields 'low_freq_factor' and 'high_freq_factor' must differ");
    }
  }
  if (r.type == RopeType::kLongRope) {
    QUIRE_ASSIGN(
        const double ratio,
        positive(rope, "factor", static_cast<double>(out.max_position) / static_cast<double>(r.original_max_position)));
    r.factor = ratio;
    QUIRE_ASSIGN(r.short_factors, read_factors(rope, "short_factor"));
    QUIRE_ASSIGN(r.long_factors, read_factors(rope, "long_factor"));
    for (const auto& [field, to] : {std::pair("short_mscale", &r.short_mscale), {"long_mscale", &r.long_mscale}}) {
      const Value* mscale = rope.find(field);  // Phi-MoE
      if (mscale == nullptr || mscale->is_null()) continue;
      QUIRE_ASSIGN(*to, positive(rope, field, 1.0));
    }
  }
  return {};
}

Status read_rope(const Value& config, const Value& rope, const HfDefaults& defaults, const DecoderConfig& out,
                 RopeConfig& to) {
  QUIRE_ASSIGN(const double top_theta, positive(config, "rope_theta", defaults.rope_theta));
  QUIRE_ASSIGN(to.theta, positive(rope, "rope_theta", top_theta));
  QUIRE_ASSIGN(const double top_partial, positive(config, "partial_rotary_factor", defaults.partial_rotary));
  QUIRE_ASSIGN(const double partial, positive(rope, "partial_rotary_factor", top_partial));
  if (partial > 1) return invalid_argument("field 'partial_rotary_factor' must be at most 1");
  to.interleaved = defaults.rope_interleaved;
  to.partial = partial;
  return read_rope_scaling(config, rope, out, to);
}

Status read_token_ids(const Value& config, DecoderConfig& out) {
  const Value* eos = config.find("eos_token_id");
  if (eos != nullptr && eos->is_int()) out.eos_token_ids.push_back(eos->as_int());
  if (eos != nullptr && eos->is_array()) {
    for (const Value& id : eos->as_array()) {
      if (!id.is_int()) return invalid_argument("field 'eos_token_id' must hold integers");
      out.eos_token_ids.push_back(id.as_int());
    }
  }
  const Value* bos = config.find("bos_token_id");
  if (bos != nullptr && bos->is_int()) out.bos_token_id = bos->as_int();
  return {};
}

}  // namespace

Result<DecoderConfig> read_common_hf(const Value& config, const HfDefaults& defaults) {
  if (!config.is_object()) return invalid_argument("it must be a JSON object");
  DecoderConfig out;
  const auto size_or = [&](std::string_view field, int64_t fallback) {
    return fallback > 0 ? json::get_int_or(config, field, fallback, 1, kMaxSize)
                        : json::get_int(config, field, 1, kMaxSize);
  };
  QUIRE_ASSIGN(out.vocab_size, size_or("vocab_size", defaults.vocab_size));
  QUIRE_ASSIGN(out.hidden, json::get_int(config, "hidden_size", 1, kMaxSize));
  out.layers = defaults.layers;
  if (out.layers == 0) {
    QUIRE_ASSIGN(out.layers, json::get_int(config, "num_hidden_layers", 1, kMaxLayers));
  }
  QUIRE_ASSIGN(out.heads, size_or("num_attention_heads", defaults.heads));
  QUIRE_ASSIGN(out.kv_heads, size_or("num_key_value_heads", defaults.kv_heads > 0 ? defaults.kv_heads : out.heads));
  if (defaults.has_intermediate) {
    QUIRE_ASSIGN(out.intermediate, json::get_int(config, "intermediate_size", 1, kMaxSize));
  }
  QUIRE_ASSIGN(out.max_position,
               json::get_int_or(config, "max_position_embeddings", defaults.max_position, 1, kMaxPositions));
  QUIRE_ASSIGN(out.head_dim, json::get_int_or(config, "head_dim", defaults.head_dim, 0, 4096));
  out.head_dim_given = out.head_dim > 0;
  if (out.heads % out.kv_heads != 0) {
    return invalid_argument({"field 'num_attention_heads' (", out.heads,
                             ") must be a multiple of 'num_key_value_heads' (", out.kv_heads, ")"});
  }
  const std::string_view eps_field = defaults.norm_eps_field;
  QUIRE_ASSIGN(const double eps, json::get_double_or(config, eps_field, defaults.norm_eps));
  if (!(eps >= 0) || !(eps < 1)) {
    return invalid_argument({"field '", eps_field, "' must be from 0 to below 1"});
  }
  out.norm_eps = static_cast<float>(eps);
  QUIRE_ASSIGN(out.activation, read_activation(config));
  QUIRE_ASSIGN(out.tied_embeddings, json::get_bool_or(config, "tie_word_embeddings", defaults.tied));
  QUIRE_ASSIGN(const std::optional<DType> dtype, read_dtype(config));
  out.dtype = dtype.value_or(DType::kF32);  // the default of transformers; open_model looks at the tensors
  out.dtype_given = dtype.has_value();
  static const Value kEmpty{json::Object{}};
  const Value* rope = find_rope(config);
  QUIRE_TRY(read_rope(config, rope != nullptr ? *rope : kEmpty, defaults, out, out.rope));
  QUIRE_TRY(read_token_ids(config, out));
  return out;
}

Result<int64_t> read_size(const Value& config, std::string_view field, int64_t least) {
  return json::get_int(config, field, least, kMaxSize);
}

Result<int64_t> read_size_or(const Value& config, std::string_view field, int64_t fallback, int64_t least) {
  return json::get_int_or(config, field, fallback, least, kMaxSize);
}

Status require_silu(const DecoderConfig& config) {
  if (config.activation == Activation::kSilu) return {};
  return unsupported("field 'hidden_act' must be silu for this family, whose convolutions use it as well");
}

Result<float> read_factor(const Value& config, std::string_view field, double fallback) {
  QUIRE_ASSIGN(const double value, json::get_double_or(config, field, fallback));
  if (!std::isfinite(value) || value == 0 || !std::isfinite(static_cast<float>(value))) {
    return invalid_argument({"field '", field, "' must be a number other than 0"});
  }
  return static_cast<float>(value);
}

// transformers writes infinity as {"__float__": "Infinity"}; older files have Infinity, which is not JSON, or a number.
Status read_time_step_limit(const Value& config, Mamba2Config& out) {
  out.dt_min = 0;
  out.dt_max = std::numeric_limits<float>::infinity();
  const Value* limit = config.find("time_step_limit");
  if (limit == nullptr || limit->is_null()) return {};
  if (!limit->is_array() || limit->as_array().size() != 2 || !limit->as_array()[0].is_number()) {
    return invalid_argument("field 'time_step_limit' must be a list of two numbers");
  }
  out.dt_min = static_cast<float>(limit->as_array()[0].as_double());
  const Value& high = limit->as_array()[1];
  if (high.is_number()) out.dt_max = static_cast<float>(high.as_double());
  if (!(out.dt_min <= out.dt_max)) return invalid_argument("field 'time_step_limit' must hold a low and a high number");
  return {};
}

Result<std::vector<std::string>> read_layer_types(const Value& config, int64_t layers, std::string_view field) {
  std::vector<std::string> out;
  const Value* types = config.find(field);
  if (types == nullptr || types->is_null()) return out;
  if (!types->is_array() || types->as_array().size() != static_cast<size_t>(layers)) {
    return invalid_argument({"field '", field, "' must be a list with a word for each of the ", layers, " layers"});
  }
  for (const Value& type : types->as_array()) {
    if (!type.is_string()) return invalid_argument({"field '", field, "' must hold words"});
    out.push_back(type.as_string());
  }
  return out;
}

Status read_windows(const Value& config, DecoderConfig& out, int64_t full_every) {
  QUIRE_ASSIGN(const int64_t window, read_sliding_window(config));
  QUIRE_ASSIGN(const std::vector<std::string> types, read_layer_types(config, out.layers));
  out.per_layer.assign(static_cast<size_t>(out.layers), LayerConfig{});
  for (size_t i = 0; i < out.per_layer.size(); ++i) {
    bool slides = full_every == 0 || (i + 1) % static_cast<size_t>(full_every) != 0;
    if (!types.empty()) {
      slides = types[i] == "sliding_attention";
      if (!slides && types[i] != "full_attention") {
        return unsupported({"field 'layer_types' names '", types[i],
                            "'; this family has sliding_attention and "
                            "full_attention"});
      }
    }
    if (slides) out.per_layer[i].window = window;
  }
  return {};
}

Status read_local_rope(const Value& config, std::string_view layer_type, double default_theta, DecoderConfig& out) {
  static const Value kEmpty{json::Object{}};
  const Value* rope = &kEmpty;
  HfDefaults defaults;
  defaults.rope_theta = default_theta;
  for (const char* field : {"rope_parameters", "rope_scaling"}) {
    const Value* all = config.find(field);
    if (all == nullptr || !all->is_object()) continue;
    const Value* found = all->find(layer_type);
    if (found != nullptr && found->is_object()) rope = found;
  }
  // A rope_theta outside of these objects belongs to the other layers.
  QUIRE_ASSIGN(out.local_rope.theta, positive(*rope, "rope_theta", default_theta));
  QUIRE_ASSIGN(out.local_rope.partial, positive(*rope, "partial_rotary_factor", 1.0));
  if (out.local_rope.partial > 1) return invalid_argument("field 'partial_rotary_factor' must be at most 1");
  return read_rope_scaling(config, *rope, out, out.local_rope);
}

Status refuse_unknown_maths(const Value& config, std::span<const std::string_view> handled) {
  for (const MathField& field : kMathFields) {
    const Value* value = config.find(field.name);
    if (value == nullptr || is_neutral(*value, field)) continue;
    if (std::find(handled.begin(), handled.end(), field.name) != handled.end()) continue;
    std::string text = json::dump(*value);
    if (text.size() > 60) text = utf8::beginning(text, 57) + "...";
    return unsupported({"field '", std::string(field.name), "' is ", text,
                        ", which changes the arithmetic in a way quire does not have for this family"});
  }
  if (const Value* types = config.find("layer_types"); types != nullptr && types->is_array()) {
    for (const Value& type : types->as_array()) {
      if (!type.is_string() || type.as_string() != "full_attention") {
        if (std::find(handled.begin(), handled.end(), "layer_types") != handled.end()) break;
        return unsupported(
            {"field 'layer_types' names ", json::dump(type), "; quire has full_attention layers for this family"});
      }
    }
  }
  return {};
}

Result<int64_t> read_sliding_window(const Value& config) {
  QUIRE_ASSIGN(const bool use, json::get_bool_or(config, "use_sliding_window", true));
  if (!use) return int64_t{0};
  return json::get_int_or(config, "sliding_window", 0, 0, kMaxPositions);
}

Status read_layers_ahead(const json::Value& config, DecoderConfig& out) {
  QUIRE_ASSIGN(out.ahead.layers, json::get_int_or(config, "num_nextn_predict_layers", 0, 0, 64));
  out.ahead.zero_first = true;
  return {};
}

}  // namespace quire::model
