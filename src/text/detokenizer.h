// SPDX-License-Identifier: Apache-2.0
// Converts token ids to text one at a time, always in whole characters.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/shared_list.h"
#include "text/tokenizer.h"

namespace quire::text {

class DecodeState;

// The text of a growing list of ids. The results of push() and flush(), joined, are exactly what Tokenizer::decode
// returns for the same ids. A push takes time proportional to its token, not to the text so far. What is not final yet
// (half a character, a run of byte tokens, a space that is dropped at the end of a text) waits for a later push() or
// for flush(). One owner, one thread; it keeps the tokenizer alive.
//
// If special tokens are shown and spaces_between_special_tokens is false, an added token that follows another one is
// shown without the space that some decoders put before each token.
// vLLM does the same.
//
// `kept_special` are special tokens, ascending, that are shown even if special tokens are skipped: the markers of tool
// calls and reasoning, which a parser takes out of the text.
class Detokenizer {
 public:
  explicit Detokenizer(TokenizerPtr tokenizer, bool skip_special_tokens = true,
                       bool spaces_between_special_tokens = true, SharedList<int32_t> kept_special = {});
  ~Detokenizer();
  Detokenizer(Detokenizer&&) noexcept;
  Detokenizer& operator=(Detokenizer&&) noexcept;

  // The text that this id makes final; empty while a character is incomplete.
  std::string push(int32_t id);
  // Ends the text and returns what was kept back (U+FFFD for an incomplete character). Then a new text may begin.
  std::string flush();

 private:
  TokenizerPtr tokenizer_;
  bool skip_special_tokens_;
  bool spaces_between_special_tokens_;
  SharedList<int32_t> kept_special_;
  bool after_added_ = false;  // the last token that was shown is an added token
  std::unique_ptr<DecodeState> state_;
};

}  // namespace quire::text
