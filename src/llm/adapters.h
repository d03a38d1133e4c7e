// SPDX-License-Identifier: Apache-2.0
// AdapterCache: the LoRA adapters of a loaded model that are in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "model/model.h"

namespace quire::llm {

// An adapter that somebody has given a name. A plain value; a new one is made when the name gets other weights.
struct NamedAdapter {
  std::string name;
  std::filesystem::path path;
  uint64_t registration = 0;  // no two have the same
};

// Keeps the adapters that were used last, at most `capacity`; requests keep theirs alive anyway. What was dropped is
// read from its files again when it is next asked for. Any thread; two threads may read adapters at the same time.
class AdapterCache {
 public:
  AdapterCache(const model::Model& model, size_t capacity) : model_(model), capacity_(capacity) {}

  // Reads the files.
  Result<model::AdapterPtr> read(const std::filesystem::path& path) const;
  // The adapter with this registration, read if it is not in memory.
  Result<model::AdapterPtr> get(const NamedAdapter& adapter);
  // The adapter at a path, for callers without names; it stays what it was when it was first read under this key.
  Result<model::AdapterPtr> get(const std::filesystem::path& path, const std::string& key);
  // Takes an adapter that was read already.
  void put(const NamedAdapter& named, model::AdapterPtr adapter);
  void drop(const NamedAdapter& named);
  // The name with which an adapter was last asked for; "" if it is not known (any more).
  std::string name_of(uint64_t adapter_id) const;

 private:
  struct Entry {
    uint64_t registration;
    std::string name;
    model::AdapterPtr adapter;
  };
  const model::Model& model_;
  const size_t capacity_;
  mutable std::mutex mutex_;  // guards what follows
  std::list<Entry> entries_;  // the last one used first
  std::map<std::string, uint64_t> by_key_;
  std::map<uint64_t, std::string> names_;  // of adapters by their ids, also of some that are not in memory
};

}  // namespace quire::llm
