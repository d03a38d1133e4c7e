// SPDX-License-Identifier: Apache-2.0
// The API as tables: one row a field with name, type, range, default and doc. Requests are checked against them, and
// /openapi.json and docs/api.md are made from them.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
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

// One row. A field that is absent or null takes its default.
struct Field {
  const char* name;
  FieldType type;
  const char* fallback;  // for people; "" says: none
  const char* doc;
  double min = -kNoBound;
  double max = kNoBound;
  bool above_min = false;  // min itself is too little
  bool required = false;
  const char* choices = nullptr;  // of a string: "a|b|c"
  // The sentence with which a value other than null, false, 0, "", [] or {} is refused.
  const char* refused = nullptr;
  bool no_empty_text = false;   // neither the text nor one in the list may be ""
  bool no_empty_list = false;   // the list may not be []
  const char* shape = nullptr;  // members of its JSON Schema that say more than the type, for the document
};

struct Schema {
  const char* name;
  const char* doc;
  std::vector<Field> fields;
};

// One route of the server. `schema` is null when there is no body.
struct RouteDoc {
  const char* method;
  const char* path;
  const char* summary;
  const Schema* schema = nullptr;
  const char* content = "application/json";
};

const Schema& completion_schema();
const Schema& chat_schema();
const Schema& responses_schema();
const Schema& messages_schema();
const Schema& count_tokens_schema();
const Schema& tokenize_schema();
const Schema& detokenize_schema();
const std::vector<RouteDoc>& route_docs();

// A request's JSON after the check: what is asked for has the type its row says.
class Body {
 public:
  // Parses and checks; fields without a row are dropped, so that they are ignored as vLLM ignores them.
  static ApiResult<Body> parse(std::string_view text, const Schema& schema);

  // Null when absent or null.
  const json::Value* get(std::string_view name) const;
  bool has(std::string_view name) const { return get(name) != nullptr; }
  bool boolean(std::string_view name, bool fallback) const;
  std::optional<int64_t> integer(std::string_view name) const;
  std::optional<double> number(std::string_view name) const;
  std::string string(std::string_view name, std::string_view fallback = "") const;
  std::vector<std::string> strings(std::string_view name) const;  // also from a single string
  std::vector<int32_t> ints(std::string_view name) const;
  json::Value take(std::string_view name) const;  // a copy; null when absent
  const json::Value& json() const { return json_; }

 private:
  json::Value json_;
};

// Checks one value against its row; `where` names it in the error.
ApiStatus check_field(const json::Value& value, const Field& field, const std::string& where);

std::string openapi_json(std::string_view version);
std::string api_markdown();

}  // namespace quire::api
