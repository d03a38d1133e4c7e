// SPDX-License-Identifier: Apache-2.0
// Finds and loads the tokenizer and the chat template of a model.
#include "llm/text_side.h"

#include <algorithm>
#include <vector>

#include "base/file.h"
#include "text/gguf_vocab.h"

namespace quire::llm {
namespace {

namespace fs = std::filesystem;

Result<text::TokenizerPtr> load_tokenizer(const model::ModelFiles& files, const Options& options) {
  if (!options.tokenizer.empty()) {
    const fs::path& path = options.tokenizer;
    if (std::error_code ignored; !fs::exists(path, ignored)) {
      return not_found(
          {"--tokenizer: '", path.string(), "' does not exist; give a folder with a tokenizer, or leave it out"});
    }
    return text::load_tokenizer(fs::is_directory(path) ? path : path.parent_path());
  }
  if (files.gguf != nullptr) {
    if (!files.gguf->metadata().contains("tokenizer.ggml.model")) return text::TokenizerPtr();
    QUIRE_ASSIGN(text::GgufVocab vocab, text::read_gguf_vocab(files.gguf->metadata()));
    return text::load_gguf_vocab(std::move(vocab), files.files.file.string());
  }
  if (!text::has_tokenizer(files.files.folder)) return text::TokenizerPtr();
  return text::load_tokenizer(files.files.folder);
}

Result<std::optional<text::ChatTemplate>> parsed(const fs::path& file, Result<text::ChatTemplate> result) {
  if (!result.ok()) return in_file(file, result.error());
  return std::optional<text::ChatTemplate>(std::move(result).value());
}

// Looks for chat_template.jinja (with additional_chat_templates/), chat_template.json and tokenizer_config.json.
Result<std::optional<text::ChatTemplate>> folder_template(const fs::path& folder) {
  if (const fs::path file = folder / "chat_template.jinja"; fs::exists(file)) {
    std::vector<std::pair<std::string, std::string>> named;
    QUIRE_ASSIGN(std::string source, read_file(file, size_t{4} << 20));
    named.emplace_back("default", std::move(source));
    std::error_code ignored;
    std::vector<fs::path> additional;
    for (const auto& entry : fs::directory_iterator(folder / "additional_chat_templates", ignored)) {
      if (entry.path().extension() == ".jinja") additional.push_back(entry.path());
    }
    std::sort(additional.begin(), additional.end());
    for (const fs::path& path : additional) {
      QUIRE_ASSIGN(std::string text, read_file(path, size_t{4} << 20));
      named.emplace_back(path.stem().string(), std::move(text));
    }
    return parsed(file, text::ChatTemplate::parse_named(named));
  }
  for (const char* name : {"chat_template.json", "tokenizer_config.json"}) {
    const fs::path file = folder / name;
    if (!fs::exists(file)) continue;
    QUIRE_ASSIGN(const std::string text, read_file(file, size_t{64} << 20));
    auto config = json::parse(text);
    if (!config.ok()) return in_file(file, config.error());
    const json::Value* chat = config->find("chat_template");
    if (chat != nullptr && !chat->is_null()) return parsed(file, text::ChatTemplate::parse_config(*chat));
  }
  return std::optional<text::ChatTemplate>();
}

Result<std::optional<text::ChatTemplate>> load_chat_template(const model::ModelFiles& files, const Options& options) {
  if (!options.chat_template.empty()) {
    auto source = read_file(options.chat_template, size_t{4} << 20);
    if (source.ok()) return parsed(options.chat_template, text::ChatTemplate::parse(*source));
    const std::string& given = options.chat_template.native();
    if (given.find_first_of("{}\n") == std::string::npos) return source.error();
    auto inline_template = text::ChatTemplate::parse(given);  // as in vLLM the flag may be the template itself
    if (!inline_template.ok()) return invalid_argument({"--chat-template: ", inline_template.error().message});
    return std::optional<text::ChatTemplate>(std::move(inline_template).value());
  }
  if (files.gguf == nullptr) return folder_template(files.files.folder);
  const weights::GgufMetadata& metadata = files.gguf->metadata();
  if (!metadata.contains("tokenizer.chat_template")) return std::optional<text::ChatTemplate>();
  QUIRE_ASSIGN(const std::string_view source, metadata.get_string("tokenizer.chat_template"));
  std::vector<std::pair<std::string, std::string>> named = {{"default", std::string(source)}};
  if (metadata.contains("tokenizer.chat_template.tool_use")) {
    QUIRE_ASSIGN(const std::string_view tool_use, metadata.get_string("tokenizer.chat_template.tool_use"));
    named.emplace_back("tool_use", std::string(tool_use));
  }
  return parsed(files.files.file, text::ChatTemplate::parse_named(named));
}

}  // namespace

Result<model::ModelFiles> open_text_files(const Options& options) {
  QUIRE_ASSIGN(weights::Checkpoint checkpoint, weights::open_checkpoint(options.model));
  model::ModelFiles out;
  out.files = checkpoint.files;
  out.source = checkpoint.weights;
  out.gguf = checkpoint.gguf;
  return out;
}

Result<TextSide> load_text_side(const model::ModelFiles& files, const Options& options) {
  TextSide out;
  QUIRE_ASSIGN(out.tokenizer, load_tokenizer(files, options));
  QUIRE_ASSIGN(out.chat_template, load_chat_template(files, options));
  return out;
}

}  // namespace quire::llm
