// SPDX-License-Identifier: Apache-2.0
// A JSON reader and writer for model files and requests. Depth and size of the input are limited, and members keep
// their order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace quire::json {

class Value;
using Array = std::vector<Value>;
using Member = std::pair<std::string, Value>;
using Object = std::vector<Member>;  // in file order; a repeated name keeps its first place and its last value

enum class Kind : uint8_t { kNull, kBool, kInt, kDouble, kString, kArray, kObject };

// One JSON value. A plain value type: copies are deep. Integers that fit int64 stay integers; other numbers are
// doubles, and longer integers also keep their digits. as_*() REQUIRES that kind (anything else is our bug); the
// get_*() functions return an Error if a file has the wrong kind.
class Value {
 public:
  Value() = default;
  Value(std::nullptr_t) {}                                // NOLINT: implicit on purpose, as all of these
  Value(bool b) : kind_(Kind::kBool), int_(b ? 1 : 0) {}  // NOLINT
  Value(int i) : kind_(Kind::kInt), int_(i) {}            // NOLINT
  Value(int64_t i) : kind_(Kind::kInt), int_(i) {}        // NOLINT
  Value(double d) : kind_(Kind::kDouble), double_(d) {}   // NOLINT
  Value(std::string s);                                   // NOLINT
  Value(std::string_view s) : Value(std::string(s)) {}    // NOLINT
  Value(const char* s) : Value(std::string(s)) {}         // NOLINT
  Value(Array a);                                         // NOLINT
  Value(Object o);                                        // NOLINT
  // The double nearest to an integer that does not fit int64, with the integer's text, by which it is compared and
  // written. REQUIRES: `digits` are the digits of such an integer, perhaps after a minus sign.
  static Value long_integer(std::string_view digits, double nearest);
  Value(const Value& other);
  Value(Value&& other) noexcept = default;
  Value& operator=(const Value& other);
  Value& operator=(Value&& other) noexcept = default;
  ~Value();

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  bool is_int() const { return kind_ == Kind::kInt; }
  bool is_number() const { return kind_ == Kind::kInt || kind_ == Kind::kDouble; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_array() const { return kind_ == Kind::kArray; }
  bool is_object() const { return kind_ == Kind::kObject; }

  bool as_bool() const;
  int64_t as_int() const;
  double as_double() const;                // of an integer, too
  const std::string* long_digits() const;  // of a long_integer; null for all other values
  const std::string& as_string() const;
  const Array& as_array() const;
  Array& as_array();
  const Object& as_object() const;
  Object& as_object();

  // The member of that name; null if there is none or this is not an object. O(members).
  const Value* find(std::string_view name) const;
  // Sets or replaces a member. REQUIRES: this is an object.
  void set(std::string_view name, Value value);

  bool operator==(const Value& other) const;

 private:
  Kind kind_ = Kind::kNull;
  int64_t int_ = 0;
  double double_ = 0;
  std::unique_ptr<std::string> string_;
  std::unique_ptr<Array> array_;
  std::unique_ptr<Object> object_;
};

struct Limits {
  size_t max_depth = 128;
  size_t max_bytes = size_t{1} << 30;
  size_t max_values = 64'000'000;
  bool refuse_repeats = false;  // a repeated member name is an error
};

// Reads one JSON text (RFC 8259; also NaN, Infinity and -Infinity, as Python writes them in configs). The error says
// what was wrong at which line and column; prefix it with the file's name. Invalid UTF-8 and lone surrogates become
// U+FFFD.
Result<Value> parse(std::string_view text, const Limits& limits = {});

// Writes compact JSON ({"a":1}) or, with indent > 0, one member per line.
std::string dump(const Value& value, int indent = 0);
// Appends `text` as a quoted JSON string; non-ASCII stays as it is.
void append_quoted(std::string& out, std::string_view text);

// "a number", "an object", ...: for error messages.
const char* describe(Kind kind);

// Typed look-ups of a file's fields: the Error names `field` and what was found instead.
Result<int64_t> get_int(const Value& object, std::string_view field, int64_t min, int64_t max);
Result<int64_t> get_int_or(const Value& object, std::string_view field, int64_t fallback, int64_t min, int64_t max);
Result<double> get_double(const Value& object, std::string_view field);
Result<double> get_double_or(const Value& object, std::string_view field, double fallback);
Result<bool> get_bool_or(const Value& object, std::string_view field, bool fallback);
Result<std::string> get_string(const Value& object, std::string_view field);
Result<std::string> get_string_or(const Value& object, std::string_view field, std::string_view fallback);

}  // namespace quire::json
