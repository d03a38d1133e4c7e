// SPDX-License-Identifier: Apache-2.0
// The nodes of a RegexStore, private to the files of that class.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/flat_map.h"
#include "grammar/regex.h"

namespace quire::grammar {

// Nodes are numbered in the order in which they were made, so that a node's parts have smaller numbers than the node.
struct RegexStore::State {
  enum class Kind : uint8_t { kNothing, kEmpty, kBytes, kConcat, kEither, kBoth, kNot, kRepeat, kMultiple };
  enum class Emptiness : uint8_t { kUnknown, kSome, kNone };
  static constexpr uint32_t kNothing = 0;
  static constexpr uint32_t kEmpty = 1;
  static constexpr uint32_t kUnbounded = 0xFFFFFFFF;  // Node::c of a repeat without an upper bound
  static constexpr int kMaxDepth = 1000;

  // kBytes: a is an index into sets. kConcat: a is the first part (no kConcat itself), b the rest. kEither, kBoth:
  // b indices of nodes from lists[a], sorted. kNot: a. kRepeat: a, at least b and at most c times.
  // kMultiple: digits that continue a number with the remainder b to a multiple of a.
  struct Node {
    Kind kind = Kind::kNothing;
    bool nullable = false;
    bool plain = false;
    bool open =
        false;  // has an intersection or a complement in it, so that it may match no string without being node 0
    bool infinite = false;  // has a repetition without an upper bound in it
    Emptiness emptiness = Emptiness::kUnknown;
    uint32_t a = 0, b = 0, c = 0;
  };

  size_t max_nodes = 0;
  bool full = false;
  int64_t work = 0;
  std::vector<Node> nodes;
  std::vector<uint32_t> lists;
  std::vector<ByteSet> sets;
  std::map<std::array<uint64_t, 4>, uint32_t> set_index;
  std::vector<uint32_t> table;  // open addressing: node + 1, or 0
  // Derivatives already computed: node * 256 + byte to node.
  FlatMap derived;
  std::vector<uint64_t> visited;  // by node: the last walk that came here
  uint64_t visit = 0;
  std::vector<uint32_t> number_sets;  // the sets of each digit and of the point, once a kMultiple exists
  std::map<std::vector<uint32_t>, uint32_t> remainders;  // by what may follow: the remainder that stands for its equals
  uint32_t anything = 0, any_char = 0, any_text = 0;

  const Node& node(uint32_t index) const { return nodes[index]; }
  std::span<const uint32_t> list(const Node& node) const { return std::span(lists).subspan(node.a, node.b); }

  // The node with these fields and parts, new or the one that exists.
  uint32_t intern(Node key, std::span<const uint32_t> parts = {});
  uint64_t hash(const Node& key, std::span<const uint32_t> parts) const;
  bool same(const Node& node, const Node& key, std::span<const uint32_t> parts) const;
  void grow_table();

  uint32_t bytes(const ByteSet& set);
  uint32_t literal(std::string_view text);
  uint32_t concat(uint32_t a, uint32_t b);
  uint32_t concat_part(uint32_t part, uint32_t rest);
  uint32_t either(std::vector<uint32_t> parts, int depth = 0);
  void factor(std::vector<uint32_t>& parts, int depth);
  void join_heads(std::vector<uint32_t>& parts);
  uint32_t both(std::vector<uint32_t> parts);
  uint32_t complement(uint32_t a);
  uint32_t repeat(uint32_t a, uint32_t min, uint32_t max);
  uint32_t chars(std::span<const CodePointRange> ranges);
  uint32_t multiple(uint32_t divisor, uint32_t remainder);
  uint32_t representative(uint32_t divisor, uint32_t remainder);

  uint32_t derive(uint32_t index, uint8_t byte, int depth = 0);
  uint32_t derive_concat(uint32_t index, uint8_t byte, int depth);
  uint32_t derive_multiple(const Node& node, uint8_t byte);
};

}  // namespace quire::grammar
