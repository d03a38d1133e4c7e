// SPDX-License-Identifier: Apache-2.0
// The tokens of a Vocabulary as flat tries, one for each slice; private to vocabulary.cc and the matcher.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "grammar/matcher.h"

namespace quire::grammar {

// A node of a trie in depth-first order: its children follow it, and `next` is the node after its whole subtree.
struct TrieNode {
  static constexpr uint32_t kNoToken = 0xFFFFFFFF;
  uint32_t token = kNoToken;  // the token that ends here
  uint32_t next = 0;
  uint16_t depth = 0;  // the number of bytes up to and including this one
  uint8_t byte = 0;
  uint8_t wide : 1 = 0;   // has many children: TokenSlice::wide
  uint8_t chars : 7 = 0;  // in a slice of plain text: the most characters of a token that ends here or below
  static constexpr uint8_t kManyChars = 127;  // stands for any number from here
};

// Tokens that are whole characters of plain text are grouped by their length: where a terminal allows any text of that
// length, the mask of the whole group is taken and its trie is not walked. "Plain" leaves out what a JSON string must
// escape, and DEL.
struct TokenSlice {
  // Tokens of this slice have at most so many characters; 0: these tokens are not (only) plain text.
  int max_chars = 0;
  std::vector<TrieNode> nodes;
  std::vector<uint32_t> rank;  // by node, and one more: the number of tokens that end before it
  // The children of the root and of nodes that have many, listed so that those a walk has no use for are passed over
  // without a look at the nodes. Sorted by node; the root comes first.
  struct Wide {
    uint32_t node;
    uint32_t begin, end;  // in child_bytes and child_nodes
  };
  std::vector<Wide> wide;
  std::vector<uint8_t> child_bytes;
  std::vector<uint32_t> child_nodes;
};

// Follows plain text in UTF-8 byte by byte. State 0 is between two characters; -1: not plain text.
int plain_text_step(int state, uint8_t byte);
constexpr int kPlainTextStates = 8;
// More characters than any bounded slice has.
constexpr int kAnyChars = 1 << 30;
// Up to so many characters, all plain tokens of at most a given length have a mask of their own.
constexpr int kMaxCountedChars = 30;

struct Vocabulary::Parts {
  int64_t size = 0;
  std::vector<Token> tokens;
  std::array<TokenSlice, 4> slices;
  // By n up to kMaxCountedChars: one bit for each plain token of at most n characters, and at last, for all of them.
  std::vector<std::vector<uint32_t>> plain_masks;
  std::vector<uint32_t> present;                          // one bit per id that has a token
  std::vector<std::pair<uint32_t, uint32_t>> duplicates;  // (token, the token in the trie that has the same bytes)
  int max_depth = 0;
};

// Goes through the nodes of a trie from the first to the last. At each node, the caller says whether to enter() what is
// below it or to skip() it.
class TrieWalk {
 public:
  // The whole trie, and all that is below a node.
  explicit TrieWalk(const TokenSlice& slice) : slice_(slice) { push(slice.wide.front(), 0, 0); }
  TrieWalk(const TokenSlice& slice, uint32_t node) : slice_(slice), node_(node), end_(slice.nodes[node].next) {
    enter();
  }

  // Comes to the next node; false: there is none. Of the children of a wide node, those for which live(depth of the
  // parent, byte) is false may be left out.
  template <typename Live>
  bool next(Live live) {
    while (node_ == end_) {
      if (frames_.empty()) return false;
      Frame& frame = frames_.back();
      while (frame.child < frame.children_end && !live(frame.depth, slice_.child_bytes[frame.child])) ++frame.child;
      if (frame.child == frame.children_end) {
        node_ = frame.after;
        end_ = frame.end;
        frames_.pop_back();
      } else {
        node_ = slice_.child_nodes[frame.child++];
        end_ = slice_.nodes[node_].next;
      }
    }
    return true;
  }
  uint32_t node() const { return node_; }
  void skip() { node_ = slice_.nodes[node_].next; }
  void enter() {
    const TrieNode& node = slice_.nodes[node_];
    if (node.wide == 0) {
      ++node_;
      return;
    }
    push(*std::ranges::lower_bound(slice_.wide.begin() + 1, slice_.wide.end(), node_, {}, &TokenSlice::Wide::node),
         node.depth, node.next);
  }

 private:
  // The children of a wide node that are still to come, and where to go on after them.
  struct Frame {
    uint32_t child, children_end;
    uint32_t depth;
    uint32_t after, end;
  };
  void push(const TokenSlice::Wide& wide, uint32_t depth, uint32_t after) {
    frames_.push_back({wide.begin, wide.end, depth, after, end_});
    node_ = end_ = 0;
  }

  const TokenSlice& slice_;
  // The nodes from node_ to end_ are a subtree that is gone through in order.
  uint32_t node_ = 0, end_ = 0;
  std::vector<Frame> frames_;
};

}  // namespace quire::grammar
