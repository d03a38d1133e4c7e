// SPDX-License-Identifier: Apache-2.0
// The tokenizer: its parts in the order that Hugging Face applies them.
#include "text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "text/parts.h"

namespace quire::text {

namespace {

// Normalizes, cuts and tokenizes one stretch between added tokens.
class Encoder {
 public:
  Encoder(const TokenizerParts& parts, bool parse_special, std::vector<int32_t>& out)
      : parts_(parts), parse_special_(parse_special), out_(out) {}

  void text(std::string_view input) {
    if (!parts_.added.any(false)) {
      stretch(input, true);
      return;
    }
    std::vector<AddedTokens::Section> sections;
    parts_.added.find(input, false, parse_special_, sections);
    for (const auto& section : sections) {
      if (section.id >= 0) {
        out_.push_back(section.id);
      } else {
        stretch(input.substr(section.begin, section.end - section.begin), section.begin == 0);
      }
    }
  }

 private:
  void stretch(std::string_view input, bool at_start) {
    NormalText normal{std::string(input), at_start};
    if (parts_.normalizer) parts_.normalizer->apply(normal);
    if (!parts_.added.any(true)) {
      tokenize(std::move(normal.text), normal.at_start);
      return;
    }
    std::vector<AddedTokens::Section> sections;
    parts_.added.find(normal.text, true, parse_special_, sections);
    for (const auto& section : sections) {
      if (section.id >= 0) {
        out_.push_back(section.id);
      } else {
        tokenize(normal.text.substr(section.begin, section.end - section.begin), normal.at_start && section.begin == 0);
      }
    }
  }

  void tokenize(std::string text, bool at_start) {
    if (text.empty()) return;
    PreTokenized pre;
    pre.pieces.push_back({0, text.size(), at_start});
    pre.text = std::move(text);
    for (const PreTokenizerPtr& step : parts_.pre_tokenizer.steps) step->apply(pre);
    for (const Piece& piece : pre.pieces) parts_.model->tokenize(pre.view(piece), out_);
  }

  const TokenizerParts& parts_;
  bool parse_special_;
  std::vector<int32_t>& out_;
};

// The token that an id shows: an added one first, then the model's.
std::optional<std::string_view> token_of(const TokenizerParts& parts, int32_t id) {
  if (const std::string* shown = parts.added.shown(id)) return std::string_view(*shown);
  if (parts.model->vocab().has_id(id)) return parts.model->vocab().piece(id);
  return std::nullopt;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<TokenizerParts> parts) {
  QUIRE_CHECK(parts != nullptr && parts->model != nullptr && parts->decoder.has_value());
  const PieceMap& vocab = parts->model->vocab();
  for (const auto& [id, token] : parts->added.all()) {
    // By spelling, as the reference: another id with a special token's text is special too.
    if (!parts->added.is_special(token.content)) continue;
    for (const int32_t known : {id, vocab.find(token.content)}) {
      if (known < 0) continue;
      if (static_cast<size_t>(known) >= parts->is_special.size())
        parts->is_special.resize(static_cast<size_t>(known) + 1);
      parts->is_special[static_cast<size_t>(known)] = true;
    }
  }
  parts_ = std::move(parts);
}

Tokenizer::~Tokenizer() = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  const PostProcessor& post = parts_->post;
  if (options.add_special_tokens) ids = post.before;
  if (post.keeps_text || !options.add_special_tokens) {
    ids.reserve(text.size() / 3 + 8);
    Encoder encoder(*parts_, options.parse_special, ids);
    if (utf8::is_valid(text)) {
      encoder.text(text);
    } else {
      std::string valid;
      utf8::append_valid(valid, text);
      encoder.text(valid);
    }
  }
  if (options.add_special_tokens) ids.insert(ids.end(), post.after.begin(), post.after.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  DecodeState state(*parts_->decoder);
  for (const int32_t id : ids) {
    const auto token = token_of(*parts_, id);
    if (!token || (skip_special_tokens && is_special(id))) continue;
    state.push(*token);
  }
  state.finish();
  return state.take();
}

int32_t Tokenizer::vocab_size() const {
  const auto& added = parts_->added.all();
  return std::max(parts_->model->vocab().id_end(), added.empty() ? 0 : added.rbegin()->first + 1);
}

std::optional<std::string_view> Tokenizer::piece(int32_t id) const {
  return token_of(*parts_, id);
}

std::string Tokenizer::token_bytes(int32_t id) const {
  if (const std::string* shown = parts_->added.shown(id)) return *shown;
  if (!parts_->model->vocab().has_id(id)) return {};
  return parts_->decoder->middle(parts_->model->vocab().piece(id));
}

std::optional<int32_t> Tokenizer::id_of(std::string_view piece) const {
  int32_t id = parts_->added.id_of(piece);
  if (id < 0) id = parts_->model->vocab().find(piece);
  return id < 0 ? std::nullopt : std::optional<int32_t>(id);
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < parts_->is_special.size() && parts_->is_special[static_cast<size_t>(id)];
}

bool Tokenizer::is_added(int32_t id) const {
  return parts_->added.by_id(id) != nullptr;
}

std::vector<int32_t> Tokenizer::added_ids() const {
  std::vector<int32_t> ids;
  for (const auto& [id, token] : parts_->added.all()) ids.push_back(id);
  return ids;
}

const SpecialIds& Tokenizer::special_ids() const {
  return parts_->special;
}

bool Tokenizer::adds_bos() const {
  const auto& before = parts_->post.before;
  return !before.empty() && parts_->special.bos == before.front();
}

bool Tokenizer::adds_eos() const {
  const auto& after = parts_->post.after;
  return !after.empty() && parts_->special.eos == after.back();
}

std::string_view Tokenizer::model_type() const {
  return parts_->model->type();
}

const DecodeChain& Tokenizer::decode_chain() const {
  return *parts_->decoder;
}

}  // namespace quire::text
