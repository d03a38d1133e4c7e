// SPDX-License-Identifier: Apache-2.0
// Runs the same requests with each --max-num-seqs and compares all tokens and the bits of all logprobs.
#include "bench/lengths.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>

#include "bench/datasets.h"
#include "bench/report.h"

namespace quire::bench {
namespace {

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // of the sampled tokens
  bool operator==(const Answer& other) const {
    return tokens == other.tokens && logprobs.size() == other.logprobs.size() &&
           std::memcmp(logprobs.data(), other.logprobs.data(), logprobs.size() * sizeof(float)) == 0;
  }
};

Result<std::vector<llm::GenerateRequest>> requests(const LengthsOptions& options, const llm::Llm& llm) {
  DatasetOptions dataset;
  dataset.name = "sharegpt";
  dataset.path = options.dataset_path;
  dataset.num_prompts = options.num_prompts;
  dataset.seed = options.seed;
  dataset.sharegpt_output_len = options.output_len;
  dataset.no_oversample = true;
  llm::TextSide side;
  side.tokenizer = llm.tokenizer();
  if (side.tokenizer == nullptr) return unsupported("bench lengths needs a model with a tokenizer");
  Generators generators(options.seed);
  QUIRE_ASSIGN(const Samples samples, make_samples(dataset, side, generators));
  std::vector<llm::GenerateRequest> out;
  for (const Sample& sample : samples.list) {
    if (sample.prompt_len + sample.output_len > llm.max_model_len()) continue;
    llm::GenerateRequest request;
    request.prompt = llm::TextPrompt{std::get<std::string>(sample.prompt), true};
    request.params = llm.default_params();
    request.params.max_tokens = options.output_len;
    request.params.seed = options.seed + static_cast<int64_t>(out.size());
    request.params.logprobs = 0;
    if (options.temperature) request.params.temperature = *options.temperature;
    out.push_back(std::move(request));
  }
  if (out.empty()) {
    return invalid_argument({"no prompt of '", options.dataset_path, "' fits with --output-len into the model's ",
                             llm.max_model_len(), " tokens"});
  }
  return out;
}

Result<LengthsRow> run_row(llm::Llm& llm, const LengthsOptions& options, std::vector<Answer>& answers,
                           const std::function<void(int64_t, int64_t)>& progress) {
  QUIRE_ASSIGN(std::vector<llm::GenerateRequest> list, requests(options, llm));
  std::map<engine::RequestId, size_t> places;
  answers.assign(list.size(), {});
  const auto start = std::chrono::steady_clock::now();
  for (size_t i = 0; i < list.size(); ++i) {
    QUIRE_ASSIGN(const engine::RequestId id, llm.submit(std::move(list[i])));
    places[id] = i;
  }
  LengthsRow row;
  int64_t all_ended = 0;
  while (llm.has_work()) {
    int64_t ended = 0;
    progress(all_ended, static_cast<int64_t>(answers.size()));
    for (const llm::Delta& delta : llm.step()) {
      if (delta.error) return *delta.error;
      Answer& answer = answers[places.at(delta.id)];
      answer.tokens.insert(answer.tokens.end(), delta.tokens.begin(), delta.tokens.end());
      for (const auto& logprobs : delta.logprobs) answer.logprobs.push_back(logprobs.at(0).logprob);
      ended += delta.finish != engine::FinishReason::kNone ? 1 : 0;
    }
    all_ended += ended;
    row.peak_running = std::max(row.peak_running, llm.engine().stats().running + ended);
  }
  row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  row.steps = llm.engine().stats().steps;
  std::vector<double> counts;
  for (const Answer& answer : answers) counts.push_back(static_cast<double>(answer.tokens.size()));
  row.count = static_cast<int64_t>(answers.size());
  row.mean = mean(counts);
  row.deviation = deviation(counts);
  return row;
}

std::string compare(const std::vector<Answer>& a, int64_t seqs_a, const std::vector<Answer>& b, int64_t seqs_b) {
  const std::string rows = "--max-num-seqs " + std::to_string(seqs_a) + " and " + std::to_string(seqs_b);
  if (a.size() != b.size()) return rows + " ran different numbers of prompts";
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    return rows + ": the outputs of prompt " + std::to_string(i) + " differ in " +
           (a[i].tokens == b[i].tokens ? "the bits of their logprobs" : "their tokens") + " (" +
           std::to_string(a[i].tokens.size()) + " and " + std::to_string(b[i].tokens.size()) + " tokens)";
  }
  return "";
}

}  // namespace

Result<LengthsFigures> lengths(const LengthsOptions& options, const LoadWithSeqs& load,
                               const LengthsProgress& progress) {
  if (options.max_num_seqs.empty()) return invalid_argument("--max-num-seqs needs at least one number");
  LengthsFigures out;
  std::vector<Answer> first, answers;
  for (const int64_t seqs : options.max_num_seqs) {
    if (seqs < 1) return invalid_argument({"--max-num-seqs is ", seqs, "; it must be 1 or more"});
    QUIRE_ASSIGN(const std::unique_ptr<llm::Llm> llm, load(seqs));
    const auto row_progress = [&](int64_t done, int64_t total) {
      if (progress) progress(seqs, done, total);
    };
    QUIRE_ASSIGN(LengthsRow row, run_row(*llm, options, answers, row_progress));
    row.max_num_seqs = seqs;
    out.rows.push_back(row);
    if (first.empty()) {
      first = answers;
    } else if (out.difference.empty()) {
      out.difference = compare(first, options.max_num_seqs[0], answers, seqs);
    }
  }
  return out;
}

std::string LengthsFigures::to_text() const {
  const std::string rule(60, '=');
  std::string out = rule + "\n";
  char text[160];
  std::snprintf(text, sizeof text, "%14s %6s %13s %10s\n", "max_num_seqs", "N", "Mean tokens", "Std");
  out += text + std::string(60, '-') + "\n";
  for (const LengthsRow& row : rows) {
    std::snprintf(text, sizeof text, "%14lld %6lld %13.1f %10.1f\n", static_cast<long long>(row.max_num_seqs),
                  static_cast<long long>(row.count), row.mean, row.deviation);
    out += text;
  }
  out += rule + "\n";
  for (const LengthsRow& row : rows) {
    std::snprintf(text, sizeof text, "max_num_seqs %lld: %lld steps, at most %lld sequences in one, %.1f s\n",
                  static_cast<long long>(row.max_num_seqs), static_cast<long long>(row.steps),
                  static_cast<long long>(row.peak_running), row.seconds);
    out += text;
  }
  out += difference.empty() ? "All rows have the same tokens and the same bits in every logprob."
                            : "The rows DIFFER: " + difference + ".";
  return out;
}

json::Value LengthsFigures::to_json() const {
  json::Value out{json::Object{}};
  json::Array list;
  for (const LengthsRow& row : rows) {
    json::Value item{json::Object{}};
    item.set("max_num_seqs", row.max_num_seqs);
    item.set("n", row.count);
    item.set("mean_tokens", row.mean);
    item.set("std_tokens", row.deviation);
    item.set("steps", row.steps);
    item.set("peak_running", row.peak_running);
    item.set("seconds", row.seconds);
    list.push_back(std::move(item));
  }
  out.set("rows", std::move(list));
  out.set("identical", difference.empty());
  out.set("difference", difference);
  return out;
}

}  // namespace quire::bench
