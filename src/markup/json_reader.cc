// SPDX-License-Identifier: Apache-2.0
// Reads calls that are JSON objects: alone, one after the other, or in an array.
#include <algorithm>
#include <utility>

#include "markup/json_stream.h"
#include "markup/reader.h"
#include "markup/scanner.h"

namespace quire::markup {
namespace {

bool is_one_of(const Texts& texts, std::string_view text) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

class JsonReader final : public CallReader {
 public:
  JsonReader(const ToolFormat& format, CallSink& sink, bool guessed)
      : CallReader(sink), format_(format), ends_(guessed ? format.guess_ends : format.ends), guessed_(guessed) {}

  ReadStatus read(char c) override {
    switch (state_) {
      case State::kStart:
        return read_start(c);
      case State::kMember:
        return read_member(c);
      case State::kKey:
        if (key_reader_.read(c, key_)) state_ = State::kColon;
        return key_.size() > kMaxHeader ? reject({}) : ReadStatus::kMore;
      case State::kColon:
        return read_colon(c);
      case State::kName:
        if (name_reader_.read(c, name_)) {
          has_name_ = true;
          state_ = State::kAfterValue;
        }
        return name_.size() > kMaxHeader ? reject({}) : ReadStatus::kMore;
      case State::kArguments:
      case State::kSkipped:
        return read_value(c);
      case State::kAfterValue:
        return read_after_value(c);
      case State::kBetween:
        return read_between(c);
      case State::kEnd:
        return read_end(c);
    }
    return ReadStatus::kDone;
  }

  void finish() override {
    if (open_) end();
  }

 private:
  enum class State : uint8_t {
    kStart,       // before the first "[" or "{"
    kMember,      // in an object, before a key or "}"
    kKey,         // in a key
    kColon,       // after a key
    kName,        // in the string that is the name
    kArguments,   // in the value that is the arguments
    kSkipped,     // in another value
    kAfterValue,  // after a value
    kBetween,     // after an object
    kEnd,         // after the array or a complete call: an end marker may follow
  };

  // Whether nothing but the content may say that this is a call.
  bool unmarked() const { return guessed_ || !format_.bare.empty(); }

  ReadStatus read_start(char c) {
    if (is_blank(c)) return ReadStatus::kMore;
    if (c == '{') return begin_object();
    if (c == '[' && !in_array_) {
      in_array_ = true;
      return ReadStatus::kMore;
    }
    return reject({c});
  }

  ReadStatus begin_object() {
    state_ = State::kMember;
    empty_ = true;
    doubled_ = false;
    wrapped_ = false;
    has_name_ = false;
    sent_ = false;
    has_arguments_ = false;
    name_.clear();
    early_.clear();
    return ReadStatus::kMore;
  }

  ReadStatus read_member(char c) {
    if (is_blank(c) || c == ',') return ReadStatus::kMore;
    if (c == '{' && empty_ && !doubled_) {
      doubled_ = true;
      return ReadStatus::kMore;
    }
    if (c == '"') {
      empty_ = false;
      key_.clear();
      key_reader_.reset();
      state_ = State::kKey;
      return ReadStatus::kMore;
    }
    if (c == '}') return end_object();
    return broken(c);
  }

  // The object is not what it seemed to be.
  ReadStatus broken(char c) {
    if (open_) end();
    return reject({c});
  }

  ReadStatus read_colon(char c) {
    if (is_blank(c)) return ReadStatus::kMore;
    if (c == ':' && !colon_) {
      colon_ = true;
      return ReadStatus::kMore;
    }
    if (!colon_) return broken(c);
    colon_ = false;
    return begin_value(c);
  }

  ReadStatus begin_value(char c) {
    const JsonCalls& json = format_.json;
    if (json.name_is_key && !has_name_) {
      name_ = key_;
      has_name_ = true;
      return begin_arguments(c);
    }
    if (!json.name_is_key && !has_name_ && c == '"' && (is_one_of(json.names, key_) || key_ == "function")) {
      name_reader_.reset();
      name_.clear();
      state_ = State::kName;
      return ReadStatus::kMore;
    }
    // {"type": "function", "function": {"name": ..., "arguments": ...}}
    if (!json.name_is_key && key_ == "function" && c == '{' && !wrapped_) {
      wrapped_ = true;
      state_ = State::kMember;
      return ReadStatus::kMore;
    }
    if (!has_arguments_ && is_one_of(json.arguments, key_)) return begin_arguments(c);
    // JSON with other members is an answer in JSON, which is not to be held back until its end.
    static const Texts kOthers = {"type", "id", "call_id", "tool_call_id", "index", "function"};
    if (!begun_ && unmarked() && !is_one_of(kOthers, key_)) return broken(c);
    state_ = State::kSkipped;
    value_.reset();
    return read_value(c);
  }

  ReadStatus begin_arguments(char c) {
    has_arguments_ = true;
    state_ = State::kArguments;
    value_.reset();
    if (guessed_ && c != '{') return broken(c);
    if (has_name_) {
      if (guessed_ && !sink_.has_tool(name_)) return broken(c);
      begin(name_);
      sent_ = true;
    }
    return read_value(c);
  }

  ReadStatus read_value(char c) {
    out_.clear();
    const auto status = value_.read(c, out_);
    if (state_ == State::kArguments) {
      if (open_) {
        if (!out_.empty()) sink_.arguments(out_);
      } else {
        early_ += out_;
      }
    }
    if (status == JsonForwarder::Status::kMore) return ReadStatus::kMore;
    if (state_ == State::kArguments && !value_.wrote()) {
      if (open_) sink_.arguments("{}");
      early_ = "{}";
    }
    state_ = State::kAfterValue;
    return status == JsonForwarder::Status::kDone ? ReadStatus::kMore : read_after_value(c);
  }

  ReadStatus read_after_value(char c) {
    if (is_blank(c)) return ReadStatus::kMore;
    if (c == ',') {
      state_ = State::kMember;
      return ReadStatus::kMore;
    }
    if (c == '}') return end_object();
    return broken(c);
  }

  ReadStatus end_object() {
    if (wrapped_) {
      wrapped_ = false;
      state_ = State::kAfterValue;
      return ReadStatus::kMore;
    }
    if (!sent_) {
      // An answer that begins with a brace is a call only if it has both a name and arguments.
      if (!has_name_ || name_.empty() || (!has_arguments_ && unmarked())) return reject({});
      if (guessed_ && !sink_.has_tool(name_)) return reject({});
      begin(name_);
      sink_.arguments(has_arguments_ ? std::string_view(early_) : std::string_view("{}"));
    }
    end();
    state_ = State::kBetween;
    return ReadStatus::kMore;
  }

  ReadStatus read_between(char c) {
    if (doubled_ && c == '}') {
      doubled_ = false;
      return ReadStatus::kMore;
    }
    if (in_array_) {
      if (is_blank(c) || c == ',') return ReadStatus::kMore;
      if (c == '{') return begin_object();
      if (c == ']') {
        state_ = State::kEnd;
        return ReadStatus::kMore;
      }
      return reject({c});
    }
    if (held_.empty()) {
      if (is_blank(c)) return ReadStatus::kMore;
      if (c == '{') return begin_object();
      if ((c == ';' || c == ',') && !format_.bare.empty()) return ReadStatus::kMore;
    }
    return read_end(c);
  }

  // Blanks and one end marker, which may be missing.
  ReadStatus read_end(char c) {
    if (held_.empty() && is_blank(c)) return ReadStatus::kMore;
    held_.push_back(c);
    bool prefix = false;
    for (const std::string_view end : ends_) {
      if (end == held_) return ReadStatus::kDone;
      prefix = prefix || end.starts_with(held_);
    }
    return prefix ? ReadStatus::kMore : reject(held_);
  }

  const ToolFormat& format_;
  const Texts& ends_;
  const bool guessed_;
  State state_ = State::kStart;
  bool in_array_ = false;
  bool empty_ = true;     // no member of the object was read
  bool doubled_ = false;  // {{"name": ...}}, as some templates of Qwen2.5 show it by mistake
  bool wrapped_ = false;  // inside {"function": {...}}
  bool colon_ = false;    // the colon after a key was read
  bool has_name_ = false;
  bool has_arguments_ = false;
  bool sent_ = false;  // the call of this object has begun
  std::string key_, name_;
  std::string early_;  // arguments that came before the name
  std::string out_;
  std::string held_;  // the beginning of an end marker
  JsonStringReader key_reader_, name_reader_;
  JsonForwarder value_;
};

}  // namespace

std::unique_ptr<CallReader> make_json_reader(const ToolFormat& format, CallSink& sink, bool guessed) {
  return std::make_unique<JsonReader>(format, sink, guessed);
}

}  // namespace quire::markup
