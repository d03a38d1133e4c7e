// SPDX-License-Identifier: Apache-2.0
// Reads Gemma's calls: call:f{a:1,b:<|"|>x<|"|>}.
#include <utility>

#include "markup/json_stream.h"
#include "markup/reader.h"
#include "markup/scanner.h"
#include "markup/value_writer.h"

namespace quire::markup {
namespace {

constexpr std::string_view kCall = "call:";

class GemmaCallReader final : public CallReader {
 public:
  GemmaCallReader(const ToolFormat& format, CallSink& sink)
      : CallReader(sink), format_(format), scanner_({format.string_delimiter}) {}

  ReadStatus read(char c) override {
    switch (state_) {
      case State::kHeader:
        return read_header(c);
      case State::kFirst:
        return read_first(c);
      case State::kJson:
        return read_json(c);
      case State::kArgument:
      case State::kString:
        return read_scanned(c);
      case State::kEnd:
        return read_end(c);
    }
    return ReadStatus::kDone;
  }

  void finish() override {
    if (!open_) return;
    if (state_ != State::kJson) writer_.end();
    end();
  }

 private:
  enum class State : uint8_t {
    kHeader,    // call:f
    kFirst,     // after the opening brace
    kJson,      // in arguments that are a JSON object
    kArgument,  // in an argument
    kString,    // in an argument that is a string, which is sent as it comes
    kEnd,       // after the closing brace
  };

  ReadStatus read_header(char c) {
    if (c == '{' || c == '(') {
      const std::string_view header = trim(header_);
      if (!header.starts_with(kCall) || header.size() == kCall.size()) return reject({c});
      const std::string name(trim(header.substr(kCall.size())));
      begin(name);
      parameters_ = sink_.parameters(name);
      writer_.begin(sink_, parameters_, format_.tagged);
      brace_ = c == '{';
      state_ = State::kFirst;
      return ReadStatus::kMore;
    }
    header_ += c;
    const std::string_view header = trim(header_);
    const size_t common = std::min(header.size(), kCall.size());
    const bool fits = header.substr(0, common) == kCall.substr(0, common) && header_.find('<') == std::string::npos;
    return fits && header_.size() <= kMaxHeader ? ReadStatus::kMore : reject({c});
  }

  ReadStatus read_first(char c) {
    if (is_blank(c)) return ReadStatus::kMore;
    if (c == '"' && brace_) {
      state_ = State::kJson;
      std::string out;
      (void)json_.read('{', out);
      sink_.arguments(out);
      return read_json(c);
    }
    state_ = State::kArgument;
    return read_scanned(c);
  }

  ReadStatus read_json(char c) {
    std::string out;
    const auto status = json_.read(c, out);
    if (!out.empty()) sink_.arguments(out);
    if (status == JsonForwarder::Status::kMore) return ReadStatus::kMore;
    end();
    state_ = State::kEnd;
    return status == JsonForwarder::Status::kDone ? ReadStatus::kMore : read_end(c);
  }

  // Separates delimiters from text.
  ReadStatus read_scanned(char c) {
    std::string text;
    const bool delimiter = scanner_.add(c, text) != MarkerScanner::kNone;
    for (size_t i = 0; i < text.size(); ++i) {
      if (state_ == State::kString) {
        writer_.add(text.substr(i, 1));
      } else if (in_string_) {
        argument_ += text[i];
      } else if (state_ == State::kEnd) {
        // What follows the call in the same piece, which began like a delimiter.
        const ReadStatus status = read_end(text[i]);
        if (status == ReadStatus::kMore) continue;
        unread_ += text.substr(i + 1);
        return status;
      } else {
        read_structure(text[i]);
      }
    }
    if (state_ == State::kEnd) return hand_over();
    if (delimiter) toggle_string();
    return ReadStatus::kMore;
  }

  // The call has ended; what the scanner still holds back is read as what follows the call.
  ReadStatus hand_over() {
    const std::string held = scanner_.take_held();
    for (size_t i = 0; i < held.size(); ++i) {
      const ReadStatus status = read_end(held[i]);
      if (status == ReadStatus::kMore) continue;
      unread_ += held.substr(i + 1);
      return status;
    }
    return ReadStatus::kMore;
  }

  void read_structure(char c) {
    if (depth_ == 0 && (c == ',' || c == (brace_ ? '}' : ')'))) {
      end_argument();
      if (c == ',') return;
      writer_.end();
      end();
      state_ = State::kEnd;
      return;
    }
    if (c == '{' || c == '[' || c == '(') ++depth_;
    if ((c == '}' || c == ']' || c == ')') && depth_ > 0) --depth_;
    argument_ += c;
  }

  void toggle_string() {
    if (state_ == State::kString) {
      writer_.end_value();
      state_ = State::kArgument;
      argument_.clear();
      return;
    }
    const std::string_view text = trim(argument_);
    // functiongemma writes other values between its delimiters, too, so that a string is known only at its end.
    const bool streams = format_.name != "functiongemma" && !in_string_ && depth_ == 0 && text.ends_with(":");
    if (streams) {
      writer_.begin_value(key_of(text), ArgumentsWriter::As::kString);
      state_ = State::kString;
      return;
    }
    in_string_ = !in_string_;
    argument_ += format_.string_delimiter;
  }

  // The key of "key:" or "key:value", bare or between delimiters.
  std::string key_of(std::string_view text) const {
    const std::string_view delimiter = format_.string_delimiter;
    if (text.starts_with(delimiter)) {
      const size_t end = text.find(delimiter, delimiter.size());
      if (end != std::string_view::npos) return std::string(text.substr(delimiter.size(), end - delimiter.size()));
    }
    return std::string(trim(text.substr(0, text.find(':'))));
  }

  void end_argument() {
    const std::string argument = std::exchange(argument_, {});
    const std::string_view text = trim(argument);
    const std::string key = key_of(text);
    const std::string_view delimiter = format_.string_delimiter;
    const size_t from = text.starts_with(delimiter) ? key.size() + 2 * delimiter.size() : 0;
    const size_t colon = text.find(':', std::min(from, text.size()));
    if (text.empty() || colon == std::string_view::npos) return;
    const std::string_view raw = trim(text.substr(colon + 1));
    const Schema schema = parameters_.property(key);
    const auto value = gemma_value(raw, delimiter, schema, format_.name == "functiongemma");
    writer_.member(key, value ? *value : convert_text(raw, schema));
  }

  ReadStatus read_end(char c) {
    if (held_.empty() && is_blank(c)) return ReadStatus::kMore;
    held_.push_back(c);
    bool prefix = false;
    for (const std::string_view end : format_.ends) {
      if (end == held_) return ReadStatus::kDone;
      prefix = prefix || end.starts_with(held_);
    }
    return prefix ? ReadStatus::kMore : reject(std::exchange(held_, {}));
  }

  const ToolFormat& format_;
  State state_ = State::kHeader;
  MarkerScanner scanner_;
  std::string header_, argument_, held_;
  bool brace_ = true;
  bool in_string_ = false;
  int64_t depth_ = 0;
  Schema parameters_;
  ArgumentsWriter writer_;
  JsonForwarder json_;
};

}  // namespace

std::unique_ptr<CallReader> make_gemma_reader(const ToolFormat& format, CallSink& sink) {
  return std::make_unique<GemmaCallReader>(format, sink);
}

}  // namespace quire::markup
