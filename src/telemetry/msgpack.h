// SPDX-License-Identifier: Apache-2.0
// MsgpackWriter: values in MessagePack, each in its shortest form.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace quire::telemetry {

// Appends values to a string. After array(n) the caller writes n values, after map(n) n pairs of a key and a value.
class MsgpackWriter {
 public:
  std::string take() { return std::move(out_); }

  void nil() { byte(0xc0); }
  void number(double value) {
    byte(0xcb);
    big_endian(std::bit_cast<uint64_t>(value), 8);
  }
  void number(std::unsigned_integral auto value) { unsigned_number(value); }
  void number(std::signed_integral auto value) {
    if (value >= 0) return unsigned_number(static_cast<uint64_t>(value));
    const auto bits = static_cast<uint64_t>(static_cast<int64_t>(value));
    if (value >= -32) return byte(static_cast<uint8_t>(bits));
    const int bytes = value >= INT8_MIN ? 1 : value >= INT16_MIN ? 2 : value >= INT32_MIN ? 4 : 8;
    tagged(0xd0, bits, bytes);
  }
  void text(std::string_view value) {
    const size_t size = value.size();
    if (size < 32) {
      byte(static_cast<uint8_t>(0xa0 | size));
    } else {
      tagged(0xd9, size, size <= UINT8_MAX ? 1 : size <= UINT16_MAX ? 2 : 4);
    }
    out_ += value;
  }
  void array(size_t size) { container(0x90, 0xdc, size); }
  void map(size_t size) { container(0x80, 0xde, size); }

 private:
  void byte(uint8_t value) { out_ += static_cast<char>(value); }
  void big_endian(uint64_t bits, int bytes) {
    while (bytes-- > 0) byte(static_cast<uint8_t>(bits >> (8 * bytes)));
  }
  // The types for 1, 2, 4 and 8 bytes have neighbouring tags.
  void tagged(int first_tag, uint64_t bits, int bytes) {
    byte(static_cast<uint8_t>(first_tag + std::countr_zero(static_cast<unsigned>(bytes))));
    big_endian(bits, bytes);
  }
  void unsigned_number(uint64_t number) {
    if (number < 128) return byte(static_cast<uint8_t>(number));
    tagged(0xcc, number, number <= UINT8_MAX ? 1 : number <= UINT16_MAX ? 2 : number <= UINT32_MAX ? 4 : 8);
  }
  void container(int small_tag, int tag, size_t size) {
    if (size < 16) return byte(static_cast<uint8_t>(small_tag | static_cast<int>(size)));
    byte(static_cast<uint8_t>(size <= UINT16_MAX ? tag : tag + 1));
    big_endian(size, size <= UINT16_MAX ? 2 : 4);
  }

  std::string out_;
};

}  // namespace quire::telemetry
