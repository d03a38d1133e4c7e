// SPDX-License-Identifier: Apache-2.0
// JsonWriter: appends JSON to a string without building values first; answers are written with it.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"

namespace quire::api {

// Writes one JSON text, compactly, in the order of the calls; commas come by themselves. The caller balances open and
// close. NaN and infinities, which JSON has not, become null.
class JsonWriter {
 public:
  JsonWriter& open_object() { return open('{'); }
  JsonWriter& close_object() { return close('}'); }
  JsonWriter& open_array() { return open('['); }
  JsonWriter& close_array() { return close(']'); }
  JsonWriter& key(std::string_view name) {
    separate();
    out_ += '"';
    out_ += name;  // names are ours: nothing to escape
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
    if (text.find_first_of(".e") == std::string_view::npos) out_ += ".0";  // stays a float for typed readers
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

  // A member of each kind.
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
  bool fresh_ = true;  // nothing stands before in this object or array
};

}  // namespace quire::api
