// SPDX-License-Identifier: Apache-2.0
// StopStrings: looks for stop strings in a growing text and holds back what may be the beginning of one.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/shared_list.h"

namespace quire::llm {

// The search in one answer. push() takes new text and returns the text that certainly belongs to the answer. The match
// that ends first wins; of several, the first in the list. A match must end in text that was pushed with `armed`
// (min_tokens reached). After a match, no more text is returned. One owner, one thread.
class StopStrings {
 public:
  StopStrings() = default;
  StopStrings(SharedList<std::string> stops, bool include_in_output);

  std::string push(std::string_view text, bool armed = true);
  // At the end of the answer: returns what was held back, unless a stop string was found.
  std::string flush();
  bool stopped() const { return matched_.has_value(); }
  const std::string& matched() const { return *matched_; }

 private:
  SharedList<std::string> stops_;
  bool include_ = false;
  size_t longest_ = 0;
  std::string held_;  // not returned yet
  std::string tail_;  // the end of what was returned, in which a match may begin
  std::optional<std::string> matched_;
};

}  // namespace quire::llm
