// SPDX-License-Identifier: Apache-2.0
// The decoders of tokenizer.json as streams: pieces go in one by one, text comes out as soon as it is final.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/pattern.h"

namespace quire::text {

// The running state of one decoder, which receives tokens and passes tokens on. `continues` marks text that belongs to
// the previous token (after a step that fuses all tokens into one).
class StageState {
 public:
  StageState() = default;
  virtual ~StageState() = default;
  StageState(const StageState&) = delete;
  StageState& operator=(const StageState&) = delete;
  virtual void push(std::string_view token, bool continues) = 0;
  // The end of the text: passes on what was kept back.
  virtual void finish() {}
  void set_next(StageState* next) { next_ = next; }

 protected:
  StageState* next_ = nullptr;
};

// One decoder. Immutable; start() creates its running state.
class DecodeStage {
 public:
  DecodeStage() = default;
  virtual ~DecodeStage() = default;
  DecodeStage(const DecodeStage&) = delete;
  DecodeStage& operator=(const DecodeStage&) = delete;
  virtual std::unique_ptr<StageState> start() const = 0;
  // The text of a token in the middle of a text.
  virtual std::string middle(std::string token) const { return token; }
  // Whether it passes on one token in parts (`given`: if it is given one in parts), and whether it accepts one in
  // parts.
  virtual bool gives_parts(bool /*given*/) const { return false; }
  virtual bool takes_parts() const { return false; }
};

// All decoders of a tokenizer in order; without any, tokens are joined with spaces.
class DecodeChain {
 public:
  static Result<DecodeChain> from_json(const json::Value* section);
  explicit DecodeChain(std::vector<std::unique_ptr<const DecodeStage>> stages);
  std::string middle(std::string_view token) const;
  const std::vector<std::unique_ptr<const DecodeStage>>& stages() const { return stages_; }

 private:
  std::vector<std::unique_ptr<const DecodeStage>> stages_;
};

// The stages that the readers of other formats create directly.
std::unique_ptr<const DecodeStage> decode_byte_level();
std::unique_ptr<const DecodeStage> decode_byte_fallback();
std::unique_ptr<const DecodeStage> decode_fuse();
std::unique_ptr<const DecodeStage> decode_replace(Pattern pattern, std::string with);
std::unique_ptr<const DecodeStage> decode_strip(std::string content, size_t start, size_t stop);
std::unique_ptr<const DecodeStage> decode_word_piece(std::string prefix, bool cleanup);
std::unique_ptr<const DecodeStage> decode_metaspace(std::string mark, bool drop_first);

// The running state of a chain for one text. One owner, one thread. REQUIRES: the chain outlives it.
class DecodeState {
 public:
  explicit DecodeState(const DecodeChain& chain);
  ~DecodeState();
  void push(std::string_view token);
  // After finish(), only take() may be called.
  void finish();
  std::string take() { return std::exchange(text_, {}); }

 private:
  std::vector<std::unique_ptr<StageState>> stages_;
  std::string text_;
};

}  // namespace quire::text
