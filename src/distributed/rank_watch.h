// SPDX-License-Identifier: Apache-2.0
// RankWatch: notices that a process of a group ended or does not answer, also while nobody computes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "metrics/rank_totals.h"

namespace quire::distributed {

// Where rank 0 listens for the others; sent to them by other means. Plain bytes of a fixed size.
struct WatchAddress {
  static constexpr size_t kMost = 24;
  uint16_t port = 0;
  uint16_t count = 0;
  char token[16] = {};             // tells a rank of this group from whoever else connects
  char addresses[kMost][48] = {};  // rank 0's, as text
};

// How a rank was lost.
enum class Loss : uint8_t {
  kEnded = 1,          // its process ended: its connection was closed
  kSilent = 2,         // its process or its host does not answer
  kLeft = 3,           // it left the group while others still needed it
  kStalled = 4,        // it answers, but others waited for its part for longer than the limit
  kDeviceStalled = 5,  // it says that its GPU did not finish a step within the limit
};

// One process's end of a star of TCP connections around rank 0. A connection that is closed says at once that the
// process at its other end has gone; small messages four times a second tell a living process from one that is stopped
// or cut off. Rank 0 tells every rank which one was lost. A thread of its own does all of it.
class RankWatch {
 public:
  using OnLost = std::function<void(int rank, Loss why)>;  // called on the watch's thread, once; must not return

  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  // Rank 0: listens; `address` is for the others, who connect before `start` returns.
  static Result<std::unique_ptr<RankWatch>> listen(int size, WatchAddress& address);
  // The others. `limit`: how long rank 0 may take to answer.
  static Result<std::unique_ptr<RankWatch>> connect(int rank, int size, const WatchAddress& address,
                                                    std::chrono::duration<double> limit);
  // Waits for the others (on rank 0, for at most `limit`) and begins to watch; a rank that says nothing for `silence`
  // is lost.
  Status start(std::chrono::duration<double> limit, std::chrono::duration<double> silence, OnLost on_lost);

  // The peer from which nothing was heard for the longest time; none after they left. Any thread may ask.
  struct Quiet {
    int rank = -1;
    double seconds = 0;
  };
  std::optional<Quiet> quiet() const;

  // What this rank tells rank 0 with its signs of life; the watch's thread calls it.
  void set_report(std::function<metrics::RankTotals()> report);
  // Rank 0: what each rank has told last. Any thread may ask.
  std::vector<metrics::RankTotals> reports() const;

  // Says that this rank lost `rank`: the others learn it from rank 0. Returns when they were told.
  void tell_lost(int rank, Loss why);
  // Says that this rank needs the group no more, and waits until every rank has said so. False if one of them ended
  // instead. A rank that goes on without those that left is told after a second, by OnLost.
  bool leave();

 private:
  using Clock = std::chrono::steady_clock;
  struct Message;
  struct Peer {
    int rank = -1;
    int fd = -1;
    Clock::time_point heard{};
  };
  struct Lost {
    int rank = -1;
    Loss why = Loss::kEnded;
  };

  RankWatch(int rank, int size);
  Status accept_all(Clock::time_point deadline);
  void run();
  std::optional<Lost> read_peer(Peer& peer);
  std::optional<Lost> on_message(const Message& message);
  std::optional<Lost> on_closed(Peer& peer);
  std::optional<Lost> judge(Clock::time_point now);
  std::optional<Lost> gone(int rank, Loss why);
  void mark_left(int rank);
  void to_peers(const Message& message, int except = -1);
  void last_words(const Lost& lost);

  const int rank_;
  const int size_;
  char token_[16] = {};
  int listener_ = -1;
  int wake_[2] = {-1, -1};
  Clock::duration silence_{};
  OnLost on_lost_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Peer> peers_;  // rank 0: all others; the others: rank 0
  std::vector<bool> left_;   // [size]; the ranks that need the group no more
  std::function<metrics::RankTotals()> report_;
  std::vector<metrics::RankTotals> reports_;  // [size]; on rank 0
  Clock::time_point first_left_{};
  bool all_left_ = false;
  bool broken_ = false;  // a rank was lost while this one was leaving
  bool stop_ = false;
  std::thread thread_;
};

// "ended", and so on: the end of a sentence that begins with the rank.
std::string describe(Loss why, double seconds);

}  // namespace quire::distributed
