// SPDX-License-Identifier: Apache-2.0
// Added tokens: assigns their ids and finds them in a text.
#include "text/added_tokens.h"

#include <algorithm>
#include <tuple>

#include "text/unicode.h"

namespace quire::text {

namespace {

bool same(const AddedToken& a, const AddedToken& b) {
  return a.content == b.content;
}

char32_t last_char(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  const char* p = text.data() + at;
  return next_code_point(p);
}

// "<|user|>" and "<｜User｜>": some models have such tokens without marking them as special.
bool looks_like_control_token(std::string_view content) {
  return content.starts_with("<|") || content.starts_with("<\xef\xbd\x9c");
}

// The least trusted origin in [begin, end). REQUIRES: `begin` ascends from call to call; `at` keeps the current range.
Origin origin_in(std::span<const OriginRange> origins, size_t begin, size_t end, size_t& at) {
  while (at < origins.size() && origins[at].end <= begin) ++at;
  Origin least = Origin::kTemplate;
  for (size_t i = at; i < origins.size() && origins[i].begin < end; ++i) least = std::max(least, origins[i].origin);
  return least;
}

char32_t first_char(std::string_view text) {
  const char* p = text.data();
  return next_code_point(p);
}

}  // namespace

int32_t AddedTokens::add(AddedToken token, const PieceMap& vocab) {
  if (token.content.empty()) return -1;
  int32_t id = id_of(token.content);
  if (id < 0) id = vocab.find(token.content);
  if (const AddedToken* known = id < 0 ? nullptr : by_id(id); known != nullptr && same(*known, token)) {
    if (known->single_word == token.single_word && known->lstrip == token.lstrip && known->rstrip == token.rstrip &&
        known->normalized == token.normalized && known->special == token.special) {
      return -1;
    }
  }
  if (id < 0) {
    const auto size = static_cast<int32_t>(vocab.size());
    id = largest_ >= size || (largest_ >= 0 && size == 0) ? largest_ + 1 : size;
  }
  remember(std::move(token), id);
  return id;
}

void AddedTokens::add_with_id(AddedToken token, int32_t id) {
  if (!token.content.empty()) remember(std::move(token), id);
}

void AddedTokens::remember(AddedToken token, int32_t id) {
  largest_ = std::max(largest_, id);
  ids_[token.content] = id;
  by_id_[id] = token;
  const auto drop = [&](std::vector<AddedToken>& list) {
    list.erase(std::remove_if(list.begin(), list.end(), [&](const AddedToken& t) { return same(t, token); }),
               list.end());
  };
  if (ids_.size() < specials_.size() + ordinary_.size() + 1) {
    drop(specials_);
    drop(ordinary_);
  }
  if (token.special) special_.insert(token.content);
  (token.special ? specials_ : ordinary_).push_back(std::move(token));
}

void AddedTokens::finish(const Normalizer* normalizer) {
  raw_ = {};
  normalized_ = {};
  shown_.clear();
  control_.clear();
  std::vector<std::pair<std::string, int32_t>> raw_keys;
  std::vector<std::pair<std::string, int32_t>> normalized_keys;
  const auto place = [&](const AddedToken& token) {
    Search& search = token.normalized ? normalized_ : raw_;
    auto& keys = token.normalized ? normalized_keys : raw_keys;
    std::string key = token.content;
    if (token.normalized && normalizer != nullptr) {
      NormalText text{key, true};
      normalizer->apply(text);
      key = std::move(text.text);
    }
    const int32_t id = ids_.at(token.content);
    if (special_.contains(token.content) || looks_like_control_token(token.content)) control_.insert(id);
    shown_[id] = key;
    keys.emplace_back(std::move(key), static_cast<int32_t>(search.tokens.size()));
    search.tokens.emplace_back(token, id);
  };
  for (const AddedToken& token : specials_) place(token);
  for (const AddedToken& token : ordinary_) place(token);
  raw_.trie = ByteTrie(std::move(raw_keys));
  normalized_.trie = ByteTrie(std::move(normalized_keys));
}

bool AddedTokens::refused(int32_t id, Origin origin, const TokenGuard& guard) const {
  if (origin == Origin::kTemplate) return false;
  if (control_.contains(id)) return true;
  return origin == Origin::kUntrusted && std::binary_search(guard.markers.begin(), guard.markers.end(), id);
}

void AddedTokens::find(std::string_view text, bool normalized_pass, bool parse_special, const TokenGuard& guard,
                       std::vector<Section>& out) const {
  const Search& search = normalized_pass ? normalized_ : raw_;
  size_t done = 0;
  size_t at = 0;
  size_t range = 0;
  while (at < text.size()) {
    if (!search.trie.starts_with(static_cast<unsigned char>(text[at]))) {
      ++at;
      continue;
    }
    auto [size, index] = search.trie.longest(text.substr(at));
    // A rejected token may contain a shorter one that the template wrote: look again, up to the next range.
    if (size > 0 && !guard.origins.empty() &&
        refused(search.tokens[static_cast<size_t>(index)].second, origin_in(guard.origins, at, at + size, range),
                guard)) {
      const bool inside = guard.origins[range].begin <= at;
      const size_t own = inside ? 0 : guard.origins[range].begin - at;
      std::tie(size, index) = search.trie.longest(text.substr(at, own));
    }
    if (size == 0) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + size;
    at = end;
    const auto& [token, id] = search.tokens[static_cast<size_t>(index)];
    if (!parse_special && special_.contains(token.content)) continue;
    if (token.single_word) {
      const bool free_before = begin == 0 || !has(last_char(text.substr(0, begin)), kRustWord);
      const bool free_after = end == text.size() || !has(first_char(text.substr(end)), kRustWord);
      if (!free_before || !free_after) continue;
    }
    if (token.lstrip) {
      while (begin > done && has(last_char(text.substr(0, begin)), kRustWhitespace)) {
        --begin;
        while (begin > done && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
      }
      begin = std::max(begin, done);  // the token before may have taken white space that this one consists of
    }
    if (token.rstrip) {
      while (end < text.size() && has(first_char(text.substr(end)), kRustWhitespace)) end += char_size(text[end]);
    }
    if (end <= begin) continue;
    if (done < begin) out.push_back({done, begin, -1});
    out.push_back({begin, end, id});
    done = end;
  }
  if (done < text.size()) out.push_back({done, text.size(), -1});
}

}  // namespace quire::text
