// SPDX-License-Identifier: Apache-2.0
// Readers of JSON that comes byte by byte.
#include "markup/json_stream.h"

#include <cctype>

#include "base/utf8.h"
#include "markup/scanner.h"

namespace quire::markup {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

char unescape(char c) {
  switch (c) {
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'r':
      return '\r';
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    default:
      return c;
  }
}

}  // namespace

void JsonStringReader::finish_unicode(std::string& out) {
  if (high_ != 0) {
    if (unit_ >= 0xDC00 && unit_ < 0xE000) {
      utf8::append(out, 0x10000 + ((high_ - 0xD800) << 10) + (unit_ - 0xDC00));
      high_ = 0;
      return;
    }
    utf8::append(out, utf8::kReplacement);
    high_ = 0;
  }
  if (unit_ >= 0xD800 && unit_ < 0xDC00) {
    high_ = unit_;
  } else if (unit_ >= 0xDC00 && unit_ < 0xE000) {
    utf8::append(out, utf8::kReplacement);
  } else {
    utf8::append(out, unit_);
  }
}

bool JsonStringReader::read(char c, std::string& out) {
  if (digits_ > 0) {
    const int digit = hex_digit(c);
    if (digit >= 0) {
      unit_ = unit_ * 16 + static_cast<uint32_t>(digit);
      if (--digits_ == 0) finish_unicode(out);
      return false;
    }
    digits_ = 0;  // A broken escape is dropped, and the byte is read as usual.
  }
  if (escaped_) {
    escaped_ = false;
    if (c == 'u') {
      digits_ = 4;
      unit_ = 0;
      return false;
    }
    if (high_ != 0) utf8::append(out, utf8::kReplacement);
    high_ = 0;
    out.push_back(unescape(c));
    return false;
  }
  if (c == '\\') {
    escaped_ = true;
    return false;
  }
  if (high_ != 0) utf8::append(out, utf8::kReplacement);
  high_ = 0;
  if (c == '"') return true;
  out.push_back(c);
  return false;
}

JsonForwarder::Status JsonForwarder::read(char c, std::string& out) {
  switch (kind_) {
    case Kind::kNone:
      if (c == '"') {
        kind_ = Kind::kString;
        return Status::kMore;
      }
      if (c == '{' || c == '[') {
        kind_ = Kind::kContainer;
        return read_container(c, out);
      }
      kind_ = Kind::kScalar;
      return read_scalar(c, out);
    case Kind::kContainer:
      return read_container(c, out);
    case Kind::kString: {
      const size_t before = out.size();
      const bool done = string_.read(c, out);
      if (out.size() > before) wrote_ = true;
      return done ? Status::kDone : Status::kMore;
    }
    case Kind::kScalar:
      return read_scalar(c, out);
  }
  return Status::kDone;
}

JsonForwarder::Status JsonForwarder::read_container(char c, std::string& out) {
  if (!escape_.empty()) {
    // "\uXXXX" has six bytes, all others have two. A broken one is passed on as it is.
    if (escape_.size() == 1 || hex_digit(c) >= 0) {
      escape_.push_back(c);
      if (escape_[1] == 'u' && escape_.size() < 6) return Status::kMore;
      out += escape_;
      escape_.clear();
      return Status::kMore;
    }
    out += escape_;
    escape_.clear();
  }
  if (in_string_) {
    if (c == '\\') {
      escape_ = "\\";
      return Status::kMore;
    }
    out.push_back(c);
    if (c == '"') in_string_ = false;
    return Status::kMore;
  }
  // Outside of strings no JSON has this: a marker begins, and the value was not finished.
  if (c == '<') return Status::kDoneBefore;
  wrote_ = true;
  out.push_back(c);
  if (c == '"') in_string_ = true;
  if (c == '{' || c == '[') ++depth_;
  if (c == '}' || c == ']') --depth_;
  return depth_ == 0 ? Status::kDone : Status::kMore;
}

JsonForwarder::Status JsonForwarder::read_scalar(char c, std::string& out) {
  const bool part = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '+' || c == '.';
  if (part && scalar_.size() < 64) {
    scalar_.push_back(c);
    return Status::kMore;
  }
  if (scalar_ != "null" && !scalar_.empty()) {
    out += scalar_;
    wrote_ = true;
  }
  return Status::kDoneBefore;
}

}  // namespace quire::markup
