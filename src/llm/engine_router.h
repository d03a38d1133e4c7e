// SPDX-License-Identifier: Apache-2.0
// EngineRouter: which of several engines with the same weights takes a request.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
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
// A prefix is known to an engine as soon as a prompt with it was sent there. When an engine has computed it, the others
// can copy its pages (kv/peer_pages.h): it then counts for each of them, too, but less, so that pages are not held
// twice without need. Of equal scores the least loaded engine wins, of those the one that knows more itself, and of
// those each in turn. So requests without a common prefix are spread evenly, a short common prefix (a chat template's
// first words) draws nobody to a busy engine, and of a prefix that many use, the first prompt decides where it is
// computed and load where it is used from then on.
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
  // What a token whose page must be copied from another engine counts, in eighths.
  static constexpr int64_t kCopiedEighths = 7;

  // `capacity` 0: engines keep no prefixes, and load alone decides.
  EngineRouter(size_t engines, int64_t block_size, size_t capacity);

  using Chain = std::vector<kv::BlockHash>;  // of one prompt, one hash per whole block
  // `key` is what else prefixes must agree in (Request::cache_key). Any thread.
  Chain hashes(std::span<const int32_t> prompt, std::string_view key) const;
  // The engines, best first, by their sequences under way. It counts as a turn.
  std::vector<size_t> rank(std::span<const Chain> prompts, std::span<const int64_t> loads);
  // Becomes true when the prompts that were sent together have been computed; set by any thread.
  using Computed = std::shared_ptr<const std::atomic<bool>>;
  // The prompts were sent to this engine. Without `computed`, other engines cannot copy their pages.
  void record(size_t engine, std::span<const Chain> prompts, const Computed& computed = nullptr);
  // The prefix caches were emptied.
  void forget();

  // Tokens of the prompts that were sent to the engine.
  int64_t known_tokens(size_t engine, std::span<const Chain> prompts) const;

 private:
  struct Block {
    kv::BlockHash hash;
    Computed computed;
    bool is_computed() const { return computed != nullptr && computed->load(std::memory_order_relaxed); }
  };
  struct Known {
    std::list<Block> blocks;  // the last one used first
    std::unordered_map<kv::BlockHash, std::list<Block>::iterator, kv::BlockHashToSize> places;
  };
  // Tokens of the prompts that some engine has computed.
  int64_t computed_tokens(std::span<const Chain> prompts) const;

  const kv::PrefixHasher hasher_ = kv::PrefixHasher::random();
  const int64_t block_size_;
  const size_t capacity_;
  std::vector<Known> known_;
  size_t turn_ = 0;
};

}  // namespace quire::llm
