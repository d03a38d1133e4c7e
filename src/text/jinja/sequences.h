// SPDX-License-Identifier: Apache-2.0
// Helpers of methods and filters: sorting, dict updates, attribute paths, checked replacing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace quire::text::jinja {

// The items sorted by their keys; stable, even in reverse, like Python's sorted().
Values sort_by_keys(Heap& heap, const Values& items, const Values& keys, bool reverse);

// dict.update and dict(): pairs from one positional argument, then the keyword arguments.
void update_dict(Heap& heap, DictObject& dict, const char* function, const Args& args);

// str.replace, after checking the size of the result against the memory limit.
MarkedText replace_checked(Heap& heap, const MarkedText& text, std::string_view from, const MarkedText& to,
                           int64_t count);

// Whether there are cased characters and all are upper (lower) case.
bool is_all_case(std::string_view text, bool upper);

// Looks up "a.b.0" in an item, as Jinja2's filters do for attribute=.
class AttributePath {
 public:
  AttributePath(Interpreter& interpreter, const Value& attribute);  // None or missing: the item itself
  Value operator()(const Value& item, const Value& fallback = Value()) const;

 private:
  Interpreter* interpreter_;
  Values parts_;
};

// Lower case for strings, the value itself otherwise.
Value ignore_case(Heap& heap, const Value& value);

}  // namespace quire::text::jinja
