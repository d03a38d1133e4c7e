// SPDX-License-Identifier: Apache-2.0
// The subcommands of quire bench, each in its own file.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "bench/offline.h"
#include "cli/command_ranks.h"
#include "cli/terminal.h"
#include "llm/options.h"

namespace quire::cli {

// The value of --dataset-name (see flags.h).
constexpr const char* kDatasetName = "TEXT:{sharegpt,random,sonnet,custom,prefix_repetition,burstgpt,timed_trace}";

// The flags of all benchmarks that load a model.
struct BenchFlags {
  llm::Options options;
  RankFlags ranks;
  std::string model;
  bench::Workload workload;
  std::vector<std::string> json_schemas;  // files, for Workload::constraints
  int64_t iters = 10;
  int64_t warmup = 2;
  std::string output_json;
  bool json = false;
};
// Shows "rounds: 3 of 12, 4.1 s" on standard error while a benchmark runs, if that is a terminal.
class BenchLine {
 public:
  void operator()(const std::string& what, int64_t done, int64_t total);

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  StatusLine line_;
};

// --model, --output-json, --json and, unless it is an offline workload's own, the model flags.
void add_bench_output(CLI::App& command, BenchFlags& flags);
// Adds a number with its environment variable; the help shows its default.
void add_bench_option(CLI::App& command, const std::string& name, int64_t& value, const std::string& doc);
// Writes --output-json and prints the results; returns the exit code.
int finish_bench(const BenchFlags& flags, const json::Value& figures, const std::string& text);

void add_bench_serve(CLI::App& bench, int& exit_code);
void add_bench_lengths(CLI::App& bench, int& exit_code);
void add_bench_engine(CLI::App& bench, int& exit_code);
void add_bench_speculation(CLI::App& bench, int& exit_code);
void add_bench_kernels(CLI::App& bench, int& exit_code);

}  // namespace quire::cli
