// SPDX-License-Identifier: Apache-2.0
// A group of threads in one process: ranks read each other's memory between two barriers.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "distributed/group.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quire::distributed {
namespace {

// Gathers of a decode step are some tens of microseconds apart: a rank that sleeps in each of them would wake up too
// late. A rank that waits longer than this sleeps, so that an idle server uses no CPU.
constexpr auto kSpin = std::chrono::microseconds(200);
constexpr int kSpinsBetweenClockReads = 64;

void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}

// Waits until done(value), spinning first and then asleep. Whoever makes it true notifies. On fewer CPUs than ranks
// (`spins` is false), a spinning rank would keep the CPU from the one that it waits for, so it hands it on instead.
template <typename Done>
void wait_until(const std::atomic<uint32_t>& atomic, bool spins, const Done& done) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < (spins ? kSpinsBetweenClockReads : 1); ++i) {
      if (done(atomic.load(std::memory_order_acquire))) return;
      pause_cpu();
    }
    if (!spins) std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < deadline);
  for (;;) {
    const uint32_t value = atomic.load(std::memory_order_acquire);
    if (done(value)) return;
    atomic.wait(value, std::memory_order_acquire);
  }
}

// The messages from one rank to another that were not received yet.
struct Mailbox {
  std::mutex mutex;
  std::deque<std::vector<std::byte>> messages;  // guarded by mutex
  std::atomic<uint32_t> sent{0};
};

// What the ranks of a group share. Atomics that ranks wait for have cache lines of their own.
struct Meeting {
  Meeting(int size, double limit_seconds)
      : size(size),
        limit_seconds(limit_seconds),
        spins(static_cast<unsigned>(size) <= std::max(1u, std::thread::hardware_concurrency())),
        posted(static_cast<size_t>(size)),
        mail(static_cast<size_t>(size * size)) {}

  void barrier() {
    const uint32_t round = rounds.load(std::memory_order_relaxed);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(size)) {
      arrived.store(0, std::memory_order_relaxed);
      rounds.store(round + 1, std::memory_order_release);
      rounds.notify_all();
      return;
    }
    wait_until(rounds, spins, [&](uint32_t now) { return now != round; });
  }

  const int size;
  const double limit_seconds;
  const bool spins;
  alignas(128) std::atomic<uint32_t> arrived{0};
  alignas(128) std::atomic<uint32_t> rounds{0};
  alignas(128) std::vector<Rows> posted;  // [size]; written before a barrier, read after it
  std::vector<Mailbox> mail;              // [size, size]: from, to
  std::mutex mutex;
  std::map<std::pair<int, int>, std::shared_ptr<Meeting>> parts;  // of split(), guarded by mutex
  std::map<int, Group::Report> reports;                           // by rank, guarded by mutex
};

class ThreadGroup final : public Group {
 public:
  ThreadGroup(std::shared_ptr<Meeting> meeting, int rank) : meeting_(std::move(meeting)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return meeting_->size; }
  std::string describe() const override { return std::to_string(size()) + " threads"; }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    QUIRE_CHECK(all.size() == mine.size() * static_cast<size_t>(size()));
    gather_columns(one_row(mine), one_row(all), kEvery);
  }
  void broadcast(std::span<std::byte> bytes, int root) override {
    post(one_row(bytes));
    const Rows& from = meeting_->posted[static_cast<size_t>(root)];
    QUIRE_CHECK(from.bytes == std::ssize(bytes), "ranks broadcast different sizes");
    if (rank_ != root && !bytes.empty()) std::memcpy(bytes.data(), from.data, bytes.size());
    barrier();
  }
  void send(std::span<const std::byte> bytes, int to) override {
    Mailbox& box = mailbox(rank_, to);
    {
      const std::lock_guard lock(box.mutex);
      box.messages.emplace_back(bytes.begin(), bytes.end());
    }
    box.sent.fetch_add(1, std::memory_order_release);
    box.sent.notify_one();
  }
  void receive(std::span<std::byte> bytes, int from) override {
    Mailbox& box = mailbox(from, rank_);
    wait_until(box.sent, meeting_->spins, [](uint32_t sent) { return sent > 0; });
    std::vector<std::byte> message;
    {
      const std::lock_guard lock(box.mutex);
      message = std::move(box.messages.front());
      box.messages.pop_front();
    }
    box.sent.fetch_sub(1, std::memory_order_relaxed);
    QUIRE_CHECK(message.size() == bytes.size(), "ranks send and receive different sizes");
    if (!bytes.empty()) std::memcpy(bytes.data(), message.data(), bytes.size());
  }
  void barrier() override { meeting_->barrier(); }
  double limit_seconds() const override { return meeting_->limit_seconds; }
  void end_stalled() override {
    end_process("rank " + std::to_string(rank_) + " has a GPU that did not finish a step within " +
                std::to_string(static_cast<int64_t>(limit_seconds())) + " s; the other ranks cannot go on without it");
  }
  std::unique_ptr<Group> split(int first, int count) override {
    QUIRE_CHECK(first <= rank_ && rank_ < first + count && first + count <= size());
    const std::lock_guard lock(meeting_->mutex);
    std::shared_ptr<Meeting>& part = meeting_->parts[{first, count}];
    if (part == nullptr) part = std::make_shared<Meeting>(count, meeting_->limit_seconds);
    return std::make_unique<ThreadGroup>(part, rank_ - first);
  }

  void set_report(Report report) override {
    const std::lock_guard lock(meeting_->mutex);
    meeting_->reports[rank_] = std::move(report);
  }
  std::vector<metrics::RankTotals> reports() const override {
    std::vector<metrics::RankTotals> out(static_cast<size_t>(size()));
    const std::lock_guard lock(meeting_->mutex);
    for (const auto& [rank, report] : meeting_->reports) out[static_cast<size_t>(rank)] = report();
    return out;
  }

  // Straight from the memory of the others.
  void gather_columns(const Rows& mine, const Rows& all, int root) override {
    post(mine);
    for (int r = 0; r < size() && (root == kEvery || root == rank_); ++r) {
      const Rows& from = meeting_->posted[static_cast<size_t>(r)];
      QUIRE_CHECK(from.count == mine.count && from.bytes == mine.bytes && all.count == mine.count,
                  "ranks gather different sizes");
      const int64_t first = r * mine.bytes;
      const int64_t bytes = std::min(mine.bytes, all.bytes - first);
      if (bytes <= 0 || all.data + first == from.data) continue;
      for (int64_t i = 0; i < mine.count; ++i) std::memcpy(all.row(i) + first, from.row(i), static_cast<size_t>(bytes));
    }
    barrier();
  }
  void gather_rows(const Rows& rows, std::span<const int32_t> owner) override {
    QUIRE_CHECK(std::ssize(owner) == rows.count);
    post(rows);
    for (int64_t i = 0; i < rows.count; ++i) {
      const int32_t from = owner[static_cast<size_t>(i)];
      if (from == rank_) continue;
      std::memcpy(rows.row(i), meeting_->posted[static_cast<size_t>(from)].row(i), static_cast<size_t>(rows.bytes));
    }
    barrier();
  }

 private:
  static Rows one_row(std::span<const std::byte> bytes) {
    return {const_cast<std::byte*>(bytes.data()), 1, std::ssize(bytes), std::ssize(bytes)};
  }
  void post(const Rows& rows) {
    meeting_->posted[static_cast<size_t>(rank_)] = rows;
    barrier();
  }
  Mailbox& mailbox(int from, int to) { return meeting_->mail[static_cast<size_t>(from * meeting_->size + to)]; }

  const std::shared_ptr<Meeting> meeting_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Group>> make_thread_group(int size, double limit_seconds) {
  QUIRE_CHECK(size > 0);
  const auto meeting = std::make_shared<Meeting>(size, limit_seconds);
  std::vector<std::unique_ptr<Group>> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(std::make_unique<ThreadGroup>(meeting, r));
  return ranks;
}

}  // namespace quire::distributed
