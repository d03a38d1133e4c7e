// SPDX-License-Identifier: Apache-2.0
// Vocabulary: builds the tries of a model's tokens.
#include <algorithm>
#include <limits>

#include "base/check.h"
#include "grammar/token_trie.h"

namespace quire::grammar {

namespace {

// The states of plain_text_step() besides 0.
enum : int { kOneMore = 1, kTwoMore, kThreeMore, kAfterE0, kAfterEd, kAfterF0, kAfterF4 };

// The characters of a token that is plain text, or nothing.
std::optional<int> plain_chars(const std::string& bytes) {
  int state = 0, chars = 0;
  for (char c : bytes) {
    state = plain_text_step(state, static_cast<uint8_t>(c));
    if (state < 0) return std::nullopt;
    if (state == 0) ++chars;
  }
  if (state != 0) return std::nullopt;
  return chars;
}

// REQUIRES: ids are sorted by their bytes, which differ.
std::vector<TrieNode> build_trie(const std::vector<Vocabulary::Token>& tokens, const std::vector<uint32_t>& ids) {
  std::vector<TrieNode> nodes;
  std::vector<uint32_t> path;  // the nodes from the root to the last token
  std::string_view last;
  auto close = [&](size_t depth) {
    while (path.size() > depth) {
      nodes[path.back()].next = static_cast<uint32_t>(nodes.size());
      path.pop_back();
    }
  };
  for (uint32_t id : ids) {
    std::string_view bytes = tokens[id].bytes;
    size_t common = std::ranges::mismatch(last, bytes).in1 - last.begin();
    close(common);
    for (size_t i = common; i < bytes.size(); ++i) {
      path.push_back(static_cast<uint32_t>(nodes.size()));
      nodes.push_back({.depth = static_cast<uint16_t>(i + 1), .byte = static_cast<uint8_t>(bytes[i])});
    }
    nodes[path.back()].token = id;
    last = bytes;
  }
  close(0);
  return nodes;
}

// Lists the children of the root and of nodes that have many.
void list_children(TokenSlice& slice) {
  constexpr uint32_t kMany = 6;
  auto list = [&](uint32_t node, uint32_t first, uint32_t last) {
    const auto begin = static_cast<uint32_t>(slice.child_nodes.size());
    for (uint32_t child = first; child < last; child = slice.nodes[child].next) {
      slice.child_nodes.push_back(child);
      slice.child_bytes.push_back(slice.nodes[child].byte);
    }
    slice.wide.push_back({node, begin, static_cast<uint32_t>(slice.child_nodes.size())});
  };
  const auto count = static_cast<uint32_t>(slice.nodes.size());
  list(0, 0, count);
  for (uint32_t i = 0; i < count; ++i) {
    TrieNode& node = slice.nodes[i];
    uint32_t children = 0;
    for (uint32_t child = i + 1; child < node.next && children < kMany; child = slice.nodes[child].next) ++children;
    if (children < kMany) continue;
    node.wide = 1;
    list(i, i + 1, node.next);
  }
}

// Sets TrieNode::chars of a slice of plain text.
void count_chars(TokenSlice& slice) {
  std::vector<uint32_t> open;  // the node and those above it
  std::vector<int> before;     // by depth: the characters in the first bytes
  for (uint32_t i = 0; i < slice.nodes.size(); ++i) {
    TrieNode& node = slice.nodes[i];
    open.resize(node.depth - 1u);
    before.resize(node.depth);
    open.push_back(i);
    // Each character is counted at its first byte.
    const int chars = before[node.depth - 1u] + ((node.byte & 0xC0) != 0x80 ? 1 : 0);
    before.push_back(chars);
    if (node.token == TrieNode::kNoToken) continue;
    const auto capped = static_cast<uint8_t>(std::min<int>(chars, TrieNode::kManyChars));
    for (uint32_t above : open) slice.nodes[above].chars = std::max<uint8_t>(slice.nodes[above].chars, capped);
  }
}

}  // namespace

int plain_text_step(int state, uint8_t byte) {
  auto in = [byte](int first, int last) { return byte >= first && byte <= last; };
  switch (state) {
    case 0:
      if (byte == '"' || byte == '\\') return -1;
      if (in(0x20, 0x7E)) return 0;
      if (in(0xC2, 0xDF)) return kOneMore;
      if (byte == 0xE0) return kAfterE0;
      if (byte == 0xED) return kAfterEd;
      if (in(0xE1, 0xEF)) return kTwoMore;
      if (byte == 0xF0) return kAfterF0;
      if (in(0xF1, 0xF3)) return kThreeMore;
      return byte == 0xF4 ? kAfterF4 : -1;
    case kOneMore:
      return in(0x80, 0xBF) ? 0 : -1;
    case kTwoMore:
      return in(0x80, 0xBF) ? kOneMore : -1;
    case kThreeMore:
      return in(0x80, 0xBF) ? kTwoMore : -1;
    case kAfterE0:
      return in(0xA0, 0xBF) ? kOneMore : -1;
    case kAfterEd:
      return in(0x80, 0x9F) ? kOneMore : -1;
    case kAfterF0:
      return in(0x90, 0xBF) ? kTwoMore : -1;
    default:
      return in(0x80, 0x8F) ? kTwoMore : -1;
  }
}

Vocabulary::Vocabulary() : parts_(std::make_unique<Parts>()) {}
Vocabulary::~Vocabulary() = default;

std::shared_ptr<const Vocabulary> Vocabulary::make(std::vector<Token> tokens, int64_t size) {
  QUIRE_CHECK(size >= static_cast<int64_t>(tokens.size()) && size <= std::numeric_limits<int32_t>::max());
  std::shared_ptr<Vocabulary> vocabulary(new Vocabulary());
  Parts& parts = *vocabulary->parts_;
  parts.size = size;
  parts.tokens = std::move(tokens);
  parts.tokens.resize(static_cast<size_t>(size));
  parts.present.resize(vocabulary->mask_words());
  std::vector<uint32_t> ids;
  for (uint32_t id = 0; id < parts.tokens.size(); ++id) {
    const Token& token = parts.tokens[id];
    if (token.bytes.empty()) continue;
    parts.present[id / 32] |= uint32_t{1} << (id % 32);
    // A token of more than 64 kB is of no use in a text and is left out.
    if (!token.special && token.bytes.size() <= std::numeric_limits<uint16_t>::max()) ids.push_back(id);
  }
  std::ranges::sort(ids, [&](uint32_t a, uint32_t b) {
    int order = parts.tokens[a].bytes.compare(parts.tokens[b].bytes);
    return order != 0 ? order < 0 : a < b;
  });
  static constexpr std::array<int, 4> kMaxChars = {10, 30, kAnyChars, 0};
  std::array<std::vector<uint32_t>, 4> groups;
  for (size_t i = 0; i < parts.slices.size(); ++i) {
    parts.slices[i].max_chars = kMaxChars[i];
  }
  parts.plain_masks.assign(kMaxCountedChars + 2, std::vector<uint32_t>(vocabulary->mask_words()));
  uint32_t previous = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string& bytes = parts.tokens[ids[i]].bytes;
    std::optional<int> chars = plain_chars(bytes);
    size_t slice = !chars ? 3 : *chars <= kMaxChars[0] ? 0 : *chars <= kMaxChars[1] ? 1 : 2;
    if (chars) {
      const auto first = static_cast<size_t>(std::min(*chars, kMaxCountedChars + 1));
      parts.plain_masks[first][ids[i] / 32] |= uint32_t{1} << (ids[i] % 32);
    }
    if (i > 0 && parts.tokens[previous].bytes == bytes) {
      parts.duplicates.emplace_back(ids[i], previous);
      continue;
    }
    groups[slice].push_back(ids[i]);
    parts.max_depth = std::max(parts.max_depth, static_cast<int>(bytes.size()));
    previous = ids[i];
  }
  for (size_t chars = 1; chars < parts.plain_masks.size(); ++chars) {
    const std::vector<uint32_t>& shorter = parts.plain_masks[chars - 1];
    for (size_t word = 0; word < shorter.size(); ++word) parts.plain_masks[chars][word] |= shorter[word];
  }
  for (size_t i = 0; i < parts.slices.size(); ++i) {
    TokenSlice& slice = parts.slices[i];
    slice.nodes = build_trie(parts.tokens, groups[i]);
    if (slice.max_chars > 0) count_chars(slice);
    list_children(slice);
    slice.rank.push_back(0);
    for (const TrieNode& node : slice.nodes) {
      slice.rank.push_back(slice.rank.back() + (node.token != TrieNode::kNoToken ? 1 : 0));
    }
  }
  return vocabulary;
}

int64_t Vocabulary::size() const {
  return parts_->size;
}
size_t Vocabulary::mask_words() const {
  return static_cast<size_t>((parts_->size + 31) / 32);
}
const Vocabulary::Token& Vocabulary::token(int32_t id) const {
  QUIRE_CHECK(id >= 0 && id < parts_->size);
  return parts_->tokens[static_cast<size_t>(id)];
}

int32_t Vocabulary::longest_prefix(std::string_view text) const {
  int32_t best = -1;
  size_t length = 0;
  for (const TokenSlice& slice : parts_->slices) {
    if (slice.nodes.empty()) continue;
    TrieWalk walk(slice);
    while (walk.next(
        [&](size_t depth, uint8_t byte) { return depth < text.size() && byte == static_cast<uint8_t>(text[depth]); })) {
      const TrieNode& node = slice.nodes[walk.node()];
      if (node.depth > text.size() || node.byte != static_cast<uint8_t>(text[node.depth - 1])) {
        walk.skip();
        continue;
      }
      if (node.token != TrieNode::kNoToken && node.depth > length) {
        best = static_cast<int32_t>(node.token);
        length = node.depth;
      }
      walk.enter();
    }
  }
  return best;
}

}  // namespace quire::grammar
