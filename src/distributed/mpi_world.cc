// SPDX-License-Identifier: Apache-2.0
// Starts and ends MPI, moves messages, and ends the process when a rank is lost.
#include "distributed/mpi_world.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/log.h"

namespace quire::distributed {
namespace {

using namespace std::chrono_literals;

constexpr int kThreadSerialized = 2;            // MPI_THREAD_SERIALIZED: any thread calls, one at a time
constexpr size_t kMostBytes = size_t{1} << 30;  // of one message, whose count is an int; longer ones are cut
constexpr int kStartTag = 0;
constexpr double kFinalizeSeconds = 5;
constexpr double kTroubleSeconds = 2;  // eight signs of life that did not come
constexpr auto kOutboxLimit = 1s;      // at the end, for messages that nobody has received yet
constexpr auto kOutboxPause = 20us;

// Ends the process with a sentence if it still exists after so many seconds: for calls of MPI that may hang.
class TimeLimit {
 public:
  TimeLimit(double seconds, std::string sentence)
      : thread_([this, seconds, sentence = std::move(sentence)] {
          std::unique_lock lock(mutex_);
          const std::chrono::duration<double> limit(seconds);
          if (!changed_.wait_for(lock, limit, [this] { return over_; })) end_process(sentence);
        }) {}
  ~TimeLimit() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

// Between two looks at a message: at first none, so that a gather inside a step costs microseconds; then a processor
// that others may want is given away; in the end an idle rank sleeps.
void pause_between_polls(std::chrono::steady_clock::duration waited) {
  if (waited < 50us) return;
  if (waited < 2ms) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(waited < 100ms ? 20us : 500us);
  }
}

}  // namespace

Result<std::shared_ptr<MpiWorld>> MpiWorld::join(const MpiOptions& options) {
  QUIRE_ASSIGN(MpiLibrary library, MpiLibrary::load());
  if (!launched_rank()) {
    return invalid_argument("ranks as processes are started by Open MPI: mpirun -n RANKS quire serve ...");
  }
  std::shared_ptr<MpiWorld> out(new MpiWorld(std::move(library), options));
  QUIRE_TRY(out->init());
  out->exchange_names();
  QUIRE_TRY(out->begin_watch());
  return out;
}

MpiWorld::~MpiWorld() {
  if (watch_ == nullptr) return;  // it has not joined
  const auto deadline = Clock::now() + kOutboxLimit;
  while (!outbox_empty() && Clock::now() < deadline) std::this_thread::sleep_for(kOutboxPause);
  {
    const std::lock_guard lock(outbox_mutex_);
    outbox_stop_ = true;
  }
  outbox_changed_.notify_all();
  outbox_thread_.join();
  if (!watch_->leave()) return;  // MPI_Finalize would wait for those that have gone
  const TimeLimit limit(kFinalizeSeconds, name(rank_) + ": MPI_Finalize did not return");
  library_.api.MPI_Finalize();
}

Status MpiWorld::init() {
  const TimeLimit limit(options_.timeout_seconds,
                        fmt::format("Open MPI did not start within {:g} s: one of mpirun's hosts does not answer",
                                    options_.timeout_seconds));
  int provided = 0;
  if (const int code = library_.api.MPI_Init_thread(nullptr, nullptr, kThreadSerialized, &provided)) {
    return unavailable({"MPI_Init_thread failed: ", library_.error(code)});
  }
  if (provided < kThreadSerialized) {
    return unavailable({library_.version, " was built without support for threads; install your system's packages"});
  }
  check(library_.api.MPI_Comm_set_errhandler(library_.api.world, library_.api.errors_return));
  check(library_.api.MPI_Comm_rank(library_.api.world, &rank_));
  check(library_.api.MPI_Comm_size(library_.api.world, &size_));
  return {};
}

void MpiWorld::exchange_names() {
  std::vector<RankName> names(static_cast<size_t>(size_));
  RankName mine;
  ::gethostname(mine.host, sizeof mine.host - 1);
  mine.pid = ::getpid();
  names[static_cast<size_t>(rank_)] = mine;
  Transfers under_way;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    receive(under_way, std::as_writable_bytes(std::span(&names[static_cast<size_t>(r)], 1)), r, kStartTag);
    send(under_way, std::as_bytes(std::span(&mine, 1)), r, kStartTag);
  }
  wait(under_way, true);
  for (RankName& name : names) name.host[sizeof name.host - 1] = '\0';
  names_ = std::move(names);
}

Status MpiWorld::begin_watch() {
  const std::chrono::duration<double> limit(options_.timeout_seconds);
  silence_ = std::min(options_.timeout_seconds, kMostSilence);
  WatchAddress address;
  std::unique_ptr<RankWatch> watch;
  Transfers under_way;
  if (rank_ == 0) {
    QUIRE_ASSIGN(watch, RankWatch::listen(size_, address));
    for (int r = 1; r < size_; ++r) send(under_way, std::as_bytes(std::span(&address, 1)), r, kStartTag);
  } else {
    receive(under_way, std::as_writable_bytes(std::span(&address, 1)), 0, kStartTag);
  }
  wait(under_way, true);
  if (rank_ != 0) {
    QUIRE_ASSIGN(watch, RankWatch::connect(rank_, size_, address, limit));
  }
  QUIRE_TRY(
      watch->start(limit, std::chrono::duration<double>(silence_), [this](int rank, Loss why) { lost(rank, why); }));
  watch_ = std::move(watch);
  outbox_thread_ = std::thread([this] { move_outbox(); });
  return {};
}

std::string MpiWorld::name(int rank) const {
  if (names_.empty()) return fmt::format("rank {}", rank);
  const RankName& it = names_[static_cast<size_t>(rank)];
  return fmt::format("rank {} ({}, pid {})", rank, it.host, it.pid);
}

std::string MpiWorld::trouble() const {
  const std::optional<RankWatch::Quiet> quiet = watch_->quiet();
  if (!quiet || quiet->seconds < kTroubleSeconds) return "";
  return fmt::format("{} has not answered for {} seconds.", name(quiet->rank), static_cast<int64_t>(quiet->seconds));
}

// mpirun notices that the process went without MPI_Finalize, and ends the ranks that are left. (MPI_Abort does the
// same, but waits for daemons that may be among what was lost.)
void MpiWorld::lost(int rank, Loss why) const {
  const double seconds = why == Loss::kSilent ? silence_ : options_.timeout_seconds;
  end_process(fmt::format("{} {}; the other ranks cannot go on without it", name(rank), describe(why, seconds)));
}

void MpiWorld::add_report(Group::Report report) {
  const std::lock_guard lock(reports_mutex_);
  reports_.push_back(std::move(report));
  if (reports_.size() > 1) return;
  watch_->set_report([this] {
    const std::lock_guard sum_lock(reports_mutex_);
    metrics::RankTotals out;
    for (const Group::Report& one : reports_) {
      const metrics::RankTotals totals = one();
      out.steps += totals.steps;
      out.compute_nanoseconds += totals.compute_nanoseconds;
      out.wait_nanoseconds += totals.wait_nanoseconds;
      out.sent_bytes += totals.sent_bytes;
      out.pages += totals.pages;
      out.resident_bytes = totals.resident_bytes;  // of the process
    }
    return out;
  });
}

void MpiWorld::end_stalled() {
  watch_->tell_lost(rank_, Loss::kDeviceStalled);
  lost(rank_, Loss::kDeviceStalled);
}

void MpiWorld::check(int code) const {
  if (code != 0) end_process(fmt::format("Open MPI failed on {}: {}", name(rank_), library_.error(code)));
}

void MpiWorld::check_time(int rank, Clock::duration waited) {
  if (std::chrono::duration<double>(waited).count() <= options_.timeout_seconds) return;
  if (watch_ != nullptr) watch_->tell_lost(rank, Loss::kStalled);
  lost(rank, Loss::kStalled);
}

void MpiWorld::send(Transfers& under_way, std::span<const std::byte> bytes, int to, int tag) {
  do {
    const std::span<const std::byte> part = bytes.first(std::min(bytes.size(), kMostBytes));
    Transfer& transfer = under_way.emplace_back(Transfer{.peer = to});
    const std::lock_guard lock(mpi_);
    check(library_.api.MPI_Isend(part.data(), static_cast<int>(part.size()), library_.api.byte, to, tag,
                                 library_.api.world, &transfer.request));
    bytes = bytes.subspan(part.size());
  } while (!bytes.empty());
}

void MpiWorld::receive(Transfers& under_way, std::span<std::byte> bytes, int from, int tag) {
  do {
    const std::span<std::byte> part = bytes.first(std::min(bytes.size(), kMostBytes));
    Transfer& transfer = under_way.emplace_back(Transfer{.peer = from});
    const std::lock_guard lock(mpi_);
    check(library_.api.MPI_Irecv(part.data(), static_cast<int>(part.size()), library_.api.byte, from, tag,
                                 library_.api.world, &transfer.request));
    bytes = bytes.subspan(part.size());
  } while (!bytes.empty());
}

// Looks at the messages once. Returns the rank of one that is still under way, or -1.
int MpiWorld::poll(Transfers& under_way) {
  int waiting_for = -1;
  const std::lock_guard lock(mpi_);
  for (Transfer& transfer : under_way) {
    if (transfer.done) continue;
    int done = 0;
    check(library_.api.MPI_Test(&transfer.request, &done, nullptr));
    transfer.done = done != 0;
    if (!transfer.done && waiting_for < 0) waiting_for = transfer.peer;
  }
  return waiting_for;
}

void MpiWorld::wait(Transfers& under_way, bool limited) {
  const auto begin = Clock::now();
  for (;;) {
    const int rank = poll(under_way);
    if (rank < 0) return;
    const auto waited = Clock::now() - begin;
    if (limited) check_time(rank, waited);
    pause_between_polls(waited);
  }
}

void MpiWorld::mail(std::span<const std::byte> bytes, int to, int tag) {
  const std::lock_guard lock(outbox_mutex_);
  Mail& mail = outbox_.emplace_back();
  mail.bytes.assign(bytes.begin(), bytes.end());
  send(mail.transfers, mail.bytes, to, tag);
  outbox_changed_.notify_all();
}

// The thread that moves mail while this rank computes.
void MpiWorld::move_outbox() {
  std::unique_lock lock(outbox_mutex_);
  for (;;) {
    outbox_changed_.wait(lock, [this] { return outbox_stop_ || !outbox_.empty(); });
    if (outbox_stop_) return;
    std::erase_if(outbox_, [this](Mail& mail) {
      const int rank = poll(mail.transfers);
      if (rank >= 0) check_time(rank, Clock::now() - mail.sent);
      return rank < 0;
    });
    if (outbox_.empty()) continue;
    lock.unlock();
    std::this_thread::sleep_for(kOutboxPause);
    lock.lock();
  }
}

bool MpiWorld::outbox_empty() {
  const std::lock_guard lock(outbox_mutex_);
  return outbox_.empty();
}

}  // namespace quire::distributed
