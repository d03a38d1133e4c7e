// SPDX-License-Identifier: Apache-2.0
// The exporter's thread, and its requests to the collector with libcurl.
#include "telemetry/trace_exporter.h"

#include <curl/curl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "base/check.h"
#include "base/env.h"
#include "base/log.h"

namespace quire::telemetry {
namespace {

constexpr int kMaxTries = 6;
constexpr double kFirstPause = 1, kLongestPause = 16;  // seconds
constexpr double kLastSeconds = 2;                     // for what waits when the server stops
constexpr long kTimeoutMs = 10'000;                    // of one request, as OpenTelemetry's exporters have it

std::string random_bytes(size_t size) {
  thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  std::string out;
  for (size_t i = 0; i < size; ++i) out += static_cast<char>(generator() >> 56);
  return out;
}

std::string percent_decoded(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0) {
      out += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string stripped(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t") - first + 1));
}

// "name=value,name=value" with values in percent encoding.
Result<Attributes> read_pairs(const char* variable) {
  Attributes out;
  const std::string text = env(variable).value_or("");
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string item = stripped(std::string_view(text).substr(at, end - at));
    at = end + 1;
    if (item.empty()) continue;
    const size_t equal = item.find('=');
    const std::string name = stripped(item.substr(0, equal));
    const std::string value = equal == std::string::npos ? "" : percent_decoded(stripped(item.substr(equal + 1)));
    const bool plain = std::ranges::none_of(name + value, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
    if (equal == std::string::npos || name.empty() || !plain) {
      return invalid_argument({variable, " must be a list such as name=value,name=value"});
    }
    out.emplace_back(name, value);
  }
  return out;
}

Result<double> read_number(const char* variable, double fallback, double most) {
  const std::string text = env(variable).value_or("");
  if (text.empty()) return fallback;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (*end != '\0' || !(value >= 1) || value > most) {
    return invalid_argument(
        {variable, " is '", text, "', but it must be a number from 1 to ", static_cast<int64_t>(most)});
  }
  return value;
}

Status check_protocol() {
  for (const char* variable : {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"}) {
    const std::string protocol = env(variable).value_or("");
    if (protocol.empty()) continue;
    if (protocol == "http/protobuf") return {};
    return invalid_argument({variable, " is '", protocol,
                             "', but quire sends traces as http/protobuf only; every collector takes that, usually on "
                             "port 4318"});
  }
  return {};
}

size_t discard(char*, size_t size, size_t count, void*) {
  return size * count;
}

// One POST. Returns the status, or 0 with what happened.
struct Posted {
  long status = 0;
  std::string problem;
};
Posted post(CURL* curl, const TraceOptions& options, const std::string& body, long timeout_ms) {
  curl_easy_reset(curl);
  curl_slist* headers = curl_slist_append(nullptr, "Content-Type: application/x-protobuf");
  headers = curl_slist_append(headers, "Expect:");  // no round trip before the body
  for (const std::string& header : options.headers) headers = curl_slist_append(headers, header.c_str());
  char problem[CURL_ERROR_SIZE] = "";
  curl_easy_setopt(curl, CURLOPT_URL, options.url.c_str());
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body.data());
  curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, discard);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, problem);
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, timeout_ms);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, ("quire/" + options.version).c_str());
  Posted out;
  const CURLcode code = curl_easy_perform(curl);
  if (code == CURLE_OK) {
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &out.status);
    out.problem = "it answered with status " + std::to_string(out.status);
  } else {
    out.problem = *problem != '\0' ? problem : curl_easy_strerror(code);
  }
  curl_slist_free_all(headers);
  return out;
}

// "http://host/path" of "http://name:password@host/path", for the log.
std::string without_password(const std::string& url) {
  const size_t begin = url.find("://") + 3;
  const size_t at = url.substr(0, url.find('/', begin)).rfind('@');
  return at == std::string::npos ? url : url.substr(0, begin) + url.substr(at + 1);
}

// The answers after which OTLP wants another try.
bool may_succeed_later(long status) {
  return status == 0 || status == 429 || status == 502 || status == 503 || status == 504;
}

}  // namespace

Result<TraceOptions> trace_options(const std::string& endpoint, const std::string& version) {
  TraceOptions out;
  out.version = version;
  QUIRE_TRY(check_protocol());
  const size_t scheme = endpoint.find("://");
  const std::string protocol = endpoint.substr(0, scheme == std::string::npos ? 0 : scheme);
  if ((protocol != "http" && protocol != "https") || endpoint.size() == scheme + 3) {
    return invalid_argument({"--otlp-traces-endpoint is '", endpoint,
                             "'; it must be an address such as http://127.0.0.1:4318/v1/traces (OTLP over HTTP)"});
  }
  out.url = endpoint;
  const size_t path = endpoint.find('/', scheme + 3);
  if (path == std::string::npos || path + 1 == endpoint.size()) {
    out.url = endpoint.substr(0, path) + "/v1/traces";
  }
  for (const char* variable : {"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"}) {
    QUIRE_ASSIGN(const Attributes headers, read_pairs(variable));
    for (const auto& [name, value] : headers) out.headers.push_back(name + ": " + value);
    if (!headers.empty()) break;
  }
  QUIRE_ASSIGN(out.resource, read_pairs("OTEL_RESOURCE_ATTRIBUTES"));
  const std::string service = env("OTEL_SERVICE_NAME").value_or("");
  const auto named = std::ranges::find(out.resource, "service.name", &Attributes::value_type::first);
  if (named == out.resource.end()) {
    out.resource.emplace_back("service.name", service.empty() ? "quire" : service);
  } else if (!service.empty()) {
    named->second = service;
  }
  out.resource.emplace_back("process.pid", std::to_string(::getpid()));
  QUIRE_ASSIGN(const double queue, read_number("OTEL_BSP_MAX_QUEUE_SIZE", 2048, 1e6));
  QUIRE_ASSIGN(const double batch, read_number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512, 1e6));
  QUIRE_ASSIGN(const double delay_ms, read_number("OTEL_BSP_SCHEDULE_DELAY", 5000, 3.6e6));
  out.max_queue = static_cast<size_t>(queue);
  out.max_batch = std::min(static_cast<size_t>(batch), out.max_queue);
  out.delay_s = delay_ms / 1000;
  return out;
}

TraceExporter::TraceExporter(TraceOptions options)
    : options_(std::move(options)), shown_(without_password(options_.url)) {
  curl_global_init(CURL_GLOBAL_DEFAULT);  // counted by libcurl, so that a second call elsewhere does no harm
  log_info("Traces: one span per request is sent to {}", shown_);
  thread_ = std::thread([this] { run(); });
}

TraceExporter::~TraceExporter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    stop_by_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(kLastSeconds));
  }
  changed_.notify_one();
  thread_.join();
}

void TraceExporter::add(const llm::RequestTrace& trace, const std::string& model) {
  std::optional<std::string> span = encode_span(trace, model, random_bytes);
  if (!span) return;
  const std::lock_guard lock(mutex_);
  if (stopping_ || queue_.size() >= options_.max_queue) {
    ++num_dropped_;
    return;
  }
  queue_.push_back(std::move(*span));
  if (queue_.size() == 1 || queue_.size() == options_.max_batch) changed_.notify_one();
}

void TraceExporter::run() {
  for (;;) {
    std::vector<std::string> spans;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      changed_.wait_for(lock, std::chrono::duration<double>(options_.delay_s),
                        [&] { return stopping_ || queue_.size() >= options_.max_batch; });
      if (queue_.empty() && stopping_) return;
      const size_t size = std::min(queue_.size(), options_.max_batch);
      const auto end = queue_.begin() + static_cast<std::ptrdiff_t>(size);
      spans.assign(std::make_move_iterator(queue_.begin()), std::make_move_iterator(end));
      queue_.erase(queue_.begin(), end);
    }
    auto& counter = export_batch(spans) ? num_exported_ : num_dropped_;
    counter += static_cast<int64_t>(spans.size());
  }
}

// Whether the collector took the spans. Pauses between the tries; gives up when the server stops.
bool TraceExporter::export_batch(const std::vector<std::string>& spans) {
  const std::string body = encode_export(spans, options_.resource, options_.version);
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> curl(curl_easy_init(), curl_easy_cleanup);
  QUIRE_CHECK(curl != nullptr, "libcurl returned no handle");
  double pause = kFirstPause;
  for (int tries = 1;; ++tries) {
    long timeout_ms = kTimeoutMs;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(stop_by_ - Clock::now()).count();
        if (left <= 0) return false;
        timeout_ms = std::min<long>(timeout_ms, static_cast<long>(left));
      }
    }
    const Posted posted = post(curl.get(), options_, body, timeout_ms);
    if (posted.status >= 200 && posted.status < 300) {
      if (away_) log_info("Traces: {} takes spans again; {} were dropped so far", shown_, num_dropped());
      away_ = false;
      return true;
    }
    if (!away_) {
      log_warn("Traces: {} takes no spans ({}); quire keeps up to {} and drops more", shown_, posted.problem,
               options_.max_queue);
    }
    away_ = true;
    if (tries == kMaxTries || !may_succeed_later(posted.status)) return false;
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, std::chrono::duration<double>(pause), [&] { return stopping_; })) return false;
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace quire::telemetry
