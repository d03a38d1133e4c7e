// SPDX-License-Identifier: Apache-2.0
// quire embed: embeddings of texts, or how close texts are to another one.
#include <cstdio>
#include <optional>

#include "base/utf8.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/hub/model_cache.h"
#include "model/pooling/pooler.h"

namespace quire::cli {
namespace {

struct EmbedFlags {
  llm::Options options;
  std::string model;
  std::string to;
  std::string prompt_name;
  std::optional<int64_t> dimensions;
  bool truncate = false;
  bool lines = false;
  bool json = false;
  const CLI::Option* to_option = nullptr;
};

// Whether a word cannot be meant as a text, so that a mistyped MODEL is not embedded.
bool is_written_as_path(const std::string& word) {
  if (word.find_first_of(" \n") != std::string::npos) return false;
  return word.starts_with("./") || word.starts_with("../") || word.starts_with('/') || word.ends_with(".gguf");
}

// The texts of the command line; the first word is the MODEL if --model is missing and the word names one.
Result<std::vector<std::string>> settle_texts(EmbedFlags& flags, std::vector<std::string> words) {
  flags.options.model = flags.model;
  for (const std::string& word : words) {
    if (word.size() > 1 && word[0] == '-' && word[1] == '-') {
      return invalid_argument({"there is no flag ", utf8::beginning(word, 60), "; quire embed --help lists them"});
    }
  }
  if (flags.model.empty() && !words.empty()) {
    const auto found = resolve_model(words[0]);
    if (!found.ok() && is_written_as_path(words[0])) return found.failure();
    if (found.ok()) {
      flags.options.model = words[0];
      words.erase(words.begin());
    }
  }
  if (flags.lines || (words.empty() && stdin_is_piped())) {
    QUIRE_ASSIGN(const std::string input, read_stdin());
    for (size_t at = 0; at < input.size();) {
      const size_t end = flags.lines ? std::min(input.find('\n', at), input.size()) : input.size();
      words.push_back(input.substr(at, end - at));
      at = end + 1;
    }
    if (!flags.lines && !words.empty() && words.back().ends_with('\n')) words.back().pop_back();
  }
  if (words.empty()) return invalid_argument("there is no text; give it as an argument or on standard input");
  return words;
}

Result<std::string> prompt_text(const EmbedFlags& flags, const llm::Llm& llm) {
  const model::PoolerConfig& config = llm.pooler().config();
  const std::string& name = flags.prompt_name.empty() ? config.default_prompt : flags.prompt_name;
  if (name.empty()) return std::string();
  std::string known;
  for (const auto& [one, text] : config.prompts) {
    if (one == name) return text;
    known += (known.empty() ? "" : ", ") + one;
  }
  return invalid_argument(
      {"--prompt-name is '", name, "'; the model's files have ", (known.empty() ? "no prompts" : known)});
}

// The tokens of a text; with --truncate, as many as the model takes with its special tokens.
Result<std::vector<int32_t>> text_tokens(const EmbedFlags& flags, const llm::Llm& llm, const std::string& text) {
  QUIRE_ASSIGN(std::vector<int32_t> tokens, llm.tokens_of(llm::TextPrompt{text}));
  const auto most = static_cast<size_t>(llm.max_model_len());
  if (tokens.size() <= most) return tokens;
  if (!flags.truncate) {
    return invalid_argument({"a text has ", tokens.size(), " tokens, but the model takes at most ", most,
                             "; shorten it or use --truncate"});
  }
  return llm.text_tokens(text, true, {static_cast<int64_t>(most)});
}

void print_vector(const std::vector<float>& vector) {
  std::printf("[");
  for (size_t i = 0; i < vector.size(); ++i) {
    std::printf("%s%.9g", i == 0 ? "" : ", ", static_cast<double>(vector[i]));
  }
  std::printf("]");
}

void print_quoted(const std::string& text) {
  std::string quoted;
  json::append_quoted(quoted, text);
  std::printf("%s", quoted.c_str());
}

Status embed(EmbedFlags& flags, std::vector<std::string> words) {
  QUIRE_ASSIGN(std::vector<std::string> texts, settle_texts(flags, std::move(words)));
  const bool compares = flags.to_option->count() > 0;
  if (compares) texts.push_back(flags.to);
  if (flags.options.runner == "auto") flags.options.runner = "pooling";
  QUIRE_ASSIGN(const std::unique_ptr<llm::Llm> llm, load_llm(flags.options));
  QUIRE_TRY(llm->check_task(llm::PoolTask::kEmbed));
  if (flags.dimensions) QUIRE_TRY(llm->pooler().check_dimensions(*flags.dimensions));
  QUIRE_ASSIGN(const std::string prompt, prompt_text(flags, *llm));
  std::vector<llm::PoolPrompt> prompts;
  for (const std::string& text : texts) {
    QUIRE_ASSIGN(std::vector<int32_t> tokens, text_tokens(flags, *llm, prompt + text));
    prompts.push_back({std::move(tokens)});
  }
  auto results = llm->pool(std::move(prompts), llm::PoolTask::kEmbed, {flags.dimensions, std::nullopt});
  for (const auto& result : results) {
    if (!result.ok()) return result.failure();
  }
  const size_t shown = texts.size() - (compares ? 1 : 0);
  for (size_t i = 0; i < shown; ++i) {
    const std::vector<float>& vector = results[i].value().at(0);
    const double close = compares ? static_cast<double>(model::cosine(vector, results.back().value().at(0))) : 0.0;
    if (flags.json) {
      std::printf("{\"text\": ");
      print_quoted(texts[i]);
      if (compares) std::printf(", \"cosine\": %.9g", close);
      std::printf(", \"embedding\": ");
      print_vector(vector);
      std::printf("}\n");
    } else if (compares) {
      std::printf("%.6f  %s\n", close, texts[i].c_str());
    } else {
      print_vector(vector);
      std::printf("\n");
    }
  }
  return {};
}

}  // namespace

void add_embed(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<EmbedFlags>();
  CLI::App* command = app.add_subcommand("embed", "Print embeddings of texts, or how close they are to another text");
  command->footer(
      "The first argument is the MODEL if it names one and --model is not given; all others are texts.\n"
      "Each text gives one line: its embedding as a list of numbers or, with --to, its cosine to the other text.\n"
      "Examples:\n"
      "  quire embed ./all-MiniLM-L6-v2 \"A man is eating food.\"\n"
      "  quire embed ./all-MiniLM-L6-v2 --to \"He eats.\" \"A man is eating food.\" \"The sky is blue.\"\n"
      "  quire embed --model ./all-MiniLM-L6-v2 --lines --json < texts.txt");
  command->allow_extras();
  command->fallthrough(false);  // else the texts would go to the program
  command->add_option("--model,-m", flags->model, "Alternative to MODEL")
      ->envname("QUIRE_MODEL")
      ->type_name(kModelValue);
  flags->to_option = command->add_option("--to", flags->to, "Print each text's cosine to this one");
  command->add_option("--prompt-name", flags->prompt_name,
                      "Put this prompt of the model's files (query, document, ...) before each text");
  command->add_option("--dimensions", flags->dimensions, "Cut embeddings to so many numbers (matryoshka)");
  add_switch(*command, "--truncate", flags->truncate, "Cut texts that are longer than the model takes");
  add_switch(*command, "--lines", flags->lines, "Each line of standard input is a text");
  add_switch(*command, "--json", flags->json, "Print an object with the text, too");
  add_model_flags(*command, flags->options);
  command->callback([flags, command, &exit_code] {
    const Status done = embed(*flags, command->remaining());
    exit_code = done.ok() ? 0 : report(done.error());
  });
}

}  // namespace quire::cli
