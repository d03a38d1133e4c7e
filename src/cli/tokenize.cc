// SPDX-License-Identifier: Apache-2.0
// quire tokenize: text to token ids, or ids to text.
#include <cstdio>

#include "cli/command.h"
#include "cli/flags.h"
#include "cli/hub/model_cache.h"
#include "llm/load.h"
#include "llm/text_side.h"

namespace quire::cli {
namespace {

struct TokenizeFlags {
  llm::Options options;
  Words words;  // [MODEL] TEXT
  std::string model;
  bool decode = false;
  bool ids = false;
  bool json = false;
  bool special = true;
  bool parse_special = true;
};

Result<std::string> settle_text(TokenizeFlags& flags) {
  flags.options.model = flags.model;
  std::optional<std::string> text;
  const std::vector<std::string> words = flags.words.given();
  if (words.size() == 2) {
    flags.options.model = words[0];
    text = words[1];
  } else if (words.size() == 1) {
    if (flags.model.empty() && stdin_is_piped() && resolve_model(words[0]).ok()) {
      flags.options.model = words[0];
    } else {
      text = words[0];
    }
  }
  if (!text && !stdin_is_piped())
    return invalid_argument("there is no text; give it as an argument or on standard input");
  if (!text || *text == "-") return read_stdin();
  return *text;
}

// Integers separated by anything else: "1 2 3", "[1, 2, 3]".
Result<std::vector<int32_t>> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < text.size();) {
    if (text[i] < '0' || text[i] > '9') {
      ++i;
      continue;
    }
    int64_t id = 0;
    for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
      id = id * 10 + (text[i] - '0');
      if (id > INT32_MAX) return invalid_argument("a token id is larger than 2147483647");
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

void print_ids(const TokenizeFlags& flags, const text::Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  if (flags.json) {
    json::Array list, pieces;
    for (const int32_t id : ids) {
      list.emplace_back(int64_t{id});
      pieces.emplace_back(std::string(tokenizer.piece(id).value_or("")));
    }
    json::Value out{json::Object{}};
    out.set("count", static_cast<int64_t>(ids.size()));
    out.set("tokens", std::move(list));
    out.set("token_strs", std::move(pieces));
    std::printf("%s\n", json::dump(out).c_str());
  } else if (flags.ids) {
    for (size_t i = 0; i < ids.size(); ++i) std::printf("%s%d", i > 0 ? " " : "", ids[i]);
    std::printf("\n");
  } else {
    for (const int32_t id : ids) {
      std::string quoted;
      json::append_quoted(quoted, tokenizer.piece(id).value_or(""));
      std::printf("%8d  %s\n", id, quoted.c_str());
    }
    std::printf("%zu tokens\n", ids.size());
  }
}

int tokenize(TokenizeFlags& flags) {
  auto text = settle_text(flags);
  if (!text.ok()) return report(text.error());
  if (auto status = resolve_model_argument(flags.options); !status.ok()) return report(status.error());
  // A folder with a tokenizer and no weights is enough.
  text::TokenizerPtr tokenizer;
  std::error_code ignored;
  const std::filesystem::path& model = flags.options.model;
  if (std::filesystem::is_directory(model, ignored) && (std::filesystem::exists(model / "tokenizer.json", ignored) ||
                                                        std::filesystem::exists(model / "tokenizer.model", ignored))) {
    auto loaded = text::load_tokenizer(model);
    if (!loaded.ok()) return report(loaded.error());
    tokenizer = *loaded;
  } else {
    auto files = llm::open_text_files(flags.options);
    if (!files.ok()) return report(files.error());
    auto side = llm::load_text_side(*files, flags.options);
    if (!side.ok()) return report(side.error());
    tokenizer = side->tokenizer;
  }
  if (tokenizer == nullptr) return report(unsupported("'" + model.string() + "' has no tokenizer"));
  if (flags.decode) {
    auto ids = parse_ids(*text);
    if (!ids.ok()) return report(ids.error());
    for (const int32_t id : *ids) {
      if (tokenizer->piece(id)) continue;
      return report(
          invalid_argument("token id " + std::to_string(id) + " is not in the vocabulary of '" + model.string() + "'"));
    }
    std::printf("%s\n", tokenizer->decode(*ids, !flags.special).c_str());
    return 0;
  }
  print_ids(flags, *tokenizer, tokenizer->encode(*text, {flags.special, flags.parse_special}));
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* command = app.add_subcommand("tokenize", "Show the tokens of a text, or the text of tokens");
  command->footer("With one argument it is the TEXT, unless it names a model and standard input is piped.");
  add_words(*command, flags->words, "TEXT", "What to take apart; - reads standard input");
  command->add_option("--model", flags->model, "MODEL, where TEXT stands alone")->envname("QUIRE_MODEL");
  add_switch(*command, "--decode", flags->decode, "TEXT is token ids: print their text");
  add_switch(*command, "--ids", flags->ids, "Print the ids alone, on one line");
  add_switch(*command, "--json", flags->json, "Print a JSON object");
  add_switch(*command, "--add-special-tokens", flags->special, "Add what the model adds around a text");
  add_switch(*command, "--parse-special", flags->parse_special, "Read special tokens that are spelled out in the text");
  command->add_option("--tokenizer", flags->options.tokenizer, "Folder of another tokenizer than the model's own")
      ->envname("QUIRE_TOKENIZER");
  command->callback([flags, &exit_code] { exit_code = tokenize(*flags); });
}

}  // namespace quire::cli
