// SPDX-License-Identifier: Apache-2.0
// The rounds of the offline benchmarks.
#include "bench/offline.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <set>

#include "base/file.h"
#include "base/philox.h"

namespace quire::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

// Random ids, another list for each (round, request), so that no prompt is in the prefix cache.
llm::TokenPrompt random_prompt(int64_t length, int64_t vocab, uint64_t stream) {
  llm::TokenPrompt out;
  for (int64_t i = 0; i < length; ++i) {
    out.push_back(
        static_cast<int32_t>(Philox::generate(stream, static_cast<uint64_t>(i))[0] % static_cast<uint64_t>(vocab)));
  }
  return out;
}

sampling::SamplingParams greedy(int64_t output_len) {
  sampling::SamplingParams params;
  params.temperature = 0;
  params.ignore_eos = true;
  params.max_tokens = output_len;
  return params;
}

llm::GenerateRequest request_of(llm::TokenPrompt prompt, int64_t output_len) {
  llm::GenerateRequest request;
  request.prompt = std::move(prompt);
  request.params = greedy(output_len);
  return request;
}

Status check(const Workload& w, const llm::Llm& llm) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const std::pair<const char*, int64_t> numbers[] = {{"--input-len", w.input_len},
                                                     {"--output-len", w.output_len},
                                                     {"--batch-size", w.batch_size},
                                                     {"--num-prompts", w.num_prompts}};
  for (const auto& [flag, number] : numbers) {
    if (number >= 1 && number <= kMost) continue;
    return invalid_argument(std::string(flag) + " is " + std::to_string(number) + "; it must be 1 to " +
                            std::to_string(kMost));
  }
  if (w.input_len + w.output_len > llm.max_model_len()) {
    return invalid_argument("--input-len plus --output-len is " + std::to_string(w.input_len + w.output_len) +
                            ", but the model's context holds " + std::to_string(llm.max_model_len()));
  }
  return {};
}

// A ShareGPT file: the first human turn is the prompt, the answer's length the number of tokens to make.
Result<std::vector<llm::GenerateRequest>> sharegpt(llm::Llm& llm, const Workload& w) {
  if (llm.tokenizer() == nullptr) return unsupported("--dataset-path needs a model with a tokenizer");
  QUIRE_ASSIGN(const std::string text, read_file(w.dataset, size_t{1} << 31));
  auto data = json::parse(text);
  if (!data.ok()) return Error{data.error().code, "'" + w.dataset + "': " + data.error().message};
  if (!data->is_array()) return invalid_argument("'" + w.dataset + "' must hold a list of conversations");
  std::vector<llm::GenerateRequest> out;
  for (const json::Value& conversation : data->as_array()) {
    if (static_cast<int64_t>(out.size()) == w.num_prompts) break;
    const json::Value* turns = conversation.find("conversations");
    if (turns == nullptr || !turns->is_array() || turns->as_array().size() < 2) continue;
    const json::Value* ask = turns->as_array()[0].find("value");
    const json::Value* answer = turns->as_array()[1].find("value");
    if (ask == nullptr || answer == nullptr || !ask->is_string() || !answer->is_string()) continue;
    llm::TokenPrompt prompt = llm.tokenizer()->encode(ask->as_string());
    const int64_t length = static_cast<int64_t>(llm.tokenizer()->encode(answer->as_string()).size());
    const int64_t total = static_cast<int64_t>(prompt.size()) + length;
    if (prompt.size() < 4 || length < 4 || total > std::min<int64_t>(2048, llm.max_model_len())) continue;
    out.push_back(request_of(std::move(prompt), length));
  }
  if (out.empty()) return invalid_argument("'" + w.dataset + "' has no conversation of a usable length");
  return out;
}

}  // namespace

Result<LatencyFigures> latency(llm::Llm& llm, const Workload& w, int64_t warmup, int64_t iters) {
  QUIRE_TRY(check(w, llm));
  if (iters < 1 || warmup < 0) return invalid_argument("--num-iters must be at least 1");
  LatencyFigures out;
  out.workload = w;
  out.machine = llm.engine().backend().describe();
  const int64_t vocab = llm.engine().model().config().vocab_size;
  for (int64_t round = 0; round < warmup + iters; ++round) {
    std::vector<llm::TokenPrompt> prompts;
    for (int64_t i = 0; i < w.batch_size; ++i) {
      prompts.push_back(random_prompt(w.input_len, vocab, static_cast<uint64_t>(round * w.batch_size + i) + 1));
    }
    const auto start = Clock::now();
    for (llm::TokenPrompt& prompt : prompts) {
      QUIRE_ASSIGN(const auto id, llm.submit(request_of(std::move(prompt), w.output_len)));
      (void)id;
    }
    double prefill = 0;
    std::set<engine::RequestId> started;
    while (llm.has_work()) {
      for (const llm::Delta& delta : llm.step()) {
        if (delta.error) return *delta.error;
        started.insert(delta.id);
      }
      if (prefill == 0 && static_cast<int64_t>(started.size()) == w.batch_size) prefill = seconds_since(start);
    }
    if (round < warmup) continue;
    const double total = seconds_since(start);
    out.total_s.push_back(total);
    out.prefill_s.push_back(prefill);
    out.decode_s.push_back(total - prefill);
  }
  return out;
}

json::Value LatencyFigures::to_json() const {
  const double batch = static_cast<double>(workload.batch_size);
  const double prefill = quantile(prefill_s, 0.5);
  const double decode = quantile(decode_s, 0.5);
  json::Value out{json::Object{}};
  out.set("machine", machine);
  out.set("batch_size", workload.batch_size);
  out.set("input_len", workload.input_len);
  out.set("output_len", workload.output_len);
  out.set("num_iters", static_cast<int64_t>(total_s.size()));
  out.set("avg_latency", [&] {
    double sum = 0;
    for (const double s : total_s) sum += s;
    return sum / static_cast<double>(total_s.size());
  }());
  json::Value percentiles{json::Object{}};
  for (const int p : {10, 25, 50, 75, 90, 99}) percentiles.set(std::to_string(p), quantile(total_s, p / 100.0));
  out.set("percentiles", std::move(percentiles));
  out.set("prefill_s", prefill);
  out.set("decode_s", decode);
  out.set("prefill_tokens_per_s", batch * static_cast<double>(workload.input_len) / prefill);
  const double decoded = batch * static_cast<double>(workload.output_len - 1);
  out.set("decode_tokens_per_s", decode > 0 ? decoded / decode : 0.0);
  json::Array latencies;
  for (const double s : total_s) latencies.emplace_back(s);
  out.set("latencies", std::move(latencies));
  return out;
}

std::string LatencyFigures::to_text() const {
  const json::Value j = to_json();
  char text[512];
  std::snprintf(text, sizeof text,
                "%s: batch %lld, prompt %lld, answer %lld, %zu rounds (medians)\n"
                "latency  %8.1f ms\n"
                "prefill  %8.1f ms  %9.1f tokens/s\n"
                "decode   %8.1f ms  %9.1f tokens/s",
                machine.c_str(), static_cast<long long>(workload.batch_size),
                static_cast<long long>(workload.input_len), static_cast<long long>(workload.output_len), total_s.size(),
                1e3 * quantile(total_s, 0.5), 1e3 * j.find("prefill_s")->as_double(),
                j.find("prefill_tokens_per_s")->as_double(), 1e3 * j.find("decode_s")->as_double(),
                j.find("decode_tokens_per_s")->as_double());
  return text;
}

Result<ThroughputFigures> throughput(llm::Llm& llm, const Workload& w) {
  std::vector<llm::GenerateRequest> requests;
  if (w.dataset.empty()) {
    QUIRE_TRY(check(w, llm));
    const int64_t vocab = llm.engine().model().config().vocab_size;
    for (int64_t i = 0; i < w.num_prompts; ++i) {
      requests.push_back(request_of(random_prompt(w.input_len, vocab, static_cast<uint64_t>(i) + 1), w.output_len));
    }
  } else {
    QUIRE_ASSIGN(requests, sharegpt(llm, w));
  }
  ThroughputFigures out;
  out.machine = llm.engine().backend().describe();
  out.requests = static_cast<int64_t>(requests.size());
  const auto start = Clock::now();
  for (llm::GenerateRequest& request : requests) {
    out.prompt_tokens += static_cast<int64_t>(std::get<llm::TokenPrompt>(request.prompt).size());
    QUIRE_ASSIGN(const auto id, llm.submit(std::move(request)));
    (void)id;
  }
  while (llm.has_work()) {
    for (const llm::Delta& delta : llm.step()) {
      if (delta.error) return *delta.error;
      out.output_tokens += static_cast<int64_t>(delta.tokens.size());
    }
  }
  out.elapsed_s = seconds_since(start);
  return out;
}

json::Value ThroughputFigures::to_json() const {
  json::Value out{json::Object{}};
  out.set("machine", machine);
  out.set("elapsed_time", elapsed_s);
  out.set("num_requests", requests);
  out.set("total_num_tokens", prompt_tokens + output_tokens);
  out.set("requests_per_second", static_cast<double>(requests) / elapsed_s);
  out.set("tokens_per_second", static_cast<double>(prompt_tokens + output_tokens) / elapsed_s);
  out.set("output_tokens_per_second", static_cast<double>(output_tokens) / elapsed_s);
  return out;
}

std::string ThroughputFigures::to_text() const {
  char text[512];
  std::snprintf(text, sizeof text,
                "%s\nThroughput: %.2f requests/s, %.2f total tokens/s, %.2f output tokens/s\n"
                "Total num prompt tokens:  %lld\nTotal num output tokens:  %lld",
                machine.c_str(), static_cast<double>(requests) / elapsed_s,
                static_cast<double>(prompt_tokens + output_tokens) / elapsed_s,
                static_cast<double>(output_tokens) / elapsed_s, static_cast<long long>(prompt_tokens),
                static_cast<long long>(output_tokens));
  return text;
}

}  // namespace quire::bench
