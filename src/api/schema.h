// SPDX-License-Identifier: Apache-2.0
// The fields of requests as tables. Requests are checked against them, and the documents of the API are made from them.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/error.h"
#include "base/json.h"

namespace quire::api {

enum class FieldType : uint8_t {
  kBool,
  kInt,
  kNumber,
  kString,
  kStrings,          // a list of strings
  kStringOrStrings,  // one or a list
  kStringOrParts,    // a string, or a list of objects
  kInts,             // a list of token ids
  kPrompt,           // a string, a list of strings, token ids, or a list of token ids
  kObject,
  kObjects,    // a list of objects
  kStringMap,  // an object whose values are numbers
  kAny,
};

constexpr double kNoBound = std::numeric_limits<double>::infinity();

// What a row says beyond name, type and description; its members are given by name.
struct FieldRules {
  bool required = false;
  const char* fallback = "";  // the default, described for people; "": none
  double min = -kNoBound;
  double max = kNoBound;
  bool above_min = false;                      // min itself is too small
  std::vector<std::string_view> choices = {};  // the strings that are allowed; empty: all
  bool no_empty_text = false;                  // neither the text nor a text of the list may be ""
  bool no_empty_list = false;                  // the list may not be []
  const char* shape = nullptr;                 // more members of its JSON Schema, for the OpenAPI document
  // The end of the sentence that refuses a value other than null, false, 0, "", [] or {}. Null: values are accepted.
  const char* refused = nullptr;
};

// One row of a table. A field that is absent or null takes its default.
struct Field {
  const char* name;
  FieldType type;
  const char* doc;  // what the field does; "" for a field that is always refused
  FieldRules rules = {};
};

struct Schema {
  const char* name;
  const char* doc;
  std::vector<Field> fields;
};

const Schema& completion_schema();
const Schema& chat_schema();
const Schema& responses_schema();
const Schema& input_tokens_schema();
const Schema& messages_schema();
const Schema& count_tokens_schema();
const Schema& tokenize_schema();
const Schema& detokenize_schema();
const Schema& load_lora_adapter_schema();
const Schema& unload_lora_adapter_schema();
const Schema& embeddings_schema();
const Schema& cohere_embed_schema();
const Schema& score_schema();
const Schema& rerank_schema();
const Schema& classify_schema();
const Schema& pooling_schema();
const std::vector<std::string_view>& reasoning_efforts();

// The bounds on the JSON of a request.
json::Limits body_limits();

// The JSON of a request after the check: every field that is asked for has the type of its row.
class Body {
 public:
  // Parses and checks. Fields without a row are dropped, so that they are ignored as vLLM ignores them.
  static ApiResult<Body> parse(std::string_view text, const Schema& schema);

  // Null if the field is absent or null.
  const json::Value* get(std::string_view name) const;
  bool has(std::string_view name) const { return get(name) != nullptr; }
  bool boolean(std::string_view name, bool fallback) const;
  std::optional<int64_t> integer(std::string_view name) const;
  std::optional<double> number(std::string_view name) const;
  std::string string(std::string_view name, std::string_view fallback = "") const;
  std::vector<std::string> strings(std::string_view name) const;  // also from a single string
  std::vector<int32_t> ints(std::string_view name) const;
  json::Value take(std::string_view name) const;  // a copy; null if absent
  const json::Value& json() const { return json_; }

 private:
  json::Value json_;
};

// Checks one value against its row; `where` names it in the error.
ApiStatus check_field(const json::Value& value, const Field& field, const std::string& where);

// The member of that name; null if it is absent or JSON's null.
inline const json::Value* member(const json::Value& object, std::string_view name) {
  const json::Value* value = object.find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

// How errors and documents describe a row.
struct TypeText {
  const char* phrase = "";   // "a list of strings"
  const char* neutral = "";  // the values that a refused field may have, as JSON: "[[],null]"
};
TypeText type_text(FieldType type);
std::string bound_text(double bound);             // "1", "0.001"
std::string range_text(const FieldRules& rules);  // "from 0 to 2"; "" if every number is allowed

}  // namespace quire::api
