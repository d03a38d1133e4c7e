// SPDX-License-Identifier: Apache-2.0
// The steps of a serving benchmark, in the order of vLLM's client.
#include "bench/serve.h"

#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <map>
#include <random>
#include <thread>

#include "base/env.h"
#include "base/file.h"
#include "base/log.h"

namespace quire::bench {
namespace {

struct BackendRow {
  const char* name;
  const char* suffix;  // of the endpoint's path
  const char* endpoint;
  StreamApi api;
};
constexpr BackendRow kBackends[] = {
    {"openai", "completions", "/v1/completions", StreamApi::kCompletions},
    {"vllm", "completions", "/v1/completions", StreamApi::kCompletions},
    {"openai-chat", "chat/completions", "/v1/chat/completions", StreamApi::kChat},
    {"openai-responses", "responses", "/v1/responses", StreamApi::kResponses},
    {"openai-embeddings", "embeddings", "/v1/embeddings", StreamApi::kWhole},
    {"vllm-rerank", "rerank", "/v1/rerank", StreamApi::kWhole},
};

const BackendRow* find_backend(const std::string& name) {
  for (const BackendRow& row : kBackends) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

// A float as Python prints it: 10.0, 0.5, inf.
std::string python_float(double value) {
  if (std::isinf(value)) return "inf";
  char text[40];
  if (value == std::floor(value) && std::fabs(value) < 1e16) {
    std::snprintf(text, sizeof text, "%.1f", value);
    return text;
  }
  for (int digits = 1; digits <= 17; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, value);
    if (std::strtod(text, nullptr) == value) break;
  }
  return text;
}

std::string now_text(const char* format, double later_s = 0) {
  const std::time_t now = std::time(nullptr) + static_cast<std::time_t>(later_s);
  std::tm local{};
  ::localtime_r(&now, &local);
  char text[64];
  std::strftime(text, sizeof text, format, &local);
  return text;
}

// CPU time of this process so far, in all threads.
double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

std::string random_prefix() {
  std::random_device device;
  char text[32];
  std::snprintf(text, sizeof text, "bench-%08x-", device());
  return text;
}

// One benchmark. Each step is a member function; run() calls them in order.
class Bench {
 public:
  Bench(const ServeOptions& options, const ServeIo& io)
      : options_(options), io_(io), generators_(options.dataset.seed), prefix_(options.request_id_prefix) {}
  Result<ServeSummary> run();

 private:
  Status check() const;
  Status open();
  Status find_model();
  Status load_tokenizer();
  Status sample();
  void match_server_tokens();
  std::optional<int64_t> server_count(const std::string& text, json::Value* tokens);
  Status warm_up();
  LoadResult load(std::vector<double> arrivals, size_t count, int64_t concurrency, bool main_run);
  void fill_lengths(LoadResult& result) const;
  void describe_traffic() const;
  void post(const char* path);
  std::optional<SpecDecode> spec_decode();
  void show_failures(const LoadResult& result) const;
  Status save(const Report& report, const Arrivals& arrivals) const;
  HeaderList headers(size_t index) const;
  bool self_timed() const { return options_.self_timed.value_or(options_.dataset.name == "timed_trace"); }
  bool ignore_eos() const {
    return options_.ignore_eos || options_.dataset.name == "random" || options_.dataset.name == "timed_trace";
  }

  const ServeOptions& options_;
  const ServeIo& io_;
  const BackendRow* backend_ = nullptr;
  std::string endpoint_;
  std::unique_ptr<LoadClient> client_;
  std::string url_, model_id_, request_model_, tokenizer_id_;
  HeaderList fixed_headers_;
  llm::TextSide side_;
  Generators generators_;
  std::string prefix_;
  std::vector<Sample> samples_;
  std::vector<const std::string*> adapters_;  // [samples], or empty
  std::optional<BodyMaker> bodies_;
};

Status Bench::check() const {
  if (backend_ == nullptr) {
    return invalid_argument(
        {"--backend is '", options_.backend,
         "'; choose openai, vllm, openai-chat, openai-responses, openai-embeddings or vllm-rerank"});
  }
  const std::string suffix = backend_->suffix;
  if (endpoint_.size() < suffix.size() || endpoint_.substr(endpoint_.size() - suffix.size()) != suffix) {
    return invalid_argument(
        {"--endpoint is '", endpoint_, "'; with --backend ", options_.backend, " it must end with ", suffix});
  }
  if (endpoint_[0] != '/' || endpoint_.find_first_of(" \t\r\n") != std::string::npos) {
    return invalid_argument({"--endpoint is '", endpoint_, "'; it must be a path that begins with /"});
  }
  if (options_.dataset.seed < 0 || options_.dataset.seed > int64_t{UINT32_MAX}) {
    return invalid_argument("--seed must be from 0 to 4294967295, as numpy requires");
  }
  if (options_.max_concurrency < 0 || options_.num_warmups < 0) {
    return invalid_argument("--max-concurrency and --num-warmups must not be negative");
  }
  const ArrivalOptions& a = options_.arrivals;
  if (!(a.burstiness > 0)) return invalid_argument("--burstiness must be greater than 0");
  if (!a.ramp_up_strategy.empty()) {
    if (a.request_rate > 0) return invalid_argument("--ramp-up-strategy and --request-rate cannot be used together");
    if (!(a.ramp_up_start_rps > 0) || !(a.ramp_up_end_rps > a.ramp_up_start_rps) || !std::isfinite(a.ramp_up_end_rps)) {
      return invalid_argument("--ramp-up-strategy needs --ramp-up-start-rps above 0 and --ramp-up-end-rps above that");
    }
  }
  for (const auto& [name, value] : options_.headers) {
    if ((name + value).find_first_of("\r\n") != std::string::npos) return invalid_argument("--header must be one line");
  }
  return {};
}

Status Bench::open() {
  std::string url = options_.base_url;
  if (url.empty()) {
    const bool v6 = options_.host.find(':') != std::string::npos;
    url = "http://" + (v6 ? "[" + options_.host + "]" : options_.host) + ":" + std::to_string(options_.port);
  }
  ClientOptions client;
  QUIRE_ASSIGN(client.url, parse_url(url));
  url_ = url;
  client.insecure = options_.insecure;
  client.threads = static_cast<int>(options_.client_threads);
  raise_file_limit();
  QUIRE_ASSIGN(client_, LoadClient::make(client));
  if (const auto key = env("OPENAI_API_KEY")) fixed_headers_.emplace_back("Authorization", "Bearer " + *key);
  fixed_headers_.insert(fixed_headers_.end(), options_.headers.begin(), options_.headers.end());
  if (prefix_.empty()) prefix_ = random_prefix();
  return {};
}

Status Bench::find_model() {
  model_id_ = options_.model;
  if (model_id_.empty()) {
    auto fetched = client_->fetch("GET", "/v1/models", "", fixed_headers_);
    if (!fetched.ok()) {
      return Error{fetched.error().code, "no answer from " + url_ + " (" + fetched.error().message +
                                             "); start a server with quire serve, or give its address with --base-url"};
    }
    const HttpReply reply = std::move(*fetched);
    const auto body = json::parse(reply.body);
    const json::Value* list = body.ok() ? body->find("data") : nullptr;
    if (reply.status != 200 || list == nullptr || !list->is_array() || list->as_array().empty()) {
      return unavailable(
          {"the server does not list its models (GET /v1/models returned ", reply.status, "); give --model"});
    }
    const json::Value& first = list->as_array()[0];
    QUIRE_ASSIGN(request_model_, json::get_string(first, "id"));
    const json::Value* root = first.find("root");
    model_id_ = root != nullptr && root->is_string() && !root->as_string().empty() ? root->as_string() : request_model_;
    io_.print("Using model: " + request_model_ + " (" + model_id_ + ")");
  } else {
    request_model_ = model_id_;
  }
  if (!options_.served_model_name.empty()) request_model_ = options_.served_model_name;
  return {};
}

Status Bench::load_tokenizer() {
  tokenizer_id_ = options_.tokenizer.empty() ? model_id_ : options_.tokenizer;
  if (options_.skip_tokenizer_init) return {};
  // A server reports an id and a root for its model. The name or path that the server was started with is the id in
  // quire and the root in vLLM.
  if (options_.tokenizer.empty() && options_.model.empty() && io_.load_text(request_model_).ok()) {
    tokenizer_id_ = request_model_;
  }
  auto side = io_.load_text(tokenizer_id_);
  if (!side.ok()) {
    return Error{side.error().code, side.error().message +
                                        " (the benchmark counts tokens itself: give a local model with --tokenizer, or "
                                        "--skip-tokenizer-init to use the server's counts)"};
  }
  side_ = std::move(*side);
  return {};
}

Status Bench::sample() {
  DatasetOptions dataset = options_.dataset;
  if (side_.tokenizer != nullptr) dataset.special_tokens = io_.special_tokens(tokenizer_id_);
  dataset.chat_endpoint = backend_->api != StreamApi::kCompletions;
  QUIRE_ASSIGN(Samples made, make_samples(dataset, side_, generators_));
  for (const std::string& line : made.notes) io_.note(line);
  samples_ = std::move(made.list);
  if (dataset.name == "random" || dataset.name == "prefix_repetition") match_server_tokens();
  for (size_t i = 0; i < samples_.size() && !options_.lora_modules.empty(); ++i) {
    const auto& modules = options_.lora_modules;
    adapters_.push_back(options_.lora_round_robin ? &modules[i % modules.size()] : &generators_.random.choice(modules));
  }
  bodies_.emplace(options_, request_model_, ignore_eos());
  return {};
}

std::optional<int64_t> Bench::server_count(const std::string& text, json::Value* tokens) {
  json::Value ask{json::Object{}};
  ask.set("model", model_id_);
  ask.set("prompt", text);
  ask.set("add_special_tokens", false);
  const auto reply = client_->fetch("POST", "/tokenize", json::dump(ask), fixed_headers_);
  if (!reply.ok() || reply->status != 200) return std::nullopt;
  auto body = json::parse(reply->body);
  const json::Value* list = body.ok() ? body->find("tokens") : nullptr;
  if (list == nullptr || !list->is_array()) return std::nullopt;
  const int64_t count = static_cast<int64_t>(list->as_array().size());
  if (tokens != nullptr) *tokens = *list;
  return count;
}

// The server's tokenizer may differ from ours. If it counts the first prompt differently, prompts that it considers too
// long are truncated.
void Bench::match_server_tokens() {
  if (samples_.empty()) return;
  const auto first = server_count(std::get<std::string>(samples_[0].prompt), nullptr);
  if (!first) return io_.note("the server has no /tokenize: prompts are not checked with its tokenizer");
  if (*first == samples_[0].prompt_len) return;
  io_.note("the server counts " + std::to_string(*first) + " tokens, but the local tokenizer " +
           std::to_string(samples_[0].prompt_len) + ": prompts that the server counts as too long are truncated");
  for (Sample& sample : samples_) {
    json::Value tokens;
    const auto count = server_count(std::get<std::string>(sample.prompt), &tokens);
    if (!count || *count <= sample.prompt_len) continue;
    tokens.as_array().resize(static_cast<size_t>(sample.prompt_len));
    json::Value ask{json::Object{}};
    ask.set("model", model_id_);
    ask.set("tokens", std::move(tokens));
    const auto reply = client_->fetch("POST", "/detokenize", json::dump(ask), fixed_headers_);
    if (!reply.ok() || reply->status != 200) continue;
    const auto body = json::parse(reply->body);
    const json::Value* text = body.ok() ? body->find("prompt") : nullptr;
    if (text != nullptr && text->is_string()) sample.prompt = text->as_string();
  }
}

HeaderList Bench::headers(size_t index) const {
  HeaderList out = fixed_headers_;
  out.emplace_back("x-request-id", prefix_ + std::to_string(index));
  return out;
}

// The main run, or the first request `count` times.
LoadResult Bench::load(std::vector<double> arrivals, size_t count, int64_t concurrency, bool main_run) {
  Load plan;
  plan.path = endpoint_;
  plan.api = backend_->api;
  plan.count = count;
  plan.arrivals = std::move(arrivals);
  plan.max_concurrency = concurrency;
  plan.body = [this, main_run](size_t i) {
    const size_t index = main_run ? i : 0;
    return bodies_->body(samples_[index], main_run && !adapters_.empty() ? adapters_[i] : nullptr);
  };
  plan.headers = [this](size_t i) { return headers(i); };
  plan.stopped = io_.interrupted;
  if (main_run) plan.progress = io_.progress;
  if (main_run) plan.probe_rate = options_.probe_request_rate;
  LoadResult result = client_->run(plan);
  for (size_t i = 0; i < result.outcomes.size(); ++i) {
    Outcome& outcome = result.outcomes[i];
    if (outcome.prompt_len == 0) outcome.prompt_len = samples_[main_run ? i : 0].prompt_len;
  }
  fill_lengths(result);
  return result;
}

// Counts the tokens of outputs that the server did not count.
void Bench::fill_lengths(LoadResult& result) const {
  for (Outcome& outcome : result.outcomes) {
    if (!outcome.success || outcome.output_tokens > 0) continue;
    outcome.output_tokens =
        side_.tokenizer == nullptr
            ? 1
            : static_cast<int64_t>(side_.tokenizer->encode(outcome.text, {.add_special_tokens = false}).size());
  }
}

Status Bench::warm_up() {
  io_.print("Starting initial single prompt test run...");
  if (options_.ready_check_timeout_sec > 0) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(options_.ready_check_timeout_sec);
    while (true) {
      const LoadResult result = load({}, 1, 0, false);
      if (result.outcomes[0].success || result.stopped) break;
      if (std::chrono::steady_clock::now() + std::chrono::seconds(1) > deadline) {
        return unavailable({"the server was not ready after ", options_.ready_check_timeout_sec,
                            " s; the first request failed: ", result.outcomes[0].error});
      }
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    io_.print("Initial test run completed.");
  } else {
    io_.print("Skipping endpoint ready check.");
  }
  if (options_.num_warmups > 0) {
    io_.print("Warming up with " + std::to_string(options_.num_warmups) + " requests...");
    load({}, static_cast<size_t>(options_.num_warmups), options_.max_concurrency, false);
    io_.print("Warmup run completed.");
  }
  return {};
}

void Bench::describe_traffic() const {
  const ArrivalOptions& a = options_.arrivals;
  const bool bounded = options_.max_concurrency > 0;
  io_.print("Starting main benchmark run...");
  if (self_timed()) {
    io_.print("Traffic request rate: the timestamps of the trace");
  } else if (!a.ramp_up_strategy.empty()) {
    io_.print("Traffic ramp-up strategy: " + a.ramp_up_strategy + ".");
    io_.print("Will increase RPS from " + python_float(a.ramp_up_start_rps) + " to " + python_float(a.ramp_up_end_rps) +
              " RPS over the duration of the benchmark.");
  } else {
    io_.print("Traffic request rate: " + (a.request_rate > 0 ? python_float(a.request_rate) : std::string("inf")));
  }
  if (!self_timed()) {
    io_.print("Burstiness factor: " + python_float(a.burstiness) +
              (a.burstiness == 1 ? " (Poisson process)" : " (Gamma distribution)"));
  }
  io_.print("Maximum request concurrency: " +
            (bounded ? std::to_string(options_.max_concurrency) : std::string("None")));
}

void Bench::post(const char* path) {
  const auto reply = client_->fetch("POST", path, "", fixed_headers_);
  const bool fine = reply.ok() && reply->status == 200;
  io_.note(std::string(path) + (fine ? " succeeded" : " failed: the server has no profiler at that path"));
}

std::optional<SpecDecode> Bench::spec_decode() {
  const auto reply = client_->fetch("GET", "/metrics", "", fixed_headers_);
  if (!reply.ok() || reply->status != 200) return std::nullopt;
  return read_spec_decode(reply->body);
}

void Bench::show_failures(const LoadResult& result) const {
  std::vector<std::pair<std::string, int64_t>> kinds;
  int64_t failed = 0;
  for (const Outcome& outcome : result.outcomes) {
    if (!outcome.sent || outcome.success) continue;
    ++failed;
    const auto it = std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return k.first == outcome.error; });
    if (it != kinds.end()) {
      ++it->second;
    } else if (kinds.size() < 64) {
      kinds.emplace_back(outcome.error, 1);
    }
  }
  if (failed == 0) return;
  io_.note(std::to_string(failed) + " requests failed; the first distinct errors:");
  for (size_t i = 0; i < std::min<size_t>(kinds.size(), 5); ++i) {
    io_.note("  " + std::to_string(kinds[i].second) + " x " + kinds[i].first);
  }
}

Status Bench::save(const Report& report, const Arrivals& arrivals) const {
  if (!options_.save_result && !options_.append_result) return {};
  const ArrivalOptions& a = options_.arrivals;
  const double rate = a.request_rate > 0 ? a.request_rate : INFINITY;
  const std::string date = now_text("%Y%m%d-%H%M%S");
  json::Value out{json::Object{}};
  out.set("date", date);
  out.set("endpoint_type", options_.backend);
  out.set("backend", options_.backend);
  out.set("label", options_.label.empty() ? json::Value() : json::Value(options_.label));
  out.set("model_id", model_id_);
  out.set("tokenizer_id", tokenizer_id_);
  out.set("num_prompts", options_.dataset.num_prompts);
  for (const auto& [name, value] : options_.metadata) out.set(name, value);
  out.set("request_rate", std::isinf(rate) ? json::Value("inf") : json::Value(rate));
  out.set("burstiness", a.burstiness);
  out.set("max_concurrency", options_.max_concurrency > 0 ? json::Value(options_.max_concurrency) : json::Value());
  if (!a.ramp_up_strategy.empty()) {
    out.set("ramp_up_strategy", a.ramp_up_strategy);
    out.set("ramp_up_start_rps", a.ramp_up_start_rps);
    out.set("ramp_up_end_rps", a.ramp_up_end_rps);
  }
  const json::Value figures = report.figures();
  for (const json::Member& member : figures.as_object()) out.set(member.first, member.second);
  if (!a.ramp_up_strategy.empty()) {
    json::Array events;
    int64_t last = -1;
    for (size_t i = 0; i < arrivals.rates.size(); ++i) {
      for (const int64_t now = static_cast<int64_t>(arrivals.rates[i]); last < now;) {
        last = last < 0 ? now : last + 1;
        json::Value event{json::Object{}};
        event.set("rps", last);
        event.set("timestamp", now_text("%Y-%m-%dT%H:%M:%S", arrivals.times[i] - report.duration));
        events.push_back(std::move(event));
      }
    }
    out.set("rps_change_events", std::move(events));
  }
  std::filesystem::path path = options_.result_filename;
  if (path.empty()) {
    const std::string base = model_id_.substr(model_id_.find_last_of('/') + 1);
    path = (options_.label.empty() ? options_.backend : options_.label) + "-" + python_float(rate) + "qps" +
           (options_.max_concurrency > 0 ? "-concurrency" + std::to_string(options_.max_concurrency) : "") + "-" +
           base + "-" + date + ".json";
  }
  if (!options_.result_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options_.result_dir, error);
    if (error)
      return invalid_argument({"--result-dir '", options_.result_dir, "' cannot be created: ", error.message()});
    path = options_.result_dir / path;
  }
  std::string text;
  if (options_.append_result && std::filesystem::exists(path)) {
    QUIRE_ASSIGN(text, read_file(path, size_t{4} << 30));
    if (!text.empty() && text.back() != '\n') text += '\n';
  }
  return write_file(path, text + json::dump(out) + (options_.append_result ? "\n" : ""));
}

Result<ServeSummary> Bench::run() {
  backend_ = find_backend(options_.backend);
  endpoint_ = options_.endpoint.empty() && backend_ != nullptr ? backend_->endpoint : options_.endpoint;
  QUIRE_TRY(check());
  QUIRE_TRY(open());
  QUIRE_TRY(find_model());
  QUIRE_TRY(load_tokenizer());
  QUIRE_TRY(sample());
  if (!options_.temperature) {
    io_.note("--temperature is not given: the server's default applies (0 is greedy)");
  }
  QUIRE_TRY(warm_up());
  const auto before = spec_decode();
  if (options_.profile) post("/start_profile");
  Arrivals arrivals;
  if (self_timed()) {
    for (const Sample& s : samples_) arrivals.times.push_back(s.arrival);
  } else {
    arrivals = make_arrivals(options_.arrivals, samples_.size(), generators_.numpy);
  }
  describe_traffic();
  const double cpu_before = processor_seconds();
  const LoadResult result = load(arrivals.times, samples_.size(), options_.max_concurrency, true);
  if (options_.profile) post("/stop_profile");
  const auto spec = difference(before, spec_decode());
  ReportOptions settings = options_.report;
  settings.max_concurrency = options_.max_concurrency;
  settings.request_rate = self_timed() ? 0 : options_.arrivals.request_rate;
  const Report report(result, settings, spec);
  log_info("client: {} connections, {} messages, {:.2f} s of CPU", result.connections, result.messages,
           processor_seconds() - cpu_before);
  // A client that is busy all the time measures itself.
  if (result.duration > 1 && processor_seconds() - cpu_before > 0.85 * result.duration * client_->threads()) {
    io_.note("the client's threads were almost always busy, which may affect the times: raise --client-threads");
  }
  show_failures(result);
  io_.print(report.text());
  QUIRE_TRY(save(report, arrivals));
  return ServeSummary{report.completed, report.failed, result.stopped};
}

// A rerank request has the first half of a sample as its query and the second half as its document.
std::string half_of(const Sample& sample, bool second) {
  std::string text;
  if (const auto* words = std::get_if<std::string>(&sample.prompt)) {
    text = *words;
  } else {
    for (const int32_t id : std::get<std::vector<int32_t>>(sample.prompt)) text += std::to_string(id) + " ";
  }
  const size_t space = text.find(' ', text.size() / 2);
  if (space == std::string::npos) return text;
  return second ? text.substr(space + 1) : text.substr(0, space);
}

}  // namespace

void BodyMaker::set(const std::string& name, Kind kind, const json::Value& value) {
  Part part{name, kind, kind == Kind::kFixed ? json::dump(value) : ""};
  const auto it = std::find_if(parts_.begin(), parts_.end(), [&](const Part& p) { return p.name == name; });
  it == parts_.end() ? parts_.push_back(std::move(part)) : void(*it = std::move(part));
}

BodyMaker::BodyMaker(const ServeOptions& o, std::string model, bool ignore_eos)
    : backend_(o.backend), model_(std::move(model)) {
  const bool chat = backend_ == "openai-chat", responses = backend_ == "openai-responses";
  json::Value usage{json::Object{}};
  usage.set("include_usage", true);
  set("model", Kind::kModel);
  if (find_backend(backend_) != nullptr && find_backend(backend_)->api == StreamApi::kWhole) {
    set(backend_ == "vllm-rerank" ? "query" : "input", Kind::kPrompt);
    if (backend_ == "vllm-rerank") set("documents", Kind::kDocument);
    set("truncate_prompt_tokens", Kind::kFixed, int64_t{-1});
    if (o.extra_body.is_object()) {
      for (const json::Member& member : o.extra_body.as_object()) set(member.first, Kind::kFixed, member.second);
    }
    return;
  }
  set(chat ? "messages" : responses ? "input" : "prompt", Kind::kPrompt);
  if (!chat && !responses) set("repetition_penalty", Kind::kFixed, 1.0);
  set(chat ? "max_completion_tokens" : responses ? "max_output_tokens" : "max_tokens", Kind::kLength);
  if (!chat && !responses) set("logprobs", Kind::kFixed, o.logprobs ? json::Value(*o.logprobs) : json::Value());
  if (chat && o.logprobs) {
    set("logprobs", Kind::kFixed, true);
    set("top_logprobs", Kind::kFixed, *o.logprobs);
  }
  set("stream", Kind::kFixed, true);
  if (!responses) set("stream_options", Kind::kFixed, usage);
  if (ignore_eos) set("ignore_eos", Kind::kFixed, true);
  const std::pair<const char*, std::optional<double>> numbers[] = {{"temperature", o.temperature},
                                                                   {"top_p", o.top_p},
                                                                   {"min_p", o.min_p},
                                                                   {"frequency_penalty", o.frequency_penalty},
                                                                   {"presence_penalty", o.presence_penalty},
                                                                   {"repetition_penalty", o.repetition_penalty}};
  for (const auto& [name, value] : numbers) {
    if (value) set(name, Kind::kFixed, *value);
  }
  if (o.top_k) set("top_k", Kind::kFixed, *o.top_k);
  if (chat && o.dataset.chat_template_kwargs.is_object()) {
    set("chat_template_kwargs", Kind::kFixed, o.dataset.chat_template_kwargs);
  }
  if (o.extra_body.is_object()) {
    for (const json::Member& member : o.extra_body.as_object()) set(member.first, Kind::kFixed, member.second);
  }
}

std::string BodyMaker::body(const Sample& sample, const std::string* model) const {
  const auto* text = std::get_if<std::string>(&sample.prompt);
  const auto* ids = std::get_if<std::vector<int32_t>>(&sample.prompt);
  std::string out;
  out.reserve(512 + (text != nullptr ? text->size() + text->size() / 8 : ids->size() * 7));
  out += '{';
  for (const Part& part : parts_) {
    if (out.size() > 1) out += ',';
    json::append_quoted(out, part.name);
    out += ':';
    switch (part.kind) {
      case Kind::kFixed:
        out += part.value;
        break;
      case Kind::kModel:
        json::append_quoted(out, model != nullptr ? *model : model_);
        break;
      case Kind::kDocument:
        out += '[';
        json::append_quoted(out, half_of(sample, true));
        out += ']';
        break;
      case Kind::kLength:
        out += std::to_string(sample.output_len);
        break;
      case Kind::kPrompt:
        if (backend_ == "vllm-rerank") {
          json::append_quoted(out, half_of(sample, false));
        } else if (ids != nullptr) {
          out += '[';
          for (size_t i = 0; i < ids->size(); ++i) {
            char digits[16];
            const auto end = std::to_chars(digits, digits + sizeof digits, (*ids)[i]).ptr;
            if (i > 0) out += ',';
            out.append(digits, end);
          }
          out += ']';
        } else if (backend_ == "openai-chat") {
          out += R"([{"role":"user","content":[{"type":"text","text":)";
          json::append_quoted(out, *text);
          out += "}]}]";
        } else {
          json::append_quoted(out, *text);
        }
        break;
    }
  }
  return out + "}";
}

Result<ServeSummary> serve(const ServeOptions& options, const ServeIo& io) {
  return Bench(options, io).run();
}

}  // namespace quire::bench
