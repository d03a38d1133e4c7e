// SPDX-License-Identifier: Apache-2.0
// The calls of a Group in terms of messages between processes.
#include "distributed/mpi_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/env.h"
#include "distributed/mpi_world.h"

namespace quire::distributed {
namespace {

constexpr int kTags = 4;    // of one group; the next group's follow
constexpr int kDepths = 8;  // of groups that are parts of parts; those of a twin follow
constexpr int kMostTwins = 256;

// Some neighbouring ranks of the world.
class MpiGroup final : public Group {
 public:
  MpiGroup(std::shared_ptr<MpiWorld> world, int first, int size, int depth)
      : world_(std::move(world)), first_(first), size_(size), depth_(depth) {}

  int rank() const override { return world_->rank() - first_; }
  int size() const override { return size_; }
  std::string describe() const override { return fmt::format("{} processes ({})", size_, world_->version()); }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    QUIRE_CHECK(all.size() == mine.size() * static_cast<size_t>(size_));
    std::byte* own = all.data() + static_cast<size_t>(rank()) * mine.size();
    if (own != mine.data() && !mine.empty()) std::memcpy(own, mine.data(), mine.size());
    gather(mine, all);
  }
  void broadcast(std::span<std::byte> bytes, int root) override {
    MpiWorld::Transfers under_way;
    for (int step = 1; step < size_ && rank() == root; ++step) {
      world_->send(under_way, bytes, first_ + (root + step) % size_, tag(kBroadcast));
    }
    if (rank() != root) world_->receive(under_way, bytes, first_ + root, tag(kBroadcast));
    world_->wait(under_way, rank() == root);
  }
  void send(std::span<const std::byte> bytes, int to) override { world_->mail(bytes, first_ + to, tag(kMail)); }
  void receive(std::span<std::byte> bytes, int from) override {
    MpiWorld::Transfers under_way;
    world_->receive(under_way, bytes, first_ + from, tag(kMail));
    world_->wait(under_way, true);
  }
  void barrier() override {
    const std::byte mine{};
    std::vector<std::byte> all(static_cast<size_t>(size_));
    gather({&mine, 1}, all);
  }
  double limit_seconds() const override { return world_->limit_seconds(); }
  void end_stalled() override { world_->end_stalled(); }
  std::string trouble() const { return world_->trouble(); }
  void set_report(Report report) override { world_->add_report(std::move(report)); }
  std::vector<metrics::RankTotals> reports() const override {
    if (depth_ > kDepths) return {};
    return world_->watch().reports();
  }
  std::unique_ptr<Group> twin(int number) const {
    QUIRE_CHECK(first_ == 0 && depth_ == 1 && number > 0 && number < kMostTwins);
    return std::make_unique<MpiGroup>(world_, first_, size_, 1 + number * kDepths);
  }
  std::unique_ptr<Group> split(int first, int count) override {
    QUIRE_CHECK(first <= rank() && rank() < first + count && first + count <= size_);
    return std::make_unique<MpiGroup>(world_, first_ + first, count, depth_ + 1);
  }

 private:
  enum Use { kGather, kBroadcast, kMail };
  int tag(Use use) const { return depth_ * kTags + use; }

  // Every rank sends to every other one: the same bytes on the wire as in a ring, and one latency instead of size - 1.
  void gather(std::span<const std::byte> mine, std::span<std::byte> all) {
    MpiWorld::Transfers under_way;
    under_way.reserve(static_cast<size_t>(size_) * 2);
    for (int step = 1; step < size_; ++step) {
      const int from = (rank() + size_ - step) % size_;
      const std::span<std::byte> place = all.subspan(static_cast<size_t>(from) * mine.size(), mine.size());
      world_->receive(under_way, place, first_ + from, tag(kGather));
    }
    for (int step = 1; step < size_; ++step) {
      world_->send(under_way, mine, first_ + (rank() + step) % size_, tag(kGather));
    }
    world_->wait(under_way, true);
  }

  const std::shared_ptr<MpiWorld> world_;
  const int first_;
  const int size_;
  const int
      depth_;  // how often it was split, and 1 for the whole world; a twin's begins at another multiple of kDepths
};

}  // namespace

std::optional<LaunchedRank> launched_rank() {
  const auto number = [](const char* variable) {
    const std::string text = env(variable).value_or("");
    int value = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() ? value : -1;
  };
  LaunchedRank out;
  out.rank = number("OMPI_COMM_WORLD_RANK");
  out.size = number("OMPI_COMM_WORLD_SIZE");
  if (out.rank < 0 || out.rank >= out.size) return {};
  out.host_rank = std::max(0, number("OMPI_COMM_WORLD_LOCAL_RANK"));
  out.host_ranks = std::max(out.host_rank + 1, number("OMPI_COMM_WORLD_LOCAL_SIZE"));
  out.bound = env("OMPI_MCA_orte_bound_at_launch").value_or("0") == "1";
  return out;
}

std::unique_ptr<Group> make_twin_group(const Group& group, int number) {
  return dynamic_cast<const MpiGroup&>(group).twin(number);
}

std::string trouble_of(const Group& group) {
  const auto* processes = dynamic_cast<const MpiGroup*>(&group);
  return processes == nullptr ? "" : processes->trouble();
}

Result<std::unique_ptr<Group>> make_mpi_group(const MpiOptions& options) {
  QUIRE_ASSIGN(std::shared_ptr<MpiWorld> world, MpiWorld::join(options));
  const int size = world->size();
  return std::unique_ptr<Group>(std::make_unique<MpiGroup>(std::move(world), 0, size, 1));
}

}  // namespace quire::distributed
