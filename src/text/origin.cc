// SPDX-License-Identifier: Apache-2.0
// The origins of text: joining, truncating and querying.
#include "text/origin.h"

#include <algorithm>

namespace quire::text {

Origin Origins::least_trusted() const {
  Origin least = whole_;
  for (const OriginRange& range : ranges_) least = std::max(least, range.origin);
  return least;
}

void Origins::push(size_t begin, size_t end, Origin origin) {
  if (begin == end || origin == Origin::kTemplate) return;
  if (!ranges_.empty() && ranges_.back().end == begin && ranges_.back().origin == origin) {
    ranges_.back().end = end;
  } else {
    ranges_.push_back({begin, end, origin});
  }
}

void Origins::append(size_t size, const Origins& from, size_t begin, size_t end) {
  if (begin == end) return;
  if (ranges_.empty() && from.ranges_.empty()) {
    if (size == 0) whole_ = from.whole_;
    if (whole_ == from.whole_) return;
  }
  if (ranges_.empty()) push(0, size, whole_);
  whole_ = Origin::kTemplate;
  if (from.ranges_.empty()) {
    push(size, size + (end - begin), from.whole_);
    return;
  }
  auto range = std::partition_point(from.ranges_.begin(), from.ranges_.end(),
                                    [&](const OriginRange& r) { return r.end <= begin; });
  for (; range != from.ranges_.end() && range->begin < end; ++range) {
    push(size + (std::max(range->begin, begin) - begin), size + (std::min(range->end, end) - begin), range->origin);
  }
}

void Origins::truncate(size_t size) {
  if (ranges_.empty()) return;
  while (!ranges_.empty() && ranges_.back().begin >= size) ranges_.pop_back();
  if (!ranges_.empty()) ranges_.back().end = std::min(ranges_.back().end, size);
}

std::vector<OriginRange> Origins::ranges(size_t size) const {
  if (!ranges_.empty()) return ranges_;
  if (whole_ == Origin::kTemplate || size == 0) return {};
  return {{0, size, whole_}};
}

void MarkedText::add(std::string_view piece, Origin origin) {
  if (origin != Origin::kTemplate || !origins.all_template() || text.empty()) {
    origins.append(text.size(), Origins(origin), 0, piece.size());
  }
  text += piece;
}

void MarkedText::add(std::string_view part, const Origins& from, std::string_view whole) {
  if (!from.all_template() || !origins.all_template() || text.empty()) {
    const size_t begin = from.uniform() ? 0 : static_cast<size_t>(part.data() - whole.data());
    origins.append(text.size(), from, begin, begin + part.size());
  }
  text += part;
}

}  // namespace quire::text
