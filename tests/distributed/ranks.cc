// SPDX-License-Identifier: Apache-2.0
// quire_ranks: what one rank of a group of processes does in a test. Usage: quire_ranks MODE [SECONDS], under mpirun;
// SECONDS is the time limit of the group.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "base/log.h"
#include "distributed/group_contract.h"
#include "distributed/handshake.h"
#include "distributed/mpi_group.h"

namespace {

using namespace quire::distributed;

void say(const Group& group, const char* what) {
  std::printf("rank %d pid %d: %s\n", group.rank(), static_cast<int>(::getpid()), what);
  std::fflush(stdout);
}

[[noreturn]] void sleep_on() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

// All sizes from nothing to some ten thousand bytes.
void rounds(Group& group) {
  for (int round = 0; round < 40; ++round) check_contract(group, round, static_cast<size_t>(round * round * 13));
}

// Ten thousand small gathers, as decode steps make them.
void gathers(Group& group) {
  std::vector<std::byte> mine(4096), all(mine.size() * static_cast<size_t>(group.size()));
  for (int i = 0; i < 10000; ++i) group.all_gather(mine, all);
}

int run(const std::string& mode, Group& group) {
  if (mode == "rounds") {
    rounds(group);
  } else if (mode == "contract") {
    rounds(group);
    check_contract(group, 1, size_t{3} << 20);  // more than Open MPI sends at once
  } else if (mode == "gathers") {
    gathers(group);
  } else if (mode == "busy") {  // until something happens
    for (int round = 0;; ++round) {
      check_contract(group, round, 1000);
      if (round == 0) say(group, "busy");
    }
  } else if (mode == "idle") {  // rank 0 has no work for the others
    say(group, "idle");
    std::byte word{};
    if (group.rank() == 0) sleep_on();
    group.broadcast({&word, 1}, 0);
  } else if (mode == "stall") {  // rank 1 lives, but does not do its part
    say(group, "waits");
    if (group.rank() == 1) sleep_on();
    group.barrier();
  } else if (mode == "leave") {  // rank 0 gives up while the others wait for it
    std::byte word{};
    if (group.rank() != 0) group.broadcast({&word, 1}, 0);
    return 2;
  } else if (mode == "handshake") {
    std::vector<Fact> facts = build_facts();
    facts.push_back({"the ISA level", group.rank() == 1 ? "avx2" : "amx"});
    const quire::Status status = shake_hands(group, facts);
    if (status.ok()) return 3;
    say(group, status.error().message.c_str());
    return 1;
  } else {
    return 64;
  }
  say(group, "done");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  quire::init_logging("info");
  MpiOptions options;
  if (argc > 2) options.timeout_seconds = std::atof(argv[2]);
  auto group = make_mpi_group(options);
  if (!group.ok()) {
    std::fprintf(stderr, "quire_ranks: %s\n", group.error().message.c_str());
    return 1;
  }
  return run(argc > 1 ? argv[1] : "", **group);
}
