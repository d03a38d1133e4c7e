// SPDX-License-Identifier: Apache-2.0
// Runs the offline benchmarks.
#include "bench/offline.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <set>

#include "base/philox.h"
#include "bench/report.h"

namespace quire::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(const std::vector<double>& values) {
  return percentile(values, 50);
}

int64_t peak_rss_bytes() {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return 0;
#if defined(__APPLE__)
  return usage.ru_maxrss;
#else
  return int64_t{usage.ru_maxrss} * 1024;
#endif
}

void set_facts(json::Value& out, const RunFacts& facts) {
  out.set("weights_bytes", facts.weights_bytes);
  if (facts.kv_bytes > 0) out.set("kv_bytes", facts.kv_bytes);
  out.set("peak_rss_bytes", facts.peak_rss_bytes);
}

// Random ids, different for each (round, request), so that no prompt is in the prefix cache.
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

void constrain(std::vector<llm::GenerateRequest>& requests, const Workload& w) {
  for (size_t i = 0; i < requests.size() && !w.constraints.empty(); ++i) {
    requests[i].constraint.grammar = w.constraints[i % w.constraints.size()];
    requests[i].constraint.field = "--json-schema";
  }
}

Status check(const Workload& w, const llm::Llm& llm) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const std::pair<const char*, int64_t> numbers[] = {{"--input-len", w.input_len},
                                                     {"--output-len", w.output_len},
                                                     {"--batch-size", w.batch_size},
                                                     {"--num-prompts", w.num_prompts}};
  for (const auto& [flag, number] : numbers) {
    if (number >= 1 && number <= kMost) continue;
    return invalid_argument({flag, " is ", number, "; it must be from 1 to ", kMost});
  }
  if (w.input_len + w.output_len > llm.max_model_len()) {
    return invalid_argument({"--input-len plus --output-len is ", w.input_len + w.output_len,
                             ", but the model's context length is ", llm.max_model_len()});
  }
  return {};
}

// The samples of a dataset as requests. Samples that do not fit the model's context are skipped with a note.
Result<std::vector<llm::GenerateRequest>> sampled(const llm::Llm& llm, const Workload& w, const llm::TextSide& side,
                                                  std::vector<std::string>& notes) {
  Generators generators(w.dataset->seed);
  QUIRE_ASSIGN(Samples samples, make_samples(*w.dataset, side, generators));
  notes = std::move(samples.notes);
  std::vector<llm::GenerateRequest> out;
  for (Sample& sample : samples.list) {
    llm::GenerateRequest request;
    if (auto* text = std::get_if<std::string>(&sample.prompt)) {
      QUIRE_ASSIGN(request.prompt, llm.tokens_of(llm::TextPrompt{std::move(*text)}));
    } else {
      request.prompt = std::move(std::get<std::vector<int32_t>>(sample.prompt));
    }
    const auto length = static_cast<int64_t>(std::get<llm::TokenPrompt>(request.prompt).size());
    if (length + sample.output_len > llm.max_model_len()) continue;
    request.params = greedy(sample.output_len);
    out.push_back(std::move(request));
  }
  const size_t left_out = samples.list.size() - out.size();
  if (out.empty()) {
    return invalid_argument({"no sample of --dataset-name ", w.dataset->name, " fits the model's context of ",
                             llm.max_model_len(), " tokens"});
  }
  if (left_out > 0) {
    notes.push_back(std::to_string(left_out) + " of " + std::to_string(samples.list.size()) +
                    " samples are skipped: they do not fit the model's context of " +
                    std::to_string(llm.max_model_len()) + " tokens");
  }
  constrain(out, w);
  return out;
}

std::vector<llm::GenerateRequest> random_requests(const llm::Llm& llm, const Workload& w, int64_t count,
                                                  int64_t first_stream) {
  const int64_t vocab = llm.engine().model().config().vocab_size;
  std::vector<llm::GenerateRequest> out;
  for (int64_t i = 0; i < count; ++i) {
    out.push_back(
        request_of(random_prompt(w.input_len, vocab, static_cast<uint64_t>(first_stream + i) + 1), w.output_len));
  }
  constrain(out, w);
  return out;
}

struct Round {
  double total_s = 0, prefill_s = 0, decode_s = 0;
  std::vector<double> step_s;
  int64_t decode_tokens = 0;  // of those steps; with speculation a sequence may have several in one
};

Result<Round> run_batch(llm::Llm& llm, std::vector<llm::GenerateRequest> requests) {
  Round out;
  const size_t batch = requests.size();
  const auto start = Clock::now();
  for (llm::GenerateRequest& request : requests) {
    QUIRE_ASSIGN(const auto id, llm.submit(std::move(request)));
    (void)id;
  }
  std::set<engine::RequestId> started;
  while (llm.has_work()) {
    const bool all_started = started.size() == batch;
    size_t sequences = 0, tokens = 0;
    for (const llm::Delta& delta : llm.step()) {
      if (delta.error) return *delta.error;
      if (!all_started) started.insert(delta.id);
      sequences += delta.tokens.empty() ? 0 : 1;
      tokens += delta.tokens.size();
    }
    const double now = seconds_since(start);
    if (!all_started && started.size() == batch) out.prefill_s = now;
    if (all_started && sequences == batch) {
      out.decode_tokens += static_cast<int64_t>(tokens);
      out.step_s.push_back(now - out.total_s);
      out.decode_s += out.step_s.back();
    }
    out.total_s = now;
  }
  return out;
}

}  // namespace

RunFacts facts_of(const llm::Llm& llm) {
  RunFacts out;
  out.model = llm.name();
  out.machine = llm.engine().backend().describe();
  out.weights_bytes = llm.memory_plan().weights_bytes;
  out.peak_rss_bytes = peak_rss_bytes();
  return out;
}

Result<LatencyFigures> latency(llm::Llm& llm, const Workload& w, int64_t warmup, int64_t iters,
                               const OfflineProgress& progress) {
  QUIRE_TRY(check(w, llm));
  if (iters < 1 || warmup < 0) {
    return invalid_argument("--num-iters must be at least 1, and --num-iters-warmup at least 0");
  }
  LatencyFigures out;
  out.workload = w;
  for (int64_t number = 0; number < warmup + iters; ++number) {
    if (progress) progress("rounds", number, warmup + iters);
    QUIRE_ASSIGN(const Round round, run_batch(llm, random_requests(llm, w, w.batch_size, number * w.batch_size)));
    if (number < warmup) continue;
    out.total_s.push_back(round.total_s);
    out.prefill_s.push_back(round.prefill_s);
    out.decode_s.push_back(round.decode_s);
    out.decode_steps = static_cast<int64_t>(round.step_s.size());
    out.decode_tokens += round.decode_tokens;
    out.step_s.insert(out.step_s.end(), round.step_s.begin(), round.step_s.end());
  }
  out.facts = facts_of(llm);
  const kv::MemoryPlan& plan = llm.memory_plan();
  const int64_t positions = w.input_len + w.output_len - 1;  // the last token is not stored in the cache
  out.facts.kv_bytes = w.batch_size * plan.pages_for(positions) * plan.page_bytes();
  return out;
}

double LatencyFigures::prefill_rate() const {
  return static_cast<double>(workload.batch_size * workload.input_len) / median(prefill_s);
}

std::optional<double> LatencyFigures::decode_rate() const {
  if (decode_steps == 0) return {};
  return static_cast<double>(decode_tokens) / static_cast<double>(decode_s.size()) / median(decode_s);
}

json::Value LatencyFigures::to_json() const {
  json::Value out{json::Object{}};
  out.set("model_id", facts.model);
  out.set("machine", facts.machine);
  out.set("batch_size", workload.batch_size);
  out.set("input_len", workload.input_len);
  out.set("output_len", workload.output_len);
  out.set("num_iters", static_cast<int64_t>(total_s.size()));
  out.set("avg_latency", mean(total_s));
  const auto list = [](const std::vector<double>& values) {
    json::Array array;
    for (const double value : values) array.emplace_back(value);
    return array;
  };
  const auto percentiles = [](const std::vector<double>& values) {
    json::Value object{json::Object{}};
    for (const int p : {10, 25, 50, 75, 90, 99}) object.set(std::to_string(p), percentile(values, p));
    return object;
  };
  out.set("latencies", list(total_s));
  out.set("percentiles", percentiles(total_s));
  out.set("prefill_s", median(prefill_s));
  out.set("decode_s", median(decode_s));
  out.set("prefill_tokens_per_s", prefill_rate());
  const std::optional<double> decode = decode_rate();
  out.set("decode_tokens_per_s", decode ? json::Value(*decode) : json::Value());
  out.set("decode_steps", decode_steps);
  out.set("decode_step_percentiles", percentiles(step_s));
  out.set("prefill_times", list(prefill_s));
  out.set("decode_times", list(decode_s));
  set_facts(out, facts);
  return out;
}

std::string LatencyFigures::to_text() const {
  char text[1024];
  std::snprintf(text, sizeof text,
                "%s on %s: batch %lld, input %lld, output %lld, %zu rounds (medians)\n"
                "latency  %8.1f ms\n"
                "prefill  %8.1f ms  %9.1f tokens/s\n",
                facts.model.c_str(), facts.machine.c_str(), static_cast<long long>(workload.batch_size),
                static_cast<long long>(workload.input_len), static_cast<long long>(workload.output_len), total_s.size(),
                1e3 * median(total_s), 1e3 * median(prefill_s), prefill_rate());
  std::string out = text;
  if (const auto rate = decode_rate()) {
    std::snprintf(text, sizeof text,
                  "decode   %8.1f ms  %9.1f tokens/s in %lld steps of the whole batch; step p50 %.2f ms, p99 %.2f ms\n",
                  1e3 * median(decode_s), *rate, static_cast<long long>(decode_steps), 1e3 * percentile(step_s, 50),
                  1e3 * percentile(step_s, 99));
    out += text;
  } else if (workload.output_len > 1) {
    out += "decode   the batch never decoded as a whole: raise --output-len\n";
  }
  std::snprintf(text, sizeof text,
                "memory   %8.1f MiB peak; weights %.1f MiB, KV cache in use %.1f MiB\n"
                "Avg latency: %.6g seconds",
                static_cast<double>(facts.peak_rss_bytes) / (1 << 20),
                static_cast<double>(facts.weights_bytes) / (1 << 20), static_cast<double>(facts.kv_bytes) / (1 << 20),
                mean(total_s));
  out += text;
  for (const int p : {10, 25, 50, 75, 90, 99}) {
    std::snprintf(text, sizeof text, "\n%d%% percentile latency: %.6g seconds", p, percentile(total_s, p));
    out += text;
  }
  return out;
}

Result<ThroughputFigures> throughput(llm::Llm& llm, const Workload& w, const llm::TextSide& side,
                                     const OfflineProgress& progress) {
  ThroughputFigures out;
  std::vector<llm::GenerateRequest> requests;
  if (w.num_warmups < 0) return invalid_argument("--num-warmups must be at least 0");
  if (w.dataset) {
    QUIRE_ASSIGN(requests, sampled(llm, w, side, out.notes));
  } else {
    QUIRE_TRY(check(w, llm));
    requests = random_requests(llm, w, w.num_prompts, w.num_warmups);
  }
  for (int64_t i = 0; i < w.num_warmups; ++i) {  // with the same lengths but other tokens, so that no prefix is cached
    const auto& like = requests[static_cast<size_t>(i) % requests.size()];
    Workload warmup = w;
    warmup.input_len = static_cast<int64_t>(std::get<llm::TokenPrompt>(like.prompt).size());
    warmup.output_len = *like.params.max_tokens;
    QUIRE_ASSIGN(const Round round, run_batch(llm, random_requests(llm, warmup, 1, i)));
    (void)round;
  }
  out.requests = static_cast<int64_t>(requests.size());
  const auto start = Clock::now();
  for (llm::GenerateRequest& request : requests) {
    out.prompt_tokens += static_cast<int64_t>(std::get<llm::TokenPrompt>(request.prompt).size());
    QUIRE_ASSIGN(const auto id, llm.submit(std::move(request)));
    (void)id;
  }
  while (llm.has_work()) {
    if (progress) progress("requests", static_cast<int64_t>(out.latency_s.size()), out.requests);
    for (const llm::Delta& delta : llm.step()) {
      if (delta.error) return *delta.error;
      out.output_tokens += static_cast<int64_t>(delta.tokens.size());
      if (delta.finish != engine::FinishReason::kNone) out.latency_s.push_back(seconds_since(start));
    }
  }
  out.elapsed_s = seconds_since(start);
  out.facts = facts_of(llm);
  return out;
}

json::Value ThroughputFigures::to_json() const {
  json::Value out{json::Object{}};
  out.set("model_id", facts.model);
  out.set("machine", facts.machine);
  out.set("elapsed_time", elapsed_s);
  out.set("num_requests", requests);
  out.set("total_num_tokens", prompt_tokens + output_tokens);
  out.set("total_num_prompt_tokens", prompt_tokens);
  out.set("total_num_output_tokens", output_tokens);
  out.set("requests_per_second", static_cast<double>(requests) / elapsed_s);
  out.set("tokens_per_second", static_cast<double>(prompt_tokens + output_tokens) / elapsed_s);
  out.set("output_tokens_per_second", static_cast<double>(output_tokens) / elapsed_s);
  json::Value percentiles{json::Object{}};
  for (const int p : {10, 25, 50, 75, 90, 99}) percentiles.set(std::to_string(p), percentile(latency_s, p));
  out.set("percentiles", std::move(percentiles));
  set_facts(out, facts);
  return out;
}

std::string ThroughputFigures::to_text() const {
  char text[1024];
  std::snprintf(text, sizeof text,
                "%s on %s\nThroughput: %.2f requests/s, %.2f total tokens/s, %.2f output tokens/s\n"
                "Total num prompt tokens:  %lld\nTotal num output tokens:  %lld\n"
                "Request finished after (s): p50 %.3f, p90 %.3f, p99 %.3f\nPeak memory (MiB): %.1f",
                facts.model.c_str(), facts.machine.c_str(), static_cast<double>(requests) / elapsed_s,
                static_cast<double>(prompt_tokens + output_tokens) / elapsed_s,
                static_cast<double>(output_tokens) / elapsed_s, static_cast<long long>(prompt_tokens),
                static_cast<long long>(output_tokens), percentile(latency_s, 50), percentile(latency_s, 90),
                percentile(latency_s, 99), static_cast<double>(facts.peak_rss_bytes) / (1 << 20));
  return text;
}

}  // namespace quire::bench
