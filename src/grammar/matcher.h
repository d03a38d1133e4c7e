// SPDX-License-Identifier: Apache-2.0
// CompiledGrammar and Matcher: which tokens may follow, token by token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "grammar/grammar.h"

namespace quire::grammar {

// The tokens of a model as bytes, laid out as a flat trie and cut into slices for masks that allow almost everything.
// Immutable: made once per model, any thread may use it.
class Vocabulary {
 public:
  struct Token {
    std::string bytes;     // in the middle of a text; empty: the id has no token
    bool special = false;  // matched by its id alone, never by its bytes
  };
  // `size` is the width of the model's logits, which may be more than tokens.size(); ids without bytes are never
  // allowed.
  static std::shared_ptr<const Vocabulary> make(std::vector<Token> tokens, int64_t size);
  ~Vocabulary();

  int64_t size() const;
  size_t mask_words() const;  // (size + 31) / 32
  const Token& token(int32_t id) const;
  // The longest token with which the text begins; -1: there is none.
  int32_t longest_prefix(std::string_view text) const;

  struct Parts;  // token_trie.h; private to this folder
  const Parts& parts() const { return *parts_; }

 private:
  Vocabulary();
  std::unique_ptr<Parts> parts_;
};

struct MatcherLimits {
  int64_t fuel_per_mask = 2'000'000;  // steps of the trie walk and the parser
  // Steps that make the automaton where it is not known yet, for each state whose mask is made. The automaton is shared
  // and remembered, so they have a budget of their own: what a mask costs does not depend on what is known already.
  int64_t fuel_to_build = 14'000'000;   // some 0.2 s
  int64_t max_items_per_row = 50'000;   // of the Earley parser; an object of 10,000 optional members needs 30,000
  int64_t max_lexer_states = 250'000;   // per compiled grammar
  size_t max_bytes = size_t{64} << 20;  // memory of one matcher
};

// A grammar that is ready to match, with the automaton of its terminals, which grows as it is used and which all
// matchers of the grammar share. Any thread may use it.
class CompiledGrammar {
 public:
  // Takes the grammar. Fails if it is over a limit, or if it matches no text at all.
  static Result<std::shared_ptr<const CompiledGrammar>> make(Grammar grammar,
                                                             std::shared_ptr<const Vocabulary> vocabulary,
                                                             const MatcherLimits& limits = {});
  ~CompiledGrammar();
  const Vocabulary& vocabulary() const;
  // Memory that it holds at present, for the cache.
  size_t bytes() const;

  struct Parts;  // compiled_grammar.h; private to this folder
  Parts& parts() const { return *parts_; }

 private:
  CompiledGrammar();
  std::unique_ptr<Parts> parts_;
};

// The state of one sequence. The mask is a function of the grammar and of the accepted tokens alone. One thread at a
// time; different matchers of one grammar may run on different threads.
class Matcher {
 public:
  explicit Matcher(std::shared_ptr<const CompiledGrammar> grammar);
  ~Matcher();

  // Writes one bit per token (bit i % 32 of word i / 32; 1: allowed). `end_tokens` (EOS and the request's stop tokens)
  // are allowed exactly if the text may end here. An error (fuel, memory) ends this sequence only; where a mask cost
  // too much, it is also an error for later sequences of the compiled grammar, though some of the work is done by then.
  // Special tokens that the grammar names are allowed where it has them, even if they are end tokens.
  // REQUIRES: mask.size() == vocabulary().mask_words()
  Status fill_mask(std::span<uint32_t> mask, std::span<const int32_t> end_tokens);
  // Advances by one token. An end token, where it is allowed, changes nothing. A token that the mask did not allow is
  // an error, after which the matcher is where it was.
  Status accept(int32_t token, std::span<const int32_t> end_tokens);
  // Advances by bytes that are not from tokens; false: the grammar refuses them, nothing changed. For tests and tools.
  bool accept_bytes(std::string_view bytes);
  // Takes back the last `count` steps: each accept() that succeeded is one, and so is each accept_bytes().
  // REQUIRES: count is at most the number of steps, and at most kMaxRollback.
  static constexpr int64_t kMaxRollback = 1024;
  void rollback(int64_t count);
  // Whether the text may end here, and whether nothing else may follow.
  bool may_end() const;
  bool is_over() const;
  // The bytes that must come next, as far as there is only one possibility (at most `max`).
  std::string forced_bytes(size_t max = 256);
  // Appends at most `most` tokens that spell these bytes, each as long as possible. Others may spell them, too.
  void forced_tokens(size_t most, std::vector<int32_t>& tokens);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quire::grammar
