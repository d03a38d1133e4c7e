// SPDX-License-Identifier: Apache-2.0
// SchemaDocument: the subschemas of one JSON Schema, and what its references mean.
#include "grammar/schema_document.h"

#include <algorithm>
#include <array>

namespace quire::grammar::schema {

namespace {

constexpr int kMaxDocumentDepth = 200;

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Keywords whose members are schemas under names of the user.
bool holds_named_schemas(std::string_view keyword) {
  return is_one_of(keyword,
                   {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"});
}

// Keywords whose value is a schema or a list of them.
bool holds_schemas(std::string_view keyword) {
  return is_one_of(keyword, {"additionalProperties", "propertyNames", "unevaluatedProperties", "items", "prefixItems",
                             "additionalItems", "unevaluatedItems", "contains", "allOf", "anyOf", "oneOf", "not", "if",
                             "then", "else", "contentSchema"});
}

struct UriParts {
  std::string_view scheme, authority, path, query;
  bool has_scheme = false, has_authority = false, has_query = false;
};

// Splits a URI without its fragment.
UriParts split_uri(std::string_view uri) {
  UriParts out;
  uri = uri.substr(0, uri.find('#'));
  const size_t colon = uri.find_first_of(":/?");
  if (colon != std::string_view::npos && colon > 0 && uri[colon] == ':') {
    out.scheme = uri.substr(0, colon);
    out.has_scheme = true;
    uri.remove_prefix(colon + 1);
  }
  if (uri.starts_with("//")) {
    uri.remove_prefix(2);
    out.has_authority = true;
    const size_t end = std::min(uri.find_first_of("/?"), uri.size());
    out.authority = uri.substr(0, end);
    uri.remove_prefix(end);
  }
  if (const size_t question = uri.find('?'); question != std::string_view::npos) {
    out.query = uri.substr(question + 1);
    out.has_query = true;
    uri = uri.substr(0, question);
  }
  out.path = uri;
  return out;
}

std::string without_dot_segments(std::string_view path) {
  std::vector<std::string_view> segments;
  const bool absolute = path.starts_with('/');
  size_t pos = absolute ? 1 : 0;
  bool directory = false;
  while (pos <= path.size()) {
    const size_t end = std::min(path.find('/', pos), path.size());
    const std::string_view segment = path.substr(pos, end - pos);
    directory = segment == "." || segment == "..";
    if (segment == "..") {
      if (!segments.empty()) segments.pop_back();
    } else if (segment != ".") {
      segments.push_back(segment);
    }
    pos = end + 1;
  }
  std::string out = absolute ? "/" : "";
  for (size_t i = 0; i < segments.size(); ++i) {
    if (i > 0) out += '/';
    out += segments[i];
  }
  if (directory && !out.ends_with('/')) out += '/';
  return out;
}

std::string percent_decoded(std::string_view text) {
  auto hex = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex(text[i + 1]) >= 0 && hex(text[i + 2]) >= 0) {
      out += static_cast<char>(hex(text[i + 1]) * 16 + hex(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string pointer_token(std::string_view token) {
  std::string out;
  for (const char c : token) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

std::string pointer_unescaped(std::string_view token) {
  std::string out;
  for (size_t i = 0; i < token.size(); ++i) {
    if (token[i] == '~' && i + 1 < token.size() && (token[i + 1] == '0' || token[i + 1] == '1')) {
      out += token[++i] == '0' ? '~' : '/';
    } else {
      out += token[i];
    }
  }
  return out;
}

Draft draft_of(const json::Value& root) {
  const json::Value* declared = root.find("$schema");
  if (declared == nullptr || !declared->is_string()) return Draft::k2020;
  static constexpr std::array<std::pair<std::string_view, Draft>, 5> kDrafts = {{{"draft-03", Draft::k3},
                                                                                 {"draft-04", Draft::k4},
                                                                                 {"draft-06", Draft::k6},
                                                                                 {"draft-07", Draft::k7},
                                                                                 {"2019-09", Draft::k2019}}};
  for (const auto& [name, draft] : kDrafts) {
    if (declared->as_string().find(name) != std::string::npos) return draft;
  }
  return Draft::k2020;
}

}  // namespace

std::string resolve_uri(std::string_view base, std::string_view reference) {
  const UriParts r = split_uri(reference), b = split_uri(base);
  UriParts t = r;
  std::string path;
  if (r.has_scheme || r.has_authority) {
    path = without_dot_segments(r.path);
  } else if (r.path.empty()) {
    path = b.path;
    if (!r.has_query) {
      t.query = b.query;
      t.has_query = b.has_query;
    }
  } else if (r.path.starts_with('/')) {
    path = without_dot_segments(r.path);
  } else {
    std::string merged;
    if (b.has_authority && b.path.empty()) {
      merged = "/" + std::string(r.path);
    } else {
      const size_t slash = b.path.rfind('/');
      if (slash != std::string_view::npos) merged = b.path.substr(0, slash + 1);
      merged += r.path;
    }
    path = without_dot_segments(merged);
  }
  if (!r.has_scheme) {
    t.scheme = b.scheme;
    t.has_scheme = b.has_scheme;
    if (!r.has_authority) {
      t.authority = b.authority;
      t.has_authority = b.has_authority;
    }
  }
  std::string out;
  if (t.has_scheme) out += std::string(t.scheme) + ":";
  if (t.has_authority) out += "//" + std::string(t.authority);
  out += path;
  if (t.has_query) out += "?" + std::string(t.query);
  return out;
}

Result<SchemaDocument> SchemaDocument::make(const json::Value& root) {
  SchemaDocument document;
  document.draft_ = draft_of(root);
  document.declares_draft_ = root.find("$schema") != nullptr;
  document.resources_.push_back({"", 0});
  document.by_uri_.emplace("", 0);
  QUIRE_TRY(document.walk(root, 0, "", 0, true, 0));
  return document;
}

Status SchemaDocument::walk(const json::Value& value, uint32_t parent, std::string token, uint32_t resource,
                            bool is_schema, int depth) {
  if (depth > kMaxDocumentDepth) return invalid_argument("The schema is nested too deeply.");
  const auto self = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back({&value, parent, resource, std::move(token)});
  index_.emplace(&value, self);
  if (value.is_array()) {
    const json::Array& items = value.as_array();
    for (size_t i = 0; i < items.size(); ++i) {
      // Listed strings and numbers, of which an enum may have very many, are no schemas.
      if (!items[i].is_object() && !items[i].is_array() && !items[i].is_bool()) continue;
      QUIRE_TRY(walk(items[i], self, std::to_string(i), resource, is_schema, depth + 1));
    }
    return {};
  }
  if (!value.is_object()) return {};
  if (is_schema) note_identity(value.as_object(), self, resource);
  nodes_[self].resource = resource;
  return walk_members(value.as_object(), self, resource, is_schema, depth);
}

Status SchemaDocument::walk_members(const json::Object& object, uint32_t self, uint32_t resource, bool is_schema,
                                    int depth) {
  for (const auto& [name, member] : object) {
    if (!member.is_object() && !member.is_array() && !member.is_bool()) continue;
    if (is_schema && holds_named_schemas(name) && member.is_object()) {
      const auto names = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back({&member, self, resource, name});
      index_.emplace(&member, names);
      for (const auto& [key, schema] : member.as_object())
        QUIRE_TRY(walk(schema, names, key, resource, true, depth + 2));
    } else {
      QUIRE_TRY(walk(member, self, name, resource, is_schema && holds_schemas(name), depth + 1));
    }
  }
  return {};
}

// Notes the names that a schema gives itself. `resource` becomes the new one if the schema begins one.
void SchemaDocument::note_identity(const json::Object& object, uint32_t self, uint32_t& resource) {
  auto text = [&](std::string_view keyword) -> const std::string* {
    for (const auto& [name, member] : object) {
      if (name == keyword && member.is_string()) return &member.as_string();
    }
    return nullptr;
  };
  const bool old = draft_ <= Draft::k7;
  const std::string* id = text(draft_ <= Draft::k4 ? "id" : "$id");
  if (id == nullptr && draft_ <= Draft::k4) id = text("$id");
  // Beside a $ref the older drafts ignore everything.
  if (id != nullptr && !(old && text("$ref") != nullptr)) {
    const size_t hash = id->find('#');
    const std::string_view uri = std::string_view(*id).substr(0, hash);
    if (!uri.empty()) {
      Resource next{resolve_uri(resources_[resource].uri, uri), self};
      if (self == 0) {
        resources_[0] = next;
      } else {
        resource = static_cast<uint32_t>(resources_.size());
        resources_.push_back(next);
      }
      by_uri_.emplace(next.uri, resource);
    }
    if (hash != std::string::npos && hash + 1 < id->size())
      anchors_.emplace(std::pair(resource, id->substr(hash + 1)), self);
  }
  if (const std::string* anchor = text("$anchor")) anchors_.emplace(std::pair(resource, *anchor), self);
  if (const std::string* anchor = text("$dynamicAnchor")) {
    anchors_.emplace(std::pair(resource, *anchor), self);
    dynamic_anchors_[*anchor].push_back(self);
  }
  for (const auto& [name, member] : object) {
    if (name == "$recursiveAnchor" && member.is_bool() && member.as_bool()) recursive_anchor_ = true;
  }
}

std::string SchemaDocument::path(uint32_t index) const {
  std::vector<std::string_view> tokens;
  for (; index != 0; index = nodes_[index].parent) tokens.push_back(nodes_[index].token);
  std::string out;
  for (size_t i = tokens.size(); i-- > 0;) {
    if (!tokens[i].empty() || i > 0) out += "/" + pointer_token(tokens[i]);
  }
  return out.empty() ? "/" : out;
}

uint32_t SchemaDocument::add(json::Value schema, uint32_t origin) {
  added_.push_back(std::move(schema));
  const auto self = static_cast<uint32_t>(nodes_.size());
  // Made-up schemas are small and flat, so this cannot fail.
  const Status status = walk(added_.back(), origin, "", nodes_[origin].resource, false, 0);
  QUIRE_CHECK(status.ok(), "a made-up schema is nested too deeply");
  return self;
}

uint32_t SchemaDocument::add_constant(const json::Value& value, uint32_t origin) {
  const auto self = static_cast<uint32_t>(nodes_.size());
  // The parts of a constant lie side by side, so that their paths stay short.
  const Node& from = nodes_[origin];
  nodes_.push_back({&value, from.constant ? from.parent : origin, from.resource, "", true});
  return self;
}

Result<uint32_t> SchemaDocument::follow_pointer(const json::Value& root, std::string_view pointer) const {
  const json::Value* at = &root;
  while (!pointer.empty()) {
    pointer.remove_prefix(1);
    const size_t end = std::min(pointer.find('/'), pointer.size());
    const std::string token = pointer_unescaped(pointer.substr(0, end));
    pointer.remove_prefix(end);
    if (at->is_array()) {
      const json::Array& items = at->as_array();
      const bool digits =
          !token.empty() && token.size() < 10 && token.find_first_not_of("0123456789") == std::string::npos;
      const size_t i = digits ? std::stoul(token) : items.size();
      at = i < items.size() ? &items[i] : nullptr;
    } else {
      at = at->find(token);
    }
    if (at == nullptr) break;
  }
  const auto found = at == nullptr ? index_.end() : index_.find(at);
  if (found == index_.end() || at->is_array()) return not_found("there is no such schema");
  return found->second;
}

Result<uint32_t> SchemaDocument::resolve(uint32_t from, std::string_view reference) const {
  const size_t hash = reference.find('#');
  const std::string_view uri = reference.substr(0, hash);
  uint32_t resource = nodes_[from].resource;
  if (!uri.empty()) {
    const auto known = by_uri_.find(resolve_uri(resources_[resource].uri, uri));
    if (known == by_uri_.end()) return unsupported("it lies outside of the schema, and quire fetches no schemas");
    resource = known->second;
  }
  const std::string fragment = hash == std::string_view::npos ? "" : percent_decoded(reference.substr(hash + 1));
  const uint32_t root = resources_[resource].root;
  if (fragment.empty()) return root;
  if (fragment[0] == '/') return follow_pointer(*nodes_[root].value, fragment);
  const auto anchor = anchors_.find({resource, fragment});
  if (anchor == anchors_.end()) return not_found("there is no such schema");
  return anchor->second;
}

Result<uint32_t> SchemaDocument::resolve_dynamic(uint32_t from, std::string_view reference) const {
  QUIRE_ASSIGN(const uint32_t target, resolve(from, reference));
  const size_t hash = reference.find('#');
  const std::string_view name = hash == std::string_view::npos ? "" : reference.substr(hash + 1);
  const auto dynamic = dynamic_anchors_.find(name);
  // Without a dynamic anchor at its target, the reference is an ordinary one.
  if (dynamic == dynamic_anchors_.end()) return target;
  const std::vector<uint32_t>& places = dynamic->second;
  if (std::find(places.begin(), places.end(), target) == places.end() || places.size() == 1) return target;
  return unsupported("there are several schemas with that $dynamicAnchor");
}

Result<uint32_t> SchemaDocument::resolve_recursive(uint32_t from) const {
  if (recursive_anchor_ && resources_.size() > 1) return unsupported("several schemas may have that $recursiveAnchor");
  return resolve(from, "#");
}

}  // namespace quire::grammar::schema
