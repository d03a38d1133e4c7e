// SPDX-License-Identifier: Apache-2.0
// The tree of cached beginnings: what is found, what is not, and how long it lives.
#include "kv/prefix_tree.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire::kv {
namespace {

using Tokens = std::vector<int32_t>;

UnitKey key(const Tokens& tokens, uint64_t hash = 7, std::string_view extra = {}) {
  return {.hash = {.lo = hash, .hi = 0}, .tokens = tokens, .extra = extra};
}

TEST(PrefixTree, ACollisionIsAMissAndNeverAWrongNode) {
  PrefixTree tree(2, 1, 4);
  const Tokens a = {1, 2}, b = {3, 4};
  const NodeId node = tree.extend(kRootNode, key(a));
  EXPECT_EQ(tree.find(kRootNode, key(b)), kNoNode);
  EXPECT_EQ(tree.find(kRootNode, key(a, 7, "salt")), kNoNode);
  EXPECT_EQ(tree.find(node, key(a)), kNoNode);
  const NodeId other = tree.extend(kRootNode, key(b));
  EXPECT_NE(node, other);
  EXPECT_EQ(tree.find(kRootNode, key(b)), other);
  EXPECT_EQ(tree.find(kRootNode, key(a)), node);
}

TEST(PrefixTree, EqualTextsShareANodeAndTheOldestPageAnswers) {
  PrefixTree tree(1, 1, 4);
  const Tokens head = {1};
  const NodeId node = tree.extend(kRootNode, key(head));
  EXPECT_EQ(tree.extend(kRootNode, key(head)), node);
  tree.attach(2, node, 0);
  tree.attach(1, node, 0);
  EXPECT_EQ(tree.page(node, 0), 2);
  tree.detach(2);
  EXPECT_EQ(tree.page(node, 0), 1);
  tree.attach(2, node, 0);
  tree.detach(2);
  EXPECT_EQ(tree.page(node, 0), 1);
}

TEST(PrefixTree, GroupsDoNotSeeEachOthersPages) {
  PrefixTree tree(1, 3, 4);
  const Tokens head = {1};
  const NodeId node = tree.extend(kRootNode, key(head));
  tree.attach(1, node, 2);
  EXPECT_EQ(tree.page(node, 0), kNullBlock);
  EXPECT_EQ(tree.page(node, 1), kNullBlock);
  EXPECT_EQ(tree.page(node, 2), 1);
}

// A window's page far behind, or a state, is found although nothing before it is cached.
TEST(PrefixTree, ANodeLivesAsLongAsAPageBehindIt) {
  PrefixTree tree(1, 1, 4);
  NodeId node = kRootNode;
  const Tokens text = {5, 6, 7};
  for (const int32_t token : text) {
    const NodeId next = tree.extend(node, key({token}));
    if (node != kRootNode) tree.release(node);
    node = next;
  }
  tree.attach(3, node, 0);
  tree.release(node);
  EXPECT_EQ(tree.num_nodes(), 3);
  NodeId found = kRootNode;
  for (const int32_t token : text) found = tree.find(found, key({token}));
  EXPECT_EQ(tree.page(found, 0), 3);
  tree.detach(3);
  EXPECT_EQ(tree.num_nodes(), 0);
  EXPECT_EQ(tree.find(kRootNode, key({5})), kNoNode);
}

TEST(PrefixTree, NodesOfOneHashComeAndGoInAnyOrder) {
  PrefixTree tree(1, 1, 2);
  std::vector<NodeId> nodes;
  for (int32_t t = 0; t < 5; ++t) nodes.push_back(tree.extend(kRootNode, key({t})));
  for (const int32_t gone : {2, 4, 0}) tree.release(nodes[static_cast<size_t>(gone)]);
  for (const int32_t t : {0, 2, 4}) EXPECT_EQ(tree.find(kRootNode, key({t})), kNoNode);
  for (const int32_t t : {1, 3}) EXPECT_EQ(tree.find(kRootNode, key({t})), nodes[static_cast<size_t>(t)]);
  tree.release(nodes[1]);
  tree.release(nodes[3]);
  EXPECT_EQ(tree.num_nodes(), 0);
  const NodeId again = tree.extend(kRootNode, key({9}));
  EXPECT_LE(again, 5);  // a node's place is used again
  EXPECT_EQ(tree.find(kRootNode, key({9})), again);
}

TEST(PrefixTreeDeathTest, APageIsPublishedOnce) {
  PrefixTree tree(1, 1, 2);
  const NodeId node = tree.extend(kRootNode, key({1}));
  tree.attach(1, node, 0);
  EXPECT_DEATH(tree.attach(1, node, 0), "published already");
  tree.detach(1);
  EXPECT_DEATH(tree.detach(1), "not published");
}

}  // namespace
}  // namespace quire::kv
