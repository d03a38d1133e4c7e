// SPDX-License-Identifier: Apache-2.0
// quire tokenize: converts text to token ids, or ids to text.
#include <cstdio>
#include <filesystem>
#include <optional>

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
  bool lines = false;
  bool jsonl = false;

  // Each line of standard input is a text.
  bool bulk() const { return lines || jsonl; }
};

// A folder with a tokenizer, with or without a model.
bool is_tokenizer_folder(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored) && (std::filesystem::exists(path / "tokenizer.json", ignored) ||
                                                          std::filesystem::exists(path / "tokenizer.model", ignored));
}

bool looks_like_path(const std::string& word) {
  std::error_code ignored;
  return word.starts_with("/") || word.starts_with("./") || word.starts_with("../") || word.ends_with(".gguf") ||
         std::filesystem::is_directory(word, ignored);
}

// The text argument, if there is one; also decides which argument is the MODEL.
Result<std::optional<std::string>> settle_words(TokenizeFlags& flags) {
  flags.options.model = flags.model;
  const std::vector<std::string> words = flags.words.given();
  if (words.size() == 2) {
    flags.options.model = words[0];
    return std::optional(words[1]);
  }
  if (words.empty()) return std::optional<std::string>();
  const std::string& word = words[0];
  if (flags.model.empty() && (stdin_is_piped() || flags.bulk())) {
    const auto model = resolve_model(word);
    if (is_tokenizer_folder(word) || model.ok()) {
      flags.options.model = word;
      return std::optional<std::string>();
    }
    // If standard input has the text, a path is meant as the model and not as the text.
    if (looks_like_path(word)) return model.failure();
  }
  return std::optional(word);
}

Result<std::string> settle_text(const std::optional<std::string>& text) {
  if (!text && !stdin_is_piped())
    return invalid_argument("there is no text; give it as an argument or on standard input");
  if (!text || *text == "-") return read_stdin();
  return *text;
}

// Parses whole numbers with spaces, commas and brackets between them: "1 2 3", "[1, 2, 3]".
Result<std::vector<int32_t>> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < text.size();) {
    if (std::string_view(" \t\r\n\v\f,[]").find(text[i]) != std::string_view::npos) {
      ++i;
      continue;
    }
    const size_t end = std::min(text.find_first_not_of("0123456789", i), text.size());
    if (end == i ||
        (end < text.size() && std::string_view(" \t\r\n\v\f,[]").find(text[end]) == std::string_view::npos)) {
      return invalid_argument(
          {"token ids are whole numbers with spaces or commas between them; byte ", i + 1, " begins something else"});
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

json::Array ids_json(const std::vector<int32_t>& ids) {
  json::Array list;
  for (const int32_t id : ids) list.emplace_back(int64_t{id});
  return list;
}

void print_ids(const TokenizeFlags& flags, const text::Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  if (flags.json) {
    json::Array pieces;
    for (const int32_t id : ids) {
      pieces.emplace_back(std::string(tokenizer.piece(id).value_or("")));
    }
    json::Value out{json::Object{}};
    out.set("count", static_cast<int64_t>(ids.size()));
    out.set("tokens", ids_json(ids));
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

Result<text::TokenizerPtr> load_tokenizer(TokenizeFlags& flags) {
  // A folder with a tokenizer and without a model is enough; weights are never loaded.
  if (!is_tokenizer_folder(flags.options.model)) QUIRE_TRY(resolve_model_argument(flags.options));
  const std::filesystem::path& model = flags.options.model;
  if (flags.options.tokenizer.empty() && is_tokenizer_folder(model)) return text::load_tokenizer(model);
  if (is_tokenizer_folder(flags.options.tokenizer)) return text::load_tokenizer(flags.options.tokenizer);
  QUIRE_ASSIGN(const model::ModelFiles files, llm::open_text_files(flags.options));
  QUIRE_ASSIGN(const llm::TextSide side, llm::load_text_side(files, flags.options));
  if (side.tokenizer == nullptr) return unsupported({"'", model.string(), "' has no tokenizer"});
  return side.tokenizer;
}

Result<std::string> decoded(const TokenizeFlags& flags, const text::Tokenizer& tokenizer,
                            const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) {
    if (tokenizer.piece(id)) continue;
    return invalid_argument({"token id ", id, " is not in the vocabulary of '", flags.options.model.string(), "'"});
  }
  return tokenizer.decode(ids, !flags.special);
}

// Converts each line of standard input to a line of output.
class Bulk {
 public:
  Bulk(const TokenizeFlags& flags, const text::Tokenizer& tokenizer) : flags_(flags), tokenizer_(tokenizer) {}

  // Reads to the end of the input; the Error names the line.
  Status run() {
    std::string line;
    for (int64_t number = 1; read_line(line); ++number) {
      if (too_long_) return at_line(number, "is longer than 256 MiB");
      auto out = flags_.jsonl ? json_line(line) : text_line(line);
      if (!out.ok()) return at_line(number, out.error().message);
      *out += '\n';
      if (std::fwrite(out->data(), 1, out->size(), stdout) != out->size()) {
        return Error{ErrorCode::kInternal, "cannot write to standard output"};
      }
    }
    return {};
  }

 private:
  static constexpr size_t kMaxLine = size_t{256} << 20;

  static Failure at_line(int64_t number, const std::string& what) {
    return invalid_argument({"line ", number, " of standard input: ", what});
  }

  // Reads a line without its line break; false at the end of the input.
  bool read_line(std::string& line) {
    line.clear();
    for (;;) {
      if (at_ == size_) {
        size_ = std::fread(buffer_.data(), 1, buffer_.size(), stdin);
        at_ = 0;
        if (size_ == 0) return !line.empty();
      }
      const std::string_view rest(buffer_.data() + at_, size_ - at_);
      const size_t end = rest.find('\n');
      line += rest.substr(0, end);
      at_ += end == std::string_view::npos ? rest.size() : end + 1;
      too_long_ = line.size() > kMaxLine;
      if (end != std::string_view::npos || too_long_) return true;
    }
  }

  std::vector<int32_t> encode(const std::string& text) const {
    return tokenizer_.encode(text, {flags_.special, flags_.parse_special});
  }

  std::string answer(const std::vector<int32_t>& ids) const {
    json::Value out{json::Object{}};
    out.set("count", static_cast<int64_t>(ids.size()));
    out.set("tokens", ids_json(ids));
    return json::dump(out);
  }

  Result<std::string> text_line(const std::string& line) const {
    if (flags_.decode) {
      QUIRE_ASSIGN(const std::vector<int32_t> ids, parse_ids(line));
      return decoded(flags_, tokenizer_, ids);
    }
    const std::vector<int32_t> ids = encode(line);
    if (flags_.json) return answer(ids);
    std::string out;
    for (const int32_t id : ids) out += (out.empty() ? "" : " ") + std::to_string(id);
    return out;
  }

  Result<std::string> json_line(const std::string& line) const {
    auto parsed = json::parse(line);
    const char* field = flags_.decode ? "tokens" : "text";
    if (!parsed.ok()) return invalid_argument(parsed.error().message);
    const json::Value* value = parsed->is_object() ? parsed->find(field) : &*parsed;
    if (flags_.decode) {
      if (value == nullptr || !value->is_array()) {
        return invalid_argument("expected a list of token ids, or an object with such a list as \"tokens\"");
      }
      std::vector<int32_t> ids;
      for (const json::Value& id : value->as_array()) {
        if (!id.is_int() || id.as_int() < 0 || id.as_int() > INT32_MAX) {
          return invalid_argument("a token id is not a whole number from 0 to 2147483647");
        }
        ids.push_back(static_cast<int32_t>(id.as_int()));
      }
      QUIRE_ASSIGN(std::string text, decoded(flags_, tokenizer_, ids));
      json::Value out{json::Object{}};
      out.set("text", std::move(text));
      return json::dump(out);
    }
    if (value == nullptr || !value->is_string()) {
      return invalid_argument("expected a JSON string, or an object with a string \"text\"");
    }
    return answer(encode(value->as_string()));
  }

  const TokenizeFlags& flags_;
  const text::Tokenizer& tokenizer_;
  std::vector<char> buffer_ = std::vector<char>(1 << 16);
  size_t at_ = 0, size_ = 0;
  bool too_long_ = false;
};

int tokenize(TokenizeFlags& flags) {
  auto given = settle_words(flags);
  if (!given.ok()) return report(given.error());
  if (flags.bulk() && *given && **given != "-") {
    return report(invalid_argument(
        {std::string(flags.jsonl ? "--jsonl" : "--lines"), " reads texts from standard input; omit TEXT"}));
  }
  Result<std::string> text = std::string();
  if (!flags.bulk()) text = settle_text(*given);
  if (!text.ok()) return report(text.error());
  auto loaded = load_tokenizer(flags);
  if (!loaded.ok()) return report(loaded.error());
  const text::Tokenizer& tokenizer = **loaded;
  if (flags.bulk()) {
    const Status done = Bulk(flags, tokenizer).run();
    std::fflush(stdout);
    return done.ok() ? 0 : report(done.error());
  }
  if (flags.decode) {
    auto ids = parse_ids(*text);
    if (!ids.ok()) return report(ids.error());
    auto words = decoded(flags, tokenizer, *ids);
    if (!words.ok()) return report(words.error());
    std::printf("%s\n", words->c_str());
    return 0;
  }
  print_ids(flags, tokenizer, tokenizer.encode(*text, {flags.special, flags.parse_special}));
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* command = app.add_subcommand("tokenize", "Show the tokens of a text, or the text of tokens");
  command->footer(
      "MODEL may be a folder with only a tokenizer; weights are never loaded.\n"
      "A single argument is the TEXT, unless it names a model and standard input is piped.\n"
      "Examples:\n"
      "  quire tokenize ./tokenizer-folder \"Hello world\"\n"
      "  quire tokenize --lines ./model.gguf < lines.txt\n"
      "  quire tokenize --jsonl ./model.gguf < texts.jsonl");
  add_words(*command, flags->words, "TEXT", "The text; - reads standard input");
  command->add_option("--model", flags->model, "Alternative to MODEL")->envname("QUIRE_MODEL")->type_name(kModelValue);
  add_switch(*command, "--decode", flags->decode, "TEXT is a list of token ids: print their text");
  add_switch(*command, "--ids", flags->ids, "Print only the ids, on one line");
  add_switch(*command, "--json", flags->json, "Print a JSON object");
  add_switch(*command, "--lines", flags->lines,
             "Each line of standard input is a text: print its ids, or with --json an object, on one line");
  add_switch(*command, "--jsonl", flags->jsonl,
             "Each line of standard input is a JSON string or {\"text\": ...}: print {\"count\", \"tokens\"} for each");
  add_switch(*command, "--add-special-tokens", flags->special,
             "Add the special tokens that the model adds around a text");
  add_switch(*command, "--parse-special", flags->parse_special, "Recognise special tokens in the text");
  command->add_option("--tokenizer", flags->options.tokenizer, "Folder with a tokenizer to use instead of the model's")
      ->envname("QUIRE_TOKENIZER")
      ->type_name(kFolder);
  command->callback([flags, &exit_code] { exit_code = tokenize(*flags); });
}

}  // namespace quire::cli
