// SPDX-License-Identifier: Apache-2.0
// A model that does nothing, and the loop that drives the engine with it.
#include "bench/ceiling.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <map>
#include <vector>

#include "base/philox.h"
#include "engine/engine.h"
#include "text/detokenizer.h"

namespace quire::bench {
namespace {

// A decoder that computes nothing: logits() always returns the same rows. The best token differs from row to row, so
// that the text varies.
class NoOpModel final : public model::Model {
 public:
  explicit NoOpModel(int64_t vocab, int64_t max_len) {
    config_.family = "noop";
    config_.vocab_size = vocab;
    config_.layers = config_.heads = config_.kv_heads = 1;
    config_.hidden = config_.head_dim = 16;
    config_.per_layer.resize(1);
    config_.max_position = max_len;
  }
  const model::DecoderConfig& config() const override { return config_; }
  size_t weights_bytes() const override { return 0; }
  DType main_dtype() const override { return DType::kF32; }
  size_t scratch_bytes(const model::BatchLimits& limits) const override {
    return static_cast<size_t>(limits.max_logit_rows * config_.vocab_size) * sizeof(float);
  }
  Status prepare(const model::BatchLimits& limits) override {
    logits_.assign(static_cast<size_t>(limits.max_logit_rows * config_.vocab_size), 0.0f);
    for (int64_t row = 0; row < limits.max_logit_rows; ++row) {
      const int64_t best = (row * 7919 + 13) % config_.vocab_size;
      logits_[static_cast<size_t>(row * config_.vocab_size + best)] = 1.0f;
    }
    return {};
  }
  void forward(const model::StepBatch&, const model::KvCache&) override {}
  std::span<const float> logits(int64_t, int64_t count) override {
    return {logits_.data(), static_cast<size_t>(count * config_.vocab_size)};
  }
  Tensor run_head(int64_t, int64_t count) override {
    return {logits_.data(), DType::kF32, count, config_.vocab_size, config_.vocab_size};
  }

 private:
  model::DecoderConfig config_;
  std::vector<float> logits_;
};

double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

Result<CeilingFigures> engine_ceiling(const CeilingOptions& o, const std::function<void(int64_t, int64_t)>& progress) {
  constexpr int64_t kMost = int64_t{1} << 20;
  const std::pair<const char*, int64_t> numbers[] = {{"--num-streams", o.num_streams},
                                                     {"--input-len", o.input_len},
                                                     {"--output-len", o.output_len},
                                                     {"--vocab-size", o.vocab_size}};
  for (const auto& [flag, number] : numbers) {
    if (number >= 1 && number <= kMost) continue;
    return invalid_argument({flag, " is ", number, "; it must be from 1 to ", kMost});
  }
  const int64_t vocab =
      o.tokenizer != nullptr ? std::min<int64_t>(o.vocab_size, o.tokenizer->vocab_size()) : o.vocab_size;
  const int64_t max_len = o.input_len + o.output_len + 1;
  QUIRE_ASSIGN(std::unique_ptr<Backend> backend, make_cpu_backend({1, ""}));
  engine::EngineOptions settings;
  settings.scheduler.max_num_seqs = o.num_streams;
  settings.scheduler.max_num_batched_tokens = std::max<int64_t>(2048, o.num_streams);
  settings.scheduler.max_model_len = max_len;
  settings.num_blocks = static_cast<int32_t>(1 + o.num_streams * ((max_len + 15) / 16));
  settings.prefix_caching = o.prefix_caching;
  QUIRE_ASSIGN(std::unique_ptr<engine::Engine> engine,
               engine::Engine::make(std::move(backend), std::make_unique<NoOpModel>(vocab, max_len), settings));
  std::map<engine::RequestId, text::Detokenizer> texts;
  for (int64_t s = 0; s < o.num_streams; ++s) {
    engine::Request request;
    for (int64_t i = 0; i < o.input_len; ++i) {
      request.prompt.push_back(static_cast<int32_t>(
          Philox::generate(static_cast<uint64_t>(s), static_cast<uint64_t>(i))[0] % static_cast<uint64_t>(vocab)));
    }
    request.params.temperature = 0;
    request.params.ignore_eos = true;
    request.params.max_tokens = o.output_len;
    QUIRE_ASSIGN(const engine::RequestId id, engine->add(std::move(request)));
    if (o.tokenizer != nullptr) texts.emplace(id, text::Detokenizer(o.tokenizer));
  }
  using Clock = std::chrono::steady_clock;
  CeilingFigures out;
  out.options = o;
  Clock::time_point start = Clock::now();
  double cpu_start = 0;
  bool counting = false;
  while (engine->has_work()) {
    int64_t tokens = 0;
    for (const engine::Output& output : engine->step()) {
      tokens += static_cast<int64_t>(output.tokens.size());
      if (o.tokenizer == nullptr) continue;
      for (const int32_t token : output.tokens)
        out.text_bytes += static_cast<int64_t>(texts.at(output.id).push(token).size());
    }
    if (counting) {
      ++out.steps;
      out.tokens += tokens;
      if (progress && out.steps % 100 == 0) progress(out.steps, o.output_len);
    } else if (tokens == o.num_streams) {  // all prompts are done: from now on each step yields one token per stream
      counting = true;
      start = Clock::now();
      cpu_start = thread_seconds();
    }
  }
  out.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  out.cpu_seconds = thread_seconds() - cpu_start;
  if (out.steps == 0) return invalid_argument("--output-len must be 2 or more: the first token is not counted");
  return out;
}

json::Value CeilingFigures::to_json() const {
  const double steps_d = static_cast<double>(steps);
  json::Value out{json::Object{}};
  out.set("num_streams", options.num_streams);
  out.set("input_len", options.input_len);
  out.set("output_len", options.output_len);
  out.set("text", options.tokenizer != nullptr);
  out.set("steps", steps);
  out.set("tokens", tokens);
  out.set("text_bytes", text_bytes);
  out.set("seconds", seconds);
  out.set("steps_per_s", steps_d / seconds);
  out.set("tokens_per_s", static_cast<double>(tokens) / seconds);
  out.set("us_per_step", 1e6 * seconds / steps_d);
  out.set("cpu_us_per_step", 1e6 * cpu_seconds / steps_d);
  out.set("us_per_step_per_stream", 1e6 * seconds / steps_d / static_cast<double>(options.num_streams));
  return out;
}

std::string CeilingFigures::to_text() const {
  const json::Value j = to_json();
  char text[320];
  std::snprintf(text, sizeof text,
                "%lld streams through scheduler, KV manager, sampler%s, with a model that does nothing\n"
                "steps    %10lld   %12.1f steps/s\n"
                "tokens   %10lld   %12.1f tokens/s\n"
                "step     %10.1f us %12.3f us/stream",
                static_cast<long long>(options.num_streams), options.tokenizer != nullptr ? " and detokenizer" : "",
                static_cast<long long>(steps), j.find("steps_per_s")->as_double(), static_cast<long long>(tokens),
                j.find("tokens_per_s")->as_double(), j.find("us_per_step")->as_double(),
                j.find("us_per_step_per_stream")->as_double());
  return text;
}

}  // namespace quire::bench
