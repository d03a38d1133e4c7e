// SPDX-License-Identifier: Apache-2.0
// Reads what the files beside a model say of pooling.
#include "model/pooling/pooler_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "base/file.h"
#include "base/utf8.h"

namespace quire::model {
namespace {

namespace fs = std::filesystem;
using json::Value;

constexpr int64_t kMaxLabels = 1 << 16;

Result<Value> read_json(const fs::path& file) {
  QUIRE_ASSIGN(const std::string text, read_file(file, size_t{4} << 20));
  auto value = json::parse(text);
  if (!value.ok()) return in_file(file, value.error());
  return std::move(value).value();
}

// The last part of a dotted name.
std::string_view last_part(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

// A folder that modules.json names: inside the model's own.
Result<fs::path> module_folder(const fs::path& folder, const Value& module) {
  QUIRE_ASSIGN(const std::string path, json::get_string_or(module, "path", ""));
  const fs::path relative(path);
  if (relative.is_absolute() || path.find("..") != std::string::npos) {
    return invalid_argument({"a module has the path '", path, "', which is not inside the model's folder"});
  }
  return folder / relative;
}

Status read_pooling_module(const fs::path& folder, PoolerConfig& out) {
  const fs::path file = folder / "config.json";
  QUIRE_ASSIGN(const Value config, read_json(file));
  struct Mode {
    std::string_view flag, word;
    PoolRows rows;
  };
  constexpr Mode kModes[] = {{"pooling_mode_cls_token", "cls", PoolRows::kFirst},
                             {"pooling_mode_mean_tokens", "mean", PoolRows::kMean},
                             {"pooling_mode_lasttoken", "lasttoken", PoolRows::kLast},
                             {"pooling_mode_max_tokens", "max", PoolRows::kMax},
                             {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", PoolRows::kMeanSqrt},
                             {"pooling_mode_weightedmean_tokens", "weightedmean", PoolRows::kWeightedMean}};
  // Newer files have one word, or several in a list.
  std::set<std::string> words;
  if (const Value* mode = config.find("pooling_mode"); mode != nullptr && !mode->is_null()) {
    for (const Value& word : mode->is_array() ? mode->as_array() : json::Array{*mode}) {
      if (!word.is_string())
        return in_file(file, invalid_argument("field 'pooling_mode' must be a word or a list of words"));
      words.insert(word.as_string());
    }
  }
  int chosen = 0;
  for (const Mode& mode : kModes) {
    auto on = json::get_bool_or(config, mode.flag, false);
    if (!on.ok()) return in_file(file, on.error());
    if (words.erase(std::string(mode.word)) == 0 && !*on) continue;
    ++chosen;
    out.rows = mode.rows;
  }
  auto include = json::get_bool_or(config, "include_prompt", true);
  if (!include.ok()) return in_file(file, include.error());
  out.without_prompt = !*include && gathers(out.rows);
  if (chosen == 1 && words.empty()) return {};
  return in_file(file,
                 unsupported("the pooling mode must be one of cls, mean, lasttoken, max, mean_sqrt_len_tokens and "
                             "weightedmean; quire does not put several side by side"));
}

Status read_dense_module(const fs::path& folder, PoolerConfig& out) {
  const fs::path file = folder / "config.json";
  QUIRE_ASSIGN(const Value config, read_json(file));
  DenseModule dense{.folder = folder};
  const auto read = [&]() -> Status {
    QUIRE_ASSIGN(dense.in, json::get_int(config, "in_features", 1, kMaxSize));
    QUIRE_ASSIGN(dense.out, json::get_int(config, "out_features", 1, kMaxSize));
    QUIRE_ASSIGN(dense.bias, json::get_bool_or(config, "bias", true));
    QUIRE_ASSIGN(const std::string name, json::get_string_or(config, "activation_function", "Tanh"));
    QUIRE_ASSIGN(dense.activation, torch_activation(name));
    return {};
  };
  if (const Status status = read(); !status.ok()) return in_file(file, status.error());
  out.dense.push_back(std::move(dense));
  return {};
}

Status read_prompts(const fs::path& file, PoolerConfig& out) {
  if (!fs::exists(file)) return {};
  QUIRE_ASSIGN(const Value config, read_json(file));
  if (const Value* prompts = config.find("prompts"); prompts != nullptr && prompts->is_object()) {
    for (const auto& [name, text] : prompts->as_object()) {
      if (text.is_string()) out.prompts.emplace_back(name, text.as_string());
    }
  }
  if (const Value* chosen = config.find("default_prompt_name"); chosen != nullptr && chosen->is_string()) {
    out.default_prompt = chosen->as_string();
  }
  if (const Value* size = config.find("truncate_dim"); size != nullptr && !size->is_null()) {
    if (!size->is_int() || size->as_int() < 1 || size->as_int() > kMaxSize) {
      return in_file(file, invalid_argument("field 'truncate_dim' must be a positive size"));
    }
    out.dimensions = size->as_int();
  }
  return {};
}

// How many tokens of a text are read: max_seq_length of the Transformer's own file, whose name depends on the family in
// older folders, else the tokenizer's length, where newer versions of sentence-transformers write it.
Status read_length(const fs::path& folder, PoolerConfig& out) {
  const auto positive = [](const Value* length) {
    return length != nullptr && length->is_int() && length->as_int() > 0 ? length->as_int() : 0;
  };
  for (const char* family : {"bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"}) {
    const fs::path file = folder / ("sentence_" + std::string(family) + "_config.json");
    if (!fs::exists(file)) continue;
    QUIRE_ASSIGN(const Value config, read_json(file));
    out.max_length = positive(config.find("max_seq_length"));
    auto lower = json::get_bool_or(config, "do_lower_case", false);
    if (!lower.ok()) return in_file(file, lower.error());
    out.lower_case = *lower;
    break;
  }
  const fs::path file = folder / "tokenizer_config.json";
  if (out.max_length > 0 || !fs::exists(file)) return {};
  QUIRE_ASSIGN(const Value config, read_json(file));
  out.max_length = positive(config.find("model_max_length"));
  return {};
}

// modules.json lists the steps from text to vector.
Status read_modules(const fs::path& folder, PoolerConfig& out) {
  const fs::path file = folder / "modules.json";
  if (!fs::exists(file)) return {};
  QUIRE_ASSIGN(const Value modules, read_json(file));
  if (!modules.is_array()) return in_file(file, invalid_argument("it must be a list of modules"));
  out.embeds = true;
  out.normalise = false;
  for (const Value& module : modules.as_array()) {
    QUIRE_ASSIGN(const std::string type, json::get_string_or(module, "type", ""));
    auto place = module_folder(folder, module);
    if (!place.ok()) return in_file(file, place.error());
    const std::string_view kind = last_part(type);
    if (kind == "Transformer" || kind == "Dropout") continue;  // the second is for training
    if (kind == "Pooling") {
      QUIRE_TRY(read_pooling_module(*place, out));
    } else if (kind == "Dense") {
      QUIRE_TRY(read_dense_module(*place, out));
      out.dense.back().of_normalised = std::exchange(out.normalise, false);
    } else if (kind == "Normalize") {
      out.normalise = true;
    } else if (kind == "CrossEncoder" || kind == "LogitScore") {
      out.embeds = false;
    } else {
      return in_file(file, unsupported({"it has a module of the type '", type,
                                        "'; quire knows Transformer, Pooling, Dense, Normalize and Dropout"}));
    }
  }
  QUIRE_TRY(read_length(folder, out));
  return read_prompts(folder / "config_sentence_transformers.json", out);
}

Status read_matryoshka(const Value& config, PoolerConfig& out) {
  QUIRE_ASSIGN(out.matryoshka, json::get_bool_or(config, "is_matryoshka", false));
  const Value* list = config.find("matryoshka_dimensions");
  if (list == nullptr || list->is_null()) return {};
  if (!list->is_array()) return invalid_argument("field 'matryoshka_dimensions' must be a list of sizes");
  for (const Value& size : list->as_array()) {
    if (!size.is_int() || size.as_int() < 1 || size.as_int() > kMaxSize) {
      return invalid_argument("field 'matryoshka_dimensions' must hold positive sizes");
    }
    out.matryoshka_dimensions.push_back(size.as_int());
  }
  out.matryoshka = true;
  return {};
}

// The names of the classes, in the order of their numbers.
Status read_labels(const Value& config, PoolerConfig& out) {
  out.labels = 2;  // as in transformers
  const Value* names = config.find("id2label");
  if (names != nullptr && names->is_object()) {
    out.labels = static_cast<int64_t>(names->as_object().size());
    for (int64_t i = 0; i < std::min(out.labels, kMaxLabels); ++i) {
      const Value* label = names->find(std::to_string(i));
      if (label == nullptr || !label->is_string()) return invalid_argument("field 'id2label' must name 0, 1, 2, ...");
      out.label_names.push_back(label->as_string());
    }
  }
  QUIRE_ASSIGN(out.labels, json::get_int_or(config, "num_labels", out.labels, 1, kMaxLabels));
  if (out.label_names.size() != static_cast<size_t>(out.labels)) out.label_names.clear();
  return {};
}

// Which function turns scores into probabilities: that of the problem, else that of the cross-encoder's files, else by
// the number of classes.
Status read_score_activation(const Value& config, const fs::path& folder, PoolerConfig& out) {
  out.scores = out.labels < 2 ? PoolActivation::kSigmoid : PoolActivation::kSoftmax;
  const Value* nested = config.find("sentence_transformers");
  std::string torch;
  QUIRE_ASSIGN(torch, json::get_string_or(config, "sbert_ce_default_activation_function", ""));
  if (nested != nullptr && nested->is_object()) {
    QUIRE_ASSIGN(torch, json::get_string_or(*nested, "activation_fn", torch));
  }
  // Where version 6 of sentence-transformers writes it.
  if (const fs::path file = folder / "config_sentence_transformers.json"; fs::exists(file)) {
    QUIRE_ASSIGN(const Value own, read_json(file));
    auto function = json::get_string_or(own, "activation_fn", torch);
    if (!function.ok()) return in_file(file, function.error());
    torch = *function;
  }
  if (!torch.empty()) {
    QUIRE_ASSIGN(out.scores, torch_activation(torch));
  }
  QUIRE_ASSIGN(const std::string problem, json::get_string_or(config, "problem_type", ""));
  if (problem == "regression") out.scores = PoolActivation::kNone;
  if (problem == "single_label_classification") out.scores = PoolActivation::kSoftmax;
  if (problem == "multi_label_classification") out.scores = PoolActivation::kSigmoid;
  return {};
}

Status read_classes(const Value& config, const fs::path& folder, const DecoderConfig& model, PoolerConfig& out) {
  if (!model.architecture.ends_with("ForSequenceClassification")) return {};
  out.classifies = true;
  out.embeds = false;
  QUIRE_TRY(read_labels(config, out));
  if (const Value* tokens = config.find("classifier_from_token"); tokens != nullptr && !tokens->is_null()) {
    if (!tokens->is_array() || tokens->as_array().empty()) {
      return invalid_argument("field 'classifier_from_token' must be a list of tokens");
    }
    for (const Value& token : tokens->as_array()) {
      if (!token.is_string()) return invalid_argument("field 'classifier_from_token' must be a list of tokens");
      out.tokens.push_back(token.as_string());
    }
    // With two tokens and the original weights, one score: the second against the first.
    QUIRE_ASSIGN(const bool original, json::get_bool_or(config, "is_original_qwen3_reranker", false));
    out.labels = original || out.tokens.size() == 2 ? 1 : static_cast<int64_t>(out.tokens.size());
    if (original && out.tokens.size() != 2) {
      return invalid_argument("field 'classifier_from_token' must name two tokens, such as [\"no\", \"yes\"]");
    }
    out.label_names.clear();
  }
  QUIRE_TRY(read_score_activation(config, folder, out));
  QUIRE_ASSIGN(const std::string pooling, json::get_string_or(config, "classifier_pooling", "cls"));
  if (model.family == "modernbert" && pooling == "mean") out.rows = PoolRows::kMean;
  return {};
}

}  // namespace

const char* name(PoolRows rows) {
  constexpr const char* kNames[] = {"NONE", "CLS", "LAST", "MEAN", "ALL", "MEAN_SQRT", "WEIGHTED_MEAN", "MAX"};
  return kNames[static_cast<size_t>(rows)];
}

bool gathers(PoolRows rows) {
  return rows == PoolRows::kMean || rows == PoolRows::kMeanSqrt || rows == PoolRows::kWeightedMean ||
         rows == PoolRows::kMax;
}

void gather(PoolRows kind, int64_t position, std::span<const float> rows, size_t width, std::vector<float>& state) {
  const bool max = kind == PoolRows::kMax;
  state.resize(width, max ? -std::numeric_limits<float>::infinity() : 0.0f);
  for (; !rows.empty(); rows = rows.subspan(width), ++position) {
    const float weight = kind == PoolRows::kWeightedMean ? static_cast<float>(position + 1) : 1.0f;
    for (size_t i = 0; i < width && !max; ++i) state[i] += weight * rows[i];
    for (size_t i = 0; i < width && max; ++i) {
      const bool keep = rows[i] <= state[i] || std::isnan(state[i]);  // a value that is no number stays in the result
      if (!keep) state[i] = rows[i];
    }
  }
}

void finish_gathering(PoolRows kind, int64_t positions, std::vector<float>& state) {
  if (kind == PoolRows::kMax) return;
  const auto count = static_cast<double>(positions);
  const double divisor = kind == PoolRows::kMean       ? count
                         : kind == PoolRows::kMeanSqrt ? std::sqrt(count)
                                                       : count * (count + 1) / 2;
  for (float& value : state) value /= static_cast<float>(divisor);
}

Result<PoolActivation> torch_activation(std::string_view name) {
  const std::string_view word = last_part(name);
  if (word == "Identity") return PoolActivation::kNone;
  if (word == "Tanh") return PoolActivation::kTanh;
  if (word == "Sigmoid") return PoolActivation::kSigmoid;
  if (word == "ReLU") return PoolActivation::kRelu;
  if (word == "GELU") return PoolActivation::kGelu;
  if (word == "Softmax") return PoolActivation::kSoftmax;
  if (word == "SiLU") return PoolActivation::kSilu;
  if (word == "LeakyReLU") return PoolActivation::kLeakyRelu;
  if (word == "ELU") return PoolActivation::kElu;
  if (word == "SELU") return PoolActivation::kSelu;
  if (word == "Mish") return PoolActivation::kMish;
  if (word == "Softplus") return PoolActivation::kSoftplus;
  if (word == "Softsign") return PoolActivation::kSoftsign;
  if (word == "Hardtanh") return PoolActivation::kHardTanh;
  if (word == "ReLU6") return PoolActivation::kRelu6;
  if (word == "LogSigmoid") return PoolActivation::kLogSigmoid;
  return unsupported({"the activation '", utf8::beginning(name, 100),
                      "' is not one of Identity, Tanh, Sigmoid, ReLU, GELU, Softmax, SiLU, LeakyReLU, ELU, SELU, Mish, "
                      "Softplus, Softsign, Hardtanh, ReLU6 and LogSigmoid, which quire has"});
}

Result<PoolerConfig> read_hf_pooler(const Value& config, const fs::path& folder, const DecoderConfig& model) {
  PoolerConfig out;
  out.rows = model.encoder.on ? PoolRows::kFirst : PoolRows::kLast;
  out.embeds = !model.has_head;
  QUIRE_TRY(read_modules(folder, out));
  QUIRE_TRY(read_matryoshka(config, out));
  QUIRE_TRY(read_classes(config, folder, model, out));
  if (model.architecture == "BgeM3EmbeddingModel") {
    TokenHeads heads{.folder = folder};
    QUIRE_ASSIGN(heads.bos, json::get_int_or(config, "bos_token_id", 0, -1, kMaxSize));
    QUIRE_ASSIGN(heads.eos, json::get_int_or(config, "eos_token_id", 2, -1, kMaxSize));
    out.token_heads = std::move(heads);
  }
  return out;
}

Result<PoolerConfig> read_gguf_pooler(const weights::GgufMetadata& metadata, std::string_view architecture,
                                      const DecoderConfig& model) {
  PoolerConfig out;
  out.rows = model.encoder.on ? PoolRows::kFirst : PoolRows::kLast;
  out.embeds = !model.has_head;
  // llama.cpp's numbers: 0 none, 1 mean, 2 CLS, 3 last, 4 rank.
  QUIRE_ASSIGN(const int64_t kind, metadata.get_int_or(std::string(architecture) + ".pooling_type", -1, -1, 100));
  if (kind > 4) {
    return unsupported(
        {"key '", architecture, ".pooling_type' is ", kind, "; quire knows 1 (mean), 2 (CLS), 3 (last) and 4 (rank)"});
  }
  if (kind >= 1) out.embeds = true;
  if (kind == 1) out.rows = PoolRows::kMean;
  if (kind == 2) out.rows = PoolRows::kFirst;
  if (kind == 3) out.rows = PoolRows::kLast;
  if (kind != 4) return out;
  if (model.family == "modernbert") out.rows = PoolRows::kMean;  // as llama.cpp has it; the file does not say
  out.classifies = true;
  out.embeds = false;
  out.labels = 1;
  out.scores = PoolActivation::kSigmoid;
  const std::string labels = std::string(architecture) + ".classifier.output_labels";
  if (!metadata.contains(labels)) return out;
  QUIRE_ASSIGN(const auto names, metadata.get_strings(labels));
  out.label_names.assign(names.begin(), names.end());
  out.labels = std::max<int64_t>(1, static_cast<int64_t>(out.label_names.size()));
  if (out.labels > 1) out.scores = PoolActivation::kSoftmax;
  return out;
}

Status apply_pooler_flag(const std::string& text, PoolerConfig& config) {
  if (text.empty()) return {};
  const auto wrong = [](const std::string& what) { return invalid_argument({"--pooler-config: ", what}); };
  const auto value = json::parse(text);
  if (!value.ok() || !value->is_object())
    return wrong("it must be a JSON object, such as {\"pooling_type\": \"MEAN\"}");
  for (const auto& [field, setting] : value->as_object()) {
    if (setting.is_null()) continue;
    if (field == "pooling_type" || field == "seq_pooling_type") {
      const std::string word = setting.is_string() ? setting.as_string() : "";
      if (word == "CLS") {
        config.rows = PoolRows::kFirst;
      } else if (word == "LAST") {
        config.rows = PoolRows::kLast;
      } else if (word == "MEAN") {
        config.rows = PoolRows::kMean;
      } else if (field == "seq_pooling_type" || (word != "ALL" && word != "STEP")) {
        return wrong(field + " must be CLS, LAST or MEAN");
      }
    } else if (field == "use_activation") {
      if (!setting.is_bool()) return wrong("use_activation must be true or false");
      if (!setting.as_bool()) config.normalise = false, config.scores = PoolActivation::kNone;
      if (setting.as_bool()) config.normalise = true;  // scores have the function that the files name
    } else if (field == "logit_mean" || field == "logit_sigma") {
      if (!setting.is_number() || !std::isfinite(setting.as_double())) return wrong(field + " must be a number");
      (field == "logit_mean" ? config.logit_mean : config.logit_sigma) = setting.as_double();
      if (config.logit_sigma == 0) return wrong("logit_sigma must not be 0");
    } else if (field == "step_tag_id") {
      if (!setting.is_int() || setting.as_int() < 0) return wrong("step_tag_id must be a token id");
      config.step_tag_id = setting.as_int();
    } else if (field == "returned_token_ids") {
      if (!setting.is_array()) return wrong("returned_token_ids must be a list of numbers");
      for (const Value& id : setting.as_array()) {
        if (!id.is_int() || id.as_int() < 0) return wrong("returned_token_ids must be a list of numbers");
        config.returned_token_ids.push_back(id.as_int());
      }
    } else if (field == "task") {
      if (!setting.is_string()) return wrong("task must be a word");
      const std::string& word = setting.as_string();
      constexpr std::string_view kTasks[] = {"embed", "classify", "token_embed", "token_classify",
                                             "embed&token_classify"};
      if (std::ranges::find(kTasks, std::string_view(word)) == std::end(kTasks)) {
        return wrong("task must be embed, classify, token_embed, token_classify or embed&token_classify");
      }
      config.task = word;
    } else if (field == "dimensions") {
      if (!setting.is_int() || setting.as_int() < 1 || setting.as_int() > kMaxSize) {
        return wrong("dimensions must be a positive size");
      }
      config.dimensions = setting.as_int();
    } else if (field == "tok_pooling_type") {
      const std::string word = setting.is_string() ? setting.as_string() : "";
      if (word != "ALL" && word != "STEP") return wrong("tok_pooling_type must be ALL or STEP");
    } else if (field == "normalize") {
      return wrong("normalize is not a field any more; use use_activation");
    } else {
      return wrong("'" + utf8::beginning(field, 60) +
                   "' is not one of task, pooling_type, seq_pooling_type, tok_pooling_type, dimensions, "
                   "use_activation, logit_mean, "
                   "logit_sigma, step_tag_id and returned_token_ids");
    }
  }
  return {};
}

}  // namespace quire::model
