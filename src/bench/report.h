// SPDX-License-Identifier: Apache-2.0
// From outcomes to vLLM's printed report and result JSON.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "bench/client.h"

namespace quire::bench {

// numpy's percentile with linear interpolation; 0 for no values. `p` from 0 to 100.
double percentile(std::vector<double> values, double p);
double mean(const std::vector<double>& values);
double deviation(const std::vector<double>& values);  // of the population

// What the report has to say beside the outcomes.
struct ReportOptions {
  std::vector<std::string> metrics = {"ttft", "tpot", "itl"};  // in the order of kMetrics whatever the order here
  std::vector<double> percentiles = {99};
  std::vector<std::pair<std::string, double>> goodput;  // metric and milliseconds
  int64_t max_concurrency = 0;                          // 0: none
  double request_rate = 0;                              // 0: infinite
  bool detailed = false;
};

// vLLM's counters of speculative decoding, from /metrics.
struct SpecDecode {
  double drafts = 0, draft_tokens = 0, accepted_tokens = 0;
  std::vector<double> accepted_per_position;
};
// Nothing when the text has no such counters.
std::optional<SpecDecode> read_spec_decode(std::string_view metrics);
// What happened between two readings; nothing when no draft was made.
std::optional<SpecDecode> difference(const std::optional<SpecDecode>& before, const std::optional<SpecDecode>& after);

// The names that --percentile-metrics takes.
bool known_metric(std::string_view name);

// The figures of a run. Outcomes that were not sent (the run was stopped) count for nothing.
class Report {
 public:
  Report(const LoadResult& result, const ReportOptions& options, std::optional<SpecDecode> spec);
  std::string text() const;
  // Totals, metrics, per-request lists: everything from `duration` on.
  json::Value figures() const;

  int64_t completed = 0;
  int64_t failed = 0;
  int64_t total_input = 0;
  int64_t total_output = 0;
  double duration = 0;
  double goodput = 0;  // requests a second
  double peak_output = 0;
  double peak_concurrent = 0;

 private:
  struct Series {
    const char* key;             // of --percentile-metrics and the JSON
    const char* title;           // of the block
    const char* letters;         // of its lines
    std::vector<double> values;  // seconds
  };
  void count(const LoadResult& result);
  void peaks(const LoadResult& result);
  bool wanted(const Series& series) const;

  ReportOptions options_;
  std::vector<Series> series_;
  std::vector<double> probes_;
  size_t probes_failed_ = 0;
  std::optional<SpecDecode> spec_;
  json::Value lists_;
};

}  // namespace quire::bench
