// SPDX-License-Identifier: Apache-2.0
// Converts text to token ids and back, for all tokenizer formats of models.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/origin.h"

namespace quire::text {

class DecodeChain;
struct TokenizerParts;

struct EncodeOptions {
  // Adds the special tokens that the model adds around a text (a leading BOS, a closing SEP, ...).
  bool add_special_tokens = true;
  // Recognises special tokens in the text ("<|im_end|>"). If off, they are ordinary text, so that the text of a user
  // cannot forge a turn. Added tokens that are not special are always recognised.
  bool parse_special = true;
  // The origins of parts of the text (in order, without overlaps). Control tokens are not recognised if any of their
  // bytes is in such a range; everything else is tokenised as usual. Control tokens are the special ones and those that
  // look like them (<|...|>); in untrusted ranges also `markers`.
  std::span<const OriginRange> origins = {};
  // Added tokens that the chat template writes (see control_markers()), ascending.
  std::span<const int32_t> markers = {};
};

// Two texts as one sequence. From second_segment on the token type is 1; -1: all are 0.
struct PairEncoding {
  std::vector<int32_t> ids;
  int64_t second_segment = -1;
};

// The ids with a role in the model's files; any may be missing.
struct SpecialIds {
  std::optional<int32_t> bos, eos, pad, unk, eot, mask, sep, cls;
};

// One tokenizer, as its file describes it: added tokens, normalizer, pre-tokenizer, model, post-processor, decoder.
// Immutable once loaded, so any thread may encode and decode at any time (each thread has a bounded cache of words).
// The results equal those of Hugging Face's `tokenizers`, id for id and byte for byte, except that the truncation and
// padding sections of a file are ignored, as in other servers, and merge dropout is never applied. Bytes that are not
// UTF-8 become U+FFFD before encoding. A piece that a model without an unknown token cannot represent is dropped.
class Tokenizer {
 public:
  explicit Tokenizer(std::unique_ptr<TokenizerParts> parts);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Puts the special tokens around one tokenised text.
  std::vector<int32_t> wrap(std::span<const int32_t> ids) const;
  // Puts the special tokens around two tokenised texts, as the model takes pairs ("[CLS] a [SEP] b [SEP]"). Without a
  // rule for pairs in its file, they follow each other between the tokens for one text.
  PairEncoding join_pair(std::span<const int32_t> first, std::span<const int32_t> second) const;
  // The text of these ids; ids without a token are skipped. The result is valid UTF-8.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;

  // One more than the largest id with a token (ids may have gaps).
  int32_t vocab_size() const;
  // The token as in its file ("Ġthe", "▁the", "<0x0A>"); nothing if the id has none.
  std::optional<std::string_view> piece(int32_t id) const;
  // The bytes of the token in the middle of a text (" the", "\n"; possibly half a character); empty if the id has no
  // token. For an added token, its content.
  std::string token_bytes(int32_t id) const;
  // The id of a token that is written as in its file.
  std::optional<int32_t> id_of(std::string_view piece) const;
  // True for the tokens that skip_special_tokens omits.
  bool is_special(int32_t id) const;
  // True for every added token, special or not.
  bool is_added(int32_t id) const;
  // The added tokens in the source of a chat template that look like markup (<tool_call>, [INST]), ascending.
  std::vector<int32_t> control_markers(std::string_view template_source) const;
  // The ids of all added tokens, ascending.
  std::vector<int32_t> added_ids() const;
  const SpecialIds& special_ids() const;
  // Whether encode() with add_special_tokens adds BOS at the start or EOS at the end.
  bool adds_bos() const;
  bool adds_eos() const;
  // "BPE", "Unigram", "WordPiece" or "WordLevel".
  std::string_view model_type() const;

  // For the detokenizer: the steps that convert pieces to text.
  const DecodeChain& decode_chain() const;

 private:
  std::unique_ptr<const TokenizerParts> parts_;
};

using TokenizerPtr = std::shared_ptr<const Tokenizer>;

// A Hugging Face tokenizer.json; `name` stands for the file in errors.
Result<TokenizerPtr> load_tokenizer_json(std::string_view json, std::string_view name = "tokenizer.json");
// A SentencePiece tokenizer.model (BPE, unigram, word or char); `name` stands for the file in errors.
Result<TokenizerPtr> load_sentencepiece_model(std::string_view bytes, std::string_view name = "tokenizer.model");
// The tokenizer of a model's folder: its tokenizer.json, else tekken.json, tokenizer.model (SentencePiece's or
// tiktoken's), tiktoken.model or *.tiktoken, with the roles in tokenizer_config.json (bos_token, eos_token, pad_token,
// unk_token, added_tokens_decoder, add_bos_token, add_eos_token).
Result<TokenizerPtr> load_tokenizer(const std::filesystem::path& folder);
// Whether the folder has one of these files.
bool has_tokenizer(const std::filesystem::path& folder);

// The vocabulary of a GGUF file, which the caller fills from its tokenizer.ggml.* metadata.
struct GgufVocab {
  std::string model;  // tokenizer.ggml.model: gpt2, llama, bert, t5, gemma4
  std::string pre;    // tokenizer.ggml.pre: the split pattern of a gpt2 model
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<int32_t> token_types;  // 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte
  std::vector<std::string> merges;   // "left right"
  SpecialIds special;
  std::optional<bool> add_bos, add_eos, add_sep, add_space_prefix, remove_extra_whitespaces;
  std::string precompiled_charsmap;  // raw bytes
};
// `name` stands for the file in errors. An unknown model or pre is an error that names it.
Result<TokenizerPtr> load_gguf_vocab(GgufVocab vocab, std::string_view name = "the GGUF file");

}  // namespace quire::text
