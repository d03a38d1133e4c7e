// SPDX-License-Identifier: Apache-2.0
// Unigram: the most probable split of a piece into tokens of the vocabulary (Viterbi algorithm).
#include <limits>

#include "text/byte_trie.h"
#include "text/token_model.h"
#include "text/unicode.h"

namespace quire::text {

namespace {

constexpr double kUnkPenalty = 10.0;

class Unigram final : public Model {
 public:
  Unigram(PieceMap vocab, std::vector<double> scores, std::optional<int32_t> unk, bool byte_fallback)
      : Model(std::move(vocab)), scores_(std::move(scores)), unk_(unk.value_or(-1)), byte_fallback_(byte_fallback) {
    byte_ids_ = byte_fallback_ids(vocab_);
    std::vector<std::pair<std::string, int32_t>> keys;
    double lowest = std::numeric_limits<double>::infinity();
    for (int32_t id = 0; id < vocab_.id_end(); ++id) {
      if (static_cast<size_t>(id) < scores_.size()) lowest = std::min(lowest, scores_[static_cast<size_t>(id)]);
      if (!vocab_.has_id(id)) continue;
      keys.emplace_back(std::string(vocab_.piece(id)), vocab_.find(vocab_.piece(id)));
    }
    unk_score_ = lowest - kUnkPenalty;
    trie_ = ByteTrie(std::move(keys));
  }
  std::string_view type() const override { return "Unigram"; }
  std::optional<int32_t> unk_id() const override { return unk_ < 0 ? std::nullopt : std::optional<int32_t>(unk_); }
  void tokenize(std::string_view piece, std::vector<int32_t>& out) const override;

 private:
  struct Node {
    double score = 0;
    size_t from = kNone;
    int32_t id = -1;
    static constexpr size_t kNone = ~size_t{0};
  };
  void append_piece(std::string_view text, std::vector<int32_t>& out) const;

  std::vector<double> scores_;
  int32_t unk_;
  bool byte_fallback_;
  double unk_score_ = 0;
  std::array<int32_t, 256> byte_ids_;
  ByteTrie trie_;
};

void Unigram::tokenize(std::string_view piece, std::vector<int32_t>& out) const {
  thread_local std::vector<Node> best;
  best.assign(piece.size() + 1, Node{});
  const auto offer = [&](size_t end, double score, size_t from, int32_t id) {
    Node& node = best[end];
    if (node.from == Node::kNone || score > node.score) node = {score, from, id};
  };
  for (size_t at = 0; at < piece.size();) {
    const double here = best[at].score;
    const size_t size = char_size(piece[at]);
    bool single = false;
    trie_.prefixes(piece.substr(at), [&](size_t length, int32_t id) {
      offer(at + length, scores_[static_cast<size_t>(id)] + here, at, id);
      single = single || length == size;
    });
    if (!single) offer(at + size, unk_score_ + here, at, unk_);
    at += size;
  }
  // Walk back; adjacent unknown characters become one token.
  std::vector<std::pair<size_t, size_t>> pieces;
  size_t end = piece.size();
  size_t unknown_end = 0;  // of the current run of unknown characters; 0: none
  while (end > 0) {
    const Node& node = best[end];
    if (unk_ >= 0 && node.id == unk_) {
      if (unknown_end == 0) unknown_end = end;
    } else {
      if (unknown_end != 0) pieces.emplace_back(end, unknown_end);
      unknown_end = 0;
      pieces.emplace_back(node.from, end);
    }
    end = node.from;
  }
  if (unknown_end != 0) pieces.emplace_back(0, unknown_end);
  for (auto it = pieces.rbegin(); it != pieces.rend(); ++it)
    append_piece(piece.substr(it->first, it->second - it->first), out);
  if (best.capacity() > (size_t{1} << 20)) best = {};
}

void Unigram::append_piece(std::string_view text, std::vector<int32_t>& out) const {
  const int32_t id = vocab_.find(text);
  if (id >= 0) {
    out.push_back(id);
    return;
  }
  if (byte_fallback_) {
    bool all = true;
    for (const char c : text) all = all && byte_ids_[static_cast<unsigned char>(c)] >= 0;
    if (all) {
      for (const char c : text) out.push_back(byte_ids_[static_cast<unsigned char>(c)]);
      return;
    }
  }
  if (unk_ >= 0) out.push_back(unk_);
}

}  // namespace

std::unique_ptr<Model> make_unigram(PieceMap vocab, std::vector<double> scores, std::optional<int32_t> unk,
                                    bool byte_fallback) {
  return std::make_unique<Unigram>(std::move(vocab), std::move(scores), unk, byte_fallback);
}

}  // namespace quire::text
