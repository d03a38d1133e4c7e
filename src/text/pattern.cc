// SPDX-License-Identifier: Apache-2.0
// Searching, replacing, and the five ways to split.
#include "text/pattern.h"

namespace quire::text {

Result<Pattern> Pattern::from_json(const json::Value* value, std::string_view field) {
  if (value != nullptr && value->is_string()) return Pattern(value->as_string());
  if (value != nullptr && value->is_object() && value->as_object().size() == 1) {
    const auto& [name, content] = value->as_object()[0];
    if (content.is_string() && name == "String") return Pattern(content.as_string());
    if (content.is_string() && name == "Regex") {
      auto regex = Regex::compile(content.as_string());
      if (!regex.ok()) return unsupported({field, ": ", regex.error().message});
      return Pattern(std::move(regex).value());
    }
  }
  return corrupt({field, " must be {\"String\": ...} or {\"Regex\": ...}"});
}

void Pattern::find_all(std::string_view text, std::vector<Regex::Span>& out) const {
  if (regex_) {
    regex_->find_all(text, out);
    return;
  }
  if (literal_.empty()) return;
  for (size_t at = text.find(literal_); at != std::string_view::npos; at = text.find(literal_, at + literal_.size())) {
    out.emplace_back(at, at + literal_.size());
  }
}

std::string Pattern::replaced(std::string_view text, std::string_view with) const {
  std::vector<Regex::Span> spans;
  find_all(text, spans);
  if (spans.empty()) return std::string(text);
  std::string out;
  out.reserve(text.size() + spans.size() * with.size());
  size_t done = 0;
  for (const auto& [begin, end] : spans) {
    out.append(text, done, begin - done);
    out.append(with);
    done = end;
  }
  out.append(text, done);
  return out;
}

double Pattern::growth(std::string_view with) const {
  const auto length = static_cast<double>(with.size());
  if (!regex_) return literal_.empty() ? 1.0 : std::max(1.0, length / static_cast<double>(literal_.size()));
  std::vector<Regex::Span> spans;
  regex_->find_all("", spans);
  return spans.empty() ? std::max(1.0, length) : length + 1;  // it matches between characters, too
}

Status Growth::replace(const Pattern& pattern, std::string_view with, std::string_view field) {
  constexpr double kMost = 4096;
  times_ *= pattern.growth(with);
  if (times_ <= kMost) return {};
  return corrupt({field, " has replacements that could make a text more than 4096 times as long"});
}

Result<SplitBehavior> split_behavior(std::string_view name) {
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return unsupported({"behavior \"", name, "\" is unknown"});
}

namespace {

struct Part {
  size_t begin, end;
  bool match;
};

std::vector<Part> parts_of(size_t size, const std::vector<Regex::Span>& matches, bool invert) {
  std::vector<Part> parts;
  size_t done = 0;
  for (const auto& [begin, end] : matches) {
    if (begin > done) parts.push_back({done, begin, invert});
    parts.push_back({begin, end, !invert});
    done = end;
  }
  if (done < size) parts.push_back({done, size, invert});
  return parts;
}

void keep(std::vector<Regex::Span>& pieces, size_t begin, size_t end) {
  if (begin < end) pieces.emplace_back(begin, end);
}

}  // namespace

void split_around(size_t size, const std::vector<Regex::Span>& matches, SplitBehavior behavior, bool invert,
                  std::vector<Regex::Span>& pieces) {
  const std::vector<Part> parts = parts_of(size, matches, invert);
  std::vector<Regex::Span> merged;
  bool previous = false;
  switch (behavior) {
    case SplitBehavior::kIsolated:
      for (const Part& part : parts) keep(pieces, part.begin, part.end);
      return;
    case SplitBehavior::kRemoved:
      for (const Part& part : parts) {
        if (!part.match) keep(pieces, part.begin, part.end);
      }
      return;
    case SplitBehavior::kContiguous:
      for (const Part& part : parts) {
        if (part.match == previous && !merged.empty()) {
          merged.back().second = part.end;
        } else {
          merged.emplace_back(part.begin, part.end);
        }
        previous = part.match;
      }
      break;
    case SplitBehavior::kMergedWithPrevious:
      for (const Part& part : parts) {
        if (part.match && !previous && !merged.empty()) {
          merged.back().second = part.end;
        } else {
          merged.emplace_back(part.begin, part.end);
        }
        previous = part.match;
      }
      break;
    case SplitBehavior::kMergedWithNext:
      for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
        if (part->match && !previous && !merged.empty()) {
          merged.back().first = part->begin;
        } else {
          merged.emplace_back(part->begin, part->end);
        }
        previous = part->match;
      }
      for (auto it = merged.rbegin(); it != merged.rend(); ++it) keep(pieces, it->first, it->second);
      return;
  }
  for (const auto& [begin, end] : merged) keep(pieces, begin, end);
}

}  // namespace quire::text
