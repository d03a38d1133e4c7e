// SPDX-License-Identifier: Apache-2.0
// Builds a tokenizer from a GGUF vocabulary: the same parts as in the model's tokenizer.json, from what GGUF keeps.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "text/gguf_pre.h"
#include "text/parts.h"
#include "text/unicode.h"

namespace quire::text {

namespace {

using PartsResult = Result<std::unique_ptr<TokenizerParts>>;

Status check(GgufVocab& vocab) {
  if (vocab.tokens.empty()) return corrupt("tokenizer.ggml.tokens is empty");
  if (!vocab.token_types.empty() && vocab.token_types.size() != vocab.tokens.size()) {
    return corrupt(
        {"tokenizer.ggml.token_type has ", vocab.token_types.size(), " entries for ", vocab.tokens.size(), " tokens"});
  }
  if (!vocab.scores.empty() && vocab.scores.size() != vocab.tokens.size()) {
    return corrupt(
        {"tokenizer.ggml.scores has ", vocab.scores.size(), " entries for ", vocab.tokens.size(), " tokens"});
  }
  vocab.token_types.resize(vocab.tokens.size(), kNormal);
  vocab.scores.resize(vocab.tokens.size(), 0.0f);
  for (float& score : vocab.scores) {
    if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();  // NaN cannot be ordered
  }
  for (std::string& token : vocab.tokens) {
    if (!utf8::is_valid(token)) {
      std::string valid;
      utf8::append_valid(valid, token);
      token = std::move(valid);
    }
  }
  const auto size = static_cast<int32_t>(vocab.tokens.size());
  for (const auto& id : {vocab.special.bos, vocab.special.eos, vocab.special.pad, vocab.special.unk, vocab.special.sep,
                         vocab.special.cls, vocab.special.eot, vocab.special.mask}) {
    if (id && (*id < 0 || *id >= size)) return corrupt("a special token id is outside the vocabulary");
  }
  return {};
}

PieceMap pieces_of(const GgufVocab& vocab) {
  PieceMap pieces;
  size_t bytes = 0;
  for (const std::string& token : vocab.tokens) bytes += token.size();
  pieces.reserve(vocab.tokens.size(), bytes);
  for (size_t i = 0; i < vocab.tokens.size(); ++i) pieces.insert(vocab.tokens[i], static_cast<int32_t>(i));
  return pieces;
}

// "left right", separated by the first space after the first character, since a piece may begin with a space.
bool merge_sides(std::string_view merge, std::string_view& left, std::string_view& right) {
  const size_t space = merge.find(' ', 1);
  if (space == std::string_view::npos || space + 1 >= merge.size()) return false;
  left = merge.substr(0, space);
  right = merge.substr(space + 1);
  return true;
}

Result<MergeMap> merges_of(const GgufVocab& vocab, const PieceMap& pieces) {
  MergeMap merges;
  merges.reserve(vocab.merges.size());
  std::string joined;
  for (size_t i = 0; i < vocab.merges.size(); ++i) {
    std::string_view left;
    std::string_view right;
    if (!merge_sides(vocab.merges[i], left, right)) {
      return corrupt({"tokenizer.ggml.merges[", i, "] is not two tokens"});
    }
    joined.assign(left).append(right);
    const int32_t a = pieces.find(left);
    const int32_t b = pieces.find(right);
    const int32_t c = pieces.find(joined);
    // A merge into a token that the file does not have can never happen, but real files have such rows.
    if (a >= 0 && b >= 0 && c >= 0) merges.insert(a, b, {static_cast<uint32_t>(i), c});
  }
  return merges;
}

void add_tokens(const GgufVocab& vocab, TokenizerParts& parts) {
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    const int32_t type = vocab.token_types[i];
    if (type != kControl && type != kUnknown && type != kUserDefined) continue;
    AddedToken token;
    token.content = vocab.tokens[i];
    token.normalized = false;
    token.special = type != kUserDefined;
    parts.added.add_with_id(std::move(token), static_cast<int32_t>(i));
  }
  parts.added.finish(parts.normalizer.get());
}

void set_post(const GgufVocab& vocab, bool add_bos, bool add_eos, TokenizerParts& parts) {
  parts.special = vocab.special;
  if (vocab.add_bos.value_or(add_bos) && vocab.special.bos) parts.post.before = {*vocab.special.bos};
  if (vocab.add_eos.value_or(add_eos) && vocab.special.eos) parts.post.after = {*vocab.special.eos};
}

PartsResult from_gpt2(GgufVocab& vocab) {
  auto parts = std::make_unique<TokenizerParts>();
  QUIRE_ASSIGN(GgufPre pre, make_gguf_pre(vocab.pre.empty() ? "default" : vocab.pre));
  PieceMap pieces = pieces_of(vocab);
  QUIRE_ASSIGN(MergeMap merges, merges_of(vocab, pieces));
  BpeOptions options;
  options.ignore_merges = pre.ignore_merges;
  options.byte_level_input = true;
  parts->model = make_bpe(std::move(pieces), std::move(merges), std::move(options));
  parts->pre_tokenizer.steps = std::move(pre.steps);
  parts->pre_tokenizer.byte_level = true;
  if (pre.nfc) parts->normalizer = make_nfc();
  std::vector<std::unique_ptr<const DecodeStage>> stages;
  stages.push_back(decode_byte_level());
  parts->decoder.emplace(std::move(stages));
  set_post(vocab, pre.add_bos, false, *parts);
  if (vocab.add_sep.value_or(pre.add_sep)) {
    const auto sep = vocab.special.sep ? vocab.special.sep : vocab.special.eos;
    if (vocab.special.bos && parts->post.before.empty()) parts->post.before = {*vocab.special.bos};
    if (sep) parts->post.after = {*sep};
  }
  add_tokens(vocab, *parts);
  return parts;
}

// Spaces become marks; the decoder converts them back and drops the one that was added at the start.
void mark_spaces(TokenizerParts& parts, bool prefix, bool squeeze) {
  std::vector<NormalizerPtr> steps;
  if (parts.normalizer) steps.push_back(std::move(parts.normalizer));
  if (squeeze) {
    steps.push_back(make_strip(true, true));
    steps.push_back(make_replace(Pattern(Regex::compile(" {2,}").value()), " "));
  }
  if (prefix) steps.push_back(make_prepend(kSpacePiece));
  steps.push_back(make_replace(Pattern(" "), kSpacePiece));
  parts.normalizer = make_sequence(std::move(steps));
  std::vector<std::unique_ptr<const DecodeStage>> stages;
  stages.push_back(decode_replace(Pattern(kSpacePiece), " "));
  stages.push_back(decode_byte_fallback());
  stages.push_back(decode_fuse());
  if (prefix) stages.push_back(decode_strip(" ", 1, 0));
  parts.decoder.emplace(std::move(stages));
}

BpeOptions sentencepiece_options(const GgufVocab& vocab) {
  BpeOptions options;
  options.byte_fallback = true;
  options.fuse_unk = true;
  if (vocab.special.unk) options.unk_token = vocab.tokens[static_cast<size_t>(*vocab.special.unk)];
  return options;
}

PartsResult from_llama(GgufVocab& vocab) {
  auto parts = std::make_unique<TokenizerParts>();
  PieceMap pieces = pieces_of(vocab);
  std::vector<bool> mergeable(vocab.tokens.size());
  for (size_t i = 0; i < mergeable.size(); ++i) {
    const int32_t type = vocab.token_types[i];
    mergeable[i] = type == kNormal || type == kUserDefined || type == kUnused || type == 0;
  }
  QUIRE_ASSIGN(MergeMap merges, merges_from_scores(pieces, vocab.scores, mergeable));
  parts->model = make_bpe(std::move(pieces), std::move(merges), sentencepiece_options(vocab));
  mark_spaces(*parts, vocab.add_space_prefix.value_or(true), vocab.remove_extra_whitespaces.value_or(false));
  set_post(vocab, true, false, *parts);
  add_tokens(vocab, *parts);
  return parts;
}

// Gemma 4: merges as in gpt2, on text with marked spaces and byte fallback.
PartsResult from_gemma4(GgufVocab& vocab) {
  auto parts = std::make_unique<TokenizerParts>();
  PieceMap pieces = pieces_of(vocab);
  QUIRE_ASSIGN(MergeMap merges, merges_of(vocab, pieces));
  parts->model = make_bpe(std::move(pieces), std::move(merges), sentencepiece_options(vocab));
  mark_spaces(*parts, vocab.add_space_prefix.value_or(false), false);
  set_post(vocab, true, false, *parts);
  add_tokens(vocab, *parts);
  return parts;
}

PartsResult from_t5(GgufVocab& vocab) {
  auto parts = std::make_unique<TokenizerParts>();
  QUIRE_ASSIGN(parts->normalizer, make_precompiled(vocab.precompiled_charsmap));
  PieceMap pieces = pieces_of(vocab);
  std::vector<double> scores(vocab.scores.begin(), vocab.scores.end());
  parts->model = make_unigram(std::move(pieces), std::move(scores), vocab.special.unk, true);
  mark_spaces(*parts, vocab.add_space_prefix.value_or(true), vocab.remove_extra_whitespaces.value_or(true));
  set_post(vocab, false, true, *parts);
  if (!parts->post.before.empty() && !parts->post.after.empty()) {  // XLM-R: "<s> a </s></s> b </s>"
    const int32_t end = parts->post.after.front();
    parts->post.pair = {{0, parts->post.before}, {1}, {0, {end, end}}, {2}, {0, {end}}};
  }
  add_tokens(vocab, *parts);
  return parts;
}

// GGUF marks the first piece of a word, while WordPiece marks the others.
PartsResult from_bert(GgufVocab& vocab) {
  auto parts = std::make_unique<TokenizerParts>();
  PieceMap pieces;
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    std::string token = vocab.tokens[i];
    const bool bracketed = token.size() > 1 && token.front() == '[' && token.back() == ']';
    if (token.compare(0, 3, kSpacePiece) == 0) {
      token.erase(0, 3);
    } else if (vocab.token_types[i] == kNormal && !bracketed) {
      token.insert(0, "##");
    }
    pieces.insert(token, static_cast<int32_t>(i));
    vocab.tokens[i] = std::move(token);
  }
  const std::string unk =
      vocab.special.unk ? vocab.tokens[static_cast<size_t>(*vocab.special.unk)] : std::string("[UNK]");
  parts->model = make_word_piece(std::move(pieces), unk, "##", 100);
  parts->normalizer = make_bert_normalizer(true, true, true, true);
  parts->pre_tokenizer.steps.push_back(make_bert_pre_tokenizer());
  std::vector<std::unique_ptr<const DecodeStage>> stages;
  stages.push_back(decode_word_piece("##", true));
  parts->decoder.emplace(std::move(stages));
  parts->special = vocab.special;
  const auto cls = vocab.special.cls ? vocab.special.cls : vocab.special.bos;
  const auto sep = vocab.special.sep ? vocab.special.sep : vocab.special.eos;
  if (vocab.add_bos.value_or(true) && cls) parts->post.before = {*cls};
  if (vocab.add_sep.value_or(vocab.add_eos.value_or(true)) && sep) parts->post.after = {*sep};
  if (cls && sep) parts->post.pair = {{0, {*cls}}, {1}, {0, {*sep}}, {2, {}, 1}, {0, {*sep}, 1}};
  add_tokens(vocab, *parts);
  return parts;
}

PartsResult read(GgufVocab& vocab) {
  QUIRE_TRY(check(vocab));
  if (vocab.model == "gpt2") return from_gpt2(vocab);
  if (vocab.model == "llama") return from_llama(vocab);
  if (vocab.model == "gemma4") return from_gemma4(vocab);
  if (vocab.model == "t5") return from_t5(vocab);
  if (vocab.model == "bert") return from_bert(vocab);
  return unsupported(
      {"tokenizer.ggml.model is \"", vocab.model, "\"; quire supports gpt2, llama, gemma4, t5 and bert"});
}

}  // namespace

Result<MergeMap> merges_from_scores(const PieceMap& vocab, const std::vector<float>& scores,
                                    const std::vector<bool>& mergeable) {
  constexpr size_t kMostBytes = 1024;
  std::vector<float> ordered(scores);
  std::sort(ordered.begin(), ordered.end(), std::greater<>());
  ordered.erase(std::unique(ordered.begin(), ordered.end()), ordered.end());
  const auto rank_of = [&](int32_t id) {
    const auto it = std::lower_bound(ordered.begin(), ordered.end(), scores[static_cast<size_t>(id)], std::greater<>());
    return static_cast<uint32_t>(it - ordered.begin());
  };
  const auto usable = [&](int32_t id) { return id >= 0 && mergeable[static_cast<size_t>(id)]; };
  MergeMap merges;
  merges.reserve(mergeable.size() * 2);
  for (int32_t id = 0; id < static_cast<int32_t>(mergeable.size()); ++id) {
    if (!usable(id) || !vocab.has_id(id)) continue;
    const std::string_view piece = vocab.piece(id);
    if (vocab.find(piece) != id) continue;
    if (piece.size() > kMostBytes) {
      return corrupt({"token ", id, " has ", piece.size(), " bytes; at most ", kMostBytes, " are allowed"});
    }
    const uint32_t rank = rank_of(id);
    for (size_t cut = 1; cut < piece.size(); ++cut) {
      if ((static_cast<unsigned char>(piece[cut]) & 0xc0) == 0x80) continue;
      const int32_t left = vocab.find(piece.substr(0, cut));
      if (!usable(left)) continue;
      const int32_t right = vocab.find(piece.substr(cut));
      if (usable(right)) merges.insert(left, right, {rank, id});
    }
  }
  return merges;
}

Result<TokenizerPtr> load_gguf_vocab(GgufVocab vocab, std::string_view name) {
  auto parts = read(vocab);
  if (!parts.ok()) return Error{parts.error().code, std::string(name) + ": " + parts.error().message};
  return TokenizerPtr(std::make_shared<const Tokenizer>(std::move(parts).value()));
}

}  // namespace quire::text
