// SPDX-License-Identifier: Apache-2.0
// Conversion of argument values that are not written as JSON: typing by the tool's schema, Python literals, Gemma's
// values and nested elements. All results are JSON texts as Python's json.dumps writes them (", " and ": ").
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace quire::markup {

// The kinds of values that a schema allows.
struct Types {
  bool null = false, integer = false, number = false, boolean = false, object = false, array = false, string = false;
  bool none() const { return !(null || integer || number || boolean || object || array || string); }
  bool only_string() const { return string && !(null || integer || number || boolean || object || array); }
};

// A part of a tool's parameters schema. `root` is what "$ref" looks into. Null members: there is no schema.
struct Schema {
  const json::Value* root = nullptr;
  const json::Value* node = nullptr;

  // Follows "$ref" inside the document; gives up (no node) after a bounded number of steps.
  Schema resolved() const;
  // The schema of that property, or none.
  Schema property(std::string_view name) const;
  // The schema of array items, or none.
  Schema items() const;
  // The union of "type", of the kinds of "enum" and "const", and of anyOf, oneOf and allOf.
  Types types() const;
};

// Appends one byte of a text inside a JSON string.
void append_escaped(std::string& out, char c);
void append_json_string(std::string& out, std::string_view text);
// Python's json.dumps(value, ensure_ascii=False).
std::string dumps(const json::Value& value);

// The JSON text of a raw text by the types of its schema: null, integer, number, boolean, object or array, string, in
// this order; without a schema a string.
std::string convert_text(std::string_view text, const Schema& schema);
// The text as JSON if it parses, else as a string.
std::string json_or_string(std::string_view text);
// The same for a parsed value: strings where the schema wants something else are converted, also in members and items.
json::Value coerce(json::Value value, const Schema& schema, int depth = 0);

// The JSON text of a Python literal; nothing if it is not one. Numbers, strings, None, True, False, null, true, false,
// lists, tuples and sets (as arrays), dicts.
std::optional<std::string> python_literal(std::string_view text);

// The JSON text of one of Gemma's values: text between delimiters, objects with bare or delimited keys, arrays, and
// bare words, which the schema types. With `parse_strings`, text between delimiters that is JSON becomes that value.
std::optional<std::string> gemma_value(std::string_view text, std::string_view delimiter, const Schema& schema,
                                       bool parse_strings);

// The JSON text of nested elements <name>value</name>, whose tags all have `prefix` in front; lists are <item>s.
std::string nested_elements(std::string_view text, std::string_view prefix, const Schema& schema);

}  // namespace quire::markup
