// SPDX-License-Identifier: Apache-2.0
// SipHash with 128 bits of output, and the chain of hashes made from it.
#include "kv/prefix_hash.h"

#include <bit>
#include <random>

#include "base/check.h"

namespace quire::kv {
namespace {

// The state of SipHash, which takes a message in 64-bit words, so that the message need not be one block of memory.
class SipState {
 public:
  SipState(uint64_t key_lo, uint64_t key_hi)
      : v0_(key_lo ^ 0x736f6d6570736575ull),
        v1_(key_hi ^ 0x646f72616e646f6dull ^ 0xee),  // 0xee marks the 128-bit variant
        v2_(key_lo ^ 0x6c7967656e657261ull),
        v3_(key_hi ^ 0x7465646279746573ull) {}

  void word(uint64_t m) {
    v3_ ^= m;
    rounds(2);
    v0_ ^= m;
  }

  BlockHash finish() {
    BlockHash out;
    v2_ ^= 0xee;
    rounds(4);
    out.lo = v0_ ^ v1_ ^ v2_ ^ v3_;
    v1_ ^= 0xdd;
    rounds(4);
    out.hi = v0_ ^ v1_ ^ v2_ ^ v3_;
    return out;
  }

 private:
  void rounds(int n) {
    for (int i = 0; i < n; ++i) {
      v0_ += v1_;
      v1_ = std::rotl(v1_, 13) ^ v0_;
      v0_ = std::rotl(v0_, 32);
      v2_ += v3_;
      v3_ = std::rotl(v3_, 16) ^ v2_;
      v0_ += v3_;
      v3_ = std::rotl(v3_, 21) ^ v0_;
      v2_ += v1_;
      v1_ = std::rotl(v1_, 17) ^ v2_;
      v2_ = std::rotl(v2_, 32);
    }
  }

  uint64_t v0_, v1_, v2_, v3_;
};

uint64_t little_endian(std::span<const std::byte> bytes) {  // at most 8 of them
  uint64_t word = 0;
  for (size_t i = 0; i < bytes.size(); ++i) word |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  return word;
}

// Feeds the bytes of the message, and the final word with its length modulo 256.
void feed(SipState& state, std::span<const std::byte> message, uint64_t length) {
  size_t pos = 0;
  for (; pos + 8 <= message.size(); pos += 8) state.word(little_endian(message.subspan(pos, 8)));
  state.word(little_endian(message.subspan(pos)) | (length << 56));
}

}  // namespace

BlockHash siphash128(uint64_t key_lo, uint64_t key_hi, std::span<const std::byte> message) {
  SipState state(key_lo, key_hi);
  feed(state, message, message.size());
  return state.finish();
}

PrefixHasher PrefixHasher::random() {
  std::random_device device;
  const auto word = [&device] { return (uint64_t{device()} << 32) | device(); };
  const uint64_t lo = word();
  return {lo, word()};
}

PrefixHasher PrefixHasher::colliding(int bits) {
  QUIRE_CHECK(bits >= 0 && bits < 64);
  PrefixHasher hasher(1, 2);
  hasher.mask_lo_ = (uint64_t{1} << bits) - 1;
  hasher.mask_hi_ = 0;
  return hasher;
}

BlockHash PrefixHasher::hash(const BlockHash& parent, std::span<const int32_t> tokens, std::string_view extra) const {
  // Both lengths come first, so that different (tokens, extra) never make the same message.
  SipState state(key_lo_, key_hi_);
  state.word(parent.lo);
  state.word(parent.hi);
  state.word(tokens.size());
  state.word(extra.size());
  for (size_t i = 0; i < tokens.size(); i += 2) {
    const uint64_t first = static_cast<uint32_t>(tokens[i]);
    const uint64_t second = i + 1 < tokens.size() ? static_cast<uint32_t>(tokens[i + 1]) : 0;
    state.word(first | (second << 32));
  }
  if (!extra.empty()) feed(state, std::as_bytes(std::span(extra)), extra.size());
  BlockHash out = state.finish();
  out.lo &= mask_lo_;
  out.hi &= mask_hi_;
  return out;
}

}  // namespace quire::kv
