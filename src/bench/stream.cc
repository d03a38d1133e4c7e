// SPDX-License-Identifier: Apache-2.0
// The parser of server-sent events, and a skimmer that reads JSON text without building values.
#include "bench/stream.h"

#include <algorithm>
#include <cstring>

#include "base/utf8.h"

namespace quire::bench {

std::optional<std::string_view> SseParser::end_line(std::string_view line) {
  if (at_start_) {
    at_start_ = false;
    if (line.substr(0, 3) == "\xEF\xBB\xBF") line.remove_prefix(3);
  }
  if (line.empty()) {
    if (!has_data_) return std::nullopt;
    has_data_ = false;
    handed_.swap(data_);
    data_.clear();
    return handed_;
  }
  if (line.substr(0, 4) != "data") return std::nullopt;  // a comment or a field that is not needed
  line.remove_prefix(4);
  if (!line.empty()) {
    if (line[0] != ':') return std::nullopt;
    line.remove_prefix(1);
    if (!line.empty() && line[0] == ' ') line.remove_prefix(1);
  }
  if (data_.size() + line.size() > kMaxEvent) {
    too_long_ = true;
    return std::nullopt;
  }
  if (has_data_) data_ += '\n';
  data_ += line;
  has_data_ = true;
  return std::nullopt;
}

std::optional<std::string_view> SseParser::next(std::string_view& bytes) {
  while (!bytes.empty()) {
    if (skip_newline_) {
      skip_newline_ = false;
      if (bytes[0] == '\n') {
        bytes.remove_prefix(1);
        continue;
      }
    }
    size_t end = bytes.find('\n');
    if (end == std::string_view::npos) end = bytes.size();
    // A single \r ends a line, too; JSON text never has one.
    if (const void* carriage = std::memchr(bytes.data(), '\r', end)) {
      end = static_cast<size_t>(static_cast<const char*>(carriage) - bytes.data());
    }
    if (end == bytes.size()) {
      line_ += bytes;
      bytes = {};
      if (line_.size() > kMaxEvent) too_long_ = true;
      return std::nullopt;
    }
    skip_newline_ = bytes[end] == '\r';
    std::optional<std::string_view> event;
    if (line_.empty()) {
      event = end_line(bytes.substr(0, end));
    } else {
      line_ += bytes.substr(0, end);
      event = end_line(line_);
      line_.clear();
    }
    bytes.remove_prefix(end + 1);
    if (event || too_long_) return event;
  }
  return std::nullopt;
}

std::optional<std::string_view> SseParser::last() {
  if (too_long_) return std::nullopt;
  if (!line_.empty()) {
    end_line(line_);
    line_.clear();
  }
  return end_line({});
}

namespace {

// Skims one JSON text. Every function leaves the position after what it read. Text that is not JSON makes ok() false
// and every later call a no-op, so hostile input costs no more than time linear in its length.
class Skimmer {
 public:
  explicit Skimmer(std::string_view text) : text_(text) {}
  bool ok() const { return ok_; }

  char peek() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (!ok_ || peek() != c) return false;
    ++at_;
    return true;
  }

  // Members of an object: handle(name) must read or skip the value. Names with escapes are compared as written, and so
  // never match a field that is needed.
  template <typename F>
  void object(F&& handle) {
    if (!take('{')) return fail();
    if (take('}')) return;
    while (ok_) {
      const std::string_view name = raw_string();
      if (!take(':')) return fail();
      handle(name);
      if (take('}')) return;
      if (!take(',')) return fail();
    }
  }
  template <typename F>
  void array(F&& handle) {
    if (!take('[')) return fail();
    if (take(']')) return;
    while (ok_) {
      handle();
      if (take(']')) return;
      if (!take(',')) return fail();
    }
  }

  // The characters of a string between the quotes, with escapes left as they are.
  std::string_view raw_string() {
    if (!take('"')) {
      fail();
      return {};
    }
    const size_t begin = at_;
    while (true) {
      const size_t quote = text_.find('"', at_);
      if (quote == std::string_view::npos) {
        fail();
        return {};
      }
      size_t slashes = 0;
      while (quote - slashes > begin && text_[quote - 1 - slashes] == '\\') ++slashes;
      at_ = quote + 1;
      if (slashes % 2 == 0) return text_.substr(begin, quote - begin);
    }
  }

  void append_string(std::string& out) {
    if (peek() != '"') return skip();  // null or another kind of value
    unescape(raw_string(), out);
  }

  int64_t integer() {
    const char first = peek();
    if (first < '0' || first > '9') {
      skip();
      return -1;
    }
    int64_t value = 0;
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9' && at_ - begin < 18) {
      value = value * 10 + (text_[at_++] - '0');
    }
    skip_scalar();  // a fraction or exponent, if there is one
    return value;
  }

  // Skips any value, without recursion.
  void skip() {
    int64_t depth = 0;
    do {
      if (!ok_) return;
      switch (peek()) {
        case '"':
          raw_string();
          break;
        case '{':
        case '[':
          ++at_;
          ++depth;
          continue;
        case '}':
        case ']':
          if (depth == 0) return fail();
          ++at_;
          --depth;
          break;
        case ',':
        case ':':
          if (depth == 0) return fail();
          ++at_;
          continue;
        case '\0':
          return fail();
        default:
          skip_scalar();
      }
    } while (depth > 0);
  }

 private:
  void fail() { ok_ = false; }
  void skip_scalar() {
    while (at_ < text_.size() && std::strchr(",:]}[{\" \n\t\r", text_[at_]) == nullptr) ++at_;
    if (at_ < text_.size() && text_[at_] == '\0') fail();
  }

  static int hex(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  }
  static int32_t code_unit(std::string_view raw, size_t at) {
    if (at + 4 > raw.size()) return -1;
    int32_t value = 0;
    for (size_t i = at; i < at + 4; ++i) {
      const int digit = hex(raw[i]);
      if (digit < 0) return -1;
      value = value * 16 + digit;
    }
    return value;
  }
  static void unescape(std::string_view raw, std::string& out) {
    for (size_t at = 0; at < raw.size();) {
      const size_t slash = raw.find('\\', at);
      out += raw.substr(at, slash - at);
      if (slash == std::string_view::npos || slash + 1 >= raw.size()) return;
      const char c = raw[slash + 1];
      at = slash + 2;
      constexpr std::string_view kFrom = "bfnrt", kTo = "\b\f\n\r\t";
      if (const size_t i = kFrom.find(c); i != std::string_view::npos) {
        out += kTo[i];
      } else if (c != 'u') {
        out += c;
      } else {
        int32_t unit = code_unit(raw, at);
        at += 4;
        if (unit >= 0xD800 && unit < 0xDC00 && raw.substr(std::min(at, raw.size()), 2) == "\\u") {
          const int32_t low = code_unit(raw, at + 2);
          if (low >= 0xDC00 && low < 0xE000) {
            unit = 0x10000 + (unit - 0xD800) * 0x400 + (low - 0xDC00);
            at += 6;
          }
        }
        const bool valid = unit >= 0 && (unit < 0xD800 || unit >= 0xE000);
        utf8::append(out, valid ? static_cast<char32_t>(unit) : utf8::kReplacement);
      }
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  bool ok_ = true;
};

void read_usage(Skimmer& in, StreamChunk& chunk) {
  if (in.peek() != '{') return in.skip();
  in.object([&](std::string_view name) {
    if (name == "prompt_tokens" || name == "input_tokens") {
      chunk.prompt_tokens = in.integer();
    } else if (name == "completion_tokens" || name == "output_tokens") {
      chunk.output_tokens = in.integer();
    } else {
      in.skip();
    }
  });
}

void read_error(Skimmer& in, StreamChunk& chunk) {
  if (in.peek() == 'n') return in.skip();  // null
  chunk.has_error = true;
  if (in.peek() != '{') return in.append_string(chunk.error);
  in.object([&](std::string_view name) { name == "message" ? in.append_string(chunk.error) : in.skip(); });
}

void read_delta(Skimmer& in, StreamChunk& chunk) {
  if (in.peek() != '{') return in.skip();
  in.object([&](std::string_view name) {
    const bool text = name == "content" || name == "reasoning_content" || name == "reasoning";
    text ? in.append_string(chunk.text) : in.skip();
  });
}

void read_choices(Skimmer& in, StreamApi api, StreamChunk& chunk) {
  if (in.peek() != '[') return in.skip();
  in.array([&] {
    const bool first = !chunk.has_choices;
    chunk.has_choices = true;
    if (!first || in.peek() != '{') return in.skip();
    in.object([&](std::string_view name) {
      if (api == StreamApi::kCompletions && name == "text") return in.append_string(chunk.text);
      if (api == StreamApi::kChat && name == "delta") return read_delta(in, chunk);
      in.skip();
    });
  });
}

// {"type": "response.output_text.delta", "delta": "..."} and {"type": "response.completed", "response": {"usage"...}}.
void read_response_event(Skimmer& in, StreamChunk& chunk) {
  std::string_view type;
  std::string delta;
  in.object([&](std::string_view name) {
    if (name == "type") {
      type = in.peek() == '"' ? in.raw_string() : (in.skip(), std::string_view());
    } else if (name == "delta") {
      in.append_string(delta);
    } else if (name == "response" && in.peek() == '{') {
      in.object([&](std::string_view inner) {
        if (inner == "usage") return read_usage(in, chunk);
        if (inner == "error") return read_error(in, chunk);
        in.skip();
      });
    } else if (name == "error") {
      read_error(in, chunk);
    } else {
      in.skip();
    }
  });
  if (type == "response.output_text.delta" || type == "response.reasoning_text.delta" ||
      type == "response.reasoning_summary_text.delta") {
    chunk.has_choices = true;
    chunk.text = std::move(delta);
  }
}

}  // namespace

bool read_chunk(std::string_view data, StreamApi api, StreamChunk& chunk) {
  chunk.has_choices = chunk.has_error = false;
  chunk.text.clear();
  chunk.error.clear();
  chunk.prompt_tokens = chunk.output_tokens = -1;
  Skimmer in(data);
  if (in.peek() != '{') return false;
  if (api == StreamApi::kResponses) {
    read_response_event(in, chunk);
    return in.ok();
  }
  in.object([&](std::string_view name) {
    if (name == "choices") return read_choices(in, api, chunk);
    if (name == "usage") return read_usage(in, chunk);
    if (name == "error") return read_error(in, chunk);
    in.skip();
  });
  return in.ok();
}

}  // namespace quire::bench
