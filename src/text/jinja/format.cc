// SPDX-License-Identifier: Apache-2.0
// Printf-style and brace-style formatting as in Python.
#include "text/jinja/format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "text/jinja/interpreter.h"
#include "text/jinja/text.h"

namespace quire::text::jinja {
namespace {

constexpr int64_t kMaxWidth = 1'000'000;

// The format of one field, of either style.
struct FieldSpec {
  std::string fill = " ";
  char align = 0;  // < > ^ =
  char sign = '-';
  bool alternate = false;
  char grouping = 0;
  int64_t width = 0;
  int64_t precision = -1;
  char type = 0;
};

std::string pad(Heap& heap, std::string_view sign_and_prefix, std::string_view body, const FieldSpec& spec,
                char default_align) {
  const char align = spec.align != 0 ? spec.align : default_align;
  const auto size = static_cast<int64_t>(count_code_points(sign_and_prefix) + count_code_points(body));
  const int64_t missing = std::max<int64_t>(0, spec.width - size);
  heap.touch(static_cast<size_t>(missing));
  auto fill = [&](int64_t count) {
    std::string out;
    for (int64_t i = 0; i < count; ++i) out += spec.fill;
    return out;
  };
  const std::string head(sign_and_prefix);
  switch (align) {
    case '<':
      return head + std::string(body) + fill(missing);
    case '^':
      return fill(missing / 2) + head + std::string(body) + fill(missing - missing / 2);
    case '=':
      return head + fill(missing) + std::string(body);
    default:
      return fill(missing) + head + std::string(body);
  }
}

std::string sign_text(bool negative, char mode) {
  if (negative) return "-";
  return mode == '+' ? "+" : mode == ' ' ? " " : "";
}

std::string group_digits(const std::string& digits, char separator, size_t every) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % every == 0) out.push_back(separator);
    out.push_back(digits[i]);
  }
  return out;
}

std::string digits_of(uint64_t magnitude, int base, bool upper) {
  std::string out;
  const char* symbols = upper ? "0123456789ABCDEF" : "0123456789abcdef";
  do {
    out.push_back(symbols[magnitude % static_cast<unsigned>(base)]);
    magnitude /= static_cast<unsigned>(base);
  } while (magnitude != 0);
  std::reverse(out.begin(), out.end());
  return out;
}

uint64_t magnitude_of(int64_t i) {
  return i < 0 ? 0 - static_cast<uint64_t>(i) : static_cast<uint64_t>(i);
}

// |value| in the given printf style (e, f, g, and upper case), as in both styles.
std::string float_digits(double value, char type, int64_t precision, bool alternate) {
  if (std::isnan(value)) return std::isupper(static_cast<unsigned char>(type)) != 0 ? "NAN" : "nan";
  if (std::isinf(value)) return std::isupper(static_cast<unsigned char>(type)) != 0 ? "INF" : "inf";
  if (precision > 1000) fail("a precision of more than 1000 digits is not supported");
  const std::string format = std::string("%") + (alternate ? "#" : "") + ".*" + type;
  std::string out(1500, '\0');
  const int size = std::snprintf(out.data(), out.size(), format.c_str(), static_cast<int>(precision), std::fabs(value));
  out.resize(static_cast<size_t>(size));
  return out;
}

std::string format_integer(Heap& heap, int64_t value, const FieldSpec& spec) {
  const char type = spec.type;
  const int base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
  std::string digits = digits_of(magnitude_of(value), base, type == 'X');
  if (spec.grouping != 0) digits = group_digits(digits, spec.grouping, base == 10 ? 3 : 4);
  std::string head = sign_text(value < 0, spec.sign);
  if (spec.alternate && base != 10) head += std::string("0") + type;
  return pad(heap, head, digits, spec, '>');
}

std::string format_float(Heap& heap, double value, const FieldSpec& spec) {
  std::string body;
  char type = spec.type;
  double magnitude = value;
  if (type == '%') {
    magnitude *= 100;
    type = 'f';
  }
  if (type == 0 && spec.precision < 0) {
    body = float_repr(std::fabs(magnitude));
  } else if (type == 0) {
    // Like g, but with at least one digit after the point, and an exponent from the precision on.
    const int64_t precision = std::max<int64_t>(spec.precision, 1);
    body = float_digits(magnitude, 'g', precision, false);
    const int exponent = magnitude == 0 || !std::isfinite(magnitude)
                             ? 0
                             : std::atoi(float_digits(magnitude, 'e', precision - 1, false)
                                             .substr(float_digits(magnitude, 'e', precision - 1, false).find('e') + 1)
                                             .c_str());
    if (exponent == precision - 1 && std::isfinite(magnitude)) {
      body = float_digits(magnitude, 'e', precision - 1, false);
      const size_t e = body.find('e');
      std::string digits = body.substr(0, e);
      while (digits.find('.') != std::string::npos && digits.back() == '0') digits.pop_back();
      if (!digits.empty() && digits.back() == '.') digits.pop_back();
      body = digits + body.substr(e);
    } else if (body.find_first_of(".eni") == std::string::npos) {
      body += ".0";
    }
  } else {
    body = float_digits(magnitude, type == 'n' ? 'g' : type, spec.precision < 0 ? 6 : spec.precision, spec.alternate);
  }
  if (spec.grouping != 0 && std::isfinite(value)) {
    const size_t end = std::min(body.find_first_of(".e"), body.size());
    body = group_digits(body.substr(0, end), spec.grouping, 3) + body.substr(end);
  }
  if (spec.type == '%') body += "%";
  return pad(heap, sign_text(std::signbit(value) && !std::isnan(value), spec.sign), body, spec, '>');
}

// --- % ---

// Processes a printf-style format string and its values.
class PercentFormatter {
 public:
  PercentFormatter(Heap& heap, const Value& format, const Value& values)
      : heap_(heap), format_(format.text()), origins_(format.origins()), values_(values), markup_(format.is_markup()) {}

  MarkedText run() {
    while (at_ < format_.size()) {
      const size_t percent = std::min(format_.find('%', at_), format_.size());
      out_.add(format_.substr(at_, percent - at_), origins_, format_);
      at_ = percent;
      if (at_ < format_.size()) field();
      heap_.charge(out_.size());
      heap_.discharge(out_.size());
    }
    const bool mapping = values_.is(Type::kDict) || values_.is(Type::kList) || values_.is_undefined();
    const size_t given = values_.is(Type::kTuple) ? values_.list().items.size() : (mapping ? 0 : 1);
    if (used_ < given && !(used_names_ && given == 1)) fail("not all arguments converted during string formatting");
    return std::move(out_);
  }

 private:
  char peek() const {
    if (at_ >= format_.size()) fail("incomplete format");
    return format_[at_];
  }

  Value next_value() {
    if (values_.is(Type::kTuple)) {
      if (used_ >= values_.list().items.size()) fail("not enough arguments for format string");
      return values_.list().items[used_++];
    }
    if (used_ > 0) fail("not enough arguments for format string");
    ++used_;
    return values_;
  }

  Value named_value() {
    if (!values_.is(Type::kDict)) fail("format requires a mapping");
    size_t end = at_ + 1, depth = 1;
    for (; end < format_.size(); ++end) {
      if (format_[end] == '(') ++depth;
      if (format_[end] == ')' && --depth == 0) break;
    }
    if (end >= format_.size()) fail("incomplete format key");
    const std::string_view key = format_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    used_names_ = true;
    const Value* found = values_.dict().find(key);
    if (found == nullptr) fail({"no value for the format key ", repr_text(key)});
    return *found;
  }

  int64_t number() {
    if (peek() == '*') {
      ++at_;
      const Value value = next_value();
      if (!value.is_int_like()) fail("* requires int");
      if (value.as_int() > kMaxWidth || value.as_int() < -kMaxWidth) fail("a format width is too large");
      return value.as_int();
    }
    int64_t n = 0;
    while (peek() >= '0' && peek() <= '9') {
      n = n * 10 + (peek() - '0');
      if (n > kMaxWidth) fail("a format width is too large");
      ++at_;
    }
    return n;
  }

  void field() {
    ++at_;
    FieldSpec spec;
    Value named;
    if (peek() == '(') named = named_value();
    for (bool flags = true; flags;) {
      switch (peek()) {
        case '-':
          spec.align = '<';
          break;
        case '+':
          spec.sign = '+';
          break;
        case ' ':
          if (spec.sign != '+') spec.sign = ' ';
          break;
        case '#':
          spec.alternate = true;
          break;
        case '0':
          spec.fill = "0";
          break;
        default:
          flags = false;
      }
      if (flags) ++at_;
    }
    spec.width = number();
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    if (peek() == '.') {
      ++at_;
      spec.precision = std::max<int64_t>(0, number());
    }
    while (std::strchr("hlL", peek()) != nullptr && peek() != 0) ++at_;
    spec.type = peek();
    ++at_;
    if (spec.type == '%') {
      out_.add("%", origins_.least_trusted());
      return;
    }
    convert(named.is_missing() ? next_value() : named, spec);
  }

  void convert(const Value& value, FieldSpec spec) {
    const bool zeros = spec.fill == "0";
    switch (spec.type) {
      case 's':
      case 'r':
      case 'a': {
        MarkedText printed = spec.type == 's' ? to_marked_str(heap_, value) : to_marked_repr(heap_, value);
        if (spec.width == 0 && spec.precision < 0 && !markup_) {
          out_.add(printed);
          return;
        }
        std::string& text = printed.text;
        if (markup_ && !value.is_markup()) text = escape_html(text);
        if (spec.precision >= 0) text.resize(byte_offset(text, static_cast<size_t>(spec.precision)));
        spec.fill = " ";
        out_.add(pad(heap_, "", text, spec, '>'), printed.origins.least_trusted());
        return;
      }
      case 'c': {
        std::string text;
        if (value.is_int_like() && value.as_int() >= 0 && value.as_int() < 0x110000) {
          utf8::append(text, static_cast<char32_t>(value.as_int()));
        } else if (value.is_string() && code_points(value) == 1) {
          text = value.text();
        } else {
          fail("%c requires int or char");
        }
        spec.fill = " ";
        out_.add(pad(heap_, "", text, spec, '>'), Origin::kUntrusted);  // a number can produce any character
        return;
      }
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o':
        out_.add(integer(value, spec, zeros));
        return;
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        if (!value.is_number()) fail({"must be real number, not ", python_type_name(value)});
        if (zeros && spec.align == 0 && std::isfinite(value.as_real())) spec.align = '=';
        if (spec.align == '<') spec.fill = " ";
        out_.add(format_float(heap_, value.as_real(), spec));
        return;
      default:
        fail({"unsupported format character '", spec.type, "'"});
    }
  }

  std::string integer(const Value& value, FieldSpec spec, bool zeros) {
    const bool decimal = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
    int64_t i = 0;
    if (value.is_int_like()) {
      i = value.as_int();
    } else if (decimal && value.is(Type::kFloat) && std::fabs(value.as_real()) < 9.2e18) {
      i = static_cast<int64_t>(value.as_real());
    } else {
      fail({"%", spec.type, " format: a real number is required, not ", python_type_name(value)});
    }
    const int base = decimal ? 10 : spec.type == 'o' ? 8 : 16;
    std::string digits = digits_of(magnitude_of(i), base, spec.type == 'X');
    if (spec.precision > static_cast<int64_t>(digits.size())) {
      digits.insert(0, static_cast<size_t>(spec.precision) - digits.size(), '0');
    }
    std::string head = sign_text(i < 0, spec.sign);
    if (spec.alternate && !decimal) head += std::string("0") + spec.type;
    if (zeros && spec.align == 0) spec.align = '=';
    if (spec.align == '<') spec.fill = " ";
    return pad(heap_, head, digits, spec, '>');
  }

  Heap& heap_;
  std::string_view format_;
  const Origins& origins_;
  const Value& values_;
  bool markup_;
  size_t at_ = 0;
  size_t used_ = 0;
  bool used_names_ = false;
  MarkedText out_;
};

}  // namespace

Value format_percent(Interpreter& interpreter, const Value& format, const Value& values) {
  PercentFormatter formatter(interpreter.heap(), format, values);
  return interpreter.heap().string(formatter.run(), format.is_markup());
}

// --- {} ---

namespace {

FieldSpec parse_spec(std::string_view text) {
  FieldSpec spec;
  size_t at = 0;
  bool own_fill = false;
  auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  if (!text.empty()) {
    const size_t first = utf8::decode(text, 0).size;
    if (first < text.size() && is_align(text[first])) {
      spec.fill = std::string(text.substr(0, first));
      spec.align = text[first];
      own_fill = true;
      at = first + 1;
    } else if (is_align(text[0])) {
      spec.align = text[0];
      at = 1;
    }
  }
  auto peek = [&] { return at < text.size() ? text[at] : '\0'; };
  if (peek() == '+' || peek() == '-' || peek() == ' ') spec.sign = text[at++];
  if (peek() == 'z') ++at;
  if (peek() == '#') {
    spec.alternate = true;
    ++at;
  }
  if (peek() == '0') {
    if (!own_fill) spec.fill = "0";
    if (spec.align == 0) spec.align = '0';  // after the sign of a number, on the right of a text
    ++at;
  }
  auto number = [&] {
    int64_t n = 0;
    while (peek() >= '0' && peek() <= '9') {
      n = n * 10 + (text[at++] - '0');
      if (n > kMaxWidth) fail("a format width is too large");
    }
    return n;
  };
  spec.width = number();
  if (peek() == ',' || peek() == '_') spec.grouping = text[at++];
  if (peek() == '.') {
    ++at;
    if (peek() < '0' || peek() > '9') fail("Format specifier missing precision");
    spec.precision = number();
  }
  if (at < text.size()) spec.type = text[at++];
  if (at < text.size()) fail("Invalid format specifier");
  return spec;
}

[[noreturn]] void fail_code(char type, const Value& value) {
  fail({"Unknown format code '", type, "' for object of type '", python_type_name(value), "'"});
}

std::string format_value(Heap& heap, const Value& value, std::string_view spec_text) {
  FieldSpec spec = parse_spec(spec_text);
  const bool zero = spec.align == '0';
  if (value.is_number()) {
    if (zero) spec.align = '=';
    const bool integer_type = spec.type != 0 && std::strchr("bcdoxXn", spec.type) != nullptr;
    const bool float_type = spec.type != 0 && std::strchr("eEfFgG%", spec.type) != nullptr;
    if (value.is_int_like() && (spec.type == 0 || integer_type)) {
      if (spec.precision >= 0) fail("Precision not allowed in integer format specifier");
      if (spec.type != 'c') return format_integer(heap, value.as_int(), spec);
      std::string text;
      if (value.as_int() < 0 || value.as_int() >= 0x110000) fail("%c arg not in range(0x110000)");
      utf8::append(text, static_cast<char32_t>(value.as_int()));
      return pad(heap, "", text, spec, '<');
    }
    if (spec.type != 0 && !float_type && spec.type != 'n') fail_code(spec.type, value);
    return format_float(heap, value.as_real(), spec);
  }
  if (!value.is_string()) {
    fail({"unsupported format string passed to ", python_type_name(value), ".__format__"});
  }
  if (spec.type != 0 && spec.type != 's') fail_code(spec.type, value);
  if (spec.align == '=') fail("'=' alignment not allowed in string format specifier");
  if (zero) spec.align = '<';
  if (spec.sign != '-') fail("Sign not allowed in string format specifier");
  if (spec.grouping != 0) fail("Cannot specify ',' with 's'.");
  std::string text = value.text();
  if (spec.precision >= 0) text.resize(byte_offset(text, static_cast<size_t>(spec.precision)));
  return pad(heap, "", text, spec, '<');
}

// Processes a brace-style format string and its arguments.
class BraceFormatter {
 public:
  BraceFormatter(Interpreter& interpreter, const Value& format, const Args& args, const DictObject* names)
      : interpreter_(interpreter), heap_(interpreter.heap()), format_(format), args_(args), names_(names) {}

  MarkedText run() { return run(format_.text(), 1); }

 private:
  // `format` is the whole format string or a part of it.
  MarkedText run(std::string_view format, int depth) {
    if (depth > 2) fail("Max string recursion exceeded");
    MarkedText out;
    const auto literal = [&](size_t at) { out.add(format.substr(at, 1), format_.origins(), format_.text()); };
    for (size_t i = 0; i < format.size();) {
      const char c = format[i];
      if (c != '{' && c != '}') {
        const size_t end = std::min(format.find_first_of("{}", i), format.size());
        out.add(format.substr(i, end - i), format_.origins(), format_.text());
        i = end;
      } else if (i + 1 < format.size() && format[i + 1] == c) {
        literal(i);
        i += 2;
      } else if (c == '}') {
        fail("Single '}' encountered in format string");
      } else {
        const size_t end = closing(format, i);
        out.add(field(format.substr(i + 1, end - i - 1), depth));
        i = end + 1;
        heap_.charge(out.size());
        heap_.discharge(out.size());
      }
    }
    heap_.touch(out.size());
    return out;
  }

  static size_t closing(std::string_view format, size_t open) {
    size_t depth = 0;
    for (size_t i = open; i < format.size(); ++i) {
      if (format[i] == '{') ++depth;
      if (format[i] == '}' && --depth == 0) return i;
    }
    fail("expected '}' before end of string");
  }

  MarkedText field(std::string_view text, int depth) {
    size_t end = 0;
    for (bool in_brackets = false; end < text.size(); ++end) {
      if (text[end] == '[') in_brackets = true;
      if (text[end] == ']') in_brackets = false;
      if (!in_brackets && (text[end] == ':' || text[end] == '!')) break;
    }
    Value value = lookup(text.substr(0, end));
    std::string_view rest = text.substr(end);
    char conversion = 0;
    if (!rest.empty() && rest[0] == '!') {
      if (rest.size() < 2 || (rest.size() > 2 && rest[2] != ':')) fail("expected ':' after conversion specifier");
      conversion = rest[1];
      rest.remove_prefix(2);
    }
    if (conversion == 'r' || conversion == 'a') {
      value = heap_.string(to_marked_repr(heap_, value));
    } else if (conversion == 's') {
      value = heap_.string(to_marked_str(heap_, value));
    } else if (conversion != 0) {
      fail({"Unknown conversion specifier ", conversion});
    }
    MarkedText spec;
    if (!rest.empty()) spec = run(rest.substr(1), depth + 1);
    const bool escaped = format_.is_markup() && !value.is_markup();
    MarkedText printed = spec.text.empty() ? to_marked_str(heap_, value) : MarkedText();
    if (spec.text.empty() && !escaped) return printed;
    Origin origin = std::max(printed.origins.least_trusted(), spec.origins.least_trusted());
    if (value.is_string()) origin = std::max(origin, value.origins().least_trusted());
    if (!spec.text.empty()) printed.text = format_value(heap_, value, spec.text);
    // With the type c, a number can produce any character.
    if (!value.is_string() && !spec.text.empty() && spec.text.back() == 'c') origin = Origin::kUntrusted;
    return MarkedText(escaped ? escape_html(printed.text) : std::move(printed.text), origin);
  }

  Value lookup(std::string_view path) {
    size_t end = std::min(path.find_first_of(".["), path.size());
    Value value = first(path.substr(0, end));
    while (end < path.size()) {
      if (path[end] == '.') {
        const size_t stop = std::min(path.find_first_of(".[", end + 1), path.size());
        if (stop == end + 1) fail("Empty attribute in format string");
        value = interpreter_.get_attr(value, heap_.string(path.substr(end + 1, stop - end - 1)));
        end = stop;
      } else if (path[end] == '[') {
        const size_t stop = path.find(']', end);
        if (stop == std::string_view::npos) fail("Missing ']' in format string");
        const std::string_view key = path.substr(end + 1, stop - end - 1);
        if (key.empty()) fail("Empty attribute in format string");
        value = interpreter_.get_item(value, index_or_name(key));
        end = stop + 1;
      } else {
        fail("Only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return value;
  }

  Value index_or_name(std::string_view text) {
    bool overflow = false;
    const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
    if (!digits) return heap_.string(text);
    const auto parsed = parse_int(text, 10, &overflow);
    if (!parsed) fail("Too many decimal digits in format string");
    return Value::integer(*parsed);
  }

  Value first(std::string_view name) {
    Value key = name.empty() ? Value::integer(next_++) : index_or_name(name);
    if (!key.is_string()) {
      const int64_t i = key.as_int();
      if (!name.empty() && next_ > 0) fail("cannot switch from automatic field numbering to manual specification");
      if (i >= static_cast<int64_t>(args_.positional.size())) fail("Replacement index out of range");
      return args_.positional[static_cast<size_t>(i)];
    }
    if (names_ != nullptr) {
      const Value* found = names_->find(key);
      if (found != nullptr) return *found;
    }
    for (const auto& [arg, value] : args_.keyword) {
      if (arg.text() == name) return value;
    }
    fail({"no value for the format field ", repr_text(name)});
  }

  Interpreter& interpreter_;
  Heap& heap_;
  const Value& format_;
  const Args& args_;
  const DictObject* names_;
  int64_t next_ = 0;
};

}  // namespace

Value format_braces(Interpreter& interpreter, const Value& format, const Args& args, const DictObject* names) {
  BraceFormatter formatter(interpreter, format, args, names);
  return interpreter.heap().string(formatter.run(), format.is_markup());
}

}  // namespace quire::text::jinja
