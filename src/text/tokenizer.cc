// SPDX-License-Identifier: Apache-2.0
// The tokenizer: applies its parts in the order of Hugging Face's tokenizers.
#include "text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "text/parts.h"

namespace quire::text {

namespace {

// Normalizes, splits and tokenizes the text between two added tokens.
class Encoder {
 public:
  Encoder(const TokenizerParts& parts, const EncodeOptions& options, std::vector<int32_t>& out)
      : parts_(parts), parse_special_(options.parse_special), markers_(options.markers), out_(out) {}

  void text(std::string_view input, std::span<const OriginRange> origins) {
    guarded_ = !origins.empty();
    if (!parts_.added.any(false)) {
      stretch(input, true, origins, 0);
      return;
    }
    std::vector<AddedTokens::Section> sections;
    parts_.added.find(input, false, parse_special_, {origins, markers_}, sections);
    for (const auto& section : sections) {
      if (section.id >= 0) {
        out_.push_back(section.id);
      } else {
        while (!origins.empty() && origins.front().end <= section.begin) origins = origins.subspan(1);
        stretch(input.substr(section.begin, section.end - section.begin), section.begin == 0, origins, section.begin);
      }
    }
  }

 private:
  // `origins` are the ranges of the whole text, from the first that may overlap this part, which begins at `begin`.
  void stretch(std::string_view input, bool at_start, std::span<const OriginRange> origins, size_t begin) {
    NormalText normal{std::string(input), at_start};
    if (parts_.normalizer) parts_.normalizer->apply(normal);
    if (!parts_.added.any(true)) {
      tokenize(std::move(normal.text), normal.at_start);
      return;
    }
    std::vector<AddedTokens::Section> sections;
    parts_.added.find(normal.text, true, parse_special_, {}, sections);
    const TokenGuard guard{origins, markers_};
    const bool doubtful = guarded_ && std::any_of(sections.begin(), sections.end(), [&](const auto& section) {
                            return section.id >= 0 && parts_.added.is_guarded(section.id, guard);
                          });
    if (doubtful) {
      const std::vector<OriginRange> normal_origins = after_normalizing(input, at_start, origins, begin);
      sections.clear();
      parts_.added.find(normal.text, true, parse_special_, {normal_origins, markers_}, sections);
    }
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
    for (const Piece& piece : pre.pieces) {
      if (guarded_) {
        tokenize_guarded(pre.view(piece));
      } else {
        parts_.model->tokenize(pre.view(piece), out_);
      }
    }
  }

  // The vocabularies of some models (Unigram) contain control tokens as pieces of plain text. If the guard rejected
  // such a token, the text is split inside each occurrence.
  void tokenize_guarded(std::string_view piece) {
    const size_t before = out_.size();
    parts_.model->tokenize(piece, out_);
    const auto forged = [&](int32_t id) {
      const AddedToken* token = parts_.added.by_id(id);
      return token != nullptr && token->special && token->content.size() > 1 && parts_.special.unk != id;
    };
    const auto found = std::find_if(out_.begin() + static_cast<std::ptrdiff_t>(before), out_.end(), forged);
    if (found == out_.end()) return;
    const std::string& content = parts_.added.by_id(*found)->content;
    size_t at = piece.find(content);
    if (at == std::string_view::npos) return;
    out_.resize(before);
    const size_t first = utf8::decode(content, 0).size;
    size_t done = 0;
    for (; at != std::string_view::npos; at = piece.find(content, done)) {
      tokenize_guarded(piece.substr(done, at + first - done));
      done = at + first;
    }
    tokenize_guarded(piece.substr(done));
  }

  size_t normal_size(std::string text, bool at_start) const {
    NormalText normal{std::move(text), at_start};
    if (parts_.normalizer) parts_.normalizer->apply(normal);
    return normal.text.size();
  }

  // The ranges of a part of the text after normalization. They follow from the normalized sizes of the texts between
  // their borders, each normalized between two letters, which prevents what a normalizer does at the ends of a text.
  std::vector<OriginRange> after_normalizing(std::string_view input, bool at_start,
                                             std::span<const OriginRange> origins, size_t begin) const {
    const size_t around = normal_size("xx", false);
    size_t raw = 0;
    size_t mapped = std::max<size_t>(normal_size("x", at_start), 1) - 1;
    const auto advance = [&](size_t to) {
      const size_t grown = normal_size("x" + std::string(input.substr(raw, to - raw)) + "x", false);
      mapped += std::max(grown, around) - around;
      raw = to;
      return mapped;
    };
    std::vector<OriginRange> out;
    for (const OriginRange& range : origins) {
      if (range.begin >= begin + input.size()) break;
      const size_t from = std::max(range.begin, begin) - begin, to = std::min(range.end, begin + input.size()) - begin;
      if (from >= to) continue;
      const size_t first = advance(from);
      out.push_back({from == 0 ? 0 : first, advance(to), range.origin});
    }
    return out;
  }

  const TokenizerParts& parts_;
  bool parse_special_;
  bool guarded_ = false;  // some of the text is not from the template
  std::span<const int32_t> markers_;
  std::vector<int32_t>& out_;
};

// Appends the text with U+FFFD for bytes that are not UTF-8; returns its ranges in the result.
std::vector<OriginRange> append_valid(std::string& out, std::string_view text, std::span<const OriginRange> origins) {
  std::vector<OriginRange> moved;
  size_t done = 0;
  for (const OriginRange& range : origins) {
    utf8::append_valid(out, text.substr(done, range.begin - done));
    moved.push_back({out.size(), 0, range.origin});
    utf8::append_valid(out, text.substr(range.begin, range.end - range.begin));
    moved.back().end = out.size();
    done = range.end;
  }
  utf8::append_valid(out, text.substr(done));
  return moved;
}

// The token of an id: an added token first, then the model's.
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
    // By content, as in Hugging Face: another id with the text of a special token is special, too.
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
    Encoder encoder(*parts_, options, ids);
    if (utf8::is_valid(text)) {
      encoder.text(text, options.origins);
    } else {
      std::string valid;
      const std::vector<OriginRange> origins = append_valid(valid, text, options.origins);
      encoder.text(valid, origins);
    }
  }
  if (options.add_special_tokens) ids.insert(ids.end(), post.after.begin(), post.after.end());
  return ids;
}

std::vector<int32_t> Tokenizer::wrap(std::span<const int32_t> ids) const {
  std::vector<int32_t> out = parts_->post.before;
  if (parts_->post.keeps_text) out.insert(out.end(), ids.begin(), ids.end());
  out.insert(out.end(), parts_->post.after.begin(), parts_->post.after.end());
  return out;
}

PairEncoding Tokenizer::join_pair(std::span<const int32_t> first, std::span<const int32_t> second) const {
  PairEncoding out;
  const PostProcessor& post = parts_->post;
  const auto add = [&](std::span<const int32_t> ids, int32_t type) {
    if (type > 0 && out.second_segment < 0) out.second_segment = static_cast<int64_t>(out.ids.size());
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
  };
  if (post.pair.empty()) {
    for (const std::span<const int32_t> part :
         {std::span<const int32_t>(post.before), first, second, std::span<const int32_t>(post.after)}) {
      add(part, 0);
    }
    return out;
  }
  for (const PairPart& part : post.pair) {
    add(part.text == 0 ? std::span<const int32_t>(part.special) : part.text == 1 ? first : second, part.type);
  }
  return out;
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

std::vector<int32_t> Tokenizer::control_markers(std::string_view template_source) const {
  std::vector<int32_t> ids;
  for (const bool normalized : {false, true}) {
    std::vector<AddedTokens::Section> sections;
    parts_->added.find(template_source, normalized, true, {}, sections);
    for (const auto& section : sections) {
      if (section.id < 0) continue;
      const std::string& content = parts_->added.by_id(section.id)->content;
      if (content.size() >= 3 && (content[0] == '<' || content[0] == '[')) ids.push_back(section.id);
    }
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
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
