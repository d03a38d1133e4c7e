// SPDX-License-Identifier: Apache-2.0
// Sets of strings for JSON Schema, and how JSON writes them.
#include "grammar/schema_strings.h"

#include <algorithm>
#include <iterator>

#include "base/utf8.h"

namespace quire::grammar::schema {

namespace {

constexpr int kMaxTrieDepth = 500;
constexpr int64_t kProofFuel = 4'000;

// The letter of JSON's short escape of a character, or 0.
char short_escape(uint32_t code_point) {
  switch (code_point) {
    case '"':
      return '"';
    case '\\':
      return '\\';
    case '\b':
      return 'b';
    case '\f':
      return 'f';
    case '\n':
      return 'n';
    case '\r':
      return 'r';
    case '\t':
      return 't';
    default:
      return 0;
  }
}

// \uXXXX of a UTF-16 unit; each hexadecimal digit in either case.
Regex unit_escape(RegexStore& store, uint32_t unit) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text = "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) text += kHex[(unit >> shift) & 15];
  return store.concat(store.literal("\\u"), store.literal_ignoring_case(text.substr(2)));
}

// One character of a JSON string in any spelling, lone surrogates left out. `own`: printable ASCII has no spelling
// \uXXXX.
Regex any_spelling(RegexStore& store, bool own) {
  const CodePointRange special[] = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  const Regex hex = store.bytes(ByteSet::of("0123456789abcdefABCDEF"));
  const Regex backslash_u = store.literal("\\u");
  const Regex hex2 = store.repeat(hex, 2, 2), hex3 = store.repeat(hex, 3, 3);
  const Regex d = store.bytes(ByteSet::of("dD"));
  const Regex zero = store.literal("0");
  Regex low_half = store.concat(zero, hex3);  // U+0000 to U+0FFF
  if (own) {
    const Regex unprintable = store.either(std::vector<Regex>{
        store.concat(store.bytes(ByteSet::of("0189abcdefABCDEF")), hex), store.literal("7f"), store.literal("7F")});
    low_half = store.concat(zero, store.either(store.concat(zero, unprintable),
                                               store.concat(store.bytes(ByteSet::of("123456789abcdefABCDEF")), hex2)));
  }
  const Regex not_surrogate =
      store.either(std::vector<Regex>{low_half, store.concat(store.bytes(ByteSet::of("123456789abcefABCEF")), hex3),
                                      store.concat(d, store.concat(store.bytes(ByteSet::of("01234567")), hex2))});
  const Regex high = store.concat(d, store.concat(store.bytes(ByteSet::of("89abAB")), hex2));
  const Regex low = store.concat(d, store.concat(store.bytes(ByteSet::of("cdefCDEF")), hex2));
  const Regex escapes =
      store.either(std::vector<Regex>{store.concat(store.literal("\\"), store.bytes(ByteSet::of("\"\\/bfnrt"))),
                                      store.concat(backslash_u, not_surrogate),
                                      store.concat(backslash_u, store.concat(high, store.concat(backslash_u, low)))});
  return store.either(store.chars_except(special), escapes);
}

Regex literal_trie(RegexStore& store, const std::vector<std::string>& values, size_t first, size_t last, size_t skip,
                   int depth) {
  if (last - first == 1) return store.literal(std::string_view(values[first]).substr(skip));
  if (depth > kMaxTrieDepth) {
    std::vector<Regex> options;
    for (size_t i = first; i < last; ++i) options.push_back(store.literal(std::string_view(values[i]).substr(skip)));
    return store.either(options);
  }
  // The values are sorted, so what the first and the last have in common, all have.
  const std::string &low = values[first], &high = values[last - 1];
  size_t common = skip;
  while (common < low.size() && common < high.size() && low[common] == high[common]) ++common;
  std::vector<Regex> options;
  size_t i = first;
  if (low.size() == common) {
    options.push_back(store.empty());
    ++i;
  }
  while (i < last && !store.full()) {
    size_t end = i + 1;
    while (end < last && values[end][common] == values[i][common]) ++end;
    options.push_back(literal_trie(store, values, i, end, common, depth + 1));
    i = end;
  }
  return store.concat(store.literal(std::string_view(low).substr(skip, common - skip)), store.either(options));
}

bool plain_ascii(std::string_view value) {
  return std::all_of(value.begin(), value.end(), [](char c) {
    return static_cast<uint8_t>(c) >= 0x20 && static_cast<uint8_t>(c) < 0x80 && c != '/';
  });
}

size_t code_points(std::string_view value) {
  return static_cast<size_t>(
      std::count_if(value.begin(), value.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

}  // namespace

Regex either_of_literals(RegexStore& store, const std::vector<std::string>& values) {
  if (values.empty()) return store.nothing();
  return literal_trie(store, values, 0, values.size(), 0, 0);
}

StringSets::StringSets(RegexStore& store)
    : store_(store),
      quote_(store.literal("\"")),
      character_(any_spelling(store, false)),
      name_character_(any_spelling(store, true)) {}

StringSet StringSets::of_values(std::vector<std::string> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  StringSet out;
  out.form = StringSet::Form::kValues;
  out.values = std::move(values);
  return out;
}

StringSet StringSets::of_length(int64_t min, std::optional<int64_t> max) {
  if (max && *max < min) return none();
  StringSet out;
  out.min = std::max<int64_t>(0, min);
  out.max = max;
  return out;
}

StringSet StringSets::of_regex(Regex regex) {
  StringSet out;
  out.form = StringSet::Form::kRegex;
  out.regex = regex;
  return out;
}

Regex StringSets::regex(const StringSet& a) {
  if (a.form == StringSet::Form::kRegex) return a.regex;
  if (a.form == StringSet::Form::kValues) return either_of_literals(store_, a.values);
  if (is_all(a)) return store_.any_text();
  return store_.repeat(store_.any_char(), a.min, a.max);
}

bool StringSets::has(const StringSet& a, std::string_view value) {
  if (a.form == StringSet::Form::kRegex) return store_.matches(a.regex, value);
  if (a.form == StringSet::Form::kValues) return std::binary_search(a.values.begin(), a.values.end(), value);
  const int64_t length = static_cast<int64_t>(code_points(value));
  return length >= a.min && (!a.max || length <= *a.max);
}

StringSet StringSets::both(const StringSet& a, const StringSet& b) {
  using Form = StringSet::Form;
  if (is_all(a)) return b;
  if (is_all(b)) return a;
  if (a.form == Form::kValues || b.form == Form::kValues) {
    const bool first = a.form == Form::kValues && (b.form != Form::kValues || a.values.size() <= b.values.size());
    const StringSet &listed = first ? a : b, &other = first ? b : a;
    StringSet out;
    out.form = Form::kValues;
    std::copy_if(listed.values.begin(), listed.values.end(), std::back_inserter(out.values),
                 [&](const std::string& value) { return has(other, value); });
    return out;
  }
  if (a.form == Form::kLength && b.form == Form::kLength) {
    std::optional<int64_t> max = a.max;
    if (b.max && (!max || *b.max < *max)) max = b.max;
    return of_length(std::max(a.min, b.min), max);
  }
  return of_regex(store_.both(regex(a), regex(b)));
}

StringSet StringSets::either(const StringSet& a, const StringSet& b) {
  using Form = StringSet::Form;
  if (is_all(a) || is_all(b)) return all();
  if (a.form == Form::kValues && a.values.empty()) return b;
  if (b.form == Form::kValues && b.values.empty()) return a;
  if (a.form == Form::kValues && b.form == Form::kValues) {
    StringSet out;
    out.form = Form::kValues;
    std::set_union(a.values.begin(), a.values.end(), b.values.begin(), b.values.end(), std::back_inserter(out.values));
    return out;
  }
  return of_regex(store_.either(regex(a), regex(b)));
}

StringSet StringSets::complement(const StringSet& a) {
  if (is_all(a)) return none();
  if (a.form == StringSet::Form::kValues && a.values.empty()) return all();
  if (a.form == StringSet::Form::kLength) {
    if (a.min == 0) return of_length(*a.max + 1, std::nullopt);
    if (!a.max) return of_length(0, a.min - 1);
  }
  return of_regex(store_.both(store_.any_text(), store_.complement(regex(a))));
}

bool StringSets::is_none(const StringSet& a) {
  if (a.form == StringSet::Form::kLength) return false;
  if (a.form == StringSet::Form::kValues) return a.values.empty();
  return store_.is_nothing(a.regex, kProofFuel).value_or(false);
}

// The spellings of one character with escapes: the short one, and \uXXXX or a surrogate pair.
Regex StringSets::escape(uint32_t code_point) {
  Regex out;
  if (code_point >= 0x10000) {
    const uint32_t offset = code_point - 0x10000;
    out = store_.concat(unit_escape(store_, 0xD800 + (offset >> 10)), unit_escape(store_, 0xDC00 + (offset & 0x3FF)));
  } else {
    out = unit_escape(store_, code_point);
  }
  if (const char letter = short_escape(code_point); letter != 0)
    out = store_.either(out, store_.literal(std::string("\\") + letter));
  if (code_point == '/') out = store_.either(out, store_.literal("\\/"));
  return out;
}

Regex StringSets::text_of_value(std::string_view value) {
  std::vector<Regex> parts = {quote_};
  std::string run;
  auto flush = [&] {
    if (!run.empty()) parts.push_back(store_.literal(run));
    run.clear();
  };
  for (size_t pos = 0; pos < value.size();) {
    const utf8::Decoded decoded = utf8::decode(value, pos);
    const uint32_t code_point = decoded.code_point;
    const std::string_view raw = value.substr(pos, decoded.size);
    pos += decoded.size;
    if (code_point == '"' || code_point == '\\') {
      run += '\\';
      run += static_cast<char>(code_point);
    } else if (code_point == '/') {
      flush();
      parts.push_back(store_.either(store_.literal("/"), store_.literal("\\/")));
    } else if (code_point >= 0x20 && code_point < 0x80) {
      run += raw;
    } else {
      flush();
      parts.push_back(code_point < 0x20 ? escape(code_point) : store_.either(store_.literal(raw), escape(code_point)));
    }
  }
  flush();
  parts.push_back(quote_);
  return store_.concat(parts);
}

Regex StringSets::text_except(const std::vector<std::string>& values) {
  if (last_except_ && last_except_->first == values) return last_except_->second;
  Regex out = store_.concat(quote_, store_.concat(store_.repeat(name_character_, 0), quote_));
  if (!values.empty()) out = store_.both(out, store_.complement(text(of_values(values))));
  last_except_.emplace(values, out);
  return out;
}

Regex StringSets::text(const StringSet& a) {
  if (a.form == StringSet::Form::kLength)
    return store_.concat(quote_, store_.concat(store_.repeat(character_, a.min, a.max), quote_));
  if (a.form == StringSet::Form::kValues) {
    std::vector<std::string> simple;
    std::vector<Regex> options;
    for (const std::string& value : a.values) {
      if (!plain_ascii(value)) {
        options.push_back(text_of_value(value));
        continue;
      }
      std::string quoted = "\"";
      for (const char c : value) {
        if (c == '"' || c == '\\') quoted += '\\';
        quoted += c;
      }
      simple.push_back(quoted + '"');
    }
    std::sort(simple.begin(), simple.end());
    options.push_back(either_of_literals(store_, simple));
    return store_.either(options);
  }
  static constexpr char kHex[] = "0123456789abcdef";
  std::vector<std::pair<uint8_t, Regex>> images;
  auto add = [&](uint8_t byte) {
    const char letter = short_escape(byte);
    std::string spelling = letter != 0 ? std::string("\\") + letter : std::string("\\u00");
    if (letter == 0) {
      spelling += kHex[byte >> 4];
      spelling += kHex[byte & 15];
    }
    images.emplace_back(byte, store_.literal(spelling));
  };
  for (int byte = 0; byte < 0x20; ++byte) add(static_cast<uint8_t>(byte));
  add('"');
  add('\\');
  return store_.concat(quote_, store_.concat(store_.replace_bytes(a.regex, images), quote_));
}

std::optional<std::vector<std::string>> StringSets::values(const StringSet& a, size_t limit) {
  if (a.form == StringSet::Form::kValues) {
    if (a.values.size() > limit) return std::nullopt;
    return a.values;
  }
  if (a.form == StringSet::Form::kLength) return std::nullopt;
  // Walk through all strings of the expression, and stop when there are too many.
  std::vector<std::pair<Regex, std::string>> pending = {{a.regex, ""}};
  std::vector<std::string> out;
  int64_t fuel = 256 * 400;
  while (!pending.empty()) {
    auto [regex, text] = std::move(pending.back());
    pending.pop_back();
    if (store_.nullable(regex)) out.push_back(text);
    if (out.size() > limit || text.size() > 256) return std::nullopt;
    for (int byte = 0; byte < 256; ++byte) {
      if (--fuel < 0 || store_.full()) return std::nullopt;
      const Regex next = store_.derivative(regex, static_cast<uint8_t>(byte));
      if (store_.is_nothing(next, 200).value_or(false)) continue;
      pending.emplace_back(next, text + static_cast<char>(byte));
    }
  }
  return out;
}

}  // namespace quire::grammar::schema
