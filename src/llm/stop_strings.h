// SPDX-License-Identifier: Apache-2.0
// StopStrings: watches a growing text for stop strings and holds back what could still become one.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/shared_list.h"

namespace quire::llm {

// One stream's watch. push() takes new text and gives out what is certain to belong to the answer. The match that
// completes first wins, ties by the order of the list; a match must end in text that was pushed with `armed`
// (min_tokens reached). After a match nothing more comes out. One owner, one thread.
class StopStrings {
 public:
  StopStrings() = default;
  StopStrings(SharedList<std::string> stops, bool include_in_output);

  std::string push(std::string_view text, bool armed = true);
  // The end of the stream: what was held back, if no stop was found.
  std::string flush();
  bool stopped() const { return matched_.has_value(); }
  const std::string& matched() const { return *matched_; }

 private:
  SharedList<std::string> stops_;
  bool include_ = false;
  size_t longest_ = 0;
  std::string held_;  // not given out yet
  std::string tail_;  // already given out, long enough to begin a match (only when nothing is held back)
  std::optional<std::string> matched_;
};

}  // namespace quire::llm
