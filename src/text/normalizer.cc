// SPDX-License-Identifier: Apache-2.0
// The normalizers and their reader.
#include "text/normalizer.h"

#include <utility>

#include "text/byte_level.h"
#include "text/section.h"
#include "text/unicode.h"

namespace quire::text {

namespace {

// Rebuilds a text character by character. `each` appends what a character becomes. If the first character disappears,
// the rest no longer begins at the first byte of the input.
template <typename Each>
void map_chars(NormalText& text, Each each) {
  std::string out;
  out.reserve(text.text.size());
  const char* p = text.text.data();
  const char* end = p + text.text.size();
  bool first = true;
  while (p < end) {
    const char* begin = p;
    const char32_t cp = next_code_point(p);
    each(out, cp, std::string_view(begin, static_cast<size_t>(p - begin)));
    if (first && out.empty()) text.at_start = false;
    first = false;
  }
  text.text = std::move(out);
}

class Sequence final : public Normalizer {
 public:
  explicit Sequence(std::vector<NormalizerPtr> steps) : steps_(std::move(steps)) {}
  void apply(NormalText& text) const override {
    for (const NormalizerPtr& step : steps_) step->apply(text);
  }

 private:
  std::vector<NormalizerPtr> steps_;
};

class Composer final : public Normalizer {
 public:
  explicit Composer(Form form) : form_(form) {}
  void apply(NormalText& text) const override {
    if (!is_ascii(text.text)) text.text = normalize(text.text, form_);
  }

 private:
  Form form_;
};

class Lowercase final : public Normalizer {
 public:
  void apply(NormalText& text) const override {
    map_chars(text, [](std::string& out, char32_t cp, std::string_view) { append_lower(out, cp); });
  }
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void apply(NormalText& text) const override {
    const std::string& s = text.text;
    size_t begin = 0;
    size_t end = s.size();
    while (left_ && begin < end) {
      const char* p = s.data() + begin;
      if (!has(next_code_point(p), kRustWhitespace)) break;
      begin = static_cast<size_t>(p - s.data());
    }
    while (right_ && end > begin) {
      size_t last = end - 1;
      while ((static_cast<unsigned char>(s[last]) & 0xc0) == 0x80) --last;
      const char* p = s.data() + last;
      if (!has(next_code_point(p), kRustWhitespace)) break;
      end = last;
    }
    if (begin > 0) text.at_start = false;
    text.text = s.substr(begin, end - begin);
  }

 private:
  bool left_, right_;
};

class StripAccents final : public Normalizer {
 public:
  void apply(NormalText& text) const override {
    if (is_ascii(text.text)) return;
    map_chars(text, [](std::string& out, char32_t cp, std::string_view bytes) {
      if (!has(cp, kCombiningMark)) out += bytes;
    });
  }
};

class Replace final : public Normalizer {
 public:
  Replace(Pattern pattern, std::string with) : pattern_(std::move(pattern)), with_(std::move(with)) {}
  void apply(NormalText& text) const override {
    if (with_.empty()) {
      std::vector<Regex::Span> spans;
      pattern_.find_all(text.text, spans);
      if (!spans.empty() && spans[0].first == 0 && spans[0].second > 0) text.at_start = false;
    }
    text.text = pattern_.replaced(text.text, with_);
  }

 private:
  Pattern pattern_;
  std::string with_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(NormalText& text) const override {
    if (!text.text.empty()) text.text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

class ByteLevelNormalizer final : public Normalizer {
 public:
  void apply(NormalText& text) const override {
    std::string out;
    append_byte_level(out, text.text);
    text.text = std::move(out);
  }
};

// Drops control characters and replaces unusual spaces, as SentencePiece's nmt rules do.
class Nmt final : public Normalizer {
 public:
  void apply(NormalText& text) const override {
    map_chars(text, [](std::string& out, char32_t cp, std::string_view bytes) {
      if (dropped(cp)) return;
      if (spaced(cp)) {
        out += ' ';
      } else {
        out += bytes;
      }
    });
  }

 private:
  static bool dropped(char32_t c) {
    return (c >= 0x01 && c <= 0x08) || c == 0x0b || (c >= 0x0e && c <= 0x1f) || c == 0x7f || c == 0x8f || c == 0x9f;
  }
  static bool spaced(char32_t c) {
    return c == 0x09 || c == 0x0a || c == 0x0c || c == 0x0d || c == 0x1680 || (c >= 0x200b && c <= 0x200f) ||
           c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xfeff || c == 0xfffd;
  }
};

class BertNormalizer final : public Normalizer {
 public:
  BertNormalizer(bool clean_text, bool chinese, bool strip_accents, bool lowercase)
      : clean_text_(clean_text), chinese_(chinese), strip_accents_(strip_accents), lowercase_(lowercase) {}
  void apply(NormalText& text) const override {
    if (clean_text_) {
      map_chars(text, [](std::string& out, char32_t cp, std::string_view bytes) {
        const uint32_t properties = property_table()[cp];
        if ((properties & kBertControl) != 0) return;
        if ((properties & kBertWhitespace) != 0) {
          out += ' ';
        } else {
          out += bytes;
        }
      });
    }
    if (chinese_ && !is_ascii(text.text)) {
      map_chars(text, [](std::string& out, char32_t cp, std::string_view bytes) {
        const bool alone = is_chinese(cp);
        if (alone) out += ' ';
        out += bytes;
        if (alone) out += ' ';
      });
    }
    if (strip_accents_ && !is_ascii(text.text)) {
      text.text = normalize(text.text, Form::kNfd);
      map_chars(text, [](std::string& out, char32_t cp, std::string_view bytes) {
        if (!has(cp, kBertMark)) out += bytes;
      });
    }
    if (lowercase_) map_chars(text, [](std::string& out, char32_t cp, std::string_view) { append_lower(out, cp); });
  }

 private:
  // The list of Hugging Face's tokenizers, which omits the first rows of the block in 2B820..2CEAF.
  static bool is_chinese(char32_t c) {
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
           (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
           (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
  }
  bool clean_text_, chinese_, strip_accents_, lowercase_;
};

Result<NormalizerPtr> read_normalizer(const json::Value* section, int depth, Growth& growth);

Result<NormalizerPtr> read_sequence(const json::Value& section, int depth, Growth& growth) {
  const json::Value* list = section.find("normalizers");
  if (list == nullptr || !list->is_array()) return corrupt("normalizer.normalizers must be a list");
  std::vector<NormalizerPtr> steps;
  for (const json::Value& item : list->as_array()) {
    QUIRE_ASSIGN(NormalizerPtr step, read_normalizer(&item, depth + 1, growth));
    if (step) steps.push_back(std::move(step));
  }
  return make_sequence(std::move(steps));
}

Result<NormalizerPtr> read_bert(const json::Value& section) {
  QUIRE_ASSIGN(const bool clean, json::get_bool_or(section, "clean_text", true));
  QUIRE_ASSIGN(const bool chinese, json::get_bool_or(section, "handle_chinese_chars", true));
  QUIRE_ASSIGN(const bool lower, json::get_bool_or(section, "lowercase", true));
  const json::Value* accents = section.find("strip_accents");
  const bool strip = accents != nullptr && accents->is_bool() ? accents->as_bool() : lower;
  return make_bert_normalizer(clean, chinese, strip, lower);
}

Result<NormalizerPtr> read_normalizer(const json::Value* section, int depth, Growth& growth) {
  if (section == nullptr || section->is_null()) return NormalizerPtr();
  if (!section->is_object()) return corrupt("normalizer must be an object or null");
  if (depth > kMaxNesting) return corrupt("normalizer has sequences nested too deeply");
  QUIRE_ASSIGN(const std::string type, json::get_string(*section, "type"));
  if (type == "Sequence") return read_sequence(*section, depth, growth);
  if (type == "NFC") return NormalizerPtr(std::make_unique<Composer>(Form::kNfc));
  if (type == "NFD") return NormalizerPtr(std::make_unique<Composer>(Form::kNfd));
  if (type == "NFKC") return NormalizerPtr(std::make_unique<Composer>(Form::kNfkc));
  if (type == "NFKD") return NormalizerPtr(std::make_unique<Composer>(Form::kNfkd));
  if (type == "Lowercase") return NormalizerPtr(std::make_unique<Lowercase>());
  if (type == "StripAccents") return NormalizerPtr(std::make_unique<StripAccents>());
  if (type == "ByteLevel") return NormalizerPtr(std::make_unique<ByteLevelNormalizer>());
  if (type == "Nmt") return NormalizerPtr(std::make_unique<Nmt>());
  if (type == "BertNormalizer") return read_bert(*section);
  if (type == "Strip") {
    QUIRE_ASSIGN(const bool left, json::get_bool_or(*section, "strip_left", true));
    QUIRE_ASSIGN(const bool right, json::get_bool_or(*section, "strip_right", true));
    return make_strip(left, right);
  }
  if (type == "Prepend") {
    QUIRE_ASSIGN(std::string prefix, json::get_string(*section, "prepend"));
    return make_prepend(std::move(prefix));
  }
  if (type == "Replace") {
    QUIRE_ASSIGN(Pattern pattern, Pattern::from_json(section->find("pattern"), "normalizer.pattern"));
    QUIRE_ASSIGN(std::string with, json::get_string(*section, "content"));
    QUIRE_TRY(growth.replace(pattern, with, "normalizer"));
    return make_replace(std::move(pattern), std::move(with));
  }
  if (type == "Precompiled") {
    const json::Value* charsmap = section->find("precompiled_charsmap");
    if (charsmap == nullptr || charsmap->is_null()) return NormalizerPtr();
    if (!charsmap->is_string()) return corrupt("normalizer.precompiled_charsmap must be a string");
    std::string base64 = charsmap->as_string(), bytes;
    std::erase(base64, '\n');
    if (!decode_base64(base64, bytes)) return corrupt("normalizer.precompiled_charsmap is not base64");
    return make_precompiled(std::move(bytes));
  }
  return unsupported({"normalizer has the type \"", type, "\", which quire does not support"});
}

}  // namespace

NormalizerPtr make_sequence(std::vector<NormalizerPtr> steps) {
  return std::make_unique<Sequence>(std::move(steps));
}
NormalizerPtr make_replace(Pattern pattern, std::string with) {
  return std::make_unique<Replace>(std::move(pattern), std::move(with));
}
NormalizerPtr make_prepend(std::string prefix) {
  return std::make_unique<Prepend>(std::move(prefix));
}
NormalizerPtr make_nfc() {
  return std::make_unique<Composer>(Form::kNfc);
}
NormalizerPtr make_bert_normalizer(bool clean_text, bool chinese, bool strip_accents, bool lowercase) {
  return std::make_unique<BertNormalizer>(clean_text, chinese, strip_accents, lowercase);
}
NormalizerPtr make_strip(bool left, bool right) {
  return std::make_unique<Strip>(left, right);
}

Result<NormalizerPtr> make_normalizer(const json::Value* section) {
  Growth growth;
  return read_normalizer(section, 0, growth);
}

}  // namespace quire::text
