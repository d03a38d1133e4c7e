// SPDX-License-Identifier: Apache-2.0
// Spans of OpenTelemetry: the parent from a client's headers, and requests as spans in OTLP's protobuf form.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llm/request_trace.h"

namespace quire::telemetry {

// The parts of a traceparent header: "00-" trace id "-" span id "-" flags, in hex digits.
struct TraceParent {
  std::string trace_id;  // 16 bytes
  std::string span_id;   // 8 bytes
  bool sampled = false;
};
// Nothing if the header is not as W3C's recommendation says; then the request begins a trace of its own.
std::optional<TraceParent> parse_traceparent(std::string_view header);

// What the spans of this process have in common: their resource's attributes, such as service.name.
using Attributes = std::vector<std::pair<std::string, std::string>>;

// One span as a message of the type Span. Nothing if the client's trace is not recorded (its flag says so).
// `new_id` makes random ids of so many bytes.
std::optional<std::string> encode_span(const llm::RequestTrace& trace, const std::string& model,
                                       const std::function<std::string(size_t)>& new_id);

// Spans as an ExportTraceServiceRequest.
std::string encode_export(const std::vector<std::string>& spans, const Attributes& resource,
                          const std::string& version);

}  // namespace quire::telemetry
