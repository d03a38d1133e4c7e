// SPDX-License-Identifier: Apache-2.0
// Draws ids.
#include "api/call_ids.h"

#include <algorithm>
#include <cctype>
#include <random>

#include "base/digest.h"

namespace quire::api {
namespace {

constexpr size_t kShortLength = 9;

}  // namespace

std::string random_hex() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::random_device device;
  std::string out;
  for (int word = 0; word < 4; ++word) {
    auto bits = static_cast<uint32_t>(device());
    for (int i = 0; i < 8; ++i, bits >>= 4) out += kDigits[bits & 15];
  }
  return out;
}

CallIdStyle call_id_style(std::string_view tool_parser) {
  if (tool_parser.starts_with("mistral")) return CallIdStyle::kShort;
  if (tool_parser == "kimi_k2") return CallIdStyle::kKimi;
  return CallIdStyle::kRandom;
}

std::string fitting_call_id(CallIdStyle style, const std::string& id) {
  const bool plain = std::all_of(id.begin(), id.end(), [](unsigned char c) { return std::isalnum(c) != 0; });
  if (style != CallIdStyle::kShort || (plain && id.size() == kShortLength)) return id;
  return digest_of(id).hex().substr(0, kShortLength);
}

std::string make_call_id(CallIdStyle style, std::string_view prefix, std::string_view name, int64_t number) {
  switch (style) {
    case CallIdStyle::kShort:
      return random_hex().substr(0, kShortLength);
    case CallIdStyle::kKimi:
      return "functions." + std::string(name) + ":" + std::to_string(number);
    case CallIdStyle::kRandom:
      break;
  }
  return std::string(prefix) + random_hex();
}

}  // namespace quire::api
