// SPDX-License-Identifier: Apache-2.0
// Turns the outcomes of requests into vLLM's printed report and result JSON.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "bench/client.h"

namespace quire::bench {

// numpy's percentile with linear interpolation; 0 if there are no values. `p` is from 0 to 100.
double percentile(std::vector<double> values, double p);
double mean(const std::vector<double>& values);
double deviation(const std::vector<double>& values);  // standard deviation of the population

// What the report needs beside the outcomes.
struct ReportOptions {
  std::vector<std::string> metrics = {"ttft", "tpot", "itl"};  // printed in the order of kMetrics
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
// Nothing if the text has no such counters.
std::optional<SpecDecode> read_spec_decode(std::string_view metrics);
// The change between two readings; nothing if no draft was made.
std::optional<SpecDecode> difference(const std::optional<SpecDecode>& before, const std::optional<SpecDecode>& after);

// Whether --percentile-metrics accepts the name.
bool known_metric(std::string_view name);

// The figures of a run. Outcomes that were not sent (because the run was stopped) are not counted.
class Report {
 public:
  Report(const LoadResult& result, const ReportOptions& options, std::optional<SpecDecode> spec);
  std::string text() const;
  // Totals, metrics and lists per request: everything from `duration` on.
  json::Value figures() const;

  int64_t completed = 0;
  int64_t failed = 0;
  int64_t total_input = 0;
  int64_t total_output = 0;
  double duration = 0;
  double goodput = 0;  // requests/s
  double peak_output = 0;
  double peak_concurrent = 0;

 private:
  struct Series {
    const char* key;             // in --percentile-metrics and the JSON
    const char* title;           // of the section
    const char* letters;         // the abbreviation in its lines
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
