// SPDX-License-Identifier: Apache-2.0
// The methods of Python's str.
#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/format.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/sequences.h"
#include "text/jinja/text.h"

namespace quire::text::jinja {
namespace {

// A string of the same kind as its source: Markup stays Markup.
Value like(Interpreter& in, const Value& self, MarkedText text) {
  return in.heap().string(std::move(text), self.is_markup());
}

Value list_of(Interpreter& in, const Value& self, const std::vector<std::string_view>& parts) {
  Values items;
  items.reserve(parts.size());
  for (const std::string_view part : parts) items.push_back(substring(in.heap(), self, part));
  return in.heap().list(std::move(items));
}

const std::string& text_argument(const char* function, const Value& value) {
  if (!value.is_string()) {
    fail({function, "() argument must be str, not ", python_type_name(value)});
  }
  return value.text();
}

// The arguments of a Markup's method are escaped unless they are Markup themselves.
Value joined_text(Interpreter& in, const Value& self, const char* function, const Value& value) {
  text_argument(function, value);
  return self.is_markup() ? escape(in.heap(), value) : value;
}

// --- Case and stripping ---

template <std::string (*Map)(std::string_view)>
Value map_text(Interpreter& in, const Value& self, Args& args) {
  expect_positional("str method", args, 0, 0);
  in.heap().touch(self.text().size());
  return like(in, self, MarkedText(Map(self.text()), self.origins().least_trusted()));
}

template <bool Left, bool Right>
Value strip_method(Interpreter& in, const Value& self, Args& args) {
  expect_positional("strip", args, 0, 1);
  const std::string* chars = nullptr;
  if (!args.positional.empty() && !args.positional[0].is_none()) chars = &text_argument("strip", args.positional[0]);
  in.heap().touch(self.text().size());
  return substring(in.heap(), self, strip(self.text(), chars, Left, Right));
}

template <bool Prefix>
Value remove_affix(Interpreter& in, const Value& self, Args& args) {
  expect_positional("removeprefix", args, 1, 1);
  const std::string& affix = text_argument("removeprefix", args.positional[0]);
  const std::string& text = self.text();
  const bool has =
      text.size() >= affix.size() && text.compare(Prefix ? 0 : text.size() - affix.size(), affix.size(), affix) == 0;
  if (!has) return self;
  const std::string_view rest = std::string_view(text).substr(Prefix ? affix.size() : 0, text.size() - affix.size());
  return substring(in.heap(), self, rest);
}

// --- Splitting and joining ---

template <bool FromRight>
Value split_method(Interpreter& in, const Value& self, Args& args) {
  const Bound bound("split", args, {"sep", "maxsplit"});
  const int64_t limit = bound.integer(1, -1);
  in.heap().touch(self.text().size());
  if (bound.none_or_absent(0)) return list_of(in, self, split_space(self.text(), limit, FromRight));
  const std::string separator = joined_text(in, self, "split", bound.value(0)).text();
  if (separator.empty()) fail("empty separator");
  return list_of(in, self, split_by(self.text(), separator, limit, FromRight));
}

Value split_lines_method(Interpreter& in, const Value& self, Args& args) {
  const Bound bound("splitlines", args, {"keepends"});
  in.heap().touch(self.text().size());
  return list_of(in, self, split_lines(self.text(), bound.flag(0, false)));
}

template <bool FromRight>
Value partition_method(Interpreter& in, const Value& self, Args& args) {
  expect_positional("partition", args, 1, 1);
  const std::string separator = joined_text(in, self, "partition", args.positional[0]).text();
  if (separator.empty()) fail("empty separator");
  const std::string_view text = self.text();
  in.heap().touch(text.size());
  const size_t at = FromRight ? rfind_text(text, separator) : find_text(text, separator);
  auto part = [&](size_t begin, size_t size) { return substring(in.heap(), self, text.substr(begin, size)); };
  if (at == std::string::npos) {
    return FromRight ? in.heap().tuple({part(0, 0), part(0, 0), part(0, text.size())})
                     : in.heap().tuple({part(0, text.size()), part(0, 0), part(0, 0)});
  }
  return in.heap().tuple(
      {part(0, at), part(at, separator.size()), part(at + separator.size(), std::string_view::npos)});
}

Value join_method(Interpreter& in, const Value& self, Args& args) {
  expect_positional("join", args, 1, 1);
  Heap& heap = in.heap();
  Iterator it(heap, args.positional[0]);
  MarkedText out;
  Value item;
  for (bool first = true; it.next(item); first = false) {
    if (!item.is_string()) {
      fail({"sequence item: expected str instance, ", python_type_name(item), " found"});
    }
    if (!first) append_str(heap, out, self);
    append_str(heap, out, self.is_markup() ? escape(heap, item) : item);
    heap.touch(item.text().size() + self.text().size());
    heap.charge(out.size());
    heap.discharge(out.size());
  }
  return like(in, self, std::move(out));
}

Value replace_method(Interpreter& in, const Value& self, Args& args) {
  const Bound bound("replace", args, {"old", "new", "count"}, 2);
  Heap& heap = in.heap();
  const Value from = joined_text(in, self, "replace", bound.value(0));
  const Value to = joined_text(in, self, "replace", bound.value(1));
  return like(
      in, self,
      replace_checked(heap, to_marked_str(heap, self), from.text(), to_marked_str(heap, to), bound.integer(2, -1)));
}

// --- Searching ---

// The part of the text between the code points `start` and `end` of the arguments; false if the window is empty in a
// way that excludes even an empty needle.
struct Window {
  std::string_view text;
  int64_t start = 0;  // in code points
  bool valid = true;
};

Window window_of(Interpreter& in, const Value& self, const Args& args) {
  const int64_t size = length(in.heap(), self);
  auto bound = [&](size_t i, int64_t fallback) {
    if (args.positional.size() <= i || args.positional[i].is_none()) return fallback;
    if (!args.positional[i].is_int_like()) fail("slice indices must be integers or None");
    const int64_t value = args.positional[i].as_int();
    return value < 0 ? std::max<int64_t>(0, value + size) : value;
  };
  Window window;
  window.start = bound(1, 0);
  const int64_t end = std::min(bound(2, size), size);
  window.text = self.text();
  if (window.start > end) {
    window.valid = false;
    return window;
  }
  in.heap().touch(window.text.size());
  const size_t from = byte_offset(window.text, static_cast<size_t>(window.start));
  const size_t to = byte_offset(window.text, static_cast<size_t>(end));
  window.text = window.text.substr(from, to - from);
  return window;
}

template <bool FromRight, bool MustFind>
Value find_method_of(Interpreter& in, const Value& self, Args& args) {
  expect_positional("find", args, 1, 3);
  const std::string& part = text_argument("find", args.positional[0]);
  const Window window = window_of(in, self, args);
  in.heap().touch(window.text.size());
  const size_t at = !window.valid ? std::string_view::npos
                    : FromRight   ? rfind_text(window.text, part)
                                  : find_text(window.text, part);
  if (at == std::string_view::npos) {
    if (MustFind) fail("substring not found");
    return Value::integer(-1);
  }
  return Value::integer(window.start + static_cast<int64_t>(count_code_points(window.text.substr(0, at))));
}

Value count_method(Interpreter& in, const Value& self, Args& args) {
  expect_positional("count", args, 1, 3);
  const std::string& part = text_argument("count", args.positional[0]);
  const Window window = window_of(in, self, args);
  in.heap().touch(window.text.size());
  return Value::integer(window.valid ? static_cast<int64_t>(count_of(window.text, part)) : 0);
}

template <bool AtStart>
Value affix_test(Interpreter& in, const Value& self, Args& args) {
  const char* name = AtStart ? "startswith" : "endswith";
  expect_positional(name, args, 1, 3);
  const Window window = window_of(in, self, args);
  auto matches = [&](const Value& affix) {
    if (!affix.is_string()) {
      fail({name, " first arg must be str or a tuple of str, not ", python_type_name(affix)});
    }
    const std::string& text = affix.text();
    if (!window.valid || window.text.size() < text.size()) return false;
    return window.text.substr(AtStart ? 0 : window.text.size() - text.size(), text.size()) == text;
  };
  if (!args.positional[0].is(Type::kTuple)) return Value::boolean(matches(args.positional[0]));
  const Values& choices = args.positional[0].list().items;
  in.heap().step(choices.size());
  return Value::boolean(std::any_of(choices.begin(), choices.end(), matches));
}

// --- Tests on all characters ---

template <bool (*Test)(char32_t)>
Value all_are(Interpreter& in, const Value& self, Args& args) {
  expect_positional("str method", args, 0, 0);
  in.heap().touch(self.text().size());
  bool all = !self.text().empty();
  each_code_point(self.text(), [&](char32_t c, std::string_view) { all = all && Test(c); });
  return Value::boolean(all);
}

Value is_printable_method(Interpreter& in, const Value& self, Args& args) {
  expect_positional("isprintable", args, 0, 0);
  in.heap().touch(self.text().size());
  bool all = true;
  each_code_point(self.text(), [&](char32_t c, std::string_view) { all = all && is_printable(c); });
  return Value::boolean(all);
}

Value is_ascii_method(Interpreter& in, const Value& self, Args&) {
  in.heap().touch(self.text().size());
  return Value::boolean(is_ascii(self.text()));
}

Value is_identifier_method(Interpreter& in, const Value& self, Args&) {
  in.heap().touch(self.text().size());
  bool all = !self.text().empty(), first = true;
  each_code_point(self.text(), [&](char32_t c, std::string_view) {
    all = all && (first ? is_identifier_start(c) : is_identifier_part(c));
    first = false;
  });
  return Value::boolean(all);
}

Value is_title_method(Interpreter& in, const Value& self, Args&) {
  in.heap().touch(self.text().size());
  bool after_cased = false, any = false, ok = true;
  each_code_point(self.text(), [&](char32_t c, std::string_view) {
    if (is_upper(c) || is_title(c)) {
      ok = ok && !after_cased;
      after_cased = any = true;
    } else if (is_lower(c)) {
      ok = ok && after_cased;
      after_cased = any = true;
    } else {
      after_cased = false;
    }
  });
  return Value::boolean(ok && any);
}

template <bool Upper>
Value is_case_method(Interpreter& in, const Value& self, Args&) {
  in.heap().touch(self.text().size());
  return Value::boolean(is_all_case(self.text(), Upper));
}

// --- Padding ---

Value fill_argument(Heap& heap, const Bound& bound) {
  if (!bound.has(1)) return heap.string(" ");
  if (!bound.value(1).is_string() || code_points(bound.value(1)) != 1) {
    fail("The fill character must be exactly one character long");
  }
  return bound.value(1);
}

enum class Pad { kLeft, kRight, kBoth };

template <Pad Where>
Value pad_method(Interpreter& in, const Value& self, Args& args) {
  const Bound bound("center", args, {"width", "fillchar"}, 1);
  const int64_t size = length(in.heap(), self);
  if (bound.integer(0, 0) <= size) return self;
  const int64_t missing = bound.integer(0, 0) - size;
  const Value unit = fill_argument(in.heap(), bound);
  int64_t left = Where == Pad::kLeft ? missing : 0;
  if (Where == Pad::kBoth)
    left = missing / 2 + (missing & bound.integer(0, 0) & 1);  // where CPython puts the odd space
  const Value n_left = Value::integer(left), n_right = Value::integer(missing - left);
  const Value before = multiply(in.heap(), unit, n_left), after = multiply(in.heap(), unit, n_right);
  MarkedText out = to_marked_str(in.heap(), before);
  append_str(in.heap(), out, self);
  append_str(in.heap(), out, after);
  return like(in, self, std::move(out));
}

Value zfill_method(Interpreter& in, const Value& self, Args& args) {
  const Bound bound("zfill", args, {"width"}, 1);
  const int64_t size = length(in.heap(), self);
  if (bound.integer(0, 0) <= size) return self;
  const int64_t missing = bound.integer(0, 0) - size;
  const Value zeros = multiply(in.heap(), in.heap().string("0"), Value::integer(missing));
  const std::string& text = self.text();
  const bool sign = !text.empty() && (text[0] == '+' || text[0] == '-');
  MarkedText out;
  out.add(std::string_view(text).substr(0, sign ? 1 : 0), self.origins(), text);
  out.add(zeros.text());
  out.add(std::string_view(text).substr(sign ? 1 : 0), self.origins(), text);
  return like(in, self, std::move(out));
}

Value expandtabs_method(Interpreter& in, const Value& self, Args& args) {
  const Bound bound("expandtabs", args, {"tabsize"});
  const int64_t size = std::clamp<int64_t>(bound.integer(0, 8), 0, 10000);
  std::string out;
  int64_t column = 0;
  each_code_point(self.text(), [&](char32_t c, std::string_view part) {
    if (c == '\t') {
      const int64_t blanks = size == 0 ? 0 : size - column % size;
      in.heap().touch(static_cast<size_t>(blanks));
      in.heap().charge(out.size() + static_cast<size_t>(blanks));
      in.heap().discharge(out.size() + static_cast<size_t>(blanks));
      out.append(static_cast<size_t>(blanks), ' ');
      column += blanks;
      return;
    }
    out += part;
    column = c == '\n' || c == '\r' ? 0 : column + 1;
  });
  return like(in, self, MarkedText(std::move(out), self.origins().least_trusted()));
}

// --- Formatting ---

Value format_method(Interpreter& in, const Value& self, Args& args) {
  return format_braces(in, self, args, nullptr);
}

Value format_map_method(Interpreter& in, const Value& self, Args& args) {
  expect_positional("format_map", args, 1, 1);
  if (!args.positional[0].is(Type::kDict)) fail("format_map() requires a mapping");
  return format_braces(in, self, Args{}, &args.positional[0].dict());
}

Value unsupported_method(Interpreter&, const Value&, Args&) {
  fail("this str method is not supported: templates have no bytes and no translation tables");
}

}  // namespace

std::vector<NativeEntry> string_methods() {
  return {
      {"capitalize", map_text<capitalize>},
      {"casefold", map_text<fold_case>},
      {"center", pad_method<Pad::kBoth>},
      {"count", count_method},
      {"encode", unsupported_method},
      {"endswith", affix_test<false>},
      {"expandtabs", expandtabs_method},
      {"find", find_method_of<false, false>},
      {"format", format_method},
      {"format_map", format_map_method},
      {"index", find_method_of<false, true>},
      {"isalnum", all_are<is_alnum>},
      {"isalpha", all_are<is_alpha>},
      {"isascii", is_ascii_method},
      {"isdecimal", all_are<is_decimal>},
      {"isdigit", all_are<is_digit>},
      {"isidentifier", is_identifier_method},
      {"islower", is_case_method<false>},
      {"isnumeric", all_are<is_numeric>},
      {"isprintable", is_printable_method},
      {"isspace", all_are<is_space>},
      {"istitle", is_title_method},
      {"isupper", is_case_method<true>},
      {"join", join_method},
      {"ljust", pad_method<Pad::kRight>},
      {"lower", map_text<to_lower>},
      {"lstrip", strip_method<true, false>},
      {"maketrans", unsupported_method},
      {"partition", partition_method<false>},
      {"removeprefix", remove_affix<true>},
      {"removesuffix", remove_affix<false>},
      {"replace", replace_method},
      {"rfind", find_method_of<true, false>},
      {"rindex", find_method_of<true, true>},
      {"rjust", pad_method<Pad::kLeft>},
      {"rpartition", partition_method<true>},
      {"rsplit", split_method<true>},
      {"rstrip", strip_method<false, true>},
      {"split", split_method<false>},
      {"splitlines", split_lines_method},
      {"startswith", affix_test<true>},
      {"strip", strip_method<true, true>},
      {"swapcase", map_text<swap_case>},
      {"title", map_text<to_title>},
      {"translate", unsupported_method},
      {"upper", map_text<to_upper>},
      {"zfill", zfill_method},
  };
}

}  // namespace quire::text::jinja
