// SPDX-License-Identifier: Apache-2.0
// A model folder's tokenizer: tokenizer.json or tokenizer.model, with what tokenizer_config.json says about roles.
#include <charconv>
#include <filesystem>
#include <string>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "text/parts.h"

namespace quire::text {

namespace {

namespace fs = std::filesystem;

// "<s>" or {"content": "<s>", ...}; nothing for null or a missing field.
std::optional<std::string> token_name(const json::Value& config, std::string_view field) {
  const json::Value* value = config.find(field);
  if (value != nullptr && value->is_object()) value = value->find("content");
  if (value == nullptr || !value->is_string()) return std::nullopt;
  return value->as_string();
}

std::optional<int32_t> find_id(const TokenizerParts& parts, const std::string& token) {
  int32_t id = parts.added.id_of(token);
  if (id < 0) id = parts.model->vocab().find(token);
  return id < 0 ? std::nullopt : std::optional<int32_t>(id);
}

void set_role(const TokenizerParts& parts, const json::Value& config, std::string_view field,
              std::optional<int32_t>& role) {
  const auto name = token_name(config, field);
  if (!name) return;
  if (const auto id = find_id(parts, *name)) role = id;
}

// Tokens that the config lists and tokenizer.json (or tokenizer.model) does not have yet.
Status add_listed_tokens(const json::Value& config, TokenizerParts& parts) {
  const json::Value* list = config.find("added_tokens_decoder");
  if (list == nullptr || !list->is_object()) return {};
  bool added = false;
  for (const auto& [key, item] : list->as_object()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= (1 << 24)) {
      return corrupt("added_tokens_decoder has the key \"" + key + "\", which is no token id");
    }
    if (parts.added.by_id(id) != nullptr) continue;
    AddedToken token;
    QUIRE_ASSIGN(token.content, json::get_string(item, "content"));
    if (parts.added.id_of(token.content) >= 0) continue;
    QUIRE_ASSIGN(token.single_word, json::get_bool_or(item, "single_word", false));
    QUIRE_ASSIGN(token.lstrip, json::get_bool_or(item, "lstrip", false));
    QUIRE_ASSIGN(token.rstrip, json::get_bool_or(item, "rstrip", false));
    QUIRE_ASSIGN(token.special, json::get_bool_or(item, "special", false));
    QUIRE_ASSIGN(token.normalized, json::get_bool_or(item, "normalized", !token.special));
    parts.added.add_with_id(std::move(token), id);
    added = true;
  }
  if (added) parts.added.finish(parts.normalizer.get());
  return {};
}

std::optional<bool> flag(const json::Value& config, std::string_view field) {
  const json::Value* value = config.find(field);
  return value != nullptr && value->is_bool() ? std::optional<bool>(value->as_bool()) : std::nullopt;
}

// add_bos_token and add_eos_token: the Llama classes rebuild their template from them; for the others the template in
// tokenizer.json stands, and a flag only adds what no template adds.
void apply_flags(const json::Value& config, bool from_json, TokenizerParts& parts) {
  const auto name = token_name(config, "tokenizer_class").value_or("");
  const bool llama = name.find("Llama") != std::string::npos || !from_json;
  PostProcessor& post = parts.post;
  const auto bos = parts.special.bos;
  const auto eos = parts.special.eos;
  if (const auto wanted = flag(config, "add_bos_token"); wanted && bos) {
    const bool present = !post.before.empty() && post.before.front() == *bos;
    if (*wanted && !present && (llama || post.before.empty())) post.before.insert(post.before.begin(), *bos);
    if (!*wanted && present && llama) post.before.erase(post.before.begin());
  }
  if (const auto wanted = flag(config, "add_eos_token"); wanted && eos) {
    const bool present = !post.after.empty() && post.after.back() == *eos;
    if (*wanted && !present && (llama || post.after.empty())) post.after.push_back(*eos);
    if (!*wanted && present && llama) post.after.pop_back();
  }
}

Status apply_config(const fs::path& file, bool from_json, TokenizerParts& parts) {
  if (!fs::exists(file)) return {};
  QUIRE_ASSIGN(const std::string text, read_file(file));
  auto config = json::parse(text);
  if (!config.ok()) return corrupt(file.string() + ": " + config.error().message);
  if (!config->is_object()) return corrupt(file.string() + ": the file must hold an object");
  if (auto status = add_listed_tokens(*config, parts); !status.ok()) {
    return Error{status.error().code, file.string() + ": " + status.error().message};
  }
  set_role(parts, *config, "bos_token", parts.special.bos);
  set_role(parts, *config, "eos_token", parts.special.eos);
  set_role(parts, *config, "pad_token", parts.special.pad);
  set_role(parts, *config, "unk_token", parts.special.unk);
  set_role(parts, *config, "mask_token", parts.special.mask);
  set_role(parts, *config, "sep_token", parts.special.sep);
  set_role(parts, *config, "cls_token", parts.special.cls);
  apply_flags(*config, from_json, parts);
  return {};
}

}  // namespace

Result<TokenizerPtr> load_tokenizer(const fs::path& folder) {
  const fs::path json_file = folder / "tokenizer.json";
  const fs::path model_file = folder / "tokenizer.model";
  std::unique_ptr<TokenizerParts> parts;
  const bool from_json = fs::exists(json_file);
  if (from_json) {
    QUIRE_ASSIGN(const std::string text, read_file(json_file));
    QUIRE_ASSIGN(parts, read_tokenizer_json(text, json_file.string()));
  } else if (fs::exists(model_file)) {
    QUIRE_ASSIGN(const std::string bytes, read_file(model_file));
    QUIRE_ASSIGN(parts, read_sentencepiece(bytes, model_file.string()));
  } else {
    return not_found(folder.string() +
                     " has neither tokenizer.json nor tokenizer.model; download one of them with the model");
  }
  QUIRE_TRY(apply_config(folder / "tokenizer_config.json", from_json, *parts));
  return TokenizerPtr(std::make_shared<const Tokenizer>(std::move(parts)));
}

}  // namespace quire::text
