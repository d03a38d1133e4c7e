// SPDX-License-Identifier: Apache-2.0
// Reads streamed responses: splits the bytes into server-sent events and extracts the few fields that a benchmark
// needs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace quire::bench {

// Splits a byte stream into the data of server-sent events, however the bytes are divided into pieces. Lines may end
// with \n, \r or \r\n; the data of an event may span several lines (joined by \n); comments, other fields and a BOM at
// the start are skipped. A plain state machine, one per response; an event that is whole inside one piece is not
// copied. An event larger than kMaxEvent is an error, after which no more events are returned.
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
  // Call it at the end of the stream: an event without its final blank line counts, too, as in other clients.
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

  std::string line_;           // an incomplete line
  std::string data_;           // the data of an incomplete event or of several lines
  std::string handed_;         // keeps the data alive during the call
  bool has_data_ = false;      // the open event has a data field
  bool skip_newline_ = false;  // a \r ended a line: a \n after it belongs to that line
  bool at_start_ = true;
  bool too_long_ = false;
};

// The fields of one streamed message of any API.
struct StreamChunk {
  bool has_choices = false;    // `choices` is a list that is not empty; for responses: a text delta
  std::string text;            // of the first choice, `text` or `delta.content` (and `delta.reasoning_content`)
  int64_t prompt_tokens = -1;  // from usage; -1: missing
  int64_t output_tokens = -1;
  bool has_error = false;
  std::string error;  // the error's message
};

// kWhole: the answer is one JSON object, not a stream (embeddings, rerank).
enum class StreamApi { kCompletions, kChat, kResponses, kWhole };

// Reads the data of one event; false if it is not a JSON object (such as "[DONE]", which does not count). One pass,
// without building a tree. `chunk` is reused between calls.
bool read_chunk(std::string_view data, StreamApi api, StreamChunk& chunk);

}  // namespace quire::bench
