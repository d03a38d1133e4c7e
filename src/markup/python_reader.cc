// SPDX-License-Identifier: Apache-2.0
// Reads calls in Python's syntax: [f(a=1), g()].
#include <cctype>
#include <utility>

#include "markup/reader.h"
#include "markup/scanner.h"
#include "markup/value_writer.h"

namespace quire::markup {
namespace {

bool is_name_byte(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-' ||
         static_cast<unsigned char>(c) >= 0x80;
}

bool is_name_start(char c) {
  return is_name_byte(c) && c != '.' && c != '-' && std::isdigit(static_cast<unsigned char>(c)) == 0;
}

// Finds the end of an argument: the next "," or ")" that is neither in a string nor in brackets.
class ArgumentScanner {
 public:
  // Whether the byte ends the argument.
  bool ends(char c) {
    if (quote_ != 0) {
      in_string(c);
      return false;
    }
    const bool third = c == empty_quote_;
    empty_quote_ = 0;
    if (c == '"' || c == '\'') {
      quote_ = c;
      triple_ = third;
      empty_ = true;
      closing_ = 0;
      return false;
    }
    if (depth_ == 0 && (c == ',' || c == ')')) return true;
    if (c == '(' || c == '[' || c == '{') ++depth_;
    if ((c == ')' || c == ']' || c == '}') && depth_ > 0) --depth_;
    return false;
  }

 private:
  void in_string(char c) {
    if (escaped_ || c != quote_) {
      escaped_ = !escaped_ && c == '\\';
      empty_ = false;
      closing_ = 0;
      return;
    }
    if (triple_ && ++closing_ < 3) return;
    // Two quotes are an empty string, unless a third one follows.
    empty_quote_ = !triple_ && empty_ ? c : '\0';
    quote_ = 0;
  }

  char quote_ = 0;  // of the string that is open
  bool triple_ = false;
  bool escaped_ = false;
  bool empty_ = false;    // nothing was read of the string
  int closing_ = 0;       // quotes at the end of a long string so far
  char empty_quote_ = 0;  // the byte before was the end of an empty string with this quote
  int64_t depth_ = 0;
};

class PythonReader final : public CallReader {
 public:
  PythonReader(const ToolFormat& format, bool bare, CallSink& sink)
      : CallReader(sink), format_(format), needs_list_(bare) {}

  ReadStatus read(char c) override {
    if (inner_ != nullptr) return read_inner(c);
    switch (state_) {
      case State::kStart:
        return read_start(c);
      case State::kName:
        return read_name(c);
      case State::kArgument:
        return read_argument(c);
      case State::kAfter:
        return read_after(c);
      case State::kEnd:
        return read_end(c);
    }
    return ReadStatus::kDone;
  }

  void finish() override {
    if (inner_ != nullptr) inner_->finish();
    if (!open_) return;
    writer_.end();
    end();
  }

 private:
  enum class State : uint8_t { kStart, kName, kArgument, kAfter, kEnd };

  ReadStatus read_start(char c) {
    if (is_blank(c)) return ReadStatus::kMore;
    if (c == '[' && !in_list_) {
      in_list_ = true;
      return ReadStatus::kMore;
    }
    if (c == '{' && (in_list_ || !needs_list_)) return begin_inner(c);
    if (needs_list_ && !in_list_) return reject({c});
    return begin_name(c);
  }

  // Calls may also be written as JSON.
  ReadStatus begin_inner(char c) {
    inner_ = make_json_reader(format_, sink_);
    if (in_list_) (void)inner_->read('[');
    return read_inner(c);
  }

  ReadStatus read_inner(char c) {
    const ReadStatus status = inner_->read(c);
    begun_ = inner_->begun();
    if (status != ReadStatus::kMore) unread_ = inner_->unread();
    return status;
  }

  ReadStatus begin_name(char c) {
    if (!is_name_start(c)) return reject({c});
    state_ = State::kName;
    name_ = c;
    return ReadStatus::kMore;
  }

  ReadStatus read_name(char c) {
    if (c == '(') {
      state_ = State::kArgument;
      argument_.clear();
      scanner_ = {};
      return ReadStatus::kMore;
    }
    if (!is_name_byte(c) || name_.size() > kMaxHeader) return reject({c});
    name_ += c;
    return ReadStatus::kMore;
  }

  void begin_call() {
    begin(name_);
    writer_.begin(sink_, sink_.parameters(name_), format_.tagged);
  }

  ReadStatus read_argument(char c) {
    if (!scanner_.ends(c)) {
      argument_ += c;
      return ReadStatus::kMore;
    }
    if (!end_argument()) return reject({c});
    if (c == ')') {
      if (!open_) begin_call();
      writer_.end();
      end();
      state_ = State::kAfter;
    }
    argument_.clear();
    scanner_ = {};
    return ReadStatus::kMore;
  }

  // Sends a complete argument. False: this is not a call.
  bool end_argument() {
    const std::string_view text = trim(argument_);
    if (text.empty()) return true;
    const size_t equals = text.find('=');
    const std::string_view key = trim(text.substr(0, std::min(equals, text.size())));
    bool named = equals != std::string_view::npos && !key.empty() && is_name_start(key.front());
    for (const char c : key) named = named && is_name_byte(c);
    std::optional<std::string> value;
    std::string_view raw;
    if (named) {
      raw = trim(text.substr(equals + 1));
      value = python_literal(raw);
      const bool quoted = raw.size() >= 2 && (raw.front() == '"' || raw.front() == '\'') && raw.front() == raw.back();
      if (!value && quoted && format_.repair_strings) {
        value.emplace();
        append_json_string(*value, raw.substr(1, raw.size() - 2));
      }
    }
    if (!open_) {
      if (!value) return false;
      begin_call();
    }
    if (!named) return true;  // An argument without a name, after others with one: nothing can be made of it.
    if (!value) {
      value.emplace();
      append_json_string(*value, raw);
    }
    writer_.member(key, *value);
    return true;
  }

  ReadStatus read_after(char c) {
    if (held_.empty()) {
      if (is_blank(c) || c == ',' || c == ';') return ReadStatus::kMore;
      if (c == ']' && in_list_) {
        state_ = State::kEnd;
        return ReadStatus::kMore;
      }
      if (is_name_start(c)) return begin_name(c);
    }
    return read_end(c);
  }

  // Blanks and one end marker, which may be missing.
  ReadStatus read_end(char c) {
    state_ = State::kEnd;
    if (held_.empty() && is_blank(c)) return ReadStatus::kMore;
    held_.push_back(c);
    bool prefix = false;
    for (const std::string_view end : format_.ends) {
      if (end == held_) return ReadStatus::kDone;
      prefix = prefix || end.starts_with(held_);
    }
    return prefix ? ReadStatus::kMore : reject(held_);
  }

  const ToolFormat& format_;
  const bool needs_list_;
  State state_ = State::kStart;
  bool in_list_ = false;
  std::string name_, argument_, held_;
  ArgumentScanner scanner_;
  ArgumentsWriter writer_;
  std::unique_ptr<CallReader> inner_;  // reads calls that are JSON
};

}  // namespace

std::unique_ptr<CallReader> make_python_reader(const ToolFormat& format, bool bare, CallSink& sink) {
  return std::make_unique<PythonReader>(format, bare, sink);
}

}  // namespace quire::markup
