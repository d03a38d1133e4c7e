// SPDX-License-Identifier: Apache-2.0
// A group of processes that Open MPI's mpirun started, on one host or on several.
#pragma once

#include <memory>
#include <optional>

#include "base/result.h"
#include "distributed/group.h"

namespace quire::distributed {

// Which of how many processes this one is.
struct LaunchedRank {
  int rank = 0;
  int size = 1;
  int host_rank = 0;   // among the ranks of this host
  int host_ranks = 1;  // how many it has
  bool bound = false;  // mpirun gave this process CPUs of its own
};
// What mpirun says about this process in its environment; nothing if Open MPI did not start it.
std::optional<LaunchedRank> launched_rank();

struct MpiOptions {
  // How long the others may wait for a rank's part of a call (a broadcast excepted, for which an idle group waits as
  // long as its root answers). A process that ended is noticed at once whatever the limit; one that does not answer,
  // after this time or kMostSilence, whichever is shorter.
  double timeout_seconds = 300;
};
constexpr double kMostSilence = 30;

// Initialises MPI and joins the group of all processes; returns when all have joined. Its end finalises MPI, so a
// process makes one group in its life. The Error is one sentence, for example about a missing library.
Result<std::unique_ptr<Group>> make_mpi_group(const MpiOptions& options);

// Another group of the same processes, for calls that another thread makes at the same time. Every rank calls it, with
// the same number; groups of different numbers have nothing to do with each other. What their ranks report is added up
// in the first group. REQUIRES: a group of make_mpi_group(); 0 < number < 256.
std::unique_ptr<Group> make_twin_group(const Group& group, int number);

// A sentence about a process that has not answered for some seconds, and may soon be lost; "" if all answer, or if the
// ranks are no processes. Any thread may ask.
std::string trouble_of(const Group& group);

}  // namespace quire::distributed
