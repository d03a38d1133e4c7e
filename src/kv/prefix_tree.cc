// SPDX-License-Identifier: Apache-2.0
// The prefix tree in flat arrays, with a list of unused nodes.
#include "kv/prefix_tree.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire::kv {

PrefixTree::PrefixTree(int64_t unit, int32_t num_groups, int32_t num_blocks)
    : unit_(unit),
      num_groups_(num_groups),
      nodes_(1),
      tokens_(static_cast<size_t>(unit)),
      heads_(static_cast<size_t>(num_groups)),
      parts_(static_cast<size_t>(num_groups)),
      pages_(static_cast<size_t>(num_blocks)) {
  QUIRE_CHECK(unit > 0 && num_groups > 0);
  nodes_[kRootNode].refs = 1;  // never deleted
}

size_t PrefixTree::index(NodeId node) const {
  QUIRE_CHECK(node >= 0 && static_cast<size_t>(node) < nodes_.size() && nodes_[static_cast<size_t>(node)].refs > 0,
              "not a node of this tree");
  return static_cast<size_t>(node);
}

size_t PrefixTree::head(NodeId node, int32_t group) const {
  QUIRE_CHECK(group >= 0 && group < num_groups_);
  return index(node) * static_cast<size_t>(num_groups_) + static_cast<size_t>(group);
}

std::span<const int32_t> PrefixTree::tokens(NodeId node) const {
  const size_t unit = static_cast<size_t>(unit_);
  return std::span(tokens_).subspan(static_cast<size_t>(node) * unit, unit);
}

NodeId PrefixTree::find(NodeId parent, const UnitKey& key) const {
  const auto it = buckets_.find(key.hash);
  if (it == buckets_.end()) return kNoNode;
  for (NodeId id = it->second; id != kNoNode; id = nodes_[index(id)].same_next) {
    const Node& node = nodes_[index(id)];
    if (node.parent == parent && node.extra == key.extra && std::ranges::equal(tokens(id), key.tokens)) return id;
  }
  return kNoNode;
}

NodeId PrefixTree::extend(NodeId parent, const UnitKey& key) {
  NodeId id = find(parent, key);
  if (id == kNoNode) id = make(parent, key);
  ++nodes_[static_cast<size_t>(id)].refs;
  return id;
}

// A new node without references.
NodeId PrefixTree::make(NodeId parent, const UnitKey& key) {
  QUIRE_CHECK(static_cast<int64_t>(key.tokens.size()) == unit_, "a node holds one unit of tokens");
  NodeId id = unused_;
  if (id == kNoNode) {
    id = static_cast<NodeId>(nodes_.size());
    nodes_.emplace_back();
    tokens_.resize(tokens_.size() + static_cast<size_t>(unit_));
    heads_.resize(heads_.size() + static_cast<size_t>(num_groups_));
    parts_.resize(heads_.size());
  } else {
    unused_ = nodes_[static_cast<size_t>(id)].same_next;
  }
  retain(parent);
  std::ranges::copy(key.tokens, tokens_.begin() + static_cast<std::ptrdiff_t>(id) * unit_);
  Node& node = nodes_[static_cast<size_t>(id)];
  node.parent = parent;
  node.hash = key.hash;
  node.extra = key.extra;
  node.same_prev = kNoNode;
  const auto [bucket, first] = buckets_.try_emplace(key.hash, id);
  node.same_next = first ? kNoNode : bucket->second;
  if (!first) nodes_[index(bucket->second)].same_prev = id;
  bucket->second = id;
  ++num_nodes_;
  return id;
}

void PrefixTree::destroy(NodeId id) {
  Node& node = nodes_[static_cast<size_t>(id)];
  if (node.same_next != kNoNode) nodes_[index(node.same_next)].same_prev = node.same_prev;
  if (node.same_prev != kNoNode) {
    nodes_[index(node.same_prev)].same_next = node.same_next;
  } else if (node.same_next != kNoNode) {
    buckets_[node.hash] = node.same_next;
  } else {
    buckets_.erase(node.hash);
  }
  node.extra.clear();
  node.parent = kNoNode;
  node.same_next = unused_;
  unused_ = id;
  --num_nodes_;
}

void PrefixTree::release(NodeId id) {
  while (--nodes_[index(id)].refs == 0) {
    const NodeId parent = nodes_[static_cast<size_t>(id)].parent;
    destroy(id);
    id = parent;
  }
}

PrefixTree::End PrefixTree::end_of(NodeId node, int64_t most) const {
  End end;
  std::vector<NodeId> path;  // the nodes whose tokens are wanted, last first
  for (NodeId id = node; id != kRootNode; id = nodes_[index(id)].parent) {
    if (static_cast<int64_t>(path.size()) * unit_ < most) path.push_back(id);
    end.length += unit_;
  }
  for (auto it = path.rbegin(); it != path.rend(); ++it) {
    const auto unit = tokens(*it);
    end.last.insert(end.last.end(), unit.begin(), unit.end());
  }
  const auto extra = static_cast<std::ptrdiff_t>(end.last.size()) - static_cast<std::ptrdiff_t>(most);
  if (extra > 0) end.last.erase(end.last.begin(), end.last.begin() + extra);
  return end;
}

bool PrefixTree::attach(BlockId block, NodeId node, int32_t group) {
  Page& page = pages_[static_cast<size_t>(block)];
  QUIRE_CHECK(page.node == kNoNode, "the page is published already");
  Head& list = heads_[head(node, group)];
  page.node = node;
  page.group = group;
  page.prev = list.last;
  (list.last != kNullBlock ? pages_[static_cast<size_t>(list.last)].next : list.first) = block;
  list.last = block;
  retain(node);
  ++num_pages_;
  return list.first == block;
}

bool PrefixTree::detach(BlockId block) {
  Page& page = pages_[static_cast<size_t>(block)];
  QUIRE_CHECK(page.node != kNoNode, "the page is not published");
  Head& list = heads_[head(page.node, page.group)];
  (page.prev != kNullBlock ? pages_[static_cast<size_t>(page.prev)].next : list.first) = page.next;
  (page.next != kNullBlock ? pages_[static_cast<size_t>(page.next)].prev : list.last) = page.prev;
  const bool last = list.first == kNullBlock;
  release(std::exchange(page.node, kNoNode));
  page.prev = page.next = kNullBlock;
  --num_pages_;
  return last;
}

void PrefixTree::add_part(BlockId block, NodeId node, int32_t group, int64_t end) {
  if (part(node, group) == block) return;
  retain(node);  // first: dropping another page's part must not delete the node
  if (part(node, group) != kNullBlock) drop_part(node, group);
  Page& page = pages_[static_cast<size_t>(block)];
  page.group = group;
  const auto at = std::ranges::upper_bound(page.parts, end, {}, &Part::end);
  page.parts.insert(at, {node, end});
  parts_[head(node, group)] = block;
}

void PrefixTree::drop_part(NodeId node, int32_t group) {
  BlockId& block = parts_[head(node, group)];
  if (block == kNullBlock) return;
  std::erase_if(pages_[static_cast<size_t>(block)].parts, [&](const Part& part) { return part.node == node; });
  block = kNullBlock;
  release(node);
}

void PrefixTree::drop_parts(BlockId block, int64_t end) {
  Page& page = pages_[static_cast<size_t>(block)];
  for (; !page.parts.empty() && page.parts.back().end > end; page.parts.pop_back()) {
    const NodeId node = page.parts.back().node;
    parts_[head(node, page.group)] = kNullBlock;
    release(node);
  }
}

void PrefixTree::move_parts(BlockId from, BlockId to, int64_t end) {
  const std::vector<Part> parts = pages_[static_cast<size_t>(from)].parts;
  for (const Part& part : parts) {
    if (part.end <= end) add_part(to, part.node, pages_[static_cast<size_t>(from)].group, part.end);
  }
}

std::pair<NodeId, int64_t> PrefixTree::last_part(BlockId block) const {
  const Part& last = pages_[static_cast<size_t>(block)].parts.back();
  return {last.node, last.end};
}

}  // namespace quire::kv
