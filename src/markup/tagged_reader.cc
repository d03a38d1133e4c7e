// SPDX-License-Identifier: Apache-2.0
// Reads calls whose arguments stand in tags of their own.
#include <utility>

#include "markup/json_stream.h"
#include "markup/reader.h"
#include "markup/scanner.h"
#include "markup/value_writer.h"

namespace quire::markup {
namespace {

std::string_view unquote(std::string_view text) {
  if (text.size() >= 2 && (text.front() == '"' || text.front() == '\'') && text.back() == text.front()) {
    return text.substr(1, text.size() - 2);
  }
  return text;
}

// Undoes &amp; &quot; &lt; &gt; and &#39;.
std::string unescape(std::string_view text) {
  static constexpr std::pair<std::string_view, char> kEntities[] = {{"&amp;", '&'}, {"&quot;", '"'}, {"&lt;", '<'},
                                                                    {"&gt;", '>'},  {"&#39;", '\''}, {"&apos;", '\''}};
  std::string out;
  while (!text.empty()) {
    bool found = false;
    for (const auto& [entity, c] : kEntities) {
      if (!found && text.starts_with(entity)) {
        out += c;
        text.remove_prefix(entity.size());
        found = true;
      }
    }
    if (!found) {
      out += text.front();
      text.remove_prefix(1);
    }
  }
  return out;
}

// The value of an attribute in the header of a tag (` name="f" string="true"`): quoted by " or ', or up to a blank.
std::string attribute(std::string_view header, std::string_view name) {
  size_t at = 0;
  while ((at = header.find(name, at)) != std::string_view::npos) {
    const bool alone = at == 0 || is_blank(header[at - 1]);
    at += name.size();
    if (!alone || at >= header.size() || header[at] != '=') continue;
    std::string_view rest = header.substr(at + 1);
    if (rest.empty()) return {};
    if (rest.front() == '"' || rest.front() == '\'') {
      return unescape(rest.substr(1, rest.find(rest.front(), 1) - 1));
    }
    return unescape(rest.substr(0, rest.find_first_of(" \t\r\n")));
  }
  return {};
}

class TaggedReader final : public CallReader {
 public:
  TaggedReader(const ToolFormat& format, bool in_call, CallSink& sink)
      : CallReader(sink), format_(format), tags_(format.tagged) {
    if (in_call) {
      begin_header();
    } else {
      begin_between();
    }
  }

  ReadStatus read(char c) override {
    switch (state_) {
      case State::kBetween:
        return read_between(c);
      case State::kHeader:
        return read_header(c);
      case State::kParameters:
        return read_parameters(c);
      case State::kKey:
        return read_key(c);
      case State::kValueOpen:
        return read_value_open(c);
      case State::kValue:
        return read_value(c);
      case State::kBody:
        return read_body(c);
      case State::kElements:
        return read_elements(c);
    }
    return ReadStatus::kDone;
  }

  void finish() override {
    if (!open_) return;
    if (state_ == State::kBody) {
      end();
      return;
    }
    close_call();
  }

 private:
  enum class State : uint8_t {
    kBetween,     // before a call's tag or the section's end
    kHeader,      // in the tag of the call
    kParameters,  // before a parameter's tag or the call's end
    kKey,         // in the tag of a parameter
    kValueOpen,   // before the tag of the value
    kValue,       // in the value
    kBody,        // in a JSON object that stands for all parameters
    kElements,    // in nested elements, which are converted together
  };

  void begin_between() {
    state_ = State::kBetween;
    held_.clear();
    markers_ = {format_.open};
    markers_.insert(markers_.end(), format_.ends.begin(), format_.ends.end());
    skips_from_ = markers_.size();
    markers_.insert(markers_.end(), format_.begins.begin(), format_.begins.end());
    markers_.insert(markers_.end(), format_.skips.begin(), format_.skips.end());
  }

  ReadStatus read_between(char c) {
    if (held_.empty() && is_blank(c)) return ReadStatus::kMore;
    held_.push_back(c);
    bool prefix = false;
    for (size_t i = 0; i < markers_.size(); ++i) {
      if (markers_[i] != held_) {
        prefix = prefix || markers_[i].starts_with(held_);
        continue;
      }
      held_.clear();
      if (i == 0) begin_header();
      return i > 0 && i < skips_from_ ? ReadStatus::kDone : ReadStatus::kMore;
    }
    return prefix ? ReadStatus::kMore : reject(std::exchange(held_, {}));
  }

  void begin_header() {
    state_ = State::kHeader;
    header_.clear();
    if (!tags_.header_end.empty()) {
      scanner_ = MarkerScanner({tags_.header_end});
    } else {
      scanner_ = MarkerScanner({"<tool_sep>", tags_.param_open, format_.close});
    }
  }

  ReadStatus read_header(char c) {
    const bool bare = tags_.header_end.empty();
    // The name of a call without a closing tag ends at a newline, too.
    if (bare && c == '\n' && scanner_.held().empty()) {
      if (trim(header_).empty()) return ReadStatus::kMore;
      return begin_call() ? ReadStatus::kMore : reject({c});
    }
    const int marker = scanner_.add(c, header_);
    if (marker == MarkerScanner::kNone) {
      return header_.size() > kMaxHeader || bad_name_start() ? reject({}) : ReadStatus::kMore;
    }
    if (!begin_call()) return reject({});
    if (bare && marker == 1) begin_key();
    if (bare && marker == 2) return end_call();
    return ReadStatus::kMore;
  }

  // A name that begins like JSON is another markup with the same tag.
  bool bad_name_start() const {
    if (!tags_.header_end.empty()) return false;
    const std::string_view name = trim(header_);
    return !name.empty() && (name.front() == '{' || name.front() == '[');
  }

  bool begin_call() {
    std::string name(trim(header_));
    name = tags_.attribute.empty() ? std::string(unquote(name)) : attribute(header_, tags_.attribute);
    if (name.empty()) return false;
    begin(name);
    const Schema parameters = sink_.parameters(name);
    parameters_ = parameters;
    writer_.begin(sink_, parameters, tags_);
    if (format_.encoding == Encoding::kNested) {
      state_ = State::kElements;
      elements_.clear();
      scanner_ = MarkerScanner({format_.close});
    } else {
      begin_parameters();
    }
    return true;
  }

  void begin_parameters() {
    state_ = State::kParameters;
    std::vector<std::string_view> markers = {tags_.param_open, format_.close, format_.open};
    markers.insert(markers.end(), format_.ends.begin(), format_.ends.end());
    scanner_ = MarkerScanner(std::move(markers));
  }

  // Text between parameters means nothing.
  ReadStatus read_parameters(char c) {
    if (tags_.json_body && c == '{' && writer_.empty() && scanner_.held().empty()) {
      state_ = State::kBody;
      body_.reset();
      return read_body(c);
    }
    ignored_.clear();
    const int marker = scanner_.add(c, ignored_);
    if (marker == MarkerScanner::kNone) return ReadStatus::kMore;
    if (marker == 0) {
      begin_key();
      return ReadStatus::kMore;
    }
    return end_call_at(marker);
  }

  // The call ends with its own end marker (1), with the next call (2) or with the section (3 and up).
  ReadStatus end_call_at(int marker) {
    if (marker == 1) return end_call();
    close_call();
    if (marker == 2) {
      begin_header();
      return ReadStatus::kMore;
    }
    return ReadStatus::kDone;
  }

  ReadStatus end_call() {
    close_call();
    // Without sections a call is a region of its own.
    if (format_.begins.empty()) return ReadStatus::kDone;
    begin_between();
    return ReadStatus::kMore;
  }

  void close_call() {
    if (format_.encoding == Encoding::kNested) {
      sink_.arguments(nested_elements(elements_, tags_.param_open, parameters_));
    } else {
      writer_.end();
    }
    end();
  }

  void begin_key() {
    state_ = State::kKey;
    key_.clear();
    scanner_ = MarkerScanner({tags_.param_header_end});
  }

  ReadStatus read_key(char c) {
    const int marker = scanner_.add(c, key_);
    // A tag that never ends is text between parameters.
    if (marker == MarkerScanner::kNone) {
      if (key_.size() > kMaxHeader) {
        scanner_.take_held();
        begin_parameters();
      }
      return ReadStatus::kMore;
    }
    as_ = ArgumentsWriter::As::kTyped;
    if (!tags_.type_attribute.empty()) {
      const std::string type = attribute(key_, tags_.type_attribute);
      const bool string = type == "true" || type == "string";
      if (!type.empty()) as_ = string ? ArgumentsWriter::As::kString : ArgumentsWriter::As::kJson;
    }
    key_ = tags_.param_attribute.empty() ? std::string(unquote(trim(key_))) : attribute(key_, tags_.param_attribute);
    if (!tags_.value_open.empty()) {
      state_ = State::kValueOpen;
      scanner_ = MarkerScanner({tags_.value_open, format_.close, tags_.param_open});
    } else {
      begin_value();
    }
    return ReadStatus::kMore;
  }

  ReadStatus read_value_open(char c) {
    ignored_.clear();
    const int marker = scanner_.add(c, ignored_);
    if (marker == 0) begin_value();
    if (marker == 1) return end_call();
    if (marker == 2) begin_key();
    return ReadStatus::kMore;
  }

  void begin_value() {
    state_ = State::kValue;
    std::vector<std::string_view> markers = {tags_.value_close};
    if (tags_.lenient) {
      markers.push_back(tags_.param_open);
      markers.push_back(format_.close);
    }
    scanner_ = MarkerScanner(std::move(markers));
    writer_.begin_value(key_, as_);
  }

  ReadStatus read_value(char c) {
    ignored_.clear();
    const int marker = scanner_.add(c, ignored_);
    if (!ignored_.empty()) writer_.add(ignored_);
    if (marker == MarkerScanner::kNone) return ReadStatus::kMore;
    if (writer_.in_cdata()) {
      writer_.add(tags_.value_close);
      return ReadStatus::kMore;
    }
    writer_.end_value();
    if (marker == 2) return end_call();
    if (marker == 1) {
      begin_key();
    } else {
      begin_parameters();
    }
    return ReadStatus::kMore;
  }

  ReadStatus read_body(char c) {
    ignored_.clear();
    const auto status = body_.read(c, ignored_);
    if (!ignored_.empty()) sink_.arguments(ignored_);
    if (status == JsonForwarder::Status::kMore) return ReadStatus::kMore;
    end();
    // What follows is the call's end tag, which then means nothing.
    begin_between();
    markers_.push_back(format_.close);
    return status == JsonForwarder::Status::kDone ? ReadStatus::kMore : read_between(c);
  }

  ReadStatus read_elements(char c) {
    const int marker = scanner_.add(c, elements_);
    return marker == 0 ? end_call() : ReadStatus::kMore;
  }

  const ToolFormat& format_;
  const TaggedCalls& tags_;
  State state_ = State::kBetween;
  std::vector<std::string_view> markers_;  // kBetween: the call, the section's ends, then what is skipped
  size_t skips_from_ = 0;
  std::string held_;
  MarkerScanner scanner_;
  std::string header_, key_, ignored_, elements_;
  ArgumentsWriter::As as_ = ArgumentsWriter::As::kTyped;
  ArgumentsWriter writer_;
  Schema parameters_;
  JsonForwarder body_;
};

}  // namespace

std::unique_ptr<CallReader> make_tagged_reader(const ToolFormat& format, bool in_call, CallSink& sink) {
  return std::make_unique<TaggedReader>(format, in_call, sink);
}

}  // namespace quire::markup
