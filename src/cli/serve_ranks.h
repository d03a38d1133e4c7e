// SPDX-License-Identifier: Apache-2.0
// quire serve as one of several processes that mpirun started: the first serves, the others follow it.
#pragma once

#include <memory>

#include "cli/serve_flags.h"
#include "distributed/group.h"

namespace quire::cli {

void add_rank_flags(CLI::App& app, ServeFlags& flags);

// Joins the other processes, and says so in the options, if there are any: under mpirun, unless the flags ask for one
// rank. Null: the ranks, if there are several, are threads of this process. The Error names the flag that does not fit
// to what mpirun started. The group must outlive every model.
Result<std::unique_ptr<distributed::Group>> join_ranks(ServeFlags& flags);

// Waits until the model's files are on every host, so that the ranks of one host do not download them at the same time.
// Returns where they are.
Result<std::filesystem::path> resolve_on_every_host(const std::string& argument, const llm::Options& options);

// Every rank but the first: loads its share of the model and follows until rank 0 ends. Returns the exit code.
int follow_rank_0(ServeFlags& flags);

}  // namespace quire::cli
