// SPDX-License-Identifier: Apache-2.0
// One of several processes that mpirun started: how it joins the others, and what those that follow rank 0 do.
#pragma once

#include <memory>

#include "cli/serve_flags.h"
#include "distributed/group.h"

namespace quire::cli {

void add_rank_flags(CLI::App& app, RankFlags& flags);

// Joins the other processes, and says so in the options, if there are any: under mpirun, unless the flags ask for one
// rank. Null: the ranks, if there are several, are threads of this process. The Error names the flag that does not fit
// to what mpirun started. The group must outlive every model.
Result<std::unique_ptr<distributed::Group>> join_ranks(const RankFlags& flags, llm::Options& options);

// Waits until the model's files are on every host, so that the ranks of one host do not download them at the same time.
// Returns where they are.
Result<std::filesystem::path> resolve_on_every_host(const std::string& argument, const llm::Options& options);

// Every rank but the first: after `resolve` has found the model's files, loads its share of the model and follows until
// rank 0 ends. Returns the exit code.
int follow_rank_0(llm::Options& options, const std::function<Status()>& resolve);
int follow_server(ServeFlags& flags);

}  // namespace quire::cli
