// SPDX-License-Identifier: Apache-2.0
// HarmonyReader: reads the messages of GPT-OSS, whose channels and recipients say what is reasoning, content or a call.
#pragma once

#include <string>
#include <string_view>

#include "markup/json_stream.h"
#include "markup/reader.h"
#include "markup/scanner.h"

namespace quire::markup {

// Where texts go that are no calls.
class TextSink {
 public:
  virtual ~TextSink() = default;
  virtual void reasoning_text(std::string_view text) = 0;
  virtual void content_text(std::string_view text) = 0;
};

// Reads an answer that continues "<|start|>assistant". One thread at a time.
class HarmonyReader {
 public:
  HarmonyReader(CallSink& calls, TextSink& texts);
  void read(char c);
  void finish();
  // Whether the next text is reasoning or part of a call.
  bool in_reasoning() const;

 private:
  enum class Body : uint8_t { kHeader, kReasoning, kContent, kCall };
  void begin_body();
  void end_body();
  void body_text(std::string_view text);

  CallSink& calls_;
  TextSink& texts_;
  MarkerScanner scanner_;
  Body body_ = Body::kHeader;
  std::string header_;  // with its markers
  bool any_message_ = false;
  bool reasoning_before_ = false, content_before_ = false;  // an earlier message of that kind had text
  bool body_has_text_ = false;
  JsonForwarder json_;
  bool json_done_ = false;
};

}  // namespace quire::markup
