// SPDX-License-Identifier: Apache-2.0
// The engine's side of the tiers, and the threads that write and read page files.
#include "kv/offload.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/log.h"

namespace quire::kv {
namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned kMaxReaders = 4;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Lets the threads that compute go first: they wait for each other, so one that is held up holds up all of them. While
// they keep all cores busy, the writer gets 1.5% of one.
void lower_priority() {
#ifdef __linux__
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 19);
#endif
}

}  // namespace

Offload::Offload(OffloadOptions options, PageMemory memory) : options_(std::move(options)), memory_(std::move(memory)) {
  QUIRE_CHECK(options_.on() && (memory_.device != nullptr || options_.host_bytes == 0));
  size_t places = static_cast<size_t>(memory_.num_pages);
  if (memory_.device != nullptr) {
    const int64_t bytes = options_.host_bytes > 0 ? options_.host_bytes : kStagingBytes;
    host_ = std::make_unique<HostPages>(*memory_.device, memory_.page_bytes, bytes);
    places = static_cast<size_t>(host_->capacity());
  }
  if (options_.peers != nullptr) shared_.resize(static_cast<size_t>(memory_.num_pages));
  maybe_queued_.resize(places);
  stores_at_.resize(places);
  if (options_.folder.empty()) return;
  writer_ = std::thread([this] { run_writer(); });
  // A request waits for its pages, and what they take is mostly copying: more threads than one are faster.
  const unsigned readers = std::clamp(std::thread::hardware_concurrency(), 1u, kMaxReaders);
  for (unsigned i = 0; i < readers; ++i) readers_.emplace_back([this] { run_reader(); });
}

Offload::~Offload() {
  for (size_t page = 0; page < shared_.size(); ++page) unshare(static_cast<BlockId>(page));
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stores_filled_.notify_all();
  loads_filled_.notify_all();
  if (writer_.joinable()) writer_.join();
  for (std::thread& reader : readers_) reader.join();
}

PageName Offload::name_of(const PageKey& key) const {
  return Sha256()
      .add(std::as_bytes(std::span(identity_)))
      .add(std::as_bytes(std::span(key.prefix)))
      .add(std::as_bytes(std::span(&key.group, 1)))
      .finish();
}

bool Offload::has(const PageKey& key) const {
  if (options_.peers != nullptr && options_.peers->has(key)) return true;
  return (host_ != nullptr && host_->has(key)) || (open() && disk_->has(name_of(key)));
}

// Only this engine's thread changes what is shared of its pages.
void Offload::share(const PageKey& key, BlockId page) {
  std::vector<PageKey>& keys = shared_[static_cast<size_t>(page)];
  if (std::ranges::find(keys, key) != keys.end()) return;
  keys.push_back(key);
  options_.peers->add(key, address(page));
}

void Offload::unshare(BlockId page) {
  for (const PageKey& key : std::exchange(shared_[static_cast<size_t>(page)], {})) {
    options_.peers->remove(key, address(page));
  }
}

void Offload::set_ranks(RankTiers* ranks) {
  ranks_ = ranks;
  told_.resize(static_cast<size_t>(memory_.num_pages));
}

void Offload::store(const PageKey& key, BlockId page) {
  if (options_.peers != nullptr) share(key, page);
  if (ranks_ != nullptr) {
    std::vector<PageKey>& keys = told_[static_cast<size_t>(page)];
    if (std::ranges::find(keys, key) == keys.end()) {
      keys.push_back(key);
      ranks_->store_page(key, page);
    }
  }
  if (host_ != nullptr) {
    store_on_host(key, page);
  } else if (has_tiers()) {
    queue_store(key, static_cast<size_t>(page), address(page));
  }
}

void Offload::note(const PageKey& key, int64_t begin, int64_t end, std::span<const int32_t> tokens) {
  if (!has_tiers()) return;
  const auto [known, fresh] = known_ids_.try_emplace(key, last_id_ + 1);
  TierPage& page = known_[known->second];
  if (fresh) {
    page.id = ++last_id_;
    page.key = key;
    page.begin = begin;
    page.end = end;
  }
  if (page.tokens.empty() && !tokens.empty()) {
    const auto count = std::min(static_cast<size_t>(end - begin), TierPage::kMaxTokens);
    tokens = tokens.first(static_cast<size_t>(end)).last(count);
    page.tokens.assign(tokens.begin(), tokens.end());
  }
  if (known_.size() <= kMaxKnown) return;
  known_ids_.erase(known_.begin()->second.key);
  known_.erase(known_.begin());
}

TierMap Offload::map() const {
  TierMap out;
  std::vector<bool> on_disk(known_.size());
  if (open()) {
    if (known_names_.size() != known_.size() || known_names_to_ != last_id_) {
      known_names_.clear();
      for (const auto& [id, page] : known_) known_names_.push_back(name_of(page.key));
      known_names_to_ = last_id_;
    }
    on_disk = disk_->has(known_names_);
  }
  size_t i = 0;
  for (const auto& [id, page] : known_) {
    const bool on_host = host_ != nullptr && host_->has(page.key);
    if (on_disk[i] || on_host) out.cells.push_back({id, static_cast<uint8_t>(page.key.group), on_disk[i], on_host});
    ++i;
  }
  return out;
}

std::optional<TierPage> Offload::page(int64_t id) const {
  const auto at = known_.find(id);
  if (at == known_.end()) return std::nullopt;
  TierPage out = at->second;
  out.on_disk = open() && disk_->has(name_of(out.key));
  out.on_host = host_ != nullptr && host_->has(out.key);
  return out;
}

void Offload::mark_used(const PageKey& key) {
  if (host_ != nullptr) (void)host_->find(key);
  if (open()) (void)disk_->touch(name_of(key));
}

void Offload::overwrite(BlockId page) {
  if (options_.peers != nullptr) unshare(page);
  if (ranks_ != nullptr && !std::exchange(told_[static_cast<size_t>(page)], {}).empty()) ranks_->overwrite_page(page);
  // The copy from a device is queued before what overwrites the page.
  if (host_ == nullptr) give_up_place(static_cast<size_t>(page));
}

void Offload::store_on_host(const PageKey& key, BlockId page) {
  if (host_->find(key) >= 0) {
    if (open()) disk_->touch(name_of(key));
    return;
  }
  const int32_t place = host_->take(key);
  if (place < 0) return;
  give_up_place(static_cast<size_t>(place));
  memory_.device->copy_to_host(host_->address(place), address(page), static_cast<size_t>(bytes_of(key)));
  arrivals_.push_back({key, place, memory_.device->mark(), step_});
  const std::lock_guard lock(mutex_);
  ++stats_.host_stored_pages;
  stats_.host_pages = host_->size();
}

// A copy that was queued two steps ago is there: the tokens of a later step were read. So nothing is waited for.
void Offload::after_step() {
  ++step_;
  for (; !arrivals_.empty() && arrivals_.front().step + 2 <= step_; arrivals_.pop_front()) {
    const Arrival& arrival = arrivals_.front();
    if (options_.folder.empty() || host_->key(arrival.place) != arrival.key) continue;
    memory_.device->wait(arrival.mark);
    queue_store(arrival.key, static_cast<size_t>(arrival.place), host_->address(arrival.place));
  }
}

void Offload::queue_store(const PageKey& key, size_t place, const std::byte* from) {
  if (open() && (!disk_->writable() || disk_->touch(name_of(key)))) return;
  {
    const std::lock_guard lock(mutex_);
    if (!unwritten_.insert(key).second) return;
    auto job = std::make_shared<Store>();
    job->key = key;
    job->place = place;
    job->from = from;
    stores_at_[place].push_back(job);
    stores_.push_back(std::move(job));
  }
  maybe_queued_[place] = true;
  stores_filled_.notify_one();
}

// The place gets other contents: its stores are copied now, or dropped.
void Offload::give_up_place(size_t place) {
  if (!maybe_queued_[place]) return;
  maybe_queued_[place] = false;
  std::unique_lock lock(mutex_);
  for (const StorePtr& job : std::exchange(stores_at_[place], {})) {
    if (job->state == Store::State::kCopying) {
      store_copied_.wait(lock, [&] { return job->state == Store::State::kTaken; });
      continue;
    }
    const int64_t bytes = bytes_of(job->key);
    if (copy_bytes_ + bytes > kMaxCopyBytes) {
      job->state = Store::State::kDropped;
      unwritten_.erase(job->key);
      ++stats_.dropped_pages;
      continue;
    }
    copy_bytes_ += bytes;
    job->copy.assign(job->from, job->from + bytes);
  }
}

void Offload::run_writer() {
  disk_ = DiskStore::open(options_.folder, options_.folder_bytes);
  identity_ = Sha256().add(options_.identity()).finish();
  {
    const std::lock_guard lock(mutex_);
    open_.store(true, std::memory_order_release);
  }
  opened_.notify_all();
  lower_priority();
  std::vector<std::byte> buffer;
  std::optional<Clock::time_point> stopped;
  std::unique_lock lock(mutex_);
  for (;;) {
    if (stores_.empty()) stores_done_.notify_all();
    stores_filled_.wait(lock, [&] { return stopping_ || !stores_.empty(); });
    if (stopping_ && !stopped) stopped = Clock::now();
    if (stopping_ && (stores_.empty() || seconds_since(*stopped) > kLastSeconds)) return;
    const StorePtr job = stores_.front();
    stores_.pop_front();
    if (job->state == Store::State::kDropped) continue;
    const auto bytes = static_cast<size_t>(bytes_of(job->key));
    if (job->copy.empty()) {
      job->state = Store::State::kCopying;
      lock.unlock();
      buffer.assign(job->from, job->from + bytes);
      lock.lock();
      job->state = Store::State::kTaken;
      std::erase(stores_at_[job->place], job);
      store_copied_.notify_all();
    }
    lock.unlock();
    const auto start = Clock::now();
    const bool written = disk_->put(name_of(job->key), job->copy.empty() ? std::span(buffer) : std::span(job->copy));
    const double seconds = seconds_since(start);
    lock.lock();
    unwritten_.erase(job->key);
    copy_bytes_ -= static_cast<int64_t>(job->copy.size());
    stats_.stored_pages += written ? 1 : 0;
    stats_.stored_bytes += written ? static_cast<int64_t>(bytes) : 0;
    stats_.store_seconds += seconds;
  }
}

PageLoadPtr Offload::load(const PageKey& key, BlockId page) {
  auto load = std::make_shared<PageLoad>();
  load->key = key;
  load->page = page;
  const auto bytes = static_cast<size_t>(bytes_of(key));
  if (options_.peers != nullptr && options_.peers->copy(key, {address(page), bytes})) {
    load->from_peer = true;
    load->state = PageLoad::State::kDone;
    return load;
  }
  if (ranks_ != nullptr) ranks_->load_page(key, page);
  if (const int32_t place = host_ != nullptr ? host_->find(key) : -1; place >= 0) {
    memory_.device->copy_from_host(address(page), host_->address(place), bytes);
    load->state = PageLoad::State::kDone;
    const std::lock_guard lock(mutex_);
    ++stats_.host_loaded_pages;
    return load;
  }
  if (options_.folder.empty()) {  // another engine had it a moment ago
    load->state = PageLoad::State::kFailed;
    return load;
  }
  load->from_disk = true;
  {
    const std::lock_guard lock(mutex_);
    loads_.push_back(load);
    ++loads_under_way_;
  }
  loads_filled_.notify_one();
  return load;
}

void Offload::settle(std::span<const PageLoadPtr> loads) {
  if (ranks_ == nullptr || loads.empty()) return;
  std::vector<BlockId> pages;
  for (const PageLoadPtr& load : loads) pages.push_back(load->page);
  const std::vector<bool> everywhere = ranks_->settle_pages(pages);
  for (size_t i = 0; i < loads.size(); ++i) {
    if (!everywhere[i] && loads[i]->state == PageLoad::State::kDone) loads[i]->state = PageLoad::State::kFailed;
  }
}

bool Offload::cancel(PageLoad& load) {
  if (ranks_ != nullptr) (void)ranks_->settle_pages({&load.page, 1});
  const std::lock_guard lock(mutex_);
  const PageLoad::State state = load.state.load(std::memory_order_acquire);
  if (state == PageLoad::State::kQueued) load.state = PageLoad::State::kCancelled;  // the reader skips it
  return state != PageLoad::State::kReading;
}

void Offload::complete(PageLoad& load) {
  QUIRE_CHECK(load.state == PageLoad::State::kDone);
  if (load.buffer.empty()) return;
  memory_.device->copy_from_host(address(load.page), load.buffer.data(), load.buffer.size());
  load.buffer = {};
}

void Offload::wait_for_loads() {
  std::unique_lock lock(mutex_);
  loads_ended_.wait_for(lock, std::chrono::milliseconds(5), [&] { return loads_under_way_ == 0; });
}

void Offload::run_reader() {
  std::unique_lock lock(mutex_);
  for (;;) {
    loads_filled_.wait(lock, [&] { return stopping_ || !loads_.empty(); });
    if (stopping_) return;
    const PageLoadPtr load = loads_.front();
    loads_.pop_front();
    PageLoad::State outcome = PageLoad::State::kCancelled;
    if (load->state == PageLoad::State::kQueued) {
      load->state = PageLoad::State::kReading;
      lock.unlock();
      const auto bytes = static_cast<size_t>(bytes_of(load->key));
      if (memory_.device != nullptr) load->buffer.resize(bytes);
      const std::span<std::byte> to(memory_.device != nullptr ? load->buffer.data() : address(load->page), bytes);
      const auto start = Clock::now();
      outcome = disk_->get(name_of(load->key), to) ? PageLoad::State::kDone : PageLoad::State::kFailed;
      const double seconds = seconds_since(start);
      lock.lock();
      stats_.load_seconds += seconds;
      if (outcome == PageLoad::State::kDone) {
        ++stats_.loaded_pages;
        stats_.loaded_bytes += static_cast<int64_t>(bytes);
      }
    }
    load->state.store(outcome, std::memory_order_release);
    if (--loads_under_way_ == 0) loads_ended_.notify_all();
  }
}

bool Offload::wait_until_open(double seconds) {
  if (options_.folder.empty()) return true;
  std::unique_lock lock(mutex_);
  return opened_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return open(); });
}

void Offload::flush() {
  for (int i = 0; i < 2; ++i) after_step();
  if (options_.folder.empty()) return;
  std::unique_lock lock(mutex_);
  stores_done_.wait(lock, [&] { return open() && unwritten_.empty(); });
}

OffloadStats Offload::stats() const {
  OffloadStats out;
  {
    const std::lock_guard lock(mutex_);
    out = stats_;
  }
  if (open()) out.disk = disk_->stats();
  return out;
}

}  // namespace quire::kv
