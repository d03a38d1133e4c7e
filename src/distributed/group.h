// SPDX-License-Identifier: Apache-2.0
// Group: the ranks that compute one model together, and the four ways in which they exchange bytes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace quire::distributed {

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
};

// A group of threads of one process: element r belongs to rank r.
std::vector<std::unique_ptr<Group>> make_thread_group(int size);

}  // namespace quire::distributed
