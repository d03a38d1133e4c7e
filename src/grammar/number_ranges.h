// SPDX-License-Identifier: Apache-2.0
// Sets of JSON numbers (bounds, multiples, listed values and their combinations) as regular expressions over their
// texts.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "grammar/regex.h"

namespace quire::grammar::schema {

// A decimal number: digits times ten to the power of exponent. Normal form: no zero at either end of `digits`, and zero
// itself has no digits, no sign and the exponent 0.
struct Decimal {
  bool negative = false;
  std::string digits;
  int64_t exponent = 0;

  bool is_zero() const { return digits.empty(); }
  bool is_integer() const { return exponent >= 0; }
  bool operator==(const Decimal&) const = default;
};

// The number of a JSON value: an integer as it is, a double as the shortest decimal that reads back as the same double.
// Nothing if it is not finite or its text without an exponent would be longer than 400 digits.
std::optional<Decimal> decimal_of(const json::Value& value);
// Negative, 0 or positive, as a is less than, equal to or greater than b.
int compare(const Decimal& a, const Decimal& b);
inline bool operator<(const Decimal& a, const Decimal& b) {
  return compare(a, b) < 0;
}
// Whether value / divisor is an integer. REQUIRES: divisor is positive and its digits are fewer than 18.
bool is_multiple(const Decimal& value, const Decimal& divisor);

// The numbers between two bounds that are multiples of all divisors.
struct NumberRange {
  std::optional<Decimal> low, high;
  bool low_open = false, high_open = false;  // whether the bound itself is outside
  bool integer = false;
  std::vector<Decimal> divisors;

  bool unbounded() const { return !low && !high && !integer && divisors.empty(); }
  bool has(const Decimal& value) const;
};

// Whether all texts of a class of numbers belong to a set, none, or some that cannot be told by a small expression.
enum class Truth : uint8_t { kNo, kYes, kUnknown };
// Numbers that are written with an exponent, by what can be told of their value without looking at the digits.
inline constexpr int kExponentClasses = 5;  // zero, +integer, +other, -integer, -other

// A set of numbers. Whether a text without an exponent belongs to it is known exactly; of texts with an exponent only
// whole classes belong to it, so that "1e3" may be left out of a set to which 1000 belongs, but no text is ever in a
// set to which its value does not belong.
struct NumberSet {
  enum class Form : uint8_t { kRange, kValues, kRegex };
  Form form = Form::kRange;
  NumberRange range;
  std::vector<Decimal> values;  // kValues: sorted, unique; may be empty: no number at all
  Regex regex;                  // texts without an exponent, in every spelling
  std::array<Truth, kExponentClasses> exponents{};
};

// Makes and combines sets of numbers. `strict_integers`: as in draft 4, a text with a fraction is never an integer, not
// even 1.0. Not thread-safe, as the store is not.
class NumberSets {
 public:
  NumberSets(RegexStore& store, bool strict_integers) : store_(store), strict_integers_(strict_integers) {}

  static NumberSet all() { return {}; }
  static NumberSet none();
  static NumberSet of_values(std::vector<Decimal> values);
  NumberSet both(const NumberSet& a, const NumberSet& b);
  NumberSet either(const NumberSet& a, const NumberSet& b);
  NumberSet complement(const NumberSet& a);
  // Whether no number belongs to the set; false if that cannot be told cheaply.
  bool is_none(const NumberSet& a);
  bool is_all(const NumberSet& a) const { return a.form == NumberSet::Form::kRange && a.range.unbounded(); }
  // The texts that a set may be written as. A fraction of zeros is at most ".0", and in a set of integers there is
  // none: JSON Schema calls 2.0 an integer, but many programs that read JSON do not.
  Regex text(const NumberSet& a);
  // The texts of one value; of an integer only its digits, and an exponent if the value is large.
  Regex text_of_value(const Decimal& value);
  // The values of a set that has at most `limit` of them; nothing if there may be more.
  std::optional<std::vector<Decimal>> values(const NumberSet& a, size_t limit);

 private:
  NumberSet as_regex(const NumberSet& a);
  Regex digit(int first, int last);
  Regex digits(int64_t min, std::optional<int64_t> max);
  Regex fraction(bool integer);
  Regex whole();
  Regex short_whole();
  Regex integer_above(std::string_view digits);
  Regex integer_below(std::string_view digits);
  Regex fraction_above(std::string_view digits, bool or_equal);
  Regex fraction_below(std::string_view digits, bool or_equal);
  Regex magnitude_above(const Decimal& bound, bool or_equal);
  Regex magnitude_below(const Decimal& bound, bool or_equal);
  Regex at_least(const Decimal& bound, bool open);
  Regex at_most(const Decimal& bound, bool open);
  Regex multiples(const Decimal& divisor);
  Regex with_sign(Regex magnitude);
  Regex range_regex(const NumberRange& range, bool written);
  Regex value_regex(const Decimal& value);
  std::optional<Regex> printed_with_exponent(const Decimal& value);
  Regex text_of_values(const std::vector<Decimal>& values);
  Regex tiny(const NumberRange& range);
  Regex power_digits();
  Regex exponent_regex(const std::array<Truth, kExponentClasses>& classes);

  RegexStore& store_;
  bool strict_integers_;
};

}  // namespace quire::grammar::schema
