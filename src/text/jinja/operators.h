// SPDX-License-Identifier: Apache-2.0
// Python's operators on values: truth, equality, order, arithmetic, printing, length, iteration, items and slices.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace quire::text::jinja {

// "str", "int", "NoneType", ...
const char* python_type_name(const Value& value);
// Throws the error of using an undefined value.
[[noreturn]] void fail_undefined(const Value& value);
std::string undefined_message(const Value& value);

bool is_true(const Value& value);
bool equal(Heap& heap, const Value& a, const Value& b);
bool equal_keys(const Value& a, const Value& b);  // for hashable values
// Python's a < b; throws if the types have no order. `symbol` is for the message.
bool less(Heap& heap, const Value& a, const Value& b, const char* symbol = "<");
bool less_or_equal(Heap& heap, const Value& a, const Value& b, const char* symbol = "<=");
bool contains(Heap& heap, const Value& container, const Value& item);

// --- Printing ---
void append_str(Heap& heap, MarkedText& out, const Value& value);   // str(value)
void append_repr(Heap& heap, MarkedText& out, const Value& value);  // repr(value)
MarkedText to_marked_str(Heap& heap, const Value& value);
MarkedText to_marked_repr(Heap& heap, const Value& value);
// The same for messages and comparisons, where origins do not matter.
std::string to_str(Heap& heap, const Value& value);
std::string to_repr(Heap& heap, const Value& value);
// The value itself if it is a string (Markup stays Markup), else its str().
Value soft_str(Heap& heap, const Value& value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool pretty = false;
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
  Origin origin = Origin::kTemplate;  // of the indent and the separators
};
void append_json(Heap& heap, MarkedText& out, const Value& value, const JsonStyle& style);
MarkedText pretty_print(Heap& heap, const Value& value);  // pprint.pformat

// --- Arithmetic ---
// Throws the error of a result that 64 bits cannot hold.
[[noreturn]] void fail_large_int();
Value add(Heap& heap, const Value& a, const Value& b);
Value subtract(const Value& a, const Value& b);
Value multiply(Heap& heap, const Value& a, const Value& b);
Value divide(const Value& a, const Value& b);
Value floor_divide(const Value& a, const Value& b);
Value modulo(Interpreter& interpreter, const Value& a, const Value& b);
Value power(const Value& a, const Value& b);
Value negate(const Value& a);
Value positive(const Value& a);

// --- Sequences ---
// A part of a string value: `part` is a view into its text. Keeps origins and Markup.
Value substring(Heap& heap, const Value& source, std::string_view part);
int64_t code_points(const Value& string);        // len() of a string, cached
bool has_length(const Value& value);             // whether len() works
int64_t length(Heap& heap, const Value& value);  // len(); throws
// value[index] for an integer, if it exists.
bool item_at(Heap& heap, const Value& value, int64_t index, Value* out);
Value slice(Heap& heap, const Value& value, const Value& start, const Value& stop, const Value& step);

bool is_iterable(const Value& value);
// Iterates over any iterable. Changes to a list during iteration are visible, as in Python.
class Iterator {
 public:
  Iterator() = default;
  Iterator(Heap& heap, const Value& iterable);  // throws if it is not iterable
  bool next(Value& out);
  bool known_length(int64_t* length) const;  // of the whole iterable, if len() works on it

 private:
  Heap* heap_ = nullptr;
  Value source_;
  size_t position_ = 0;
  size_t size_at_start_ = 0;
};
Values to_values(Heap& heap, const Value& iterable);  // list(iterable)
Value make_generator(Heap& heap, std::function<bool(Value&)> next, const char* python_type = "generator");

// Escaped text, unless it is Markup already.
Value escape(Heap& heap, const Value& value);

}  // namespace quire::text::jinja
