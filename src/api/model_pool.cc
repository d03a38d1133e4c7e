// SPDX-License-Identifier: Apache-2.0
// The states of the models, and the thread that changes them.
#include "api/model_pool.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/memory.h"
#include "kv/memory_plan.h"

namespace quire::api {
namespace {

// The text with "x.gguf" for "/models/x.gguf": clients need not know how the server's disk is laid out.
std::string without_folders(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const char before = i == 0 ? ' ' : text[i - 1];
    const bool quoted = before == '\'' || before == '"';
    if (text[i] != '/' || (!quoted && before != ' ')) {
      out += text[i++];
      continue;
    }
    const size_t end = std::min(quoted ? text.find(before, i) : text.find_first_of(" ,;:", i), text.size());
    std::string_view path = text.substr(i, end - i);
    if (path.ends_with('/')) path.remove_suffix(1);
    out += path.substr(path.find_last_of('/') + 1);
    i = end;
  }
  return out;
}

ApiFailure unavailable_error(std::string message, int64_t retry_after_s = 0) {
  ApiError error{503, "Service Unavailable", std::move(message), ""};
  error.retry_after_s = retry_after_s;
  return error;
}

ApiFailure stopping_error() {
  return unavailable_error("The server is stopping; send the request to another server or later.");
}

std::chrono::steady_clock::duration of_seconds(double seconds) {
  constexpr double kYear = 365.0 * 86400;  // more would overflow the clock
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(std::min(seconds, kYear)));
}

double seconds_since(std::chrono::steady_clock::time_point then) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

}  // namespace

const char* name(ModelState state) {
  switch (state) {
    case ModelState::kUnloaded:
      return "unloaded";
    case ModelState::kLoading:
      return "loading";
    case ModelState::kReady:
      return "ready";
    case ModelState::kUnloading:
      return "unloading";
    case ModelState::kFailed:
      return "failed";
  }
  return "";
}

ModelPool::ModelPool(std::vector<std::string> names, PoolOptions options, PoolLoader loader)
    : options_(options), loader_(std::move(loader)), entries_(names.size()) {
  QUIRE_CHECK(!names.empty() && options_.max_loaded > 0, "a pool has models and room for one");
  for (size_t i = 0; i < names.size(); ++i) entries_[i].name = std::move(names[i]);
  thread_ = std::thread([this] { run(); });
  clock_thread_ = std::thread([this] { run_clock(); });
}

ModelPool::~ModelPool() {
  stop();
  std::unique_lock lock(mutex_);
  for (size_t i = 0; i < entries_.size(); ++i) {
    changed_.wait(lock, [&] { return entries_[i].leases == 0; });
    if (entries_[i].state == ModelState::kReady) unload(i, lock);
  }
}

void ModelPool::stop() {
  cancelled_ = true;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (clock_thread_.joinable()) clock_thread_.join();
  Calls calls;
  {
    const std::lock_guard lock(mutex_);
    for (Entry& entry : entries_) refuse_waiting(entry, stopping_error(), calls);
  }
  for (const auto& call : calls) call();
}

ApiFailure ModelPool::load_error(const Entry& entry) const {
  const std::string sentence =
      "The model `" + entry.name + "` could not be loaded: " + without_folders(entry.failure->message);
  const ErrorCode code = entry.failure->code;
  if (code == ErrorCode::kExhausted || code == ErrorCode::kUnavailable || code == ErrorCode::kCancelled) {
    return unavailable_error(sentence);
  }
  return ApiError{500, "InternalServerError", sentence, ""};
}

ModelPool::Ticket ModelPool::reserve() {
  const std::lock_guard lock(mutex_);
  return *reserved_.insert(++last_ticket_).first;
}

void ModelPool::acquire(Ticket ticket, size_t model, Done done) {
  std::optional<ApiError> refused;
  {
    const std::lock_guard lock(mutex_);
    if (reserved_.erase(ticket) == 0) return;  // it was cancelled
    Entry& entry = entries_[model];
    if (stopping_) {
      refused = stopping_error();
    } else if (entry.state == ModelState::kReady && !entry.draining) {
      ++entry.leases;
      entry.used = Clock::now();
    } else if (entry.state == ModelState::kFailed && Clock::now() < entry.failed + of_seconds(options_.retry_s)) {
      refused = load_error(entry);
    } else if (entry.waiting.size() >= options_.max_waiting) {
      refused = unavailable_error("The queue is full: " + std::to_string(entry.waiting.size()) +
                                      " requests wait for the model `" + entry.name + "`, which is " +
                                      name(entry.state) + " (--model-queue-size); try again later.",
                                  1);
    } else {
      entry.waiting.push_back({ticket, std::move(done), Clock::now()});
      changed_.notify_all();
      return;
    }
  }
  if (refused) return done(std::move(*refused));
  done(Lease(*this, model, true));
}

void ModelPool::cancel(Ticket ticket) {
  std::list<Waiter> dropped;  // destroyed without the lock: a callback may own anything
  const std::lock_guard lock(mutex_);
  reserved_.erase(ticket);
  for (Entry& entry : entries_) {
    const auto it = std::find_if(entry.waiting.begin(), entry.waiting.end(),
                                 [&](const Waiter& waiter) { return waiter.ticket == ticket; });
    if (it == entry.waiting.end()) continue;
    dropped.splice(dropped.begin(), entry.waiting, it);
    changed_.notify_all();  // another model need not make room any more
    return;
  }
}

std::optional<ModelPool::Lease> ModelPool::look(size_t model) {
  const std::lock_guard lock(mutex_);
  if (entries_[model].state != ModelState::kReady) return std::nullopt;
  ++entries_[model].leases;
  return Lease(*this, model, false);
}

void ModelPool::release(size_t model, bool use) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[model];
  if (use) entry.used = Clock::now();
  if (--entry.leases == 0) changed_.notify_all();
}

void ModelPool::adopt(size_t model, PoolLoader::Loaded loaded) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[model];
  QUIRE_CHECK(entry.state == ModelState::kUnloaded, "a model is loaded once");
  entry.resident = std::move(loaded.resident);
  entry.memory = loaded.memory_bytes;
  entry.state = ModelState::kReady;
  entry.used = Clock::now();
  entry.loads = 1;
}

ModelPool::Info ModelPool::info(size_t model) const {
  const std::lock_guard lock(mutex_);
  const Entry& entry = entries_[model];
  Info out;
  out.state = entry.state;
  out.draining = entry.draining;
  out.leases = entry.leases;
  out.waiting = entry.waiting.size();
  out.memory_bytes = entry.memory;
  if (entry.state == ModelState::kReady && entry.leases == 0) out.idle_s = seconds_since(entry.used);
  if (entry.state == ModelState::kFailed) out.error = without_folders(entry.failure->message);
  out.loads = entry.loads;
  out.failures = entry.failures;
  out.load_s = entry.load_s;
  return out;
}

void ModelPool::grant(size_t model, Calls& calls) {
  Entry& entry = entries_[model];
  for (Waiter& waiter : entry.waiting) {
    ++entry.leases;
    // std::function wants a copyable callable, and a Lease is not.
    auto lease = std::shared_ptr<Lease>(new Lease(*this, model, true));
    calls.push_back([done = std::move(waiter.done), lease] { done(std::move(*lease)); });
  }
  entry.waiting.clear();
  entry.used = Clock::now();
}

void ModelPool::refuse_waiting(Entry& entry, const ApiError& error, Calls& calls) {
  for (Waiter& waiter : entry.waiting) {
    calls.push_back([done = std::move(waiter.done), error] { done(error); });
  }
  entry.waiting.clear();
}

void ModelPool::refuse_overdue(Clock::time_point now, Calls& calls) {
  if (options_.max_wait_s <= 0) return;
  for (Entry& entry : entries_) {
    while (!entry.waiting.empty() && now >= entry.waiting.front().since + of_seconds(options_.max_wait_s)) {
      std::string busy;
      for (const Entry& other : entries_) {
        if (other.leases > 0) busy += (busy.empty() ? "" : ", ") + other.name;
      }
      const std::string why = entry.state == ModelState::kLoading ? "it is still loading"
                              : busy.empty()                      ? "other models were loaded first"
                                                                  : "these are busy: " + busy;
      const ApiError error = unavailable_error("The model `" + entry.name + "` was not ready within " +
                                                   std::to_string(static_cast<int64_t>(options_.max_wait_s)) +
                                                   " s (--model-queue-timeout): " + why + "; try again later.",
                                               1);
      calls.push_back([done = std::move(entry.waiting.front().done), error] { done(error); });
      entry.waiting.pop_front();
    }
  }
}

std::optional<size_t> ModelPool::most_wanted() const {
  std::optional<size_t> best;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (entry.waiting.empty() || entry.state == ModelState::kReady) continue;
    if (!best || entry.waiting.front().since < entries_[*best].waiting.front().since) best = i;
  }
  return best;
}

std::optional<size_t> ModelPool::expired(Clock::time_point now) const {
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (entry.state != ModelState::kReady || entry.leases > 0) continue;
    if (entry.draining) return i;
    if (options_.keep_alive_s >= 0 && now >= entry.used + of_seconds(options_.keep_alive_s)) return i;
  }
  return std::nullopt;
}

std::optional<size_t> ModelPool::victim() const {
  std::optional<size_t> best;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].state != ModelState::kReady) continue;
    const auto rank = [&](size_t at) { return std::pair(entries_[at].leases > 0, entries_[at].used); };
    if (!best || rank(i) < rank(*best)) best = i;
  }
  return best;
}

int64_t ModelPool::offer(const Entry& entry) const {
  return std::max(options_.memory_bytes / static_cast<int64_t>(options_.max_loaded), entry.least);
}

bool ModelPool::has_room(const Entry& entry) const {
  size_t loaded = 0;
  int64_t held = 0;
  for (const Entry& other : entries_) {
    if (other.state != ModelState::kReady) continue;
    ++loaded;
    held += other.memory;
  }
  if (loaded >= options_.max_loaded) return false;
  return options_.memory_bytes == 0 || loaded == 0 || offer(entry) <= options_.memory_bytes - held;
}

void ModelPool::fail(Entry& entry, const Error& error, Calls& calls) {
  log_error("The model {} could not be loaded: {}", entry.name, error.message);
  entry.state = ModelState::kFailed;
  entry.failure = error;
  entry.failed = Clock::now();
  ++entry.failures;
  refuse_waiting(entry, load_error(entry), calls);
}

// Asks for the memory that the model needs, once. False if it can never be loaded.
bool ModelPool::measure(size_t model, std::unique_lock<std::mutex>& lock, Calls& calls) {
  Entry& entry = entries_[model];
  if (entry.least > 0) return true;
  entry.state = ModelState::kLoading;
  lock.unlock();
  const Result<int64_t> least = loader_.least_memory(model, cancelled_);
  lock.lock();
  entry.state = ModelState::kUnloaded;
  if (!least.ok()) {
    fail(entry, least.error(), calls);
    return false;
  }
  if (options_.memory_bytes > 0 && *least > options_.memory_bytes) {
    fail(entry,
         exhausted({"it needs at least ", kv::format_bytes(*least), " of memory, but all models together may use ",
                    kv::format_bytes(options_.memory_bytes), "; choose a smaller model or a smaller --max-model-len"}),
         calls);
    return false;
  }
  entry.least = std::max<int64_t>(*least, 1);
  return true;
}

void ModelPool::load(size_t model, std::unique_lock<std::mutex>& lock, Calls& calls) {
  Entry& entry = entries_[model];
  const int64_t memory = options_.memory_bytes == 0 ? 0 : offer(entry);
  entry.state = ModelState::kLoading;
  lock.unlock();
  log_info("Loading {}{}", entry.name, memory > 0 ? " into at most " + kv::format_bytes(memory) : "");
  const auto begun = Clock::now();
  auto loaded = loader_.load(model, memory, cancelled_);
  lock.lock();
  entry.load_s = seconds_since(begun);
  if (loaded.ok()) {
    log_info("Loaded {} in {:.1f} s", entry.name, entry.load_s);
    entry.state = ModelState::kReady;
    entry.resident = std::move(loaded->resident);
    entry.memory = loaded->memory_bytes;
    entry.failure.reset();
    ++entry.loads;
    grant(model, calls);
    return;
  }
  // The estimate may have been too low. Before the model is given up, it gets more, for which others may have to go.
  if (loaded.error().code == ErrorCode::kExhausted && memory > 0 && memory < options_.memory_bytes) {
    log_info("{}: {}; trying with more memory", entry.name, loaded.error().message);
    entry.state = ModelState::kUnloaded;
    entry.least = std::min(options_.memory_bytes, 2 * memory);
    return;
  }
  entry.least = 0;  // the files may be other ones the next time
  fail(entry, loaded.error(), calls);
}

void ModelPool::unload(size_t model, std::unique_lock<std::mutex>& lock) {
  Entry& entry = entries_[model];
  entry.state = ModelState::kUnloading;
  entry.draining = false;
  std::unique_ptr<Resident> resident = std::move(entry.resident);
  lock.unlock();
  resident.reset();
  trim_malloc();
  log_info("Unloaded {}", entry.name);
  lock.lock();
  entry.state = ModelState::kUnloaded;
  entry.memory = 0;
}

bool ModelPool::act(std::unique_lock<std::mutex>& lock, Calls& calls) {
  const auto wanted = most_wanted();
  if (!wanted) stop_draining(calls);  // nobody needs the room any more
  if (const auto idle = expired(Clock::now())) {
    unload(*idle, lock);
    return true;
  }
  if (!wanted) return false;
  if (!measure(*wanted, lock, calls)) return true;
  if (entries_[*wanted].waiting.empty()) return true;  // its clients left meanwhile
  if (has_room(entries_[*wanted])) {
    load(*wanted, lock, calls);
    return true;
  }
  const bool drains = std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) { return entry.draining; });
  const auto leaves = victim();
  if (!leaves || (drains && entries_[*leaves].leases > 0)) return false;
  stop_draining(calls);  // one that has become idle is unloaded rather than one that is still busy
  entries_[*leaves].draining = true;
  return true;
}

void ModelPool::stop_draining(Calls& calls) {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (std::exchange(entries_[i].draining, false)) grant(i, calls);
  }
}

std::optional<ModelPool::Clock::time_point> ModelPool::next_expiry() const {
  std::optional<Clock::time_point> first;
  for (const Entry& entry : entries_) {
    if (options_.keep_alive_s < 0 || entry.state != ModelState::kReady || entry.leases > 0) continue;
    const auto at = entry.used + of_seconds(options_.keep_alive_s);
    first = std::min(first.value_or(at), at);
  }
  return first;
}

std::optional<ModelPool::Clock::time_point> ModelPool::next_overdue() const {
  std::optional<Clock::time_point> first;
  for (const Entry& entry : entries_) {
    if (options_.max_wait_s <= 0 || entry.waiting.empty()) continue;
    const auto at = entry.waiting.front().since + of_seconds(options_.max_wait_s);
    first = std::min(first.value_or(at), at);
  }
  return first;
}

void ModelPool::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    Calls calls;
    const bool acted = act(lock, calls);
    if (!calls.empty()) {
      lock.unlock();
      for (const auto& call : calls) call();
      calls.clear();
      lock.lock();
    } else if (!acted && !stopping_) {
      wait(lock, next_expiry());
    }
  }
}

void ModelPool::run_clock() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    Calls calls;
    refuse_overdue(Clock::now(), calls);
    if (calls.empty()) {
      wait(lock, next_overdue());
      continue;
    }
    lock.unlock();
    for (const auto& call : calls) call();
    calls.clear();
    lock.lock();
  }
}

void ModelPool::wait(std::unique_lock<std::mutex>& lock, std::optional<Clock::time_point> until) {
  if (until) {
    changed_.wait_until(lock, *until);
  } else {
    changed_.wait(lock);
  }
}

}  // namespace quire::api
