// SPDX-License-Identifier: Apache-2.0
// DiskStore: KV pages as files of one folder, bounded in size, least recently used ones deleted first.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>

#include "kv/offload_types.h"
#include "kv/page_file.h"

namespace quire::kv {

// One folder with pages. Any thread. A file has its final name only when it is complete, and is never changed then; a
// file whose checksums do not match is deleted, with a warning, and counts as missing. Nothing here is fatal: a folder
// that cannot be written is only read, and what cannot be read is not there.
//
// One process at a time writes to a folder; it holds a lock on the file `lock` there. Another process only reads what
// the folder had when it was opened. Within a process, stores of one folder are one object.
class DiskStore {
 public:
  // Never null. A folder that cannot be made or read is an empty store, with a warning.
  static std::shared_ptr<DiskStore> open(const std::filesystem::path& folder, int64_t max_bytes);
  ~DiskStore();
  DiskStore(const DiskStore&) = delete;
  DiskStore& operator=(const DiskStore&) = delete;

  bool has(const PageName& name) const;
  std::vector<bool> has(std::span<const PageName> names) const;
  // The same, and marks the page as used just now.
  bool touch(const PageName& name);
  // Writes a page, after deleting old ones if it needs their room. False if it was not written.
  bool put(const PageName& name, std::span<const std::byte> page);
  // Reads a page of this size. False if it is not there or cannot be trusted; `page` then has any contents.
  bool get(const PageName& name, std::span<std::byte> page);

  bool writable() const { return writable_; }
  DiskStoreStats stats() const;
  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path file_of(const PageName& name) const;

 private:
  struct File {
    PageName name;
    int64_t bytes = 0;
  };
  DiskStore(std::filesystem::path folder, int64_t max_bytes) : folder_(std::move(folder)), max_bytes_(max_bytes) {}
  void start();
  void lock_folder();
  void scan();
  void add(const PageName& name, int64_t bytes);
  void forget(const PageName& name, bool delete_file);
  void make_room(int64_t bytes, const std::filesystem::path& reused = {});
  void stop_writing(const std::string& why);
  bool write_file(const std::filesystem::path& temporary, const std::filesystem::path& file, const PageHeader& header,
                  std::span<const std::byte> page, std::string& why);

  const std::filesystem::path folder_;
  const int64_t max_bytes_;
  int lock_fd_ = -1;
  std::atomic<bool> writable_ = false;
  std::atomic<uint64_t> next_temporary_ = 0;
  mutable std::mutex mutex_;  // of the rest
  std::list<File> files_;     // the least recently used first
  std::unordered_map<PageName, std::list<File>::iterator, Sha256ToSize> places_;
  DiskStoreStats stats_;
};

}  // namespace quire::kv
