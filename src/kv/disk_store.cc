// SPDX-License-Identifier: Apache-2.0
// Page files: written under a temporary name and renamed, read with every check, found again by their names.
#include "kv/disk_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "base/log.h"

namespace quire::kv {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSuffix = ".kv";
constexpr const char* kTemporary = "new-";

// A file descriptor that is closed at the end of the scope.
class Descriptor {
 public:
  Descriptor(const fs::path& file, int flags) : fd_(::open(file.c_str(), flags | O_CLOEXEC, 0600)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

bool write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(fd, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(done));
  }
  return true;
}

bool read_all(int fd, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::read(fd, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(done));
  }
  return true;
}

std::optional<PageName> name_of(const std::string& file) {
  if (file.size() != 64 + std::strlen(kSuffix) || !file.ends_with(kSuffix)) return std::nullopt;
  PageName name;
  for (size_t i = 0; i < name.size(); ++i) {
    int byte = 0;
    for (const char c : {file[2 * i], file[2 * i + 1]}) {
      const bool digit = c >= '0' && c <= '9';
      if (!digit && !(c >= 'a' && c <= 'f')) return std::nullopt;
      byte = byte * 16 + (digit ? c - '0' : c - 'a' + 10);
    }
    name[i] = static_cast<uint8_t>(byte);
  }
  return name;
}

struct Found {
  PageName name;
  int64_t bytes = 0;
  std::pair<int64_t, int64_t> used;  // seconds and nanoseconds
};

// The page files of one of the 256 folders.
void find_files(const fs::path& folder, std::vector<Found>& out) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::optional<PageName> name = name_of(it->path().filename().string());
    struct stat info {};
    if (!name || ::stat(it->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
#ifdef __APPLE__
    const timespec& used = info.st_mtimespec;
#else
    const timespec& used = info.st_mtim;
#endif
    out.push_back({*name, static_cast<int64_t>(info.st_size), {used.tv_sec, used.tv_nsec}});
  }
}

}  // namespace

std::shared_ptr<DiskStore> DiskStore::open(const fs::path& folder, int64_t max_bytes) {
  static std::mutex mutex;
  static std::map<fs::path, std::weak_ptr<DiskStore>> stores;
  std::error_code ignored;
  const fs::path path = fs::weakly_canonical(fs::absolute(folder, ignored), ignored);
  const std::lock_guard lock(mutex);
  std::weak_ptr<DiskStore>& known = stores[path];
  std::shared_ptr<DiskStore> store = known.lock();
  if (store == nullptr) {
    store = std::shared_ptr<DiskStore>(new DiskStore(path.empty() ? folder : path, max_bytes));
    store->start();
    known = store;
  }
  return store;
}

void DiskStore::start() {
  std::error_code error;
  if (!fs::exists(folder_, error)) {
    fs::create_directories(folder_, error);
    if (!error) fs::permissions(folder_, fs::perms::owner_all, error);  // pages tell what users wrote
  }
  if (!fs::is_directory(folder_, error)) {
    log_warn("KV offload: '{}' cannot be made or is no folder; there is no disk tier", folder_.string());
    return;
  }
  lock_folder();
  scan();
  if (writable_) make_room(0);
}

DiskStore::~DiskStore() {
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

void DiskStore::lock_folder() {
  Descriptor lock(folder_ / "lock", O_RDWR | O_CREAT);
  if (lock.get() < 0) {
    log_warn("KV offload: '{}' cannot be written ({}); its pages are only read", folder_.string(),
             std::strerror(errno));
    return;
  }
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    log_warn("KV offload: another server writes to '{}'; its pages are only read", folder_.string());
    return;
  }
  lock_fd_ = lock.release();
  writable_ = true;
}

// Takes over the files that are there. What a crash has left unfinished is deleted.
void DiskStore::scan() {
  std::vector<Found> found;
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (name.size() == 2 && it->is_directory(ignored)) {
      find_files(it->path(), found);
    } else if (writable_ && name.starts_with(kTemporary)) {
      fs::remove(it->path(), ignored);
    }
  }
  std::ranges::sort(found, {}, &Found::used);
  const std::lock_guard lock(mutex_);
  for (const Found& file : found) add(file.name, file.bytes);
}

fs::path DiskStore::file_of(const PageName& name) const {
  const std::string digits = hex(name);
  return folder_ / digits.substr(0, 2) / (digits + kSuffix);
}

// REQUIRES: mutex_ is held.
void DiskStore::add(const PageName& name, int64_t bytes) {
  const auto [place, fresh] = places_.try_emplace(name);
  if (fresh) {
    place->second = files_.insert(files_.end(), {name, 0});
    ++stats_.files;
  }
  stats_.bytes += bytes - place->second->bytes;
  place->second->bytes = bytes;
}

void DiskStore::forget(const PageName& name, bool delete_file) {
  {
    const std::lock_guard lock(mutex_);
    const auto place = places_.find(name);
    if (place != places_.end()) {
      --stats_.files;
      stats_.bytes -= place->second->bytes;
      files_.erase(place->second);
      places_.erase(place);
    }
  }
  if (delete_file && writable_) ::unlink(file_of(name).c_str());
}

bool DiskStore::has(const PageName& name) const {
  const std::lock_guard lock(mutex_);
  return places_.contains(name);
}

std::vector<bool> DiskStore::has(std::span<const PageName> names) const {
  const std::lock_guard lock(mutex_);
  std::vector<bool> out;
  for (const PageName& name : names) out.push_back(places_.contains(name));
  return out;
}

bool DiskStore::touch(const PageName& name) {
  const std::lock_guard lock(mutex_);
  const auto place = places_.find(name);
  if (place == places_.end()) return false;
  files_.splice(files_.end(), files_, place->second);
  return true;
}

DiskStoreStats DiskStore::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

// Deletes the least recently used files until there is room for this many bytes. One of just this size gets the name
// `reused` instead, if that is given: writing over it is cheaper than a new file.
void DiskStore::make_room(int64_t bytes, const fs::path& reused) {
  bool found = false;
  for (;;) {
    File oldest;
    {
      const std::lock_guard lock(mutex_);
      if (files_.empty() || stats_.bytes + bytes <= max_bytes_) return;
      oldest = files_.front();
      ++stats_.evicted;
    }
    const bool reuse = !found && !reused.empty() && oldest.bytes == bytes;
    forget(oldest.name, !reuse);
    if (!reuse) continue;
    found = ::rename(file_of(oldest.name).c_str(), reused.c_str()) == 0;
    if (!found) ::unlink(file_of(oldest.name).c_str());
  }
}

// From here on the folder is only read.
void DiskStore::stop_writing(const std::string& why) {
  if (!writable_.exchange(false)) return;
  log_warn("KV offload: no more pages are written to '{}': {}", folder_.string(), why);
}

bool DiskStore::write_file(const fs::path& temporary, const fs::path& file, const PageHeader& header,
                           std::span<const std::byte> page, std::string& why) {
  bool done = false;
  {
    const Descriptor out(temporary, O_WRONLY | O_CREAT);
    done = out.get() >= 0 && write_all(out.get(), header) && write_all(out.get(), page) &&
           ::ftruncate(out.get(), static_cast<off_t>(header.size() + page.size())) == 0;
    if (!done) why = std::strerror(errno);
  }
  if (done && ::rename(temporary.c_str(), file.c_str()) != 0) {
    // The first file of its folder.
    done = ::mkdir(file.parent_path().c_str(), 0700) == 0 && ::rename(temporary.c_str(), file.c_str()) == 0;
    if (!done) why = std::strerror(errno);
  }
  if (!done) ::unlink(temporary.c_str());
  return done;
}

bool DiskStore::put(const PageName& name, std::span<const std::byte> page) {
  const auto bytes = static_cast<int64_t>(kPageHeaderBytes + page.size());
  if (!writable_ || bytes > max_bytes_) return false;
  if (touch(name)) return true;
  const fs::path temporary = folder_ / (kTemporary + std::to_string(next_temporary_++));
  make_room(bytes, temporary);
  std::string why;
  if (!write_file(temporary, file_of(name), page_header(name, page), page, why)) {
    stop_writing(why);
    return false;
  }
  const std::lock_guard lock(mutex_);
  add(name, bytes);
  return true;
}

bool DiskStore::get(const PageName& name, std::span<std::byte> page) {
  const fs::path file = file_of(name);
  const bool known = has(name);
  const Descriptor in(file, O_RDONLY);
  if (in.get() < 0) {  // deleted by the process that writes, or by a person
    forget(name, false);
    return false;
  }
  const auto check = [&]() -> Status {
    struct stat info {};
    const size_t size = kPageHeaderBytes + page.size();
    if (::fstat(in.get(), &info) != 0) return corrupt(std::strerror(errno));
    PageHeader header;
    if (!read_all(in.get(), header)) return corrupt("it is shorter than a header");
    QUIRE_ASSIGN(const Digest digest, check_page_header(header, name, page.size()));
    if (static_cast<size_t>(info.st_size) != size) {
      return corrupt({"it has ", info.st_size, " bytes, not ", size});
    }
    if (!read_all(in.get(), page)) return corrupt("it cannot be read");
    if (digest_of(page) != digest) return corrupt("its checksum is wrong");
    return {};
  };
  if (const Status status = check(); !status.ok()) {
    if (known && !has(name)) return false;  // it was evicted meanwhile, and is being written over
    log_warn("KV offload: '{}' is ignored: {}", file.string(), status.error().message);
    {
      const std::lock_guard lock(mutex_);
      ++stats_.refused;
    }
    forget(name, true);
    return false;
  }
  touch(name);
  if (writable_) ::futimens(in.get(), nullptr);  // the order of use survives a restart
  return true;
}

}  // namespace quire::kv
