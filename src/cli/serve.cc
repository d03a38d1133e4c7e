// SPDX-License-Identifier: Apache-2.0
// quire serve: starts, runs and stops the server.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <iostream>
#include <thread>

#include "api/documents.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/strings.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/hub/model_cache.h"
#include "cli/port_check.h"
#include "cli/serve_flags.h"
#include "cli/serve_models.h"
#include "cli/serve_ranks.h"
#include "distributed/mpi_group.h"

namespace quire::cli {
namespace {

// Seconds after --shutdown-timeout within which the process ends in any case; the last one is for the line in the log.
constexpr double kStopMargin = 5;
constexpr double kLastLine = 1;

int g_stop_pipe[2] = {-1, -1};
void on_stop(int signal) {
  const int saved = errno;
  const char byte = static_cast<char>(signal);
  [[maybe_unused]] const ssize_t written = ::write(g_stop_pipe[1], &byte, 1);
  errno = saved;
}

void catch_stop_signals() {
  QUIRE_CHECK(::pipe(g_stop_pipe) == 0);
  for (const int end : g_stop_pipe) ::fcntl(end, F_SETFD, FD_CLOEXEC);
  struct sigaction action {};
  action.sa_handler = on_stop;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

// Waits for the signal to stop.
int wait_for_stop() {
  char signal = 0;
  while (::read(g_stop_pipe[0], &signal, 1) < 0 && errno == EINTR) {
  }
  return signal;
}

// From now on a second signal ends the process at once. So does the time limit, if something (a worker's job, a step of
// the engine) is still running after all requests have ended. Nothing here waits for the log, which blocks if nobody
// reads the pipe that standard error may be.
void end_in_time(double shutdown_timeout_s) {
  const double limit = shutdown_timeout_s + kStopMargin;
  std::thread([limit] {
    pollfd entry{g_stop_pipe[0], POLLIN, 0};
    if (::poll(&entry, 1, static_cast<int>((limit - kLastLine) * 1000)) == 1) std::_Exit(kExitInterrupted);
    std::thread([limit] {
      log_warn("Exiting after {:g} s although work is still running", limit - kLastLine);
      flush_log();
      std::_Exit(0);
    }).detach();
    std::this_thread::sleep_for(std::chrono::duration<double>(kLastLine));
    std::_Exit(0);
  }).detach();
}

int run_server(http::Server& server, const ServeFlags& flags, api::Host& host) {
  catch_stop_signals();
  server.run();
  std::vector<std::string> names;
  for (const api::HostedModel& model : host.models()) names.push_back(model.names[0]);
  log_info("Serving {} at {}", joined(names), server.url());
  if (flags.http.uds.empty() && names.size() > 1) {  // what they do is known when they are loaded
    log_info("Try: curl {}/v1/models   (a request's model is loaded when it is named; API at {}/docs, Ctrl-C stops)",
             server.url(), server.url());
  } else if (flags.http.uds.empty()) {
    bool generates = true;
    host.each_loaded([&](size_t, const api::Service& service) { generates = service.model().generates(); });
    const std::string body =
        generates ? R"("messages": [{"role": "user", "content": "Hello!"}])" : R"("input": "Hello!")";
    log_info("Try: curl {}/v1/{} -H 'Content-Type: application/json' -d '{{{}}}'   (API at {}/docs, Ctrl-C stops)",
             server.url(), generates ? "chat/completions" : "embeddings", body, server.url());
  }
  const int signal = wait_for_stop();
  end_in_time(flags.http.shutdown_timeout_s);
  log_info("{}: finishing {} requests (at most {:g} s) and refusing new ones; send it again to exit at once",
           signal == SIGTERM ? "SIGTERM" : "Ctrl-C", server.num_in_flight(), flags.http.shutdown_timeout_s);
  host.live().stop();  // its streams would last for the whole time limit
  server.stop();
  return 0;
}

// Listens, and serves until a signal.
int run_host(api::Host& host, metrics::ServerMetrics& metrics, ServeFlags& flags) {
  flags.http.on_access = [&metrics](const http::AccessRecord& record) {
    metrics.on_http(api::route_label(record.path), record.method, record.status, record.seconds, record.request_bytes,
                    record.response_bytes);
  };
  if (auto added = add_lora_modules(flags, host); !added.ok()) return report(added.error());
  flags.http.needs_key = api::needs_key;
  watch_telemetry(flags, metrics);
  auto server = http::Server::listen(flags.http, host.handler());
  if (!server.ok()) return report(server.error());
  return run_server(**server, flags, host);
}

int serve_several(ServeFlags& flags, const metrics::HistogramBuckets& custom_buckets) {
  auto models = SeveralModels::make(flags, custom_buckets);
  if (!models.ok()) return report(models.error());
  return run_host((*models)->host(), (*models)->metrics(), flags);
}

Status start_telemetry(ServeFlags& flags) {
  if (flags.kv_events_config.enabled) {
    std::vector<std::string> topics = {flags.kv_events_config.topic};
    if (has_several_models(flags)) {
      QUIRE_ASSIGN(const std::vector<ServedModel> models, list_served_models(flags));
      topics.clear();
      for (const ServedModel& model : models) {
        topics.push_back(telemetry::topic_of_model(flags.kv_events_config, model.name));
      }
    }
    for (int64_t e = 0; e < flags.options.engines; ++e) {
      QUIRE_ASSIGN(const telemetry::KvEventsConfig config, telemetry::config_of_engine(flags.kv_events_config, e));
      QUIRE_ASSIGN(std::unique_ptr<telemetry::KvEventPublisher> publisher, telemetry::KvEventPublisher::start(config));
      for (const std::string& topic : topics) {
        flags.service.kv_event_sources.push_back(
            {e, publisher->public_endpoint(), publisher->public_replay_endpoint(), topic});
      }
      flags.kv_publishers.push_back(std::move(publisher));
    }
  }
  if (flags.trace_options) flags.traces = std::make_unique<telemetry::TraceExporter>(*flags.trace_options);
  return {};
}

int serve_one(ServeFlags& flags, metrics::HistogramBuckets custom_buckets) {
  auto [name, argument] = split_argument(flags.models.empty() ? "" : flags.models[0]);
  if (!name.empty() && flags.served_names.empty()) flags.served_names = {name};
  flags.options.model = argument;
  if (flags.options.load_format != "dummy") {
    auto path = resolve_on_every_host(argument, flags.options);
    if (!path.ok()) return report(path.error());
    flags.options.model = *path;
    const auto pull = [](const std::string& draft) { return resolve_or_pull(draft); };
    if (auto status = resolve_draft_model(flags.options, pull); !status.ok()) return report(status.error());
  }
  auto loaded = load_llm(flags.options);
  if (!loaded.ok()) return report(loaded.error());
  std::vector<std::string> names = flags.served_names;
  if (names.empty()) names.push_back(argument.empty() ? std::string(kDefaultModel) : argument);
  auto service = service_options(flags, **loaded, flags.options, std::move(names), argument);
  if (!service.ok()) return report(service.error());
  metrics::ServerMetricsOptions series;
  series.model_name = service->served_names[0];
  series.max_model_len = (*loaded)->max_model_len();
  series.cache_config = cache_config(**loaded, flags.options);
  series.num_speculative_tokens = (*loaded)->engine().options().speculation.num_tokens;
  series.max_loras = flags.options.enable_lora ? flags.options.max_loras : 0;
  series.offload = (*loaded)->engine().offload() != nullptr;
  series.ranks = flags.options.ranks();
  series.custom_buckets = std::move(custom_buckets);
  const EngineMetrics metrics = make_engine_metrics(std::move(series), (*loaded)->num_engines());
  flags.async.on_trace = trace_sink(flags, service->served_names[0]);
  std::vector<llm::AsyncOptions> async = async_options(flags.async, metrics);
  publish_events(flags, **loaded, flags.kv_events_config.topic, async);
  api::Host host(std::make_unique<llm::ParallelLlm>(std::move(*loaded), std::move(async)), *metrics[0],
                 std::move(*service));
  return run_host(host, *metrics[0], flags);
}

int serve(const CLI::App& app, ServeFlags& flags) {
  mmap_large_blocks();
  const auto launched = distributed::launched_rank();
  if (launched && launched->rank > 0) flags.record_requests.clear();  // rank 0 records for all
  auto settled = settle_serve_flags(app, flags);
  if (!settled.ok()) return report(settled.error());
  if (!flags.uvicorn_log_level.empty()) init_logging(flags.uvicorn_log_level.c_str());
  if (!launched || launched->rank == 0) {
    for (const UnusedFlag* flag : flags.ignored) warn_unused(flag->name, flag->why);
  }
  metrics::HistogramBuckets custom_buckets;
  if (!flags.custom_buckets.empty()) {
    auto buckets = metrics::parse_histogram_buckets(flags.custom_buckets);
    if (!buckets.ok()) return report(buckets.error());
    custom_buckets = std::move(*buckets);
  }
  if (launched && launched->size > 1 && has_several_models(flags)) {
    return report(invalid_argument("ranks as processes serve one model, but this server has several"));
  }
  auto ranks = join_ranks(flags.ranks, flags.options);
  if (!ranks.ok()) return report(ranks.error());
  if (*ranks != nullptr && (*ranks)->rank() > 0) return follow_server(flags);
  if (*ranks != nullptr) flags.service.trouble = [group = ranks->get()] { return distributed::trouble_of(*group); };
  if (auto free = check_address(flags.http); !free.ok()) return report(free.error());
  if (const Status started = start_telemetry(flags); !started.ok()) return report(started.error());
  const int code =
      has_several_models(flags) ? serve_several(flags, custom_buckets) : serve_one(flags, std::move(custom_buckets));
  flags.traces.reset();  // sends what waits
  flags.kv_publishers.clear();
  if (code == 0) log_info("Stopped");
  return code;
}

}  // namespace

void add_serve(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* command = app.add_subcommand("serve", "Serve models over HTTP with OpenAI's API, like vLLM");
  add_serve_flags(*command, *flags);
  command->footer(
      "Flags have the names of vLLM's; a flag of vLLM's that does not apply here is an error with a reason.");
  command->callback([command, flags, &exit_code] { exit_code = serve(*command, *flags); });
}

void add_schema(CLI::App& app, int& exit_code) {
  auto form = std::make_shared<std::string>("openapi");
  CLI::App* command = app.add_subcommand("schema", "Print the server's API");
  command->add_option("FORM", *form, "openapi (as /openapi.json) or markdown (as docs/api.md)")
      ->check(CLI::IsMember({"openapi", "markdown"}))
      ->capture_default_str();
  command->callback([form, &exit_code] {
    const std::string text = *form == "markdown" ? api::api_markdown() : api::openapi_json(QUIRE_VERSION) + "\n";
    std::cout << text;
    exit_code = 0;  // run_program() sees whether it was written
  });
}

}  // namespace quire::cli
