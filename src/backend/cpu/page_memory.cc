// SPDX-License-Identifier: Apache-2.0
// PageMemory over mmap.
#include "backend/cpu/page_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <mutex>
#include <string>

#include "base/math.h"

namespace quire::cpu {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSmallPage = size_t{64} << 10;  // the largest base page among the systems we run on
constexpr size_t kPieceAlign = size_t{4} << 10;
// A mapping that pieces share, and from which size on a piece gets one of its own. Address space that no piece takes is
// never committed.
constexpr size_t kShared = size_t{64} << 20;
constexpr size_t kLargePiece = size_t{16} << 20;

// Kernels with base pages of 16 or 64 KiB have huge ones of 32 or 512 MiB: too much to commit for a first touch.
bool huge_pages_are_small() {
  static const bool small = [] {
    std::ifstream file("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    size_t bytes = 0;
    return !(file >> bytes) || bytes <= kHugePage;
  }();
  return small;
}

}  // namespace

class PageMemory::Mapping {
 public:
  static Result<std::shared_ptr<Mapping>> make(size_t bytes) {
    const auto refuse = [&] {
      return exhausted({"cannot reserve ", bytes, " bytes of memory; use a smaller model or cache"});
    };
    if (bytes > SIZE_MAX / 2) return refuse();
    const bool huge = bytes >= kHugePage;
    auto mapping = std::make_shared<Mapping>();
    mapping->size_ = round_up(bytes, kSmallPage);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
    flags |= MAP_NORESERVE;
#endif
    // Over-reserve so that the block can start on a huge page; the edges are given back.
    const size_t reserve = mapping->size_ + (huge ? kHugePage : 0);
    void* base = mmap(nullptr, reserve, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (base == MAP_FAILED) return refuse();
    const auto start = reinterpret_cast<uintptr_t>(base);
    const uintptr_t aligned = huge ? round_up(start, kHugePage) : start;
    const uintptr_t end = aligned + mapping->size_;
    if (aligned > start) munmap(base, aligned - start);
    if (start + reserve > end) munmap(reinterpret_cast<void*>(end), start + reserve - end);
    mapping->data_ = reinterpret_cast<char*>(aligned);
#ifdef MADV_HUGEPAGE
    if (huge) madvise(mapping->data_, mapping->size_, huge_pages_are_small() ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#endif
    return mapping;
  }
  Mapping() = default;
  ~Mapping() {
    if (data_ != nullptr) munmap(data_, size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // The next `bytes` of it, or null when so many are not left.
  void* take(size_t bytes) {
    if (bytes > size_ - used_) return nullptr;
    void* at = data_ + used_;
    used_ += std::min(round_up(bytes, kPieceAlign), size_ - used_);
    return at;
  }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
  size_t used_ = 0;
};

Result<PageMemory> PageMemory::allocate(size_t bytes) {
  PageMemory memory;
  if (bytes == 0) return memory;
  QUIRE_ASSIGN(memory.mapping_, Mapping::make(bytes));
  memory.data_ = memory.mapping_->take(bytes);
  memory.bytes_ = bytes;
  return memory;
}

Result<PageMemory> PageMemory::allocate_piece(size_t bytes) {
  if (bytes == 0 || bytes >= kLargePiece) return allocate(bytes);
  // The mapping that still has room. Its pieces own it, not this: a process without a model holds nothing.
  static std::mutex mutex;
  static std::weak_ptr<Mapping> current;
  const std::lock_guard lock(mutex);
  PageMemory memory;
  memory.bytes_ = bytes;
  memory.mapping_ = current.lock();
  if (memory.mapping_ != nullptr) memory.data_ = memory.mapping_->take(bytes);
  if (memory.data_ == nullptr) {
    QUIRE_ASSIGN(memory.mapping_, Mapping::make(kShared));
    memory.data_ = memory.mapping_->take(bytes);
    current = memory.mapping_;
  }
  return memory;
}

}  // namespace quire::cpu
