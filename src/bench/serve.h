// SPDX-License-Identifier: Apache-2.0
// quire bench serve: samples, requests, the run, the report and its files, around the load client.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "bench/arrivals.h"
#include "bench/client.h"
#include "bench/datasets.h"
#include "bench/report.h"

namespace quire::bench {

// The flags, by their names. "" and nothing mean that the flag was not given.
struct ServeOptions {
  std::string backend = "openai";
  std::string base_url;
  std::string host = "127.0.0.1";
  int64_t port = 8000;
  std::string endpoint;
  std::string model;
  std::string served_model_name;
  std::string tokenizer;
  bool skip_tokenizer_init = false;

  DatasetOptions dataset;
  ArrivalOptions arrivals;
  int64_t max_concurrency = 0;
  double probe_request_rate = 0;
  int64_t num_warmups = 0;
  int64_t ready_check_timeout_sec = 0;
  std::optional<bool> self_timed;

  bool ignore_eos = false;
  std::optional<double> temperature, top_p, min_p, frequency_penalty, presence_penalty, repetition_penalty;
  std::optional<int64_t> top_k, logprobs;
  json::Value extra_body;  // an object, or null
  HeaderList headers;
  std::string request_id_prefix;
  bool insecure = false;
  std::vector<std::string> lora_modules;
  bool lora_round_robin = false;
  bool profile = false;

  ReportOptions report;
  bool save_result = false;
  bool append_result = false;
  std::string result_dir;
  std::string result_filename;
  std::string label;
  std::vector<std::pair<std::string, std::string>> metadata;
  int64_t client_threads = 0;
};

// What a run needs from the command line tool.
struct ServeIo {
  std::function<Result<llm::TextSide>(const std::string& name)> load_text;  // a model's or tokenizer's name or path
  // The special tokens in the model's tokenizer_config.json, if it has one.
  std::function<std::optional<std::vector<std::string>>(const std::string& name)> special_tokens;
  std::function<void(const std::string& line)> print;       // standard output
  std::function<void(const std::string& line)> note;        // standard error
  std::function<void(size_t done, size_t total)> progress;  // may be empty
  std::function<bool()> interrupted;                        // may be empty
};

struct ServeSummary {
  int64_t completed = 0;
  int64_t failed = 0;
  bool interrupted = false;
};

// Runs the benchmark. An Error is a failure of the set-up; requests that fail are counted.
Result<ServeSummary> serve(const ServeOptions& options, const ServeIo& io);

// The JSON bodies of a run's requests. Fixed parts are made once, so that a request costs only its prompt.
class BodyMaker {
 public:
  BodyMaker(const ServeOptions& options, std::string model, bool ignore_eos);
  std::string body(const Sample& sample, const std::string* model) const;

 private:
  enum class Kind { kFixed, kModel, kPrompt, kDocument, kLength };
  struct Part {
    std::string name;
    Kind kind = Kind::kFixed;
    std::string value;
  };
  void set(const std::string& name, Kind kind, const json::Value& value = {});
  std::string backend_;
  std::string model_;
  std::vector<Part> parts_;
};

}  // namespace quire::bench
