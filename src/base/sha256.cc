// SPDX-License-Identifier: Apache-2.0
// SHA-256 in plain C++: a unit of tokens takes less than a microsecond.
#include "base/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace quire {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t big_endian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
}

}  // namespace

void Sha256::block(const uint8_t* bytes) {
  uint32_t w[64];
  for (size_t i = 0; i < 16; ++i) w[i] = big_endian(bytes + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) + w[i - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  std::array<uint32_t, 8> s = state_;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
    const uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    const uint32_t first =
        s[7] + (std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25)) + choice + kRound[i] + w[i];
    const uint32_t second = (std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22)) + majority;
    s = {first + second, s[0], s[1], s[2], s[3] + first, s[4], s[5], s[6]};
  }
  for (size_t i = 0; i < 8; ++i) state_[i] += s[i];
}

Sha256& Sha256::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t used = length_ % pending_.size();
    const size_t count = std::min(bytes.size(), pending_.size() - used);
    std::memcpy(pending_.data() + used, bytes.data(), count);
    length_ += count;
    bytes = bytes.subspan(count);
    if (used + count == pending_.size()) block(pending_.data());
  }
  return *this;
}

Sha256::Value Sha256::finish() {
  const uint64_t bits = length_ * 8;
  // A one, then zeros up to the last 8 bytes of a block, then the length in bits.
  std::array<uint8_t, 72> end{0x80};
  const size_t zeros = (119 - length_ % 64) % 64;
  for (size_t i = 0; i < 8; ++i) end[1 + zeros + i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  add(std::as_bytes(std::span(end).first(1 + zeros + 8)));
  Value out;
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return out;
}

std::string hex(const Sha256::Value& value) {
  std::string out;
  for (const uint8_t byte : value) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

size_t Sha256ToSize::operator()(const Sha256::Value& value) const {
  size_t out = 0;
  std::memcpy(&out, value.data(), sizeof out);
  return out;
}

}  // namespace quire
