// SPDX-License-Identifier: Apache-2.0
// What a streamed answer is made of: server-sent events cut out of the bytes, and the few fields of each that a
// benchmark counts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace quire::bench {

// Cuts a byte stream into the data of server-sent events, however the bytes are split: lines may end with \n, \r or
// \r\n, an event's data may span several lines (joined by \n), comments and other fields are skipped, a BOM at the
// start too. A plain state machine, one for each response; a whole event inside one piece is handed on without a copy.
// An event that grows past kMaxEvent is an error: then nothing more is handed on.
class SseParser {
 public:
  static constexpr size_t kMaxEvent = size_t{16} << 20;
  // Calls on_data(data) for each event that `bytes` completes; the view is valid during the call.
  template <typename F>
  void feed(std::string_view bytes, F&& on_data) {
    while (!bytes.empty() && !too_long_) {
      if (const auto data = next(bytes)) on_data(*data);
    }
  }
  // The stream ended: an event that misses its blank line still counts, as clients in the field do.
  template <typename F>
  void finish(F&& on_data) {
    if (const auto data = last()) on_data(*data);
  }
  bool too_long() const { return too_long_; }

 private:
  // Consumes bytes up to the end of one event, or all of them.
  std::optional<std::string_view> next(std::string_view& bytes);
  std::optional<std::string_view> last();
  std::optional<std::string_view> end_line(std::string_view line);

  std::string line_;           // a line whose end has not come
  std::string data_;           // an event's data of several lines, or whose event is not ended
  std::string handed_;         // keeps what was handed on alive during the call
  bool has_data_ = false;      // the open event has a data field
  bool skip_newline_ = false;  // a \r ended a line: a \n behind it belongs to it
  bool at_start_ = true;
  bool too_long_ = false;
};

// The fields of one streamed message, whatever the API.
struct StreamChunk {
  bool has_choices = false;    // `choices` is a list with something in it; for responses: a delta of text
  std::string text;            // of the first choice: `text` or `delta.content` (and `delta.reasoning_content`)
  int64_t prompt_tokens = -1;  // usage; -1: not there
  int64_t output_tokens = -1;
  bool has_error = false;
  std::string error;  // its message
};

enum class StreamApi { kCompletions, kChat, kResponses };

// Reads one event's data; false when it is no JSON object (for example "[DONE]", which is not counted). One pass, no
// tree: the cost is that of looking at the bytes. `chunk` is reused between calls.
bool read_chunk(std::string_view data, StreamApi api, StreamChunk& chunk);

}  // namespace quire::bench
