// SPDX-License-Identifier: Apache-2.0
// Reads a GgufVocab from the metadata of a GGUF file.
#include <string>

#include "text/gguf_vocab.h"

namespace quire::text {

namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 24;

Status read_id(const weights::GgufMetadata& metadata, const char* key, int64_t tokens, std::optional<int32_t>& id) {
  if (!metadata.contains(key)) return {};
  QUIRE_ASSIGN(const int64_t value, metadata.get_int(key, -1, int64_t{0xffffffff}));
  // Converters write -1 or a number past the end for "none".
  if (value >= 0 && value < tokens) id = static_cast<int32_t>(value);
  return {};
}

Status read_flag(const weights::GgufMetadata& metadata, const char* key, std::optional<bool>& flag) {
  if (!metadata.contains(key)) return {};
  QUIRE_ASSIGN(flag, metadata.get_bool(key));
  return {};
}

Status read_lists(const weights::GgufMetadata& metadata, GgufVocab& vocab) {
  QUIRE_ASSIGN(const auto tokens, metadata.get_strings("tokenizer.ggml.tokens"));
  if (static_cast<int64_t>(tokens.size()) > kMaxTokens) {
    return corrupt({metadata.file(), ": tokenizer.ggml.tokens has more than 2^24 tokens"});
  }
  vocab.tokens.assign(tokens.begin(), tokens.end());
  if (metadata.contains("tokenizer.ggml.scores")) {
    QUIRE_ASSIGN(vocab.scores, metadata.get_floats("tokenizer.ggml.scores"));
  }
  if (metadata.contains("tokenizer.ggml.token_type")) {
    QUIRE_ASSIGN(const auto types, metadata.get_ints("tokenizer.ggml.token_type"));
    vocab.token_types.reserve(types.size());
    for (const int64_t type : types)
      vocab.token_types.push_back(type >= 0 && type <= 6 ? static_cast<int32_t>(type) : 0);
  }
  if (metadata.contains("tokenizer.ggml.merges")) {
    QUIRE_ASSIGN(const auto merges, metadata.get_strings("tokenizer.ggml.merges"));
    vocab.merges.assign(merges.begin(), merges.end());
  }
  if (const weights::GgufValue* map = metadata.find("tokenizer.ggml.precompiled_charsmap");
      map != nullptr && map->array) {
    const auto raw = map->array->raw;
    vocab.precompiled_charsmap.assign(reinterpret_cast<const char*>(raw.data()), raw.size());
  }
  return {};
}

}  // namespace

Result<GgufVocab> read_gguf_vocab(const weights::GgufMetadata& metadata) {
  GgufVocab vocab;
  QUIRE_ASSIGN(vocab.model, metadata.get_string("tokenizer.ggml.model"));
  QUIRE_ASSIGN(vocab.pre, metadata.get_string_or("tokenizer.ggml.pre", ""));
  QUIRE_TRY(read_lists(metadata, vocab));
  const auto tokens = static_cast<int64_t>(vocab.tokens.size());
  QUIRE_TRY(read_id(metadata, "tokenizer.ggml.bos_token_id", tokens, vocab.special.bos));
  QUIRE_TRY(read_id(metadata, "tokenizer.ggml.eos_token_id", tokens, vocab.special.eos));
  QUIRE_TRY(read_id(metadata, "tokenizer.ggml.eot_token_id", tokens, vocab.special.eot));
  QUIRE_TRY(read_id(metadata, "tokenizer.ggml.unknown_token_id", tokens, vocab.special.unk));
  QUIRE_TRY(read_id(metadata, "tokenizer.ggml.padding_token_id", tokens, vocab.special.pad));
  QUIRE_TRY(read_id(metadata, "tokenizer.ggml.mask_token_id", tokens, vocab.special.mask));
  QUIRE_TRY(read_id(metadata, "tokenizer.ggml.cls_token_id", tokens, vocab.special.cls));
  // The misspelt key is the one that files have.
  QUIRE_TRY(read_id(metadata, "tokenizer.ggml.seperator_token_id", tokens, vocab.special.sep));
  QUIRE_TRY(read_id(metadata, "tokenizer.ggml.separator_token_id", tokens, vocab.special.sep));
  QUIRE_TRY(read_flag(metadata, "tokenizer.ggml.add_bos_token", vocab.add_bos));
  QUIRE_TRY(read_flag(metadata, "tokenizer.ggml.add_eos_token", vocab.add_eos));
  QUIRE_TRY(read_flag(metadata, "tokenizer.ggml.add_sep_token", vocab.add_sep));
  QUIRE_TRY(read_flag(metadata, "tokenizer.ggml.add_space_prefix", vocab.add_space_prefix));
  QUIRE_TRY(read_flag(metadata, "tokenizer.ggml.remove_extra_whitespaces", vocab.remove_extra_whitespaces));
  return vocab;
}

Result<TokenizerPtr> load_gguf_tokenizer(const weights::GgufMetadata& metadata) {
  QUIRE_ASSIGN(GgufVocab vocab, read_gguf_vocab(metadata));
  return load_gguf_vocab(std::move(vocab), metadata.file());
}

}  // namespace quire::text
