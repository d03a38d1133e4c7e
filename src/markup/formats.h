// SPDX-License-Identifier: Apache-2.0
// The tables of markups: one row for each way in which models write tool calls, and one for each way in which they
// write reasoning.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace quire::markup {

// How one call is written between its markers.
enum class Encoding : uint8_t {
  kJson,    // JSON objects {"name": ..., "arguments": {...}}, alone, one after the other or in an array
  kKeyed,   // the name outside, the arguments as a JSON object
  kTagged,  // the name in a tag, each argument in a tag of its own; strings are raw text
  kPython,  // f(a=1, b="x")
  kGemma,   // call:f{a:1,b:<|"|>x<|"|>}
  kNested,  // the name in a tag, arguments as elements that bear their names, nested
  kHarmony  // messages with channels and recipients
};

// Texts of a row. A row has few of them, so a short list of views serves.
using Texts = std::vector<std::string_view>;

// kJson: which members of the object are the call.
struct JsonCalls {
  Texts names = {"name"};
  Texts arguments = {"arguments", "parameters"};
  bool name_is_key = false;         // {"f": {...}}
  std::string_view written = "{}";  // how tool_constraint() writes the array around calls: "{}" or "[]"
};

// kKeyed: <open> header <header_end> {...} <close>
struct KeyedCalls {
  enum class Header : uint8_t {
    kName,     // f
    kKimi,     // functions.f:0, which is also the id of the call
    kTyped,    // function<sep>f
    kWithId,   // id<sep>f
    kMistral,  // f, or f[CALL_ID]id
  };
  Header header = Header::kName;
  std::string_view sep = {};
  Texts header_ends = {};
  bool brace_ends_header = false;  // "{" ends the header, too
};

// kTagged and kNested: <open ... name ...> parameters </close>
struct TaggedCalls {
  std::string_view attribute = {};   // the attribute that is the name; empty: the header is the name
  std::string_view header_end = {};  // empty: a newline or the next tag ends the name
  std::string_view param_open = {};
  std::string_view param_attribute = {};  // empty: the header of the parameter is its name
  std::string_view param_header_end = {};
  std::string_view value_open = {};  // a tag between the name and the value of a parameter
  std::string_view value_close = {};
  std::string_view type_attribute = {};  // "string" (DSML: "true" or "false") or "type" (the JSON type)
  bool trim_newlines = false;            // one newline on each side of a value belongs to the markup
  bool lenient = false;                  // a missing value_close is supplied by the next parameter or the close
  bool unwrap = false;                   // a sole parameter "arguments" or "input" that the schema lacks is all of them
  bool json_body = false;                // a JSON object instead of parameters
  bool cdata = false;                    // values may be written as <![CDATA[...]]>
  // How tool_constraint() writes parameters: the style of json_schema that does it or, if that is empty, the texts
  // before and after a value (KEY stands for the parameter's name, TYPE for its JSON type, RAW for whether it is a
  // string).
  std::string_view style = {};
  std::string_view write_param_begin = {};
  std::string_view write_param_end = {};
};

// One way to write tool calls. A region of calls begins with one of `begins` (the section's marker) or `opens` (a
// call's marker), and ends with `ends`.
struct ToolFormat {
  std::string_view name;
  Texts aliases = {};
  Encoding encoding = Encoding::kJson;
  Texts begins = {};            // begin of a section; may be empty
  Texts ends = {};              // end of a section, or of a region without sections
  std::string_view open = {};   // begin of a call; empty: `begins` is that
  std::string_view close = {};  // end of a call
  Texts skips = {};             // markers between calls that mean nothing
  std::string_view bare = {};   // an answer that starts with one of these characters is a call without a marker
  std::string_view string_delimiter = {};  // kGemma
  // Texts that may begin calls although they are no markers of this markup ("```json"), as smaller models write them.
  // So may an answer that begins with "{" if there are any. What follows is a call only if it is JSON that names one of
  // the request's tools and has arguments.
  Texts guesses = {};
  Texts guess_ends = {};
  bool keep_tail = false;       // text after a call stays content
  bool one_region = false;      // calls of a second region are dropped: the model repeats itself
  bool repair_strings = false;  // kPython: quotes inside of strings need no escape
  bool check_names = false;     // a call of an unknown tool is dropped
  bool ends_reasoning = true;   // the markers end reasoning, too
  JsonCalls json = {};
  KeyedCalls keyed = {};
  TaggedCalls tagged = {};
  // How tool_constraint() writes: a section's begin and end, one call up to its arguments (NAME stands for the name,
  // INDEX for a number) and from them to its end, and what stands between calls.
  std::string_view write_section_begin = {};
  std::string_view write_section_end = {};
  std::string_view write_begin = {};
  std::string_view write_end = {};
  std::string_view write_separator = {};
};

// Where reasoning starts if the prompt does not say.
enum class ReasoningDefault : uint8_t {
  kOff,     // in the content; a start marker begins reasoning
  kOn,      // in reasoning
  kAsked,   // in reasoning only if thinking or enable_thinking is true
  kUnless,  // in reasoning unless thinking or enable_thinking is false
};

// One way to write reasoning.
struct ReasoningFormat {
  std::string_view name;
  Texts aliases = {};
  Texts starts = {};
  Texts ends = {};
  ReasoningDefault fallback = ReasoningDefault::kOff;
  Texts wrappers = {};  // markers around the content, which are removed from it
  // Text that begins with `header` and ends with the wrapper `header_end` stands in front of a message and says to whom
  // it goes (" to=f<|message|>"); it is removed.
  std::string_view header = {};
  std::string_view header_end = {};
  bool anywhere = false;     // a start marker counts after content, too
  bool keep_blanks = false;  // blanks at the end of the reasoning are kept
  bool harmony = false;
  bool append_to_content = false;  // the reasoning stays in the content, with its markers
};

std::span<const ToolFormat> tool_formats();
std::span<const ReasoningFormat> reasoning_formats();
// The row of that name or alias; null if there is none.
const ToolFormat* find_tool_format(std::string_view name);
const ReasoningFormat* find_reasoning_format(std::string_view name);
// The row for a chat template; null if no markup of the table is in it.
const ToolFormat* tool_format_of_template(std::string_view source);
const ReasoningFormat* reasoning_format_of_template(std::string_view source);

}  // namespace quire::markup
