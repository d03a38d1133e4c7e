// SPDX-License-Identifier: Apache-2.0
// quire serve: starts, runs and stops the server.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <thread>

#include "api/documents.h"
#include "base/log.h"
#include "base/memory.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/hub/model_cache.h"
#include "cli/port_check.h"
#include "cli/serve_flags.h"

namespace quire::cli {
namespace {

// Seconds after --shutdown-timeout within which the process ends in any case.
constexpr double kStopMargin = 5;

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

std::vector<std::pair<std::string, std::string>> cache_config(const llm::Llm& llm, const llm::Options& options) {
  const engine::EngineOptions& engine = llm.engine().options();
  const auto yes_no = [](bool b) { return std::string(b ? "True" : "False"); };
  return {{"block_size", std::to_string(engine.block_size)},
          {"num_gpu_blocks", std::to_string(engine.num_blocks)},
          {"cache_dtype", options.kv_cache_dtype},
          {"enable_prefix_caching", yes_no(engine.prefix_caching)},
          {"num_gpu_blocks_override",
           options.num_gpu_blocks_override ? std::to_string(*options.num_gpu_blocks_override) : std::string("None")},
          {"kv_cache_size_tokens", std::to_string(llm.memory_plan().num_tokens())},
          {"is_attention_free", "False"}};
}

// Servers with the same fingerprint give the same bits: it covers version, ISA level, model and types.
std::string fingerprint(const std::string& mode, const llm::Llm& llm, const llm::Options& options) {
  if (mode == "none") return "";
  std::string device = llm.engine().backend().describe();  // "cpu (avx512, 2 threads)"
  const size_t open = device.find('(');
  std::string isa = open == std::string::npos ? device : device.substr(open + 1, device.find_first_of(",)") - open - 1);
  std::replace(isa.begin(), isa.end(), ' ', '-');  // "NVIDIA H200"
  uint64_t hash = 1469598103934665603ull;          // FNV-1a
  const auto mix = [&](const std::string& text) {
    for (const char c : text + '\n') hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  };
  mix(QUIRE_VERSION);
  mix(isa);
  mix(llm.name());
  mix(std::to_string(llm.engine().model().weights_bytes()));
  mix(options.dtype);
  mix(options.kv_cache_dtype);
  char hex[9];
  std::snprintf(hex, sizeof hex, "%08x", static_cast<unsigned>(hash ^ (hash >> 32)));
  return mode == "hash" ? hex : "quire-" QUIRE_VERSION "-" + isa + "-" + hex;
}

void name_model(ServeFlags& flags, const llm::Llm& llm, const std::string& argument) {
  api::ServiceOptions& service = flags.service;
  service.model_root = llm.name();
  service.served_names = flags.served_names;
  if (service.served_names.empty())
    service.served_names.push_back(argument.empty() ? std::string(kDefaultModel) : argument);
  service.aliases = {llm.name(), flags.options.model.string(), argument};
  service.version = QUIRE_VERSION;
  service.created = static_cast<int64_t>(std::time(nullptr));
  service.worker_stall_s = flags.health_stall_s;
  // One step of a long prompt may take minutes on a small CPU without being stuck.
  const bool cpu = llm.engine().backend().describe().starts_with("cpu");
  service.engine_stall_s = flags.health_stall_s * (cpu ? 10 : 1);
  service.fingerprint = fingerprint(flags.fingerprint_mode, llm, flags.options);
}

int run_server(http::Server& server, const ServeFlags& flags) {
  catch_stop_signals();
  server.run();
  spdlog::info("Serving {} at {}", flags.service.served_names[0], server.url());
  if (flags.http.uds.empty()) {
    spdlog::info(
        "Try: curl {}/v1/chat/completions -H 'Content-Type: application/json' -d '{{\"messages\": "
        "[{{\"role\": \"user\", \"content\": \"Hello!\"}}]}}'   (API at {}/docs, Ctrl-C stops)",
        server.url(), server.url());
  }
  const int signal = wait_for_stop();
  spdlog::info("{}: finishing {} requests (at most {:g} s) and refusing new ones; send it again to exit at once",
               signal == SIGTERM ? "SIGTERM" : "Ctrl-C", server.num_in_flight(), flags.http.shutdown_timeout_s);
  // A second signal ends the process at once. So does the time limit, if something (a worker's job, a step of the
  // engine) is still running after all requests have ended.
  const double limit = flags.http.shutdown_timeout_s + kStopMargin;
  std::thread([limit] {
    pollfd entry{g_stop_pipe[0], POLLIN, 0};
    if (::poll(&entry, 1, static_cast<int>(limit * 1000)) == 1) std::_Exit(kExitInterrupted);
    spdlog::warn("Exiting after {:g} s although work is still running", limit);
    spdlog::default_logger()->flush();
    std::_Exit(0);
  }).detach();
  server.stop();
  return 0;
}

int serve(const CLI::App& app, ServeFlags& flags) {
  mmap_large_blocks();
  auto settled = settle_serve_flags(app, flags);
  if (!settled.ok()) return report(settled.error());
  if (!flags.uvicorn_log_level.empty()) init_logging(flags.uvicorn_log_level.c_str());
  metrics::ServerMetricsOptions series;
  if (!flags.custom_buckets.empty()) {
    auto buckets = metrics::parse_histogram_buckets(flags.custom_buckets);
    if (!buckets.ok()) return report(buckets.error());
    series.custom_buckets = std::move(*buckets);
  }
  if (auto free = check_address(flags.http); !free.ok()) return report(free.error());
  const std::string argument = flags.model;
  flags.options.model = flags.model;
  auto resolved = resolve_model_argument(flags.options);
  if (!resolved.ok()) return report(resolved.error());
  auto loaded = load_llm(flags.options);
  if (!loaded.ok()) return report(loaded.error());
  name_model(flags, **loaded, argument);
  auto markup = api::choose_markup(**loaded, flags.tool_parser, flags.reasoning_parser);
  if (!markup.ok()) return report(markup.error());
  flags.service.markup = std::move(*markup);
  spdlog::info("Parsers: {}", api::describe(flags.service.markup));

  series.model_name = flags.service.served_names[0];
  series.max_model_len = (*loaded)->max_model_len();
  series.cache_config = cache_config(**loaded, flags.options);
  metrics::ServerMetrics metrics(std::move(series));
  flags.async.metrics = &metrics;
  llm::AsyncLlm llm(std::move(*loaded), flags.async);
  api::Service service(llm, metrics, flags.service);
  flags.http.on_access = [&metrics](const http::AccessRecord& record) {
    metrics.on_http(api::route_label(record.path), record.method, record.status, record.seconds, record.request_bytes,
                    record.response_bytes);
  };
  flags.http.needs_key = api::needs_key;
  auto server = http::Server::listen(flags.http, service.handler());
  if (!server.ok()) return report(server.error());
  const int code = run_server(**server, flags);
  spdlog::info("Stopped");
  return code;
}

}  // namespace

void add_serve(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* command = app.add_subcommand("serve", "Serve a model over HTTP with OpenAI's API, like vLLM");
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
    exit_code = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() ? 0 : kExitFailure;
  });
}

}  // namespace quire::cli
