// SPDX-License-Identifier: Apache-2.0
// The pre-tokenizers of tokenizer.json.
#include "text/pre_tokenizer.h"

#include <utility>

#include "text/byte_level.h"
#include "text/scanner.h"
#include "text/section.h"
#include "text/unicode.h"

namespace quire::text {

const char* const kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

// Splits each piece with split(text, spans), which sets the spans that remain.
template <typename Split>
void split_pieces(PreTokenized& input, Split split) {
  std::vector<Piece> out;
  out.reserve(input.pieces.size());
  std::vector<Regex::Span> spans;
  for (const Piece& piece : input.pieces) {
    spans.clear();
    split(input.view(piece), spans);
    for (const auto& [begin, end] : spans) {
      out.push_back({piece.begin + begin, piece.begin + end, piece.at_start && begin == 0});
    }
  }
  input.pieces = std::move(out);
}

// Rewrites each piece with rewrite(out, text, piece).
template <typename Rewrite>
void rewrite_pieces(PreTokenized& input, Rewrite rewrite) {
  std::string out;
  out.reserve(input.text.size() + input.text.size() / 2);
  for (Piece& piece : input.pieces) {
    const size_t begin = out.size();
    rewrite(out, input.view(piece), piece);
    piece.begin = begin;
    piece.end = out.size();
  }
  input.text = std::move(out);
}

// Each character that satisfies a predicate is a match.
template <typename Predicate>
void find_chars(std::string_view text, std::vector<Regex::Span>& matches, Predicate wanted) {
  const char* p = text.data();
  const char* end = p + text.size();
  while (p < end) {
    const char* begin = p;
    if (wanted(next_code_point(p))) {
      matches.emplace_back(static_cast<size_t>(begin - text.data()), static_cast<size_t>(p - text.data()));
    }
  }
}

class Split final : public PreTokenizer {
 public:
  Split(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void apply(PreTokenized& input) const override {
    std::vector<Regex::Span> matches;
    split_pieces(input, [&](std::string_view text, std::vector<Regex::Span>& spans) {
      matches.clear();
      pattern_.find_all(text, matches);
      split_around(text.size(), matches, behavior_, invert_, spans);
    });
  }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

// A Split with one of the common patterns, which has its own scanner.
class ScannedSplit final : public PreTokenizer {
 public:
  explicit ScannedSplit(Scanner scanner) : scanner_(scanner) {}
  void apply(PreTokenized& input) const override {
    std::vector<Piece> out;
    out.reserve(input.text.size() / 4 + 4);
    for (const Piece& piece : input.pieces) {
      const size_t first = out.size();
      scanner_(input.view(piece), piece.begin, out);
      if (out.size() > first) out[first].at_start = piece.at_start;
    }
    input.pieces = std::move(out);
  }

 private:
  Scanner scanner_;
};

// Splits around the characters with a property.
class PropertySplit final : public PreTokenizer {
 public:
  PropertySplit(uint32_t property, SplitBehavior behavior) : property_(property), behavior_(behavior) {}
  void apply(PreTokenized& input) const override {
    const CodePointTable& table = property_table();
    std::vector<Regex::Span> matches;
    split_pieces(input, [&](std::string_view text, std::vector<Regex::Span>& spans) {
      matches.clear();
      find_chars(text, matches, [&](char32_t cp) { return (table[cp] & property_) != 0; });
      if (matches.empty()) {
        spans.emplace_back(0, text.size());
      } else {
        split_around(text.size(), matches, behavior_, false, spans);
      }
    });
  }

 private:
  uint32_t property_;
  SplitBehavior behavior_;
};

// Runs of word characters, and runs of other characters except spaces, which are dropped.
class Whitespace final : public PreTokenizer {
 public:
  void apply(PreTokenized& input) const override {
    const CodePointTable& table = property_table();
    split_pieces(input, [&](std::string_view text, std::vector<Regex::Span>& spans) {
      int previous = 0;  // 0 space, 1 word, 2 other
      const char* p = text.data();
      const char* end = p + text.size();
      while (p < end) {
        const auto begin = static_cast<size_t>(p - text.data());
        const uint32_t properties = table[next_code_point(p)];
        const int kind = (properties & kRustWord) != 0 ? 1 : (properties & kRustWhitespace) != 0 ? 0 : 2;
        const auto after = static_cast<size_t>(p - text.data());
        if (kind != 0 && kind == previous) {
          spans.back().second = after;
        } else if (kind != 0) {
          spans.emplace_back(begin, after);
        }
        previous = kind;
      }
    });
  }
};

class CharDelimiterSplit final : public PreTokenizer {
 public:
  explicit CharDelimiterSplit(char32_t delimiter) : delimiter_(delimiter) {}
  void apply(PreTokenized& input) const override {
    std::vector<Regex::Span> matches;
    split_pieces(input, [&](std::string_view text, std::vector<Regex::Span>& spans) {
      matches.clear();
      find_chars(text, matches, [&](char32_t cp) { return cp == delimiter_; });
      split_around(text.size(), matches, SplitBehavior::kRemoved, false, spans);
    });
  }

 private:
  char32_t delimiter_;
};

class FixedLength final : public PreTokenizer {
 public:
  explicit FixedLength(size_t length) : length_(length) {}
  void apply(PreTokenized& input) const override {
    split_pieces(input, [&](std::string_view text, std::vector<Regex::Span>& spans) {
      size_t at = 0;
      while (at < text.size()) {
        size_t end = at;
        for (size_t i = 0; i < length_ && end < text.size(); ++i) end += char_size(text[end]);
        spans.emplace_back(at, end);
        at = end;
      }
    });
  }

 private:
  size_t length_;
};

// Splits where the script changes. Characters without a script never split, and those before the first script are
// dropped, as in Hugging Face's tokenizers.
class UnicodeScripts final : public PreTokenizer {
 public:
  void apply(PreTokenized& input) const override {
    const CodePointTable& table = script_class_table();
    split_pieces(input, [&](std::string_view text, std::vector<Regex::Span>& spans) {
      uint32_t last = 0;
      const char* p = text.data();
      const char* end = p + text.size();
      while (p < end) {
        const auto begin = static_cast<size_t>(p - text.data());
        const uint32_t script = table[next_code_point(p)];
        if (script != 0 && script != last) {
          if (!spans.empty()) spans.back().second = begin;
          spans.emplace_back(begin, text.size());
          last = script;
        }
      }
    });
  }
};

class Metaspace final : public PreTokenizer {
 public:
  Metaspace(std::string replacement, PrependScheme scheme, bool split)
      : mark_(std::move(replacement)), scheme_(scheme), split_(split) {}
  void apply(PreTokenized& input) const override {
    rewrite_pieces(input, [&](std::string& out, std::string_view text, const Piece& piece) {
      const bool marked = text.substr(0, 1) == " " || text.substr(0, mark_.size()) == mark_;
      const bool wanted = scheme_ == PrependScheme::kAlways || (scheme_ == PrependScheme::kFirst && piece.at_start);
      if (wanted && !marked) out += mark_;
      for (const char c : text) {
        if (c == ' ') {
          out += mark_;
        } else {
          out += c;
        }
      }
    });
    if (!split_) return;
    std::vector<Regex::Span> matches;
    const Pattern mark(mark_);
    split_pieces(input, [&](std::string_view text, std::vector<Regex::Span>& spans) {
      matches.clear();
      mark.find_all(text, matches);
      split_around(text.size(), matches, SplitBehavior::kMergedWithNext, false, spans);
    });
  }

 private:
  std::string mark_;
  PrependScheme scheme_;
  bool split_;
};

// The two parts of ByteLevel besides its split: a leading space, and the alphabet.
class PrefixSpace final : public PreTokenizer {
 public:
  void apply(PreTokenized& input) const override {
    rewrite_pieces(input, [](std::string& out, std::string_view text, const Piece&) {
      if (text[0] != ' ') out += ' ';
      out += text;
    });
  }
};

class SpellBytes final : public PreTokenizer {
 public:
  void apply(PreTokenized& input) const override {
    rewrite_pieces(input, [](std::string& out, std::string_view text, const Piece&) { append_byte_level(out, text); });
  }
};

class Reader {
 public:
  Status read(const json::Value& section, int depth);
  std::vector<PreTokenizerPtr> steps;
  bool last_is_byte_level = false;

 private:
  void add(PreTokenizerPtr step) {
    steps.push_back(std::move(step));
    last_is_byte_level = false;
  }
  Status read_byte_level(const json::Value& section);
  Status read_split(const json::Value& section);
  Status read_metaspace(const json::Value& section);
};

Status Reader::read_byte_level(const json::Value& section) {
  QUIRE_ASSIGN(const bool prefix, json::get_bool_or(section, "add_prefix_space", true));
  QUIRE_ASSIGN(const bool regex, json::get_bool_or(section, "use_regex", true));
  if (prefix) add(std::make_unique<PrefixSpace>());
  if (regex) {
    QUIRE_ASSIGN(PreTokenizerPtr split, make_split(kGpt2Pattern, SplitBehavior::kIsolated));
    add(std::move(split));
  }
  add(std::make_unique<SpellBytes>());
  last_is_byte_level = true;
  return {};
}

Status Reader::read_split(const json::Value& section) {
  QUIRE_ASSIGN(const std::string name, json::get_string_or(section, "behavior", "Isolated"));
  QUIRE_ASSIGN(const SplitBehavior behavior, split_behavior(name));
  QUIRE_ASSIGN(const bool invert, json::get_bool_or(section, "invert", false));
  const json::Value* pattern = section.find("pattern");
  const json::Value* regex = pattern == nullptr ? nullptr : pattern->find("Regex");
  if (regex != nullptr && regex->is_string()) {
    auto split = make_split(regex->as_string(), behavior, invert);
    if (!split.ok()) return unsupported({"pre_tokenizer.pattern: ", split.error().message});
    add(std::move(split).value());
    return {};
  }
  QUIRE_ASSIGN(Pattern literal, Pattern::from_json(pattern, "pre_tokenizer.pattern"));
  add(std::make_unique<Split>(std::move(literal), behavior, invert));
  return {};
}

Status Reader::read_metaspace(const json::Value& section) {
  QUIRE_ASSIGN(std::string mark, json::get_string_or(section, "replacement", "\xe2\x96\x81"));
  if (mark.empty()) return corrupt("pre_tokenizer.replacement must be one character");
  QUIRE_ASSIGN(const std::string name, json::get_string_or(section, "prepend_scheme", "always"));
  QUIRE_ASSIGN(const bool split, json::get_bool_or(section, "split", true));
  QUIRE_ASSIGN(const bool prefix, json::get_bool_or(section, "add_prefix_space", true));
  PrependScheme scheme = PrependScheme::kAlways;
  if (name == "first") {
    scheme = PrependScheme::kFirst;
  } else if (name == "never" || !prefix) {
    scheme = PrependScheme::kNever;
  } else if (name != "always") {
    return unsupported({"pre_tokenizer.prepend_scheme \"", name, "\" is unknown"});
  }
  add(make_metaspace(std::move(mark), scheme, split));
  return {};
}

Status Reader::read(const json::Value& section, int depth) {
  if (!section.is_object()) return corrupt("pre_tokenizer must be an object or null");
  if (depth > kMaxNesting) return corrupt("pre_tokenizer has sequences nested too deeply");
  QUIRE_ASSIGN(const std::string type, json::get_string(section, "type"));
  if (type == "Sequence") {
    const json::Value* list = section.find("pretokenizers");
    if (list == nullptr || !list->is_array()) return corrupt("pre_tokenizer.pretokenizers must be a list");
    for (const json::Value& item : list->as_array()) QUIRE_TRY(read(item, depth + 1));
    return {};
  }
  if (type == "ByteLevel") return read_byte_level(section);
  if (type == "Split") return read_split(section);
  if (type == "Metaspace") return read_metaspace(section);
  if (type == "BertPreTokenizer") return add(make_bert_pre_tokenizer()), Status();
  if (type == "Whitespace") return add(std::make_unique<Whitespace>()), Status();
  if (type == "WhitespaceSplit") return add(make_whitespace_split()), Status();
  if (type == "UnicodeScripts") return add(std::make_unique<UnicodeScripts>()), Status();
  if (type == "Digits") {
    QUIRE_ASSIGN(const bool individual, json::get_bool_or(section, "individual_digits", false));
    return add(make_digits(individual)), Status();
  }
  if (type == "Punctuation") {
    QUIRE_ASSIGN(const std::string name, json::get_string_or(section, "behavior", "Isolated"));
    QUIRE_ASSIGN(const SplitBehavior behavior, split_behavior(name));
    return add(make_punctuation(behavior)), Status();
  }
  if (type == "CharDelimiterSplit" || type == "Delimiter") {
    QUIRE_ASSIGN(const std::string delimiter, json::get_string(section, "delimiter"));
    if (delimiter.empty()) return corrupt("pre_tokenizer.delimiter must be one character");
    const char* p = delimiter.data();
    return add(std::make_unique<CharDelimiterSplit>(next_code_point(p))), Status();
  }
  if (type == "FixedLength") {
    QUIRE_ASSIGN(const int64_t length, json::get_int_or(section, "length", 5, 1, 1 << 30));
    return add(std::make_unique<FixedLength>(static_cast<size_t>(length))), Status();
  }
  return unsupported({"pre_tokenizer has the type \"", type, "\", which quire does not support"});
}

}  // namespace

Result<PreTokenizerPtr> make_split(std::string_view regex, SplitBehavior behavior, bool invert) {
  if (behavior == SplitBehavior::kIsolated) {  // `invert` has no effect here
    if (const Scanner scanner = scanner_for(regex)) return PreTokenizerPtr(std::make_unique<ScannedSplit>(scanner));
  }
  QUIRE_ASSIGN(Regex compiled, Regex::compile(regex));
  return PreTokenizerPtr(std::make_unique<Split>(Pattern(std::move(compiled)), behavior, invert));
}

PreTokenizerPtr make_digits(bool individual) {
  return std::make_unique<PropertySplit>(kRustNumeric,
                                         individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
}

PreTokenizerPtr make_punctuation(SplitBehavior behavior) {
  return std::make_unique<PropertySplit>(kPunctuation, behavior);
}

namespace {

class Chain final : public PreTokenizer {
 public:
  explicit Chain(std::vector<PreTokenizerPtr> steps) : steps_(std::move(steps)) {}
  void apply(PreTokenized& input) const override {
    for (const PreTokenizerPtr& step : steps_) step->apply(input);
  }

 private:
  std::vector<PreTokenizerPtr> steps_;
};

}  // namespace

PreTokenizerPtr make_bert_pre_tokenizer() {
  std::vector<PreTokenizerPtr> steps;
  steps.push_back(make_whitespace_split());
  steps.push_back(make_punctuation(SplitBehavior::kIsolated));
  return std::make_unique<Chain>(std::move(steps));
}

PreTokenizerPtr make_whitespace_split() {
  return std::make_unique<PropertySplit>(kRustWhitespace, SplitBehavior::kRemoved);
}

PreTokenizerPtr make_metaspace(std::string replacement, PrependScheme scheme, bool split) {
  return std::make_unique<Metaspace>(std::move(replacement), scheme, split);
}

Result<PreTokenizerSteps> make_pre_tokenizer(const json::Value* section, bool raw_bytes) {
  PreTokenizerSteps out;
  if (section == nullptr || section->is_null()) return out;
  Reader reader;
  QUIRE_TRY(reader.read(*section, 0));
  if (raw_bytes && reader.last_is_byte_level) {
    reader.steps.pop_back();
    out.byte_level = true;
  }
  out.steps = std::move(reader.steps);
  return out;
}

}  // namespace quire::text
