// SPDX-License-Identifier: Apache-2.0
// Reads SentencePiece's tokenizer.model: a small protocol-buffer reader, and the parts of the tokenizer.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "text/parts.h"
#include "text/unicode.h"

namespace quire::text {

namespace {

constexpr size_t kMaxPieces = size_t{1} << 24;

// The fields of one message in order. Every length is checked against the remaining bytes.
class Message {
 public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}

  struct Field {
    uint32_t number = 0;
    uint64_t integer = 0;    // varint, fixed32 and fixed64
    std::string_view bytes;  // length-delimited
    float as_float() const { return std::bit_cast<float>(static_cast<uint32_t>(integer)); }
  };

  // False at the end or on an error; fault() tells which.
  bool next(Field& field) {
    if (rest_.empty() || fault_) return false;
    uint64_t key = 0;
    if (!varint(key)) return fail();
    field = {};
    field.number = static_cast<uint32_t>(key >> 3);
    if (field.number == 0) return fail();
    switch (key & 7) {
      case 0:
        return varint(field.integer) || fail();
      case 1:
        return fixed(8, field.integer) || fail();
      case 2: {
        uint64_t size = 0;
        if (!varint(size) || size > rest_.size()) return fail();
        field.bytes = rest_.substr(0, static_cast<size_t>(size));
        rest_.remove_prefix(static_cast<size_t>(size));
        return true;
      }
      case 5:
        return fixed(4, field.integer) || fail();
      default:
        return fail();
    }
  }
  bool fault() const { return fault_; }

 private:
  bool fail() {
    fault_ = true;
    return false;
  }
  bool varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return false;
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }
  bool fixed(size_t size, uint64_t& value) {
    if (rest_.size() < size) return false;
    value = 0;
    for (size_t i = 0; i < size; ++i) value |= uint64_t{static_cast<unsigned char>(rest_[i])} << (8 * i);
    rest_.remove_prefix(size);
    return true;
  }

  std::string_view rest_;
  bool fault_ = false;
};

enum ModelType { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };

struct Proto {
  std::vector<std::string> pieces;
  std::vector<float> scores;
  std::vector<int> types;
  int model_type = kUnigram;
  bool byte_fallback = false;
  int64_t unk = 0, bos = 1, eos = 2, pad = -1;
  std::string charsmap;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
};

Status read_piece(std::string_view bytes, Proto& proto) {
  std::string piece;
  float score = 0;
  int type = kNormal;
  Message message(bytes);
  Message::Field field;
  while (message.next(field)) {
    if (field.number == 1) utf8::append_valid(piece, field.bytes);
    if (field.number == 2) score = field.as_float();
    if (field.number == 3) type = static_cast<int>(std::min<uint64_t>(field.integer, 7));
  }
  if (message.fault()) return corrupt({"piece ", proto.pieces.size(), " is damaged"});
  if (proto.pieces.size() >= kMaxPieces) return corrupt("there are more than 2^24 pieces");
  proto.pieces.push_back(std::move(piece));
  proto.scores.push_back(std::isnan(score) ? -std::numeric_limits<float>::infinity() : score);
  proto.types.push_back(type);
  return {};
}

Status read_trainer(std::string_view bytes, Proto& proto) {
  Message message(bytes);
  Message::Field field;
  while (message.next(field)) {
    const auto number = static_cast<int64_t>(static_cast<int32_t>(field.integer));
    if (field.number == 3) proto.model_type = static_cast<int>(number);
    if (field.number == 35) proto.byte_fallback = field.integer != 0;
    if (field.number == 40) proto.unk = number;
    if (field.number == 41) proto.bos = number;
    if (field.number == 42) proto.eos = number;
    if (field.number == 43) proto.pad = number;
  }
  return message.fault() ? Status(corrupt("trainer_spec is damaged")) : Status();
}

Status read_normalizer(std::string_view bytes, Proto& proto) {
  Message message(bytes);
  Message::Field field;
  while (message.next(field)) {
    if (field.number == 2) proto.charsmap = field.bytes;
    if (field.number == 3) proto.add_dummy_prefix = field.integer != 0;
    if (field.number == 4) proto.remove_extra_whitespaces = field.integer != 0;
    if (field.number == 5 && field.integer == 0) return unsupported("normalizer_spec.escape_whitespaces is off");
  }
  return message.fault() ? Status(corrupt("normalizer_spec is damaged")) : Status();
}

Result<Proto> read_proto(std::string_view bytes) {
  Proto proto;
  Message message(bytes);
  Message::Field field;
  while (message.next(field)) {
    if (field.number == 1) QUIRE_TRY(read_piece(field.bytes, proto));
    if (field.number == 2) QUIRE_TRY(read_trainer(field.bytes, proto));
    if (field.number == 3) QUIRE_TRY(read_normalizer(field.bytes, proto));
  }
  if (message.fault()) return corrupt("the protocol buffer is damaged or truncated");
  if (proto.pieces.empty()) return corrupt("there are no pieces, so it is not a SentencePiece model");
  return proto;
}

Result<std::unique_ptr<Model>> make_model(const Proto& proto, PieceMap pieces) {
  const auto size = static_cast<int64_t>(proto.pieces.size());
  const bool has_unk = proto.unk >= 0 && proto.unk < size;
  if (proto.model_type == kUnigram) {
    std::vector<double> scores(proto.scores.begin(), proto.scores.end());
    return make_unigram(std::move(pieces), std::move(scores),
                        has_unk ? std::optional<int32_t>(static_cast<int32_t>(proto.unk)) : std::nullopt,
                        proto.byte_fallback);
  }
  BpeOptions options;
  options.byte_fallback = proto.byte_fallback;
  options.fuse_unk = true;
  if (has_unk) options.unk_token = proto.pieces[static_cast<size_t>(proto.unk)];
  std::vector<bool> mergeable(proto.pieces.size());
  for (size_t i = 0; i < mergeable.size(); ++i) {
    mergeable[i] = proto.types[i] == kNormal || proto.types[i] == kUserDefined || proto.types[i] == kUnused;
  }
  MergeMap merges;
  if (proto.model_type == kBpe) {
    QUIRE_ASSIGN(merges, merges_from_scores(pieces, proto.scores, mergeable));
  }
  return make_bpe(std::move(pieces), std::move(merges), std::move(options));
}

Status set_normalizer(const Proto& proto, TokenizerParts& parts) {
  std::vector<NormalizerPtr> steps;
  QUIRE_ASSIGN(NormalizerPtr rules, make_precompiled(proto.charsmap));
  if (rules) steps.push_back(std::move(rules));
  if (proto.remove_extra_whitespaces) {
    steps.push_back(make_strip(true, true));
    steps.push_back(make_replace(Pattern(Regex::compile(" {2,}").value()), " "));
  }
  if (proto.add_dummy_prefix) steps.push_back(make_prepend(kSpacePiece));
  steps.push_back(make_replace(Pattern(" "), kSpacePiece));
  parts.normalizer = make_sequence(std::move(steps));
  std::vector<std::unique_ptr<const DecodeStage>> stages;
  stages.push_back(decode_replace(Pattern(kSpacePiece), " "));
  stages.push_back(decode_byte_fallback());
  stages.push_back(decode_fuse());
  if (proto.add_dummy_prefix) stages.push_back(decode_strip(" ", 1, 0));
  parts.decoder.emplace(std::move(stages));
  return {};
}

Result<std::unique_ptr<TokenizerParts>> read(std::string_view bytes) {
  QUIRE_ASSIGN(const Proto proto, read_proto(bytes));
  if (proto.model_type != kUnigram && proto.model_type != kBpe && proto.model_type != kChar) {
    return unsupported({"trainer_spec.model_type is ", proto.model_type, "; quire supports unigram, BPE and char"});
  }
  auto parts = std::make_unique<TokenizerParts>();
  PieceMap pieces;
  for (size_t i = 0; i < proto.pieces.size(); ++i) pieces.insert(proto.pieces[i], static_cast<int32_t>(i));
  QUIRE_ASSIGN(parts->model, make_model(proto, std::move(pieces)));
  QUIRE_TRY(set_normalizer(proto, *parts));
  for (size_t i = 0; i < proto.pieces.size(); ++i) {
    if (proto.types[i] != kControl && proto.types[i] != kUnknown && proto.types[i] != kUserDefined) continue;
    AddedToken token;
    token.content = proto.pieces[i];
    token.normalized = false;
    token.special = proto.types[i] != kUserDefined;
    parts->added.add_with_id(std::move(token), static_cast<int32_t>(i));
  }
  parts->added.finish(parts->normalizer.get());
  const auto id = [&](int64_t value) {
    const bool known = value >= 0 && value < static_cast<int64_t>(proto.pieces.size());
    return known ? std::optional<int32_t>(static_cast<int32_t>(value)) : std::nullopt;
  };
  parts->special.unk = id(proto.unk);
  parts->special.bos = id(proto.bos);
  parts->special.eos = id(proto.eos);
  parts->special.pad = id(proto.pad);
  // As in Llama, which the BPE models of this format follow; tokenizer_config.json can override it.
  if (proto.model_type == kBpe && parts->special.bos) parts->post.before = {*parts->special.bos};
  return parts;
}

}  // namespace

Result<std::unique_ptr<TokenizerParts>> read_sentencepiece(std::string_view bytes, std::string_view name) {
  auto parts = read(bytes);
  if (!parts.ok()) return Error{parts.error().code, std::string(name) + ": " + parts.error().message};
  return parts;
}

Result<TokenizerPtr> load_sentencepiece_model(std::string_view bytes, std::string_view name) {
  QUIRE_ASSIGN(auto parts, read_sentencepiece(bytes, name));
  return TokenizerPtr(std::make_shared<const Tokenizer>(std::move(parts)));
}

}  // namespace quire::text
