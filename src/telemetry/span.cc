// SPDX-License-Identifier: Apache-2.0
// The fields of OTLP's messages that are written, by their numbers in opentelemetry-proto.
#include "telemetry/span.h"

#include <algorithm>
#include <cstdint>

#include "base/utf8.h"
#include "telemetry/protobuf.h"

namespace quire::telemetry {
namespace {

constexpr size_t kMaxTraceState = 512;  // W3C: what every service passes on at least
constexpr uint64_t kServerKind = 2;
constexpr uint64_t kErrorStatus = 2;
constexpr uint32_t kSampledFlag = 1, kHasRemoteFlag = 0x100, kRemoteFlag = 0x200;

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;  // W3C allows only small letters
}

// The bytes of hex digits, or "" if there are other characters or all bytes are 0.
std::string hex_bytes(std::string_view digits) {
  std::string out;
  bool zero = true;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    const int high = hex_digit(digits[i]), low = hex_digit(digits[i + 1]);
    if (high < 0 || low < 0) return "";
    out += static_cast<char>(high * 16 + low);
    zero = zero && high == 0 && low == 0;
  }
  return zero ? "" : out;
}

bool is_tracestate(std::string_view text) {
  return text.size() <= kMaxTraceState && std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

uint64_t nanoseconds(std::chrono::system_clock::time_point time) {
  return static_cast<uint64_t>(
      std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count()));
}

// Attributes: KeyValue messages with an AnyValue each.
class AttributeWriter {
 public:
  AttributeWriter(ProtobufWriter& out, int field) : out_(out), field_(field) {}
  void text(const char* name, std::string_view value) {
    add(name, [&](ProtobufWriter& any) { any.bytes(1, value); });
  }
  void integer(const char* name, int64_t value) {
    add(name, [&](ProtobufWriter& any) { any.number(3, static_cast<uint64_t>(value)); });
  }
  void real(const char* name, double value) {
    add(name, [&](ProtobufWriter& any) { any.real(4, value); });
  }
  void real(const char* name, std::optional<double> value) {
    if (value) real(name, std::max(*value, 0.0));
  }
  void texts(const char* name, const std::vector<std::string>& values) {
    ProtobufWriter list;
    for (const std::string& value : values) {
      ProtobufWriter any;
      any.bytes(1, value);
      list.message(1, any);
    }
    add(name, [&](ProtobufWriter& any) { any.message(5, list); });
  }

 private:
  template <typename Write>
  void add(std::string_view name, Write write) {
    ProtobufWriter any, pair;
    write(any);
    pair.bytes(1, name);
    pair.message(2, any);
    out_.message(field_, pair);
  }

  ProtobufWriter& out_;
  const int field_;
};

}  // namespace

std::optional<TraceParent> parse_traceparent(std::string_view header) {
  constexpr size_t kLength = 55;  // of version 00; later versions may add to it
  if (header.size() < kLength || header[2] != '-' || header[35] != '-' || header[52] != '-') return std::nullopt;
  const std::string_view version = header.substr(0, 2);
  const int version_high = hex_digit(version[0]), version_low = hex_digit(version[1]);
  if (version_high < 0 || version_low < 0 || version == "ff") return std::nullopt;
  if (version == "00" ? header.size() != kLength : header.size() > kLength && header[kLength] != '-') {
    return std::nullopt;
  }
  const int flags_high = hex_digit(header[53]), flags_low = hex_digit(header[54]);
  TraceParent out{hex_bytes(header.substr(3, 32)), hex_bytes(header.substr(36, 16)), (flags_low & 1) != 0};
  if (out.trace_id.empty() || out.span_id.empty() || flags_high < 0 || flags_low < 0) return std::nullopt;
  return out;
}

std::optional<std::string> encode_span(const llm::RequestTrace& trace, const std::string& model,
                                       const std::function<std::string(size_t)>& new_id) {
  const std::optional<TraceParent> parent = parse_traceparent(trace.context.traceparent);
  if (parent && !parent->sampled) return std::nullopt;
  ProtobufWriter span;
  span.bytes(1, parent ? parent->trace_id : new_id(16));
  span.bytes(2, new_id(8));
  if (parent) {
    if (is_tracestate(trace.context.tracestate)) span.bytes(3, trace.context.tracestate);
    span.bytes(4, parent->span_id);
  }
  span.bytes(5, "llm_request");
  span.number(6, kServerKind);
  span.fixed64(7, nanoseconds(trace.arrival));
  span.fixed64(8, nanoseconds(trace.end));
  AttributeWriter attributes(span, 9);
  std::string id;
  utf8::append_valid(id, trace.id);  // a collector refuses a whole batch for one byte that is not UTF-8
  attributes.text("gen_ai.request.id", id);
  attributes.text("gen_ai.response.model", model);
  attributes.real("gen_ai.latency.time_to_first_token", trace.ttft_s);
  attributes.real("gen_ai.latency.e2e", std::optional(trace.e2e_s));
  attributes.real("gen_ai.latency.time_in_queue", trace.queue_s);
  attributes.real("gen_ai.latency.time_in_model_prefill", trace.prefill_s);
  attributes.real("gen_ai.latency.time_in_model_decode", trace.decode_s);
  attributes.real("gen_ai.latency.time_in_model_inference", trace.inference_s);
  attributes.integer("gen_ai.usage.prompt_tokens", trace.prompt_tokens);
  attributes.integer("gen_ai.usage.completion_tokens", trace.completion_tokens);
  attributes.real("gen_ai.request.top_p", trace.top_p);
  attributes.real("gen_ai.request.temperature", trace.temperature);
  if (trace.max_tokens) attributes.integer("gen_ai.request.max_tokens", *trace.max_tokens);
  attributes.integer("gen_ai.request.n", trace.n);
  attributes.texts("gen_ai.response.finish_reasons", trace.finish_reasons);
  if (trace.failed) {
    ProtobufWriter status;
    status.number(3, kErrorStatus);
    span.message(15, status);
  }
  span.fixed32(16, kSampledFlag | (parent ? kHasRemoteFlag | kRemoteFlag : kHasRemoteFlag));
  return span.take();
}

std::string encode_export(const std::vector<std::string>& spans, const Attributes& resource,
                          const std::string& version) {
  ProtobufWriter resource_message;
  AttributeWriter attributes(resource_message, 1);
  for (const auto& [name, value] : resource) attributes.text(name.c_str(), value);
  ProtobufWriter scope;
  scope.bytes(1, "quire");
  scope.bytes(2, version);
  ProtobufWriter scope_spans;
  scope_spans.message(1, scope);
  for (const std::string& span : spans) scope_spans.bytes(2, span);
  ProtobufWriter resource_spans, request;
  resource_spans.message(1, resource_message);
  resource_spans.message(2, scope_spans);
  request.message(1, resource_spans);
  return request.take();
}

}  // namespace quire::telemetry
