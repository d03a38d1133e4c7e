// SPDX-License-Identifier: Apache-2.0
// The JSON value, the writer and the typed look-ups; the reader is in json_parse.cc.
#include "base/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>

#include "base/json_object.h"

namespace quire::json {
namespace {

// Up to this many members, looking at each is faster than sorting.
constexpr size_t kFewMembers = 16;

// The indices of the members sorted by name; members with equal names stay in file order. Most names differ in their
// first eight bytes, which are compared without touching the member: vocabularies have 250,000 members.
std::vector<size_t> by_name(const Object& members) {
  struct Entry {
    uint64_t head = 0;
    size_t place = 0;
  };
  std::vector<Entry> entries(members.size());
  for (size_t i = 0; i < members.size(); ++i) {
    const std::string& name = members[i].first;
    for (size_t k = 0; k < 8; ++k) {
      entries[i].head = entries[i].head << 8 | (k < name.size() ? static_cast<unsigned char>(name[k]) : 0u);
    }
    entries[i].place = i;
  }
  std::sort(entries.begin(), entries.end(), [&](const Entry& a, const Entry& b) {
    if (a.head != b.head) return a.head < b.head;
    const int compared = members[a.place].first.compare(members[b.place].first);
    return compared != 0 ? compared < 0 : a.place < b.place;
  });
  std::vector<size_t> order;
  order.reserve(entries.size());
  for (const Entry& entry : entries) order.push_back(entry.place);
  return order;
}

bool equal_objects(const Object& a, const Object& b) {
  if (a.size() != b.size()) return false;
  const std::vector<size_t> left = by_name(a), right = by_name(b);
  for (size_t i = 0; i < left.size(); ++i) {
    if (a[left[i]].first != b[right[i]].first || !(a[left[i]].second == b[right[i]].second)) return false;
  }
  return true;
}

bool has_repeats_among_few(const Object& members) {
  for (size_t i = 1; i < members.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (members[i].first == members[j].first) return true;
    }
  }
  return false;
}

}  // namespace

void remove_repeats(Object& members) {
  if (members.size() <= kFewMembers && !has_repeats_among_few(members)) return;
  const std::vector<size_t> order = by_name(members);
  std::vector<bool> repeated(members.size());
  bool any = false;
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin + 1;
    while (end < order.size() && members[order[end]].first == members[order[begin]].first)
      repeated[order[end++]] = true;
    if (end - begin > 1) {
      members[order[begin]].second = std::move(members[order[end - 1]].second);
      any = true;
    }
    begin = end;
  }
  if (!any) return;
  size_t kept = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    if (repeated[i]) continue;
    if (kept != i) members[kept] = std::move(members[i]);
    ++kept;
  }
  members.resize(kept);
}

Value::Value(std::string s) : kind_(Kind::kString), string_(std::make_unique<std::string>(std::move(s))) {}
Value::Value(Array a) : kind_(Kind::kArray), array_(std::make_unique<Array>(std::move(a))) {}
Value::Value(Object o) : kind_(Kind::kObject), object_(std::make_unique<Object>(std::move(o))) {}

Value Value::long_integer(std::string_view digits, double nearest) {
  Value out(nearest);
  out.string_ = std::make_unique<std::string>(digits);
  return out;
}

Value::Value(const Value& other) : kind_(other.kind_), int_(other.int_), double_(other.double_) {
  if (other.string_) string_ = std::make_unique<std::string>(*other.string_);
  if (other.array_) array_ = std::make_unique<Array>(*other.array_);
  if (other.object_) object_ = std::make_unique<Object>(*other.object_);
}

Value& Value::operator=(const Value& other) {
  if (this != &other) *this = Value(other);
  return *this;
}

// Limits::max_depth bounds the depth, and with it the recursion of the destructors.
Value::~Value() = default;

bool Value::as_bool() const {
  QUIRE_CHECK(is_bool());
  return int_ != 0;
}
int64_t Value::as_int() const {
  QUIRE_CHECK(is_int());
  return int_;
}
double Value::as_double() const {
  QUIRE_CHECK(is_number());
  return kind_ == Kind::kInt ? static_cast<double>(int_) : double_;
}
const std::string* Value::long_digits() const {
  return kind_ == Kind::kDouble ? string_.get() : nullptr;
}
const std::string& Value::as_string() const {
  QUIRE_CHECK(is_string());
  return *string_;
}
const Array& Value::as_array() const {
  QUIRE_CHECK(is_array());
  return *array_;
}
Array& Value::as_array() {
  QUIRE_CHECK(is_array());
  return *array_;
}
const Object& Value::as_object() const {
  QUIRE_CHECK(is_object());
  return *object_;
}
Object& Value::as_object() {
  QUIRE_CHECK(is_object());
  return *object_;
}

const Value* Value::find(std::string_view name) const {
  if (!is_object()) return nullptr;
  for (const Member& member : *object_) {
    if (member.first == name) return &member.second;
  }
  return nullptr;
}

void Value::set(std::string_view name, Value value) {
  for (Member& member : as_object()) {
    if (member.first == name) {
      member.second = std::move(value);
      return;
    }
  }
  object_->emplace_back(std::string(name), std::move(value));
}

bool Value::operator==(const Value& other) const {
  if (is_number() && other.is_number()) {
    if (is_int() && other.is_int()) return int_ == other.int_;
    const std::string *digits = long_digits(), *other_digits = other.long_digits();
    if (digits != nullptr && other_digits != nullptr) return *digits == *other_digits;
    if ((digits != nullptr && other.is_int()) || (other_digits != nullptr && is_int())) return false;
    return as_double() == other.as_double();
  }
  if (kind_ != other.kind_) return false;
  switch (kind_) {
    case Kind::kNull:
      return true;
    case Kind::kBool:
      return int_ == other.int_;
    case Kind::kString:
      return *string_ == *other.string_;
    case Kind::kArray:
      return *array_ == *other.array_;
    case Kind::kObject:
      return equal_objects(*object_, *other.object_);
    default:
      return false;
  }
}

void append_quoted(std::string& out, std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += "\\u00";
          out += kHex[(c >> 4) & 15];
          out += kHex[c & 15];
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

namespace {

void append_double(std::string& out, double d) {
  if (!std::isfinite(d)) {
    out += std::isnan(d) ? "NaN" : d > 0 ? "Infinity" : "-Infinity";
    return;
  }
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, d).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  out += text;
  if (text.find_first_of(".e") == std::string_view::npos) out += ".0";
}

void dump_to(std::string& out, const Value& value, int indent, int level) {
  const auto newline = [&](int at) {
    if (indent > 0) {
      out += '\n';
      out.append(static_cast<size_t>(indent) * static_cast<size_t>(at), ' ');
    }
  };
  switch (value.kind()) {
    case Kind::kNull:
      out += "null";
      break;
    case Kind::kBool:
      out += value.as_bool() ? "true" : "false";
      break;
    case Kind::kInt:
      out += std::to_string(value.as_int());
      break;
    case Kind::kDouble:
      if (const std::string* digits = value.long_digits(); digits != nullptr) {
        out += *digits;
      } else {
        append_double(out, value.as_double());
      }
      break;
    case Kind::kString:
      append_quoted(out, value.as_string());
      break;
    case Kind::kArray: {
      out += '[';
      bool first = true;
      for (const Value& item : value.as_array()) {
        if (!first) out += ',';
        newline(level + 1);
        dump_to(out, item, indent, level + 1);
        first = false;
      }
      if (!first) newline(level);
      out += ']';
      break;
    }
    case Kind::kObject: {
      out += '{';
      bool first = true;
      for (const Member& member : value.as_object()) {
        if (!first) out += ',';
        newline(level + 1);
        append_quoted(out, member.first);
        out += indent > 0 ? ": " : ":";
        dump_to(out, member.second, indent, level + 1);
        first = false;
      }
      if (!first) newline(level);
      out += '}';
      break;
    }
  }
}

Failure wrong_kind(std::string_view field, const char* wanted, const Value* found) {
  if (found == nullptr) return invalid_argument({"field '", field, "' is missing; it must be ", wanted});
  return invalid_argument({"field '", field, "' must be ", wanted, ", not ", describe(found->kind())});
}

}  // namespace

std::string dump(const Value& value, int indent) {
  std::string out;
  dump_to(out, value, indent, 0);
  return out;
}

const char* describe(Kind kind) {
  switch (kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return "a boolean";
    case Kind::kInt:
      return "an integer";
    case Kind::kDouble:
      return "a number";
    case Kind::kString:
      return "a string";
    case Kind::kArray:
      return "an array";
    case Kind::kObject:
      return "an object";
  }
  return "nothing";
}

Result<int64_t> get_int(const Value& object, std::string_view field, int64_t min, int64_t max) {
  const Value* found = object.find(field);
  if (found == nullptr || !found->is_number()) return wrong_kind(field, "an integer", found);
  int64_t value = 0;
  if (found->is_int()) {
    value = found->as_int();
  } else {  // other tools write integers as 1e6 or 4096.0
    const double d = found->as_double();
    if (!(std::abs(d) < 9e15) || d != std::floor(d)) return wrong_kind(field, "an integer", found);
    value = static_cast<int64_t>(d);
  }
  if (value < min || value > max) {
    return invalid_argument({"field '", field, "' is ", value, ", outside of ", min, " to ", max});
  }
  return value;
}

Result<int64_t> get_int_or(const Value& object, std::string_view field, int64_t fallback, int64_t min, int64_t max) {
  const Value* found = object.find(field);
  if (found == nullptr || found->is_null()) return fallback;
  return get_int(object, field, min, max);
}

Result<double> get_double(const Value& object, std::string_view field) {
  const Value* found = object.find(field);
  if (found == nullptr || !found->is_number()) return wrong_kind(field, "a number", found);
  return found->as_double();
}

Result<double> get_double_or(const Value& object, std::string_view field, double fallback) {
  const Value* found = object.find(field);
  if (found == nullptr || found->is_null()) return fallback;
  return get_double(object, field);
}

Result<bool> get_bool_or(const Value& object, std::string_view field, bool fallback) {
  const Value* found = object.find(field);
  if (found == nullptr || found->is_null()) return fallback;
  if (!found->is_bool()) return wrong_kind(field, "true or false", found);
  return found->as_bool();
}

Result<std::string> get_string(const Value& object, std::string_view field) {
  const Value* found = object.find(field);
  if (found == nullptr || !found->is_string()) return wrong_kind(field, "a string", found);
  return found->as_string();
}

Result<std::string> get_string_or(const Value& object, std::string_view field, std::string_view fallback) {
  const Value* found = object.find(field);
  if (found == nullptr || found->is_null()) return std::string(fallback);
  return get_string(object, field);
}

}  // namespace quire::json
