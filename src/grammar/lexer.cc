// SPDX-License-Identifier: Apache-2.0
// Lexer: interning of states, transitions by derivatives, and how far plain text may go on.
#include "grammar/lexer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire::grammar {

namespace {

// A step of the regex store costs about as much as ten nodes of the trie.
constexpr int64_t kFuelPerStep = 10;
constexpr size_t kMaxTableBytes = size_t{128} << 20;
constexpr int64_t kAliveFuel = 10'000;
constexpr size_t kMaxFrontier = 8;

template <typename Range>
uint64_t hash_of(const Range& values) {
  uint64_t h = 0x243F6A8885A308D3u;
  for (uint64_t value : values) {
    h = (h ^ value) * 0xFF51AFD7ED558CCDu;
    h ^= h >> 29;
  }
  return h;
}

}  // namespace

Lexer::Lexer(RegexStore store, std::vector<Regex> lexemes, int64_t max_states)
    : store_(std::move(store)),
      lexemes_(std::move(lexemes)),
      max_states_(static_cast<uint32_t>(std::clamp<int64_t>(max_states, 2, kStateMask / 2))),
      chunks_(max_states_ / kChunk + 1) {
  // The classes also tell apart what plain_text_step() does.
  static constexpr std::array<CodePointRange, 4> kNotPlain = {{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}, {0x7F, 0x7F}}};
  std::vector<Regex> all = lexemes_;
  all.push_back(store_.chars_except(kNotPlain));
  classes_ = store_.all_classes(all);
  first_byte_.resize(static_cast<size_t>(classes_.count));
  for (int byte = 255; byte >= 0; --byte)
    first_byte_[classes_.of[static_cast<size_t>(byte)]] = static_cast<uint8_t>(byte);
  text_step_.resize(static_cast<size_t>(classes_.count));
  for (size_t c = 0; c < text_step_.size(); ++c) {
    for (int state = 0; state < kPlainTextStates; ++state) {
      text_step_[c][static_cast<size_t>(state)] = static_cast<int8_t>(plain_text_step(state, first_byte_[c]));
    }
  }
  intern({});  // kDead
}

Lexer::~Lexer() = default;

const LexemeSet* Lexer::intern_set(std::vector<uint32_t> lexemes) {
  uint64_t h = hash_of(lexemes);
  for (auto [entry, end] = set_index_.equal_range(h); entry != end; ++entry) {
    if (entry->second->lexemes == lexemes) return entry->second;
  }
  sets_.push_back({static_cast<uint32_t>(sets_.size()), std::move(lexemes)});
  set_index_.emplace(h, &sets_.back());
  return &sets_.back();
}

// The state of these parts with its flags, or kFailed.
uint32_t Lexer::intern(std::span<const Part> parts) {
  uint64_t h = 0x452821E638D01377u;
  for (const Part& part : parts) {
    h = (h ^ (uint64_t{part.lexeme} << 32 | part.regex)) * 0xFF51AFD7ED558CCDu;
    h ^= h >> 29;
  }
  for (auto [entry, end] = state_index_.equal_range(h); entry != end; ++entry) {
    const Info& known = info(entry->second);
    if (std::ranges::equal(std::span(parts_).subspan(known.begin, known.count), parts)) {
      return entry->second | known.flags;
    }
  }
  size_t table_bytes = (size_t{state_count_} + 1) * static_cast<size_t>(classes_.count) * sizeof(uint32_t);
  if (state_count_ >= max_states_ || table_bytes + parts_.size() * sizeof(Part) > kMaxTableBytes) {
    failed_ = true;
    return kFailed;
  }
  uint32_t state = state_count_;
  if (state % kChunk == 0) {
    auto chunk = std::make_unique<Chunk>();
    size_t entries = size_t{kChunk} * static_cast<size_t>(classes_.count);
    chunk->next = std::make_unique<std::atomic<uint32_t>[]>(entries);
    for (size_t i = 0; i < entries; ++i) chunk->next[i].store(kUnknown, std::memory_order_relaxed);
    chunks_[state / kChunk].store(chunk.get(), std::memory_order_release);
    owned_.push_back(std::move(chunk));
  }
  ++state_count_;
  Info& added = info(state);
  added.begin = static_cast<uint32_t>(parts_.size());
  added.count = static_cast<uint32_t>(parts.size());
  parts_.insert(parts_.end(), parts.begin(), parts.end());
  std::vector<uint32_t> accepted;
  for (const Part& part : parts) {
    if (store_.nullable({part.regex})) accepted.push_back(part.lexeme);
    if (part.regex != store_.empty().index) added.flags |= kContinues;
  }
  if (!accepted.empty()) {
    added.flags |= kAccepts;
    added.accepted = intern_set(std::move(accepted));
  }
  state_index_.emplace(h, state);
  return state | added.flags;
}

uint32_t Lexer::start(std::span<const uint32_t> lexemes, int64_t& fuel) {
  std::lock_guard lock(mutex_);
  std::vector<Part> parts;
  for (uint32_t lexeme : lexemes) {
    if (lexemes_[lexeme] != store_.empty()) parts.push_back({lexeme, lexemes_[lexeme].index});
  }
  fuel -= static_cast<int64_t>(parts.size());
  if (parts.empty()) return kDead;
  uint32_t state = intern(parts);
  return state == kFailed ? kFailed : state & kStateMask;
}

std::optional<bool> Lexer::alive(Regex regex) {
  if (regex == store_.nothing()) return store_.full() ? std::nullopt : std::optional(false);
  std::optional<bool> nothing = store_.is_nothing(regex, kAliveFuel);
  if (!nothing) return std::nullopt;
  return !*nothing;
}

uint32_t Lexer::fill_locked(uint32_t state, uint8_t byte_class) {
  std::atomic<uint32_t>& entry = const_cast<std::atomic<uint32_t>&>(transitions(state)[byte_class]);
  if (uint32_t known = entry.load(std::memory_order_relaxed); known != kUnknown) return known;
  std::vector<Part> parts;
  const uint32_t begin = info(state).begin, count = info(state).count;
  for (uint32_t i = begin; i < begin + count; ++i) {
    Regex rest = store_.derivative({parts_[i].regex}, first_byte_[byte_class]);
    std::optional<bool> lives = alive(rest);
    if (!lives || store_.full()) {
      failed_ = true;
      return kFailed;
    }
    if (*lives) parts.push_back({parts_[i].lexeme, rest.index});
  }
  uint32_t result = parts.empty() ? kDead : intern(parts);
  if (result != kFailed) entry.store(result, std::memory_order_release);
  return result;
}

uint32_t Lexer::fill(uint32_t state, uint8_t byte_class, int64_t& fuel) {
  std::lock_guard lock(mutex_);
  int64_t before = store_.work();
  uint32_t result = fill_locked(state, byte_class);
  fuel -= kFuelPerStep * (1 + store_.work() - before);
  return result;
}

const std::vector<uint32_t>* Lexer::after_one_char(uint32_t state) {
  auto [entry, added] = after_char_.try_emplace(state);
  AfterChar& result = entry->second;
  if (!added) return result.dead ? nullptr : &result.states;
  std::vector<std::pair<int, uint32_t>> pending = {{0, state}}, seen = pending;
  while (!pending.empty()) {
    auto [text, at] = pending.back();
    pending.pop_back();
    for (size_t c = 0; c < text_step_.size(); ++c) {
      int next_text = text_step_[c][static_cast<size_t>(text)];
      if (next_text < 0) continue;
      uint32_t next = fill_locked(at, static_cast<uint8_t>(c));
      if (next == kDead || next == kFailed) {
        result.dead = true;
        return nullptr;
      }
      next &= kStateMask;
      if (next_text == 0) {
        result.states.push_back(next);
      } else if (std::pair to(next_text, next); std::ranges::find(seen, to) == seen.end()) {
        seen.push_back(to);
        pending.push_back(to);
      }
    }
  }
  std::ranges::sort(result.states);
  result.states.erase(std::unique(result.states.begin(), result.states.end()), result.states.end());
  return &result.states;
}

int Lexer::explore_text(uint32_t state, bool infinite) {
  std::vector<uint32_t> frontier = {state}, seen = frontier, next;
  auto finite = [this](uint32_t at) { return !store_.infinite({parts_[info(at).begin].regex}); };
  if (infinite && finite(state)) return 0;
  for (int chars = 0; chars < kMaxReach; ++chars) {
    next.clear();
    for (uint32_t from : frontier) {
      const std::vector<uint32_t>* after = after_one_char(from);
      if (after == nullptr) return chars;
      for (uint32_t to : *after) {
        if (std::ranges::find(seen, to) != seen.end()) continue;
        if (infinite && finite(to)) return chars;
        seen.push_back(to);
        next.push_back(to);
      }
    }
    if (next.empty()) return kAnyChars;
    if (next.size() > kMaxFrontier) return chars + 1;
    frontier.swap(next);
  }
  return kMaxReach;
}

// A lexeme such as "any name but these" has many states that differ in which of these names may still come. No text is
// impossible in any of them, though, since there are infinitely many names that are not excepted: the states of "any
// name" say how far text may go.
int Lexer::reach_locked(uint32_t state) {
  int best = -1;
  const uint32_t begin = info(state).begin, count = info(state).count;
  for (uint32_t i = begin; i < begin + count; ++i) {
    const Part part = parts_[i];
    std::optional<Regex> rest = store_.without_exceptions({part.regex});
    if (!rest) continue;
    uint32_t relaxed = intern(std::array{Part{part.lexeme, rest->index}});
    if (relaxed == kFailed) continue;
    auto [known, added] = infinite_reach_.try_emplace(relaxed & kStateMask, 0);
    if (added) {
      int reach = explore_text(relaxed & kStateMask, true);
      known = infinite_reach_.find(relaxed & kStateMask);
      known->second = reach;
    }
    best = std::max(best, known->second);
  }
  return best >= 0 ? best : explore_text(state, false);
}

int Lexer::text_reach(uint32_t state, int64_t& fuel) {
  std::atomic<int32_t>& known = info(state).reach;
  if (int32_t reach = known.load(std::memory_order_acquire); reach >= 0) return reach;
  std::lock_guard lock(mutex_);
  int64_t before = store_.work();
  int reach = reach_locked(state);
  fuel -= kFuelPerStep * (1 + store_.work() - before);
  if (!failed_) known.store(reach, std::memory_order_release);
  return reach;
}

size_t Lexer::bytes() const {
  std::lock_guard lock(mutex_);
  return store_.memory() + parts_.capacity() * sizeof(Part) + size_t{state_count_} * 48 + after_char_.size() * 80 +
         owned_.size() * (sizeof(Chunk) + kChunk * static_cast<size_t>(classes_.count) * sizeof(uint32_t)) +
         sets_.size() * 100 + lexemes_.size() * sizeof(Regex);
}

}  // namespace quire::grammar
