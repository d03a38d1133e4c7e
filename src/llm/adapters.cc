// SPDX-License-Identifier: Apache-2.0
// Reads adapters and forgets those that were not used for longest.
#include "llm/adapters.h"

#include <algorithm>

#include "base/file.h"

namespace quire::llm {
namespace {

constexpr size_t kMostNames = 4096;  // that are remembered for metrics

}  // namespace

Result<model::AdapterPtr> AdapterCache::read(const std::filesystem::path& path) const {
  QUIRE_ASSIGN(const weights::AdapterFiles files, weights::open_adapter(path));
  auto made = model_.make_adapter(files);
  if (!made.ok()) return in_file(files.path, made.error());
  return made;
}

Result<model::AdapterPtr> AdapterCache::get(const NamedAdapter& named) {
  {
    const std::lock_guard lock(mutex_);
    const auto it = std::ranges::find(entries_, named.registration, &Entry::registration);
    if (it != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, it);
      return it->adapter;
    }
  }
  QUIRE_ASSIGN(model::AdapterPtr adapter, read(named.path));
  put(named, adapter);
  return adapter;
}

Result<model::AdapterPtr> AdapterCache::get(const std::filesystem::path& path, const std::string& key) {
  constexpr uint64_t kFirst = uint64_t{1} << 63;  // apart from those of names
  uint64_t registration = 0;
  {
    const std::lock_guard lock(mutex_);
    registration = by_key_.emplace(path.string() + "\n" + key, kFirst + by_key_.size()).first->second;
  }
  return get({key, path, registration});
}

void AdapterCache::put(const NamedAdapter& named, model::AdapterPtr adapter) {
  const std::lock_guard lock(mutex_);
  if (names_.size() >= kMostNames) names_.erase(names_.begin());
  names_[adapter->id] = named.name;
  std::erase_if(entries_, [&](const Entry& entry) { return entry.registration == named.registration; });
  entries_.push_front({named.registration, named.name, std::move(adapter)});
  while (entries_.size() > capacity_) entries_.pop_back();
}

void AdapterCache::drop(const NamedAdapter& named) {
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](const Entry& entry) { return entry.registration == named.registration; });
}

std::string AdapterCache::name_of(uint64_t adapter_id) const {
  const std::lock_guard lock(mutex_);
  const auto it = names_.find(adapter_id);
  return it == names_.end() ? "" : it->second;
}

}  // namespace quire::llm
