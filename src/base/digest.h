// SPDX-License-Identifier: Apache-2.0
// Digest: 128 bits that name a sequence of bytes, made at the speed of memory and the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace quire {

// It notices accidents, such as a changed bit, and is no signature: whoever wants two inputs with the same digest can
// make them.
struct Digest {
  uint64_t high = 0;
  uint64_t low = 0;

  std::string hex() const;  // 32 digits
  bool operator==(const Digest&) const = default;
};

// The digest of the bytes. Two inputs of the same length that differ in one aligned word of 32 bits never share the
// state from which it is made.
Digest digest_of(std::span<const std::byte> bytes);
inline Digest digest_of(std::string_view text) {
  return digest_of(std::as_bytes(std::span(text.data(), text.size())));
}

std::string hex_digits(uint64_t value);  // 16 digits

}  // namespace quire
