// SPDX-License-Identifier: Apache-2.0
// The file format of one KV page on disk, with a checksum for every byte. docs/kv-cache.md describes it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/digest.h"
#include "base/result.h"
#include "base/sha256.h"

namespace quire::kv {

// Names a page on disk: a digest of everything that decides its bytes. Equal names mean equal bytes.
using PageName = Sha256::Value;

inline constexpr size_t kPageHeaderBytes = 128;
using PageHeader = std::array<std::byte, kPageHeaderBytes>;

// The bytes in front of a page's contents.
PageHeader page_header(const PageName& name, std::span<const std::byte> page);

// The digest that the contents must have, or an Error that says why the file cannot be trusted: it is no page file, has
// another version, is damaged, or holds another page or one of another size.
Result<Digest> check_page_header(const PageHeader& header, const PageName& name, size_t page_bytes);

}  // namespace quire::kv
