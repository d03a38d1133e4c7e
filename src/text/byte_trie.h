// SPDX-License-Identifier: Apache-2.0
// A read-only trie over bytes that finds all keys that are prefixes of a text.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::text {

// The children of a node are adjacent, sorted by byte; the root has a direct table. Immutable once built.
class ByteTrie {
 public:
  ByteTrie() = default;
  // Keys with their values (>= 0). Of equal keys the first is used; empty keys are ignored.
  explicit ByteTrie(std::vector<std::pair<std::string, int32_t>> keys) {
    std::stable_sort(keys.begin(), keys.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    keys.erase(std::unique(keys.begin(), keys.end(), [](const auto& a, const auto& b) { return a.first == b.first; }),
               keys.end());
    if (!keys.empty() && keys.front().first.empty()) keys.erase(keys.begin());
    build(keys);
  }

  bool empty() const { return nodes_.size() <= 1; }
  bool starts_with(unsigned char byte) const { return !nodes_.empty() && root_[byte] != 0; }

  // Calls found(length, value) for each key that is a prefix of `text`, shortest first.
  template <typename Found>
  void prefixes(std::string_view text, Found found) const {
    if (nodes_.empty()) return;
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<unsigned char>(text[i]));
      if (node == 0) return;
      if (nodes_[node].value >= 0) found(i + 1, nodes_[node].value);
    }
  }
  // Length and value of the longest key that is a prefix of `text`; length 0 if there is none.
  std::pair<size_t, int32_t> longest(std::string_view text) const {
    std::pair<size_t, int32_t> best{0, -1};
    prefixes(text, [&](size_t size, int32_t value) { best = {size, value}; });
    return best;
  }

 private:
  struct Node {
    uint32_t first = 0;  // child nodes [first, first + count)
    uint16_t count = 0;
    unsigned char byte = 0;
    int32_t value = -1;
  };
  uint32_t child(uint32_t node, unsigned char byte) const {
    if (node == 0) return root_[byte];
    const Node& parent = nodes_[node];
    const Node* first = nodes_.data() + parent.first;
    const Node* last = first + parent.count;
    if (parent.count <= 8) {
      for (const Node* n = first; n != last; ++n) {
        if (n->byte == byte) return static_cast<uint32_t>(n - nodes_.data());
      }
      return 0;
    }
    const Node* n = std::lower_bound(first, last, byte, [](const Node& a, unsigned char b) { return a.byte < b; });
    return n != last && n->byte == byte ? static_cast<uint32_t>(n - nodes_.data()) : 0;
  }
  void build(const std::vector<std::pair<std::string, int32_t>>& keys) {
    struct Span {
      size_t begin, end, depth;  // keys that share their first `depth` bytes
    };
    std::vector<Span> spans{{0, keys.size(), 0}};
    nodes_.push_back({});
    for (size_t n = 0; n < nodes_.size(); ++n) {  // breadth first, so that children are adjacent
      Span span = spans[n];
      if (span.begin < span.end && keys[span.begin].first.size() == span.depth) {
        nodes_[n].value = keys[span.begin].second;
        ++span.begin;
      }
      nodes_[n].first = static_cast<uint32_t>(nodes_.size());
      size_t i = span.begin;
      while (i < span.end) {
        const auto byte = static_cast<unsigned char>(keys[i].first[span.depth]);
        size_t j = i;
        while (j < span.end && static_cast<unsigned char>(keys[j].first[span.depth]) == byte) ++j;
        Node child;
        child.byte = byte;
        nodes_.push_back(child);
        spans.push_back({i, j, span.depth + 1});
        ++nodes_[n].count;
        i = j;
      }
    }
    for (uint32_t i = 0; i < nodes_[0].count; ++i) root_[nodes_[nodes_[0].first + i].byte] = nodes_[0].first + i;
  }

  std::vector<Node> nodes_;
  std::array<uint32_t, 256> root_{};
};

}  // namespace quire::text
