// SPDX-License-Identifier: Apache-2.0
// CompilerCache: compiled constraints by what the constraint says.
#include <condition_variable>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "grammar/compile.h"

namespace quire::grammar {

namespace {

// Everything in a constraint that decides what it accepts. The whole text is the key, not a digest of it, so that no
// two constraints can be taken for each other. Members of JSON objects keep their order, which matters to the answer.
std::string key_of(const Spec& spec) {
  std::string key = std::to_string(static_cast<int>(spec.kind));
  key += spec.any_whitespace ? 'w' : '-';
  key += spec.additional_properties ? 'a' : '-';
  key += spec.any_order ? 'o' : '-';
  const auto add = [&](std::string_view part) {
    key += std::to_string(part.size());
    key += ':';
    key += part;
  };
  key += spec.whitespace_pattern ? 'p' : '-';
  if (spec.whitespace_pattern) add(*spec.whitespace_pattern);
  switch (spec.kind) {
    case Spec::Kind::kJson:
    case Spec::Kind::kStructuralTag:
      key += json::dump(spec.json);
      break;
    case Spec::Kind::kRegex:
    case Spec::Kind::kGrammar:
      key += spec.text;
      break;
    case Spec::Kind::kChoice:
      for (const std::string& text : spec.choice) add(text);
      break;
  }
  return key;
}

}  // namespace

struct CompilerCache::State {
  using Compiled = std::shared_ptr<const CompiledGrammar>;
  // One compilation that others may wait for.
  struct Flight {
    std::optional<Result<Compiled>> result;
  };
  struct Entry {
    Compiled compiled;
    size_t bytes = 0;
    std::list<std::string>::iterator use;
  };

  std::shared_ptr<const Vocabulary> vocabulary;
  SpecialTokens special;
  size_t max_bytes = 0;
  MatcherLimits limits;

  std::mutex mutex;
  std::condition_variable done;
  std::map<std::string, Entry> entries;
  std::list<std::string> uses;  // keys, the most recently used first
  std::map<std::string, std::shared_ptr<Flight>> flights;
  Stats stats;

  Result<Compiled> compile(const Spec& spec) const {
    try {
      QUIRE_ASSIGN(Grammar grammar, translate(spec, special));
      return CompiledGrammar::make(std::move(grammar), vocabulary, limits);
    } catch (const std::exception&) {
      return exhausted("There is not enough memory to compile the constraint.");
    }
  }

  // REQUIRES: mutex is held, as for the functions below.
  void measure(Entry& entry, size_t key_bytes) {
    stats.bytes -= entry.bytes;
    entry.bytes = entry.compiled->bytes() + 2 * key_bytes;
    stats.bytes += entry.bytes;
  }
  void insert(const std::string& key, Compiled compiled) {
    // The automata of the others may have grown since they were measured.
    for (auto& [other_key, entry] : entries) measure(entry, other_key.size());
    uses.push_front(key);
    Entry& entry = entries[key];
    entry.compiled = std::move(compiled);
    entry.use = uses.begin();
    measure(entry, key.size());
    drop_oldest();
  }
  void drop_oldest() {
    while (stats.bytes > max_bytes && !uses.empty()) {
      const auto oldest = entries.find(uses.back());
      stats.bytes -= oldest->second.bytes;
      entries.erase(oldest);
      uses.pop_back();
    }
    stats.entries = static_cast<int64_t>(entries.size());
  }
};

CompilerCache::CompilerCache(std::shared_ptr<const Vocabulary> vocabulary, SpecialTokens special, size_t max_bytes,
                             const MatcherLimits& limits)
    : state_(std::make_unique<State>()) {
  state_->vocabulary = std::move(vocabulary);
  state_->special = std::move(special);
  state_->max_bytes = max_bytes;
  state_->limits = limits;
}

CompilerCache::~CompilerCache() = default;

Result<std::shared_ptr<const CompiledGrammar>> CompilerCache::get(const Spec& spec) {
  State& state = *state_;
  const std::string key = key_of(spec);
  std::unique_lock lock(state.mutex);
  if (const auto it = state.entries.find(key); it != state.entries.end()) {
    ++state.stats.hits;
    const auto compiled = it->second.compiled;
    state.uses.splice(state.uses.begin(), state.uses, it->second.use);
    state.measure(it->second, key.size());
    state.drop_oldest();
    return compiled;
  }
  if (const auto it = state.flights.find(key); it != state.flights.end()) {
    ++state.stats.hits;
    const std::shared_ptr<State::Flight> flight = it->second;
    state.done.wait(lock, [&] { return flight->result.has_value(); });
    return *flight->result;
  }
  ++state.stats.misses;
  const auto flight = std::make_shared<State::Flight>();
  state.flights.emplace(key, flight);
  lock.unlock();
  Result<State::Compiled> result = state.compile(spec);
  lock.lock();
  flight->result = result;
  state.flights.erase(key);
  if (result.ok()) state.insert(key, *result);
  lock.unlock();
  state.done.notify_all();
  return result;
}

CompilerCache::Stats CompilerCache::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

}  // namespace quire::grammar
