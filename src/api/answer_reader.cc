// SPDX-License-Identifier: Apache-2.0
// From the parser's events to what clients are sent.
#include "api/answer_reader.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace quire::api {
namespace {

using Kind = markup::Event::Kind;

bool has_text(Kind kind) {
  return kind == Kind::kReasoning || kind == Kind::kContent || kind == Kind::kArguments;
}

void append_rows(LogprobRows& to, LogprobRows from) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
}

}  // namespace

void append_event(std::vector<AnswerEvent>& events, AnswerEvent event) {
  if (!events.empty() && has_text(event.kind) && events.back().kind == event.kind && events.back().call == event.call) {
    events.back().text += event.text;
    append_rows(events.back().logprobs, std::move(event.logprobs));
    return;
  }
  events.push_back(std::move(event));
}

AnswerReader::AnswerReader(std::shared_ptr<const AnswerFormat> format) : format_(std::move(format)) {
  if (!format_->parses()) return;
  parser_.emplace(format_->dialect, format_->options);
  reasoning_starts_ = markup::reasoning_starts(format_->dialect);
}

std::string AnswerReader::joined(Kind kind) const {
  std::string out;
  for (const AnswerPart& part : parts_) {
    if (part.kind == kind) out += part.text;
  }
  return out;
}

void AnswerReader::read(llm::Delta& delta, std::vector<AnswerEvent>& events) {
  if (!parser_) {
    if (format_->keep_rows) append_rows(rows_, delta.logprobs);
    AnswerEvent event;
    event.text = std::move(delta.text);
    return give(std::move(event), events);
  }
  const bool ended = delta.finish != engine::FinishReason::kNone;
  const size_t steps = std::max<size_t>(delta.text_ends.size(), 1);
  for (size_t i = 0, begin = 0; i < steps; ++i) {
    const size_t end = delta.text_ends.empty() ? delta.text.size() : delta.text_ends[i];
    parsed_.clear();
    if (format_->keep_rows && i < delta.logprobs.size()) rows_.push_back(delta.logprobs[i]);
    read_token(std::string_view(delta.text).substr(begin, end - begin), !delta.tokens.empty());
    if (ended && i + 1 == steps) parser_->finish(delta.finish == engine::FinishReason::kLength, parsed_);
    for (markup::Event& event : parsed_) take(std::move(event), events);
    begin = end;
  }
  if (ended && calls_ == 0 && !blanks_.empty()) {
    AnswerEvent rest;
    rest.text = std::exchange(blanks_, {});
    give(std::move(rest), events);
  }
}

// Parses what one token (or, without one, the end) adds to the text.
void AnswerReader::read_token(std::string_view text, bool has_token) {
  const bool before = parser_->in_reasoning();
  parser_->feed(text, parsed_);
  const bool after = parser_->in_reasoning();
  // Tokens that leave the parser inside the reasoning belong to it; the marker that begins or ends it does not. A model
  // may write the marker although the answer begins inside the reasoning.
  const bool marker = std::ranges::find(reasoning_starts_, text) != reasoning_starts_.end();
  if (before && after && !marker && has_token) ++reasoning_tokens_;
  // Content may begin in the token that ends the marker, but in none before it.
  if (!before || after || rows_.empty()) return;
  const bool content = std::ranges::any_of(parsed_, [](const auto& event) { return event.kind == Kind::kContent; });
  rows_.erase(rows_.begin(), rows_.end() - (content ? 1 : 0));
}

void AnswerReader::take(markup::Event event, std::vector<AnswerEvent>& events) {
  if (event.kind == Kind::kContent) return take_content(std::move(event.text), events);
  rows_.clear();
  if (event.kind == Kind::kReasoning && !format_->include_reasoning) return;
  if (event.kind == Kind::kCallBegin) {
    blanks_.clear();
    event.id = make_call_id(format_->call_ids, format_->call_prefix, event.name, format_->earlier_calls + calls_);
    ++calls_;
  }
  AnswerEvent out;
  static_cast<markup::Event&>(out) = std::move(event);
  give(std::move(out), events);
}

// Beside calls, content neither consists of nor ends with white space: models write a newline before a call's marker.
void AnswerReader::take_content(std::string text, std::vector<AnswerEvent>& events) {
  if (format_->dialect.tools != nullptr) {
    text = std::exchange(blanks_, {}) + text;
    const size_t last = text.find_last_not_of(" \t\r\n");
    const size_t end = last == std::string::npos ? 0 : last + 1;
    blanks_ = text.substr(end);
    text.resize(end);
    if (text.empty()) return;
  }
  AnswerEvent event;
  event.text = std::move(text);
  give(std::move(event), events);
}

void AnswerReader::give(AnswerEvent event, std::vector<AnswerEvent>& events) {
  if (event.kind == Kind::kContent) event.logprobs = std::exchange(rows_, {});
  if (format_->keep_parts && event.kind != Kind::kCallEnd) {
    const Kind kind = event.kind == Kind::kArguments ? Kind::kCallBegin : event.kind;
    if (parts_.empty() || parts_.back().kind != kind || event.kind == Kind::kCallBegin) {
      AnswerPart part;
      part.kind = kind;
      part.id = event.id;
      part.name = event.name;
      parts_.push_back(std::move(part));
    }
    if (has_text(event.kind)) parts_.back().text += event.text;
    append_rows(parts_.back().logprobs, event.logprobs);
  }
  append_event(events, std::move(event));
}

}  // namespace quire::api
