// SPDX-License-Identifier: Apache-2.0
// Reads calls whose name stands in a header before their JSON arguments.
#include <cctype>
#include <utility>

#include "markup/json_stream.h"
#include "markup/reader.h"
#include "markup/scanner.h"

namespace quire::markup {
namespace {

class KeyedReader final : public CallReader {
 public:
  KeyedReader(const ToolFormat& format, bool in_call, CallSink& sink) : CallReader(sink), format_(format) {
    if (in_call) {
      begin_header();
    } else {
      begin_between();
    }
  }

  ReadStatus read(char c) override {
    if (inner_ != nullptr) return read_inner(c);
    switch (state_) {
      case State::kBetween:
        return read_between(c);
      case State::kHeader:
        return read_header(c);
      case State::kArguments:
        return read_arguments(c);
      case State::kTail:
        return read_tail(c);
    }
    return ReadStatus::kDone;
  }

  void finish() override {
    if (inner_ != nullptr) inner_->finish();
    if (open_) close();
  }

 private:
  enum class State : uint8_t {
    kBetween,    // before a call's marker or the section's end
    kHeader,     // in the header
    kArguments,  // in the arguments
    kTail,       // after the arguments, before the call's end marker
  };

  void begin_between() {
    state_ = State::kBetween;
    markers_ = {format_.open};
    markers_.insert(markers_.end(), format_.ends.begin(), format_.ends.end());
    held_.clear();
  }

  void begin_header() {
    state_ = State::kHeader;
    header_.clear();
    scanner_ = MarkerScanner(format_.keyed.header_ends);
  }

  // Reads blanks, then one of the markers: its index, -1 for "more to come", -2 if something else stands here.
  int marker_at(char c) {
    if (held_.empty() && is_blank(c)) return -1;
    held_.push_back(c);
    bool prefix = false;
    for (size_t i = 0; i < markers_.size(); ++i) {
      if (markers_[i] == held_) {
        held_.clear();
        return static_cast<int>(i);
      }
      prefix = prefix || markers_[i].starts_with(held_);
    }
    return prefix ? -1 : -2;
  }

  ReadStatus read_between(char c) {
    const int marker = marker_at(c);
    if (marker == -2) return reject(std::exchange(held_, {}));
    if (marker == 0) begin_header();
    return marker > 0 ? ReadStatus::kDone : ReadStatus::kMore;
  }

  ReadStatus read_header(char c) {
    const KeyedCalls& keyed = format_.keyed;
    if (header_.empty() && scanner_.held().empty() && keyed.header == KeyedCalls::Header::kMistral) {
      if (is_blank(c)) return ReadStatus::kMore;
      // Before [ARGS] existed, calls were a JSON array.
      if (c == '[' || c == '{') {
        inner_ = make_json_reader(format_, sink_);
        return read_inner(c);
      }
    }
    if (c == '{' && keyed.brace_ends_header && scanner_.held().empty() && !trim(header_).empty()) {
      return end_header() ? read_arguments(c) : reject({c});
    }
    if (scanner_.add(c, header_) != MarkerScanner::kNone) {
      if (!end_header()) return reject({});
      return ReadStatus::kMore;
    }
    if (header_.size() > kMaxHeader) return reject({});
    return ReadStatus::kMore;
  }

  // Takes the name and the id from the header, and begins the call.
  bool end_header() {
    const KeyedCalls& keyed = format_.keyed;
    std::string_view name = trim(header_);
    std::string_view id;
    if (!keyed.sep.empty()) {
      const size_t sep = name.rfind(keyed.sep);
      if (sep != std::string_view::npos) {
        const std::string_view before = trim(name.substr(0, sep));
        const std::string_view after = trim(name.substr(sep + keyed.sep.size()));
        const bool name_first = keyed.header == KeyedCalls::Header::kMistral;
        if (keyed.header == KeyedCalls::Header::kWithId) id = before;
        if (name_first) id = after;
        name = name_first ? before : after;
      }
    }
    if (keyed.header == KeyedCalls::Header::kKimi) {
      id = name;
      if (name.starts_with("functions.")) name.remove_prefix(10);
      const size_t colon = name.rfind(':');
      if (colon != std::string_view::npos && colon + 1 < name.size() &&
          name.find_first_not_of("0123456789", colon + 1) == std::string_view::npos) {
        name = name.substr(0, colon);
      }
    }
    if (name.empty()) return false;
    begin(std::string(name), std::string(id));
    state_ = State::kArguments;
    value_.reset();
    value_begun_ = false;
    return true;
  }

  ReadStatus read_arguments(char c) {
    if (!value_begun_) {
      if (is_blank(c)) return ReadStatus::kMore;
      // Anything else than an object, or a string that contains one, means that there are no arguments.
      if (c != '{' && c != '"') return end_arguments(c);
      value_begun_ = true;
    }
    out_.clear();
    const auto status = value_.read(c, out_);
    if (!out_.empty()) sink_.arguments(out_);
    if (status == JsonForwarder::Status::kMore) return ReadStatus::kMore;
    if (status == JsonForwarder::Status::kDoneBefore) return end_arguments(c);
    if (!value_.wrote()) sink_.arguments("{}");
    return begin_tail();
  }

  ReadStatus begin_tail() {
    if (format_.close.empty()) {
      end();
      begin_between();
      return ReadStatus::kMore;
    }
    state_ = State::kTail;
    markers_ = {format_.close, format_.open};
    markers_.insert(markers_.end(), format_.ends.begin(), format_.ends.end());
    held_.clear();
    return ReadStatus::kMore;
  }

  ReadStatus end_arguments(char c) {
    if (!value_.wrote()) sink_.arguments("{}");
    begin_tail();
    return read(c);
  }

  // The call's end marker, after blanks and the end of a code fence; it may be missing.
  ReadStatus read_tail(char c) {
    if (held_.empty() && c == '`') return ReadStatus::kMore;
    const int marker = marker_at(c);
    if (marker == -1) return ReadStatus::kMore;
    end();
    if (marker == -2) return reject(std::exchange(held_, {}));
    if (marker == 1) {
      begin_header();
      return ReadStatus::kMore;
    }
    if (marker > 1) return ReadStatus::kDone;
    // Without sections a call is a region of its own.
    if (format_.begins.empty()) return ReadStatus::kDone;
    begin_between();
    return ReadStatus::kMore;
  }

  ReadStatus read_inner(char c) {
    const ReadStatus status = inner_->read(c);
    begun_ = inner_->begun();
    if (status != ReadStatus::kMore) unread_ = inner_->unread();
    return status;
  }

  void close() {
    if (state_ == State::kArguments && !value_begun_) sink_.arguments("{}");
    end();
  }

  const ToolFormat& format_;
  State state_ = State::kBetween;
  std::vector<std::string_view> markers_;
  std::string held_;  // the beginning of a marker
  std::string header_;
  MarkerScanner scanner_;
  JsonForwarder value_;
  bool value_begun_ = false;
  std::string out_;
  std::unique_ptr<CallReader> inner_;  // reads an array of calls
};

}  // namespace

std::unique_ptr<CallReader> make_keyed_reader(const ToolFormat& format, bool in_call, CallSink& sink) {
  return std::make_unique<KeyedReader>(format, in_call, sink);
}

}  // namespace quire::markup
