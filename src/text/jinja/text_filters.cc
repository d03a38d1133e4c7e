// SPDX-License-Identifier: Apache-2.0
// Filters that return text or numbers.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "text/jinja/builtins.h"
#include "text/jinja/format.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/sequences.h"
#include "text/jinja/text.h"
#include "text/jinja/wrap.h"

namespace quire::text::jinja {
namespace {

template <std::string (*Map)(std::string_view)>
Value map_filter(Interpreter& in, const Value& v, Args& args) {
  expect_positional("filter", args, 0, 0);
  const Value text = soft_str(in.heap(), v);
  in.heap().touch(text.text().size());
  return in.heap().string(MarkedText(Map(text.text()), text.origins().least_trusted()), text.is_markup());
}

// Words start after spaces, dashes and opening brackets, unlike in str.title().
std::string title_words(std::string_view text) {
  std::string out;
  size_t start = 0;
  bool in_separator = false;
  auto flush = [&](size_t end) {
    if (end == start) return;
    const std::string_view item = text.substr(start, end - start);
    const size_t first = utf8::decode(item, 0).size;
    out += to_upper(item.substr(0, first)) + to_lower(item.substr(first));
    start = end;
  };
  for (size_t i = 0; i < text.size();) {
    const utf8::Decoded d = utf8::decode(text, i);
    const char32_t c = d.code_point;
    const bool separator = is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    if (separator != in_separator) flush(i);
    in_separator = separator;
    i += d.size;
  }
  flush(text.size());
  return out;
}

Value trim_filter(Interpreter& in, const Value& v, Args& args) {
  const Bound bound("trim", args, {"chars"});
  const Value text = soft_str(in.heap(), v);
  in.heap().touch(text.text().size());
  const std::string* chars = bound.none_or_absent(0) ? nullptr : &bound.text(0);
  return substring(in.heap(), text, strip(text.text(), chars, true, true));
}

Value replace_filter(Interpreter& in, const Value& v, Args& args) {
  const Bound bound("replace", args, {"old", "new", "count"}, 2);
  Heap& heap = in.heap();
  const int64_t count = bound.none_or_absent(2) ? -1 : bound.integer(2, -1);
  return heap.string(replace_checked(heap, to_marked_str(heap, v), to_str(heap, bound.value(0)),
                                     to_marked_str(heap, bound.value(1)), count));
}

Value string_filter(Interpreter& in, const Value& v, Args& args) {
  expect_positional("string", args, 0, 0);
  return soft_str(in.heap(), v);
}

Value center_filter(Interpreter& in, const Value& v, Args& args) {
  const Bound bound("center", args, {"width"});
  Args width;
  width.positional.push_back(Value::integer(bound.integer(0, 80)));
  return find_method(Type::kString, "center")->call(in, soft_str(in.heap(), v), width);
}

Value format_filter(Interpreter& in, const Value& v, Args& args) {
  if (!args.positional.empty() && !args.keyword.empty()) {
    fail("can't handle positional and keyword arguments at the same time");
  }
  Value values = in.heap().tuple(args.positional);
  if (!args.keyword.empty()) {
    values = in.heap().dict();
    for (const auto& [name, value] : args.keyword) values.dict().set(in.heap(), name, value);
  }
  return format_percent(in, soft_str(in.heap(), v), values);
}

const std::string& require_text(const char* filter, const Value& v) {
  if (v.is_undefined()) fail_undefined(v);
  if (!v.is_string()) fail({filter, " requires a string, not '", python_type_name(v), "'"});
  return v.text();
}

Value indent_filter(Interpreter& in, const Value& v, Args& args) {
  const Bound bound("indent", args, {"width", "first", "blank"});
  Heap& heap = in.heap();
  const std::string& text = require_text("indent", v);
  Value indention = heap.string("    ");
  if (bound.has(0)) {
    indention = bound.value(0).is_string() ? (v.is_markup() ? escape(heap, bound.value(0)) : bound.value(0))
                                           : multiply(heap, heap.string(" "), Value::integer(bound.integer(0, 4)));
  }
  const std::string with_end = text + "\n";
  const auto lines = split_lines(with_end, false);
  heap.touch(text.size());
  MarkedText out;
  if (bound.flag(1, false)) append_str(heap, out, indention);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.add("\n");
    if (i > 0 && (bound.flag(2, false) || !lines[i].empty())) {
      append_str(heap, out, indention);
      heap.charge(out.size());
      heap.discharge(out.size());
    }
    out.add(lines[i], v.origins(), with_end);
  }
  return heap.string(std::move(out), v.is_markup());
}

Value truncate_filter(Interpreter& in, const Value& v, Args& args) {
  const Bound bound("truncate", args, {"length", "killwords", "end", "leeway"});
  Heap& heap = in.heap();
  const int64_t limit = bound.integer(0, 255);
  const Value end = bound.value_or(2, heap.string("..."));
  const int64_t end_size = length(heap, end);
  const int64_t leeway = bound.none_or_absent(3) ? 5 : bound.integer(3, 5);
  if (limit < end_size) fail({"truncate: expected length >= ", end_size});
  if (leeway < 0) fail("truncate: expected leeway >= 0");
  if (length(heap, v) - leeway <= limit) return v;
  require_text("truncate", v);
  const Value head = slice(heap, v, Value::none(), Value::integer(limit - end_size), Value::none());
  if (bound.flag(1, false)) return add(heap, head, end);
  const size_t blank = head.text().rfind(' ');
  return add(heap, substring(heap, head, std::string_view(head.text()).substr(0, blank)), end);
}

Value wordwrap_filter(Interpreter& in, const Value& v, Args& args) {
  const Bound bound("wordwrap", args, {"width", "break_long_words", "wrapstring", "break_on_hyphens"});
  Heap& heap = in.heap();
  const std::string& text = require_text("wordwrap", v);
  const int64_t width = bound.integer(0, 79);
  if (width <= 0) fail("wordwrap: the width must be positive");
  const std::string wrap = bound.none_or_absent(2) ? "\n" : bound.text(2);
  heap.step(text.size());
  std::string out;
  bool first = true;
  for (const std::string_view line : split_lines(text, false)) {
    std::vector<std::string> parts = wrap_line(line, width, bound.flag(1, true), bound.flag(3, true));
    if (parts.empty()) parts.emplace_back();
    for (const std::string& part : parts) {
      if (!first) out += wrap;
      first = false;
      heap.touch(part.size() + wrap.size());
      heap.charge(out.size());
      heap.discharge(out.size());
      out += part;
    }
  }
  Origin origin = v.origins().least_trusted();
  if (!bound.none_or_absent(2)) origin = std::max(origin, bound.value(2).origins().least_trusted());
  return heap.string(MarkedText(std::move(out), origin));
}

Value wordcount_filter(Interpreter& in, const Value& v, Args& args) {
  expect_positional("wordcount", args, 0, 0);
  const Value text = soft_str(in.heap(), v);
  in.heap().touch(text.text().size());
  int64_t words = 0;
  bool in_word = false;
  each_code_point(text.text(), [&](char32_t c, std::string_view) {
    const bool word = c == '_' || is_alnum(c);
    words += word && !in_word ? 1 : 0;
    in_word = word;
  });
  return Value::integer(words);
}

// --- HTML and URLs ---

Value escape_filter(Interpreter& in, const Value& v, Args& args) {
  expect_positional("escape", args, 0, 0);
  return escape(in.heap(), v);
}
Value forceescape_filter(Interpreter& in, const Value& v, Args& args) {
  expect_positional("forceescape", args, 0, 0);
  const MarkedText text = to_marked_str(in.heap(), v);
  return in.heap().string(MarkedText(escape_html(text.text), text.origins.least_trusted()), true);
}
Value safe_filter(Interpreter& in, const Value& v, Args& args) {
  expect_positional("safe", args, 0, 0);
  return soft_str(in.heap(), v).with_markup(true);
}

std::string strip_between(std::string_view text, std::string_view open, std::string_view close) {
  std::string out;
  size_t at = 0;
  while (true) {
    const size_t start = text.find(open, at);
    const size_t end = start == std::string_view::npos ? start : text.find(close, start);
    if (end == std::string_view::npos) break;
    out += text.substr(at, start - at);
    at = end + close.size();
  }
  out += text.substr(at);
  return out;
}

Value striptags_filter(Interpreter& in, const Value& v, Args& args) {
  expect_positional("striptags", args, 0, 0);
  const MarkedText given = to_marked_str(in.heap(), v);
  const std::string text = strip_between(strip_between(given.text, "<!--", "-->"), "<", ">");
  std::string out;
  for (const std::string_view word : split_space(text, -1, false)) {
    if (!out.empty()) out += " ";
    out += word;
  }
  return in.heap().string(MarkedText(unescape_html(out), given.origins.least_trusted()));
}

std::string quote_url(std::string_view text, bool query) {
  std::string out;
  char buffer[4];
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x80 && std::isalnum(byte) != 0) || c == '_' || c == '.' || c == '-' || c == '~' ||
        (c == '/' && !query)) {
      out += c;
    } else if (c == ' ' && query) {
      out += '+';
    } else {
      std::snprintf(buffer, sizeof buffer, "%%%02X", byte);
      out += buffer;
    }
  }
  return out;
}

Value urlencode_filter(Interpreter& in, const Value& v, Args& args) {
  expect_positional("urlencode", args, 0, 0);
  Heap& heap = in.heap();
  Origin origin = Origin::kTemplate;
  const auto quoted = [&](const Value& part, bool query) {
    const MarkedText text = to_marked_str(heap, part);
    origin = std::max(origin, text.origins.least_trusted());
    return quote_url(text.text, query);
  };
  if (v.is_string() || !is_iterable(v)) {
    std::string whole = quoted(v, false);
    return heap.string(MarkedText(std::move(whole), origin));
  }
  std::string out;
  Values pairs;
  if (v.is(Type::kDict)) {
    for (const DictObject::Entry& entry : v.dict().entries) pairs.push_back(heap.tuple({entry.key, entry.value}));
  } else {
    pairs = to_values(heap, v);
  }
  for (const Value& pair : pairs) {
    const Values parts = to_values(heap, pair);
    if (parts.size() != 2) fail("urlencode requires pairs of a name and a value");
    if (!out.empty()) out += "&";
    out += quoted(parts[0], true) + "=";
    out += quoted(parts[1], true);
  }
  return heap.string(MarkedText(std::move(out), origin));
}

Value xmlattr_filter(Interpreter& in, const Value& v, Args& args) {
  const Bound bound("xmlattr", args, {"autospace"});
  if (v.is_undefined()) fail_undefined(v);
  if (!v.is(Type::kDict)) fail("xmlattr requires a dict");
  Heap& heap = in.heap();
  std::string out;
  Origin origin = Origin::kTemplate;
  for (const DictObject::Entry& entry : v.dict().entries) {
    if (entry.value.is_none() || entry.value.is_undefined()) continue;
    if (!entry.key.is_string()) fail("xmlattr requires strings as names");
    bool bad = false;
    each_code_point(entry.key.text(), [&](char32_t c, std::string_view) {
      bad = bad || is_space(c) || c == '/' || c == '>' || c == '=';
    });
    if (bad) fail({"Invalid character in attribute name: ", repr_text(entry.key.text())});
    if (!out.empty()) out += " ";
    const Value key = escape(heap, entry.key), value = escape(heap, entry.value);
    origin = std::max({origin, key.origins().least_trusted(), value.origins().least_trusted()});
    out += key.text() + "=\"" + value.text() + "\"";
  }
  if (bound.flag(0, true) && !out.empty()) out.insert(0, " ");
  return heap.string(MarkedText(std::move(out), origin));
}

Value unsupported_filter(Interpreter&, const Value&, Args&) {
  throw TemplateError{"this filter is not supported in chat templates", 0, false, ErrorCode::kUnsupported};
}

// --- Numbers ---

Value int_from_float(double d, bool* ok) {
  *ok = std::isfinite(d);
  if (!*ok) return Value();
  if (std::fabs(d) >= 9223372036854775808.0) fail_large_int();
  return Value::integer(static_cast<int64_t>(d));
}

Value int_filter(Interpreter&, const Value& v, Args& args) {
  const Bound bound("int", args, {"default", "base"});
  const Value fallback = bound.value_or(0, Value::integer(0));
  if (v.is_undefined()) fail_undefined(v);
  bool ok = false;
  if (v.is_string()) {
    const int64_t base = bound.integer(1, 10);
    bool overflow = false;
    if (base == 0 || (base >= 2 && base <= 36)) {
      const auto parsed = parse_int(v.text(), static_cast<int>(base), &overflow);
      if (overflow) fail_large_int();
      if (parsed) return Value::integer(*parsed);
    }
    const auto as_float = parse_float(v.text());
    if (!as_float) return fallback;
    const Value whole = int_from_float(*as_float, &ok);
    return ok ? whole : fallback;
  }
  if (v.is_int_like()) return Value::integer(v.as_int());
  if (v.is(Type::kLongInt)) return v;
  if (!v.is(Type::kFloat)) return fallback;
  if (std::isinf(v.as_real())) fail("cannot convert float infinity to integer");
  const Value whole = int_from_float(v.as_real(), &ok);
  return ok ? whole : fallback;
}

Value float_filter(Interpreter&, const Value& v, Args& args) {
  const Bound bound("float", args, {"default"});
  if (v.is_undefined()) fail_undefined(v);
  if (v.is_number()) return Value::real(v.as_real());
  if (v.is_string() || v.is(Type::kLongInt)) {
    const auto parsed = parse_float(v.text());
    if (parsed) return Value::real(*parsed);
  }
  return bound.value_or(0, Value::real(0));
}

Value abs_filter(Interpreter&, const Value& v, Args& args) {
  expect_positional("abs", args, 0, 0);
  if (v.is(Type::kFloat)) return Value::real(std::fabs(v.as_real()));
  if (v.is_int_like()) return v.as_int() < 0 ? negate(v) : Value::integer(v.as_int());
  if (v.is_undefined()) fail_undefined(v);
  fail({"bad operand type for abs(): '", python_type_name(v), "'"});
}

// round(value, -digits) of an integer: half to even.
Value round_integer(int64_t value, int64_t digits) {
  if (digits >= 0) return Value::integer(value);
  if (digits < -19) return Value::integer(0);
  const Value unit = Value::real(std::pow(10.0, static_cast<double>(-digits)));
  if (digits < -18) return Value::integer(0);
  const auto step = static_cast<int64_t>(unit.as_real());
  const int64_t rest = ((value % step) + step) % step;
  int64_t tens = value / step - (value < 0 && rest != 0 ? 1 : 0);  // of the multiple of `step` that is not above it
  if (rest * 2 > step || (rest * 2 == step && tens % 2 != 0)) ++tens;
  int64_t rounded = 0;
  if (__builtin_mul_overflow(tens, step, &rounded)) fail_large_int();
  return Value::integer(rounded);
}

Value round_filter(Interpreter&, const Value& v, Args& args) {
  const Bound bound("round", args, {"precision", "method"});
  const std::string method = bound.has(1) ? bound.text(1) : "common";
  if (method != "common" && method != "ceil" && method != "floor") fail("method must be common, ceil or floor");
  if (v.is_undefined()) fail_undefined(v);
  if (!v.is_number()) fail({"type ", python_type_name(v), " doesn't define __round__ method"});
  const int64_t precision = bound.integer(0, 0);
  if (method == "common") {
    if (v.is_int_like()) return round_integer(v.as_int(), precision);
    return Value::real(round_to(v.as_real(), precision));
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = v.as_real() * scale;
  if (!std::isfinite(scaled)) fail("cannot round a number that is not finite");
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Value filesizeformat_filter(Interpreter& in, const Value& v, Args& args) {
  const Bound bound("filesizeformat", args, {"binary"});
  if (v.is_undefined()) fail_undefined(v);
  std::optional<double> parsed;
  if (v.is_number()) parsed = v.as_real();
  if (v.is_string()) parsed = parse_float(v.text());
  if (!parsed) fail("filesizeformat requires a number");
  const double bytes = *parsed;
  const bool binary = bound.flag(0, false);
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return in.heap().string("1 Byte");
  if (bytes < base) {
    bool ok = false;
    const Value whole = int_from_float(bytes, &ok);
    if (!ok) fail("filesizeformat requires a finite number");
    return in.heap().string(to_str(in.heap(), whole) + " Bytes");
  }
  static constexpr const char* kDecimal[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
  static constexpr const char* kBinary[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
  double unit = base * base;
  size_t i = 0;
  for (; i < 7 && bytes >= unit; ++i) unit *= base;
  char buffer[512];
  std::snprintf(buffer, sizeof buffer, "%.1f %s", base * bytes / unit, binary ? kBinary[i] : kDecimal[i]);
  return in.heap().string(buffer);
}

// --- JSON and printing ---

Value tojson_filter(Interpreter& in, const Value& v, Args& args) {
  const Bound bound("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  Heap& heap = in.heap();
  JsonStyle style;
  style.ensure_ascii = bound.flag(0, false);
  style.sort_keys = bound.flag(3, false);
  if (!bound.none_or_absent(1)) {
    style.pretty = true;
    style.item_separator = ",";
    if (bound.value(1).is_string()) style.origin = bound.value(1).origins().least_trusted();
    style.indent = bound.value(1).is_string()
                       ? bound.value(1).text()
                       : std::string(static_cast<size_t>(std::clamp<int64_t>(bound.integer(1, 0), 0, 1000)), ' ');
  }
  if (!bound.none_or_absent(2)) {
    const Values parts = to_values(heap, bound.value(2));
    if (parts.size() != 2 || !parts[0].is_string() || !parts[1].is_string()) {
      fail("tojson: separators must be two strings");
    }
    style.item_separator = parts[0].text();
    style.key_separator = parts[1].text();
    for (const Value& part : parts) style.origin = std::max(style.origin, part.origins().least_trusted());
  }
  MarkedText out;
  append_json(heap, out, v, style);
  return heap.string(std::move(out));
}

Value pprint_filter(Interpreter& in, const Value& v, Args& args) {
  expect_positional("pprint", args, 0, 0);
  return in.heap().string(pretty_print(in.heap(), v));
}

}  // namespace

std::vector<FilterEntry> text_filters() {
  return {
      {"abs", abs_filter},
      {"capitalize", map_filter<capitalize>},
      {"center", center_filter},
      {"e", escape_filter},
      {"escape", escape_filter},
      {"filesizeformat", filesizeformat_filter},
      {"float", float_filter},
      {"forceescape", forceescape_filter},
      {"format", format_filter},
      {"indent", indent_filter},
      {"int", int_filter},
      {"lower", map_filter<to_lower>},
      {"pprint", pprint_filter},
      {"random", unsupported_filter},
      {"replace", replace_filter},
      {"round", round_filter},
      {"safe", safe_filter},
      {"string", string_filter},
      {"striptags", striptags_filter},
      {"title", map_filter<title_words>},
      {"tojson", tojson_filter},
      {"trim", trim_filter},
      {"truncate", truncate_filter},
      {"upper", map_filter<to_upper>},
      {"urlencode", urlencode_filter},
      {"urlize", unsupported_filter},
      {"wordcount", wordcount_filter},
      {"wordwrap", wordwrap_filter},
      {"xmlattr", xmlattr_filter},
  };
}

}  // namespace quire::text::jinja
