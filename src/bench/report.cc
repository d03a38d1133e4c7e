// SPDX-License-Identifier: Apache-2.0
// Computes the statistics and writes vLLM's report, 50 columns wide, and the result JSON.
#include "bench/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace quire::bench {
namespace {

constexpr int kWidth = 50;

struct MetricName {
  const char* key;
  const char* title;
  const char* letters;
};
constexpr MetricName kMetrics[] = {
    {"ttft", "Time to First Token", "TTFT"},
    {"tpot", "Time per Output Token (excl. 1st token)", "TPOT"},
    {"itl", "Inter-token Latency", "ITL"},
    {"e2el", "End-to-end Latency", "E2EL"},
    {"client_queue_time", "Client-side Queueing", "Client Queue Time"},
    {"e2el_including_client_queue", "Queue-inclusive End-to-end Latency", "E2EL incl. Client Queue"},
};
enum Place { kTtft, kTpot, kItl, kE2el, kQueue, kE2elQueue };

std::string centred(std::string_view text, char fill) {
  const int left = (kWidth - static_cast<int>(text.size())) / 2;
  const int right = kWidth - static_cast<int>(text.size()) - left;
  return std::string(static_cast<size_t>(std::max(left, 0)), fill) + std::string(text) +
         std::string(static_cast<size_t>(std::max(right, 0)), fill) + "\n";
}

std::string line(const std::string& label, int64_t value) {
  char text[128];
  std::snprintf(text, sizeof text, "%-40s %-10lld\n", label.c_str(), static_cast<long long>(value));
  return text;
}

std::string line(const std::string& label, double value) {
  char text[128];
  std::snprintf(text, sizeof text, "%-40s %-10.2f\n", label.c_str(), value);
  return text;
}

// 99 -> "99", 99.9 -> "99.9".
std::string percentile_name(double p) {
  char text[32];
  std::snprintf(text, sizeof text, "%.10g", p);
  return text;
}

double sorted_percentile(const std::vector<double>& sorted, double p) {
  if (sorted.empty()) return 0;
  const double place = p / 100.0 * static_cast<double>(sorted.size() - 1);
  const size_t low = static_cast<size_t>(place);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  const double t = place - static_cast<double>(low);
  const double difference = sorted[high] - sorted[low];
  return t < 0.5 ? sorted[low] + difference * t : sorted[high] - difference * (1 - t);
}

}  // namespace

double percentile(std::vector<double> values, double p) {
  std::sort(values.begin(), values.end());
  return sorted_percentile(values, p);
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double deviation(const std::vector<double>& values) {
  const double middle = mean(values);
  double sum = 0;
  for (const double v : values) sum += (v - middle) * (v - middle);
  return values.empty() ? 0 : std::sqrt(sum / static_cast<double>(values.size()));
}

bool known_metric(std::string_view name) {
  return std::any_of(std::begin(kMetrics), std::end(kMetrics), [&](const MetricName& m) { return name == m.key; });
}

std::optional<SpecDecode> read_spec_decode(std::string_view metrics) {
  SpecDecode out;
  bool any = false;
  for (size_t at = 0; at < metrics.size();) {
    const size_t end = std::min(metrics.find('\n', at), metrics.size());
    const std::string text(metrics.substr(at, end - at));
    at = end + 1;
    constexpr std::string_view kPrefix = "vllm:spec_decode_num_";
    if (text.compare(0, kPrefix.size(), kPrefix) != 0) continue;
    const size_t name_end = std::min(text.find('{'), text.find(' '));
    const size_t value_at = text.rfind(' ');
    if (name_end == std::string::npos || value_at == std::string::npos) continue;
    std::string name = text.substr(kPrefix.size(), name_end - kPrefix.size());
    if (name.size() > 6 && name.substr(name.size() - 6) == "_total") name.resize(name.size() - 6);
    const double value = std::atof(text.c_str() + value_at);
    any = true;
    if (name == "drafts") out.drafts += value;
    if (name == "draft_tokens") out.draft_tokens += value;
    if (name == "accepted_tokens") out.accepted_tokens += value;
    const size_t position_at = text.find("position=\"");
    if (name == "accepted_tokens_per_pos" && position_at != std::string::npos) {
      const long position = std::atol(text.c_str() + position_at + std::strlen("position=\""));
      if (position < 0 || position >= 1024) continue;
      if (out.accepted_per_position.size() <= static_cast<size_t>(position)) {
        out.accepted_per_position.resize(static_cast<size_t>(position) + 1);
      }
      out.accepted_per_position[static_cast<size_t>(position)] += value;
    }
  }
  if (!any) return std::nullopt;
  return out;
}

std::optional<SpecDecode> difference(const std::optional<SpecDecode>& before, const std::optional<SpecDecode>& after) {
  if (!before || !after) return std::nullopt;
  SpecDecode out = *after;
  out.drafts -= before->drafts;
  out.draft_tokens -= before->draft_tokens;
  out.accepted_tokens -= before->accepted_tokens;
  for (size_t i = 0; i < std::min(out.accepted_per_position.size(), before->accepted_per_position.size()); ++i) {
    out.accepted_per_position[i] -= before->accepted_per_position[i];
  }
  if (out.drafts <= 0) return std::nullopt;
  return out;
}

Report::Report(const LoadResult& result, const ReportOptions& options, std::optional<SpecDecode> spec)
    : duration(result.duration), options_(options), spec_(std::move(spec)) {
  for (const MetricName& m : kMetrics) series_.push_back({m.key, m.title, m.letters, {}});
  count(result);
  peaks(result);
  for (Series& series : series_) std::sort(series.values.begin(), series.values.end());
  for (const Outcome& probe : result.probes) {
    if (!probe.sent) continue;
    probe.success ? probes_.push_back(probe.latency) : void(++probes_failed_);
  }
}

void Report::count(const LoadResult& result) {
  json::Array inputs, outputs, ttfts, itls, starts, texts, errors, latencies, queues;
  int64_t good = 0;
  for (const Outcome& o : result.outcomes) {
    if (!o.sent) continue;
    latencies.emplace_back(o.latency);
    queues.emplace_back(o.queue_time);
    const int64_t tokens = o.success ? o.output_tokens : 0;
    if (options_.detailed) {
      inputs.emplace_back(o.prompt_len);
      outputs.emplace_back(tokens);
      ttfts.emplace_back(o.ttft);
      json::Array gaps;
      for (const double gap : o.itl) gaps.emplace_back(gap);
      itls.emplace_back(std::move(gaps));
      starts.emplace_back(o.start);
      texts.emplace_back(o.text);
      errors.emplace_back(o.error);
    }
    if (!o.success) {
      ++failed;
      continue;
    }
    ++completed;
    total_input += o.prompt_len;
    total_output += tokens;
    const double tpot = tokens > 1 ? (o.latency - o.ttft) / static_cast<double>(tokens - 1) : 0;
    if (tokens > 1) series_[kTpot].values.push_back(tpot);
    series_[kTtft].values.push_back(o.ttft);
    auto& all_gaps = series_[kItl].values;
    all_gaps.insert(all_gaps.end(), o.itl.begin(), o.itl.end());
    series_[kE2el].values.push_back(o.latency);
    series_[kQueue].values.push_back(o.queue_time);
    series_[kE2elQueue].values.push_back(o.latency + o.queue_time);
    bool met = true;
    for (const auto& [metric, limit] : options_.goodput) {
      const double value = metric == "ttft" ? o.ttft : metric == "tpot" ? tpot : o.latency;
      met = met && value <= limit / 1e3;
    }
    good += met ? 1 : 0;
  }
  goodput = duration > 0 ? static_cast<double>(good) / duration : 0;
  lists_ = json::Object{};
  if (options_.detailed) {
    lists_.set("input_lens", std::move(inputs));
    lists_.set("output_lens", std::move(outputs));
    lists_.set("ttfts", std::move(ttfts));
    lists_.set("itls", std::move(itls));
    lists_.set("start_times", std::move(starts));
    lists_.set("generated_texts", std::move(texts));
    lists_.set("errors", std::move(errors));
  }
  lists_.set("latencies", std::move(latencies));
  lists_.set("queue_times", std::move(queues));
}

// One-second buckets since the first start: the messages in each, and the requests that were active in any part of it.
void Report::peaks(const LoadResult& result) {
  double first = 0;
  bool any = false;
  for (const Outcome& o : result.outcomes) {
    if (!o.success) continue;
    first = any ? std::min(first, o.start) : o.start;
    any = true;
  }
  std::vector<int64_t> messages, active;
  const auto bucket = [](std::vector<int64_t>& list, double at) -> int64_t& {
    const size_t index = static_cast<size_t>(std::max(at, 0.0));
    if (list.size() <= index) list.resize(index + 1);
    return list[index];
  };
  for (const Outcome& o : result.outcomes) {
    if (!o.success) continue;
    double at = o.start - first + o.ttft;
    ++bucket(messages, at);
    for (const double gap : o.itl) ++bucket(messages, at += gap);
    const double end = o.start - first + o.latency;
    for (double second = std::floor(o.start - first); second <= std::floor(end); ++second) ++bucket(active, second);
  }
  for (const int64_t n : messages) peak_output = std::max(peak_output, static_cast<double>(n));
  for (const int64_t n : active) peak_concurrent = std::max(peak_concurrent, static_cast<double>(n));
}

bool Report::wanted(const Series& series) const {
  return std::find(options_.metrics.begin(), options_.metrics.end(), series.key) != options_.metrics.end();
}

std::string Report::text() const {
  const double time = duration > 0 ? duration : 1;
  std::string out = centred(" Serving Benchmark Result ", '=');
  out += line("Successful requests:", completed);
  out += line("Failed requests:", failed);
  if (options_.max_concurrency > 0) out += line("Maximum request concurrency:", options_.max_concurrency);
  if (options_.request_rate > 0) out += line("Request rate configured (RPS):", options_.request_rate);
  out += line("Benchmark duration (s):", duration);
  out += line("Total input tokens:", total_input);
  out += line("Total generated tokens:", total_output);
  out += line("Request throughput (req/s):", static_cast<double>(completed) / time);
  if (!options_.goodput.empty()) out += line("Request goodput (req/s):", goodput);
  out += line("Output token throughput (tok/s):", static_cast<double>(total_output) / time);
  out += line("Peak output token throughput (tok/s):", peak_output);
  out += line("Peak concurrent requests:", peak_concurrent);
  out += line("Total token throughput (tok/s):", static_cast<double>(total_input + total_output) / time);
  if (!probes_.empty()) {
    out += centred("Probe Requests", '-');
    out += line("Probe requests completed:", static_cast<int64_t>(probes_.size()));
    out += line("Probe requests failed:", static_cast<int64_t>(probes_failed_));
    out += line("Median probe E2EL (ms):", 1e3 * percentile(probes_, 50));
    out += line("P99 probe E2EL (ms):", 1e3 * percentile(probes_, 99));
    out += line("Max probe E2EL (ms):", 1e3 * percentile(probes_, 100));
  }
  for (const Series& series : series_) {
    if (!wanted(series)) continue;
    const std::string unit = std::string(series.letters) + " (ms):";
    out += centred(series.title, '-');
    out += line("Mean " + unit, 1e3 * mean(series.values));
    out += line("Median " + unit, 1e3 * sorted_percentile(series.values, 50));
    for (const double p : options_.percentiles) {
      out += line("P" + percentile_name(p) + " " + unit, 1e3 * sorted_percentile(series.values, p));
    }
  }
  if (spec_) {
    out += centred("Speculative Decoding", '-');
    if (spec_->draft_tokens > 0) {
      out += line("Acceptance rate (%):", 100 * spec_->accepted_tokens / spec_->draft_tokens);
    }
    out += line("Acceptance length:", 1 + spec_->accepted_tokens / spec_->drafts);
    out += line("Drafts:", static_cast<int64_t>(spec_->drafts));
    out += line("Draft tokens:", static_cast<int64_t>(spec_->draft_tokens));
    out += line("Accepted tokens:", static_cast<int64_t>(spec_->accepted_tokens));
    if (!spec_->accepted_per_position.empty()) out += "Per-position acceptance (%):\n";
    for (size_t i = 0; i < spec_->accepted_per_position.size(); ++i) {
      out += line("  Position " + std::to_string(i) + ":", 100 * spec_->accepted_per_position[i] / spec_->drafts);
    }
  }
  return out + std::string(kWidth, '=') + "\n";
}

json::Value Report::figures() const {
  const double time = duration > 0 ? duration : 1;
  json::Value out{json::Object{}};
  out.set("duration", duration);
  out.set("completed", completed);
  out.set("failed", failed);
  out.set("total_input_tokens", total_input);
  out.set("total_output_tokens", total_output);
  out.set("request_throughput", static_cast<double>(completed) / time);
  out.set("request_goodput", options_.goodput.empty() ? json::Value() : json::Value(goodput));
  out.set("output_throughput", static_cast<double>(total_output) / time);
  out.set("total_token_throughput", static_cast<double>(total_input + total_output) / time);
  for (const json::Member& member : lists_.as_object()) out.set(member.first, member.second);
  out.set("max_output_tokens_per_s", peak_output);
  out.set("max_concurrent_requests", static_cast<int64_t>(peak_concurrent));
  out.set("rtfx", 0.0);
  for (const Series& series : series_) {
    if (!wanted(series)) continue;
    const std::string suffix = "_" + std::string(series.key) + "_ms";
    out.set("mean" + suffix, 1e3 * mean(series.values));
    out.set("median" + suffix, 1e3 * sorted_percentile(series.values, 50));
    out.set("std" + suffix, 1e3 * deviation(series.values));
    for (const double p : options_.percentiles) {
      out.set("p" + percentile_name(p) + suffix, 1e3 * sorted_percentile(series.values, p));
    }
  }
  if (!probes_.empty()) {
    out.set("probe_completed", static_cast<int64_t>(probes_.size()));
    out.set("probe_failed", static_cast<int64_t>(probes_failed_));
    out.set("probe_median_e2el_ms", 1e3 * percentile(probes_, 50));
    out.set("probe_p99_e2el_ms", 1e3 * percentile(probes_, 99));
    out.set("probe_max_e2el_ms", 1e3 * percentile(probes_, 100));
  }
  if (spec_) {
    const double rate = spec_->draft_tokens > 0 ? 100 * spec_->accepted_tokens / spec_->draft_tokens : 0;
    out.set("spec_decode_acceptance_rate", rate);
    out.set("spec_decode_acceptance_length", 1 + spec_->accepted_tokens / spec_->drafts);
    out.set("spec_decode_num_drafts", static_cast<int64_t>(spec_->drafts));
    out.set("spec_decode_draft_tokens", static_cast<int64_t>(spec_->draft_tokens));
    out.set("spec_decode_accepted_tokens", static_cast<int64_t>(spec_->accepted_tokens));
    json::Array positions;
    for (const double accepted : spec_->accepted_per_position) positions.emplace_back(accepted / spec_->drafts);
    out.set("spec_decode_per_position_acceptance_rates", std::move(positions));
  }
  return out;
}

}  // namespace quire::bench
