// SPDX-License-Identifier: Apache-2.0
// Writes and checks the header of a page file: little-endian fields, zeros, and the header's own digest at its end.
#include "kv/page_file.h"

#include <bit>
#include <cstring>
#include <string>

namespace quire::kv {
namespace {

static_assert(std::endian::native == std::endian::little, "the fields are written as they are in memory");

constexpr char kMagic[8] = {'q', 'u', 'i', 'r', 'e', 'K', 'V', '\n'};
constexpr uint32_t kVersion = 1;

struct Fields {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;
  uint8_t name[32];
  uint64_t page_bytes;
  uint64_t page_digest[2];
  uint8_t zeros[40];
  uint64_t header_digest[2];  // of all bytes before it
};
static_assert(sizeof(Fields) == kPageHeaderBytes && offsetof(Fields, header_digest) == kPageHeaderBytes - 16);

Digest digest_of_fields(const PageHeader& header) {
  return digest_of(std::span(header).first(offsetof(Fields, header_digest)));
}

}  // namespace

PageHeader page_header(const PageName& name, std::span<const std::byte> page) {
  Fields fields{};
  std::memcpy(fields.magic, kMagic, sizeof kMagic);
  fields.version = kVersion;
  fields.header_bytes = kPageHeaderBytes;
  std::memcpy(fields.name, name.data(), name.size());
  fields.page_bytes = page.size();
  const Digest digest = digest_of(page);
  fields.page_digest[0] = digest.high;
  fields.page_digest[1] = digest.low;
  PageHeader header;
  std::memcpy(header.data(), &fields, sizeof fields);
  const Digest own = digest_of_fields(header);
  fields.header_digest[0] = own.high;
  fields.header_digest[1] = own.low;
  std::memcpy(header.data(), &fields, sizeof fields);
  return header;
}

Result<Digest> check_page_header(const PageHeader& header, const PageName& name, size_t page_bytes) {
  Fields fields;
  std::memcpy(&fields, header.data(), sizeof fields);
  if (std::memcmp(fields.magic, kMagic, sizeof kMagic) != 0) return corrupt("it is not a page file");
  if (fields.version != kVersion) {
    return corrupt({"its format has the version ", fields.version, ", not ", kVersion});
  }
  if (digest_of_fields(header) != Digest{fields.header_digest[0], fields.header_digest[1]} ||
      fields.header_bytes != kPageHeaderBytes) {
    return corrupt("its header is damaged");
  }
  if (std::memcmp(fields.name, name.data(), name.size()) != 0) return corrupt("it holds another page");
  if (fields.page_bytes != page_bytes) {
    return corrupt({"its page has ", fields.page_bytes, " bytes, not ", page_bytes});
  }
  return Digest{fields.page_digest[0], fields.page_digest[1]};
}

}  // namespace quire::kv
