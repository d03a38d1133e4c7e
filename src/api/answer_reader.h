// SPDX-License-Identifier: Apache-2.0
// AnswerReader: parts the text of one answer into reasoning, content and tool calls.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/call_ids.h"
#include "llm/streams.h"
#include "markup/markup.h"

namespace quire::api {

using LogprobRows = std::vector<std::vector<sampling::TokenLogprob>>;

// How the answers to one request are read; shared by its choices. Plain data, not changed once the request runs.
struct AnswerFormat {
  markup::Dialect dialect;  // with null members: all text is content
  markup::ParseOptions options;
  bool include_reasoning = true;
  bool keep_parts = true;  // false: the parts are sent as they come and not kept
  bool keep_rows = false;  // logprobs are sorted to the content that they belong to
  CallIdStyle call_ids = CallIdStyle::kRandom;
  std::string call_prefix;    // of ids: "chatcmpl-tool-"
  int64_t earlier_calls = 0;  // in the history

  SharedList<int32_t> kept_special;  // special tokens that the parser must see

  bool parses() const { return dialect.tools != nullptr || dialect.reasoning != nullptr; }
};

// A piece of the answer for the client. Calls always have an id.
struct AnswerEvent : markup::Event {
  LogprobRows logprobs = {};  // of content, with keep_rows
};

// A finished or unfinished stretch of the answer.
struct AnswerPart {
  markup::Event::Kind kind = markup::Event::Kind::kContent;  // kReasoning, kContent or kCallBegin
  std::string text;                                          // of a call: its arguments
  std::string id, name;                                      // of a call
  LogprobRows logprobs;
};

// Reads one answer, delta by delta. One thread at a time.
class AnswerReader {
 public:
  explicit AnswerReader(std::shared_ptr<const AnswerFormat> format);

  // Appends what the delta adds for the client; neighbouring events of a kind are joined. The delta's text is taken.
  void read(llm::Delta& delta, std::vector<AnswerEvent>& events);

  const std::vector<AnswerPart>& parts() const { return parts_; }  // in the order of the answer; with keep_parts
  std::string joined(markup::Event::Kind kind) const;              // the texts of all parts of that kind
  int64_t num_calls() const { return calls_; }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  void read_token(std::string_view text, bool has_token);
  void take(markup::Event event, std::vector<AnswerEvent>& events);
  void take_content(std::string text, std::vector<AnswerEvent>& events);
  void give(AnswerEvent event, std::vector<AnswerEvent>& events);

  std::shared_ptr<const AnswerFormat> format_;
  std::optional<markup::Parser> parser_;
  std::vector<std::string> reasoning_starts_;
  std::vector<markup::Event> parsed_;  // scratch
  std::vector<AnswerPart> parts_;
  std::string blanks_;  // white space that is content if more content follows, and dropped before a call
  LogprobRows rows_;    // of tokens whose text is not decided yet
  int64_t calls_ = 0;
  int64_t reasoning_tokens_ = 0;
};

// Appends an event; one that continues the last one is joined to it.
void append_event(std::vector<AnswerEvent>& events, AnswerEvent event);

}  // namespace quire::api
