// SPDX-License-Identifier: Apache-2.0
// "Did you mean ...?": finds the known word that is nearest to a misspelt one.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

// How many letters must be inserted, deleted, replaced or swapped with their neighbour to turn one word into the other.
size_t edit_distance(std::string_view a, std::string_view b);

// The known word nearest to `word`, ignoring case; nothing if none is near. Near means at most one edit per three
// letters and at most three edits in all.
// With `prefixes`, a word is also near if it is a prefix of the other word, or the other word of it.
std::optional<std::string> closest_word(std::string_view word, const std::vector<std::string>& known,
                                        bool prefixes = true);

// "; did you mean 'serve'?", or "" when no known word is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

}  // namespace quire
