// SPDX-License-Identifier: Apache-2.0
// SchemaDocument: the subschemas of one JSON Schema, and what its references mean.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace quire::grammar::schema {

// The version of JSON Schema that a document declares; without "$schema" it is the newest.
enum class Draft : uint8_t { k3, k4, k6, k7, k2019, k2020 };

// Gives every object and boolean of a document a number, and resolves references between them. Schemas that are made up
// while a document is translated are added to it. Keeps references to the document, which must outlive it. Not
// thread-safe.
class SchemaDocument {
 public:
  // Fails if the document is nested too deeply.
  static Result<SchemaDocument> make(const json::Value& root);

  Draft draft() const { return draft_; }
  // Whether the document has a "$schema".
  bool declares_draft() const { return declares_draft_; }
  // The number of a value inside the document. REQUIRES: it is an object or a boolean of it.
  uint32_t index_of(const json::Value& value) const { return index_.at(&value); }
  const json::Value& value(uint32_t index) const { return *nodes_[index].value; }
  // Where a value lies, as a JSON pointer: "/properties/a"; "/" for the root.
  std::string path(uint32_t index) const;
  // Adds a schema that does not occur in the document; errors about it name the place of `origin`, which also is the
  // base of its references. All its parts get numbers, too.
  uint32_t add(json::Value schema, uint32_t origin);
  // Adds the schema of exactly this value, which is a part of the document: nothing is copied. Errors name the place of
  // `origin`. It is no place that a reference can name.
  uint32_t add_constant(const json::Value& value, uint32_t origin);
  // Whether add_constant() made it, so that value() is what it stands for.
  bool is_constant(uint32_t index) const { return nodes_[index].constant; }

  // What a reference at this place refers to. Fails if it lies outside of the document or does not exist.
  Result<uint32_t> resolve(uint32_t from, std::string_view reference) const;
  // The only place with this $dynamicAnchor; fails if there are several, since their choice depends on the way there.
  Result<uint32_t> resolve_dynamic(uint32_t from, std::string_view reference) const;
  // The root of the document for $recursiveRef; fails if there are several resources of which one has
  // "$recursiveAnchor".
  Result<uint32_t> resolve_recursive(uint32_t from) const;

 private:
  struct Node {
    const json::Value* value = nullptr;
    uint32_t parent = 0;
    uint32_t resource = 0;  // an index into resources_
    std::string token;      // the last token of the path
    bool constant = false;
  };
  struct Resource {
    std::string uri;  // absolute, or relative to nowhere; without a fragment
    uint32_t root = 0;
  };

  Status walk(const json::Value& value, uint32_t parent, std::string token, uint32_t resource, bool is_schema,
              int depth);
  Status walk_members(const json::Object& object, uint32_t self, uint32_t resource, bool is_schema, int depth);
  void note_identity(const json::Object& object, uint32_t self, uint32_t& resource);
  Result<uint32_t> follow_pointer(const json::Value& root, std::string_view pointer) const;

  Draft draft_ = Draft::k2020;
  bool declares_draft_ = false;
  std::vector<Node> nodes_;
  std::unordered_map<const json::Value*, uint32_t> index_;
  std::vector<Resource> resources_;
  std::map<std::string, uint32_t, std::less<>> by_uri_;           // URI to resource
  std::map<std::pair<uint32_t, std::string>, uint32_t> anchors_;  // resource and name to node
  std::map<std::string, std::vector<uint32_t>, std::less<>> dynamic_anchors_;
  bool recursive_anchor_ = false;
  std::deque<json::Value> added_;
};

// What a URI reference means at a base URI (RFC 3986, section 5.2).
std::string resolve_uri(std::string_view base, std::string_view reference);

}  // namespace quire::grammar::schema
