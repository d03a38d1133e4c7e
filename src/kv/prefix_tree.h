// SPDX-License-Identifier: Apache-2.0
// The tree of cached beginnings: one node for each unit of tokens, and at each node the pages that hold it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv/prefix_hash.h"

namespace quire::kv {

using BlockId = int32_t;
// Page 0 stands for "no page" in block tables: it is never handed out, and never freed.
inline constexpr BlockId kNullBlock = 0;

using NodeId = int32_t;
inline constexpr NodeId kRootNode = 0;  // the empty beginning
inline constexpr NodeId kNoNode = -1;

// One unit of tokens behind a node. The views need to live only for the call.
struct UnitKey {
  BlockHash hash = {};                   // of all that follows and all before
  std::span<const int32_t> tokens = {};  // as many as the tree's unit
  std::string_view extra = {};           // salt and other keys; a sequence's first unit only
};

// Which texts are cached, and where. A node stands for a text of whole units: its parent's and one unit more. A page
// hangs at the node at which it ends, under its cache group: a group's pages may skip nodes (a window's, a state's),
// and still be reached, because a node lives as long as a page, a child or a sequence refers to it.
// A hash only finds candidates: a node is found by token ids, extra keys and its parent, so a collision can cost time
// and never serve a wrong page.
// Owned by the block pool, engine thread. Invariant: a node's count is its pages, its children and its sequences.
class PrefixTree {
 public:
  PrefixTree(int64_t unit, int32_t num_groups, int32_t num_blocks);

  // The child of `parent` with this unit, or kNoNode.
  NodeId find(NodeId parent, const UnitKey& key) const;
  // The same, made if there is none; one reference on it is the caller's.
  NodeId extend(NodeId parent, const UnitKey& key);
  void retain(NodeId node) { ++nodes_[index(node)].refs; }
  void release(NodeId node);  // gone, and its parents with it, when nothing refers to it any more

  // Hangs a page at a node; a page hangs at one node at most.
  void attach(BlockId block, NodeId node, int32_t group);
  void detach(BlockId block);
  // The oldest page of this group at this node, or kNullBlock.
  BlockId page(NodeId node, int32_t group) const { return heads_[head(node, group)].first; }
  // Where a page hangs, or kNoNode.
  NodeId node(BlockId block) const { return pages_[static_cast<size_t>(block)].node; }

  int64_t unit() const { return unit_; }
  int32_t num_nodes() const { return num_nodes_; }  // without the root
  int32_t num_pages() const { return num_pages_; }  // that hang at nodes

 private:
  struct Node {
    NodeId parent = kNoNode;
    int32_t refs = 0;
    NodeId same_prev = kNoNode;  // neighbours among the nodes of one hash; same_next also links the unused ones
    NodeId same_next = kNoNode;
    BlockHash hash;
    std::string extra;
  };
  struct Page {
    NodeId node = kNoNode;
    int32_t group = 0;
    BlockId prev = kNullBlock;  // neighbours among the pages of one node and group, oldest first
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
  std::vector<Page> pages_;      // [blocks]
  std::unordered_map<BlockHash, NodeId, BlockHashToSize> buckets_;
  NodeId unused_ = kNoNode;
  int32_t num_nodes_ = 0;
  int32_t num_pages_ = 0;
};

}  // namespace quire::kv
