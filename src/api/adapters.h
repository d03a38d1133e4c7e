// SPDX-License-Identifier: Apache-2.0
// AdapterTable: the LoRA adapters of a server by their names, which requests give as `model`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "llm/adapters.h"

namespace quire::api {

// Any thread. An adapter stays in the table when its base model is unloaded, and is read again with it.
class AdapterTable {
 public:
  struct Entry {
    llm::NamedAdapter named;
    size_t model = 0;     // the number of its base model
    int64_t created = 0;  // Unix time
  };
  // A new registration for this name and path; it counts from add() on.
  static llm::NamedAdapter make(std::string name, std::filesystem::path path);

  // False if the name is taken and `replace` is false. `replaced` becomes the entry that had the name.
  bool add(Entry entry, bool replace, std::optional<Entry>& replaced);
  std::optional<Entry> remove(const std::string& name);
  std::optional<Entry> find(const std::string& name) const;
  std::vector<Entry> list() const;  // by name

 private:
  mutable std::mutex mutex_;  // guards what follows
  std::map<std::string, Entry> entries_;
};

}  // namespace quire::api
