// SPDX-License-Identifier: Apache-2.0
// quire bench serve: turns vLLM's flags into the options of a benchmark.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "base/file.h"
#include "bench/serve.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/hub/model_cache.h"
#include "cli/unused_flags.h"

namespace quire::cli {
namespace {

// The flags as they are written; settle() parses those that are not plain numbers or strings.
struct BenchServeFlags {
  bench::ServeOptions options;
  std::string request_rate = "inf";
  std::string burstiness = "1.0";
  std::string range_ratio = "0.0";
  std::optional<int64_t> input_len, output_len;
  std::vector<std::string> headers, metadata, goodput;
  std::string extra_body, chat_template_kwargs;
  std::string percentile_metrics = "ttft,tpot,itl";
  std::string metric_percentiles = "99";
  std::string lora_assignment = "random";
  std::string tokenizer_mode = "auto";
  bool self_timed = false;
  const CLI::Option* self_timed_option = nullptr;
  bool disable_tqdm = false;
  int64_t batch_size = 1;
  std::vector<const CLI::Option*> refused;
};

// Flags of vLLM's client that do not apply here, each with the reason that is shown to the user.
struct UnsentFlag {
  const char* name;
  const char* reason;
  bool takes_value;
  bool ignored = false;  // with a warning, since it asks for nothing that could differ
};
constexpr const char* kNoPlots = "quire draws no plots; --save-detailed saves what a plot needs";
constexpr const char* kUseCustom = "this dataset is not supported; save it as JSONL and use --dataset-name custom";
constexpr UnsentFlag kUnsent[] = {
    {"--use-beam-search", "beam search is not an option of the OpenAI API's streams", false},
    {"--plot-timeline", kNoPlots, false},
    {"--timeline-itl-thresholds", kNoPlots, true},
    {"--plot-dataset-stats", kNoPlots, false},
    {"--trust-remote-code", "quire never runs code that comes with a model", false, true},
    {"--hf-name", kUseCustom, true},
    {"--hf-subset", kUseCustom, true},
    {"--hf-split", kUseCustom, true},
    {"--hf-output-len", kUseCustom, true},
    {"--spec-bench-output-len", kUseCustom, true},
    {"--spec-bench-category", kUseCustom, true},
    {"--blazedit-min-distance", kUseCustom, true},
    {"--blazedit-max-distance", kUseCustom, true},
    {"--random-mm-base-items-per-request", "only text is sent", true},
    {"--random-mm-limit-mm-per-prompt", "only text is sent", true},
    {"--random-mm-bucket-config", "only text is sent", true},
};

void add_target_flags(CLI::App& app, BenchServeFlags& f) {
  const auto add = [&](const char* name, auto& value, const char* doc) {
    return app.add_option(name, value, doc)->envname(env_name(name))->group("Server");
  };
  bench::ServeOptions& o = f.options;
  add("--backend", o.backend,
      "openai, vllm (both: completions), openai-chat, openai-responses, openai-embeddings or vllm-rerank")
      ->type_name("TEXT:{openai,vllm,openai-chat,openai-responses,openai-embeddings,vllm-rerank}");
  add("--base-url", o.base_url, "http://HOST:PORT or https://HOST/PREFIX, instead of --host and --port");
  add("--host", o.host, "Default 127.0.0.1");
  add("--port", o.port, "Default 8000");
  add("--endpoint", o.endpoint, "Path of the API (default: that of the backend)");
  add("--model", o.model, "Model name in requests; its tokenizer counts tokens (default: the server's first model)");
  add("--served-model-name", o.served_model_name, "Model name in requests, if it differs from --model");
  add("--tokenizer", o.tokenizer, "A local model whose tokenizer counts tokens: folder, .gguf or cached name")
      ->type_name(kModelValue);
  add("--tokenizer-mode", f.tokenizer_mode, "auto");
  add("--header", f.headers, "Additional headers as NAME=VALUE");
  add("--extra-body", f.extra_body, "JSON object that is merged into the body of each request");
  add("--request-id-prefix", o.request_id_prefix, "Prefix of the x-request-id header (default bench-XXXXXXXX-)");
  add("--ready-check-timeout-sec", o.ready_check_timeout_sec,
      "Repeat the first request until it succeeds, for at most this many seconds; 0: no check");
  add("--lora-modules", o.lora_modules, "Model names, of which each request uses one");
  add("--lora-assignment", f.lora_assignment, "random or round-robin")->check(CLI::IsMember({"random", "round-robin"}));
  add("--client-threads", o.client_threads, "Threads of the client; 0: one per four cores, at most four");
  add_switch(app, "--skip-tokenizer-init", o.skip_tokenizer_init, "Use only the server's token counts")
      ->group("Server");
  add_switch(app, "--insecure", o.insecure, "Accept any TLS certificate")->group("Server");
  add_switch(app, "--profile", o.profile, "Call /start_profile and /stop_profile around the run")
      ->envname("QUIRE_BENCH_PROFILE")  // QUIRE_PROFILE is the file of --profile of other commands
      ->group("Server");
}

void add_traffic_flags(CLI::App& app, BenchServeFlags& f) {
  const auto add = [&](const char* name, auto& value, const char* doc) {
    return app.add_option(name, value, doc)->envname(env_name(name))->group("Traffic");
  };
  bench::ServeOptions& o = f.options;
  add("--num-prompts", o.dataset.num_prompts, "Number of requests (default: 1000)");
  add("--seed", o.dataset.seed, "Seed of samples and arrivals, which are those of vLLM's client (default: 0)");
  add("--request-rate", f.request_rate, "Requests per second; inf: all at once (default)");
  add("--burstiness", f.burstiness, "Gamma shape of the gaps; 1: Poisson, below 1: burstier, inf: fixed gaps");
  add("--max-concurrency", o.max_concurrency, "Maximum number of concurrent requests");
  add("--ramp-up-strategy", o.arrivals.ramp_up_strategy, "linear or exponential, instead of --request-rate")
      ->check(CLI::IsMember({"linear", "exponential"}));
  add("--ramp-up-start-rps", o.arrivals.ramp_up_start_rps, "Rate of the first request");
  add("--ramp-up-end-rps", o.arrivals.ramp_up_end_rps, "Rate of the last request");
  add("--probe-request-rate", o.probe_request_rate, "Extra requests per second without limits, reported separately");
  add("--num-warmups", o.num_warmups, "Send the first request this many times before the run");
  add("--temperature", o.temperature, "Sampling parameters, of which only those given are sent");
  add("--top-p", o.top_p, "");
  add("--top-k", o.top_k, "");
  add("--min-p", o.min_p, "");
  add("--frequency-penalty", o.frequency_penalty, "");
  add("--presence-penalty", o.presence_penalty, "");
  add("--repetition-penalty", o.repetition_penalty, "");
  add("--logprobs", o.logprobs, "Number of logprobs per token to request");
  add_switch(app, "--ignore-eos", o.ignore_eos, "Generate the full length (always with random and timed_trace)")
      ->group("Traffic");
  f.self_timed_option = add_switch(app, "--self-timed", f.self_timed,
                                   "Send requests at the timestamps of the trace (default with timed_trace)")
                            ->group("Traffic");
}

void add_dataset_flags(CLI::App& app, BenchServeFlags& f) {
  const auto add = [&](const char* name, auto& value, const char* doc) {
    return app.add_option(name, value, doc)->envname(env_name(name))->group("Dataset");
  };
  bench::DatasetOptions& d = f.options.dataset;
  add("--dataset-name", d.name, "random, sharegpt, sonnet, custom, prefix_repetition, burstgpt or timed_trace")
      ->type_name(kDatasetName);
  add("--dataset-path", d.path, "File of the dataset")->type_name(kFile);
  add("--input-len", f.input_len, "Input length of the chosen dataset");
  add("--output-len", f.output_len, "Output length of the chosen dataset");
  add("--random-input-len", d.random_input_len, "Tokens per prompt (default: 1024)");
  add("--random-output-len", d.random_output_len, "Tokens per output (default: 128)");
  add("--random-prefix-len", d.random_prefix_len, "Length of a prefix that all prompts share");
  add("--random-range-ratio", f.range_ratio, "Lengths vary by this fraction, or {\"input\": 0.1, \"output\": 0.2}");
  add("--random-batch-size", f.batch_size, "1");
  add("--sharegpt-output-len", d.sharegpt_output_len, "Replaces the length of each sample's response");
  add("--custom-output-len", d.custom_output_len, "Default 256; -1: output_tokens of each row");
  add("--sonnet-input-len", d.sonnet_input_len, "Default 550");
  add("--sonnet-output-len", d.sonnet_output_len, "Default 150");
  add("--sonnet-prefix-len", d.sonnet_prefix_len, "Default 200");
  add("--prefix-repetition-prefix-len", d.prefix_repetition_prefix_len, "Default 256");
  add("--prefix-repetition-suffix-len", d.prefix_repetition_suffix_len, "Default 256");
  add("--prefix-repetition-num-prefixes", d.prefix_repetition_num_prefixes, "Default 10");
  add("--prefix-repetition-output-len", d.prefix_repetition_output_len, "Default 128");
  add("--timed-trace-chunk-hash-size", d.timed_trace_chunk_hash_size,
      "Tokens per prefix hash (default: inferred from the lengths)");
  add("--timed-trace-sec-multiplier", d.timed_trace_sec_multiplier,
      "Factor from timestamps to seconds (default: 0.001 for Mooncake's traces, else 1); smaller replays faster");
  add("--timed-trace-label-timestamp", d.timed_trace_label_timestamp, "Field or column with the time");
  add("--timed-trace-label-input-length", d.timed_trace_label_input_length, "Field or column with the prompt's length");
  add("--timed-trace-label-output-length", d.timed_trace_label_output_length,
      "Field or column with the output's length");
  add("--timed-trace-label-hash-ids", d.timed_trace_label_hash_ids, "Field with the prefix hashes");
  add("--timed-trace-max-input-len", d.timed_trace_max_input_len, "Truncate longer prompts; 0: no limit");
  add("--timed-trace-max-output-len", d.timed_trace_max_output_len, "Truncate longer outputs; 0: no limit");
  add("--chat-template-kwargs", f.chat_template_kwargs, "JSON object of variables for the chat template");
  app.add_flag("--no-oversample,!--oversample", d.no_oversample, "Do not repeat samples if the file has too few")
      ->envname("QUIRE_NO_OVERSAMPLE")
      ->group("Dataset");
  add_switch(app, "--disable-shuffle", d.disable_shuffle, "Keep the order of the file")->group("Dataset");
  add_switch(app, "--skip-chat-template", d.skip_chat_template, "Send custom prompts without the chat template")
      ->group("Dataset");
}

void add_report_flags(CLI::App& app, BenchServeFlags& f) {
  const auto add = [&](const char* name, auto& value, const char* doc) {
    return app.add_option(name, value, doc)->envname(env_name(name))->group("Report");
  };
  bench::ServeOptions& o = f.options;
  add("--percentile-metrics", f.percentile_metrics,
      "List of ttft, tpot, itl, e2el, client_queue_time, e2el_including_client_queue (default: ttft,tpot,itl)");
  add("--metric-percentiles", f.metric_percentiles, "List such as 50,90,99 (default: 99)");
  add("--goodput", f.goodput, "Limits in ms that a good request meets: ttft:MS tpot:MS e2el:MS");
  add("--result-dir", o.result_dir, "Folder for the result")->type_name(kFolder);
  add("--result-filename", o.result_filename, "File name of the result (default: backend, rate, model, date)");
  add("--label", o.label, "Replaces the backend in the result's file name");
  add("--metadata", f.metadata, "KEY=VALUE pairs for the result");
  for (CLI::Option* option :
       {add_switch(app, "--save-result", o.save_result, "Write the result as JSON"),
        add_switch(app, "--save-detailed", o.report.detailed, "Include the times, texts and errors of each request"),
        add_switch(app, "--append-result", o.append_result, "Append the result as a line to its file"),
        add_switch(app, "--disable-tqdm", f.disable_tqdm, "Show no progress")}) {
    option->group("Report");
  }
}

Result<double> number(const std::string& text, const char* flag) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || std::isnan(value)) {
    return invalid_argument({flag, " is '", text, "'; it must be a number or inf"});
  }
  return value;
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(at, begin), text.size());
    if (end > begin) out.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

Result<std::vector<std::pair<std::string, std::string>>> pairs(const std::vector<std::string>& list, char at,
                                                               const char* flag) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const std::string& item : list) {
    const size_t place = item.find(at);
    if (place == std::string::npos || place == 0) {
      return invalid_argument({flag, " has '", item, "'; write NAME", at, "VALUE"});
    }
    out.emplace_back(item.substr(0, place), item.substr(place + 1));
  }
  return out;
}

Result<json::Value> object(const std::string& text, const char* flag) {
  if (text.empty()) return json::Value();
  auto value = json::parse(text);
  if (!value.ok()) return invalid_argument({flag, " is ", value.error().message});
  if (!value->is_object()) return invalid_argument({flag, " must be a JSON object"});
  return std::move(*value);
}

Status settle_range_ratio(const std::string& text, bench::DatasetOptions& d) {
  if (text.find('{') == std::string::npos) {
    QUIRE_ASSIGN(d.random_range_ratio_input, number(text, "--random-range-ratio"));
    d.random_range_ratio_output = d.random_range_ratio_input;
    return {};
  }
  QUIRE_ASSIGN(const json::Value both, object(text, "--random-range-ratio"));
  QUIRE_ASSIGN(d.random_range_ratio_input, json::get_double(both, "input"));
  QUIRE_ASSIGN(d.random_range_ratio_output, json::get_double(both, "output"));
  return {};
}

Status settle_report(const BenchServeFlags& f, bench::ReportOptions& r) {
  r.metrics = split(f.percentile_metrics, ',');
  for (const std::string& metric : r.metrics) {
    if (bench::known_metric(metric)) continue;
    return invalid_argument({"--percentile-metrics has '", metric,
                             "'; choose from ttft, tpot, itl, e2el, client_queue_time, e2el_including_client_queue"});
  }
  r.percentiles.clear();
  for (const std::string& item : split(f.metric_percentiles, ',')) {
    QUIRE_ASSIGN(const double p, number(item, "--metric-percentiles"));
    if (!(p >= 0 && p <= 100)) return invalid_argument("--metric-percentiles must be from 0 to 100");
    r.percentiles.push_back(p);
  }
  QUIRE_ASSIGN(const auto goodput, pairs(f.goodput, ':', "--goodput"));
  for (const auto& [metric, limit] : goodput) {
    if (metric != "ttft" && metric != "tpot" && metric != "e2el") {
      return invalid_argument({"--goodput has '", metric, "'; choose from ttft, tpot and e2el"});
    }
    QUIRE_ASSIGN(const double ms, number(limit, "--goodput"));
    if (ms < 0) return invalid_argument("--goodput must not be negative");
    r.goodput.emplace_back(metric, ms);
  }
  return {};
}

Status settle(BenchServeFlags& f) {
  for (size_t i = 0; i < f.refused.size(); ++i) {
    if (f.refused[i]->count() == 0) continue;
    if (kUnsent[i].ignored) {
      warn_unused(kUnsent[i].name, kUnsent[i].reason);
    } else {
      return invalid_argument({std::string(kUnsent[i].name), " is not supported: ", kUnsent[i].reason});
    }
  }
  if (f.tokenizer_mode != "auto")
    return invalid_argument({"--tokenizer-mode is '", f.tokenizer_mode, "'; it must be auto"});
  if (f.batch_size != 1) return invalid_argument("--random-batch-size is for embeddings; it must be 1 here");
  bench::ServeOptions& o = f.options;
  QUIRE_ASSIGN(const double rate, number(f.request_rate, "--request-rate"));
  if (!(rate > 0)) return invalid_argument("--request-rate must be greater than 0");
  o.arrivals.request_rate = std::isinf(rate) ? 0 : rate;
  QUIRE_ASSIGN(o.arrivals.burstiness, number(f.burstiness, "--burstiness"));
  QUIRE_TRY(settle_range_ratio(f.range_ratio, o.dataset));
  QUIRE_TRY(settle_report(f, o.report));
  if (f.input_len) o.dataset.random_input_len = *f.input_len;
  if (f.output_len) {
    o.dataset.random_output_len = o.dataset.custom_output_len = o.dataset.prefix_repetition_output_len = *f.output_len;
    o.dataset.sharegpt_output_len = *f.output_len;
  }
  QUIRE_ASSIGN(o.headers, pairs(f.headers, '=', "--header"));
  QUIRE_ASSIGN(o.metadata, pairs(f.metadata, '=', "--metadata"));
  QUIRE_ASSIGN(o.extra_body, object(f.extra_body, "--extra-body"));
  QUIRE_ASSIGN(o.dataset.chat_template_kwargs, object(f.chat_template_kwargs, "--chat-template-kwargs"));
  o.lora_round_robin = f.lora_assignment == "round-robin";
  if (f.self_timed_option->count() > 0) o.self_timed = f.self_timed;
  return {};
}

// Loads a tokenizer and chat template by name, without weights.
Result<llm::TextSide> load_text(const std::string& name) {
  namespace fs = std::filesystem;
  llm::Options options;
  model::ModelFiles files;
  std::error_code ignored;
  const fs::path folder = name;
  if (fs::exists(folder / "tokenizer.json", ignored) || fs::exists(folder / "tokenizer.model", ignored)) {
    options.model = files.files.folder = folder;  // a tokenizer is enough
  } else {
    QUIRE_ASSIGN(options.model, resolve_model(name));
    if (fs::is_directory(options.model, ignored)) {
      files.files.folder = options.model;
    } else {
      QUIRE_ASSIGN(files, llm::open_text_files(options));
    }
  }
  QUIRE_ASSIGN(llm::TextSide side, llm::load_text_side(files, options));
  if (side.tokenizer == nullptr) return unsupported({"'", options.model.string(), "' has no tokenizer"});
  return side;
}

// all_special_tokens of Hugging Face: the named and the additional special tokens of tokenizer_config.json.
std::optional<std::vector<std::string>> special_tokens(const std::string& name) {
  std::filesystem::path folder = name;
  if (const auto resolved = resolve_model(name); resolved.ok()) folder = *resolved;
  const auto text = read_file(folder / "tokenizer_config.json");
  const auto config = text.ok() ? json::parse(*text) : Result<json::Value>(text.error());
  if (!config.ok()) return std::nullopt;
  std::vector<std::string> out;
  const auto add = [&](const json::Value& token) {  // a string, or an object with the string as "content"
    const json::Value* content = token.is_object() ? token.find("content") : &token;
    if (content != nullptr && content->is_string()) out.push_back(content->as_string());
  };
  for (const char* role :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    if (const json::Value* token = config->find(role)) add(*token);
  }
  for (const char* list : {"additional_special_tokens", "extra_special_tokens"}) {
    const json::Value* tokens = config->find(list);
    if (tokens != nullptr && tokens->is_array())
      std::for_each(tokens->as_array().begin(), tokens->as_array().end(), add);
    if (tokens == nullptr || !tokens->is_object()) continue;
    for (const json::Member& member : tokens->as_object()) add(member.second);
  }
  return out;
}

// A progress line like tqdm's, on a terminal.
class ServeProgress {
 public:
  void show(size_t done, size_t total) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
    const size_t bar = total > 0 ? 30 * done / total : 30;
    std::fprintf(stderr, "\r%3zu%%|%s%s| %zu/%zu [%s, %.2f requests/s]\x1b[K", total > 0 ? 100 * done / total : 100,
                 std::string(bar, '#').c_str(), std::string(30 - bar, ' ').c_str(), done, total, clock(seconds).c_str(),
                 rate);
    open_ = true;
  }
  void end() {
    if (open_) std::fprintf(stderr, "\n");
    open_ = false;
  }

 private:
  static std::string clock(double seconds) {
    char text[32];
    std::snprintf(text, sizeof text, "%02d:%02d", static_cast<int>(seconds) / 60, static_cast<int>(seconds) % 60);
    return text;
  }
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  bool open_ = false;
};

int serve(BenchServeFlags& f) {
  if (auto status = settle(f); !status.ok()) return report(status.error());
  std::optional<ServeProgress> line;
  bench::ServeIo io;
  io.load_text = load_text;
  io.special_tokens = special_tokens;
  io.print = [&](const std::string& text) {
    if (line) line->end();
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  };
  io.note = [&](const std::string& text) {
    if (line) line->end();
    std::fprintf(stderr, "%s\n", text.c_str());
  };
  if (!f.disable_tqdm && ::isatty(STDERR_FILENO) != 0) {
    io.progress = [&](size_t done, size_t total) {
      if (!line) line.emplace();
      line->show(done, total);
    };
  }
  // Ctrl-C is caught from the first request on; before that there is nothing to report, and it ends the program.
  bool interrupted = false;
  io.interrupted = [&interrupted] {
    catch_interrupts();
    return interrupted = interrupted || take_interrupt();
  };
  auto done = bench::serve(f.options, io);
  if (!done.ok()) return report(done.error());
  if (done->interrupted) return kExitInterrupted;
  return done->completed == 0 && done->failed > 0 ? kExitFailure : 0;
}

}  // namespace

void add_bench_serve(CLI::App& bench, int& exit_code) {
  auto f = std::make_shared<BenchServeFlags>();
  CLI::App* command =
      bench.add_subcommand("serve", "Send requests to an OpenAI-compatible server and report its latencies");
  add_target_flags(*command, *f);
  add_traffic_flags(*command, *f);
  add_dataset_flags(*command, *f);
  add_report_flags(*command, *f);
  for (const UnsentFlag& flag : kUnsent) {
    CLI::Option* option = flag.takes_value ? command->add_option(flag.name) : command->add_flag(flag.name);
    f->refused.push_back(option->group(""));
  }
  command->callback([f, &exit_code] { exit_code = serve(*f); });
}

}  // namespace quire::cli
