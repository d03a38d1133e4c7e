// SPDX-License-Identifier: Apache-2.0
// MarkerScanner: finds markers in a text that comes byte by byte.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace quire::markup {

// Separates text from markers. Holds back what may be the beginning of a marker, so never more than the longest one.
// The marker that is complete first wins. Plain value, one thread at a time. The marker texts must outlive it.
class MarkerScanner {
 public:
  static constexpr int kNone = -1;

  MarkerScanner() = default;
  explicit MarkerScanner(std::vector<std::string_view> markers) { set(std::move(markers)); }

  // Looks for other markers from now on. REQUIRES: nothing is held back.
  void set(std::vector<std::string_view> markers);

  // Reads one byte. Appends to `out` what cannot be part of a marker any more; returns the index of the marker that the
  // byte completed, or kNone.
  int add(char c, std::string& out);

  const std::string& held() const { return held_; }
  // Gives back what is held back, and forgets it.
  std::string take_held();

 private:
  std::vector<std::string_view> markers_;
  std::array<bool, 256> first_ = {};  // the first bytes of all markers
  std::string held_;
};

inline bool is_blank(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

// The text without blanks at both ends.
inline std::string_view trim(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace quire::markup
