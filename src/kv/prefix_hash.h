// SPDX-License-Identifier: Apache-2.0
// The chain of hashes over full units of tokens, by which a prompt finds the cached pages of its prefix.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace quire::kv {

// 128 bits. The default value is the root of the chain.
struct BlockHash {
  uint64_t lo = 0;
  uint64_t hi = 0;
  bool operator==(const BlockHash&) const = default;
};

struct BlockHashToSize {
  size_t operator()(const BlockHash& h) const { return static_cast<size_t>(h.lo ^ (h.hi * 0x9E3779B97F4A7C15ull)); }
};

// SipHash-2-4 with 128 bits of output and a 128-bit key (Aumasson and Bernstein, "SipHash: a fast short-input PRF").
// Clients choose the tokens, so with an unkeyed hash they could build long collision chains or guess the pages of other
// users. SipHash is made for this, and 100 ns per page are not noticeable. It need not be collision-free: the prefix
// tree compares token ids, extra keys and the parent on every hit.
BlockHash siphash128(uint64_t key_lo, uint64_t key_hi, std::span<const std::byte> message);

// Hashes units of tokens in a chain. Immutable; any thread. The key never leaves the process and affects no output.
class PrefixHasher {
 public:
  static PrefixHasher random();  // with a new secret key
  PrefixHasher(uint64_t key_lo, uint64_t key_hi) : key_lo_(key_lo), key_hi_(key_hi) {}
  // For tests: keeps only the low `bits` bits of each hash, so that collisions are frequent.
  static PrefixHasher colliding(int bits);

  // H(parent hash, token ids, extra keys). `extra` is empty except for the first unit of a sequence.
  BlockHash hash(const BlockHash& parent, std::span<const int32_t> tokens, std::string_view extra = {}) const;

 private:
  uint64_t key_lo_;
  uint64_t key_hi_;
  uint64_t mask_lo_ = ~uint64_t{0};
  uint64_t mask_hi_ = ~uint64_t{0};
};

}  // namespace quire::kv
