// SPDX-License-Identifier: Apache-2.0
// EngineRouter: which of several engines with the same weights takes a request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv/prefix_hash.h"

namespace quire::llm {

// The rule: a request goes to the engine that has the longest known prefix of its prompts in its cache, unless that
// engine is overloaded. It is overloaded if it has more sequences under way than the least loaded engine, by more than
// one for each kLoadTokens tokens that its prefix is longer. In other words, the highest score wins, where
//   score = tokens of known prefixes - kLoadTokens * sequences under way.
// Of equal scores the least loaded engine wins, and of those each in turn. So requests without a common prefix are
// spread evenly, a short common prefix (a chat template's first words) draws nobody to a busy engine, and a prefix that
// many use at once is soon known to several engines, among which load alone decides.
//
// What an engine knows is remembered here as hashes of whole blocks of the prompts that were sent to it, at most
// `capacity` blocks per engine, those that were not used for longest forgotten first. That is what the engine's cache
// does with its pages, but it is not asked: a wrong guess costs time and changes no answer.
//
// One thread at a time, except for hashes().
class EngineRouter {
 public:
  // The tokens of prompt that one more sequence under way weighs as much as. A sequence delays the others of its engine
  // by its share of each step until it ends. That is worth some tens of tokens of prompt, for answers of some hundred
  // tokens; with a larger number, prefixes of some hundred tokens were computed on every engine too early.
  static constexpr int64_t kLoadTokens = 64;

  // `capacity` 0: engines keep no prefixes, and load alone decides.
  EngineRouter(size_t engines, int64_t block_size, size_t capacity);

  using Chain = std::vector<kv::BlockHash>;  // of one prompt, one hash per whole block
  // `key` is what else prefixes must agree in (Request::cache_key). Any thread.
  Chain hashes(std::span<const int32_t> prompt, std::string_view key) const;
  // The engines, best first, by their sequences under way. It counts as a turn.
  std::vector<size_t> rank(std::span<const Chain> prompts, std::span<const int64_t> loads);
  // The prompts were sent to this engine.
  void record(size_t engine, std::span<const Chain> prompts);
  // The prefix caches were emptied.
  void forget();

  // Tokens of the prompts that the engine has seen; for tests.
  int64_t known_tokens(size_t engine, std::span<const Chain> prompts) const;

 private:
  struct Known {
    std::list<kv::BlockHash> blocks;  // the last one used first
    std::unordered_map<kv::BlockHash, std::list<kv::BlockHash>::iterator, kv::BlockHashToSize> places;
  };
  const kv::PrefixHasher hasher_ = kv::PrefixHasher::random();
  const int64_t block_size_;
  const size_t capacity_;
  std::vector<Known> known_;
  size_t turn_ = 0;
};

}  // namespace quire::llm
