// SPDX-License-Identifier: Apache-2.0
// Searches the new text for stop strings, and decides how much of it to hold back.
#include "llm/stop_strings.h"

#include <algorithm>

namespace quire::llm {

StopStrings::StopStrings(SharedList<std::string> stops, bool include_in_output)
    : stops_(std::move(stops)), include_(include_in_output) {
  if (std::ranges::any_of(stops_, &std::string::empty)) std::erase(stops_.edit(), std::string());
  for (const std::string& stop : stops_) longest_ = std::max(longest_, stop.size());
}

std::string StopStrings::push(std::string_view text, bool armed) {
  if (stopped()) return {};
  if (stops_.empty()) return std::string(text);
  const size_t old_size = tail_.size() + held_.size();
  const size_t returned = tail_.size();
  std::string all = tail_ + held_;
  all += text;

  size_t best_end = std::string::npos;
  size_t best_begin = 0;
  const std::string* best = nullptr;
  for (const std::string& stop : stops_) {
    if (!armed || all.size() < stop.size()) continue;
    // The match must end in the new text, so it may begin at most size - 1 before it.
    const size_t from = old_size >= stop.size() ? old_size - stop.size() + 1 : 0;
    const size_t at = all.find(stop, from);
    if (at == std::string::npos || at + stop.size() >= best_end) continue;
    best_end = at + stop.size();
    best_begin = at;
    best = &stop;
  }
  if (best != nullptr) {
    matched_ = *best;
    const size_t end = include_ ? best_end : best_begin;
    held_.clear();
    return end > returned ? all.substr(returned, end - returned) : std::string();
  }

  // If the stop string is part of the output, nothing is held back; the tail alone keeps the beginning of a match.
  const size_t keep = std::min(all.size(), longest_ - 1);
  size_t end = include_ ? all.size() : std::max(all.size() - keep, returned);
  while (end < all.size() && end > returned && (static_cast<unsigned char>(all[end]) & 0xC0) == 0x80) --end;
  std::string out = all.substr(returned, end - returned);
  held_ = all.substr(end);
  tail_ = all.substr(end > keep ? end - keep : 0, std::min(end, keep));
  return out;
}

std::string StopStrings::flush() {
  if (stopped()) return {};
  std::string out = std::move(held_);
  held_.clear();
  return out;
}

}  // namespace quire::llm
