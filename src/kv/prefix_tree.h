// SPDX-License-Identifier: Apache-2.0
// PrefixTree: the cached prefixes as a tree with one node per unit of tokens, and the pages that end at each node.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/prefix_hash.h"

namespace quire::kv {

using BlockId = int32_t;
// Page 0 means "no page" in block tables; it is never allocated or freed.
inline constexpr BlockId kNullBlock = 0;

using NodeId = int32_t;
inline constexpr NodeId kRootNode = 0;  // the empty prefix
inline constexpr NodeId kNoNode = -1;

// One unit of tokens after a node. The views need to be valid only during the call.
struct UnitKey {
  BlockHash hash = {};                   // of this unit and all before it
  std::span<const int32_t> tokens = {};  // as many as the tree's unit
  std::string_view extra = {};           // the salt and other keys; empty except for the first unit of a sequence
};

// Which prefixes are cached, and in which pages. A node stands for a prefix of whole units: that of its parent and one
// unit more. A page is attached to the node at which it ends, under its cache group. A group need not have pages at
// every node (window and state groups do not); a node exists as long as a page, a child or a sequence refers to it.
// A hash only finds candidates: nodes are compared by token ids, extra keys and parent, so a collision costs time and
// never yields a wrong page.
// Owned by the block pool; engine thread. Invariant: the reference count of a node is the number of its pages, children
// and sequences.
class PrefixTree {
 public:
  PrefixTree(int64_t unit, int32_t num_groups, int32_t num_blocks);

  // The child of `parent` with this unit, or kNoNode.
  NodeId find(NodeId parent, const UnitKey& key) const;
  // The same, created if there is none. The caller owns one reference to it.
  NodeId extend(NodeId parent, const UnitKey& key);
  void retain(NodeId node) { ++nodes_[index(node)].refs; }
  void release(NodeId node);  // the last reference deletes the node, and parents without other references

  // Attaches a page to a node. Returns whether it is the node's first page of this group.
  // REQUIRES: the page is not attached to any node.
  bool attach(BlockId block, NodeId node, int32_t group);
  // Returns whether it was the last page of its group at its node.
  bool detach(BlockId block);
  // The oldest page of this group at this node, or kNullBlock.
  BlockId page(NodeId node, int32_t group) const { return heads_[head(node, group)].first; }
  // A page that is not full, or that goes on with another text, may still serve a prefix that ends inside it: its first
  // positions are a *part*. A page has any number of parts beside the node to which it is attached, and a node has at
  // most one part per group: the newest. `end` is the length of the prefix.
  void add_part(BlockId block, NodeId node, int32_t group, int64_t end);
  BlockId part(NodeId node, int32_t group) const { return parts_[head(node, group)]; }
  void drop_part(NodeId node, int32_t group);
  // Drops the parts of a page that end after `end`.
  void drop_parts(BlockId block, int64_t end = 0);
  // The parts of a page that end at or before `end` are now those of a copy of it.
  void move_parts(BlockId from, BlockId to, int64_t end);
  bool has_parts(BlockId block) const { return !pages_[static_cast<size_t>(block)].parts.empty(); }
  // The node and the end of the longest part. REQUIRES: has_parts()
  std::pair<NodeId, int64_t> last_part(BlockId block) const;

  // The node to which a page is attached, or kNoNode.
  NodeId node(BlockId block) const { return pages_[static_cast<size_t>(block)].node; }

  const BlockHash& hash(NodeId node) const { return nodes_[index(node)].hash; }
  // The cache group of a page that is attached or has parts.
  int32_t group(BlockId block) const { return pages_[static_cast<size_t>(block)].group; }
  // The length of the prefix that ends at a node, in tokens, and at most `most` of its last tokens. Walks to the root.
  struct End {
    int64_t length = 0;
    std::vector<int32_t> last;
  };
  End end_of(NodeId node, int64_t most) const;

  int64_t unit() const { return unit_; }
  int32_t num_nodes() const { return num_nodes_; }  // without the root
  int32_t num_pages() const { return num_pages_; }  // that are attached to nodes

 private:
  struct Node {
    NodeId parent = kNoNode;
    int32_t refs = 0;
    NodeId same_prev = kNoNode;  // neighbours among the nodes with the same hash; same_next also links unused nodes
    NodeId same_next = kNoNode;
    BlockHash hash;
    std::string extra;
  };
  struct Part {
    NodeId node = kNoNode;
    int64_t end = 0;
  };
  struct Page {
    NodeId node = kNoNode;
    int32_t group = 0;
    std::vector<Part> parts = {};  // shortest first
    BlockId prev = kNullBlock;     // neighbours among the pages of one node and group; the oldest is first
    BlockId next = kNullBlock;
  };
  struct Head {
    BlockId first = kNullBlock;
    BlockId last = kNullBlock;
  };

  size_t index(NodeId node) const;
  size_t head(NodeId node, int32_t group) const;
  std::span<const int32_t> tokens(NodeId node) const;
  NodeId make(NodeId parent, const UnitKey& key);
  void destroy(NodeId node);

  int64_t unit_;
  int32_t num_groups_;
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;  // [nodes, unit]
  std::vector<Head> heads_;      // [nodes, groups]
  std::vector<BlockId> parts_;   // likewise
  std::vector<Page> pages_;      // [blocks]
  std::unordered_map<BlockHash, NodeId, BlockHashToSize> buckets_;
  NodeId unused_ = kNoNode;
  int32_t num_nodes_ = 0;
  int32_t num_pages_ = 0;
};

}  // namespace quire::kv
