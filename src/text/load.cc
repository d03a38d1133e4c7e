// SPDX-License-Identifier: Apache-2.0
// Loads the tokenizer of a model folder, in any format, with the roles in tokenizer_config.json.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "text/parts.h"
#include "text/tiktoken.h"

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

// Adds the tokens of the config that tokenizer.json (or tokenizer.model) does not have.
Status add_listed_tokens(const json::Value& config, TokenizerParts& parts) {
  const json::Value* list = config.find("added_tokens_decoder");
  if (list == nullptr || !list->is_object()) return {};
  bool added = false;
  for (const auto& [key, item] : list->as_object()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= (1 << 24)) {
      return corrupt({"added_tokens_decoder has the key \"", key, "\", which is not a token id"});
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

// add_bos_token and add_eos_token. The Llama classes build their template from them; the others keep the template in
// tokenizer.json, and a flag only adds what no template adds.
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

Result<json::Value> read_config(const fs::path& file) {
  if (!fs::exists(file)) return json::Value();
  QUIRE_ASSIGN(const std::string text, read_file(file));
  auto config = json::parse(text);
  if (!config.ok()) return corrupt({file.string(), ": ", config.error().message});
  if (!config->is_object()) return corrupt({file.string(), ": the file must be a JSON object"});
  return config;
}

Status apply_config(const fs::path& file, const json::Value& config, bool from_json, TokenizerParts& parts) {
  if (!config.is_object()) return {};
  if (auto status = add_listed_tokens(config, parts); !status.ok()) {
    return Error{status.error().code, file.string() + ": " + status.error().message};
  }
  set_role(parts, config, "bos_token", parts.special.bos);
  set_role(parts, config, "eos_token", parts.special.eos);
  set_role(parts, config, "pad_token", parts.special.pad);
  set_role(parts, config, "unk_token", parts.special.unk);
  set_role(parts, config, "mask_token", parts.special.mask);
  set_role(parts, config, "sep_token", parts.special.sep);
  set_role(parts, config, "cls_token", parts.special.cls);
  apply_flags(config, from_json, parts);
  return {};
}

// What a file that could not be read seems to be, and what to do; "" if that is unknown.
std::string guess(std::string_view bytes) {
  const auto starts = [&](std::string_view text) { return bytes.substr(0, text.size()) == text; };
  if (bytes.empty()) return "the file is empty; download it again";
  if (starts("version https://git-lfs")) {
    return "the file is a Git LFS pointer, not the tokenizer itself; fetch it with git lfs pull";
  }
  if (starts("<!DOCTYPE") || starts("<html") || starts("<HTML")) {
    return "the file is a web page, not a tokenizer; download the raw file";
  }
  if (starts("\x1f\x8b") || starts("PK\x03\x04") || starts("\x28\xb5\x2f\xfd")) {
    return "the file is compressed; unpack it first";
  }
  if (starts("\x80") && bytes.size() > 1 && bytes[1] >= 2 && bytes[1] <= 5) {
    return "the file is a Python pickle, which quire does not support; convert it to a tokenizer.json";
  }
  return {};
}

using PartsResult = Result<std::unique_ptr<TokenizerParts>>;

bool looks_like_json(std::string_view bytes) {
  const size_t first = bytes.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && bytes[first] == '{';
}

// Reads a file of any kind by its contents; names are not enough (tokenizer.model may be SentencePiece or tiktoken).
PartsResult read_any(const fs::path& file, const json::Value& config) {
  QUIRE_ASSIGN(const std::string bytes, read_file(file));
  const std::string name = file.string();
  if (const std::string known = guess(bytes); !known.empty()) return corrupt({name, ": ", known});
  if (looks_like_tiktoken(bytes)) return read_tiktoken(bytes, config, name);
  if (file.filename() == "tekken.json") return read_tekken(bytes, name);
  if (file.extension() == ".json" || looks_like_json(bytes)) return read_tokenizer_json(bytes, name);
  if (file.extension() == ".tiktoken" || file.filename() == "tiktoken.model") {
    return corrupt(
        {name, ": the first line is not a token in base64 and its rank, as in a tiktoken file; download it again"});
  }
  auto parts = read_sentencepiece(bytes, name);
  if (parts.ok() || parts.error().code != ErrorCode::kCorrupt) return parts;
  return Error{parts.error().code, parts.error().message +
                                       "; the file is neither a SentencePiece model nor a tiktoken file, or it is "
                                       "truncated, so download it again"};
}

// The file that a folder's tokenizer is read from; empty if there is none.
fs::path tokenizer_file(const fs::path& folder) {
  for (const char* name : {"tokenizer.json", "tekken.json", "tokenizer.model", "tiktoken.model"}) {
    if (fs::exists(folder / name)) return folder / name;
  }
  std::vector<fs::path> others;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".tiktoken") others.push_back(entry.path());
  }
  std::sort(others.begin(), others.end());
  return others.empty() ? fs::path() : others.front();
}

}  // namespace

bool has_tokenizer(const fs::path& folder) {
  return !tokenizer_file(folder).empty();
}

Result<TokenizerPtr> load_tokenizer(const fs::path& folder) {
  const fs::path file = tokenizer_file(folder);
  if (file.empty()) {
    return not_found(
        {folder.string(),
         " has no tokenizer.json, tokenizer.model, tekken.json or .tiktoken file; download one of them with "
         "the model"});
  }
  const fs::path config_file = folder / "tokenizer_config.json";
  QUIRE_ASSIGN(const json::Value config, read_config(config_file));
  QUIRE_ASSIGN(std::unique_ptr<TokenizerParts> parts, read_any(file, config));
  QUIRE_TRY(apply_config(config_file, config, file.extension() == ".json", *parts));
  return TokenizerPtr(std::make_shared<const Tokenizer>(std::move(parts)));
}

}  // namespace quire::text
