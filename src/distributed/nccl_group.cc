// SPDX-License-Identifier: Apache-2.0
// Loads NCCL and adds its calls to streams.
#include <fmt/format.h>

#include <atomic>

#include "base/env.h"
#include "base/shared_library.h"
#include "distributed/device_group.h"

namespace quire::distributed {
namespace {

constexpr size_t kNcclIdBytes = 128;
struct NcclId {  // ncclUniqueId, which is passed by value
  char bytes[kNcclIdBytes] = {};
};
constexpr int kNcclSuccess = 0, kNcclInProgress = 7;
constexpr int kNcclUint8 = 1, kNcclUint32 = 3;  // ncclDataType_t
constexpr int kNcclSum = 0;                     // ncclRedOp_t

// NCCL's calls and their parameters; a communicator and a stream are pointers.
#define QUIRE_NCCL_FUNCTIONS(X)                                                                                       \
  X(ncclGetVersion, (int* version))                                                                                   \
  X(ncclGetUniqueId, (NcclId * id))                                                                                   \
  X(ncclCommInitRank, (void** comm, int ranks, NcclId id, int rank))                                                  \
  X(ncclCommDestroy, (void* comm))                                                                                    \
  X(ncclCommAbort, (void* comm))                                                                                      \
  X(ncclCommGetAsyncError, (void* comm, int* code))                                                                   \
  X(ncclAllGather, (const void* from, void* to, size_t count, int type, void* comm, void* stream))                    \
  X(ncclReduceScatter, (const void* from, void* to, size_t count, int type, int operation, void* comm, void* stream)) \
  X(ncclBroadcast, (const void* from, void* to, size_t count, int type, int root, void* comm, void* stream))          \
  X(ncclSend, (const void* from, size_t count, int type, int peer, void* comm, void* stream))                         \
  X(ncclRecv, (void* to, size_t count, int type, int peer, void* comm, void* stream))

struct NcclApi {
#define QUIRE_NCCL_MEMBER(name, parameters) int(*name) parameters = nullptr;
  QUIRE_NCCL_FUNCTIONS(QUIRE_NCCL_MEMBER)
#undef QUIRE_NCCL_MEMBER
  const char* (*error_text)(int code) = nullptr;
  const char* (*last_error)(void* comm) = nullptr;  // since 2.13
  int version = 0;                                  // 22707 for 2.27.7

  Failure error(const char* call, int code) const {
    const char* detail = last_error != nullptr ? last_error(nullptr) : "";
    std::string message = fmt::format("{} failed: {}", call, error_text(code));
    if (detail != nullptr && *detail != '\0') message += fmt::format(" ({})", detail);
    while (message.ends_with("\n)")) message.erase(message.size() - 2, 1);
    if (message.find("NCCL_DEBUG") == std::string::npos) message += "; NCCL_DEBUG=INFO shows more";
    return unavailable(message);
  }
};

// The library stays loaded: NCCL's threads may outlive the last communicator.
Result<NcclApi> load_nccl() {
  const std::string path = env("QUIRE_LIBNCCL").value_or("libnccl.so.2");
  SharedLibrary library(path);
  if (!library) {
    return unavailable({"several GPUs need NVIDIA's library NCCL, but ", path,
                        " cannot be loaded: install NVIDIA's package libnccl2, or name the file in QUIRE_LIBNCCL"});
  }
  NcclApi out;
#define QUIRE_NCCL_SYMBOL(name, parameters) {#name, reinterpret_cast<void**>(&out.name)},
  const LibrarySymbol symbols[] = {
      QUIRE_NCCL_FUNCTIONS(QUIRE_NCCL_SYMBOL){"ncclGetErrorString", reinterpret_cast<void**>(&out.error_text)}};
#undef QUIRE_NCCL_SYMBOL
  if (const char* missing = library.find(symbols)) {
    return unavailable(fmt::format("{} has no {}: install NCCL 2.7 or later", path, missing));
  }
  out.last_error = reinterpret_cast<const char* (*)(void*)>(library.symbol("ncclGetLastError"));
  library.keep();
  if (const int code = out.ncclGetVersion(&out.version)) return out.error("ncclGetVersion", code);
  return out;
}

class NcclGroup final : public DeviceGroup {
 public:
  NcclGroup(const NcclApi& api, void* comm, int rank, int size) : api_(api), comm_(comm), rank_(rank), size_(size) {}
  ~NcclGroup() override {
    if (!aborted_.exchange(true)) api_.ncclCommDestroy(comm_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string describe() const override {
    return fmt::format("{} GPU{} (NCCL {}.{}.{})", size_, size_ == 1 ? "" : "s", api_.version / 10000,
                       api_.version / 100 % 100, api_.version % 100);
  }

  Status all_gather(const void* mine, void* all, size_t bytes, void* stream) override {
    return status("ncclAllGather", api_.ncclAllGather(mine, all, bytes, kNcclUint8, comm_, stream));
  }
  Status merge_scatter(const void* blocks, void* mine, size_t bytes, void* stream) override {
    const bool words = bytes % sizeof(uint32_t) == 0;
    return status("ncclReduceScatter",
                  api_.ncclReduceScatter(blocks, mine, words ? bytes / sizeof(uint32_t) : bytes,
                                         words ? kNcclUint32 : kNcclUint8, kNcclSum, comm_, stream));
  }
  Status broadcast(void* data, size_t bytes, int root, void* stream) override {
    return status("ncclBroadcast", api_.ncclBroadcast(data, data, bytes, kNcclUint8, root, comm_, stream));
  }
  Status send(const void* data, size_t bytes, int to, void* stream) override {
    return status("ncclSend", api_.ncclSend(data, bytes, kNcclUint8, to, comm_, stream));
  }
  Status receive(void* data, size_t bytes, int from, void* stream) override {
    return status("ncclRecv", api_.ncclRecv(data, bytes, kNcclUint8, from, comm_, stream));
  }
  // This frees the communicator.
  void abort() override {
    if (!aborted_.exchange(true)) api_.ncclCommAbort(comm_);
  }
  Status check() const override {
    int code = 0;
    QUIRE_TRY(status("ncclCommGetAsyncError", api_.ncclCommGetAsyncError(comm_, &code)));
    return code == kNcclInProgress ? Status() : status("a transfer between GPUs", code);
  }

 private:
  Status status(const char* call, int code) const {
    if (code == kNcclSuccess) return {};
    return api_.error(call, code);
  }

  const NcclApi api_;
  void* const comm_;
  std::atomic<bool> aborted_ = false;
  const int rank_;
  const int size_;
};

// Whether all ranks got so far. The Error is this rank's own, or names the first that failed.
Status all_of(Group& host, const Status& mine, const char* what) {
  const uint8_t ok = mine.ok() ? 1 : 0;
  std::vector<uint8_t> all(static_cast<size_t>(host.size()));
  host.all_gather(std::as_bytes(std::span(&ok, 1)), std::as_writable_bytes(std::span(all)));
  if (!mine.ok()) return mine;
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r] == 0) return unavailable(fmt::format("rank {} could not {}; its log says why", r, what));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<DeviceGroup>> make_nccl_group(Group& host) {
  const auto api = load_nccl();
  Status mine = api.ok() ? Status() : Status(api.error());
  NcclId id;
  if (api.ok() && host.rank() == 0) {
    if (const int code = api->ncclGetUniqueId(&id)) mine = api->error("ncclGetUniqueId", code);
  }
  QUIRE_TRY(all_of(host, mine, "load NCCL"));
  host.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
  void* comm = nullptr;
  const int code = api->ncclCommInitRank(&comm, host.size(), id, host.rank());
  std::unique_ptr<DeviceGroup> out;
  if (code == kNcclSuccess) {
    out = std::make_unique<NcclGroup>(*api, comm, host.rank(), host.size());
  } else {
    mine = api->error("ncclCommInitRank", code);
  }
  QUIRE_TRY(all_of(host, mine, "join the group of GPUs"));
  return out;
}

}  // namespace quire::distributed
