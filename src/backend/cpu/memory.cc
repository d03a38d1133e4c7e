// SPDX-License-Identifier: Apache-2.0
// PageMemory over mmap.
#include "backend/cpu/memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <string>
#include <utility>

namespace quire::cpu {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSmallPage = size_t{16} << 10;  // the largest base page among the systems we run on
}  // namespace

PageMemory::PageMemory(PageMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      mapped_(std::exchange(other.mapped_, 0)) {}

PageMemory& PageMemory::operator=(PageMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

PageMemory::~PageMemory() {
  if (data_ != nullptr) munmap(data_, mapped_);
}

Result<PageMemory> PageMemory::allocate(size_t bytes) {
  PageMemory memory;
  if (bytes == 0) return memory;
  const bool huge = bytes >= kHugePage;
  const size_t unit = huge ? kHugePage : kSmallPage;
  const auto refuse = [&] {
    return exhausted("cannot reserve " + std::to_string(bytes) + " bytes of memory; use a smaller model or cache");
  };
  if (bytes > SIZE_MAX / 2) return refuse();
  const size_t mapped = (bytes + unit - 1) / unit * unit;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
  flags |= MAP_NORESERVE;
#endif
  // Over-reserve by one unit so that the block can start on a huge page; the edges are given back.
  const size_t reserve = huge ? mapped + kHugePage : mapped;
  void* base = mmap(nullptr, reserve, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (base == MAP_FAILED) return refuse();
  const auto start = reinterpret_cast<uintptr_t>(base);
  const uintptr_t aligned = huge ? (start + kHugePage - 1) / kHugePage * kHugePage : start;
  if (aligned > start) munmap(base, aligned - start);
  const uintptr_t end = start + reserve;
  if (end > aligned + mapped) munmap(reinterpret_cast<void*>(aligned + mapped), end - aligned - mapped);
  memory.data_ = reinterpret_cast<void*>(aligned);
  memory.bytes_ = bytes;
  memory.mapped_ = mapped;
#ifdef MADV_HUGEPAGE
  if (huge) madvise(memory.data_, mapped, MADV_HUGEPAGE);
#endif
  return memory;
}

}  // namespace quire::cpu
