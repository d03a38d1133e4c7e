// SPDX-License-Identifier: Apache-2.0
// Writes facts into records, gathers and compares them.
#include "distributed/handshake.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/digest.h"
#include "base/program.h"

namespace quire::distributed {
namespace {

constexpr char kMagic[8] = {'q', 'u', 'i', 'r', 'e', 'r', 'n', 'k'};
constexpr uint32_t kProtocol = 1;  // grows with every change of what ranks send to each other
constexpr size_t kRecordBytes = 8192;
constexpr size_t kMostValueBytes = 64;

// Size, magic, protocol, host and pid stay as they are in all versions, so that any two can refuse each other.
struct Record {
  char magic[8] = {};
  uint32_t protocol = 0;
  uint32_t text_bytes = 0;
  int64_t pid = 0;
  char host[64] = {};
  char text[kRecordBytes - 88] = {};  // name, tab, value, newline
};
static_assert(sizeof(Record) == kRecordBytes);

Record record_of(const std::vector<Fact>& facts) {
  Record out;
  std::memcpy(out.magic, kMagic, sizeof kMagic);
  out.protocol = kProtocol;
  out.pid = ::getpid();
  ::gethostname(out.host, sizeof out.host - 1);
  std::string text;
  for (const Fact& fact : facts) {
    // What would not fit, or would break the line, is compared by its digest.
    const bool plain = fact.value.size() <= kMostValueBytes && fact.value.find_first_of("\t\n") == std::string::npos;
    text += fact.name + "\t" + (plain ? fact.value : digest_of(fact.value).hex()) + "\n";
  }
  if (text.size() > sizeof out.text) text = "the digest of all facts\t" + digest_of(text).hex() + "\n";
  std::memcpy(out.text, text.data(), text.size());
  out.text_bytes = static_cast<uint32_t>(text.size());
  return out;
}

std::vector<Fact> facts_of(const Record& record) {
  std::vector<Fact> out;
  std::string_view left(record.text, std::min<size_t>(record.text_bytes, sizeof record.text));
  while (!left.empty()) {
    const std::string_view line = left.substr(0, left.find('\n'));
    left.remove_prefix(std::min(left.size(), line.size() + 1));
    const size_t tab = std::min(line.find('\t'), line.size());
    out.push_back({std::string(line.substr(0, tab)), std::string(line.substr(std::min(tab + 1, line.size())))});
  }
  return out;
}

std::string shown(const std::string& value) {
  return value.empty() ? "not set" : value;
}

// What differs between a rank's record and rank 0's: "--dtype is float16 there and auto on rank 0"; "" if nothing.
std::string difference(const Record& there, const Record& first) {
  const bool same_kind = std::memcmp(there.magic, first.magic, sizeof kMagic) == 0;
  if (!same_kind) return "it is no rank of quire";
  if (there.protocol != first.protocol) {
    return fmt::format("its protocol is {}, and that of rank 0 is {}; install the same quire on every host",
                       there.protocol, first.protocol);
  }
  const std::vector<Fact> ours = facts_of(there), wanted = facts_of(first);
  for (size_t i = 0; i < std::max(ours.size(), wanted.size()); ++i) {
    const Fact none;
    const Fact& a = i < ours.size() ? ours[i] : none;
    const Fact& b = i < wanted.size() ? wanted[i] : none;
    if (a.name != b.name) return "it checks other things than rank 0; install the same quire on every host";
    if (a.value != b.value)
      return fmt::format("{} is {} there and {} on rank 0", a.name, shown(a.value), shown(b.value));
  }
  return "";
}

}  // namespace

std::vector<Fact> build_facts() {
  return {{"the digest of quire's program", program_digest().hex()}};
}

Status shake_hands(Group& group, const std::vector<Fact>& facts) {
  const Record mine = record_of(facts);
  std::vector<Record> all(static_cast<size_t>(group.size()));
  group.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  for (size_t r = 1; r < all.size(); ++r) {
    const std::string what = difference(all[r], all[0]);
    if (what.empty()) continue;
    all[r].host[sizeof all[r].host - 1] = '\0';
    return invalid_argument(fmt::format("rank {} ({}, pid {}) does not fit to rank 0: {}", r, all[r].host,
                                        static_cast<int64_t>(all[r].pid), what));
  }
  return {};
}

}  // namespace quire::distributed
