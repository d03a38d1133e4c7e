// SPDX-License-Identifier: Apache-2.0
// RequestTrace: the times and counts of one request, for a span in a trace.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace quire::llm {

// The W3C headers with which a client says to which trace its request belongs, as they were sent; "": none.
struct TraceContext {
  std::string traceparent;
  std::string tracestate;
};

// One prompt with all of its n answers. Times are in seconds; those of something that never happened are absent.
struct RequestTrace {
  TraceContext context;
  std::string id;  // that the client sees
  std::chrono::system_clock::time_point arrival, end;
  double e2e_s = 0;                   // arrival -> end
  std::optional<double> queue_s;      // arrival -> first scheduled
  std::optional<double> ttft_s;       // arrival -> first token
  std::optional<double> prefill_s;    // first scheduled -> first token
  std::optional<double> decode_s;     // first token -> last token
  std::optional<double> inference_s;  // first scheduled -> last token
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t n = 1;
  std::optional<int64_t> max_tokens;
  double temperature = 0;
  double top_p = 1;
  std::vector<std::string> finish_reasons;  // of the answers that began
  bool failed = false;                      // an answer ended with an error
};

// Called once for each request that has ended, on any thread; it must not block.
using TraceSink = std::function<void(RequestTrace)>;

}  // namespace quire::llm
