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
  if (format_->keep_rows) append_rows(rows_, delta.logprobs);
  if (!parser_) {
    AnswerEvent event;
    event.text = std::move(delta.text);
    return give(std::move(event), events);
  }
  parsed_.clear();
  const bool before = parser_->in_reasoning();
  parser_->feed(delta.text, parsed_);
  // Tokens that leave the parser inside the reasoning belong to it; the marker that begins or ends it does not. A model
  // may write the marker although the answer begins inside the reasoning.
  const bool marker = std::ranges::find(reasoning_starts_, delta.text) != reasoning_starts_.end();
  if (before && parser_->in_reasoning() && !marker) reasoning_tokens_ += static_cast<int64_t>(delta.tokens.size());
  const bool ended = delta.finish != engine::FinishReason::kNone;
  if (ended) parser_->finish(delta.finish == engine::FinishReason::kLength, parsed_);
  for (markup::Event& event : parsed_) take(std::move(event), events);
  if (ended && calls_ == 0 && !blanks_.empty()) {
    AnswerEvent rest;
    rest.text = std::exchange(blanks_, {});
    give(std::move(rest), events);
  }
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
