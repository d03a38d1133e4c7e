// SPDX-License-Identifier: Apache-2.0
// A libnccl whose GPUs are threads of one process and whose device memory is the host's: it moves the bytes at once, and
// ignores the stream.
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "distributed/group.h"

namespace {

using quire::distributed::Group;

struct FakeId {
  char bytes[128] = {};
};
constexpr int kSuccess = 0, kInvalidArgument = 4;
constexpr int kByte = 1, kWord = 3;

std::mutex g_mutex;
int g_next_id = 1;
std::map<int, std::vector<std::unique_ptr<Group>>> g_groups;  // by id; a rank takes its end

std::span<const std::byte> bytes_of(const void* data, size_t count) {
  return {static_cast<const std::byte*>(data), count};
}
std::span<std::byte> bytes_of(void* data, size_t count) {
  return {static_cast<std::byte*>(data), count};
}
Group& group_of(void* comm) {
  return *static_cast<Group*>(comm);
}

}  // namespace

// The fake never gives up.
void quire::distributed::end_process(const std::string&) {
  std::abort();
}

extern "C" {

int ncclGetVersion(int* version) {
  *version = 22707;
  return kSuccess;
}
const char* ncclGetErrorString(int) {
  return "invalid argument";
}
const char* ncclGetLastError(void*) {
  return "the fake says no\n";
}
int ncclGetUniqueId(FakeId* id) {
  const std::lock_guard lock(g_mutex);
  std::memcpy(id->bytes + 64, &g_next_id, sizeof g_next_id);
  ++g_next_id;
  return kSuccess;
}
// A group of 7 is refused, for the test of errors.
int ncclCommInitRank(void** comm, int ranks, FakeId id, int rank) {
  if (ranks == 7) return kInvalidArgument;
  int number = 0;
  std::memcpy(&number, id.bytes + 64, sizeof number);
  const std::lock_guard lock(g_mutex);
  std::vector<std::unique_ptr<Group>>& ends = g_groups[number];
  if (ends.empty()) ends = quire::distributed::make_thread_group(ranks);
  *comm = ends[static_cast<size_t>(rank)].release();
  return kSuccess;
}
int ncclCommDestroy(void* comm) {
  delete &group_of(comm);
  return kSuccess;
}
int ncclCommAbort(void* comm) {
  return ncclCommDestroy(comm);
}
int ncclCommGetAsyncError(void*, int* code) {
  *code = kSuccess;
  return kSuccess;
}
int ncclAllGather(const void* from, void* to, size_t count, int type, void* comm, void*) {
  if (type != kByte) return kInvalidArgument;
  Group& group = group_of(comm);
  group.all_gather(bytes_of(from, count), bytes_of(to, count * static_cast<size_t>(group.size())));
  return kSuccess;
}
// Sums of bytes and of words of 32 bits.
int ncclReduceScatter(const void* from, void* to, size_t count, int type, int operation, void* comm, void*) {
  if ((type != kByte && type != kWord) || operation != 0) return kInvalidArgument;
  Group& group = group_of(comm);
  const size_t bytes = count * (type == kWord ? 4 : 1), all = bytes * static_cast<size_t>(group.size());
  std::vector<std::byte> gathered(all * static_cast<size_t>(group.size()));
  group.all_gather(bytes_of(from, all), gathered);
  const size_t first = bytes * static_cast<size_t>(group.rank());
  for (size_t i = 0; i < count; ++i) {
    uint32_t sum = 0;
    for (size_t at = first; at < gathered.size(); at += all) {
      uint32_t one = 0;
      std::memcpy(&one, gathered.data() + at + i * bytes / count, bytes / count);
      sum += one;
    }
    std::memcpy(static_cast<std::byte*>(to) + i * bytes / count, &sum, bytes / count);
  }
  return kSuccess;
}
int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, void* comm, void*) {
  if (type != kByte || from != to) return kInvalidArgument;
  group_of(comm).broadcast(bytes_of(to, count), root);
  return kSuccess;
}
int ncclSend(const void* from, size_t count, int type, int peer, void* comm, void*) {
  if (type != kByte) return kInvalidArgument;
  group_of(comm).send(bytes_of(from, count), peer);
  return kSuccess;
}
int ncclRecv(void* to, size_t count, int type, int peer, void* comm, void*) {
  if (type != kByte) return kInvalidArgument;
  group_of(comm).receive(bytes_of(to, count), peer);
  return kSuccess;
}
}
