// SPDX-License-Identifier: Apache-2.0
// The MessagePack writer at the limits of each form, and a batch of KV events.
#include "telemetry/msgpack.h"

#include <gtest/gtest.h>

#include "telemetry/kv_event_publisher.h"

namespace quire::telemetry {
namespace {

std::string hex(const std::string& bytes) {
  std::string out;
  for (const unsigned char byte : bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    out += kDigits[byte / 16];
    out += kDigits[byte % 16];
  }
  return out;
}

template <typename T>
std::string packed(T value) {
  MsgpackWriter w;
  w.number(value);
  return hex(w.take());
}

std::string packed(std::string_view value) {
  MsgpackWriter w;
  w.text(value);
  return hex(w.take());
}

TEST(Msgpack, NumbersHaveTheirShortestForm) {
  EXPECT_EQ(packed(0), "00");
  EXPECT_EQ(packed(127), "7f");
  EXPECT_EQ(packed(128), "cc80");
  EXPECT_EQ(packed(255), "ccff");
  EXPECT_EQ(packed(256), "cd0100");
  EXPECT_EQ(packed(65535), "cdffff");
  EXPECT_EQ(packed(65536), "ce00010000");
  EXPECT_EQ(packed(uint64_t{4294967295}), "ceffffffff");
  EXPECT_EQ(packed(uint64_t{4294967296}), "cf0000000100000000");
  EXPECT_EQ(packed(~uint64_t{0}), "cfffffffffffffffff");
  EXPECT_EQ(packed(-1), "ff");
  EXPECT_EQ(packed(-32), "e0");
  EXPECT_EQ(packed(-33), "d0df");
  EXPECT_EQ(packed(-129), "d1ff7f");
  EXPECT_EQ(packed(-32769), "d2ffff7fff");
  EXPECT_EQ(packed(int64_t{-2147483649}), "d3ffffffff7fffffff");
  EXPECT_EQ(packed(1.5), "cb3ff8000000000000");
}

TEST(Msgpack, TextsAndContainersHaveTheirShortestForm) {
  EXPECT_EQ(packed(std::string_view("abc")), "a3616263");
  EXPECT_EQ(packed(std::string_view(std::string(31, 'x'))).substr(0, 2), "bf");
  EXPECT_EQ(packed(std::string_view(std::string(32, 'x'))).substr(0, 4), "d920");
  EXPECT_EQ(packed(std::string_view(std::string(256, 'x'))).substr(0, 6), "da0100");
  EXPECT_EQ(packed(std::string_view(std::string(65536, 'x'))).substr(0, 10), "db00010000");
  const auto opened = [](auto open, size_t size) {
    MsgpackWriter w;
    (w.*open)(size);
    return hex(w.take());
  };
  EXPECT_EQ(opened(&MsgpackWriter::array, 15), "9f");
  EXPECT_EQ(opened(&MsgpackWriter::array, 16), "dc0010");
  EXPECT_EQ(opened(&MsgpackWriter::array, 65536), "dd00010000");
  EXPECT_EQ(opened(&MsgpackWriter::map, 15), "8f");
  EXPECT_EQ(opened(&MsgpackWriter::map, 16), "de0010");
}

TEST(KvEvents, ABatchIsAnArrayOfTimeEventsAndRank) {
  const std::vector<EventGroup> groups = {{16, "full_attention", 0}};
  kv::CacheEvent removed{.kind = kv::CacheEvent::Kind::kRemoved, .group = 0, .hashes = {1, 2}};
  kv::CacheEvent cleared{.kind = kv::CacheEvent::Kind::kCleared};
  const std::string text = encode_events({removed, cleared}, groups, 1.5);
  const std::string want = std::string("93cb3ff8000000000000") + "92" + "84" + packed(std::string_view("type")) +
                           packed(std::string_view("BlockRemoved")) + packed(std::string_view("block_hashes")) +
                           "920102" + packed(std::string_view("medium")) + packed(std::string_view("GPU")) +
                           packed(std::string_view("group_idx")) + "00" + "81" + packed(std::string_view("type")) +
                           packed(std::string_view("AllBlocksCleared")) + "00";
  EXPECT_EQ(hex(text), want);
}

TEST(KvEvents, GroupsHaveVllmsNames) {
  kv::CacheLayout layout;
  layout.groups = {{kv::CacheKind::kFull, 16, 0, 1, 0},
                   {kv::CacheKind::kWindow, 32, 128, 1, 0},
                   {kv::CacheKind::kState, 64, 0, 1, 0},
                   {kv::CacheKind::kFull, 16, 0, 1, 0}};
  layout.layers.resize(2);
  layout.layers[0].group = 3;
  layout.layers[0].shape.v_in_k = true;
  const std::vector<EventGroup> groups = event_groups(layout);
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_EQ(groups[0].kind, "full_attention");
  EXPECT_EQ(groups[1].kind, "sliding_window");
  EXPECT_EQ(groups[1].window, 128);
  EXPECT_EQ(groups[2].kind, "mamba");
  EXPECT_EQ(groups[2].block_size, 64);
  EXPECT_EQ(groups[3].kind, "mla_attention");
}

}  // namespace
}  // namespace quire::telemetry
