// SPDX-License-Identifier: Apache-2.0
// quire inspect and quire show: describe a model without loading it.
#include <algorithm>
#include <cstdio>
#include <map>

#include "base/printable.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "kv/memory_plan.h"
#include "llm/load.h"
#include "llm/text_side.h"
#include "model/layers/rope_table.h"

namespace quire::cli {
namespace {

struct InspectFlags {
  llm::Options options;
  std::string model;
  bool tensors = false;
  bool template_text = false;
  bool json = false;
};

const char* rope_name(model::RopeType type) {
  switch (type) {
    case model::RopeType::kDefault:
      return "default";
    case model::RopeType::kLinear:
      return "linear";
    case model::RopeType::kDynamic:
      return "dynamic";
    case model::RopeType::kYarn:
      return "yarn";
    case model::RopeType::kLlama3:
      return "llama3";
    case model::RopeType::kLongRope:
      return "longrope";
    case model::RopeType::kProportional:
      return "proportional";
  }
  return "default";
}

// The kinds of layers and the number of each: "18 gated_delta_net, 6 attention".
std::string layer_kinds(const model::DecoderConfig& config) {
  constexpr const char* kMixers[] = {"attention", "latent_attention", "gated_delta_net",
                                     "mamba2",    "short_conv",       "feed_only"};
  static_assert(std::size(kMixers) == static_cast<size_t>(model::Mixer::kNone) + 1);
  std::map<std::string, int> counts;
  std::vector<std::string> order;
  for (const model::LayerConfig& layer : config.per_layer) {
    std::string kind = kMixers[static_cast<size_t>(layer.mixer)];
    if (layer.window > 0) kind = "window_" + std::to_string(layer.window) + "_attention";
    if (layer.feed_forward == model::FeedForward::kMoe) kind += "+moe";
    if (counts[kind]++ == 0) order.push_back(kind);
  }
  std::string out;
  for (const std::string& kind : order) {
    out += (out.empty() ? "" : ", ") + std::to_string(counts[kind]) + " " + kind;
  }
  return out;
}

// Everything that is printed, collected once for both text and JSON.
json::Value architecture_json(const model::DecoderConfig& c) {
  json::Value out{json::Object{}};
  out.set("architecture", c.architecture);
  out.set("family", c.family);
  out.set("layers", c.layers);
  out.set("layer_kinds", layer_kinds(c));
  out.set("hidden_size", c.hidden);
  out.set("intermediate_size", c.intermediate);
  out.set("attention_heads", c.heads);
  out.set("kv_heads", c.kv_heads);
  out.set("head_dim", c.head_dim);
  if (c.moe.experts > 0) {
    out.set("experts", c.moe.experts);
    out.set("experts_per_token", c.moe.k);
  }
  out.set("vocab_size", c.vocab_size);
  out.set("max_position", c.max_position);
  out.set("rope", rope_name(c.rope.type));
  out.set("rope_theta", c.rope.theta);
  out.set("rotary_dim", c.rope.rot_dim);
  out.set("tied_embeddings", c.tied_embeddings);
  return out;
}

struct TypeCount {
  int64_t tensors = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;
};

json::Value weights_json(const weights::WeightSource& source) {
  std::map<std::string, TypeCount> by_type;
  int64_t parameters = 0;
  for (const std::string& tensor_name : source.names()) {
    const weights::TensorRef* tensor = source.find(tensor_name);
    if (tensor == nullptr) continue;
    TypeCount& count = by_type[name(tensor->dtype)];
    ++count.tensors;
    count.parameters += tensor->elements();
    count.bytes += static_cast<int64_t>(tensor->data.size());
    parameters += tensor->elements();
  }
  json::Value types{json::Object{}};
  for (const auto& [type, count] : by_type) {
    json::Value row{json::Object{}};
    row.set("tensors", count.tensors);
    row.set("parameters", count.parameters);
    row.set("bytes", count.bytes);
    types.set(type, std::move(row));
  }
  json::Value out{json::Object{}};
  out.set("format", source.describe());
  out.set("parameters", parameters);
  out.set("types", std::move(types));
  json::Array unsupported;
  for (const weights::UnsupportedTensor& tensor : source.unsupported())
    unsupported.emplace_back(tensor.name + ": " + tensor.type_name);
  if (!unsupported.empty()) out.set("unsupported", std::move(unsupported));
  return out;
}

json::Value tensors_json(const weights::WeightSource& source) {
  json::Array out;
  for (const std::string& tensor_name : source.names()) {
    const weights::TensorRef* tensor = source.find(tensor_name);
    json::Value row{json::Object{}};
    row.set("name", tensor_name);
    if (tensor != nullptr) {
      row.set("type", name(tensor->dtype));
      json::Array shape;
      for (const int64_t dim : tensor->shape) shape.emplace_back(dim);
      row.set("shape", std::move(shape));
      row.set("bytes", static_cast<int64_t>(tensor->data.size()));
    }
    out.push_back(std::move(row));
  }
  return out;
}

Result<std::string> memory_line(const llm::Options& options, const model::ModelFiles& files) {
  QUIRE_ASSIGN(auto backend, llm::make_backend(options));
  QUIRE_ASSIGN(llm::ResolvedOptions resolved, llm::resolve_options(options, files, *backend));
  resolved.memory.weights_bytes = files.source->total_bytes();
  llm::measure_memory(options, *backend, resolved.memory);
  QUIRE_ASSIGN(const kv::MemoryPlan plan, kv::plan_memory(resolved.memory));
  return plan.line() + " (" + backend->describe() + "; without scratch memory)";
}

void print_object(const json::Value& object) {
  for (const auto& [key, value] : object.as_object()) {
    const std::string text = value.is_string() ? printable(value.as_string()) : json::dump(value);
    std::printf("  %-20s %s\n", key.c_str(), text.c_str());
  }
}

void print_people(const json::Value& all, const InspectFlags& flags) {
  std::printf("%s\n", all.find("path")->as_string().c_str());
  std::printf("Architecture\n");
  print_object(*all.find("architecture"));
  const json::Value& weights = *all.find("weights");
  std::printf("Weights\n  %s\n", weights.find("format")->as_string().c_str());
  for (const auto& [type, row] : weights.find("types")->as_object()) {
    std::printf("  %-6s %5lld tensors %14lld parameters  %s\n", type.c_str(),
                static_cast<long long>(row.find("tensors")->as_int()),
                static_cast<long long>(row.find("parameters")->as_int()),
                kv::format_bytes(row.find("bytes")->as_int()).c_str());
  }
  if (const json::Value* list = weights.find("unsupported")) {
    for (const json::Value& item : list->as_array())
      std::printf("  not supported: %s\n", printable(item.as_string()).c_str());
  }
  std::printf("Memory\n  %s\n", all.find("memory")->as_string().c_str());
  std::printf("Text\n");
  print_object(*all.find("text"));
  if (flags.tensors) {
    std::printf("Tensors\n");
    for (const json::Value& row : all.find("tensors")->as_array()) {
      const json::Value* type = row.find("type");
      std::printf("  %-52s %-6s %s\n", printable(row.find("name")->as_string()).c_str(),
                  type != nullptr ? type->as_string().c_str() : "?",
                  row.find("shape") != nullptr ? json::dump(*row.find("shape")).c_str() : "");
    }
  }
  if (flags.template_text && all.find("chat_template") != nullptr) {
    std::printf("Chat template\n%s\n", printable(all.find("chat_template")->as_string()).c_str());
  }
}

json::Value text_json(const llm::TextSide& side) {
  json::Value out{json::Object{}};
  if (side.tokenizer == nullptr) {
    out.set("tokenizer", "none: only token ids can be used");
  } else {
    out.set("tokenizer", std::string(side.tokenizer->model_type()));
    out.set("tokens", int64_t{side.tokenizer->vocab_size()});
    const text::SpecialIds& special = side.tokenizer->special_ids();
    const auto show = [&](const char* key, std::optional<int32_t> id) {
      if (id) out.set(key, std::to_string(*id) + " " + std::string(side.tokenizer->piece(*id).value_or("")));
    };
    show("bos", special.bos);
    show("eos", special.eos);
  }
  std::string templates = "none";
  if (side.chat_template) {
    templates.clear();
    for (const std::string& template_name : side.chat_template->names()) {
      templates += (templates.empty() ? "" : ", ") + template_name + " (" +
                   std::to_string(side.chat_template->source(template_name).size()) + " bytes)";
    }
  }
  out.set("chat_templates", templates);
  return out;
}

int inspect(InspectFlags& flags) {
  flags.options.model = flags.model;
  if (auto status = resolve_model_argument(flags.options); !status.ok()) return report(status.error());
  auto files = llm::open_files(flags.options);
  if (!files.ok()) return report(files.error());
  json::Value all{json::Object{}};
  all.set("path", flags.options.model.string());
  all.set("architecture", architecture_json(files->config));
  all.set("weights", weights_json(*files->source));
  auto memory = memory_line(flags.options, *files);
  all.set("memory", memory.ok() ? *memory : memory.error().message);
  auto side = llm::load_text_side(*files, flags.options);
  if (!side.ok()) return report(side.error());
  all.set("text", text_json(*side));
  if (flags.tensors) all.set("tensors", tensors_json(*files->source));
  if ((flags.template_text || flags.json) && side->chat_template)
    all.set("chat_template", side->chat_template->source());
  if (flags.json) {
    std::printf("%s\n", json::dump(all, 2).c_str());
  } else {
    print_people(all, flags);
  }
  return 0;
}

// "Q4_K 87%, F32 13%": the types of the weights by their share of the bytes, the largest first.
std::string type_shares(const json::Value& weights) {
  std::vector<std::pair<int64_t, std::string>> types;
  int64_t total = 0;
  for (const auto& [type, row] : weights.find("types")->as_object()) {
    types.emplace_back(row.find("bytes")->as_int(), type);
    total += types.back().first;
  }
  std::sort(types.rbegin(), types.rend());
  std::string out;
  for (const auto& [bytes, type] : types) {
    const int64_t percent = total > 0 ? (100 * bytes + total / 2) / total : 0;
    if (percent > 0) out += (out.empty() ? "" : ", ") + type + " " + std::to_string(percent) + "%";
  }
  return out;
}

int show(InspectFlags& flags) {
  flags.options.model = flags.model;
  if (auto status = resolve_model_argument(flags.options); !status.ok()) return report(status.error());
  auto files = llm::open_files(flags.options);
  if (!files.ok()) return report(files.error());
  auto side = llm::load_text_side(*files, flags.options);
  if (!side.ok()) return report(side.error());
  const json::Value weights = weights_json(*files->source);
  const auto least = llm::least_memory(flags.options);
  const auto plan = memory_line(flags.options, *files);
  json::Value all{json::Object{}};
  all.set("path", flags.options.model.string());
  all.set("architecture", files->config.architecture);
  all.set("family", files->config.family);
  all.set("layers", layer_kinds(files->config));
  all.set("parameters", *weights.find("parameters"));
  all.set("format", *weights.find("format"));
  all.set("quantisation", type_shares(weights));
  all.set("context", files->config.max_position);
  all.set("weights_bytes", static_cast<int64_t>(files->source->total_bytes()));
  if (least.ok()) all.set("least_memory_bytes", *least);
  all.set("memory_plan", plan.ok() ? *plan : plan.error().message);
  if (side->chat_template) all.set("chat_template", side->chat_template->source());
  if (flags.json) {
    std::printf("%s\n", json::dump(all, 2).c_str());
    return 0;
  }
  std::printf("%s\n", flags.options.model.string().c_str());
  for (const auto& [key, value] : all.as_object()) {
    if (key == "path" || key == "chat_template") continue;
    const bool bytes = key.ends_with("_bytes");
    const std::string label = bytes ? key.substr(0, key.size() - 6) : key;
    const std::string text = bytes               ? kv::format_bytes(value.as_int())
                             : value.is_string() ? printable(value.as_string())
                             : value.is_int()    ? with_commas(value.as_int())
                                                 : json::dump(value);
    std::printf("  %-14s %s\n", label.c_str(), text.c_str());
  }
  const json::Value* chat = all.find("chat_template");
  std::printf("Chat template%s\n", chat == nullptr ? ": none" : ("\n" + printable(chat->as_string())).c_str());
  return 0;
}

}  // namespace

void add_show(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command =
      app.add_subcommand("show", "Show a model's family, quantisation, context, memory need and chat template");
  command->add_option("MODEL", flags->model, "A folder, a .gguf, a cached name, or omitted for the default model")
      ->envname("QUIRE_MODEL")
      ->type_name(kModelValue);
  add_switch(*command, "--json", flags->json, "Print a JSON object");
  add_model_flags(*command, flags->options);
  command->callback([flags, &exit_code] { exit_code = show(*flags); });
}

void add_inspect(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command =
      app.add_subcommand("inspect", "Show a model's architecture, tensors, memory plan and chat template");
  command->add_option("MODEL", flags->model, "A folder, a .gguf, a cached name, or omitted for the default model")
      ->envname("QUIRE_MODEL")
      ->type_name(kModelValue);
  add_switch(*command, "--tensors", flags->tensors, "List every tensor");
  add_switch(*command, "--show-chat-template", flags->template_text, "Print the chat template");
  add_switch(*command, "--json", flags->json, "Print a JSON object");
  add_model_flags(*command, flags->options);
  command->callback([flags, &exit_code] { exit_code = inspect(*flags); });
}

}  // namespace quire::cli
