// SPDX-License-Identifier: Apache-2.0
// The random generators of CPython and numpy, bit for bit, so that a seed gives the same samples and arrival times here
// as in vLLM's client.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace quire::bench {

// The Mersenne Twister that both use. A plain value; used by one thread.
class Mt19937 {
 public:
  // numpy.random.seed: one 32-bit word.
  void seed(uint32_t word);
  // random.seed: an integer as a list of 32-bit words, lowest first.
  void seed(const std::vector<uint32_t>& words);
  uint32_t next();
  // [0, 1) with 53 bits from two draws, as in both libraries.
  double next_double();

 private:
  static constexpr size_t kWords = 624;
  std::array<uint32_t, kWords> state_{};
  size_t index_ = kWords;
};

// random.Random(seed). As in CPython, a negative seed is the same as its absolute value.
class PythonRandom {
 public:
  explicit PythonRandom(int64_t seed);
  uint64_t below(uint64_t n);  // _randbelow: uniform in [0, n), n from 1 to 2^32
  double random() { return twister_.next_double(); }
  template <typename T>
  void shuffle(std::vector<T>& list) {
    for (size_t i = list.size(); i-- > 1;) std::swap(list[i], list[below(i + 1)]);
  }
  template <typename T>
  const T& choice(const std::vector<T>& list) {
    return list[below(list.size())];
  }
  // One index of random.choices(range(n), k=...).
  size_t choices_index(size_t n) { return static_cast<size_t>(random() * static_cast<double>(n)); }

 private:
  Mt19937 twister_;
};

// numpy.random.RandomState(seed), the legacy generator that numpy.random.seed sets, too.
class NumpyLegacy {
 public:
  explicit NumpyLegacy(int64_t seed);
  double gamma(double shape, double scale);
  int64_t randint(int64_t low, int64_t high);  // [low, high), high - low up to 2^32
  // The first `count` of permutation(n): choice(n, count, replace=False).
  std::vector<int64_t> choice_without_replacement(int64_t n, int64_t count);

 private:
  double standard_exponential();
  double gauss();
  double standard_gamma(double shape);
  uint32_t masked(uint32_t most);  // uniform in [0, most]

  Mt19937 twister_;
  bool has_gauss_ = false;
  double gauss_ = 0;
};

// numpy.random.default_rng(seed): PCG64 seeded through SeedSequence.
class NumpyGenerator {
 public:
  explicit NumpyGenerator(uint64_t seed);
  // integers(low, high): [low, high), high - low up to 2^32.
  int64_t integers(int64_t low, int64_t high);
  std::vector<int64_t> integers(int64_t low, int64_t high, int64_t count);

 private:
  struct Word128 {
    uint64_t high = 0, low = 0;
  };
  uint64_t next64();
  uint32_t next32();
  void step();

  Word128 state_, increment_;
  bool has_half_ = false;
  uint32_t half_ = 0;
};

}  // namespace quire::bench
