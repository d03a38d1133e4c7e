// SPDX-License-Identifier: Apache-2.0
// Loads the layers after pooling, and runs them.
#include "model/pooling/pooler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/file.h"
#include "model/load/loader.h"
#include "weights/quant.h"
#include "weights/safetensors.h"
#include "weights/torch_file.h"

namespace quire::model {
namespace {

constexpr size_t kLanes = 16;

float fold(std::array<float, kLanes>& lanes) {
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

float softplus(float x) {
  return std::max(x, 0.0f) + std::log1p(std::exp(-std::abs(x)));
}

float activated(float x, PoolActivation activation) {
  switch (activation) {
    case PoolActivation::kTanh:
      return std::tanh(x);
    case PoolActivation::kGelu:
      return 0.5f * x * (1.0f + std::erf(x * 0.70710678118654752f));
    case PoolActivation::kRelu:
      return std::max(x, 0.0f);
    case PoolActivation::kSigmoid:
      return 1.0f / (1.0f + std::exp(-x));
    case PoolActivation::kSilu:
      return x / (1.0f + std::exp(-x));
    case PoolActivation::kLeakyRelu:
      return x > 0 ? x : 0.01f * x;
    case PoolActivation::kElu:
      return x > 0 ? x : std::expm1(x);
    case PoolActivation::kSelu:
      return 1.05070098735548050f * (x > 0 ? x : 1.67326324235437728f * std::expm1(x));
    case PoolActivation::kMish:
      return x * std::tanh(softplus(x));
    case PoolActivation::kSoftplus:
      return softplus(x);
    case PoolActivation::kSoftsign:
      return x / (1.0f + std::abs(x));
    case PoolActivation::kHardTanh:
      return std::clamp(x, -1.0f, 1.0f);
    case PoolActivation::kRelu6:
      return std::clamp(x, 0.0f, 6.0f);
    case PoolActivation::kLogSigmoid:
      return -softplus(-x);
    default:
      return x;
  }
}

void softmax(std::span<float> x) {
  const float top = *std::max_element(x.begin(), x.end());
  float sum = 0;
  for (float& v : x) sum += v = std::exp(v - top);
  for (float& v : x) v /= sum;
}

void layer_norm(std::span<float> x, const PoolLayer& layer) {
  float mean = 0, squares = 0;
  for (const float v : x) mean += v;
  mean /= static_cast<float>(x.size());
  for (const float v : x) squares += (v - mean) * (v - mean);
  const float scale = 1.0f / std::sqrt(squares / static_cast<float>(x.size()) + layer.norm_eps);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = (x[i] - mean) * scale * layer.norm[i] + (layer.norm_bias.empty() ? 0.0f : layer.norm_bias[i]);
  }
}

// Numbers that are not finite would reach every answer, in which JSON has no place for them.
Result<std::vector<float>> finite(Result<std::vector<float>> values, std::string_view tensor) {
  if (!values.ok() || std::ranges::all_of(*values, [](float value) { return std::isfinite(value); })) return values;
  return corrupt({"tensor '", tensor, "' has a value that is not a finite number"});
}

// A matrix of the checkpoint, in any type, as floats.
Result<std::vector<float>> matrix_floats(Loader& loader, const std::string& tensor, int64_t rows, int64_t columns) {
  QUIRE_ASSIGN(const weights::TensorRef* found, loader.require(tensor, {rows, columns}));
  std::vector<float> out(static_cast<size_t>(rows * columns));
  const int64_t bytes = row_bytes(found->dtype, columns);
  for (int64_t r = 0; r < rows; ++r) {
    weights::dequantise_row(found->dtype, found->data.data() + r * bytes, out.data() + r * columns, columns);
  }
  loader.finished(*found);
  return finite(std::move(out), tensor);
}

Result<PoolLayer> read_layer(Loader& loader, const std::string& prefix, int64_t in, int64_t out, bool bias,
                             PoolActivation activation) {
  PoolLayer layer{.in = in, .out = out, .activation = activation};
  QUIRE_ASSIGN(layer.weight, matrix_floats(loader, prefix + ".weight", out, in));
  if (bias) {
    QUIRE_ASSIGN(layer.bias, finite(loader.floats(prefix + ".bias", {out}), prefix + ".bias"));
  }
  return layer;
}

// A file of tensors: safetensors, or what torch.save wrote.
Result<std::shared_ptr<const weights::WeightSource>> open_tensors(const std::filesystem::path& folder,
                                                                  const char* safetensors, const char* torch) {
  if (std::filesystem::exists(folder / safetensors)) {
    QUIRE_ASSIGN(std::shared_ptr<const weights::WeightSource> source,
                 weights::SafetensorsSource::open(folder / safetensors));
    return source;
  }
  if (std::filesystem::exists(folder / torch)) {
    QUIRE_ASSIGN(std::shared_ptr<const weights::WeightSource> source, weights::TorchSource::open(folder / torch));
    return source;
  }
  return not_found({"'", folder.string(), "' has neither ", safetensors, " nor ", torch});
}

Result<std::vector<float>> tensor_floats(const weights::WeightSource& source, std::string_view name,
                                         std::span<const int64_t> shape) {
  QUIRE_ASSIGN(const weights::TensorRef* found, source.require(name, shape));
  std::vector<float> values(static_cast<size_t>(found->elements()));
  weights::dequantise_row(found->dtype, found->data.data(), values.data(), found->elements());
  return finite(std::move(values), name);
}

Result<PoolLayer> read_dense(const DenseModule& module) {
  QUIRE_ASSIGN(const auto source, open_tensors(module.folder, "model.safetensors", "pytorch_model.bin"));
  PoolLayer layer{
      .in = module.in, .out = module.out, .activation = module.activation, .of_normalised = module.of_normalised};
  QUIRE_ASSIGN(layer.weight, tensor_floats(*source, "linear.weight", std::array{module.out, module.in}));
  if (module.bias) {
    QUIRE_ASSIGN(layer.bias, tensor_floats(*source, "linear.bias", std::array{module.out}));
  }
  return layer;
}

// A head of BGE-M3: in the checkpoint as `name`.weight and `name`.bias, or in a file of its own. `rows`: 0 for any.
Result<PoolLayer> read_token_head(Loader& loader, const TokenHeads& heads, const std::string& name, int64_t rows) {
  const int64_t hidden = loader.config().hidden;
  const auto rows_of = [&](const weights::TensorRef& weight) -> Result<int64_t> {
    if (weight.shape.size() == 2 && (rows == 0 || weight.shape[0] == rows) && weight.shape[1] == hidden) {
      return weight.shape[0];
    }
    return corrupt({"the weight of ", name, " has the shape ", weights::shape_string(weight.shape),
                    ", but a head takes the ", hidden, " numbers of a hidden state"});
  };
  if (loader.has(name + ".weight")) {
    QUIRE_ASSIGN(const weights::TensorRef* weight, loader.files().source->get(name + ".weight"));
    QUIRE_ASSIGN(const int64_t out, rows_of(*weight));
    return read_layer(loader, name, hidden, out, loader.has(name + ".bias"), PoolActivation::kNone);
  }
  const std::string safetensors = name + ".safetensors", torch = name + ".pt";
  const auto source = open_tensors(heads.folder, safetensors.c_str(), torch.c_str());
  if (!source.ok() && source.error().code == ErrorCode::kNotFound) {
    return not_found({source.error().message, ", which BgeM3EmbeddingModel needs; as XLMRobertaModel, the model ",
                      "makes embeddings without them"});
  }
  if (!source.ok()) return source.failure();
  QUIRE_ASSIGN(const weights::TensorRef* weight, (*source)->get("weight"));
  PoolLayer layer{.in = hidden};
  QUIRE_ASSIGN(layer.out, rows_of(*weight));
  QUIRE_ASSIGN(layer.weight, tensor_floats(**source, "weight", weight->shape));
  if ((*source)->find("bias") != nullptr) {
    QUIRE_ASSIGN(layer.bias, tensor_floats(**source, "bias", std::array{layer.out}));
  }
  return layer;
}

// The layers between the pooled row and the scores, as each family has them.
Result<std::vector<PoolLayer>> read_classifier(Loader& loader, const PoolerConfig& config) {
  const DecoderConfig& model = loader.config();
  const int64_t hidden = model.hidden;
  std::vector<PoolLayer> out;
  const auto add = [&](const std::string& prefix, int64_t rows, bool bias, PoolActivation activation) -> Status {
    QUIRE_ASSIGN(PoolLayer layer, read_layer(loader, prefix, hidden, rows, bias, activation));
    out.push_back(std::move(layer));
    return {};
  };
  if (loader.gguf()) {
    if (loader.has("cls.output.weight")) {
      const bool modern = model.family == "modernbert";
      QUIRE_TRY(add("cls", hidden, loader.has("cls.bias"), modern ? PoolActivation::kGelu : PoolActivation::kTanh));
      if (loader.has("cls.norm.weight")) {
        QUIRE_ASSIGN(out.back().norm, loader.floats("cls.norm.weight", {hidden}));
        out.back().norm_eps = model.norm_eps;
      }
      QUIRE_TRY(add("cls.output", config.labels, loader.has("cls.output.bias"), PoolActivation::kNone));
    } else {
      QUIRE_TRY(add("cls", config.labels, loader.has("cls.bias"), PoolActivation::kNone));
    }
  } else if (model.family == "bert") {
    QUIRE_TRY(add(model.text_prefix + "pooler.dense", hidden, true, PoolActivation::kTanh));
    QUIRE_TRY(add("classifier", config.labels, true, PoolActivation::kNone));
  } else if (model.family == "roberta" || model.family == "mpnet") {
    QUIRE_TRY(add("classifier.dense", hidden, true, PoolActivation::kTanh));
    QUIRE_TRY(add("classifier.out_proj", config.labels, true, PoolActivation::kNone));
  } else if (model.family == "modernbert") {
    QUIRE_TRY(add("head.dense", hidden, loader.has("head.dense.bias"), PoolActivation::kGelu));
    QUIRE_ASSIGN(out.back().norm, loader.floats("head.norm.weight", {hidden}));
    if (loader.has("head.norm.bias")) {
      QUIRE_ASSIGN(out.back().norm_bias, loader.floats("head.norm.bias", {hidden}));
    }
    out.back().norm_eps = model.norm_eps;
    QUIRE_TRY(add("classifier", config.labels, true, PoolActivation::kNone));
  } else {
    QUIRE_TRY(add("score", config.labels, loader.has("score.bias"), PoolActivation::kNone));
  }
  return out;
}

// Scores from rows of the LM head: one per token, or of two tokens the second minus the first.
Result<std::vector<PoolLayer>> read_token_classes(Loader& loader, const PoolerConfig& config) {
  const DecoderConfig& model = loader.config();
  const std::vector<int32_t>& ids = config.token_ids;
  if (ids.size() != config.tokens.size()) return unsupported("classes that are tokens need the model's tokenizer");
  const std::string head = loader.name(Part::kHead, 0) + ".weight";
  const std::string table = loader.has(head) ? head : loader.name(Part::kEmbedding, 0) + ".weight";
  QUIRE_ASSIGN(const weights::TensorRef* found, loader.require(table, {model.vocab_size, model.hidden}));
  const int64_t bytes = row_bytes(found->dtype, model.hidden);
  std::vector<float> rows(ids.size() * static_cast<size_t>(model.hidden));
  for (size_t i = 0; i < ids.size(); ++i) {
    weights::dequantise_row(found->dtype, found->data.data() + ids[i] * bytes,
                            rows.data() + i * static_cast<size_t>(model.hidden), model.hidden);
  }
  PoolLayer layer{.in = model.hidden, .out = config.labels, .weight = rows};
  if (config.labels == 1 && ids.size() == 2) {
    layer.weight.resize(static_cast<size_t>(model.hidden));
    for (size_t i = 0; i < layer.weight.size(); ++i) layer.weight[i] = rows[layer.weight.size() + i] - rows[i];
  }
  return std::vector<PoolLayer>{std::move(layer)};
}

}  // namespace

float dot(std::span<const float> a, std::span<const float> b) {
  QUIRE_CHECK(a.size() == b.size());
  std::array<float, kLanes> lanes{};
  size_t i = 0;
  for (; i + kLanes <= a.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < a.size(); ++i) lanes[i % kLanes] += a[i] * b[i];
  return fold(lanes);
}

float cosine(std::span<const float> a, std::span<const float> b) {
  const float norms = std::sqrt(dot(a, a)) * std::sqrt(dot(b, b));
  return dot(a, b) / std::max(norms, 1e-12f);
}

float late_score(std::span<const std::vector<float>> query, std::span<const std::vector<float>> document) {
  float sum = 0;
  for (const std::vector<float>& q : query) {
    float best = -std::numeric_limits<float>::infinity();
    for (const std::vector<float>& d : document) best = std::max(best, dot(q, d));
    sum += best;
  }
  return sum;
}

void normalise(std::span<float> x) {
  const float length = std::max(std::sqrt(dot(x, x)), 1e-12f);
  for (float& v : x) v /= length;
}

std::vector<float> PoolLayer::run(std::span<const float> x) const {
  std::vector<float> y(static_cast<size_t>(out));
  for (size_t r = 0; r < y.size(); ++r) {
    const auto row = std::span(weight).subspan(r * static_cast<size_t>(in), static_cast<size_t>(in));
    y[r] = activated(dot(row, x) + (bias.empty() ? 0.0f : bias[r]), activation);
  }
  if (activation == PoolActivation::kSoftmax) softmax(y);
  if (!norm.empty()) layer_norm(y, *this);
  return y;
}

Result<Pooler> Pooler::load(Loader& loader, PoolerConfig config) {
  Pooler out;
  out.hidden_ = loader.config().hidden;
  int64_t size = out.hidden_;
  for (const DenseModule& module : config.dense) {
    if (module.in != size) {
      return invalid_argument(
          {"'", module.folder.string(), "': a dense layer takes ", module.in, " numbers, but gets ", size});
    }
    size = module.out;
    auto read = read_dense(module);
    if (!read.ok()) return in_file(module.folder, read.error());
    PoolLayer layer = std::move(*read);
    out.dense_.push_back(std::move(layer));
  }
  for (const char* name : {"dense_2", "dense_3"}) {  // the same, in GGUF files
    const std::string tensor = std::string(name) + ".weight";
    if (!loader.gguf() || !loader.has(tensor)) continue;
    QUIRE_ASSIGN(const weights::TensorRef* found, loader.files().source->get(tensor));
    if (found->shape.size() != 2 || found->shape[1] != size)
      return corrupt({"tensor '", tensor, "' has a wrong shape"});
    const int64_t rows = found->shape[0];
    QUIRE_ASSIGN(PoolLayer layer, read_layer(loader, name, size, rows, false, PoolActivation::kNone));
    size = rows;
    out.dense_.push_back(std::move(layer));
  }
  if (config.dimensions > size) {
    return invalid_argument({"embeddings should be cut to ", config.dimensions, " numbers (truncate_dim of ",
                             "config_sentence_transformers.json, or dimensions of --pooler-config), but have ", size});
  }
  if (config.classifies) {
    if (config.tokens.empty()) {
      QUIRE_ASSIGN(out.classifier_, read_classifier(loader, config));
    } else {
      QUIRE_ASSIGN(out.classifier_, read_token_classes(loader, config));
    }
  }
  if (config.token_heads) {
    QUIRE_ASSIGN(out.token_weight_, read_token_head(loader, *config.token_heads, "sparse_linear", 1));
    QUIRE_ASSIGN(out.token_vector_, read_token_head(loader, *config.token_heads, "colbert_linear", 0));
  }
  out.config_ = std::move(config);
  return out;
}

std::vector<float> Pooler::embed(std::span<const float> pooled, std::optional<int64_t> dimensions,
                                 bool normalised) const {
  std::vector<float> x(pooled.begin(), pooled.end());
  for (const PoolLayer& layer : dense_) {
    if (layer.of_normalised) normalise(x);
    x = layer.run(x);
  }
  if (!dimensions && config_.dimensions > 0) dimensions = config_.dimensions;
  if (dimensions) x.resize(static_cast<size_t>(*dimensions));
  if (normalised) normalise(x);
  return x;
}

std::vector<float> Pooler::classify(std::span<const float> pooled, bool activate) const {
  std::vector<float> x(pooled.begin(), pooled.end());
  for (const PoolLayer& layer : classifier_) x = layer.run(x);
  for (float& v : x) v = (v - static_cast<float>(config_.logit_mean)) / static_cast<float>(config_.logit_sigma);
  if (!activate) return x;
  if (config_.scores == PoolActivation::kSoftmax) {
    softmax(x);
  } else {
    for (float& v : x) v = activated(v, config_.scores);
  }
  return x;
}

std::vector<float> Pooler::token_vector(std::span<const float> hidden, std::optional<int64_t> dimensions,
                                        bool normalised) const {
  std::vector<float> x = token_vector_.run(hidden);
  if (dimensions && *dimensions < token_vector_.out) x.resize(static_cast<size_t>(*dimensions));
  if (normalised) normalise(x);
  return x;
}

float Pooler::token_weight(std::span<const float> hidden, bool activate) const {
  const float x =
      (token_weight_.run(hidden)[0] - static_cast<float>(config_.logit_mean)) / static_cast<float>(config_.logit_sigma);
  return activate ? std::max(x, 0.0f) : x;
}

Status Pooler::check_dimensions(int64_t dimensions) const {
  if (dimensions == this->dimensions()) return {};  // many clients always send the size that they expect
  if (!config_.matryoshka) {
    return invalid_field("dimensions", {"cannot be set: this model's embeddings have ", this->dimensions(),
                                        " numbers and were not made to be cut (matryoshka)."});
  }
  const std::vector<int64_t>& known = config_.matryoshka_dimensions;
  if (!known.empty() && std::find(known.begin(), known.end(), dimensions) == known.end()) {
    std::string list;
    for (const int64_t size : known) list += (list.empty() ? "" : ", ") + std::to_string(size);
    return invalid_field("dimensions", {"must be one of ", list, "."});
  }
  if (dimensions >= 1 && dimensions <= this->dimensions()) return {};
  return invalid_field("dimensions", {"must be from 1 to ", this->dimensions(), "."});
}

size_t Pooler::bytes() const {
  size_t floats = 0;
  for (const auto* layers : {&dense_, &classifier_}) {
    for (const PoolLayer& layer : *layers) floats += layer.weight.size() + layer.bias.size();
  }
  floats += token_weight_.weight.size() + token_vector_.weight.size();
  return floats * sizeof(float);
}

}  // namespace quire::model
