// SPDX-License-Identifier: Apache-2.0
// Finds markers in a text that comes byte by byte.
#include "markup/scanner.h"

#include <utility>

#include "base/check.h"

namespace quire::markup {

void MarkerScanner::set(std::vector<std::string_view> markers) {
  QUIRE_CHECK(held_.empty(), "the markers change while a text is held back");
  markers_ = std::move(markers);
  first_.fill(false);
  for (const std::string_view marker : markers_) {
    QUIRE_CHECK(!marker.empty(), "a marker is empty");
    first_[static_cast<unsigned char>(marker.front())] = true;
  }
}

int MarkerScanner::add(char c, std::string& out) {
  if (held_.empty() && !first_[static_cast<unsigned char>(c)]) {
    out.push_back(c);
    return kNone;
  }
  held_.push_back(c);
  while (!held_.empty()) {
    bool prefix = false;
    for (size_t i = 0; i < markers_.size(); ++i) {
      if (!markers_[i].starts_with(held_)) continue;
      if (markers_[i].size() == held_.size()) {
        held_.clear();
        return static_cast<int>(i);
      }
      prefix = true;
    }
    if (prefix) return kNone;
    // The first byte begins no marker. Nor do the bytes after it, up to the next first byte of one.
    size_t next = 1;
    while (next < held_.size() && !first_[static_cast<unsigned char>(held_[next])]) ++next;
    out.append(held_, 0, next);
    held_.erase(0, next);
  }
  return kNone;
}

std::string MarkerScanner::take_held() {
  return std::exchange(held_, {});
}

}  // namespace quire::markup
