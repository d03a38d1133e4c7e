// SPDX-License-Identifier: Apache-2.0
// JsonWriter: appends JSON to a string, without building a tree of values first. Answers are written with it.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"

namespace quire::api {

// Writes one JSON text, compactly, in the order of the calls, and adds the commas. NaN and infinities, which JSON does
// not have, become null. One thread at a time.
// REQUIRES: every open_ has its close_; a key() is followed by its value.
class JsonWriter {
 public:
  JsonWriter& open_object() { return open('{'); }
  JsonWriter& close_object() { return close('}'); }
  JsonWriter& open_array() { return open('['); }
  JsonWriter& close_array() { return close(']'); }
  JsonWriter& key(std::string_view name) {
    separate();
    out_ += '"';
    out_ += name;  // a name of our own: nothing to escape
    out_ += "\":";
    fresh_ = true;
    return *this;
  }
  JsonWriter& string(std::string_view text) {
    separate();
    json::append_quoted(out_, text);
    return *this;
  }
  JsonWriter& integer(int64_t value) {
    separate();
    char buffer[24];
    out_.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
    return *this;
  }
  JsonWriter& number(double value) {
    if (!std::isfinite(value)) return null();
    separate();
    char buffer[40];
    const char* end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
    const std::string_view text(buffer, static_cast<size_t>(end - buffer));
    out_ += text;
    if (text.find_first_of(".e") == std::string_view::npos) out_ += ".0";  // so that typed readers see a float
    return *this;
  }
  // A float in as few digits as name it.
  JsonWriter& number32(float value) {
    if (!std::isfinite(value)) return null();
    separate();
    char buffer[32];
    const char* end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
    const std::string_view text(buffer, static_cast<size_t>(end - buffer));
    out_ += text;
    if (text.find_first_of(".e") == std::string_view::npos) out_ += ".0";
    return *this;
  }
  JsonWriter& boolean(bool value) { return raw(value ? "true" : "false"); }
  JsonWriter& null() { return raw("null"); }
  JsonWriter& value(const json::Value& value) { return raw(json::dump(value)); }
  // JSON that is already written.
  JsonWriter& raw(std::string_view json) {
    separate();
    out_ += json;
    return *this;
  }

  // What `write` writes if there is a value, else null.
  template <typename Write>
  JsonWriter& value_or_null(bool has_value, const Write& write) {
    if (!has_value) return null();
    write();
    return *this;
  }

  // A key with its value.
  JsonWriter& member(std::string_view name, std::string_view text) { return key(name).string(text); }
  JsonWriter& member_int(std::string_view name, int64_t value) { return key(name).integer(value); }
  JsonWriter& member_bool(std::string_view name, bool value) { return key(name).boolean(value); }
  JsonWriter& member_null(std::string_view name) { return key(name).null(); }

  const std::string& text() const { return out_; }
  std::string take() { return std::move(out_); }

 private:
  JsonWriter& open(char bracket) {
    separate();
    out_ += bracket;
    fresh_ = true;
    return *this;
  }
  JsonWriter& close(char bracket) {
    out_ += bracket;
    fresh_ = false;
    return *this;
  }
  void separate() {
    if (!fresh_) out_ += ',';
    fresh_ = false;
  }

  std::string out_;
  bool fresh_ = true;  // the next value is the first of its object or array, or follows a key
};

}  // namespace quire::api
