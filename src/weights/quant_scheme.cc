// SPDX-License-Identifier: Apache-2.0
// Reads how a config.json describes its quantised weights.
#include "weights/quant_scheme.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "base/strings.h"
#include "weights/file_sniff.h"

namespace quire::weights {
namespace {

constexpr uint32_t kMatchLimit = 100'000;  // steps; bounds hostile patterns
constexpr int64_t kMaxGroup = 1 << 20;
constexpr size_t kMaxPatterns = 100'000;

Failure in_field(const std::string& field, const std::string& message) {
  return unsupported({field, ": ", message});
}

Failure in_field(const std::string& field, const Error& error) {
  return Error{error.code, field + ": " + error.message};
}

// A list of module names; absent or null is an empty list.
Status read_modules(const json::Value& config, const char* name, const std::string& where, ModuleList& out) {
  const json::Value* list = config.find(name);
  if (list == nullptr || list->is_null()) return {};
  if (!list->is_array() || list->as_array().size() > kMaxPatterns) {
    return invalid_argument({where, ".", name, " is not a list of module names"});
  }
  for (const json::Value& module : list->as_array()) {
    if (!module.is_string()) return invalid_argument({where, ".", name, " has an item that is not a string"});
    const auto added = out.add(module.as_string());
    if (!added.ok()) return in_field(where + "." + name, added.error());
  }
  return {};
}

Result<int64_t> read_group(const json::Value& config, const std::string& where, int64_t fallback) {
  const auto group = json::get_int_or(config, "group_size", fallback, -1, kMaxGroup);
  if (!group.ok()) return in_field(where, group.error());
  return *group;
}

struct MlxMode {
  int bits;
  int64_t group;
  bool fp4;
};

Result<MlxMode> read_mlx_mode(const json::Value& config, const std::string& where) {
  const auto mode = json::get_string_or(config, "mode", "affine");
  if (!mode.ok()) return in_field(where, mode.error());
  if (*mode != "affine" && *mode != "mxfp4") {
    return in_field(where + ".mode", in_quotes(*mode) + " is an unsupported mode; quire reads affine and mxfp4");
  }
  const bool fp4 = *mode == "mxfp4";
  const auto bits = json::get_int_or(config, "bits", 4, 1, 32);
  if (!bits.ok()) return in_field(where, bits.error());
  QUIRE_ASSIGN(const int64_t group, read_group(config, where, fp4 ? 32 : 64));
  constexpr int kBits[] = {2, 3, 4, 5, 6, 8};
  if (std::find(std::begin(kBits), std::end(kBits), *bits) == std::end(kBits) || (fp4 && *bits != 4)) {
    return in_field(where + ".bits", std::to_string(*bits) + " must be 2, 3, 4, 5, 6 or 8 (mxfp4: 4)");
  }
  if (group <= 0 || group % 32 != 0 || (fp4 && group != 32)) {
    return in_field(where + ".group_size", std::to_string(group) + " must be a multiple of 32 (mxfp4: 32)");
  }
  return MlxMode{static_cast<int>(*bits), group, fp4};
}

Result<QuantScheme> parse_mlx(const json::Value& config, const std::string& where) {
  QuantScheme out;
  out.method = QuantMethod::kMlx;
  QUIRE_ASSIGN(const MlxMode mode, read_mlx_mode(config, where));
  out.bits = mode.bits;
  out.group = mode.group;
  out.fp4 = mode.fp4;
  for (const auto& [name, value] : config.as_object()) {
    if (value.is_object()) {
      QUIRE_ASSIGN(const MlxMode own, read_mlx_mode(value, where + "." + name));
      out.overrides.push_back({name, own.bits, own.group, own.fp4});
    } else if (value.is_bool() && !value.as_bool()) {
      QUIRE_TRY(out.ignored.add(name));
    }
  }
  return out;
}

Result<QuantScheme> parse_awq(const json::Value& config, const std::string& where) {
  QuantScheme out;
  out.method = QuantMethod::kAwq;
  const auto bits = json::get_int_or(config, "bits", 4, 1, 32);
  if (!bits.ok()) return in_field(where, bits.error());
  if (*bits != 4)
    return in_field(where + ".bits", std::to_string(*bits) + " is not supported for AWQ; quire reads 4 bits");
  const auto version = json::get_string_or(config, "version", "gemm");
  if (!version.ok()) return in_field(where, version.error());
  if (ascii_lower(*version) != "gemm") {
    return in_field(where + ".version", in_quotes(*version) + " is an unsupported layout; quire reads gemm");
  }
  out.bits = 4;
  QUIRE_ASSIGN(out.group, read_group(config, where, 0));
  QUIRE_TRY(read_modules(config, "modules_to_not_convert", where, out.ignored));
  out.stored.push_back({.all = true, .group = out.group});
  return out;
}

Result<QuantScheme> parse_gptq(const json::Value& config, const std::string& where) {
  QuantScheme out;
  out.method = QuantMethod::kGptq;
  const auto bits = json::get_int(config, "bits", 1, 32);
  if (!bits.ok()) return in_field(where, bits.error());
  if (*bits != 2 && *bits != 3 && *bits != 4 && *bits != 8) {
    return in_field(where + ".bits",
                    std::to_string(*bits) + " is not supported for GPTQ; quire reads 2, 3, 4 and 8 bits");
  }
  const auto format = json::get_string_or(config, "checkpoint_format", "gptq");
  if (!format.ok()) return in_field(where, format.error());
  if (*format != "gptq" && *format != "gptq_v2") {
    return in_field(where + ".checkpoint_format", in_quotes(*format) + " is neither gptq nor gptq_v2");
  }
  const json::Value* dynamic = config.find("dynamic");
  const bool differ = dynamic != nullptr && dynamic->is_object() && !dynamic->as_object().empty();
  QUIRE_ASSIGN(const int64_t group, read_group(config, where, 0));
  out.bits = differ ? 0 : static_cast<int>(*bits);
  out.group = differ ? 0 : group;
  out.zeros_minus_one = *format == "gptq";
  const json::Value* act_order = config.find("desc_act");
  out.stored.push_back({.all = true,
                        .bits = static_cast<int>(*bits),
                        .group = group,
                        .act_order = act_order != nullptr && act_order->is_bool() && act_order->as_bool()});
  QUIRE_TRY(read_modules(config, "modules_to_not_convert", where, out.ignored));
  return out;
}

// "weight_block_size" and "block_structure": [rows, columns].
Status read_block(const json::Value& config, const char* name, const std::string& where, QuantScheme& out) {
  const json::Value* block = config.find(name);
  if (block == nullptr || block->is_null()) return {};
  if (!block->is_array() || block->as_array().size() != 2 ||
      !std::all_of(block->as_array().begin(), block->as_array().end(),
                   [](const json::Value& v) { return v.is_int() && v.as_int() > 0 && v.as_int() <= kMaxGroup; })) {
    return in_field(where + "." + name, "is not a pair of positive numbers");
  }
  out.block_rows = block->as_array()[0].as_int();
  out.block_columns = block->as_array()[1].as_int();
  return {};
}

Result<QuantScheme> parse_fp8(const json::Value& config, const std::string& method, const std::string& where) {
  QuantScheme out;
  out.method = QuantMethod::kFp8;
  if (method == "modelopt") {
    const json::Value* inner = config.find("quantization");
    const json::Value& from = inner != nullptr && inner->is_object() ? *inner : config;
    const auto algorithm = json::get_string(from, "quant_algo");
    if (!algorithm.ok()) return in_field(where, algorithm.error());
    if (*algorithm != "FP8") {
      return in_field(where + ".quant_algo", in_quotes(*algorithm) + " is not supported; of modelopt, quire reads FP8");
    }
    QUIRE_TRY(read_modules(from, "exclude_modules", where, out.ignored));
    QUIRE_TRY(read_modules(from, "ignore", where, out.ignored));
  }
  QUIRE_TRY(read_block(config, "weight_block_size", where, out));
  QUIRE_TRY(read_modules(config, "modules_to_not_convert", where, out.ignored));
  QUIRE_TRY(read_modules(config, "ignored_layers", where, out.ignored));
  out.stored.push_back({.all = true, .bits = 8, .fp8 = true, .scale_rows = method == "fbgemm_fp8" ? 1 : 0});
  return out;
}

// The format of compressed-tensors: of the whole config or of one of its groups.
Status check_format(const json::Value& config, const std::string& where) {
  const auto format = json::get_string_or(config, "format", "mixed-precision");
  if (!format.ok()) return in_field(where, format.error());
  for (const char* known :
       {"pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision", "dense"}) {
    if (*format == known) return {};
  }
  return in_field(where + ".format", in_quotes(*format) +
                                         " is an unsupported format; quire reads pack-quantized, int-quantized, "
                                         "float-quantized and naive-quantized");
}

// The settings of one group of modules. What they should be is checked when random weights are made: the tensors of a
// file show it.
QuantScheme::Stored compressed_group(const json::Value& group, const json::Value& weights) {
  QuantScheme::Stored out;
  const auto number = [&](const char* name, int64_t fallback) {
    const json::Value* found = weights.find(name);
    return found != nullptr && found->is_int() ? found->as_int() : fallback;
  };
  const auto is = [&](const char* name, std::string_view value) {
    const json::Value* found = weights.find(name);
    return found != nullptr && found->is_string() && found->as_string() == value;
  };
  out.bits = static_cast<int>(std::clamp<int64_t>(number("num_bits", 0), 0, 64));
  out.fp8 = is("type", "float") && out.bits == 8;
  if (is("type", "float") && !out.fp8) out.bits = 0;
  const bool grouped = is("strategy", "group") || weights.find("strategy") == nullptr;
  out.group = grouped ? number("group_size", -1) : -1;
  if (out.group == 0 || out.group > kMaxGroup) out.bits = 0;
  out.scale_rows = is("strategy", "tensor") ? 0 : 1;
  out.act_order = is("actorder", "group");
  const json::Value* targets = group.find("targets");
  out.all = targets == nullptr || !targets->is_array();
  if (out.all) return out;
  for (const json::Value& target : targets->as_array()) {
    if (!target.is_string()) continue;
    if (target.as_string() == "Linear") out.all = true;
    (void)out.targets.add(target.as_string());
  }
  return out;
}

Result<QuantScheme> parse_compressed(const json::Value& config, const std::string& where) {
  QuantScheme out;
  out.method = QuantMethod::kCompressed;
  const json::Value* format = config.find("format");
  if (format != nullptr && !format->is_null()) QUIRE_TRY(check_format(config, where));
  const json::Value* sparsity = config.find("sparsity_config");
  if (sparsity != nullptr && sparsity->is_object() && !sparsity->as_object().empty()) {
    const auto kind = json::get_string_or(*sparsity, "format", "dense");
    if (!kind.ok() || *kind != "dense") return in_field(where + ".sparsity_config", "sparse weights are not supported");
  }
  const json::Value* groups = config.find("config_groups");
  if (groups != nullptr && groups->is_object()) {
    for (const auto& [name, group] : groups->as_object()) {
      if (!group.is_object()) continue;
      const std::string here = where + ".config_groups." + name;
      const json::Value* own = group.find("format");
      if (own != nullptr && !own->is_null()) QUIRE_TRY(check_format(group, here));
      const json::Value* weights = group.find("weights");
      if (weights != nullptr && weights->is_object()) {
        QUIRE_TRY(read_block(*weights, "block_structure", here + ".weights", out));
        out.stored.push_back(compressed_group(group, *weights));
      }
    }
  }
  QUIRE_TRY(read_modules(config, "ignore", where, out.ignored));
  return out;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// `*` matches any text.
bool glob(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = pattern.npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != pattern.npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

// The type of a tensor in the file; "" if it does not exist.
std::string type_in_file(const WeightSource& source, const std::string& tensor) {
  if (const TensorRef* found = source.find(tensor)) return name(found->dtype);
  if (const UnsupportedTensor* found = source.find_unsupported(tensor)) return found->type_name;
  return "";
}

}  // namespace

struct ModuleList::Pattern {
  explicit Pattern(pcre2_code* compiled) : code(compiled) {}
  ~Pattern() { pcre2_code_free(code); }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  pcre2_code* code;
};

Status ModuleList::add(std::string_view pattern) {
  constexpr std::string_view kRegex = "re:";
  if (pattern.substr(0, kRegex.size()) != kRegex) {
    names_.emplace_back(pattern);
    return {};
  }
  pattern.remove_prefix(kRegex.size());
  int code = 0;
  PCRE2_SIZE where = 0;
  pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_ANCHORED,
                                       &code, &where, nullptr);
  if (compiled == nullptr) {
    return invalid_argument({in_quotes(pattern), " is not a regular expression (at character ", where, ")"});
  }
  patterns_.push_back(std::make_shared<const Pattern>(compiled));
  return {};
}

bool ModuleList::contains(std::string_view module) const {
  for (const std::string& name : names_) {
    if (name.empty()) continue;
    if (module == name || ends_with(module, "." + name)) return true;
    if (module.size() > name.size() && module.substr(0, name.size()) == name && module[name.size()] == '.') return true;
    if (name.find('*') != name.npos && glob(name, module)) return true;
  }
  if (patterns_.empty()) return false;
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), pcre2_match_context_free);
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(pcre2_match_data_create(1, nullptr),
                                                                                 pcre2_match_data_free);
  if (!context || !data) return false;
  pcre2_set_match_limit(context.get(), kMatchLimit);
  return std::any_of(patterns_.begin(), patterns_.end(), [&](const std::shared_ptr<const Pattern>& pattern) {
    return pcre2_match(pattern->code, reinterpret_cast<PCRE2_SPTR>(module.data()), module.size(), 0, 0, data.get(),
                       context.get()) >= 0;
  });
}

bool QuantScheme::applies_to(const WeightSource& source, std::string_view prefix) const {
  if (method == QuantMethod::kNone || source.is_dummy() || ignored.contains(prefix)) return false;
  const std::string module(prefix);
  const auto has = [&](const char* suffix) { return !type_in_file(source, module + suffix).empty(); };
  switch (method) {
    case QuantMethod::kMlx:
      return has(".scales") && has(".weight");
    case QuantMethod::kAwq:
    case QuantMethod::kGptq:
      return has(".qweight");
    case QuantMethod::kMxfp4:
      return has("_blocks");
    default: {
      const std::string type = type_in_file(source, module + ".weight");
      return has(".weight_packed") || type == "I8" || type == "F8_E4M3" || type == "F8_E5M2";
    }
  }
}

Result<QuantScheme> parse_quantisation(const json::Value& config) {
  const json::Value* found = config.find("quantization_config");
  std::string where = "quantization_config";
  const json::Value* mlx = config.find("quantization");
  const bool has_method = found != nullptr && found->find("quant_method") != nullptr;
  if (!has_method && mlx != nullptr && mlx->is_object()) {
    found = mlx;
    where = "quantization";
  }
  if (found == nullptr || found->is_null()) return QuantScheme{};
  if (!found->is_object()) return invalid_argument({where, " is not an object"});
  if (!has_method) {
    if (found->find("group_size") != nullptr && found->find("bits") != nullptr) return parse_mlx(*found, where);
    return invalid_argument({where, " has no quant_method"});
  }
  const auto method = json::get_string(*found, "quant_method");
  if (!method.ok()) return in_field(where, method.error());
  if (*method == "awq") return parse_awq(*found, where);
  if (*method == "gptq") return parse_gptq(*found, where);
  if (*method == "fp8" || *method == "fbgemm_fp8" || *method == "modelopt") return parse_fp8(*found, *method, where);
  if (*method == "compressed-tensors") return parse_compressed(*found, where);
  if (*method == "mxfp4") {
    QuantScheme out;
    out.method = QuantMethod::kMxfp4;
    QUIRE_TRY(read_modules(*found, "modules_to_not_convert", where, out.ignored));
    return out;
  }
  return in_field(where + ".quant_method",
                  in_quotes(*method) + " is an unsupported method; quire reads awq, gptq, fp8, fbgemm_fp8, modelopt " +
                      "(FP8), compressed-tensors, mxfp4 and MLX's quantization");
}

Result<QuantScheme> parse_quantization_flag(std::string_view flag) {
  const std::string wanted = ascii_lower(flag);
  QuantScheme out;
  std::string choices;
  for (const DTypeInfo& type : kGgufDTypes) {
    if (!is_quantised(type.type)) continue;
    out.method = QuantMethod::kGguf;
    out.gguf_type = type.type;
    if (wanted == ascii_lower(type.name)) return out;
    choices += ascii_lower(type.name) + ", ";
  }
  struct Method {
    const char* name;
    const char* config;  // quantization_config
  };
  constexpr const char* kPerTensor = R"({"quant_method": "fp8"})";
  constexpr Method kMethods[] = {
      {"awq", R"({"quant_method": "awq", "bits": 4, "group_size": 128})"},
      {"gptq", R"({"quant_method": "gptq", "bits": 4, "group_size": 128})"},
      {"fp8", kPerTensor},
      {"fp8_per_tensor", kPerTensor},
      {"fp8_per_channel", R"({"quant_method": "compressed-tensors", "ignore": ["lm_head"], "config_groups": {"group_0":
        {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}})"},
      {"fp8_per_block", R"({"quant_method": "fp8", "weight_block_size": [128, 128]})"},
      {"int8_per_channel_weight_only", R"({"quant_method": "compressed-tensors", "ignore": ["lm_head"], "config_groups":
        {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}}})"},
  };
  for (const Method& method : kMethods) {
    if (wanted == method.name) {
      json::Value config = json::parse("{}").value();
      config.set("quantization_config", json::parse(method.config).value());
      return parse_quantisation(config);
    }
    choices += method.name;
    choices += &method == std::end(kMethods) - 1 ? "" : &method == std::end(kMethods) - 2 ? " or " : ", ";
  }
  return invalid_argument({"--quantization is ", in_quotes(flag), "; choose one of ", choices});
}

bool is_activation_scale(std::string_view tensor) {
  for (const char* end : {".input_scale", ".output_scale", ".input_global_scale", ".input_zero_point",
                          ".output_zero_point", ".q_scale", ".k_scale", ".v_scale", ".kv_scale", ".activation_scale"}) {
    if (ends_with(tensor, end)) return true;
  }
  return false;
}

}  // namespace quire::weights
