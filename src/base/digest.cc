// SPDX-License-Identifier: Apache-2.0
// 32 lanes of 32 bits, which a compiler turns into vectors of any width, and a slow mix of all of them at the end.
#include "base/digest.h"

#include <array>
#include <bit>
#include <cstring>

namespace quire {
namespace {

static_assert(std::endian::native == std::endian::little, "the digest is defined on little-endian words");

constexpr size_t kLanes = 32;
constexpr size_t kDigestBlock = kLanes * sizeof(uint32_t);

// A step of a lane is invertible, so that a difference in one word stays in `state`. Differences in two words can
// cancel in `state`; `sum` remembers that there was one in between. Only additions and rotations: every processor has
// vectors for them, and whole numbers have the same result in all of them.
struct Lanes {
  uint32_t state[kLanes];
  uint32_t sum[kLanes];
};

void add_blocks(Lanes& lanes, const std::byte* bytes, size_t blocks) {
  Lanes l = lanes;
  for (size_t b = 0; b < blocks; ++b, bytes += kDigestBlock) {
    uint32_t words[kLanes];
    std::memcpy(words, bytes, kDigestBlock);
    for (size_t i = 0; i < kLanes; ++i) {
      l.state[i] = std::rotl(l.state[i] + words[i], 7);
      l.sum[i] += l.state[i];
    }
  }
  lanes = l;
}

constexpr uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93;
  x = (x ^ (x >> 29)) * 0xA0761D6478BD642F;
  return x ^ (x >> 32);
}

}  // namespace

Digest digest_of(std::span<const std::byte> bytes) {
  Lanes lanes;
  for (size_t i = 0; i < kLanes; ++i) {
    lanes.state[i] = static_cast<uint32_t>(i + 1) * 0x85EBCA6B;
    lanes.sum[i] = 0;
  }
  const size_t blocks = bytes.size() / kDigestBlock;
  add_blocks(lanes, bytes.data(), blocks);
  if (const size_t rest = bytes.size() % kDigestBlock; rest > 0) {
    std::array<std::byte, kDigestBlock> last{};
    std::memcpy(last.data(), bytes.data() + blocks * kDigestBlock, rest);
    add_blocks(lanes, last.data(), 1);
  }
  Digest out{mix(bytes.size() + 1), mix(~static_cast<uint64_t>(bytes.size()))};
  for (size_t i = 0; i < kLanes; ++i) {
    const uint64_t lane = (uint64_t{lanes.sum[i]} << 32) | lanes.state[i];
    out.high = mix(out.high ^ lane);
    out.low = mix(out.low + std::rotl(lane, 17)) + out.high;
  }
  return out;
}

std::string hex_digits(uint64_t value) {
  std::string out(16, '0');
  for (size_t i = 16; i-- > 0; value >>= 4) out[i] = "0123456789abcdef"[value & 15];
  return out;
}

std::string Digest::hex() const {
  return hex_digits(high) + hex_digits(low);
}

}  // namespace quire
