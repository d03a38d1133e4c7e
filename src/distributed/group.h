// SPDX-License-Identifier: Apache-2.0
// Group: the ranks that compute one model together, and the ways in which they exchange bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "metrics/rank_totals.h"

namespace quire::distributed {

// Rows of bytes, `stride` bytes from one to the next. Without data it has only its size.
struct Rows {
  std::byte* data = nullptr;
  int64_t count = 0;
  int64_t bytes = 0;  // of a row
  int64_t stride = 0;

  std::byte* row(int64_t i) const { return data + i * stride; }
};

// One rank's end of a group. Every rank makes the same calls in the same order, each from one thread. A call returns
// when this rank's bytes may be reused and its results are there.
//
// A call does not fail: without one of its ranks a group cannot finish a step. When a rank is lost (it ended, or did
// not answer within the limit), a sentence that names it is logged, and the process ends with exit code 1.
class Group {
 public:
  virtual ~Group() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string describe() const = 0;  // "4 threads", "4 processes (Open MPI 4.1.4)"

  // Rank r's `mine` arrives at `all` + r * mine.size() on every rank. REQUIRES: all.size() == size() * mine.size(), the
  // same on every rank. `mine` may be its own place in `all`.
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  // The bytes of rank `root` on every rank.
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  // From one rank to another. REQUIRES: both pass the same size; the messages of a pair arrive in order.
  virtual void send(std::span<const std::byte> bytes, int to) = 0;
  virtual void receive(std::span<std::byte> bytes, int from) = 0;
  // Returns when every rank has called it.
  virtual void barrier() = 0;
  // A group of the ranks [first, first + count) of this one, which all call it; rank first + r is rank r there. It must
  // not outlive this group.
  virtual std::unique_ptr<Group> split(int first, int count) = 0;

  // The rows of all ranks side by side: rank r's `mine` becomes the bytes [r * mine.bytes, (r + 1) * mine.bytes) of
  // each row of `all`, as far as the row is that long, on every rank or on `root` alone. REQUIRES: as many rows of the
  // same size on every rank. `mine` may be its own place in `all`.
  virtual void gather_columns(const Rows& mine, const Rows& all, int root = kEvery);
  // Row i of every rank's `rows` becomes that of rank owner[i]. REQUIRES: the same owners and sizes on every rank.
  virtual void gather_rows(const Rows& rows, std::span<const int32_t> owner);

  static constexpr int kEvery = -1;

  // How long the others may wait for a rank's part of a step.
  virtual double limit_seconds() const = 0;
  // Ends this process, because its device did not finish a step within the limit; the others learn it. Any thread.
  // REQUIRES: a group that is no part of another.
  [[noreturn]] virtual void end_stalled() = 0;

  // From now on every rank may ask what this one has done; any thread may call `report`. It costs no call of the group.
  using Report = std::function<metrics::RankTotals()>;
  virtual void set_report(Report report) = 0;
  // What each rank has reported, at most some moments ago; nothing of a rank that set no report. Any thread.
  // REQUIRES: rank 0 of a group that is no part of another.
  virtual std::vector<metrics::RankTotals> reports() const = 0;

 private:
  std::vector<std::byte> staged_, gathered_;  // of gather_columns() and gather_rows() in terms of the calls above
};

// A group of threads of one process: element r belongs to rank r.
std::vector<std::unique_ptr<Group>> make_thread_group(int size, double limit_seconds = 300);

// Logs the sentence and ends the process with exit code 1; of several threads that call it, one does.
[[noreturn]] void end_process(const std::string& sentence);

}  // namespace quire::distributed
