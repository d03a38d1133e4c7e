// SPDX-License-Identifier: Apache-2.0
// Joins the ranks of a command, and runs those that follow.
#include "cli/serve_ranks.h"

#include <unistd.h>

#include <csignal>

#include "base/env.h"
#include "base/log.h"
#include "base/log_prefix.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/serve_models.h"
#include "distributed/mpi_group.h"
#include "llm/ranks.h"

namespace quire::cli {
namespace {

// Where ranks live. vLLM's names for what quire has under another one are accepted, the rest is refused.
constexpr const char* kThreads = "threads";
constexpr const char* kMpi = "mpi";

Result<std::string> executor_backend(const std::string& given) {
  if (given == "external_launcher") return std::string(kMpi);
  if (given == "uni") return std::string(kThreads);
  if (given.empty() || given == kThreads || given == kMpi) return given;
  const std::string choices = "; choose threads (of one process) or mpi (processes of Open MPI's mpirun, on any hosts)";
  if (given == "mp" || given == "ray") {
    return invalid_argument(
        {"--distributed-executor-backend ", given, " is not supported: quire starts no processes", choices});
  }
  return invalid_argument({"--distributed-executor-backend is '", given, "'", choices});
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

void add_rank_flags(CLI::App& app, RankFlags& flags) {
  constexpr const char* kGroup = "Ranks";
  app.add_option(
         "--distributed-executor-backend", flags.executor_backend,
         "Where ranks run: threads of this process, or mpi: processes that Open MPI's mpirun started, on one host "
         "or several (default: mpi under mpirun, else threads)")
      ->envname(env_name("--distributed-executor-backend"))
      ->type_name("TEXT:{threads,mpi,external_launcher,uni}")
      ->group(kGroup);
  app.add_option(
         "--distributed-timeout-seconds", flags.timeout_s,
         "Seconds after which a rank that does not do its part of a step is lost, and the others end; one whose "
         "process ended is noticed at once, one that does not answer after at most 30 s")
      ->envname(env_name("--distributed-timeout-seconds"))
      ->capture_default_str()
      ->check(CLI::Range(0.1, 86400.0))
      ->group(kGroup);
}

Result<std::unique_ptr<distributed::Group>> join_ranks(const RankFlags& flags, llm::Options& options) {
  QUIRE_ASSIGN(const std::string backend, executor_backend(flags.executor_backend));
  options.distributed_timeout_s = flags.timeout_s;
  const auto launched = distributed::launched_rank();
  const int64_t wanted = options.ranks();
  const bool several = launched && launched->size > 1;
  if (backend == kMpi && !launched) {
    return invalid_argument(
        {"--distributed-executor-backend mpi: start the ranks with mpirun -n ", wanted, " quire ..."});
  }
  if (backend == kThreads && several) {
    return invalid_argument({"mpirun started ", launched->size,
                             " processes, but --distributed-executor-backend threads keeps all ranks in one"});
  }
  if (!several) return std::unique_ptr<distributed::Group>();
  if (launched->size != wanted) {
    return invalid_argument({"mpirun started ", launched->size,
                             " processes, but --tensor-parallel-size times --pipeline-parallel-size is ", wanted,
                             "; both must be the same",
                             (options.engines > 1 ? ", as each process has its rank of all engines" : "")});
  }
  if (launched->rank > 0) {
    set_log_prefix("[rank " + std::to_string(launched->rank) + " " + host_name() + "]");
    // What rank 0 says need not be said again.
    if (logs(LogLevel::kInfo) && !logs(LogLevel::kDebug)) init_logging("warning");
    // mpirun passes signals on to every rank; rank 0 finishes its requests first, and tells the others when to end.
    std::signal(SIGINT, SIG_IGN);
    std::signal(SIGTERM, SIG_IGN);
  }
  QUIRE_ASSIGN(std::unique_ptr<distributed::Group> group,
               distributed::make_mpi_group({.timeout_seconds = flags.timeout_s}));
  options.processes = {.group = group.get(),
                       .host_rank = launched->host_rank,
                       .host_ranks = launched->host_ranks,
                       .own_cpus = launched->bound || options.threads > 0};
  return group;
}

Result<std::filesystem::path> resolve_on_every_host(const std::string& argument, const llm::Options& options) {
  distributed::Group* group = options.processes.group;
  if (group == nullptr) return resolve_or_pull(argument);
  const int32_t own = options.processes.host_rank;
  std::vector<int32_t> host_ranks(static_cast<size_t>(group->size()));
  group->all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(host_ranks)));
  std::filesystem::path path;
  if (own == 0) {
    QUIRE_ASSIGN(path, resolve_or_pull(argument));
  }
  // A download may take long, so everyone waits for it in a broadcast, which has no time limit.
  for (size_t r = 0; r < host_ranks.size(); ++r) {
    std::byte done{};
    if (host_ranks[r] == 0) group->broadcast({&done, 1}, static_cast<int>(r));
  }
  if (own == 0) return path;
  return resolve_or_pull(argument);
}

int follow_rank_0(llm::Options& options, const std::function<Status()>& resolve) {
  const std::string who = "[rank " + std::to_string(options.processes.group->rank()) + " " + host_name() + "] ";
  Status status = resolve();
  if (status.ok()) status = llm::run_follower(options, *options.processes.group);
  if (status.ok()) return 0;
  const Error& error = status.error();
  return report({error.code, who + error.message, error.field});
}

int follow_server(ServeFlags& flags) {
  llm::Options& options = flags.options;
  const std::string argument = split_argument(flags.models.empty() ? "" : flags.models[0]).model;
  options.model = argument;
  return follow_rank_0(options, [&]() -> Status {
    if (options.load_format == "dummy") return {};
    QUIRE_ASSIGN(options.model, resolve_on_every_host(argument, options));
    return resolve_draft_model(options, [](const std::string& draft) { return resolve_or_pull(draft); });
  });
}

}  // namespace quire::cli
