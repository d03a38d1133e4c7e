// SPDX-License-Identifier: Apache-2.0
// Calls as messages from rank 0.
#include "model/parallel_model.h"

#include <chrono>
#include <cstring>

#include "base/log.h"
#include "model/adapter_wire.h"
#include "model/step_parts.h"
#include "model/step_wire.h"

namespace quire::model {
namespace {

enum class Call : uint32_t {
  kEnd,
  kForward,
  kHead,
  kHidden,
  kAdapter,
  kDropAdapter,
  kCopyPage,
  kStorePage,
  kOverwritePage,
  kLoadPage,
  kSettlePages,
};

// The beginning of each message. `payload` bytes follow: as many as fit come with it, the others in a second message.
struct Header {
  Call call = Call::kEnd;
  uint32_t group = 0;  // kCopyPage
  int64_t first = 0, count = 0;
  uint64_t payload = 0;
};
// Room for the step of a few sequences, so that a decode step needs one message.
constexpr size_t kMessage = 4096;
constexpr uint64_t kMostPayload = uint64_t{1} << 32;

void tell(distributed::Group& ranks, Header header, std::vector<std::byte>& message) {
  header.payload = message.size() - sizeof header;
  std::memcpy(message.data(), &header, sizeof header);
  if (message.size() < kMessage) message.resize(kMessage);
  ranks.broadcast(std::span(message).first(kMessage), 0);
  if (message.size() > kMessage) ranks.broadcast(std::span(message).subspan(kMessage), 0);
  message.clear();
}

void tell(distributed::Group& ranks, const Header& header) {
  std::vector<std::byte> message(sizeof header);
  tell(ranks, header, message);
}

void tell(distributed::Group& ranks, const Header& header, std::span<const std::byte> payload) {
  std::vector<std::byte> message(sizeof header);
  message.insert(message.end(), payload.begin(), payload.end());
  tell(ranks, header, message);
}

// A rank's own part of the tiers: what rank 0 stores and loads, it stores and loads.
class FollowedTiers {
 public:
  FollowedTiers(kv::Offload* tiers, const kv::CacheLayout& layout) : tiers_(tiers), layout_(layout) {}

  Status run(const Header& header, std::span<const std::byte> payload, distributed::Group& ranks) {
    const auto bad_page = [&](int64_t page) { return page <= 0 || page >= layout_.num_pages; };
    const auto page = static_cast<kv::BlockId>(header.first);
    if (header.call == Call::kSettlePages) {
      std::vector<kv::BlockId> pages(payload.size() / sizeof(kv::BlockId));
      std::memcpy(pages.data(), payload.data(), pages.size() * sizeof(kv::BlockId));
      settle(pages, ranks);
      return {};
    }
    if (bad_page(header.first)) return corrupt("rank 0 names a page that this rank does not have");
    if (header.call == Call::kOverwritePage) {
      if (tiers_ != nullptr) tiers_->overwrite(page);
      return {};
    }
    kv::PageKey key;
    if (payload.size() != sizeof key.prefix || header.group >= layout_.groups.size()) {
      return corrupt("a message from rank 0 is damaged");
    }
    std::memcpy(key.prefix.data(), payload.data(), sizeof key.prefix);
    key.group = static_cast<int32_t>(header.group);
    if (tiers_ == nullptr) return {};
    if (header.call == Call::kStorePage) tiers_->store(key, page);
    if (header.call == Call::kLoadPage && tiers_->has(key)) {
      tiers_->overwrite(page);
      loads_[page] = tiers_->load(key, page);
    }
    return {};
  }

 private:
  void settle(std::span<const kv::BlockId> pages, distributed::Group& ranks) {
    std::vector<std::byte> own, all(pages.size() * static_cast<size_t>(ranks.size()));
    for (const kv::BlockId page : pages) {
      const auto at = loads_.find(page);
      bool there = at != loads_.end();
      if (there) {
        while (!at->second->ended()) tiers_->wait_for_loads();
        there = at->second->state == kv::PageLoad::State::kDone;
        if (there) tiers_->complete(*at->second);
        loads_.erase(at);
      }
      own.push_back(std::byte{there});
    }
    ranks.all_gather(own, all);
  }

  kv::Offload* const tiers_;
  const kv::CacheLayout& layout_;
  std::map<kv::BlockId, kv::PageLoadPtr> loads_;
};

// Every rank divides the step in the same way.
void run_parts(Model& own, const StepBatch& batch, int64_t parts, const KvCache& kv, StepBatch& part) {
  if (parts == 1) return own.forward(batch, kv);
  for (int64_t i = 0; i < parts; ++i) {
    take_part(batch, i, parts, part);
    own.forward(part, kv);
  }
}

// Adds the time until it is destroyed, without what was spent in gathers meanwhile.
class StepClock {
 public:
  explicit StepClock(GatherTimes* times) : times_(times) {
    if (times_ != nullptr) waited_before_ = times_->nanoseconds;
  }
  ~StepClock() {
    if (times_ == nullptr) return;
    const int64_t all = std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin_).count();
    times_->compute_nanoseconds += all - (times_->nanoseconds - waited_before_);
  }
  StepClock(const StepClock&) = delete;
  StepClock& operator=(const StepClock&) = delete;

 private:
  GatherTimes* const times_;
  int64_t waited_before_ = 0;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// The rank that has whole rows at the end of the last stage.
int last_rank(const Share& share) {
  return static_cast<int>((share.stages - 1) * share.ranks);
}

}  // namespace

void AdapterBook::add(const AdapterPtr& adapter, std::vector<std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [](const auto& entry) { return entry.second.adapter.expired(); });
  entries_[adapter->id] = {adapter, std::make_shared<const std::vector<std::byte>>(std::move(bytes)), engines_};
}

std::shared_ptr<const std::vector<std::byte>> AdapterBook::take(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(id);
  if (at == entries_.end()) return nullptr;
  auto out = at->second.bytes;
  if (--at->second.takers == 0) at->second.bytes = nullptr;
  return out;
}

bool AdapterBook::gone(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(id);
  if (at != entries_.end() && !at->second.adapter.expired()) return false;
  if (at != entries_.end()) entries_.erase(at);
  return true;
}

ParallelModel::ParallelModel(std::unique_ptr<Model> own, const Ranks& ranks, std::shared_ptr<AdapterBook> adapters,
                             std::any keep)
    : keep_(std::move(keep)),
      own_(std::move(own)),
      ranks_(*ranks.model),
      times_(ranks.times),
      book_(std::move(adapters)) {
  QUIRE_CHECK(ranks_.rank() == 0 && own_->config().share.stages * own_->config().share.ranks == ranks_.size());
}

ParallelModel::~ParallelModel() {
  if (!started_) return;
  tell(ranks_, {Call::kEnd});
  if (times_ == nullptr || times_->gathers == 0) return;
  const auto waited = static_cast<double>(times_->nanoseconds);
  const double all = waited + static_cast<double>(times_->compute_nanoseconds);
  log_info("rank 0 gathered {} times in {:.3f} s of steps: {:.1f}% of the time, {:.1f} us each", times_->gathers.load(),
           all / 1e9, 100 * waited / all, waited / 1e3 / static_cast<double>(times_->gathers));
}

Result<AdapterPtr> ParallelModel::make_adapter(const weights::AdapterFiles& files) const {
  QUIRE_ASSIGN(AdapterPtr made, own_->make_adapter(files));
  std::vector<std::byte> bytes;
  write_adapter(files, bytes);
  book_->add(made, std::move(bytes));
  return made;
}

// The other ranks forget what nobody here has any more.
void ParallelModel::tell_adapters(const StepBatch& batch) {
  for (const Adapter* adapter : batch.adapters) {
    if (!told_.insert(adapter->id).second) continue;
    const auto bytes = book_->take(adapter->id);
    QUIRE_CHECK(bytes != nullptr, "an adapter was made by another model");
    tell(ranks_, {Call::kAdapter, 0, static_cast<int64_t>(adapter->id)}, *bytes);
  }
  std::erase_if(told_, [&](uint64_t id) {
    if (!book_->gone(id)) return false;
    tell(ranks_, {Call::kDropAdapter, 0, static_cast<int64_t>(id)});
    return true;
  });
}

void ParallelModel::copied_page(int64_t from, int64_t to, size_t group) {
  tell(ranks_, {Call::kCopyPage, static_cast<uint32_t>(group), from, to});
}

void ParallelModel::store_page(const kv::PageKey& key, kv::BlockId page) {
  tell(ranks_, {Call::kStorePage, static_cast<uint32_t>(key.group), page}, std::as_bytes(std::span(key.prefix)));
}

void ParallelModel::overwrite_page(kv::BlockId page) {
  tell(ranks_, {Call::kOverwritePage, 0, page});
}

void ParallelModel::load_page(const kv::PageKey& key, kv::BlockId page) {
  tell(ranks_, {Call::kLoadPage, static_cast<uint32_t>(key.group), page}, std::as_bytes(std::span(key.prefix)));
}

std::vector<bool> ParallelModel::settle_pages(std::span<const kv::BlockId> pages) {
  tell(ranks_, {Call::kSettlePages}, std::as_bytes(pages));
  const std::vector<std::byte> own(pages.size(), std::byte{1});
  std::vector<std::byte> all(pages.size() * static_cast<size_t>(ranks_.size()));
  ranks_.all_gather(own, all);
  std::vector<bool> out(pages.size(), true);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] == std::byte{0}) out[i % pages.size()] = false;
  }
  return out;
}

void ParallelModel::forward(const StepBatch& batch, const KvCache& kv) {
  QUIRE_CHECK(batch.hidden_rows.empty() && batch.embedding_rows.empty());
  const StepClock clock(times_);
  if (times_ != nullptr) ++times_->steps;
  tell_adapters(batch);
  const int64_t parts = config().encoder.on || own_->whole_steps() ? 1 : num_parts(batch, config().share.stages);
  message_.resize(sizeof(Header));
  write_step(batch, message_);
  if (times_ != nullptr) times_->sent_bytes += std::ssize(message_) * (ranks_.size() - 1);
  tell(ranks_, {Call::kForward, 0, 0, parts}, message_);
  run_parts(*own_, batch, parts, kv, part_);
}

Tensor ParallelModel::run_head(int64_t first_wanted, int64_t count) {
  const StepClock clock(times_);
  tell(ranks_, {Call::kHead, 0, first_wanted, count});
  return own_->run_head(first_wanted, count);
}

std::span<const float> ParallelModel::logits(int64_t first_wanted, int64_t count) {
  const StepClock clock(times_);
  tell(ranks_, {Call::kHead, 0, first_wanted, count});
  return own_->logits(first_wanted, count);
}

std::span<const float> ParallelModel::hidden(int64_t first, int64_t count) {
  if (config().share.stages == 1) return own_->hidden(first, count);
  tell(ranks_, {Call::kHidden, 0, first, count});
  received_.resize(static_cast<size_t>(count * config().hidden));
  const auto begin = std::chrono::steady_clock::now();
  ranks_.receive(std::as_writable_bytes(std::span(received_)), last_rank(config().share));
  if (times_ != nullptr) {
    times_->nanoseconds += std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
    ++times_->gathers;
  }
  return received_;
}

Status follow(Model& own, Backend& backend, const KvCache& kv, const BatchLimits& limits, const Ranks& group,
              kv::Offload* tiers) {
  FollowedTiers followed(tiers, kv.layout());
  distributed::Group& ranks = *group.model;
  const Share& share = own.config().share;
  const bool sends = share.stages > 1 && ranks.rank() == last_rank(share);
  const StepLimits step_limits{limits.max_tokens, own.config().vocab_size, kv.layout().groups.size(),
                               kv.layout().num_pages};
  std::vector<std::byte> message;
  StepBatch batch, part;
  std::vector<uint64_t> ids;
  std::map<uint64_t, AdapterPtr> adapters;
  int64_t wanted = 0, pooled = 0;
  for (;;) {
    message.resize(kMessage);
    ranks.broadcast(message, 0);
    Header header;
    std::memcpy(&header, message.data(), sizeof header);
    if (header.payload > kMostPayload) return corrupt("a message from rank 0 is damaged");
    const size_t size = sizeof header + header.payload;
    message.resize(std::max(size, kMessage));
    if (size > kMessage) ranks.broadcast(std::span(message).subspan(kMessage), 0);
    const std::span payload = std::span(message).subspan(sizeof header, header.payload);
    const auto outside = [&](int64_t rows) {
      return header.first < 0 || header.count <= 0 || header.first > rows || header.count > rows - header.first;
    };
    switch (header.call) {
      case Call::kEnd:
        return {};
      case Call::kForward:
        QUIRE_TRY(read_step(payload, step_limits, batch, ids));
        for (const uint64_t id : ids) {
          if (!adapters.contains(id)) return corrupt("rank 0 names an adapter that this rank does not have");
          batch.adapters.push_back(adapters.at(id).get());
        }
        pooled = batch.num_pooled;
        wanted = std::ssize(batch.wanted) - pooled;
        if (header.count < 1 || header.count > share.stages) return corrupt("a message from rank 0 is damaged");
        {
          const StepClock clock(group.times);
          if (group.times != nullptr) ++group.times->steps;
          run_parts(own, batch, header.count, kv, part);
        }
        if (tiers != nullptr) tiers->after_step();
        break;
      case Call::kHead:
        if (outside(wanted) || header.count > limits.max_logit_rows)
          return corrupt("rank 0 asks for rows that no step had");
        if (share.last()) {
          const StepClock clock(group.times);
          own.run_head(header.first, header.count);
        }
        break;
      case Call::kHidden:
        if (outside(pooled)) return corrupt("rank 0 asks for rows that no step had");
        if (sends) ranks.send(std::as_bytes(own.hidden(header.first, header.count)), 0);
        break;
      case Call::kCopyPage: {
        const int64_t pages = kv.layout().num_pages;
        if (header.first < 0 || header.first >= pages || header.count < 0 || header.count >= pages ||
            header.group >= kv.layout().groups.size()) {
          return corrupt("rank 0 copies a page that this rank does not have");
        }
        kv.copy_page(backend, header.first, header.count, header.group);
        break;
      }
      case Call::kAdapter: {
        QUIRE_ASSIGN(const ReceivedAdapter received, read_adapter(payload));
        QUIRE_ASSIGN(adapters[static_cast<uint64_t>(header.first)], own.make_adapter(received.files));
        break;
      }
      case Call::kStorePage:
      case Call::kOverwritePage:
      case Call::kLoadPage:
      case Call::kSettlePages:
        QUIRE_TRY(followed.run(header, payload, ranks));
        break;
      case Call::kDropAdapter:
        adapters.erase(static_cast<uint64_t>(header.first));
        break;
      default:
        return corrupt("rank 0 asks for something that this rank does not know; do all ranks run the same quire?");
    }
  }
}

}  // namespace quire::model
