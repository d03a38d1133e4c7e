// SPDX-License-Identifier: Apache-2.0
// ProtobufWriter: fields of a Protocol Buffers message.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace quire::telemetry {

// Appends fields to a string. A message inside another one is written on its own and then added as bytes.
class ProtobufWriter {
 public:
  const std::string& text() const { return out_; }
  std::string take() { return std::move(out_); }

  void number(int field, uint64_t value) {
    tag(field, 0);
    varint(value);
  }
  void fixed64(int field, uint64_t value) {
    tag(field, 1);
    little_endian(value, 8);
  }
  void real(int field, double value) { fixed64(field, std::bit_cast<uint64_t>(value)); }
  void bytes(int field, std::string_view value) {
    tag(field, 2);
    varint(value.size());
    out_ += value;
  }
  void message(int field, const ProtobufWriter& value) { bytes(field, value.text()); }
  void fixed32(int field, uint32_t value) {
    tag(field, 5);
    little_endian(value, 4);
  }

 private:
  void tag(int field, int wire_type) { varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire_type)); }
  void varint(uint64_t value) {
    for (; value >= 128; value >>= 7) out_ += static_cast<char>(value | 128);
    out_ += static_cast<char>(value);
  }
  void little_endian(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i));
  }

  std::string out_;
};

}  // namespace quire::telemetry
