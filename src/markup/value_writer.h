// SPDX-License-Identifier: Apache-2.0
// ArgumentsWriter: writes the arguments of one call as a JSON object while their raw values are still coming.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "markup/reader.h"

namespace quire::markup {

// Every piece that goes to the sink only extends what went before. So a value is sent while it comes only if it is
// certainly a string; other values are sent when they are complete, and the closing brace when the call ends.
class ArgumentsWriter {
 public:
  enum class As : uint8_t {
    kTyped,   // by the schema
    kString,  // a string, whatever the schema says
    kJson,    // JSON if it parses, else a string
  };

  // Starts the arguments of a call of a tool with these parameters.
  void begin(CallSink& sink, const Schema& parameters, const TaggedCalls& format);
  void begin_value(std::string_view key, As as);
  void add(std::string_view text);
  void end_value();
  // A complete member, its value given as a JSON text.
  void member(std::string_view key, std::string_view json);
  // The call is over; a value that has not ended is dropped, unless a part of it was sent.
  void end();
  // Whether the value is inside of <![CDATA[, where the closing tag of the parameter is text.
  bool in_cdata() const;
  bool empty() const { return members_ == 0 && !wrapper_held_; }

 private:
  void key(std::string_view name);
  void text(char c);
  void release_wrapper();
  std::string converted() const;

  CallSink* sink_ = nullptr;
  const TaggedCalls* format_ = nullptr;
  Schema parameters_;
  int64_t members_ = 0;
  bool in_value_ = false;
  bool streams_ = false;  // the value is a string that is sent as it comes
  bool first_ = false;    // no byte of the value was read yet
  bool newline_ = false;  // a newline that is dropped if the value ends with it
  std::string key_;
  As as_ = As::kTyped;
  std::string value_;          // a value that is not sent before it is complete
  bool wrapper_held_ = false;  // the first value may be the whole of the arguments
  std::string wrapper_key_, wrapper_value_;
  As wrapper_as_ = As::kTyped;
};

}  // namespace quire::markup
