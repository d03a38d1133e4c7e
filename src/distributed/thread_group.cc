// SPDX-License-Identifier: Apache-2.0
// A group of threads in one process: ranks read each other's memory between two barriers.
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>

#include "base/check.h"
#include "distributed/group.h"

namespace quire::distributed {
namespace {

// What the ranks of a group share.
struct Meeting {
  explicit Meeting(int size) : size(size), posted(static_cast<size_t>(size)), mail(static_cast<size_t>(size * size)) {}

  void barrier() {
    std::unique_lock lock(mutex);
    const uint64_t round = rounds;
    if (++arrived == size) {
      arrived = 0;
      ++rounds;
      lock.unlock();
      changed.notify_all();
      return;
    }
    changed.wait(lock, [&] { return rounds != round; });
  }

  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  int arrived = 0;
  uint64_t rounds = 0;
  std::vector<std::span<const std::byte>> posted;        // [size]; written before a barrier, read after it
  std::vector<std::deque<std::vector<std::byte>>> mail;  // [size, size]: from, to
};

class ThreadGroup final : public Group {
 public:
  ThreadGroup(std::shared_ptr<Meeting> meeting, int rank) : meeting_(std::move(meeting)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return meeting_->size; }
  std::string describe() const override { return std::to_string(size()) + " threads"; }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    QUIRE_CHECK(all.size() == mine.size() * static_cast<size_t>(size()));
    post(mine);
    for (size_t r = 0; r < meeting_->posted.size(); ++r) {
      const std::span<const std::byte> from = meeting_->posted[r];
      std::byte* to = all.data() + r * mine.size();
      QUIRE_CHECK(from.size() == mine.size(), "ranks gather different sizes");
      if (to != from.data() && !from.empty()) std::memcpy(to, from.data(), from.size());
    }
    barrier();
  }
  void broadcast(std::span<std::byte> bytes, int root) override {
    post(bytes);
    const std::span<const std::byte> from = meeting_->posted[static_cast<size_t>(root)];
    QUIRE_CHECK(from.size() == bytes.size(), "ranks broadcast different sizes");
    if (rank_ != root && !from.empty()) std::memcpy(bytes.data(), from.data(), from.size());
    barrier();
  }
  void send(std::span<const std::byte> bytes, int to) override {
    {
      const std::lock_guard lock(meeting_->mutex);
      mailbox(rank_, to).emplace_back(bytes.begin(), bytes.end());
    }
    meeting_->changed.notify_all();
  }
  void receive(std::span<std::byte> bytes, int from) override {
    std::unique_lock lock(meeting_->mutex);
    std::deque<std::vector<std::byte>>& box = mailbox(from, rank_);
    meeting_->changed.wait(lock, [&] { return !box.empty(); });
    QUIRE_CHECK(box.front().size() == bytes.size(), "ranks send and receive different sizes");
    if (!bytes.empty()) std::memcpy(bytes.data(), box.front().data(), bytes.size());
    box.pop_front();
  }
  void barrier() override { meeting_->barrier(); }

 private:
  void post(std::span<const std::byte> bytes) {
    meeting_->posted[static_cast<size_t>(rank_)] = bytes;
    barrier();
  }
  std::deque<std::vector<std::byte>>& mailbox(int from, int to) {
    return meeting_->mail[static_cast<size_t>(from * meeting_->size + to)];
  }

  const std::shared_ptr<Meeting> meeting_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Group>> make_thread_group(int size) {
  QUIRE_CHECK(size > 0);
  const auto meeting = std::make_shared<Meeting>(size);
  std::vector<std::unique_ptr<Group>> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(std::make_unique<ThreadGroup>(meeting, r));
  return ranks;
}

}  // namespace quire::distributed
