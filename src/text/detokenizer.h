// SPDX-License-Identifier: Apache-2.0
// Token ids to text one at a time, never half a character.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "text/tokenizer.h"

namespace quire::text {

class DecodeState;

// The text of a growing list of ids. All that push() and flush() returned, joined, is exactly what
// Tokenizer::decode gives for the same ids. A push costs time in its token's length, not in what came before. What is
// still open (half a character, a run of byte tokens, a space that the end of the text would drop) waits for a later
// push or for flush(). One owner, one thread; it keeps the tokenizer alive.
//
// Without spaces_between_special_tokens, which says something only where special tokens are shown, an added token that
// follows another one stands as it is spelled, without the space that some decoders put before each token (vLLM's
// rule).
class Detokenizer {
 public:
  explicit Detokenizer(TokenizerPtr tokenizer, bool skip_special_tokens = true,
                       bool spaces_between_special_tokens = true);
  ~Detokenizer();
  Detokenizer(Detokenizer&&) noexcept;
  Detokenizer& operator=(Detokenizer&&) noexcept;

  // The text that this id makes certain; empty while a character is incomplete.
  std::string push(int32_t id);
  // Ends the text: what was held comes out (U+FFFD for an incomplete character), and a new text may begin.
  std::string flush();

 private:
  TokenizerPtr tokenizer_;
  bool skip_special_tokens_;
  bool spaces_between_special_tokens_;
  bool after_added_ = false;  // the last token that was shown is an added one
  std::unique_ptr<DecodeState> state_;
};

}  // namespace quire::text
