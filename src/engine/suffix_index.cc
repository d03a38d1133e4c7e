// SPDX-License-Identifier: Apache-2.0
// Places by hash chains, and the vote of the places on what follows.
#include "engine/suffix_index.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace quire::engine {
namespace {

uint64_t mixed(uint64_t hash, int32_t token) {
  hash = (hash ^ static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 32;
}

}  // namespace

// Enters the n-grams that end with the token before `place`.
void SuffixIndex::link(size_t place) {
  for (size_t i = 0; i < kNumLengths; ++i) {
    const size_t n = kLengths[i];
    uint32_t& before = before_[i][(place - 1) % capacity_];
    before = 0;
    if (place < n || !is_kept(place - n)) continue;
    uint64_t hash = 0;
    for (size_t p = place - n; p < place; ++p) hash = mixed(hash, at(p));
    uint32_t& head = heads_[i][hash & (heads_[i].size() - 1)];
    before = head;
    head = static_cast<uint32_t>(place);
  }
}

void SuffixIndex::grow() {
  const size_t size = heads_[0].empty() ? kFirstSize : 2 * heads_[0].size();
  for (std::vector<uint32_t>& heads : heads_) heads.assign(size, 0);
  for (size_t place = size_ - tokens_.size() + 1; place <= size_; ++place) link(place);
}

void SuffixIndex::append(int32_t token) {
  QUIRE_CHECK(size_ < kMaxSize);
  if (tokens_.size() < capacity_) {
    tokens_.push_back(token);
    for (std::vector<uint32_t>& before : before_) before.push_back(0);
  } else {
    tokens_[size_ % capacity_] = token;
  }
  ++size_;
  if (tokens_.size() > heads_[0].size()) return grow();
  link(size_);
}

// The most recent places that end like the context: those of the longest n-gram first, and shorter ones only if there
// are none.
std::vector<SuffixIndex::Place> SuffixIndex::find(std::span<const int32_t> context, size_t depth) const {
  std::vector<Place> places;
  for (size_t i = 0; i < kNumLengths && places.empty() && !heads_[0].empty(); ++i) {
    const size_t n = kLengths[i];
    if (context.size() < n || depth < n) continue;
    uint64_t hash = 0;
    for (const int32_t token : context.last(n)) hash = mixed(hash, token);
    size_t place = heads_[i][hash & (heads_[i].size() - 1)];
    for (size_t seen = 0; seen < kMaxPlaces && place > 0 && is_kept(place - 1); ++seen) {
      size_t length = 0;
      const size_t most = std::min({depth, context.size(), place});
      while (length < most && is_kept(place - 1 - length) &&
             at(place - 1 - length) == context[context.size() - 1 - length]) {
        ++length;
      }
      if (length >= n && place < size_ && at(place) != kEnd) places.push_back({place, length});
      place = before_[i][(place - 1) % capacity_];
    }
  }
  return places;
}

void SuffixIndex::guess(std::span<const int32_t> context, const SuffixOptions& options, int64_t most,
                        Guess& best) const {
  const auto depth = static_cast<size_t>(options.max_tree_depth);
  const std::vector<Place> places = find(context, depth);
  size_t longest = 0;
  for (const Place& place : places) longest = std::max(longest, place.length);
  // A longer context knows better what follows; a shorter one has more places, and more room for drafts.
  for (size_t length = longest; length > 0; length /= 2) {
    std::vector<size_t> next;
    for (const Place& place : places) {
      if (place.length >= length) next.push_back(place.next);
    }
    const double by_length = std::floor(options.max_spec_factor * static_cast<double>(length) + 1e-6);
    const auto room = std::min(most, static_cast<int64_t>(std::min(by_length, static_cast<double>(depth - length))));
    Guess found;
    double probability = 1;
    std::vector<std::pair<int32_t, size_t>> votes;
    while (static_cast<int64_t>(found.tokens.size()) < room && !next.empty()) {
      votes.clear();
      for (const size_t place : next) {
        const auto vote = std::ranges::find(votes, at(place), &std::pair<int32_t, size_t>::first);
        if (vote == votes.end()) {
          votes.emplace_back(at(place), 1);
        } else {
          ++vote->second;
        }
      }
      // The first one has the most recent place.
      const auto [winner, count] = *std::ranges::max_element(votes, {}, &std::pair<int32_t, size_t>::second);
      probability *= static_cast<double>(count) / static_cast<double>(next.size());
      if (winner == kEnd || probability < options.min_token_prob) break;
      found.tokens.push_back(winner);
      found.score += probability;
      std::erase_if(next, [this, token = winner](size_t place) { return at(place) != token; });
      for (size_t& place : next) ++place;
      std::erase_if(next, [&](size_t place) { return place >= size_; });
    }
    if (found.score > best.score) best = std::move(found);
  }
}

void AnswerStore::drop(const std::string& salt) {
  const auto at = salts_.find(salt);
  num_answers_ -= at->second.begins.size();
  num_tokens_ -= at->second.index.num_kept();
  used_.erase(at->second.used);
  salts_.erase(at);
}

void AnswerStore::add(const std::string& salt, std::span<const int32_t> answer) {
  if (max_answers_ == 0 || answer.empty() || salt.size() > kMaxSalt) return;
  if (answer.size() >= kMaxTokens) answer = answer.last(kMaxTokens - 1);
  if (const SuffixIndex* index = find(salt); index != nullptr && index->size() > SuffixIndex::kMaxSize - kMaxTokens) {
    drop(salt);
  }
  const auto [at, is_new] = salts_.try_emplace(salt);
  Salted& salted = at->second;
  if (!is_new) used_.erase(salted.used);
  used_.push_front(salt);
  salted.used = used_.begin();
  salted.begins.push_back(salted.index.size());
  ++num_answers_;
  num_tokens_ -= salted.index.num_kept();
  for (const int32_t token : answer) salted.index.append(token);
  salted.index.append(SuffixIndex::kEnd);
  num_tokens_ += salted.index.num_kept();
  while (used_.size() > 1 && (num_answers_ > max_answers_ || num_tokens_ > kMaxTokens)) drop(std::string(used_.back()));
  const size_t first = salted.index.size() - salted.index.num_kept();
  while (num_answers_ > max_answers_ || salted.begins.front() < first) {
    salted.begins.pop_front();
    --num_answers_;
    salted.index.forget_before(salted.begins.front());
  }
}

const SuffixIndex* AnswerStore::find(const std::string& salt) const {
  const auto at = salts_.find(salt);
  return at == salts_.end() ? nullptr : &at->second.index;
}

}  // namespace quire::engine
