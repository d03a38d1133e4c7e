// SPDX-License-Identifier: Apache-2.0
// open_model: from a path to a checked config.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "model/families/family.h"
#include "model/model.h"
#include "weights/dummy.h"
#include "weights/dummy_form.h"
#include "weights/quant.h"
#include "weights/quantised.h"

namespace quire::model {
namespace {

namespace fs = std::filesystem;

Result<std::string> architecture_of(const json::Value& config) {
  const json::Value* list = config.find("architectures");
  if (list == nullptr || !list->is_array() || list->as_array().empty() || !list->as_array()[0].is_string()) {
    return invalid_argument("field 'architectures' must be a list with the model's class name");
  }
  return list->as_array()[0].as_string();
}

// Python writes Infinity and NaN, which are not JSON; outside of strings they become null.
std::string without_infinities(std::string text) {
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') in_string = !in_string;
    if (in_string && text[i] == '\\') ++i;
    if (in_string) continue;
    for (const std::string_view word :
         {std::string_view("-Infinity"), std::string_view("Infinity"), std::string_view("NaN")}) {
      if (text.compare(i, word.size(), word) == 0) text.replace(i, word.size(), "null");
    }
  }
  return text;
}

// Models with vision or audio have the fields of their text part under text_config.
json::Value text_part(const json::Value& config) {
  const json::Value* text = config.find("text_config");
  if (text == nullptr || !text->is_object()) return config;
  json::Value out = *text;
  for (const char* field : {"tie_word_embeddings", "eos_token_id", "bos_token_id", "dtype", "torch_dtype",
                            "quantization_config", "quantization"}) {
    const json::Value* outer = config.find(field);
    const json::Value* inner = out.find(field);
    if ((inner == nullptr || inner->is_null()) && outer != nullptr) out.set(field, *outer);
  }
  return out;
}

// An object for a part of a model with vision or audio (text_config) changes the members that it names and no others.
void override_member(const std::string& name, const json::Value& value, json::Value& config) {
  const json::Value* old = config.find(name);
  const bool part = name.ends_with("_config") && name != "quantization_config";
  if (!part || old == nullptr || !old->is_object() || !value.is_object()) return config.set(name, value);
  json::Value changed = *old;
  for (const auto& [inner, inner_value] : value.as_object()) changed.set(inner, inner_value);
  config.set(name, std::move(changed));
}

// Puts the members of --hf-overrides in the place of those of config.json.
Status override_config(const std::string& overrides, json::Value& config) {
  if (overrides.empty()) return {};
  const auto members = json::parse(overrides);
  if (!members.ok() || !members->is_object() || !config.is_object()) {
    return invalid_argument("--hf-overrides must be a JSON object, such as {\"is_matryoshka\": true}");
  }
  for (const auto& [name, value] : members->as_object()) override_member(name, value, config);
  return {};
}

// --convert makes a generating model embed or classify, with the pooling that its files name or the last token.
Status convert_pooler(const std::string& convert, const DecoderConfig& config, PoolerConfig& pooler) {
  if (convert == "auto" || convert == "none") return {};
  if (convert == "embed") {
    pooler.embeds = true;
    pooler.classifies = false;
    return {};
  }
  if (convert != "classify") {
    return invalid_argument({"--convert is '", convert, "'; choose auto, none, embed or classify"});
  }
  if (pooler.classifies) return {};
  return unsupported({"--convert classify needs the weights of a classifier, which ", config.architecture,
                      " does not have; name its tokens with --hf-overrides (classifier_from_token)"});
}

Status read_hf(const fs::path& file, const LoadOptions& options, ModelFiles& out) {
  QUIRE_ASSIGN(const std::string text, read_file(file, size_t{16} << 20));
  auto config = json::parse(without_infinities(text));
  if (!config.ok()) return in_file(file, config.error());
  QUIRE_TRY(override_config(options.hf_overrides, *config));
  auto read = parse_hf_config(*config);
  if (!read.ok()) return in_file(file, read.error());
  auto scheme = weights::parse_quantisation(text_part(*config));
  if (!scheme.ok()) return in_file(file, scheme.error());
  out.scheme = std::move(scheme).value();
  out.family = read->family;
  out.config = std::move(read->config);
  auto pooler = read_hf_pooler(*config, file.parent_path(), out.config);
  if (!pooler.ok()) return in_file(file, pooler.error());
  out.pooler = std::move(pooler).value();
  return {};
}

// The prefix of the text part's tensors in such a checkpoint. Files of a class without a head often have none.
std::string find_text_prefix(const weights::WeightSource& source, const Family& family) {
  const std::vector<std::string> names = source.names();
  const std::string embedding = family.name_of(Part::kEmbedding, 0, false).substr(std::strlen("model.")) + ".weight";
  for (const char* prefix :
       {"model.", "model.language_model.", "language_model.model.", "", "bert.", "roberta.", "mpnet."}) {
    if (std::find(names.begin(), names.end(), prefix + embedding) != names.end()) return prefix;
  }
  return "model.";
}

// What stands before the name of the LM head: the text part of Mistral 3 and of some others has its own one.
std::string find_head_prefix(const weights::WeightSource& source) {
  constexpr const char* kPrefix = "language_model.";
  const std::vector<std::string> names = source.names();
  const std::string head = std::string(kPrefix) + "lm_head.";
  const bool own = std::any_of(names.begin(), names.end(), [&](const auto& name) { return name.starts_with(head); });
  return own ? kPrefix : "";
}

// The number of rows of the first k_proj, or 0 if no layer has one.
int64_t k_rows(const ModelFiles& files) {
  if (files.source->is_dummy()) return 0;
  for (int64_t layer = 0; layer < files.config.layers; ++layer) {
    std::string name = files.family->name_of(Part::kK, layer, files.gguf != nullptr);
    if (files.gguf == nullptr && name.rfind("model.", 0) == 0) name.replace(0, 6, files.config.text_prefix);
    const int64_t rows = weights::output_rows(*files.source, files.scheme, name);
    if (rows > 0) return rows;
  }
  return 0;
}

// The plain type of most weights of the text part, for a config.json without a type. Codes of quantised formats do not
// count; their scales, embeddings and norms do. Nothing if no tensor has a plain type.
std::optional<DType> most_frequent_dtype(const ModelFiles& files) {
  struct Count {
    DType dtype;
    int64_t matrices = 0, vectors = 0;  // elements; norms often have a wider type, so they count only without matrices
    auto key() const { return std::pair(matrices, vectors); }
  };
  std::array<Count, 3> counts{{{DType::kBF16}, {DType::kF16}, {DType::kF32}}};
  for (const std::string& name : files.source->names()) {
    const weights::TensorRef* tensor = files.source->find(name);
    if (tensor == nullptr || is_ignored(name, files.config)) continue;
    for (Count& count : counts) {
      if (count.dtype != tensor->dtype) continue;
      (tensor->shape.size() > 1 ? count.matrices : count.vectors) += tensor->elements();
    }
  }
  const auto most = std::ranges::max_element(counts, {}, &Count::key);
  if (most->matrices == 0 && most->vectors == 0) return std::nullopt;
  return most->dtype;
}

// A head of its own beside the embedding is used although the config says that it is tied, as in transformers: someone
// trained it and left the config as it was. A copy of the embedding is not used. To be quick on files that are not in
// memory, only every 64th row and the rows at the end, which tokens get that are added later, are compared.
bool has_own_head(const ModelFiles& files) {
  const auto find = [&](Part part) {
    std::string name = files.family->name_of(part, 0, false);
    if (name.starts_with("model.")) name.replace(0, 6, files.config.text_prefix);
    if (part == Part::kHead) name.insert(0, files.config.head_prefix);
    return files.source->find(name + ".weight");
  };
  const weights::TensorRef* head = find(Part::kHead);
  const weights::TensorRef* embedding = find(Part::kEmbedding);
  if (head == nullptr || embedding == nullptr || head->shape.size() != 2 || head->shape != embedding->shape)
    return false;
  if (head->data.empty()) return false;  // such a file may claim any number of rows
  if (head->dtype != embedding->dtype) return !is_quantised(head->dtype) && !is_quantised(embedding->dtype);
  constexpr size_t kStep = 64;
  const auto rows = static_cast<size_t>(head->shape[0]);
  const size_t row = head->data.size() / rows;
  for (size_t r = 0; r < rows; r += r + kStep < rows ? kStep : 1) {
    if (std::memcmp(head->data.data() + r * row, embedding->data.data() + r * row, row) != 0) return true;
  }
  return false;
}

// rope_freqs and rope_factors_{long,short}: tensors in GGUF, lists in config.json.
Result<std::vector<double>> factor_tensor(const weights::WeightSource& source, const char* name, int64_t count) {
  std::vector<double> out;
  const weights::TensorRef* tensor = source.find(name);
  if (tensor == nullptr) return out;
  if (tensor->dtype != DType::kF32 || tensor->elements() != count) {
    return corrupt({"tensor '", name, "' must hold ", count, " F32 numbers"});
  }
  std::vector<float> values(static_cast<size_t>(count));
  weights::dequantise_row(DType::kF32, tensor->data.data(), values.data(), count);
  for (const float v : values) {
    if (!(v > 0)) return corrupt({"tensor '", name, "' must hold positive numbers"});
    out.push_back(static_cast<double>(v));
  }
  return out;
}

// What only the tensors of a GGUF file show: norms of q and k, which some models of a family have, and Gemma 4's
// options.
void note_optional_tensors(ModelFiles& files) {
  DecoderConfig& config = files.config;
  const auto find = [&](Part part, int64_t layer) {
    return files.source->find(files.family->name_of(part, layer, true) + ".weight");
  };
  const weights::TensorRef* norm = find(Part::kQNorm, 0);
  if (config.qk_norm == QkNorm::kNone && norm != nullptr) {
    config.qk_norm = norm->shape.size() == 2 ? QkNorm::kPerHeadWeights : QkNorm::kPerHead;
  }
  if (!config.v_norm) return;
  config.layer_scalars = find(Part::kLayerScalar, 0) != nullptr;
  config.per_layer_input.vocab_size = config.vocab_size;
  for (size_t i = 0; i < config.per_layer.size(); ++i) {
    LayerConfig& layer = config.per_layer[i];
    layer.v_is_k = layer.shared_with < 0 && find(Part::kV, static_cast<int64_t>(i)) == nullptr;
  }
}

Status read_gguf(ModelFiles& out) {
  const weights::GgufMetadata& metadata = out.gguf->metadata();
  QUIRE_ASSIGN(const std::string_view architecture, metadata.get_string("general.architecture"));
  QUIRE_ASSIGN(out.family, find_gguf_family(architecture));
  QUIRE_ASSIGN(out.config, out.family->from_gguf(metadata, architecture));
  out.config.family = out.family->name;
  const std::string embedding = out.family->name_of(Part::kEmbedding, 0, true) + ".weight";
  QUIRE_ASSIGN(const weights::TensorRef* table, out.source->get(embedding));
  if (table->shape.size() != 2) return corrupt({"tensor '", embedding, "' must have two dimensions"});
  out.config.vocab_size = table->shape[0];
  out.config.tied_embeddings = out.source->find(out.family->name_of(Part::kHead, 0, true) + ".weight") == nullptr;
  out.config.dtype = table->dtype;
  QUIRE_ASSIGN(out.pooler, read_gguf_pooler(metadata, architecture, out.config));
  note_optional_tensors(out);
  RopeConfig& rope = out.config.rope;
  const int64_t half = rope.rot_dim / 2;
  QUIRE_ASSIGN(rope.freq_factors, factor_tensor(*out.source, "rope_freqs.weight", half));
  QUIRE_ASSIGN(rope.short_factors, factor_tensor(*out.source, "rope_factors_short.weight", half));
  QUIRE_ASSIGN(rope.long_factors, factor_tensor(*out.source, "rope_factors_long.weight", half));
  if (!rope.short_factors.empty() && !rope.long_factors.empty() && rope.type == RopeType::kDefault) {
    rope.type = RopeType::kLongRope;
    rope.factor = static_cast<double>(out.config.max_position) / static_cast<double>(rope.original_max_position);
  }
  return {};
}

bool any_quantised(const weights::WeightSource& source) {
  const auto names = source.names();
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    const weights::TensorRef* tensor = source.find(name);
    return tensor != nullptr && is_quantised(tensor->dtype);
  });
}

}  // namespace

Result<HfConfig> parse_hf_config(const json::Value& config) {
  HfConfig out;
  QUIRE_ASSIGN(const std::string architecture, architecture_of(config));
  QUIRE_ASSIGN(out.family, find_hf_family(architecture));
  QUIRE_ASSIGN(out.config, out.family->from_hf(text_part(config)));
  out.config.family = out.family->name;
  out.config.architecture = architecture;
  if (is_headless(architecture)) out.config.has_head = false;
  return out;
}

Result<std::optional<DType>> parse_dtype(const std::string& text) {
  if (text == "auto") return std::optional<DType>();
  if (text == "float32" || text == "float") return std::optional<DType>(DType::kF32);
  if (text == "float16" || text == "half") return std::optional<DType>(DType::kF16);
  if (text == "bfloat16") return std::optional<DType>(DType::kBF16);
  return invalid_argument({"--dtype is '", text, "'; choose auto, float32, float16 or bfloat16"});
}

DType activation_of(const ModelFiles& files, std::optional<DType> dtype, const Backend& backend) {
  return backend.activation_dtype(dtype.value_or(files.quantised ? DType::kBF16 : files.config.dtype));
}

double dummy_bytes(const DecoderConfig& c, double size) {
  const auto product = [](int64_t a, int64_t b) { return static_cast<double>(a) * static_cast<double>(b); };
  const double attention = product(c.hidden, c.head_dim) * static_cast<double>(2 * c.heads + 2 * c.kv_heads);
  const double dense = 3 * product(c.hidden, c.intermediate);
  const double inner = static_cast<double>(c.moe.experts) * static_cast<double>(c.moe.intermediate) +
                       static_cast<double>(c.moe.shared_intermediate);
  const double moe = (c.moe.gated ? 3 : 2) * static_cast<double>(c.hidden) * inner;
  double elements = product(c.vocab_size, c.hidden) * (c.tied_embeddings ? 1 : 2);
  for (const LayerConfig& layer : c.per_layer) {
    elements += layer.mixer == Mixer::kAttention ? attention : 0;
    const bool experts = layer.feed_forward == FeedForward::kMoe;
    elements += experts ? moe : layer.feed_forward == FeedForward::kNone ? 0 : dense;
    if (experts && c.moe.beside_mlp) elements += dense;
  }
  return elements * size;
}

Result<ModelFiles> open_model(const fs::path& path, const LoadOptions& options) {
  ModelFiles out;
  if (options.dummy) {
    const fs::path file = fs::is_directory(path) ? path / "config.json" : path;
    QUIRE_TRY(read_hf(file, options, out));
    QUIRE_ASSIGN(const std::optional<DType> dtype, parse_dtype(options.dtype));
    out.files.folder = file.parent_path();
    out.files.file = file;
    out.source = std::make_shared<weights::DummySource>(options.seed, dtype.value_or(out.config.dtype));
    if (!options.quantization.empty()) {
      QUIRE_ASSIGN(out.scheme, weights::parse_quantization_flag(options.quantization));
    }
    if (const Status made = weights::check_dummy_scheme(out.scheme); !made.ok()) return in_file(file, made.error());
    out.quantised = out.scheme.method != weights::QuantMethod::kNone;
  } else {
    QUIRE_ASSIGN(weights::Checkpoint checkpoint, weights::open_checkpoint(path));
    out.files = checkpoint.files;
    out.source = checkpoint.weights;
    out.gguf = checkpoint.gguf;
    if (out.gguf != nullptr) {
      auto status = read_gguf(out);
      if (!status.ok()) return in_file(out.files.file, status.error());
    } else {
      QUIRE_TRY(read_hf(out.files.folder / "config.json", options, out));
      out.config.text_prefix = find_text_prefix(*out.source, *out.family);
      out.config.head_prefix = find_head_prefix(*out.source);
      if (out.config.tied_embeddings && out.config.has_head) out.config.tied_embeddings = !has_own_head(out);
      if (!out.config.dtype_given) out.config.dtype = most_frequent_dtype(out).value_or(out.config.dtype);
    }
    out.quantised = out.scheme.method != weights::QuantMethod::kNone || any_quantised(*out.source);
  }
  auto status = complete(out.config, k_rows(out));
  if (!status.ok()) {
    return in_file(out.gguf != nullptr || options.dummy ? out.files.file : out.files.folder / "config.json",
                   status.error());
  }
  QUIRE_TRY(convert_pooler(options.convert, out.config, out.pooler));
  QUIRE_TRY(apply_pooler_flag(options.pooler_config, out.pooler));
  return out;
}

}  // namespace quire::model
