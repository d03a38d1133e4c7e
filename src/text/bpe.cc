// SPDX-License-Identifier: Apache-2.0
// Byte pair encoding: merges the pair with the lowest rank first, the leftmost if equal; O(n log n) in the word's
// length.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <unordered_set>

#include "text/byte_level.h"
#include "text/token_model.h"
#include "text/unicode.h"
#include "text/word_cache.h"

namespace quire::text {

namespace {

constexpr uint32_t kNoRank = MergeMap::kNoRank;
constexpr size_t kSmallWord = 24;        // up to this length a scan is faster than a heap
constexpr size_t kSegmentFrom = 32;      // shorter pieces are not worth splitting
constexpr char32_t kSpaceMark = 0x2581;  // the "lower one eighth block", which stands for a space

// One thread's working arrays for merging; they grow to the longest word seen.
struct Scratch {
  std::vector<int32_t> ids;
  std::vector<uint32_t> ranks;  // of the pair (i, next of i)
  std::vector<int32_t> merged;  // what that pair becomes
  std::vector<int32_t> prev, next;
  std::vector<uint64_t> heap;
  std::string mapped;

  // A word of a megabyte must not keep its arrays allocated for the life of the thread.
  void trim() {
    if (ids.capacity() > (size_t{1} << 20)) *this = Scratch();
  }
};

Scratch& scratch() {
  thread_local Scratch instance;
  return instance;
}

class Bpe final : public Model {
 public:
  Bpe(PieceMap vocab, MergeMap merges, BpeOptions options);
  std::string_view type() const override { return "BPE"; }
  std::optional<int32_t> unk_id() const override { return unk_ < 0 ? std::nullopt : std::optional<int32_t>(unk_); }
  void tokenize(std::string_view piece, std::vector<int32_t>& out) const override;

 private:
  void tokenize_cached(std::string_view word, std::vector<int32_t>& out) const;
  void tokenize_word(std::string_view word, std::vector<int32_t>& out) const;
  void append_symbols(std::string_view word, std::vector<int32_t>& symbols) const;
  int32_t symbol_id(std::string_view character, bool first, bool last) const;
  void merge_small(Scratch& s) const;
  void merge_large(Scratch& s) const;
  void find_split_points();

  MergeMap merges_;
  BpeOptions options_;
  int32_t unk_ = -1;
  std::array<int32_t, 256> byte_ids_;    // <0x00> ...: byte fallback
  std::array<int32_t, 256> letter_ids_;  // the id of each byte's character in the byte-level alphabet
  std::array<int32_t, 128> ascii_ids_;   // the id of each ASCII character
  bool plain_ = false;                   // no prefix and suffix: a character's id depends only on itself
  uint32_t owner_;                       // identifies this model in the word caches
  // Characters that no merge joins with a following space mark: a long piece is split into words after them.
  bool splits_ = false;
  std::unordered_set<char32_t> joined_to_mark_;
};

uint32_t next_owner() {
  static std::atomic<uint32_t> counter{0};
  return ++counter;
}

Bpe::Bpe(PieceMap vocab, MergeMap merges, BpeOptions options)
    : Model(std::move(vocab)), merges_(std::move(merges)), options_(std::move(options)), owner_(next_owner()) {
  if (options_.unk_token) unk_ = vocab_.find(*options_.unk_token);
  byte_ids_ = byte_fallback_ids(vocab_);
  for (int b = 0; b < 256; ++b) {
    letter_ids_[static_cast<size_t>(b)] = vocab_.find(byte_char(static_cast<unsigned char>(b)));
  }
  for (int c = 0; c < 128; ++c) {
    const char text = static_cast<char>(c);
    ascii_ids_[static_cast<size_t>(c)] = vocab_.find({&text, 1});
  }
  plain_ = options_.continuing_subword_prefix.value_or("").empty() && options_.end_of_word_suffix.value_or("").empty();
  if (plain_ && !options_.byte_level_input && !options_.ignore_merges) find_split_points();
}

// Splitting before a space mark is safe after a character that never precedes a mark inside a piece of the vocabulary:
// no merge can cross it, so both sides merge as they would together.
void Bpe::find_split_points() {
  if (vocab_.find("\xe2\x96\x81") < 0) return;
  splits_ = true;
  for (int32_t id = 0; id < vocab_.id_end(); ++id) {
    if (!vocab_.has_id(id)) continue;
    const std::string_view piece = vocab_.piece(id);
    const char* p = piece.data();
    const char* end = p + piece.size();
    char32_t before = 0;
    while (p < end) {
      const char32_t cp = next_code_point(p);
      if (cp == kSpaceMark && before != 0) joined_to_mark_.insert(before);
      before = cp;
    }
  }
}

void Bpe::tokenize(std::string_view piece, std::vector<int32_t>& out) const {
  if (!splits_ || piece.size() < kSegmentFrom) {
    tokenize_cached(piece, out);
    return;
  }
  size_t begin = 0;
  size_t i = 0;
  while (i < piece.size()) {
    // Find a mark after a known character that no merge joins with it.
    const size_t mark = piece.find("\xe2\x96\x81", i);
    if (mark == std::string_view::npos) break;
    i = mark + 3;
    if (mark == begin) continue;
    size_t before = mark - 1;
    while (before > begin && (static_cast<unsigned char>(piece[before]) & 0xc0) == 0x80) --before;
    const char* p = piece.data() + before;
    const char32_t cp = next_code_point(p);
    if (joined_to_mark_.contains(cp)) continue;
    // An unknown character may be fused with what follows; split only after one that is in the vocabulary.
    const int32_t id = cp < 128 ? ascii_ids_[cp] : vocab_.find(piece.substr(before, mark - before));
    if (id < 0) continue;
    tokenize_cached(piece.substr(begin, mark - begin), out);
    begin = mark;
  }
  if (begin < piece.size()) tokenize_cached(piece.substr(begin), out);
}

void Bpe::tokenize_cached(std::string_view word, std::vector<int32_t>& out) const {
  if (!WordCache::fits(word)) {
    tokenize_word(word, out);
    return;
  }
  const uint64_t hash = mix64(hash_bytes(word) ^ owner_, 0x9E3779B97F4A7C15ull);
  WordCache::Line& line = WordCache::of_this_thread().line(hash);
  if (WordCache::holds(line, owner_, hash, word)) {
    out.insert(out.end(), line.ids, line.ids + line.count);
    return;
  }
  const size_t before = out.size();
  tokenize_word(word, out);
  const size_t count = out.size() - before;
  if (count <= WordCache::kMaxIds) WordCache::store(line, owner_, hash, word, {out.data() + before, count});
}

int32_t Bpe::symbol_id(std::string_view character, bool first, bool last) const {
  if (plain_) return vocab_.find(character);
  std::string token;
  if (!first && options_.continuing_subword_prefix) token = *options_.continuing_subword_prefix;
  token += character;
  if (last && options_.end_of_word_suffix) token += *options_.end_of_word_suffix;
  return vocab_.find(token);
}

// The word's characters as ids, before merging; unknown ones become byte tokens, the unknown token, or nothing.
void Bpe::append_symbols(std::string_view word, std::vector<int32_t>& symbols) const {
  bool pending_unk = false;
  size_t pos = 0;
  while (pos < word.size()) {
    const size_t size = char_size(word[pos]);
    const std::string_view character = word.substr(pos, size);
    const bool ascii = plain_ && size == 1;
    const int32_t id = ascii ? ascii_ids_[static_cast<unsigned char>(character[0])]
                             : symbol_id(character, pos == 0, pos + size == word.size());
    pos += size;
    if (id >= 0) {
      if (pending_unk) symbols.push_back(unk_);
      pending_unk = false;
      symbols.push_back(id);
      continue;
    }
    if (options_.byte_fallback) {
      // Here the prefix and suffix are part of the character, as in Hugging Face's tokenizers.
      std::string token(character);
      if (!plain_) {
        if (pos != size && options_.continuing_subword_prefix) token = *options_.continuing_subword_prefix + token;
        if (pos == word.size() && options_.end_of_word_suffix) token += *options_.end_of_word_suffix;
      }
      const bool all = std::all_of(token.begin(), token.end(),
                                   [&](char c) { return byte_ids_[static_cast<unsigned char>(c)] >= 0; });
      if (all) {
        for (const char c : token) symbols.push_back(byte_ids_[static_cast<unsigned char>(c)]);
        continue;
      }
    }
    if (unk_ < 0) continue;
    if (pending_unk && !options_.fuse_unk) symbols.push_back(unk_);
    pending_unk = true;
  }
  if (pending_unk) symbols.push_back(unk_);
}

void Bpe::tokenize_word(std::string_view word, std::vector<int32_t>& out) const {
  Scratch& s = scratch();
  if (options_.byte_level_input) {
    s.ids.clear();
    bool known = true;
    for (const char c : word) {
      const int32_t id = letter_ids_[static_cast<unsigned char>(c)];
      known = known && id >= 0;
      s.ids.push_back(id);
    }
    if (options_.ignore_merges || !known || !plain_) {
      s.mapped.clear();
      append_byte_level(s.mapped, word);
      if (options_.ignore_merges) {
        const int32_t whole = vocab_.find(s.mapped);
        if (whole >= 0) {
          out.push_back(whole);
          return;
        }
      }
      if (!known || !plain_) {
        s.ids.clear();
        append_symbols(s.mapped, s.ids);
      }
    }
  } else {
    if (options_.ignore_merges) {
      const int32_t whole = vocab_.find(word);
      if (whole >= 0) {
        out.push_back(whole);
        return;
      }
    }
    s.ids.clear();
    append_symbols(word, s.ids);
  }
  if (s.ids.size() > 1 && !merges_.empty()) {
    if (s.ids.size() <= kSmallWord) {
      merge_small(s);
    } else {
      merge_large(s);
    }
  }
  out.insert(out.end(), s.ids.begin(), s.ids.end());
  s.trim();
}

void Bpe::merge_small(Scratch& s) const {
  size_t n = s.ids.size();
  uint32_t ranks[kSmallWord];
  int32_t merged[kSmallWord];
  const auto look = [&](size_t i) {
    const MergeMap::Merge m = merges_.find(s.ids[i], s.ids[i + 1]);
    ranks[i] = m.rank;
    merged[i] = m.id;
  };
  for (size_t i = 0; i + 1 < n; ++i) look(i);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNoRank) break;
    s.ids[best] = merged[best];
    for (size_t i = best + 1; i + 1 < n; ++i) s.ids[i] = s.ids[i + 1];
    for (size_t i = best + 1; i + 2 < n; ++i) {
      ranks[i] = ranks[i + 1];
      merged[i] = merged[i + 1];
    }
    --n;
    if (best + 1 < n) look(best);
    if (best > 0) look(best - 1);
  }
  s.ids.resize(n);
}

void Bpe::merge_large(Scratch& s) const {
  const size_t n = s.ids.size();
  s.ranks.assign(n, kNoRank);
  s.merged.resize(n);
  s.prev.resize(n);
  s.next.resize(n);
  s.heap.clear();
  const auto look = [&](size_t i) {
    const MergeMap::Merge m = merges_.find(s.ids[i], s.ids[static_cast<size_t>(s.next[i])]);
    s.ranks[i] = m.rank;
    s.merged[i] = m.id;
    return m.rank;
  };
  const auto entry = [](uint32_t rank, size_t i) { return (uint64_t{rank} << 32) | i; };
  for (size_t i = 0; i < n; ++i) {
    s.prev[i] = static_cast<int32_t>(i) - 1;
    s.next[i] = i + 1 < n ? static_cast<int32_t>(i) + 1 : -1;
  }
  for (size_t i = 0; i + 1 < n; ++i) {
    if (look(i) != kNoRank) s.heap.push_back(entry(s.ranks[i], i));
  }
  std::make_heap(s.heap.begin(), s.heap.end(), std::greater<>());
  const auto push = [&](size_t i) {
    if (look(i) == kNoRank) return;
    s.heap.push_back(entry(s.ranks[i], i));
    std::push_heap(s.heap.begin(), s.heap.end(), std::greater<>());
  };
  while (!s.heap.empty()) {
    const uint64_t top = s.heap.front();
    std::pop_heap(s.heap.begin(), s.heap.end(), std::greater<>());
    s.heap.pop_back();
    const auto i = static_cast<size_t>(top & 0xffffffffu);
    // The entry is stale if the pair at i has changed (a symbol that was merged away has no rank).
    if (s.ranks[i] == kNoRank || s.ranks[i] != static_cast<uint32_t>(top >> 32)) continue;
    const auto gone = static_cast<size_t>(s.next[i]);
    s.ids[i] = s.merged[i];
    s.ids[gone] = -1;
    s.ranks[gone] = kNoRank;
    s.next[i] = s.next[gone];
    s.ranks[i] = kNoRank;
    if (s.next[i] >= 0) {
      s.prev[static_cast<size_t>(s.next[i])] = static_cast<int32_t>(i);
      push(i);
    }
    if (s.prev[i] >= 0) push(static_cast<size_t>(s.prev[i]));
  }
  s.ids.erase(std::remove(s.ids.begin(), s.ids.end(), -1), s.ids.end());
}

}  // namespace

std::array<int32_t, 256> byte_fallback_ids(const PieceMap& vocab) {
  std::array<int32_t, 256> ids{};
  for (int b = 0; b < 256; ++b) {
    char token[8];
    std::snprintf(token, sizeof token, "<0x%02X>", static_cast<unsigned>(b));
    ids[static_cast<size_t>(b)] = vocab.find(token);
  }
  return ids;
}

std::unique_ptr<Model> make_bpe(PieceMap vocab, MergeMap merges, BpeOptions options) {
  return std::make_unique<Bpe>(std::move(vocab), std::move(merges), std::move(options));
}

}  // namespace quire::text
