// SPDX-License-Identifier: Apache-2.0
// The hash chain over full pages by which prompts find pages that already hold their beginning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace quire::kv {

// 128 bits. The default value is the chain's root.
struct BlockHash {
  uint64_t lo = 0;
  uint64_t hi = 0;
  bool operator==(const BlockHash&) const = default;
};

struct BlockHashToSize {
  size_t operator()(const BlockHash& h) const { return static_cast<size_t>(h.lo ^ (h.hi * 0x9E3779B97F4A7C15ull)); }
};

// SipHash-2-4 with 128 bits of output under a 128-bit key.
// Why this one: clients choose the tokens, so an unkeyed fast hash would let one build long collision chains (time) or
// guess other users' pages. SipHash is a keyed function made for that, and at about 100 ns a page it does not show. It
// needs not be collision-proof: the pool compares token ids, extra keys and the parent's identity on every hit.
BlockHash siphash128(uint64_t key_lo, uint64_t key_hi, std::span<const std::byte> message);

// Hashes pages in a chain. Immutable; any thread. The key never leaves the process and has no effect on any output.
class PrefixHasher {
 public:
  static PrefixHasher random();  // a fresh secret key
  PrefixHasher(uint64_t key_lo, uint64_t key_hi) : key_lo_(key_lo), key_hi_(key_hi) {}
  // A test hook: keeps only the low `bits` bits of each hash, so that collisions are the rule.
  static PrefixHasher colliding(int bits);

  // H(parent hash, token ids, extra keys). `extra` is empty but for a sequence's first page.
  BlockHash hash(const BlockHash& parent, std::span<const int32_t> tokens, std::string_view extra = {}) const;

 private:
  uint64_t key_lo_;
  uint64_t key_hi_;
  uint64_t mask_lo_ = ~uint64_t{0};
  uint64_t mask_hi_ = ~uint64_t{0};
};

}  // namespace quire::kv
