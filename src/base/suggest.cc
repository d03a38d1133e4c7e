// SPDX-License-Identifier: Apache-2.0
// Edit distance, and the nearest of a list of words.
#include "base/suggest.h"

#include <algorithm>

#include "base/strings.h"

namespace quire {
namespace {

constexpr size_t kLongestWord = 256;  // longer words are not compared: the cost is quadratic
constexpr size_t kShortestPrefix = 3;
constexpr size_t kMostEdits = 3;

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table are enough: a swap looks two rows back.
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::optional<std::string> closest_word(std::string_view word, const std::vector<std::string>& known, bool prefixes) {
  if (word.empty() || word.size() > kLongestWord) return std::nullopt;
  const std::string wanted = ascii_lower(word);
  std::optional<std::string> best;
  size_t best_distance = 0;
  for (const std::string& candidate : known) {
    if (candidate.size() > kLongestWord) continue;
    const std::string text = ascii_lower(candidate);
    size_t distance = edit_distance(wanted, text);
    const size_t shorter = std::min(wanted.size(), text.size());
    const size_t longer = std::max(wanted.size(), text.size());
    const size_t allowed = std::min(longer / 3, kMostEdits);
    if (distance > allowed) {
      const bool begins = prefixes && shorter >= kShortestPrefix && wanted.compare(0, shorter, text, 0, shorter) == 0;
      if (!begins) continue;
      distance = kMostEdits + distance;  // a misspelling is likelier than a prefix
    }
    if (best && distance >= best_distance) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  const auto found = closest_word(word, known);
  return found ? "; did you mean '" + *found + "'?" : "";
}

}  // namespace quire
