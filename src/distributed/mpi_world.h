// SPDX-License-Identifier: Apache-2.0
// MpiWorld: all processes that mpirun started, and messages between any two of them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "distributed/mpi_group.h"
#include "distributed/mpi_library.h"
#include "distributed/rank_watch.h"

namespace quire::distributed {

// MPI, initialised; one per process. Messages are sent and received without blocking and polled, so that the loss of a
// rank or the end of the time limit is noticed whatever this process waits for. Either ends the process with a sentence
// that names the rank. Any thread may call; MPI itself is called by one at a time.
class MpiWorld {
 public:
  static Result<std::shared_ptr<MpiWorld>> join(const MpiOptions& options);
  ~MpiWorld();  // in order: waits until every rank has come to its end
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& version() const { return library_.version; }
  std::string trouble() const;  // trouble_of()
  RankWatch& watch() const { return *watch_; }
  // What rank 0 learns of this rank is the sum of what such functions say. Any thread may call them.
  void add_report(Group::Report report);
  double limit_seconds() const { return options_.timeout_seconds; }
  [[noreturn]] void end_stalled();  // see Group

  // A message under way.
  struct Transfer {
    void* request = nullptr;
    int peer = -1;
    bool done = false;
  };
  using Transfers = std::vector<Transfer>;
  // Begin to send or receive; the bytes must stay until wait() has returned. Messages of a pair with one tag arrive in
  // order, and have the same size at both ends.
  void send(Transfers& under_way, std::span<const std::byte> bytes, int to, int tag);
  void receive(Transfers& under_way, std::span<std::byte> bytes, int from, int tag);
  // `limited`: a rank that does not do its part within the limit is lost.
  void wait(Transfers& under_way, bool limited);
  // Sends a copy, while this rank goes on.
  void mail(std::span<const std::byte> bytes, int to, int tag);

 private:
  using Clock = std::chrono::steady_clock;
  struct RankName {  // what a rank calls itself
    char host[64] = {};
    int64_t pid = 0;
  };
  struct Mail {
    std::vector<std::byte> bytes;
    Transfers transfers;
    Clock::time_point sent = Clock::now();
  };

  MpiWorld(MpiLibrary library, const MpiOptions& options) : library_(std::move(library)), options_(options) {}
  Status init();
  void exchange_names();
  Status begin_watch();
  std::string name(int rank) const;
  [[noreturn]] void lost(int rank, Loss why) const;
  void check(int code) const;
  void check_time(int rank, Clock::duration waited);
  int poll(Transfers& under_way);
  void move_outbox();
  bool outbox_empty();

  const MpiLibrary library_;
  const MpiOptions options_;
  int rank_ = 0;
  int size_ = 1;
  double silence_ = 0;
  std::vector<RankName> names_;  // [size]

  std::mutex reports_mutex_;
  std::vector<Group::Report> reports_;  // guarded by reports_mutex_
  std::mutex mpi_;                      // MPI is called by one thread at a time
  std::mutex outbox_mutex_;
  std::condition_variable outbox_changed_;
  std::list<Mail> outbox_;    // guarded by outbox_mutex_
  bool outbox_stop_ = false;  // guarded by outbox_mutex_
  std::thread outbox_thread_;
  std::unique_ptr<RankWatch> watch_;
};

}  // namespace quire::distributed
