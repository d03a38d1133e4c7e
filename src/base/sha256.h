// SPDX-License-Identifier: Apache-2.0
// Sha256: 256 bits that name a sequence of bytes, and for which nobody can find a second sequence (FIPS 180-4).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace quire {

// Use base/digest.h where accidents are the only enemy: it is many times faster.
class Sha256 {
 public:
  using Value = std::array<uint8_t, 32>;

  Sha256& add(std::span<const std::byte> bytes);
  Sha256& add(std::string_view text) { return add(std::as_bytes(std::span(text.data(), text.size()))); }
  Value finish();  // at most once

 private:
  void block(const uint8_t* bytes);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_{};
  uint64_t length_ = 0;  // bytes so far
};

std::string hex(const Sha256::Value& value);  // 64 digits

// Values are uniform, so any of their bytes are a hash.
struct Sha256ToSize {
  size_t operator()(const Sha256::Value& value) const;
};

}  // namespace quire
