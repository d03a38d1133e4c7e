// SPDX-License-Identifier: Apache-2.0
// Sets of JSON numbers as regular expressions: comparison of decimal texts digit by digit.
#include "grammar/number_ranges.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "base/check.h"
#include "grammar/schema_strings.h"

namespace quire::grammar::schema {

namespace {

// The most digits that are written in a row. A small model may otherwise write digits until max_tokens, because one
// more is always allowed.
constexpr int64_t kMaxWritten = 64;

constexpr int64_t kMaxDigits = 400;

Decimal normal(bool negative, std::string digits, int64_t exponent) {
  const size_t first = digits.find_first_not_of('0');
  if (first == std::string::npos) return {};
  digits.erase(0, first);
  while (digits.back() == '0') {
    digits.pop_back();
    ++exponent;
  }
  return {negative, std::move(digits), exponent};
}

// The digits before and after the decimal point of the absolute value; the first are "0" if there are none.
std::string whole_digits(const Decimal& value) {
  const int64_t length = static_cast<int64_t>(value.digits.size()) + value.exponent;
  if (length <= 0) return "0";
  std::string whole = value.digits.substr(0, std::min<size_t>(value.digits.size(), static_cast<size_t>(length)));
  whole.append(static_cast<size_t>(length) - whole.size(), '0');
  return whole;
}

std::string fraction_digits(const Decimal& value) {
  if (value.exponent >= 0) return "";
  const size_t places = static_cast<size_t>(-value.exponent);
  if (places >= value.digits.size()) return std::string(places - value.digits.size(), '0') + value.digits;
  return value.digits.substr(value.digits.size() - places);
}

int compare_magnitudes(const Decimal& a, const Decimal& b) {
  const std::string whole_a = whole_digits(a), whole_b = whole_digits(b);
  if (whole_a.size() != whole_b.size()) return whole_a.size() < whole_b.size() ? -1 : 1;
  if (const int order = whole_a.compare(whole_b); order != 0) return order;
  return fraction_digits(a).compare(fraction_digits(b));  // no zeros at the end, so a prefix is less
}

Truth negation(Truth a) {
  return a == Truth::kUnknown ? a : (a == Truth::kYes ? Truth::kNo : Truth::kYes);
}

Truth conjunction(Truth a, Truth b) {
  if (a == Truth::kNo || b == Truth::kNo) return Truth::kNo;
  return a == Truth::kYes && b == Truth::kYes ? Truth::kYes : Truth::kUnknown;
}

// What a range says of the exponent classes: 0 is zero; 1 and 3 are integers of at least 1 in magnitude; 2 and 4 are
// other numbers but zero.
std::array<Truth, kExponentClasses> exponents_of(const NumberRange& range) {
  std::array<Truth, kExponentClasses> out;
  out.fill(Truth::kYes);
  const Decimal zero;
  out[0] = range.has(zero) ? Truth::kYes : Truth::kNo;
  if (!range.divisors.empty()) {
    for (int i = 1; i < kExponentClasses; ++i) out[i] = Truth::kUnknown;
  }
  if (range.integer) out[2] = out[4] = conjunction(out[2], Truth::kUnknown);
  auto apply = [&](int index, Truth truth) { out[index] = conjunction(out[index], truth); };
  const Decimal one{false, "1", 0}, minus_one{true, "1", 0};
  if (range.low) {
    // Integers of class 1 are at least 1; others of class 2 are just above zero.
    const int to_one = compare(*range.low, one);
    apply(1, to_one < 0 || (to_one == 0 && !range.low_open) ? Truth::kYes : Truth::kUnknown);
    apply(2, compare(*range.low, zero) <= 0 ? Truth::kYes : Truth::kUnknown);
    const int to_minus_one = compare(*range.low, minus_one);
    apply(3, to_minus_one > 0 || (to_minus_one == 0 && range.low_open) ? Truth::kNo : Truth::kUnknown);
    apply(4, compare(*range.low, zero) >= 0 ? Truth::kNo : Truth::kUnknown);
  }
  if (range.high) {
    const int to_minus_one = compare(*range.high, minus_one);
    apply(3, to_minus_one > 0 || (to_minus_one == 0 && !range.high_open) ? Truth::kYes : Truth::kUnknown);
    apply(4, compare(*range.high, zero) >= 0 ? Truth::kYes : Truth::kUnknown);
    const int to_one = compare(*range.high, one);
    apply(1, to_one < 0 || (to_one == 0 && range.high_open) ? Truth::kNo : Truth::kUnknown);
    apply(2, compare(*range.high, zero) <= 0 ? Truth::kNo : Truth::kUnknown);
  }
  return out;
}

NumberRange intersection(const NumberRange& a, const NumberRange& b) {
  NumberRange out = a;
  out.integer |= b.integer;
  for (const Decimal& divisor : b.divisors) {
    if (std::find(out.divisors.begin(), out.divisors.end(), divisor) == out.divisors.end())
      out.divisors.push_back(divisor);
  }
  if (b.low) {
    const int order = out.low ? compare(*b.low, *out.low) : 1;
    if (order > 0) {
      out.low = b.low;
      out.low_open = b.low_open;
    } else if (order == 0) {
      out.low_open |= b.low_open;
    }
  }
  if (b.high) {
    const int order = out.high ? compare(*b.high, *out.high) : -1;
    if (order < 0) {
      out.high = b.high;
      out.high_open = b.high_open;
    } else if (order == 0) {
      out.high_open |= b.high_open;
    }
  }
  return out;
}

// The integer of a decimal that is one, if it fits.
std::optional<int64_t> small_integer(const Decimal& value) {
  if (!value.is_integer() || value.digits.size() + static_cast<size_t>(value.exponent) > 17) return std::nullopt;
  int64_t out = 0;
  for (const char c : whole_digits(value)) out = out * 10 + (c - '0');
  return value.negative ? -out : out;
}

// The largest integer that is not above a value, or the smallest that is not below it.
std::optional<int64_t> rounded(const Decimal& value, bool up) {
  Decimal whole = normal(value.negative, whole_digits(value), 0);
  std::optional<int64_t> out = small_integer(whole);
  if (!out || value.is_integer()) return out;
  if (up && !value.negative) ++*out;
  if (!up && value.negative) --*out;
  return out;
}

// Whether readers that see a point or an exponent, and so take a double, would get another integer.
bool needs_digits(const Decimal& value) {
  if (value.exponent != 0 || value.digits.size() <= 15) return false;
  if (value.digits.size() > 17) return true;
  char exact[32];
  std::snprintf(exact, sizeof exact, "%.0f", std::strtod(value.digits.c_str(), nullptr));
  return value.digits != exact;
}

Decimal from_integer(int64_t value) {
  return *decimal_of(json::Value(value));
}

}  // namespace

std::optional<Decimal> decimal_of(const json::Value& value) {
  char text[64];
  std::string_view left;
  if (const std::string* digits = value.long_digits(); digits != nullptr) {
    left = *digits;
    if (left.size() > kMaxDigits) return std::nullopt;
  } else {
    std::to_chars_result result{};
    if (value.is_int()) {
      result = std::to_chars(text, text + sizeof(text), value.as_int());
    } else {
      const double number = value.as_double();
      if (!std::isfinite(number)) return std::nullopt;
      result = std::to_chars(text, text + sizeof(text), number, std::chars_format::scientific);
    }
    QUIRE_CHECK(result.ec == std::errc(), "a number has no text");
    left = {text, static_cast<size_t>(result.ptr - text)};
  }
  const bool negative = left.starts_with('-');
  if (negative) left.remove_prefix(1);
  int64_t exponent = 0;
  if (const size_t e = left.find('e'); e != std::string_view::npos) {
    std::string_view power = left.substr(e + 1);
    if (power.starts_with('+')) power.remove_prefix(1);
    std::from_chars(power.data(), power.data() + power.size(), exponent);
    left = left.substr(0, e);
  }
  std::string digits(left);
  if (const size_t point = digits.find('.'); point != std::string::npos) {
    exponent -= static_cast<int64_t>(digits.size() - point - 1);
    digits.erase(point, 1);
  }
  Decimal out = normal(negative, std::move(digits), exponent);
  if (out.exponent > kMaxDigits || out.exponent < -kMaxDigits) return std::nullopt;
  return out;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  const int order = compare_magnitudes(a, b);
  return a.negative ? -order : order;
}

bool is_multiple(const Decimal& value, const Decimal& divisor) {
  if (value.is_zero()) return true;
  // value / divisor is (digits of value / digits of divisor) * 10^power. A negative power makes the divisor larger.
  int64_t power = value.exponent - divisor.exponent;
  uint64_t modulus = std::stoull(divisor.digits);
  while (power < 0) {
    if (modulus > (uint64_t{1} << 58) / 10) return false;
    modulus *= 10;
    ++power;
  }
  unsigned __int128 remainder = 0;
  for (const char c : value.digits) remainder = (remainder * 10 + static_cast<unsigned>(c - '0')) % modulus;
  for (int64_t i = 0; i < power && remainder != 0; ++i) remainder = remainder * 10 % modulus;
  return remainder == 0;
}

bool NumberRange::has(const Decimal& value) const {
  if (integer && !value.is_integer()) return false;
  if (low) {
    const int order = compare(value, *low);
    if (order < 0 || (order == 0 && low_open)) return false;
  }
  if (high) {
    const int order = compare(value, *high);
    if (order > 0 || (order == 0 && high_open)) return false;
  }
  return std::all_of(divisors.begin(), divisors.end(),
                     [&](const Decimal& divisor) { return is_multiple(value, divisor); });
}

NumberSet NumberSets::none() {
  NumberSet out;
  out.form = NumberSet::Form::kValues;
  return out;
}

Regex NumberSets::digit(int first, int last) {
  if (first > last) return store_.nothing();
  return store_.bytes(ByteSet::range(static_cast<uint8_t>('0' + first), static_cast<uint8_t>('0' + last)));
}

Regex NumberSets::digits(int64_t min, std::optional<int64_t> max) {
  return store_.repeat(digit(0, 9), min, max);
}

// What may follow the whole part: anything, or for an integer only zeros.
Regex NumberSets::fraction(bool integer) {
  if (integer && strict_integers_) return store_.empty();
  const Regex digits_after = integer ? store_.repeat(digit(0, 0), 1) : digits(1, std::nullopt);
  return store_.optional(store_.concat(store_.literal("."), digits_after));
}

Regex NumberSets::whole() {
  return store_.either(digit(0, 0), store_.concat(digit(1, 9), digits(0, std::nullopt)));
}

Regex NumberSets::short_whole() {
  return store_.either(digit(0, 0), store_.concat(digit(1, 9), digits(0, kMaxWritten - 1)));
}

// Whole parts greater than this one.
Regex NumberSets::integer_above(std::string_view bound) {
  const int64_t length = static_cast<int64_t>(bound.size());
  Regex same = store_.nothing();  // of the same length, built from the last digit on
  for (int64_t i = length - 1; i >= 0; --i) {
    const int here = bound[static_cast<size_t>(i)] - '0';
    const Regex greater = store_.concat(digit(here + 1, 9), digits(length - 1 - i, length - 1 - i));
    same = store_.either(greater, store_.concat(digit(here, here), same));
  }
  return store_.either(same, store_.concat(digit(1, 9), digits(length, std::nullopt)));
}

// Whole parts less than this one.
Regex NumberSets::integer_below(std::string_view bound) {
  const int64_t length = static_cast<int64_t>(bound.size());
  Regex same = store_.nothing();
  for (int64_t i = length - 1; i >= 0; --i) {
    const int here = bound[static_cast<size_t>(i)] - '0';
    const int least = i == 0 && length > 1 ? 1 : 0;
    const Regex less = store_.concat(digit(least, here - 1), digits(length - 1 - i, length - 1 - i));
    same = store_.either(less, store_.concat(digit(here, here), same));
  }
  if (length == 1) return same;
  const Regex shorter = store_.either(digit(0, 0), store_.concat(digit(1, 9), digits(0, length - 2)));  // fewer digits
  return store_.either(same, shorter);
}

// Fractions (with their point, or nothing) greater than 0.digits; `bound` has no zero at its end.
Regex NumberSets::fraction_above(std::string_view bound, bool or_equal) {
  if (bound.empty() && or_equal) return fraction(false);
  const Regex any = digits(0, std::nullopt);
  Regex tail = or_equal ? any : store_.concat(store_.concat(store_.repeat(digit(0, 0), 0), digit(1, 9)), any);
  for (size_t i = bound.size(); i-- > 0;) {
    const int here = bound[i] - '0';
    tail = store_.either(store_.concat(digit(here + 1, 9), any), store_.concat(digit(here, here), tail));
  }
  return store_.concat(store_.literal("."), tail);
}

// Fractions (with their point, or nothing) less than 0.digits.
Regex NumberSets::fraction_below(std::string_view bound, bool or_equal) {
  const Regex zeros = store_.repeat(digit(0, 0), 0);
  if (bound.empty()) {
    if (!or_equal) return store_.nothing();
    return store_.optional(store_.concat(store_.literal("."), store_.repeat(digit(0, 0), 1)));
  }
  const Regex any = digits(0, std::nullopt);
  // A text that ends before the bound's last digit is less, but it has at least one digit.
  Regex tail = or_equal ? zeros : store_.nothing();
  for (size_t i = bound.size(); i-- > 0;) {
    const int here = bound[i] - '0';
    tail = store_.either(store_.concat(digit(0, here - 1), any), store_.concat(digit(here, here), tail));
    if (i > 0) tail = store_.either(store_.empty(), tail);
  }
  return store_.optional(store_.concat(store_.literal("."), tail));
}

Regex NumberSets::magnitude_above(const Decimal& bound, bool or_equal) {
  const std::string whole_part = whole_digits(bound);
  return store_.either(store_.concat(integer_above(whole_part), fraction(false)),
                       store_.concat(store_.literal(whole_part), fraction_above(fraction_digits(bound), or_equal)));
}

Regex NumberSets::magnitude_below(const Decimal& bound, bool or_equal) {
  const std::string whole_part = whole_digits(bound);
  return store_.either(store_.concat(integer_below(whole_part), fraction(false)),
                       store_.concat(store_.literal(whole_part), fraction_below(fraction_digits(bound), or_equal)));
}

Regex NumberSets::with_sign(Regex magnitude) {
  return store_.concat(store_.optional(store_.literal("-")), magnitude);
}

Regex NumberSets::at_least(const Decimal& bound, bool open) {
  const Regex minus = store_.literal("-");
  const Regex negative_zero = store_.concat(minus, magnitude_below({}, true));
  if (bound.negative) {
    return store_.either(store_.concat(whole(), fraction(false)), store_.concat(minus, magnitude_below(bound, !open)));
  }
  const Regex positive = magnitude_above(bound, !open);
  return bound.is_zero() && !open ? store_.either(positive, negative_zero) : positive;
}

Regex NumberSets::at_most(const Decimal& bound, bool open) {
  const Regex minus = store_.literal("-");
  if (bound.negative) return store_.concat(minus, magnitude_above(bound, !open));
  if (bound.is_zero()) {
    const Regex negative = store_.concat(minus, magnitude_above(bound, !open));
    return open ? negative : store_.either(negative, magnitude_below(bound, true));
  }
  return store_.either(store_.concat(minus, store_.concat(whole(), fraction(false))), magnitude_below(bound, !open));
}

// Texts whose value is a multiple of the divisor. With a divisor of M * 10^-k, a text with j places (less trailing
// zeros) is a multiple exactly if all its digits, read as one integer, are a multiple of M / gcd(M, 10^(k-j)).
Regex NumberSets::multiples(const Decimal& divisor) {
  int64_t places = std::max<int64_t>(0, -divisor.exponent);
  uint64_t modulus = std::stoull(divisor.digits);
  for (int64_t i = 0; i < divisor.exponent; ++i) {
    if (modulus > (uint64_t{1} << 31)) break;  // the caller has refused such divisors
    modulus *= 10;
  }
  const Regex zeros = store_.repeat(digit(0, 0), 0);
  std::vector<Regex> options;
  for (int64_t j = 0; j <= places; ++j) {
    uint64_t left = modulus;
    for (int64_t i = j; i < places; ++i) {
      if (left % 2 == 0) left /= 2;
      if (left % 5 == 0) left /= 5;
    }
    const Regex divisible = store_.digits_multiple_of(static_cast<uint32_t>(left));
    Regex shape = whole();
    if (j > 0) shape = store_.concat(shape, store_.concat(store_.literal("."), digits(j, j)));
    Regex text = store_.both(shape, divisible);
    const Regex padding =
        j == 0 ? store_.optional(store_.concat(store_.literal("."), store_.repeat(digit(0, 0), 1))) : zeros;
    options.push_back(store_.concat(text, padding));
  }
  return with_sign(store_.either(options));
}

// The texts of a range without exponents. `written`: only the texts that text() gives, which has integers without a
// point, and no more than kMaxWritten digits in a row.
Regex NumberSets::range_regex(const NumberRange& range, bool written) {
  std::vector<Regex> parts;
  if (range.low) parts.push_back(at_least(*range.low, range.low_open));
  if (range.high) parts.push_back(at_most(*range.high, range.high_open));
  for (const Decimal& divisor : range.divisors) parts.push_back(multiples(divisor));
  if (written) {
    const Regex places = store_.concat(store_.literal("."), digits(1, kMaxWritten));
    parts.push_back(with_sign(range.integer ? short_whole() : store_.concat(short_whole(), store_.optional(places))));
  } else if (range.integer || parts.empty()) {
    parts.push_back(with_sign(store_.concat(whole(), fraction(range.integer))));
  }
  Regex out = parts.back();
  for (size_t i = 0; i + 1 < parts.size(); ++i) out = store_.both(out, parts[i]);
  return out;
}

// Every text of a value without an exponent.
Regex NumberSets::value_regex(const Decimal& value) {
  const std::string places = fraction_digits(value);
  Regex text = store_.literal(whole_digits(value));
  const Regex zeros = store_.repeat(digit(0, 0), 0);
  if (places.empty()) {
    text = store_.concat(text, store_.optional(store_.concat(store_.literal("."), store_.repeat(digit(0, 0), 1))));
  } else {
    text = store_.concat(text, store_.concat(store_.literal("." + places), zeros));
  }
  if (value.is_zero()) return with_sign(text);
  return value.negative ? store_.concat(store_.literal("-"), text) : text;
}

// How languages print a double whose magnitude is below 10^-4 or from 10^16 on: one digit, a point and the others, and
// an exponent of two digits or more. Nothing for other values.
std::optional<Regex> NumberSets::printed_with_exponent(const Decimal& value) {
  const int64_t power = static_cast<int64_t>(value.digits.size()) + value.exponent - 1;
  if (value.is_zero() || (power >= -4 && power < 16)) return std::nullopt;
  std::string text = (value.negative ? "-" : "") + value.digits.substr(0, 1);
  if (value.digits.size() > 1) text += "." + value.digits.substr(1);
  const Regex sign = power < 0 ? store_.literal("-") : store_.optional(store_.literal("+"));
  Regex digits = store_.literal(std::to_string(std::abs(power)));
  if (std::abs(power) < 10) digits = store_.concat(store_.optional(store_.literal("0")), digits);
  const Regex parts[] = {store_.literal(text), store_.bytes(ByteSet::of("eE")), sign, digits};
  return store_.concat(parts);
}

Regex NumberSets::text_of_value(const Decimal& value) {
  if (needs_digits(value)) return store_.literal((value.negative ? "-" : "") + value.digits);
  const std::string places = fraction_digits(value);
  Regex text = store_.literal(whole_digits(value) + (places.empty() ? "" : "." + places));
  if (value.is_zero()) return with_sign(text);
  if (value.negative) text = store_.concat(store_.literal("-"), text);
  if (const std::optional<Regex> printed = printed_with_exponent(value)) text = store_.either(text, *printed);
  return text;
}

// Many values share the beginnings of their texts. Beside values that are no integers, an integer may be written as
// they are, with a point.
Regex NumberSets::text_of_values(const std::vector<Decimal>& values) {
  std::vector<std::string> integers;
  std::vector<Regex> options;
  for (const Decimal& value : values) {
    if (value.is_integer() && !value.is_zero() && value.digits.size() + static_cast<size_t>(value.exponent) <= 15) {
      integers.push_back((value.negative ? "-" : "") + whole_digits(value));
    } else {
      options.push_back(text_of_value(value));
    }
  }
  std::sort(integers.begin(), integers.end());
  integers.erase(std::unique(integers.begin(), integers.end()), integers.end());
  if (!integers.empty()) {
    const bool only_integers = std::ranges::all_of(values, &Decimal::is_integer);
    const Regex after = only_integers ? store_.empty() : store_.optional(store_.literal(".0"));
    options.push_back(store_.concat(either_of_literals(store_, integers), after));
  }
  return store_.either(options);
}

// The numbers next to zero that belong to a range of which zero is an end or an inner point, as languages print them:
// 1e-05, 2.5e-7. Their magnitude is below 10^-4.
Regex NumberSets::tiny(const NumberRange& range) {
  if (range.integer || !range.divisors.empty()) return store_.nothing();
  const Decimal zero, limit{false, "1", -4}, minus_limit{true, "1", -4};
  const Regex mantissa =
      store_.concat(digit(1, 9), store_.optional(store_.concat(store_.literal("."), digits(1, kMaxWritten))));
  const Regex few = store_.concat(store_.optional(digit(0, 0)), digit(5, 9));
  const Regex power = store_.either(few, store_.both(power_digits(), store_.concat(digit(1, 9), digits(1, 2))));
  const Regex parts[] = {mantissa, store_.bytes(ByteSet::of("eE")), store_.literal("-"), power};
  const Regex magnitude = store_.concat(parts);
  std::vector<Regex> options;
  if ((!range.low || compare(*range.low, zero) <= 0) && (!range.high || compare(*range.high, limit) >= 0))
    options.push_back(magnitude);
  if ((!range.high || compare(*range.high, zero) >= 0) && (!range.low || compare(*range.low, minus_limit) <= 0))
    options.push_back(store_.concat(store_.literal("-"), magnitude));
  return store_.either(options);
}

// The digits of an exponent, up to 307: readers of larger ones get infinity or zero, or refuse them.
Regex NumberSets::power_digits() {
  const Regex parts[] = {digits(1, 2), store_.concat(digit(1, 2), digits(2, 2)),
                         store_.concat(store_.literal("30"), digit(0, 7))};
  return store_.either(parts);
}

Regex NumberSets::exponent_regex(const std::array<Truth, kExponentClasses>& classes) {
  const Regex e = store_.bytes(ByteSet::of("eE"));
  const Regex power = power_digits();
  const Regex any_power = store_.concat(e, store_.concat(store_.optional(store_.bytes(ByteSet::of("+-"))), power));
  const Regex up = store_.concat(e, store_.concat(store_.optional(store_.literal("+")), power));
  const Regex down = store_.concat(e, store_.concat(store_.literal("-"), power));
  const Regex point = store_.literal(".");
  const Regex minus = store_.literal("-");
  const Regex positive = store_.concat(digit(1, 9), digits(0, kMaxWritten - 1));
  const Regex integers = store_.concat(positive, up);
  const Regex small = store_.concat(store_.concat(store_.literal("0."), store_.repeat(digit(0, 0), 0, kMaxWritten)),
                                    store_.concat(positive, any_power));
  const Regex others = store_.either(std::vector<Regex>{
      small, store_.concat(positive, store_.concat(point, store_.concat(digits(1, kMaxWritten), any_power))),
      store_.concat(positive, down)});
  const Regex zero_fraction = store_.optional(store_.concat(point, store_.repeat(digit(0, 0), 1, kMaxWritten)));
  std::vector<Regex> options;
  if (classes[0] == Truth::kYes)
    options.push_back(with_sign(store_.concat(digit(0, 0), store_.concat(zero_fraction, any_power))));
  if (classes[1] == Truth::kYes) options.push_back(integers);
  if (classes[2] == Truth::kYes) options.push_back(others);
  if (classes[3] == Truth::kYes) options.push_back(store_.concat(minus, integers));
  if (classes[4] == Truth::kYes) options.push_back(store_.concat(minus, others));
  return store_.either(options);
}

NumberSet NumberSets::as_regex(const NumberSet& a) {
  if (a.form == NumberSet::Form::kRegex) return a;
  NumberSet out;
  out.form = NumberSet::Form::kRegex;
  if (a.form == NumberSet::Form::kRange) {
    out.regex = range_regex(a.range, false);
    out.exponents = exponents_of(a.range);
    return out;
  }
  std::vector<Regex> options;
  out.exponents.fill(Truth::kNo);
  for (const Decimal& value : a.values) {
    options.push_back(value_regex(value));
    if (value.is_zero()) {
      out.exponents[0] = Truth::kYes;
    } else {
      const int first = value.negative ? 3 : 1;
      out.exponents[first] = out.exponents[first + 1] = Truth::kUnknown;
    }
  }
  out.regex = store_.either(options);
  return out;
}

NumberSet NumberSets::of_values(std::vector<Decimal> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  NumberSet out = none();
  out.values = std::move(values);
  return out;
}

NumberSet NumberSets::both(const NumberSet& a, const NumberSet& b) {
  using Form = NumberSet::Form;
  if (is_all(a)) return b;
  if (is_all(b)) return a;
  NumberSet out;
  if (a.form == Form::kRange && b.form == Form::kRange) {
    out.range = intersection(a.range, b.range);
    return out;
  }
  if (a.form == Form::kValues || b.form == Form::kValues) {
    const bool first = a.form == Form::kValues && (b.form != Form::kValues || a.values.size() <= b.values.size());
    const NumberSet &listed = first ? a : b, &other = first ? b : a;
    out.form = Form::kValues;
    for (const Decimal& value : listed.values) {
      bool in = false;
      if (other.form == Form::kRange) {
        in = other.range.has(value);
      } else if (other.form == Form::kValues) {
        in = std::binary_search(other.values.begin(), other.values.end(), value);
      } else {
        const std::string places = fraction_digits(value);
        in = store_.matches(other.regex,
                            (value.negative ? "-" : "") + whole_digits(value) + (places.empty() ? "" : "." + places));
      }
      if (in) out.values.push_back(value);
    }
    return out;
  }
  const NumberSet left = as_regex(a), right = as_regex(b);
  out.form = Form::kRegex;
  out.regex = store_.both(left.regex, right.regex);
  for (int i = 0; i < kExponentClasses; ++i) out.exponents[i] = conjunction(left.exponents[i], right.exponents[i]);
  return out;
}

NumberSet NumberSets::either(const NumberSet& a, const NumberSet& b) {
  using Form = NumberSet::Form;
  if (is_all(a) || is_all(b)) return all();
  if (a.form == Form::kValues && a.values.empty()) return b;
  if (b.form == Form::kValues && b.values.empty()) return a;
  NumberSet out;
  if (a.form == Form::kValues && b.form == Form::kValues) {
    out.form = Form::kValues;
    std::set_union(a.values.begin(), a.values.end(), b.values.begin(), b.values.end(), std::back_inserter(out.values));
    return out;
  }
  const NumberSet left = as_regex(a), right = as_regex(b);
  out.form = Form::kRegex;
  out.regex = store_.either(left.regex, right.regex);
  for (int i = 0; i < kExponentClasses; ++i)
    out.exponents[i] = negation(conjunction(negation(left.exponents[i]), negation(right.exponents[i])));
  return out;
}

NumberSet NumberSets::complement(const NumberSet& a) {
  if (is_all(a)) return none();
  if (a.form == NumberSet::Form::kValues && a.values.empty()) return all();
  NumberSet out = as_regex(a);
  out.regex = store_.both(range_regex({}, false), store_.complement(out.regex));
  for (Truth& truth : out.exponents) truth = negation(truth);
  return out;
}

bool NumberSets::is_none(const NumberSet& a) {
  if (is_all(a)) return false;
  if (a.form == NumberSet::Form::kValues) return a.values.empty();
  if (a.form == NumberSet::Form::kRange) {
    const NumberRange& range = a.range;
    if (range.low && range.high) {
      const int order = compare(*range.low, *range.high);
      if (order > 0 || (order == 0 && (range.low_open || range.high_open))) return true;
    } else {
      return false;
    }
    if (!range.integer && range.divisors.empty()) return false;
  }
  const NumberSet regex = as_regex(a);
  for (const Truth truth : regex.exponents) {
    if (truth == Truth::kYes) return false;
  }
  return store_.is_nothing(regex.regex).value_or(false);
}

Regex NumberSets::text(const NumberSet& a) {
  if (a.form == NumberSet::Form::kValues) {
    return text_of_values(a.values);
  }
  if (a.form == NumberSet::Form::kRange) {
    const Regex plain = range_regex(a.range, true);
    if (a.range.integer) return plain;
    if (a.range.unbounded()) {
      const Regex power =
          store_.concat(store_.bytes(ByteSet::of("eE")),
                        store_.concat(store_.optional(store_.bytes(ByteSet::of("+-"))), power_digits()));
      return store_.concat(plain, store_.optional(power));
    }
    const Regex parts[] = {plain, exponent_regex(exponents_of(a.range)), tiny(a.range)};
    return store_.either(parts);
  }
  // A fraction of zeros alone is written as ".0", and in a set of integers not at all.
  const Regex any = digits(0, std::nullopt);
  const Regex places = store_.concat(store_.literal("."), store_.concat(any, store_.concat(digit(1, 9), any)));
  const Regex broken = store_.both(a.regex, with_sign(store_.concat(whole(), places)));
  if (store_.is_nothing(broken).value_or(false)) return store_.both(a.regex, with_sign(short_whole()));
  const Regex few = store_.both(places, store_.concat(store_.literal("."), digits(1, kMaxWritten)));
  const Regex after = store_.optional(store_.either(store_.literal(".0"), few));
  const Regex written = with_sign(store_.concat(short_whole(), after));
  return store_.either(store_.both(a.regex, written), exponent_regex(a.exponents));
}

std::optional<std::vector<Decimal>> NumberSets::values(const NumberSet& a, size_t limit) {
  if (a.form == NumberSet::Form::kValues) {
    if (a.values.size() > limit) return std::nullopt;
    return a.values;
  }
  if (a.form != NumberSet::Form::kRange || !a.range.integer || !a.range.low || !a.range.high) return std::nullopt;
  const std::optional<int64_t> low = rounded(*a.range.low, true), high = rounded(*a.range.high, false);
  if (!low || !high || (*high >= *low && static_cast<uint64_t>(*high - *low) > 4 * limit)) return std::nullopt;
  std::vector<Decimal> out;
  for (int64_t value = *low; value <= *high; ++value) {
    Decimal decimal = from_integer(value);
    if (a.range.has(decimal)) out.push_back(std::move(decimal));
  }
  if (out.size() > limit) return std::nullopt;
  return out;
}

}  // namespace quire::grammar::schema
