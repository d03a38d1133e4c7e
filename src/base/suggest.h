// SPDX-License-Identifier: Apache-2.0
// "Did you mean ...?": finds the known word that a misspelt one was most likely meant to be.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

// How many letters must be inserted, deleted, replaced or swapped with their neighbour to turn one word into the other.
size_t edit_distance(std::string_view a, std::string_view b);

// The known word nearest to `word`, ignoring the case of letters; nothing when none is near. Near means at most one
// edit for each three letters and never more than three edits, or (unless `cut_short` is false) that one word begins
// with the other.
std::optional<std::string> closest_word(std::string_view word, const std::vector<std::string>& known,
                                        bool cut_short = true);

// "; did you mean 'serve'?", or "" when no known word is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

}  // namespace quire
