// SPDX-License-Identifier: Apache-2.0
// The incremental detokenizer: a decode chain that is fed one id at a time.
#include "text/detokenizer.h"

#include <algorithm>
#include <utility>

#include "text/token_decoder.h"

namespace quire::text {

Detokenizer::Detokenizer(TokenizerPtr tokenizer, bool skip_special_tokens, bool spaces_between_special_tokens,
                         SharedList<int32_t> kept_special)
    : tokenizer_(std::move(tokenizer)),
      skip_special_tokens_(skip_special_tokens),
      spaces_between_special_tokens_(skip_special_tokens || spaces_between_special_tokens),
      kept_special_(std::move(kept_special)),
      state_(std::make_unique<DecodeState>(tokenizer_->decode_chain())) {}

Detokenizer::~Detokenizer() = default;
Detokenizer::Detokenizer(Detokenizer&&) noexcept = default;
Detokenizer& Detokenizer::operator=(Detokenizer&&) noexcept = default;

std::string Detokenizer::push(int32_t id) {
  const auto token = tokenizer_->piece(id);
  if (!token) return {};
  if (skip_special_tokens_ && tokenizer_->is_special(id) &&
      !std::binary_search(kept_special_.begin(), kept_special_.end(), id)) {
    return {};
  }
  state_->push(*token);
  std::string text = state_->take();
  if (spaces_between_special_tokens_) return text;
  const bool added = tokenizer_->is_added(id);
  if (std::exchange(after_added_, added) && added) {
    const std::string shown = tokenizer_->token_bytes(id);
    if (text.ends_with(shown) && text.find_first_not_of(' ') >= text.size() - shown.size()) return shown;
  }
  return text;
}

std::string Detokenizer::flush() {
  state_->finish();
  std::string rest = state_->take();
  state_ = std::make_unique<DecodeState>(tokenizer_->decode_chain());
  after_added_ = false;
  return rest;
}

}  // namespace quire::text
