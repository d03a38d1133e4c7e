// SPDX-License-Identifier: Apache-2.0
// Added tokens: whole strings that are found in a text before it is normalized and split.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "text/byte_trie.h"
#include "text/normalizer.h"
#include "text/origin.h"
#include "text/token_model.h"

namespace quire::text {

struct AddedToken {
  std::string content;
  bool single_word = false;  // only if the characters around it are not word characters
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // includes the white space after it
  bool normalized = true;    // searched for in the normalized text, in normalized form
  bool special = false;
};

// The parts of a text in which control tokens are not recognised; see EncodeOptions.
struct TokenGuard {
  std::span<const OriginRange> origins;
  std::span<const int32_t> markers;
};

// The added tokens of one tokenizer. Filled while loading, then immutable.
class AddedTokens {
 public:
  // A piece of text, or an added token if id >= 0.
  struct Section {
    size_t begin, end;
    int32_t id;
  };

  // Gives the token an id: that of its content in the vocabulary, else the next free one, as in Hugging Face. Returns
  // the id, or -1 for an empty or repeated token.
  int32_t add(AddedToken token, const PieceMap& vocab);
  // The same with a given id (GGUF vocabularies have an id for every token).
  void add_with_id(AddedToken token, int32_t id);
  // Builds the two searches. Call it after the last add.
  void finish(const Normalizer* normalizer);

  // Splits a text at the tokens that are not normalized (first pass) or at those that are (second pass).
  void find(std::string_view text, bool normalized_pass, bool parse_special, const TokenGuard& guard,
            std::vector<Section>& out) const;
  // Whether the guard may reject the token in some part of a text.
  bool is_guarded(int32_t id, const TokenGuard& guard) const { return refused(id, Origin::kUntrusted, guard); }
  bool any(bool normalized_pass) const { return !(normalized_pass ? normalized_ : raw_).trie.empty(); }

  // The token of an id, or null.
  const AddedToken* by_id(int32_t id) const {
    const auto it = by_id_.find(id);
    return it == by_id_.end() ? nullptr : &it->second;
  }
  // The text of an added token when decoded, or null: a normalized token is shown normalized, as in Hugging Face.
  const std::string* shown(int32_t id) const {
    const auto it = shown_.find(id);
    return it == shown_.end() ? nullptr : &it->second;
  }
  int32_t id_of(std::string_view content) const {
    const auto it = ids_.find(std::string(content));
    return it == ids_.end() ? -1 : it->second;
  }
  bool is_special(const std::string& content) const { return special_.contains(content); }
  const std::map<int32_t, AddedToken>& all() const { return by_id_; }

 private:
  struct Search {
    ByteTrie trie;
    std::vector<std::pair<AddedToken, int32_t>> tokens;  // indexed by the values of the trie
  };
  void remember(AddedToken token, int32_t id);
  bool refused(int32_t id, Origin origin, const TokenGuard& guard) const;

  std::unordered_map<std::string, int32_t> ids_;
  std::map<int32_t, AddedToken> by_id_;
  std::unordered_map<int32_t, std::string> shown_;
  std::unordered_set<std::string> special_;
  std::unordered_set<int32_t> control_;          // special tokens, and those that look like them
  std::vector<AddedToken> specials_, ordinary_;  // in the order of add()
  int32_t largest_ = -1;
  Search raw_, normalized_;
};

}  // namespace quire::text
