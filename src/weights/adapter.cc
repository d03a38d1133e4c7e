// SPDX-License-Identifier: Apache-2.0
// The three formats of adapters: their settings, and the pairs of tensors in them.
#include "weights/adapter.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>

#include "base/digest.h"
#include "base/file.h"
#include "base/json.h"
#include "weights/file_sniff.h"
#include "weights/gguf.h"
#include "weights/quant.h"
#include "weights/quant_scheme.h"
#include "weights/safetensors.h"

namespace quire::weights {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxRank = 4096;
constexpr size_t kMaxConfig = size_t{16} << 20;

// Whether a setting asks for nothing.
bool is_neutral(const json::Value& value) {
  switch (value.kind()) {
    case json::Kind::kNull:
      return true;
    case json::Kind::kBool:
      return !value.as_bool();
    case json::Kind::kInt:
    case json::Kind::kDouble:
      return value.as_double() == 0;
    case json::Kind::kString:
      return value.as_string().empty();
    case json::Kind::kArray:
      return value.as_array().empty();
    case json::Kind::kObject:
      return value.as_object().empty();
  }
  return false;
}

// PEFT's settings that change nothing here: where and how the adapter was trained, or what its tensors show.
constexpr std::string_view kTraining[] = {"auto_mapping",   "base_model_name_or_path",
                                          "corda_config",   "ensure_weight_tying",
                                          "eva_config",     "exclude_modules",
                                          "fan_in_fan_out", "inference_mode",
                                          "layers_pattern", "layers_to_transform",
                                          "loftq_config",   "lora_dropout",
                                          "lora_ga_config", "megatron_config",
                                          "megatron_core",  "peft_type",
                                          "peft_version",   "qalora_group_size",
                                          "revision",       "runtime_config",
                                          "target_modules", "task_type"};
// Those that are read.
constexpr std::string_view kRead[] = {
    "alpha_pattern", "bias", "init_lora_weights", "lora_alpha", "r", "rank_pattern", "target_parameters", "use_rslora"};
// Those that mean another computation, with the reason.
constexpr std::pair<std::string_view, const char*> kOther[] = {
    {"use_dora", "it is a DoRA adapter, which also scales the rows of the base weights"},
    {"lora_bias", "its B matrices have biases"},
    {"modules_to_save", "it replaces whole modules of the base model"},
    {"alora_invocation_tokens", "it is an activated LoRA, which begins at certain tokens"},
    {"layer_replication", "it repeats layers of the base model"},
    {"trainable_token_indices", "it replaces the embeddings of some tokens"},
    {"use_qalora", "it is a QALoRA adapter"},
    {"use_bdlora", "it is a block-diagonal adapter"},
    {"arrow_config", "it routes between adapters (Arrow)"},
};

constexpr const char* kMerge = "merge it into its base model with PEFT's merge_and_unload() and serve the result";

Failure cannot(const std::string& field, const std::string& why) {
  return unsupported({"field '", field, "': ", why, ", which quire does not compute; ", kMerge});
}

// A value for each module: that of the first pattern that matches its name, or the common one.
class Patterns {
 public:
  static Result<Patterns> read(const json::Value& config, const char* field) {
    Patterns out;
    const json::Value* value = config.find(field);
    if (value == nullptr || value->is_null()) return out;
    if (!value->is_object()) return invalid_argument({"field '", field, "' must be an object"});
    for (const auto& [key, number] : value->as_object()) {
      if (!number.is_number()) {
        return invalid_argument({"field '", field, "' must hold a number for ", in_quotes(key)});
      }
      Row row;
      row.value = number.as_double();
      auto added = row.modules.add("re:(?:.*\\.)?(?:" + key + ")$");
      if (!added.ok()) {
        return invalid_argument({"field '", field, "': ", in_quotes(key), " is not a regular expression"});
      }
      out.rows_.push_back(std::move(row));
    }
    return out;
  }
  double value(const std::string& module, double common) const {
    for (const Row& row : rows_) {
      if (row.modules.contains(module)) return row.value;
    }
    return common;
  }

 private:
  struct Row {
    ModuleList modules;
    double value = 0;
  };
  std::vector<Row> rows_;
};

// How a module's scale follows from its name and rank.
struct ScaleRule {
  bool mlx = false;
  double alpha = 8;  // MLX: the scale itself
  double rank = 8;
  bool by_root = false;                 // rsLoRA
  std::vector<std::string> parameters;  // target_parameters
  Patterns ranks, alphas;

  // The rank and the scale of a module by its name alone.
  std::pair<double, double> by_name(const std::string& module) const {
    const double own = ranks.value(module, rank);
    return {own, alphas.value(module, alpha) / (by_root ? std::sqrt(own) : own)};
  }

  // Whether one of target_parameters, which are the ends of names, is this one.
  bool adapts_parameter(const std::string& name) const {
    return std::ranges::any_of(
        parameters, [&](const std::string& parameter) { return name == parameter || name.ends_with("." + parameter); });
  }

  Result<double> scale(const AdapterModule& module) const {
    if (mlx) return alpha;
    // PEFT's "all-linear" lists a router by its parameter, which is adapted as a module is.
    const std::string weight = module.own_name + ".weight";
    const auto [wanted, scale] = by_name(adapts_parameter(weight) ? weight : module.own_name);
    if (wanted != static_cast<double>(module.rank)) {
      return corrupt({"module ", in_quotes(module.name), " has rank ", module.rank, ", but adapter_config.json says ",
                      static_cast<int64_t>(wanted), "; the two files do not belong together"});
    }
    return scale;
  }
};

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

bool contains(std::span<const std::string_view> list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

Result<ScaleRule> read_peft(const json::Value& config) {
  QUIRE_ASSIGN(const std::string type, json::get_string(config, "peft_type"));
  if (type != "LORA") {
    return unsupported({"field 'peft_type' is ", in_quotes(type), "; quire takes LoRA adapters (LORA) only"});
  }
  for (const auto& [name, why] : kOther) {
    const json::Value* value = config.find(name);
    if (value != nullptr && !is_neutral(*value)) return cannot(std::string(name), why);
  }
  QUIRE_ASSIGN(const std::string bias, json::get_string_or(config, "bias", "none"));
  if (bias != "none") return cannot("bias", "it changes biases of the base model");
  if (const json::Value* init = config.find("init_lora_weights"); init != nullptr && init->is_string()) {
    for (const char* start : {"pissa", "olora", "corda", "loftq"}) {
      if (!init->as_string().starts_with(start)) continue;
      return unsupported({"field 'init_lora_weights' is ", in_quotes(init->as_string()),
                          ", which changes the base model's weights; save the adapter with PEFT's "
                          "path_initial_model_for_weight_conversion, which makes a plain LoRA of it"});
    }
  }
  for (const auto& [name, value] : config.as_object()) {
    const bool other = std::ranges::any_of(kOther, [&field = name](const auto& row) { return row.first == field; });
    if (other || contains(kTraining, name) || contains(kRead, name) || is_neutral(value)) continue;
    return unsupported({"field ", in_quotes(name), " is one that quire does not know; ", kMerge});
  }
  ScaleRule out;
  if (const json::Value* parameters = config.find("target_parameters");
      parameters != nullptr && !is_neutral(*parameters)) {
    for (const json::Value& name : parameters->is_array() ? parameters->as_array() : json::Array{}) {
      const std::string text = name.is_string() ? name.as_string() : "";
      constexpr std::string_view kKnown[] = {"gate_up_proj", "up_proj", "down_proj", "weight"};
      if (!contains(kKnown, std::string_view(text).substr(text.rfind('.') + 1))) continue;
      out.parameters.push_back(text);
    }
    if (!parameters->is_array() || out.parameters.size() < parameters->as_array().size()) {
      return cannot("target_parameters",
                    "it adapts raw parameters other than those of experts and the weights of modules");
    }
  }
  QUIRE_ASSIGN(const int64_t rank, json::get_int_or(config, "r", 8, 1, kMaxRank));
  out.rank = static_cast<double>(rank);
  QUIRE_ASSIGN(out.alpha, json::get_double_or(config, "lora_alpha", 8));
  QUIRE_ASSIGN(out.by_root, json::get_bool_or(config, "use_rslora", false));
  QUIRE_ASSIGN(out.ranks, Patterns::read(config, "rank_pattern"));
  QUIRE_ASSIGN(out.alphas, Patterns::read(config, "alpha_pattern"));
  return out;
}

Result<ScaleRule> read_mlx(const json::Value& config) {
  QUIRE_ASSIGN(const std::string type, json::get_string_or(config, "fine_tune_type", "lora"));
  if (type != "lora") {
    return unsupported({"field 'fine_tune_type' is ", in_quotes(type),
                        "; quire takes LoRA adapters (lora) only; fuse it into its base model with mlx_lm.fuse and "
                        "serve the result"});
  }
  const json::Value* parameters = config.find("lora_parameters");
  if (parameters == nullptr || !parameters->is_object()) {
    return invalid_argument("field 'lora_parameters' is missing or is not an object");
  }
  ScaleRule out;
  out.mlx = true;
  QUIRE_ASSIGN(out.alpha, json::get_double_or(*parameters, "scale", 20.0));
  return out;
}

// The tensors of a module, as they are found.
struct Pair {
  const TensorRef *a = nullptr, *b = nullptr;
  bool embedding = false;
  std::string own_name;  // AdapterModule::own_name
};

// "x" of "x.lora_A.weight", with the tensor put into its place; nothing if the name has no such ending.
std::optional<std::string> module_of(std::string_view tensor, bool& is_a, bool& embedding) {
  struct Ending {
    std::string_view text;
    bool a, embedding;
  };
  constexpr Ending kEndings[] = {
      {".lora_A.weight", true, false},           {".lora_B.weight", false, false},
      {".lora_A.default.weight", true, false},   {".lora_B.default.weight", false, false},
      {".lora_embedding_A", true, true},         {".lora_embedding_B", false, true},
      {".lora_embedding_A.default", true, true}, {".lora_embedding_B.default", false, true},
  };
  for (const Ending& ending : kEndings) {
    if (!tensor.ends_with(ending.text)) continue;
    is_a = ending.a;
    embedding = ending.embedding;
    return std::string(tensor.substr(0, tensor.size() - ending.text.size()));
  }
  return std::nullopt;
}

constexpr std::string_view kPeftPrefix = "base_model.model.";

// Names of modules as a plain causal language model has them: exporters and multimodal wrappers put more in front.
std::string plain_name(std::string name) {
  const auto drop = [&](std::string_view prefix, std::string_view instead) {
    if (!name.starts_with(prefix)) return false;
    name.replace(0, prefix.size(), instead);
    return true;
  };
  if (drop("model.language_model.model.", "model.") || drop("language_model.model.", "model.")) return name;
  if (drop("model.language_model.", "model.") || drop("language_model.lm_head", "lm_head")) return name;
  for (const char* encoder : {"bert.", "roberta.", "mpnet."}) {
    if (drop(encoder, "model.")) return name;
  }
  // The model without a head, as one for embeddings is trained.
  for (const char* part : {"layers.", "embed_tokens", "encoder.", "embeddings.", "pooler."}) {
    if (name.starts_with(part)) return "model." + name;
  }
  return name;
}

Failure whole_tensor(const std::string& tensor) {
  if (tensor.find("lora_magnitude_vector") != std::string::npos || tensor.ends_with(".m")) {
    return unsupported(
        {"tensor ", in_quotes(tensor), " belongs to a DoRA adapter, which quire does not compute; ", kMerge});
  }
  return unsupported({"tensor ", in_quotes(tensor),
                      " is not the A or B matrix of a LoRA module, so the adapter changes more than quire computes; ",
                      kMerge});
}

// Tensors that PEFT saves beside an adapter of the embedding or the head although they are the base model's.
bool is_base_copy(std::string_view tensor) {
  return tensor.ends_with(".base_layer.weight") || tensor.ends_with(".base_layer.bias");
}

Result<std::map<std::string, Pair>> pairs_of(const WeightSource& source, bool mlx, bool gguf) {
  std::map<std::string, Pair> pairs;
  for (const std::string& tensor : source.names()) {
    const TensorRef* found = source.find(tensor);
    if (found == nullptr) {
      return unsupported({"tensor ", in_quotes(tensor), " has a type that quire does not read for adapters"});
    }
    bool is_a = false, embedding = false;
    std::optional<std::string> module;
    if (gguf || mlx) {
      const std::string_view a = gguf ? ".weight.lora_a" : ".lora_a", b = gguf ? ".weight.lora_b" : ".lora_b";
      is_a = tensor.ends_with(a);
      if (is_a || tensor.ends_with(b)) module = tensor.substr(0, tensor.size() - a.size());
      embedding = gguf && module == "token_embd";
    } else {
      module = module_of(tensor, is_a, embedding);
    }
    if (!module && is_base_copy(tensor)) continue;
    if (!module) return whole_tensor(tensor);
    if (module->starts_with(kPeftPrefix)) module->erase(0, kPeftPrefix.size());
    const std::string own_name = *module;
    if (!gguf) *module = plain_name(std::move(*module));
    Pair& pair = pairs[*module];
    pair.own_name = own_name;
    const TensorRef*& place = is_a ? pair.a : pair.b;
    if (place != nullptr) return corrupt({"module ", in_quotes(*module), " has two matrices of the same kind"});
    place = found;
    pair.embedding = pair.embedding || embedding;
  }
  if (pairs.empty()) return corrupt("the file has no LoRA matrices");
  return pairs;
}

// The name of expert e in a stack of all experts: MLX's "x.switch_mlp.up_proj" as Hugging Face's names, and GGUF's
// "blk.0.ffn_up_exps" as LoraSites has it. "": not the name of a stack.
std::string name_in_stack(const std::string& name, int64_t e, bool gguf) {
  constexpr std::string_view kMlx = ".switch_mlp.";
  const std::string expert = ".experts." + std::to_string(e) + ".";
  const size_t at = gguf ? name.rfind('.') : name.find(kMlx);
  if (at == std::string::npos || (gguf && !name.ends_with("_exps"))) return "";
  return name.substr(0, at) + expert + name.substr(at + (gguf ? 1 : kMlx.size()));
}

// Matrix e of a stack.
TensorRef matrix_in_stack(const TensorRef& stack, int64_t e) {
  TensorRef out = stack;
  out.name += "[" + std::to_string(e) + "]";
  out.shape = {stack.shape[1], stack.shape[2]};
  const size_t bytes = stack.data.size() / static_cast<size_t>(stack.shape[0]);
  out.data = stack.data.subspan(static_cast<size_t>(e) * bytes, bytes);
  return out;
}

// The modules of a stack: A is [experts, rank, in], and B [experts, out, rank].
Result<std::vector<AdapterModule>> modules_from_stack(const std::string& name, const Pair& pair, bool gguf,
                                                      std::deque<TensorRef>& parts) {
  const auto &a = pair.a->shape, &b = pair.b->shape;
  if (a.size() != 3 || b.size() != 3 || a[0] != b[0] || a[1] != b[2] || a[1] < 1 || a[1] > kMaxRank || a[0] < 1 ||
      a[2] < 1 || b[1] < 1) {
    return corrupt({"the matrices of module ", in_quotes(name), " are ", shape_string(a), " and ", shape_string(b),
                    ", which do not fit together"});
  }
  std::vector<AdapterModule> out;
  for (int64_t e = 0; e < a[0]; ++e) {
    AdapterModule module;
    module.name = name_in_stack(name, e, gguf);
    module.rank = a[1];
    module.in = a[2];
    module.out = b[1];
    module.a = &parts.emplace_back(matrix_in_stack(*pair.a, e));
    module.b = &parts.emplace_back(matrix_in_stack(*pair.b, e));
    out.push_back(std::move(module));
  }
  return out;
}

// Checks the shapes of a pair and fills in the sizes.
Result<AdapterModule> module_from(const std::string& name, const Pair& pair, bool mlx, bool gguf) {
  AdapterModule out;
  out.name = name;
  out.own_name = pair.own_name;
  out.embedding = pair.embedding;
  out.a = pair.a;
  out.b = pair.b;
  if (pair.a == nullptr || pair.b == nullptr) {
    return corrupt({"module ", in_quotes(name), " has only its ", (pair.a == nullptr ? "B" : "A"), " matrix"});
  }
  for (const TensorRef* tensor : {pair.a, pair.b}) {
    if (tensor->shape.size() == 2) continue;
    return unsupported({"tensor ", in_quotes(tensor->name), " has the shape ", shape_string(tensor->shape),
                        "; quire takes adapters of single matrices, not of stacks of experts"});
  }
  out.a_transposed = mlx || (gguf && pair.embedding);
  out.b_transposed = mlx;
  const int64_t b_rank = out.b->shape[out.b_transposed ? 0 : 1];
  out.rank = out.a->shape[out.a_transposed ? 1 : 0];
  out.in = out.a->shape[out.a_transposed ? 0 : 1];
  out.out = out.b->shape[out.b_transposed ? 1 : 0];
  if (b_rank != out.rank || out.rank < 1 || out.rank > kMaxRank || out.in < 1 || out.out < 1) {
    return corrupt({"the matrices of module ", in_quotes(name), " are ", shape_string(out.a->shape), " and ",
                    shape_string(out.b->shape), ", which do not fit together"});
  }
  return out;
}

Status check_scale(std::string_view name, double scale) {
  if (std::isfinite(scale) && std::abs(scale) <= 1e6) return {};
  return corrupt(
      {"module ", in_quotes(name), " has a scale of ", short_number(scale), ", which is no sensible number"});
}

// Whether the module is all experts of a layer. PEFT calls the first of two adapted parameters "base_layer".
Result<bool> take_experts(AdapterModule& module, const ScaleRule& rule) {
  constexpr std::string_view kInner = ".base_layer";
  std::string name = module.name, own_name = module.own_name;
  if (name.ends_with(kInner)) name.resize(name.size() - kInner.size());
  if (!name.ends_with(".experts")) return false;
  if (own_name.ends_with(kInner)) own_name.resize(own_name.size() - kInner.size());
  // Experts without a gate have a parameter up_proj.
  const bool gated = rule.adapts_parameter(own_name + ".gate_up_proj");
  const auto [gate_up_rank, gate_up_scale] = rule.by_name(own_name + (gated ? ".gate_up_proj" : ".up_proj"));
  const auto [down_rank, down_scale] = rule.by_name(own_name + ".down_proj");
  for (const double rank : {gate_up_rank, down_rank}) {
    if (rank >= 1 && rank <= static_cast<double>(kMaxRank)) continue;
    return corrupt({"module ", in_quotes(name), " has a rank of ", short_number(rank), "; it must be 1 to ", kMaxRank});
  }
  QUIRE_TRY(check_scale(name, gate_up_scale));
  QUIRE_TRY(check_scale(name, down_scale));
  module.of_experts = true;
  module.name = name;
  module.gate_up_rank = static_cast<int64_t>(gate_up_rank);
  module.down_rank = static_cast<int64_t>(down_rank);
  module.gate_up_scale = gate_up_scale;
  module.down_scale = down_scale;
  return true;
}

// Adds the modules of a pair of tensors with their scales.
Status add_scaled(std::vector<AdapterModule> modules, const ScaleRule* rule, double gguf_alpha, AdapterFiles& files) {
  for (AdapterModule& module : modules) {
    if (rule != nullptr && !rule->parameters.empty()) {
      QUIRE_ASSIGN(const bool experts, take_experts(module, *rule));
      if (experts) {
        files.modules.push_back(std::move(module));
        continue;
      }
    }
    if (rule != nullptr) {
      QUIRE_ASSIGN(module.scale, rule->scale(module));
    } else {
      module.scale = gguf_alpha == 0 ? 1.0 : gguf_alpha / static_cast<double>(module.rank);
    }
    QUIRE_TRY(check_scale(module.name, module.scale));
    files.modules.push_back(std::move(module));
  }
  return {};
}

Status add_modules(AdapterFiles& files, const ScaleRule* rule, double gguf_alpha) {
  const bool mlx = rule != nullptr && rule->mlx;
  QUIRE_ASSIGN(const auto pairs, pairs_of(*files.source, mlx, files.gguf));
  files.parts = std::make_shared<std::deque<TensorRef>>();
  for (const auto& [name, pair] : pairs) {
    std::vector<AdapterModule> modules;
    const bool stack = pair.a != nullptr && pair.b != nullptr && pair.a->shape.size() == 3;
    if (stack && (mlx || files.gguf) && !name_in_stack(name, 0, files.gguf).empty()) {
      QUIRE_ASSIGN(modules, modules_from_stack(name, pair, files.gguf, *files.parts));
    } else {
      QUIRE_ASSIGN(AdapterModule module, module_from(name, pair, mlx, files.gguf));
      modules.push_back(std::move(module));
    }
    QUIRE_TRY(add_scaled(std::move(modules), rule, gguf_alpha, files));
  }
  return {};
}

Status open_gguf(AdapterFiles& files) {
  QUIRE_ASSIGN(const std::shared_ptr<const GgufSource> source, GgufSource::open(files.path));
  files.source = source;
  files.gguf = true;
  const GgufMetadata& metadata = source->metadata();
  QUIRE_ASSIGN(const std::string_view type, metadata.get_string_or("general.type", "model"));
  if (type != "adapter") {
    return invalid_argument(
        {"it is a GGUF file of the type ", in_quotes(type), ", not an adapter; give it as the model"});
  }
  QUIRE_ASSIGN(const std::string_view kind, metadata.get_string("adapter.type"));
  if (kind != "lora") return unsupported({"its adapter.type is ", in_quotes(kind), "; quire takes lora only"});
  if (metadata.contains("adapter.alora.invocation_tokens")) {
    return cannot("adapter.alora.invocation_tokens", "it is an activated LoRA, which begins at certain tokens");
  }
  QUIRE_ASSIGN(const std::string_view architecture, metadata.get_string("general.architecture"));
  files.architecture = architecture;
  QUIRE_ASSIGN(const double alpha, metadata.get_double("adapter.lora.alpha"));
  return add_modules(files, nullptr, alpha);
}

Status open_folder(AdapterFiles& files, const fs::path& tensors) {
  const fs::path config_file = files.path / "adapter_config.json";
  std::error_code failed;
  const fs::file_status status = fs::status(config_file, failed);
  if (fs::exists(status) && !fs::is_regular_file(status)) {  // reading a pipe would never end
    return invalid_argument({"'", config_file.string(), "' is not a regular file"});
  }
  QUIRE_ASSIGN(const std::string text, read_file(config_file, kMaxConfig));
  const auto config = json::parse(text);
  if (!config.ok()) return in_file(config_file, config.error());
  if (!config->is_object()) return in_file(config_file, invalid_argument("it must hold a JSON object"));
  const bool mlx = tensors.filename() == "adapters.safetensors";
  auto rule = mlx ? read_mlx(*config) : read_peft(*config);
  if (!rule.ok()) return in_file(config_file, rule.error());
  QUIRE_ASSIGN(files.source, SafetensorsSource::open(tensors));
  auto added = add_modules(files, &*rule, 0);
  return added.ok() ? added : Status(in_file(tensors, added.error()));
}

Result<std::vector<float>> values_of(const TensorRef& tensor, bool transposed) {
  const int64_t rows = tensor.shape[0], columns = tensor.shape[1];
  if (columns % info(tensor.dtype).block_elems != 0) {
    return corrupt({"tensor ", in_quotes(tensor.name), " does not have whole blocks in its rows"});
  }
  std::vector<float> out(static_cast<size_t>(rows * columns)), row(static_cast<size_t>(columns));
  for (int64_t r = 0; r < rows; ++r) {
    float* to = transposed ? row.data() : out.data() + r * columns;
    dequantise_row(tensor.dtype, tensor.data.data() + r * row_bytes(tensor.dtype, columns), to, columns);
    for (int64_t c = 0; c < columns; ++c) {
      if (!std::isfinite(to[c])) {
        return corrupt({"tensor ", in_quotes(tensor.name), " has a value that is not a finite number"});
      }
      if (transposed) out[static_cast<size_t>(c * rows + r)] = to[c];
    }
  }
  return out;
}

}  // namespace

Result<std::vector<float>> AdapterModule::a_values() const {
  return values_of(*a, a_transposed);
}

Result<std::vector<float>> AdapterModule::b_values() const {
  return values_of(*b, b_transposed);
}

std::string AdapterFiles::digest() const {
  std::string list;
  for (const AdapterModule& module : modules) {
    for (const TensorRef* tensor : {module.a, module.b}) {
      list += tensor->name + " " + info(tensor->dtype).name + " " + shape_string(tensor->shape) + " " +
              digest_of(tensor->data).hex() + "\n";
    }
    for (const double scale : {module.scale, module.gate_up_scale, module.down_scale}) {
      list += std::to_string(scale) + "\n";
    }
  }
  return digest_of(list).hex();
}

Result<AdapterFiles> open_adapter(const fs::path& path) {
  AdapterFiles out;
  out.path = path;
  std::error_code failed;
  if (fs::is_regular_file(path, failed)) {
    if (path.extension() == ".gguf") {
      auto opened = open_gguf(out);
      if (!opened.ok()) return in_file(path, opened.error());
      return out;
    }
    if (path.extension() != ".safetensors") {
      return invalid_argument(
          {"'", path.string(), "' is not an adapter: give a folder with adapter_config.json, or a GGUF file"});
    }
    out.path = path.has_parent_path() ? path.parent_path() : fs::path(".");
  }
  if (!fs::is_directory(out.path, failed)) {
    return not_found({"there is no adapter at '", path.string(), "'; give a folder with adapter_config.json and ",
                      "adapter_model.safetensors, or a GGUF file"});
  }
  for (const char* name : {"adapter_model.safetensors", "adapters.safetensors"}) {
    if (!fs::is_regular_file(out.path / name, failed)) continue;
    QUIRE_TRY(open_folder(out, out.path / name));
    return out;
  }
  for (const char* name : {"adapter_model.bin", "adapter_model.pt", "adapters.npz"}) {
    if (!fs::is_regular_file(out.path / name, failed)) continue;
    return unsupported({"'", (out.path / name).string(),
                        "' may hold a program (a pickle), so quire does not open it; save the adapter as safetensors"});
  }
  return not_found({"'", out.path.string(),
                    "' has neither adapter_model.safetensors (PEFT) nor adapters.safetensors (MLX); give the folder of "
                    "an adapter"});
}

}  // namespace quire::weights
