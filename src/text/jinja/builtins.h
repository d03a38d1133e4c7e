// SPDX-License-Identifier: Apache-2.0
// The tables of what a template can use by name: filters, tests, global functions and methods.
#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace quire::text::jinja {

// Null if there is none of that name.
FilterFunction find_filter(std::string_view name);
TestFunction find_test(std::string_view name);

struct NativeEntry {
  const char* name;
  FunctionObject::Native call;
  bool mutates = false;  // an error in the immutable sandbox
};
const NativeEntry* find_global(std::string_view name);
const NativeEntry* find_method(Type type, std::string_view name);

// The parts of the tables, one per file; sorted by name.
struct FilterEntry {
  const char* name;
  FilterFunction call;
};
struct TestEntry {
  const char* name;
  TestFunction call;
};
std::vector<FilterEntry> text_filters();
std::vector<FilterEntry> sequence_filters();
std::vector<NativeEntry> string_methods();
std::vector<NativeEntry> list_methods();
std::vector<NativeEntry> tuple_methods();
std::vector<NativeEntry> dict_methods();
std::vector<NativeEntry> number_methods();

// Assigns the arguments of a call to parameters by position and name, as Python does for `function(params...)`. Absent
// ones are missing; extra, unknown or repeated ones throw.
class Bound {
 public:
  Bound(const char* function, const Args& args, std::initializer_list<std::string_view> params, size_t required = 0);

  bool has(size_t i) const { return !values_[i].is_missing(); }
  const Value& value(size_t i) const { return values_[i]; }
  Value value_or(size_t i, Value fallback) const { return has(i) ? values_[i] : std::move(fallback); }
  bool flag(size_t i, bool fallback) const;
  int64_t integer(size_t i, int64_t fallback) const;  // throws if it has another type
  bool none_or_absent(size_t i) const { return !has(i) || values_[i].is_none(); }
  const std::string& text(size_t i) const;  // throws if it has another type

 private:
  const char* function_;
  Values values_;
};

// Checks that there are only positional arguments, and their number.
void expect_positional(const char* function, const Args& args, size_t min, size_t max);

}  // namespace quire::text::jinja
