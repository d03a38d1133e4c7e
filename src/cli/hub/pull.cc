// SPDX-License-Identifier: Apache-2.0
// Downloads the files of a model: resuming, checks, retries, and one pull at a time.
#include "cli/hub/pull.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/env.h"
#include "base/file.h"
#include "cli/hub/digest.h"
#include "cli/hub/hub_address.h"
#include "cli/hub/hub_client.h"
#include "cli/hub/pull_record.h"

namespace quire::cli {
namespace fs = std::filesystem;
namespace {

constexpr int kMaxWaitMs = 30'000;
constexpr uint64_t kSpareDiskBytes = uint64_t{64} << 20;

Failure file_error(const std::string& doing, const fs::path& path, int error_number) {
  if (error_number == ENOSPC || error_number == EDQUOT) {
    return exhausted({"the disk is full: cannot ", doing, " '", path.string(),
                      "'; the downloaded part is kept, so free some space and pull again"});
  }
  return Error{ErrorCode::kInternal, "cannot " + doing + " '" + path.string() + "': " + std::strerror(error_number)};
}

// Holds the lock on a model's folder until the end of the scope. The lock ends with the process, so none is left over.
class FolderLock {
 public:
  static Result<FolderLock> take(const fs::path& folder, Progress& progress) {
    const auto path = folder / ".quire-pull.lock";
    FolderLock lock;
    lock.fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock.fd_ < 0) return file_error("make", path, errno);
    if (::flock(lock.fd_, LOCK_EX | LOCK_NB) == 0) return lock;
    progress.note("waiting for another pull of this model");
    while (::flock(lock.fd_, LOCK_EX) != 0) {
      if (errno != EINTR) return file_error("lock", path, errno);
    }
    return lock;
  }
  FolderLock(FolderLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FolderLock& operator=(FolderLock&&) = delete;
  ~FolderLock() {
    if (fd_ >= 0) ::close(fd_);
  }

 private:
  FolderLock() = default;
  int fd_ = -1;
};

// The file that a download is appended to. Owns the descriptor.
class PartFile {
 public:
  static Result<PartFile> open(const fs::path& path) {
    PartFile part;
    part.path_ = path;
    part.fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (part.fd_ < 0) return file_error("make", path, errno);
    const off_t end = ::lseek(part.fd_, 0, SEEK_END);
    if (end < 0) return file_error("read", path, errno);
    part.size_ = static_cast<uint64_t>(end);
    return part;
  }
  PartFile(PartFile&& other) noexcept
      : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}
  PartFile& operator=(PartFile&&) = delete;
  ~PartFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  uint64_t size() const { return size_; }

  Status append(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return file_error("write", path_, errno);
      size_ += static_cast<uint64_t>(n);
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return {};
  }
  Status begin_again() {
    if (::ftruncate(fd_, 0) != 0 || ::lseek(fd_, 0, SEEK_SET) != 0) return file_error("empty", path_, errno);
    size_ = 0;
    return {};
  }
  Status sync() {
    if (::fsync(fd_) != 0 && errno != EINVAL) return file_error("write", path_, errno);
    return {};
  }

 private:
  PartFile() = default;
  fs::path path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

// The first byte in "Content-Range: bytes 100-199/200"; nothing if it cannot be parsed.
std::optional<uint64_t> range_start(const HttpReply& reply) {
  const std::string* text = reply.header("content-range");
  if (text == nullptr || !text->starts_with("bytes ")) return std::nullopt;
  uint64_t start = 0;
  const char* begin = text->c_str() + 6;
  const auto [end, failed] = std::from_chars(begin, text->c_str() + text->size(), start);
  if (failed != std::errc() || end == begin || *end != '-') return std::nullopt;
  return start;
}

// The digest in a reply, for a file that has none in the listing: the linked file's ETag, else the ETag.
std::string stated_digest(const HttpReply& reply) {
  for (const char* name : {"x-linked-etag", "etag"}) {
    const std::string* etag = reply.header(name);
    if (etag == nullptr) continue;
    std::string_view hex = *etag;
    if (hex.starts_with("W/")) hex.remove_prefix(2);
    if (hex.size() >= 2 && hex.front() == '"' && hex.back() == '"') hex = hex.substr(1, hex.size() - 2);
    const std::string digest = digest_from_hex(hex);
    if (!digest.empty()) return digest;
  }
  return "";
}

// One pull of one model. Lives for one call of pull_model().
class Puller {
 public:
  Puller(const PullOptions& options, HubClient hub, HttpClient& http, Progress& progress)
      : options_(options), hub_(std::move(hub)), http_(http), progress_(progress) {}

  Result<fs::path> pull(const std::string& name, const std::string& quant);

 private:
  Result<HubRepository> list(const std::string& name);
  Status plan(const FileChoice& choice);
  Status check_space(const FileChoice& choice) const;
  Status fetch(HubFile file);
  Status download(HubFile& file, const fs::path& part_path);
  Status one_try(HubFile& file, PartFile& part, const fs::path& etag_path);
  Status verify(const HubFile& file, const fs::path& path);
  bool is_there(const HubFile& file);
  void wait(int attempt) const;

  fs::path final_path(const HubFile& file) const { return folder_ / fs::path(file.path); }
  fs::path part_path(const HubFile& file) const { return folder_ / fs::path(file.path + ".part"); }

  const PullOptions& options_;
  HubClient hub_;
  HttpClient& http_;
  Progress& progress_;
  fs::path folder_;
  HubRepository repository_;
  PullRecord record_;
};

void Puller::wait(int attempt) const {
  const int64_t ms = std::min<int64_t>(kMaxWaitMs, int64_t{options_.first_wait_ms} << std::min(attempt, 10));
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

// The listing gets fewer retries than a file: if the hub cannot be reached at all, the user should know soon.
Result<HubRepository> Puller::list(const std::string& name) {
  const int tries = std::min(options_.tries, 3);
  for (int attempt = 0;; ++attempt) {
    auto listing = hub_.list(name, options_.revision);
    if (listing.ok() || listing.error().code != ErrorCode::kUnavailable || attempt + 1 >= tries) return listing;
    wait(attempt);
  }
}

// Records the wanted files before the first download, so that an interrupted pull is recognised.
Status Puller::plan(const FileChoice& choice) {
  record_ = PullRecord::load(folder_);
  record_.name = repository_.name;
  record_.revision = repository_.commit;
  for (const auto& file : choice.files) {
    auto& entry = record_.files[file.path];
    const bool same = entry.done && entry.digest == file.digest && !file.digest.empty() && entry.size == file.size;
    std::error_code failed;
    const bool on_disk = fs::is_regular_file(final_path(file), failed) &&
                         fs::file_size(final_path(file), failed) == file.size && !failed;
    entry = {file.size, file.digest, same && on_disk};
  }
  // Files that an earlier pull did not finish and this one does not want are removed from the record.
  std::erase_if(record_.files, [&](const auto& entry) {
    const auto wanted = [&](const HubFile& file) { return file.path == entry.first; };
    return !entry.second.done && std::none_of(choice.files.begin(), choice.files.end(), wanted);
  });
  return record_.save(folder_);
}

Status Puller::check_space(const FileChoice& choice) const {
  uint64_t needed = 0;
  for (const auto& file : choice.files) {
    if (record_.files.at(file.path).done) continue;
    std::error_code missing;
    const uint64_t there = fs::file_size(part_path(file), missing);
    const uint64_t rest = missing || there > file.size ? file.size : file.size - there;
    needed = needed > UINT64_MAX - rest ? UINT64_MAX : needed + rest;
  }
  std::error_code failed;
  const auto space = fs::space(folder_, failed);
  if (failed || needed == 0) return {};
  if (space.available > kSpareDiskBytes && needed <= space.available - kSpareDiskBytes) return {};
  return exhausted({repository_.name, " needs ", human_bytes(needed), " more, but ", human_bytes(space.available),
                    " is free in '", folder_.string(), "': free some space, or set QUIRE_HOME to a larger disk"});
}

// Whether the file is on disk and correct, by the record or else by its checksum.
bool Puller::is_there(const HubFile& file) {
  if (record_.files.at(file.path).done) return true;
  std::error_code failed;
  if (file.digest.empty() || !fs::is_regular_file(final_path(file), failed)) return false;
  if (fs::file_size(final_path(file), failed) != file.size || failed) return false;
  const auto digest = file_digest(final_path(file), file.digest);
  return digest.ok() && *digest == file.digest;
}

Status Puller::verify(const HubFile& file, const fs::path& path) {
  std::error_code failed;
  const uint64_t size = fs::file_size(path, failed);
  if (failed) return Error{ErrorCode::kInternal, "cannot read '" + path.string() + "': " + failed.message()};
  std::string wrong;
  if (file.size_known && size != file.size) {
    wrong = "has " + std::to_string(size) + " bytes instead of " + std::to_string(file.size);
  } else if (!file.digest.empty()) {
    QUIRE_ASSIGN(const std::string digest, file_digest(path, file.digest));
    if (digest != file.digest) wrong = "has the checksum " + digest + " instead of " + file.digest;
  }
  if (wrong.empty()) return {};
  fs::remove(path, failed);
  fs::remove(path.string() + ".etag", failed);
  return corrupt(
      {file.path, " of ", repository_.name, " ", wrong,
       ": the downloaded file was deleted; pull again, and if it is still wrong, tell the owner of the model"});
}

// One request for the missing part of a file. kUnavailable: worth another try.
Status Puller::one_try(HubFile& file, PartFile& part, const fs::path& etag_path) {
  HttpRequest request;
  request.url = hub_.file_url(repository_, file.path);
  request.token = hub_.token();
  const auto etag = read_file(etag_path, 4096);
  if (part.size() > 0 && etag.ok() && !etag->empty()) request.if_range = *etag;
  // Without an ETag, the partial file could be from an older version of the file: only the checksum shows this.
  if (part.size() > 0 && (!request.if_range.empty() || !file.digest.empty())) request.range_from = part.size();
  bool begun = false;
  bool misplaced = false;
  const auto begin = [&](const HttpReply& reply) -> Status {
    begun = true;
    if (file.digest.empty()) file.digest = stated_digest(reply);
    if (reply.status == 206) {
      misplaced = range_start(reply) != part.size();
      if (misplaced) return unavailable({"the hub sent another part of ", file.path, " than requested"});
    } else if (part.size() > 0) {
      QUIRE_TRY(part.begin_again());  // the server does not resume, or the file has changed
      progress_.note("the hub sends " + file.path + " from the beginning");
      progress_.set(0);
    }
    const std::string* stated = reply.header("etag");
    const bool strong = stated != nullptr && stated->starts_with("\"");
    // If the ETag cannot be saved, the next try depends on the checksum alone; that is no reason to fail.
    if (!write_file(etag_path, strong ? *stated : "").ok()) ::unlink(etag_path.c_str());
    return {};
  };
  const auto sink = [&](const HttpReply& reply, std::string_view piece) -> Status {
    if (reply.status != 200 && reply.status != 206) return {};
    if (!begun) QUIRE_TRY(begin(reply));
    if (file.size_known && part.size() + piece.size() > file.size) {
      return corrupt({"the hub sent more of ", file.path, " than the ", file.size, " bytes that it listed"});
    }
    QUIRE_TRY(part.append(piece));
    progress_.set(part.size());
    return {};
  };
  auto got = http_.get(request, sink);
  if (misplaced) QUIRE_TRY(part.begin_again());
  if (!got.ok()) return got.failure();
  if (got->status == 416) {
    // Either nothing is left to send, or the partial file is too long: the final check decides, or it restarts.
    if (file.size_known && part.size() == file.size) return {};
    QUIRE_TRY(part.begin_again());
    return unavailable({"the hub does not have the requested part of ", file.path});
  }
  if (got->status != 200 && got->status != 206) {
    return hub_.describe_status(*got, file.path + " of " + repository_.name);
  }
  if (!begun && file.digest.empty()) file.digest = stated_digest(*got);  // an empty file has no body
  if (!begun && got->status == 200) QUIRE_TRY(part.begin_again());
  if (file.size_known && part.size() < file.size) {
    return unavailable({"the connection ended after ", part.size(), " of ", file.size, " bytes of ", file.path});
  }
  return {};
}

// Repeats one_try() until the file is complete; the count of tries restarts whenever new bytes arrive.
Status Puller::download(HubFile& file, const fs::path& part_path) {
  const fs::path etag_path = part_path.string() + ".etag";
  QUIRE_ASSIGN(PartFile part, PartFile::open(part_path));
  if (file.size_known && part.size() > file.size) QUIRE_TRY(part.begin_again());
  if (part.size() > 0) {
    progress_.note("resuming " + file.path + " at " + human_bytes(part.size()) +
                   (file.size_known ? " of " + human_bytes(file.size) : "") + " from an earlier pull");
  }
  progress_.start(file.path, file.size, part.size());
  uint64_t furthest = part.size();
  for (int attempt = 0;; ++attempt) {
    if (file.size_known && part.size() == file.size && !file.digest.empty() && part.size() > 0) break;
    const Status tried = one_try(file, part, etag_path);
    if (tried.ok()) break;
    if (tried.error().code != ErrorCode::kUnavailable) return tried;
    // Only reaching further than before counts: a server that always restarts and breaks off must not keep us for ever.
    if (part.size() > furthest) attempt = 0;
    furthest = std::max(furthest, part.size());
    if (attempt + 1 >= options_.tries) {
      return unavailable({tried.error().message, " (gave up after ", options_.tries,
                          " tries; the downloaded part is kept, so pull again to resume)"});
    }
    progress_.note(tried.error().message + "; trying again");
    wait(attempt);
  }
  return part.sync();
}

Status Puller::fetch(HubFile file) {
  if (is_there(file)) {
    record_.files[file.path].done = true;
    return record_.save(folder_);
  }
  const auto path = final_path(file);
  const auto part = part_path(file);
  std::error_code failed;
  fs::create_directories(path.parent_path(), failed);
  if (failed) return file_error("create the folder", path.parent_path(), failed.value());
  const Status downloaded = download(file, part);
  if (!downloaded.ok()) {
    progress_.clear();
    return downloaded;
  }
  progress_.finish();
  QUIRE_TRY(verify(file, part));
  fs::rename(part, path, failed);
  if (failed) return file_error("rename", part, failed.value());
  fs::remove(part.string() + ".etag", failed);
  record_.files[file.path] = {file.size_known ? file.size : fs::file_size(path, failed), file.digest, true};
  return record_.save(folder_);
}

Result<fs::path> Puller::pull(const std::string& name, const std::string& quant) {
  QUIRE_ASSIGN(repository_, list(name));
  ChoiceOptions wanted{name, options_.include, quant};
  QUIRE_ASSIGN(const FileChoice choice, choose_files(repository_.files, wanted));
  const fs::path models = options_.models.empty() ? models_folder() : options_.models;
  folder_ = models / fs::path(name);
  std::error_code failed;
  fs::create_directories(folder_, failed);
  if (failed) return file_error("create the folder", folder_, failed.value());
  QUIRE_ASSIGN(const FolderLock lock, FolderLock::take(folder_, progress_));
  QUIRE_TRY(plan(choice));
  QUIRE_TRY(check_space(choice));
  if (!choice.note.empty()) progress_.note(name + ": " + choice.note);
  for (const auto& file : choice.files) QUIRE_TRY(fetch(file));
  // The path of what was just pulled, even if there are other quantisations beside it.
  const std::string& first = choice.files.front().path;
  const bool only_gguf = std::all_of(choice.files.begin(), choice.files.end(),
                                     [](const HubFile& file) { return file.path.ends_with(".gguf"); });
  const bool one_model = only_gguf && gguf_part(first).parts == static_cast<int>(choice.files.size());
  if (first.ends_with(".gguf") && (options_.include.empty() || one_model)) {
    const auto part_one = std::find_if(choice.files.begin(), choice.files.end(),
                                       [](const HubFile& file) { return gguf_part(file.path).part == 1; });
    return folder_ / fs::path(part_one == choice.files.end() ? first : part_one->path);
  }
  return folder_;
}

// A glob for all parts of a split GGUF, from one of them: "x-00001-of-00003.gguf" -> "x-?????-of-00003.gguf".
std::string all_parts(std::string path) {
  constexpr size_t kNumber = 5, kAfter = 14;  // "00001", "-of-00003.gguf"
  if (gguf_part(path).parts > 1) path.replace(path.size() - kAfter - kNumber, kNumber, kNumber, '?');
  return path;
}

// A glob that matches only this path.
std::string glob_of(const std::string& path) {
  std::string out;
  for (const char c : path) out += c == '*' || c == '?' || c == '[' ? std::string("[") + c + "]" : std::string(1, c);
  return out;
}

// Turns the address of a page into a name, a revision and the files of the page.
Status settle_address(const std::string& endpoint, PullOptions& options) {
  QUIRE_ASSIGN(const HubAddress address, parse_hub_address(options.name, endpoint));
  options.name = address.name;
  if (!address.revision.empty()) {
    if (options.revision != PullOptions{}.revision && options.revision != address.revision) {
      return invalid_argument(
          {"--revision is '", options.revision, "', but the address has '", address.revision, "': give one of them"});
    }
    options.revision = address.revision;
  }
  if (address.path.empty() || !options.include.empty()) return {};
  if (address.is_folder) {
    options.include.push_back(glob_of(address.path) + "/*");
  } else if (address.path.ends_with(".gguf")) {
    options.include.push_back(all_parts(glob_of(address.path)));
  }  // for another file, such as model.safetensors, the model needs the files beside it, too
  return {};
}

}  // namespace

Result<fs::path> pull_model(const PullOptions& given, Progress& progress) {
  PullOptions options = given;
  const std::string endpoint =
      options.endpoint.empty() ? env("HF_ENDPOINT").value_or(std::string(kDefaultEndpoint)) : options.endpoint;
  if (is_hub_address(options.name)) QUIRE_TRY(settle_address(endpoint, options));
  const size_t colon = options.name.find(':');
  const std::string name = options.name.substr(0, colon);
  std::string quant = options.quant;
  if (quant.empty() && colon != std::string::npos) quant = options.name.substr(colon + 1);
  // A quantisation has the same characters as a name.
  if (!is_model_name(name) || (colon != std::string::npos && !is_model_name("x/" + options.name.substr(colon + 1)))) {
    return invalid_argument({"'", options.name, "' is not the name of a model on a hub: it must look like owner/name"});
  }
  if (options.revision.empty()) return invalid_argument("--revision is empty: give a branch, a tag or a commit");
  int stall_seconds = options.stall_seconds;
  if (stall_seconds <= 0) stall_seconds = std::atoi(env("HF_HUB_DOWNLOAD_TIMEOUT").value_or("30").c_str());
  HttpClient http(std::max(1, stall_seconds), options.cancelled);
  const std::string token = options.token.empty() ? env("HF_TOKEN").value_or("") : options.token;
  QUIRE_ASSIGN(HubClient hub, HubClient::open(endpoint, token, http));
  Puller puller(options, std::move(hub), http, progress);
  return puller.pull(name, quant);
}

}  // namespace quire::cli
