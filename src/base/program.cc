// SPDX-License-Identifier: Apache-2.0
// Finds the memory (or, where the system does not tell, the file) that this function is in.
#include "base/program.h"

#include <dlfcn.h>
#ifdef __linux__
#include <link.h>
#endif

#include "base/file.h"

namespace quire {

#ifdef __linux__
namespace {

struct Search {
  uintptr_t address = 0;  // a function of the part that is wanted
  std::string digests;
};

// Adds the digests of the part's read-only memory. Addresses that differ between runs are in writable memory.
int add_part(dl_phdr_info* info, size_t, void* data) {
  Search& search = *static_cast<Search*>(data);
  const std::span<const ElfW(Phdr)> segments(info->dlpi_phdr, info->dlpi_phnum);
  const auto begin = [&](const ElfW(Phdr) & segment) { return info->dlpi_addr + segment.p_vaddr; };
  bool found = false;
  for (const ElfW(Phdr) & segment : segments) {
    if (segment.p_type != PT_LOAD) continue;
    found |= search.address >= begin(segment) && search.address < begin(segment) + segment.p_memsz;
  }
  if (!found) return 0;
  for (const ElfW(Phdr) & segment : segments) {
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) != 0 || (segment.p_flags & PF_R) == 0) continue;
    const auto* bytes = reinterpret_cast<const std::byte*>(begin(segment));
    search.digests += digest_of(std::span(bytes, segment.p_filesz)).hex();
  }
  return 1;
}

}  // namespace

Digest program_digest() {
  Search search;
  search.address = reinterpret_cast<uintptr_t>(&program_digest);
  dl_iterate_phdr(add_part, &search);
  return digest_of(search.digests);
}
#else
Digest program_digest() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&program_digest), &info) == 0) return {};
  const auto file = MappedFile::open(info.dli_fname);
  return file.ok() ? digest_of((*file)->bytes()) : Digest{};
}
#endif

}  // namespace quire
