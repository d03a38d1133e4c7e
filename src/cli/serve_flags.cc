// SPDX-License-Identifier: Apache-2.0
// The flags of quire serve.
#include "cli/serve_flags.h"

#include <algorithm>

#include "base/env.h"
#include "cli/flags.h"
#include "cli/serve_ranks.h"
#include "kv/memory_plan.h"

namespace quire::cli {
namespace {

template <typename T>
CLI::Option* add(CLI::App& app, const char* group, const char* name, T& value, const char* doc) {
  CLI::Option* option = app.add_option(name, value, doc)->envname(env_name(name))->group(group);
  option->allow_extra_args(false);
  return option;
}

void add_on_off(CLI::App& app, const char* group, const char* name, bool& value, const char* doc) {
  add_switch(app, name, value, doc)->group(group);
}

void add_several_flags(CLI::App& app, ServeFlags& f) {
  constexpr const char* kGroup = "Several models";
  add(app, kGroup, "--models-dir", f.models_dir,
      "Serve every model of this folder: .gguf files, and folders like the cache")
      ->type_name(kFolder);
  add(app, kGroup, "--max-loaded-models", f.max_loaded_models,
      "Models that may be loaded at once; each gets this part of the memory")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1024}));
  add(app, kGroup, "--model-keep-alive", f.model_keep_alive_s,
      "Seconds after which an idle model is unloaded; -1: never")
      ->capture_default_str()
      ->check(CLI::Range(-1.0, 1e9));
  add(app, kGroup, "--models-memory-bytes", f.models_memory,
      "Memory for all loaded models together (default: what is free at the start)");
  add(app, kGroup, "--model-queue-size", f.model_queue_size,
      "Requests that may wait for one model to be loaded; more are rejected with 503")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  add(app, kGroup, "--model-queue-timeout", f.model_queue_timeout_s,
      "Seconds that a request may wait for its model; then it is rejected with 503; 0: no limit")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 86400.0));
}

void add_parallel_flags(CLI::App& app, ServeFlags& f) {
  add(app, "Parallelism", "--data-parallel-size", f.options.engines,
      "Engines of each model behind this server. On a CPU they share its weights, and divide threads and memory for "
      "the "
      "KV cache among them; on GPUs each has its own (--device cuda:0,1 names them). A request goes to the one that "
      "knows its prefix, unless that is too busy")
      ->capture_default_str();
}

void add_listen_flags(CLI::App& app, ServeFlags& f) {
  constexpr const char* kGroup = "Listening";
  add(app, kGroup, "--host", f.http.host, "Address or name to listen on; 0.0.0.0 for all interfaces")
      ->capture_default_str();
  add(app, kGroup, "--port", f.http.port, "Port; 0 picks a free one")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535));
  add(app, kGroup, "--uds", f.http.uds, "Listen on this Unix socket instead")->type_name(kFile);
  add(app, kGroup, "--root-path", f.http.root_path, "Path prefix that a proxy does not remove");
  add(app, kGroup, "--ssl-certfile", f.http.ssl_certfile, "PEM file with the certificate; turns TLS on")
      ->type_name(kFile);
  add(app, kGroup, "--ssl-keyfile", f.http.ssl_keyfile, "PEM file with its key")->type_name(kFile);
  add(app, kGroup, "--ssl-ca-certs", f.http.ssl_ca_certs, "PEM file with the CAs of client certificates")
      ->type_name(kFile);
  add(app, kGroup, "--ssl-cert-reqs", f.http.ssl_cert_reqs, "Client certificates: 0 none, 1 optional, 2 required")
      ->check(CLI::Range(0, 2));
  add(app, kGroup, "--ssl-ciphers", f.http.ssl_ciphers, "Ciphers for TLS 1.2, in OpenSSL's format");
  add_on_off(app, kGroup, "--enable-ssl-refresh", f.http.enable_ssl_refresh,
             "Reload certificate and key when their files change");
  add(app, kGroup, "--io-threads", f.http.io_threads, "Threads for sockets")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  add(app, kGroup, "--shutdown-timeout", f.http.shutdown_timeout_s,
      "Seconds that running requests may take after SIGTERM; 0: abort them")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 86400.0));
}

void add_access_flags(CLI::App& app, ServeFlags& f) {
  constexpr const char* kGroup = "Access";
  add(app, kGroup, "--api-key", f.api_keys,
      "Key that clients must send. Several: MODEL --api-key K1 K2, or repeat the flag");
  add(app, kGroup, "--api-key-file", f.api_key_file,
      "JSON file with keys, their names and limits: {\"keys\": [{\"name\": ..., \"key\": ..., \"requests_per_minute\": "
      "..., \"tokens_per_minute\": ..., \"max_sequences\": ...}, ...]}")
      ->type_name(kFile);
  add(app, kGroup, "--allowed-origins", f.allowed_origins, "CORS: JSON list of origins; [\"*\"] for all")
      ->capture_default_str();
  add(app, kGroup, "--allowed-methods", f.allowed_methods, "CORS: JSON list of methods")->capture_default_str();
  add(app, kGroup, "--allowed-headers", f.allowed_headers, "CORS: JSON list of headers")->capture_default_str();
  add_on_off(app, kGroup, "--allow-credentials", f.http.allow_credentials, "CORS: let browsers send credentials");
  add_on_off(app, kGroup, "--enable-reset-prefix-cache", f.service.enable_reset_prefix_cache,
             "Serve /reset_prefix_cache even without --api-key");
}

void add_limit_flags(CLI::App& app, ServeFlags& f) {
  constexpr const char* kGroup = "Limits";
  add(app, kGroup, "--max-num-queued-reqs", f.async.max_num_queued_reqs, "Reject requests with 503 if this many wait")
      ->check(CLI::PositiveNumber);
  add(app, kGroup, "--max-num-queued-tokens", f.async.max_num_queued_tokens,
      "Reject requests with 503 if this many prompt tokens are waiting")
      ->check(CLI::PositiveNumber);
  add(app, kGroup, "--max-request-bytes", f.max_request,
      "Maximum memory of all requests together (prompts, parameters, outputs); more are rejected with 503")
      ->capture_default_str();
  add(app, kGroup, "--max-connections", f.http.max_connections, "Maximum number of connections; more get a 503")
      ->capture_default_str();
  add(app, kGroup, "--max-body-bytes", f.max_body, "Maximum size of a body; larger: 413")->capture_default_str();
  add(app, kGroup, "--max-held-body-bytes", f.max_held_body,
      "Maximum size of all bodies that are being read or wait for a worker; more are rejected with 503")
      ->capture_default_str();
  add(app, kGroup, "--max-header-bytes", f.max_header, "Maximum size of headers; larger: 431")->capture_default_str();
  add(app, kGroup, "--max-write-buffer-bytes", f.max_write_buffer,
      "Maximum data that is buffered for a client that does not read; then it is disconnected")
      ->capture_default_str();
  const auto seconds = [&](const char* name, double& value, const char* doc) {
    add(app, kGroup, name, value, doc)->capture_default_str()->check(CLI::Range(0.0, 86400.0));
  };
  seconds("--header-timeout", f.http.header_timeout_s, "Seconds to receive the headers of a request");
  seconds("--body-timeout", f.http.body_timeout_s, "Seconds to wait for more of a body");
  seconds("--keep-alive-timeout", f.http.keep_alive_timeout_s, "Seconds that an idle connection stays open");
  seconds("--write-timeout", f.http.write_timeout_s, "Seconds after which a client that does not read is disconnected");
  seconds("--health-stall-seconds", f.health_stall_s,
          "/health returns 503 if no waiting request starts or a step does not end for this long (ten times this on a "
          "CPU); 0: never");
}

// The type of a flag that takes the name of a parser.
std::string parser_value(const std::vector<std::string_view>& names) {
  std::string out = "TEXT:{auto,none";
  for (const std::string_view name : names) out += "," + std::string(name);
  return out + "}";
}

void add_api_flags(CLI::App& app, ServeFlags& f) {
  constexpr const char* kGroup = "API";
  add(app, kGroup, "--served-model-name", f.served_names,
      "Name of the model in requests. Several: MODEL --served-model-name A B, or repeat the flag; the first is used in "
      "responses");
  add(app, kGroup, "--chat-template-content-format", f.content_format,
      "Format of message content for the chat template: auto, string or openai")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "string", "openai"}));
  add(app, kGroup, "--default-chat-template-kwargs", f.default_kwargs,
      "JSON object of variables for the chat template; those of requests override them");
  add(app, kGroup, "--tool-call-parser", f.tool_parser,
      "How the model writes tool calls: auto (from its chat template), none (calls stay text) or a name such as "
      "hermes, "
      "llama3_json, mistral or qwen3_coder")
      ->type_name(parser_value(markup::tool_parser_names()))
      ->capture_default_str();
  add(app, kGroup, "--reasoning-parser", f.reasoning_parser,
      "How the model writes reasoning: auto, none (it stays in the content) or a name such as qwen3 or deepseek_r1")
      ->type_name(parser_value(markup::reasoning_parser_names()))
      ->capture_default_str();
  add_on_off(app, kGroup, "--enable-auto-tool-choice", f.auto_tool_choice,
             "Let the model decide whether to call tools; always on");
  add_on_off(app, kGroup, "--exclude-tools-when-tool-choice-none", f.service.exclude_tools_when_choice_none,
             "Do not show tools to the model if tool_choice is none");
  add(app, kGroup, "--response-role", f.service.response_role, "Role of generated messages")->capture_default_str();
  add_on_off(app, kGroup, "--trust-request-chat-template", f.service.trust_request_chat_template,
             "Allow requests to set chat_template");
  add(app, kGroup, "--stream-interval", f.service.stream_interval, "Tokens per event of a stream")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  add_on_off(app, kGroup, "--enable-force-include-usage", f.service.enable_force_include_usage,
             "Include usage in every stream");
  add_on_off(app, kGroup, "--enable-prompt-tokens-details", f.service.enable_prompt_tokens_details,
             "Include usage.prompt_tokens_details.cached_tokens");
  add_on_off(app, kGroup, "--return-tokens-as-token-ids", f.service.return_tokens_as_token_ids,
             "Write tokens in logprobs as token_id:N");
  add_on_off(app, kGroup, "--enable-tokenizer-info-endpoint", f.service.enable_tokenizer_info_endpoint,
             "Serve /tokenizer_info");
  add_on_off(app, kGroup, "--enable-request-id-headers", f.http.enable_request_id_headers,
             "Add X-Request-Id to responses");
  add_on_off(app, kGroup, "--enable-server-load-tracking", f.load_tracking, "Count requests for /load; always on");
  add_on_off(app, kGroup, "--scheduler-reserve-full-isl", f.reserve_full_isl,
             "Admit a prompt only if the KV cache has room for all of it");
  add_on_off(app, kGroup, "--disable-fastapi-docs", f.service.disable_docs, "Do not serve /docs and /openapi.json");
  add_on_off(app, kGroup, "--page", f.service.page,
             "Serve a page for chat and the live view of the server at /, and /live");
  add(app, kGroup, "--fingerprint-mode", f.fingerprint_mode,
      "system_fingerprint of responses: full (version, ISA level and hash), hash, or none")
      ->capture_default_str()
      ->check(CLI::IsMember({"full", "hash", "none"}));
}

void add_log_flags(CLI::App& app, ServeFlags& f) {
  constexpr const char* kGroup = "Logs and metrics";
  add_on_off(app, kGroup, "--disable-log-stats", f.disable_log_stats, "Do not log statistics every ten seconds");
  add_on_off(app, kGroup, "--disable-uvicorn-access-log", f.disable_access_log, "Do not log each HTTP request");
  add(app, kGroup, "--disable-access-log-for-endpoints", f.quiet_endpoints,
      "Paths whose requests are not logged, such as /health,/metrics")
      ->delimiter(',');
  add(app, kGroup, "--uvicorn-log-level", f.uvicorn_log_level, "vLLM's name for --log-level")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  add_on_off(app, kGroup, "--enable-log-requests", f.service.log_requests, "Log each accepted request");
  add_on_off(app, kGroup, "--enable-log-outputs", f.service.log_outputs, "Log the text of each output");
  add(app, kGroup, "--max-log-len", f.service.max_log_len, "Maximum number of characters of an output in the log");
  add(app, kGroup, "--record-requests", f.record_requests,
      "Append a receipt of every answer to this file, for quire replay. It holds all prompts and answers as token ids; "
      "only its owner may read it")
      ->type_name(kFile);
  add(app, kGroup, "--kv-events-config", f.kv_events,
      "JSON object; with \"enable_kv_cache_events\": true, publish over ZeroMQ what enters and leaves the prefix "
      "cache, "
      "for routers. Fields: endpoint (tcp://*:5557), replay_endpoint, topic, buffer_steps, hwm, max_queue_size");
  add(app, kGroup, "--otlp-traces-endpoint", f.traces_endpoint,
      "Send one span per request to this collector of OpenTelemetry, such as http://127.0.0.1:4318/v1/traces");
  add(app, kGroup, "--custom-histogram-buckets", f.custom_buckets,
      "JSON object with bucket bounds per family, such as {\"time_to_first_token\": [0.1, 1]}");
}

Result<std::vector<std::string>> json_list(const std::string& text, const char* flag) {
  auto parsed = json::parse(text);
  std::vector<std::string> out;
  if (parsed.ok() && parsed->is_array()) {
    for (const json::Value& item : parsed->as_array()) {
      if (item.is_string()) out.push_back(item.as_string());
    }
    if (out.size() == parsed->as_array().size()) return out;
  }
  return invalid_argument({flag, " is '", text, "'; it must be a JSON list of strings such as [\"*\"]"});
}

Result<size_t> size_flag(const std::string& text, const char* flag) {
  QUIRE_ASSIGN(const int64_t bytes, kv::parse_bytes(text, flag));
  if (bytes < 1) return invalid_argument({flag, " must be at least 1 byte"});
  return static_cast<size_t>(bytes);
}

// The value of an option that no variable has; none if it was not given.
std::optional<std::string> value_of(const CLI::App& app, const std::string& name) {
  const CLI::Option* option = app.get_option(name);
  if (option->count() == 0) return std::nullopt;
  const std::vector<std::string>& given = option->results();
  return given.empty() ? "" : given.back();
}

// Refuses flags of vLLM's that have no use here, or notes those that change nothing.
Status settle_unused_flags(const CLI::App& app, ServeFlags& f) {
  for (const UnusedFlag& flag : unused_flags()) {
    const auto value = value_of(app, flag.name);
    if (!value || (*flag.neutral != '\0' && *value == flag.neutral)) continue;
    if (flag.treatment == Treatment::kRefused) {
      return invalid_argument({std::string(flag.name), " is not supported: ", flag.why});
    }
    if (flag.treatment == Treatment::kIgnoredSwitch) {
      if (*value == "false") continue;
      if (*value != "true") return invalid_argument({std::string(flag.name), " takes no value"});
    } else if (const auto number = json::parse(*value); !number.ok() || !number->is_number()) {
      return invalid_argument({std::string(flag.name), " must be a number"});
    }
    f.ignored.push_back(&flag);
  }
  return apply_task(value_of(app, "--task").value_or("auto"), f.options);
}

// A switch that is ignored takes no value: a MODEL behind it is still the model.
void add_unused_flags(CLI::App& app) {
  for (const UnusedFlag& flag : unused_flags()) {
    const std::string name = flag.name;
    CLI::Option* option = flag.treatment == Treatment::kIgnoredSwitch ? app.add_flag(name + ",!--no-" + name.substr(2))
                                                                      : app.add_option(name)->expected(0, 1);
    option->group("");
  }
  app.add_option("--task")->expected(0, 1)->group("");
}

}  // namespace

void add_serve_flags(CLI::App& app, ServeFlags& flags) {
  flags.http.shutdown_timeout_s = 30;
  app.add_option("MODEL,--model", flags.models,
                 "A folder, a .gguf, a cached name, a name on a hub (owner/name:QUANT), or omitted for the default "
                 "model; several are loaded on demand, and NAME=MODEL names one")
      ->envname("QUIRE_MODEL")
      ->type_name(kModelValue);
  app.add_option("--config", "YAML file with flags, one `flag: value` per line; the command line has priority")
      ->type_name(kFile);
  add_several_flags(app, flags);
  add_parallel_flags(app, flags);
  add_listen_flags(app, flags);
  add_access_flags(app, flags);
  add_limit_flags(app, flags);
  add_api_flags(app, flags);
  add_log_flags(app, flags);
  add_model_flags(app, flags.options);
  add_rank_flags(app, flags.ranks);
  app.add_option(
         "--lora-modules", flags.lora_modules,
         "Adapters to serve, each as NAME=PATH or as JSON {\"name\", \"path\", \"base_model_name\"}; requests give "
         "the name as their model")
      ->envname(env_name("--lora-modules"))
      ->type_name("NAME=PATH")
      ->group("Adapters");
  add_unused_flags(app);
}

Status settle_serve_flags(const CLI::App& app, ServeFlags& f) {
  QUIRE_TRY(settle_unused_flags(app, f));
  constexpr int64_t kMostEngines = 256;
  if (f.options.engines < 1 || f.options.engines > kMostEngines) {
    return invalid_argument({"--data-parallel-size is ", f.options.engines, "; it must be 1 to ", kMostEngines});
  }
  QUIRE_ASSIGN(f.http.allowed_origins, json_list(f.allowed_origins, "--allowed-origins"));
  QUIRE_ASSIGN(f.http.allowed_methods, json_list(f.allowed_methods, "--allowed-methods"));
  QUIRE_ASSIGN(f.http.allowed_headers, json_list(f.allowed_headers, "--allowed-headers"));
  QUIRE_ASSIGN(f.http.max_body_bytes, size_flag(f.max_body, "--max-body-bytes"));
  QUIRE_ASSIGN(f.http.max_header_bytes, size_flag(f.max_header, "--max-header-bytes"));
  QUIRE_ASSIGN(f.http.max_held_body_bytes, size_flag(f.max_held_body, "--max-held-body-bytes"));
  QUIRE_ASSIGN(const size_t request_bytes, size_flag(f.max_request, "--max-request-bytes"));
  f.async.max_request_bytes = static_cast<int64_t>(request_bytes);
  QUIRE_ASSIGN(f.http.max_write_buffer_bytes, size_flag(f.max_write_buffer, "--max-write-buffer-bytes"));
  if (!f.reserve_full_isl) {
    return invalid_argument(
        "--no-scheduler-reserve-full-isl is not supported: a prompt is admitted only if the KV cache has room for all "
        "of it");
  }
  if (!f.auto_tool_choice) {
    return invalid_argument(
        "--no-enable-auto-tool-choice is not supported: requests decide with tool_choice; --tool-call-parser none "
        "refuses tools that may be called");
  }
  // The names are checked before the model is loaded; its chat template is needed for auto.
  QUIRE_TRY(markup::choose_dialect(f.tool_parser, f.reasoning_parser, ""));
  if (!f.load_tracking) {
    return invalid_argument("--no-enable-server-load-tracking is not supported: requests are always counted for /load");
  }
  f.http.api_keys = f.api_keys;
  if (f.http.api_keys.empty()) {
    if (const auto key = env("VLLM_API_KEY")) f.http.api_keys.push_back(*key);
  }
  for (const std::string& key : f.http.api_keys) {
    if (key.empty()) return invalid_argument("--api-key must not be empty");
  }
  if (!f.api_key_file.empty()) {
    QUIRE_ASSIGN(f.service.keys, api::read_key_file(f.api_key_file));
    for (const api::ApiKey& key : f.service.keys) f.http.named_keys.push_back({key.name, key.key});
  }
  if (!f.lora_modules.empty() && !f.options.enable_lora) {
    return invalid_argument("--lora-modules needs --enable-lora");
  }
  for (const char* name : {"VLLM_ALLOW_RUNTIME_LORA_UPDATING", "QUIRE_ALLOW_RUNTIME_LORA_UPDATING"}) {
    const std::string value = env(name).value_or("0");
    if (value == "1" || value == "true" || value == "True") f.service.runtime_lora_updating = f.options.enable_lora;
  }
  const bool has_keys = !f.http.api_keys.empty() || !f.http.named_keys.empty();
  if (has_keys) f.service.enable_reset_prefix_cache = true;
  // Whoever reaches an open server may not read what others wrote.
  const std::string& host = f.http.host;
  const bool local = !f.http.uds.empty() || host == "localhost" || host == "::1" || host.starts_with("127.");
  f.service.page_shows_tokens = has_keys || local;
  if (!f.record_requests.empty()) {
    QUIRE_ASSIGN(f.service.recorder, api::Recorder::open(f.record_requests));
  }
  QUIRE_ASSIGN(f.kv_events_config, telemetry::parse_kv_events_config(f.kv_events));
  if (!f.traces_endpoint.empty()) {
    QUIRE_ASSIGN(f.trace_options, telemetry::trace_options(f.traces_endpoint, QUIRE_VERSION));
  }
  f.http.access_log = !f.disable_access_log;
  f.http.access_log_excluded_paths = f.quiet_endpoints;
  f.async.log_stats_every_s = f.disable_log_stats ? 0 : 10;
  f.service.content_format = f.content_format == "string"   ? text::ContentFormat::kString
                             : f.content_format == "openai" ? text::ContentFormat::kOpenAi
                                                            : text::ContentFormat::kAuto;
  if (!f.default_kwargs.empty()) {
    auto parsed = json::parse(f.default_kwargs);
    if (!parsed.ok() || !parsed->is_object()) {
      return invalid_argument({"--default-chat-template-kwargs must be a JSON object, got '", f.default_kwargs, "'"});
    }
    f.service.default_chat_template_kwargs = std::move(*parsed);
  }
  return {};
}

}  // namespace quire::cli
