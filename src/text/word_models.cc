// SPDX-License-Identifier: Apache-2.0
// WordPiece (longest match first) and WordLevel (whole words).
#include "text/token_model.h"
#include "text/unicode.h"

namespace quire::text {

namespace {

class WordPiece final : public Model {
 public:
  WordPiece(PieceMap vocab, const std::string& unk_token, std::string prefix, size_t max_chars)
      : Model(std::move(vocab)), unk_(vocab_.find(unk_token)), prefix_(std::move(prefix)), max_chars_(max_chars) {
    for (int32_t id = 0; id < vocab_.id_end(); ++id) {
      if (vocab_.has_id(id)) longest_ = std::max(longest_, vocab_.piece(id).size());
    }
  }
  std::string_view type() const override { return "WordPiece"; }
  std::optional<int32_t> unk_id() const override { return unk_ < 0 ? std::nullopt : std::optional<int32_t>(unk_); }
  void tokenize(std::string_view piece, std::vector<int32_t>& out) const override;

 private:
  int32_t unk_;
  std::string prefix_;
  size_t max_chars_;
  size_t longest_ = 0;  // length of the longest piece, which bounds the search in a long word
};

void WordPiece::tokenize(std::string_view piece, std::vector<int32_t>& out) const {
  size_t chars = 0;
  for (const char c : piece) chars += (static_cast<unsigned char>(c) & 0xc0) != 0x80 ? 1 : 0;
  const size_t before = out.size();
  const auto give_up = [&] {
    out.resize(before);
    if (unk_ >= 0) out.push_back(unk_);
  };
  if (chars > max_chars_) return give_up();
  std::string candidate;
  size_t start = 0;
  while (start < piece.size()) {
    candidate = start > 0 ? prefix_ : std::string();
    const size_t head = candidate.size();
    candidate += piece.substr(start, longest_ + 4);
    // The end may be inside a character; keep only whole ones.
    while (start + (candidate.size() - head) < piece.size() &&
           (static_cast<unsigned char>(piece[start + (candidate.size() - head)]) & 0xc0) == 0x80) {
      candidate.pop_back();
    }
    int32_t id = -1;
    while (candidate.size() > head) {
      id = vocab_.find(candidate);
      if (id >= 0) break;
      while ((static_cast<unsigned char>(candidate.back()) & 0xc0) == 0x80) candidate.pop_back();
      candidate.pop_back();
    }
    if (id < 0) return give_up();
    out.push_back(id);
    start += candidate.size() - head;
  }
}

class WordLevel final : public Model {
 public:
  WordLevel(PieceMap vocab, const std::string& unk_token) : Model(std::move(vocab)), unk_(vocab_.find(unk_token)) {}
  std::string_view type() const override { return "WordLevel"; }
  std::optional<int32_t> unk_id() const override { return unk_ < 0 ? std::nullopt : std::optional<int32_t>(unk_); }
  void tokenize(std::string_view piece, std::vector<int32_t>& out) const override {
    const int32_t id = vocab_.find(piece);
    if (id >= 0) {
      out.push_back(id);
    } else if (unk_ >= 0) {
      out.push_back(unk_);
    }
  }

 private:
  int32_t unk_;
};

}  // namespace

std::unique_ptr<Model> make_word_piece(PieceMap vocab, std::string unk_token, std::string continuing_prefix,
                                       size_t max_chars) {
  return std::make_unique<WordPiece>(std::move(vocab), unk_token, std::move(continuing_prefix), max_chars);
}

std::unique_ptr<Model> make_word_level(PieceMap vocab, std::string unk_token) {
  return std::make_unique<WordLevel>(std::move(vocab), unk_token);
}

}  // namespace quire::text
