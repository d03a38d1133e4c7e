// SPDX-License-Identifier: Apache-2.0
// The flags of quire serve beyond those of the model: addresses, authentication, limits, API and logs.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/service.h"
#include "cli/command_ranks.h"
#include "cli/unused_flags.h"
#include "http/server.h"
#include "llm/async_llm.h"
#include "llm/options.h"
#include "telemetry/kv_event_publisher.h"
#include "telemetry/trace_exporter.h"

namespace quire::cli {

struct ServeFlags {
  llm::Options options;
  std::vector<std::string> models;  // MODEL arguments
  std::string models_dir, models_memory;
  int64_t max_loaded_models = 3, model_queue_size = 512;
  double model_keep_alive_s = 300, model_queue_timeout_s = 300;
  http::ServerOptions http;
  api::ServiceOptions service;
  llm::AsyncOptions async;

  std::vector<std::string> served_names, api_keys, quiet_endpoints;
  std::vector<std::string> lora_modules;  // NAME=PATH, or JSON
  std::string api_key_file;
  std::string allowed_origins = "[]", allowed_methods = "[\"*\"]", allowed_headers = "[\"*\"]";
  std::string content_format = "auto", default_kwargs, custom_buckets, fingerprint_mode = "full";
  std::string max_body = "32MiB", max_header = "64KiB", max_write_buffer = "4MiB", max_request = "128MiB",
              max_held_body = "128MiB", uvicorn_log_level, record_requests;
  std::string kv_events, traces_endpoint;
  std::vector<const UnusedFlag*> ignored;  // those given that change nothing
  RankFlags ranks;
  telemetry::KvEventsConfig kv_events_config;
  std::optional<telemetry::TraceOptions> trace_options;  // none: no traces
  // Made by serve() before a model is loaded, and destroyed after all models; null or none if they are not wanted.
  std::vector<std::unique_ptr<telemetry::KvEventPublisher>> kv_publishers;  // one for each engine
  std::unique_ptr<telemetry::TraceExporter> traces;
  double health_stall_s = 60;
  bool disable_log_stats = false;
  bool disable_access_log = false;
  std::string tool_parser = "auto", reasoning_parser = "auto";
  bool auto_tool_choice = true;
  bool load_tracking = true;
  bool reserve_full_isl = true;
};

void add_serve_flags(CLI::App& app, ServeFlags& flags);
// Parses lists, objects and sizes once all flags are known. The Error names the flag.
Status settle_serve_flags(const CLI::App& app, ServeFlags& flags);

}  // namespace quire::cli
