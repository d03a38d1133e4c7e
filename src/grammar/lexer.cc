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
constexpr uint32_t kMostRepeats = 1'000'000;

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

bool Lexer::fill_all(uint32_t state, int64_t& fuel) {
  std::atomic<bool>& filled = info(state).filled;
  if (filled.load(std::memory_order_acquire)) return true;
  std::lock_guard lock(mutex_);
  const int64_t before = store_.work();
  std::vector<Regex> regexes;
  for (uint32_t i = 0; i < info(state).count; ++i) regexes.push_back({parts_[info(state).begin + i].regex});
  const std::vector<const ByteSet*> sets = store_.first_sets(regexes);
  // By class: the sets that it is in as bits, or a number of its own if there are too many sets.
  std::vector<uint64_t> signature(first_byte_.size());
  for (size_t c = 0; c < signature.size(); ++c) {
    if (sets.size() > 64) {
      signature[c] = c;
      continue;
    }
    for (size_t i = 0; i < sets.size(); ++i) signature[c] |= uint64_t{sets[i]->has(first_byte_[c])} << i;
  }
  auto* next = const_cast<std::atomic<uint32_t>*>(transitions(state));
  std::vector<std::pair<uint64_t, uint32_t>> known;  // signature and transition
  bool good = true;
  for (size_t c = 0; c < signature.size() && good; ++c) {
    auto same = std::ranges::find(known, signature[c], &std::pair<uint64_t, uint32_t>::first);
    if (same != known.end()) {
      next[c].store(same->second, std::memory_order_release);
      continue;
    }
    const uint32_t to = fill_locked(state, static_cast<uint8_t>(c));
    good = to != kFailed;
    if (good && sets.size() <= 64) known.emplace_back(signature[c], to);
  }
  fuel -= kFuelPerStep * (1 + store_.work() - before);
  if (good) filled.store(true, std::memory_order_release);
  return good;
}

const Lexer::AfterChar& Lexer::after_one_char(uint32_t state) {
  auto [entry, added] = after_char_.try_emplace(state);
  AfterChar& result = entry->second;
  if (!added) return result;
  std::vector<std::pair<int, uint32_t>> pending = {{0, state}}, seen = pending;
  bool some = false;
  while (!pending.empty()) {
    auto [text, at] = pending.back();
    pending.pop_back();
    for (size_t c = 0; c < text_step_.size(); ++c) {
      int next_text = text_step_[c][static_cast<size_t>(text)];
      if (next_text < 0) continue;
      // Once a character leads nowhere, what is left to know is whether all first bytes do.
      if (result.allowed != AfterChar::Allowed::kAll && (some || text != 0)) break;
      uint32_t next = fill_locked(at, static_cast<uint8_t>(c));
      if (next == kDead || next == kFailed) {
        result.allowed = AfterChar::Allowed::kSome;
        some = some || next == kFailed || text != 0;
        continue;
      }
      some = true;
      if ((next & kAccepts) != 0) (next_text == 0 ? result.ends_after : result.ends_inside) = true;
      next &= kStateMask;
      if (next_text == 0) {
        result.states.push_back(next);
      } else if (std::pair to(next_text, next); std::ranges::find(seen, to) == seen.end()) {
        seen.push_back(to);
        pending.push_back(to);
      }
    }
  }
  if (!some) result.allowed = AfterChar::Allowed::kNone;
  std::ranges::sort(result.states);
  result.states.erase(std::unique(result.states.begin(), result.states.end()), result.states.end());
  return result;
}

Lexer::TextReach Lexer::explore_text(uint32_t state, bool infinite) {
  std::vector<uint32_t> frontier = {state}, seen = frontier, next;
  auto finite = [this](uint32_t at) { return !store_.infinite({parts_[info(at).begin].regex}); };
  if (infinite && finite(state)) return {};
  bool exact = !infinite;
  for (int chars = 0; chars < kMaxReach; ++chars) {
    next.clear();
    bool all = true;
    for (uint32_t from : frontier) {
      const AfterChar& after = after_one_char(from);
      all = all && after.allowed == AfterChar::Allowed::kAll;
      exact = exact && (all || after.allowed == AfterChar::Allowed::kNone);
      if (!all && !exact) return {chars};
      if (!all) continue;
      exact = exact && !after.ends_inside && !after.ends_after;
      for (uint32_t to : after.states) {
        if (std::ranges::find(seen, to) != seen.end()) {
          // Known from a shorter text, after which there is more.
          exact = exact && std::ranges::find(next, to) != next.end();
          continue;
        }
        if (infinite && finite(to)) return {chars};
        seen.push_back(to);
        next.push_back(to);
      }
    }
    // Where nothing may follow, nothing may follow any text of this length.
    if (!all) return {chars, exact && next.empty()};
    if (next.empty()) return {kAnyChars};
    if (next.size() > kMaxFrontier) return {chars + 1};
    frontier.swap(next);
  }
  return {kMaxReach};
}

std::optional<Lexer::TextReach> Lexer::reach_of_repeat(const Part& part) {
  const std::optional<RegexStore::LeadingRepeat> found = store_.leading_repeat({part.regex});
  if (!found || found->max == 0) return std::nullopt;
  const uint32_t body = intern(std::array{Part{part.lexeme, found->body.index}});
  if (body == kFailed) return std::nullopt;
  // Copies, since more states may move what is known of these.
  const AfterChar inside = after_one_char(body & kStateMask);
  if (inside.allowed != AfterChar::Allowed::kAll) return std::nullopt;
  const bool one_each = std::ranges::all_of(inside.states, [this](uint32_t state) {
    const Info& after = info(state);
    return after.count == 1 && parts_[after.begin].regex == store_.empty().index;
  });
  if (!one_each) return std::nullopt;
  TextReach reach{static_cast<int>(std::min<uint32_t>(found->max, kMostRepeats))};
  if (inside.ends_inside || reach.chars > kMaxCountedChars || store_.nullable(found->rest)) return reach;
  const uint32_t rest = intern(std::array{Part{part.lexeme, found->rest.index}});
  if (rest == kFailed) return reach;
  reach.exact = after_one_char(rest & kStateMask).allowed == AfterChar::Allowed::kNone;
  return reach;
}

// A lexeme such as "any name but these" has many states that differ in which of these names may still come. No text is
// impossible in any of them, though, since there are infinitely many names that are not excepted: the states of "any
// name" say how far text may go.
Lexer::TextReach Lexer::reach_locked(uint32_t state) {
  int best = -1;
  const uint32_t begin = info(state).begin, count = info(state).count;
  if (count == 1) {
    const Part part = parts_[begin];
    if (std::optional<TextReach> reach = reach_of_repeat(part)) return *reach;
  }
  for (uint32_t i = begin; i < begin + count; ++i) {
    const Part part = parts_[i];
    std::optional<Regex> rest = store_.without_exceptions({part.regex});
    if (!rest) continue;
    uint32_t relaxed = intern(std::array{Part{part.lexeme, rest->index}});
    if (relaxed == kFailed) continue;
    auto [known, added] = infinite_reach_.try_emplace(relaxed & kStateMask, 0);
    if (added) {
      int reach = explore_text(relaxed & kStateMask, true).chars;
      known = infinite_reach_.find(relaxed & kStateMask);
      known->second = reach;
    }
    best = std::max(best, known->second);
  }
  return best >= 0 ? TextReach{best} : explore_text(state, false);
}

Lexer::TextReach Lexer::text_reach(uint32_t state, int64_t& fuel) {
  std::atomic<int32_t>& known = info(state).reach;
  if (int32_t reach = known.load(std::memory_order_acquire); reach != -1) {
    return reach >= 0 ? TextReach{reach} : TextReach{-2 - reach, true};
  }
  std::lock_guard lock(mutex_);
  int64_t before = store_.work();
  TextReach reach = reach_locked(state);
  fuel -= kFuelPerStep * (1 + store_.work() - before);
  if (!failed_) known.store(reach.exact ? -2 - reach.chars : reach.chars, std::memory_order_release);
  return reach;
}

size_t Lexer::bytes() const {
  std::lock_guard lock(mutex_);
  const size_t of_any_grammar = sizeof(Lexer) + chunks_.size() * sizeof(chunks_[0]) +
                                text_step_.capacity() * sizeof(text_step_[0]) + size_t{1024};  // blocks of the deque
  return of_any_grammar + store_.memory() + parts_.capacity() * sizeof(Part) + size_t{state_count_} * 48 +
         after_char_.size() * 80 +
         owned_.size() * (sizeof(Chunk) + kChunk * static_cast<size_t>(classes_.count) * sizeof(uint32_t)) +
         sets_.size() * 100 + lexemes_.size() * sizeof(Regex);
}

}  // namespace quire::grammar
