// SPDX-License-Identifier: Apache-2.0
// A command that computes with a model, as one of several processes that mpirun started.
#pragma once

#include <functional>
#include <string>

#include "llm/options.h"

namespace quire::cli {

struct RankFlags {
  std::string executor_backend;  // threads, mpi; "": by how the process was started
  double timeout_s = 300;
};

// What rank 0 tells the others before anything is loaded.
class FirstRank {
 public:
  explicit FirstRank(distributed::Group* group) : group_(group) {}
  bool has_others() const { return group_ != nullptr; }
  // The others load this model, by the name that rank 0 was given. Call it once all else is known to be right.
  void start_others(const std::string& model);
  // If they were not started, the others end with this exit code, too. Returns it.
  int end(int exit_code);

 private:
  void tell(int exit_code, const std::string& model);

  distributed::Group* const group_;
  bool told_ = false;
};

// Joins the ranks, runs `command` on the first of them, and follows on the others. What is read and printed is read and
// printed by the first. Returns the exit code.
int on_all_ranks(const RankFlags& flags, llm::Options& options, const std::function<int(FirstRank&)>& command);

}  // namespace quire::cli
