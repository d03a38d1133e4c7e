// SPDX-License-Identifier: Apache-2.0
// The published algorithms: MT19937, Marsaglia-Tsang and Ahrens-Dieter gamma, PCG XSL-RR 128/64, SeedSequence.
#include "bench/python_random.h"

#include <cmath>
#include <numeric>

#include "base/check.h"

namespace quire::bench {
namespace {

int bit_length(uint64_t n) {
  int bits = 0;
  for (; n > 0; n >>= 1) ++bits;
  return bits;
}

// numpy's SeedSequence for one integer below 2^64: a pool of four mixed words, read out as 64-bit words.
std::array<uint64_t, 4> seed_sequence(uint64_t entropy) {
  constexpr size_t kPool = 4;
  uint32_t constant = 0x43b0d7e5u;
  const auto hashed = [&constant](uint32_t value) {
    value ^= constant;
    constant *= 0x931e8875u;
    value *= constant;
    return value ^ (value >> 16);
  };
  const auto mixed = [](uint32_t x, uint32_t y) {
    const uint32_t result = 0xca01f9ddu * x - 0x4973f715u * y;
    return result ^ (result >> 16);
  };
  const uint32_t words[kPool] = {static_cast<uint32_t>(entropy), static_cast<uint32_t>(entropy >> 32), 0, 0};
  uint32_t pool[kPool];
  for (size_t i = 0; i < kPool; ++i) pool[i] = hashed(words[i]);
  for (size_t from = 0; from < kPool; ++from) {
    for (size_t to = 0; to < kPool; ++to) {
      if (from != to) pool[to] = mixed(pool[to], hashed(pool[from]));
    }
  }
  std::array<uint64_t, 4> out{};
  uint32_t outward = 0x8b51f9ddu;
  for (size_t i = 0; i < 2 * out.size(); ++i) {
    uint32_t value = pool[i % kPool] ^ outward;
    outward *= 0x58f38dedu;
    value *= outward;
    value ^= value >> 16;
    out[i / 2] |= static_cast<uint64_t>(value) << (i % 2 == 0 ? 0 : 32);
  }
  return out;
}

}  // namespace

void Mt19937::seed(uint32_t word) {
  for (size_t i = 0; i < kWords; ++i) {
    state_[i] = word;
    word = 1812433253u * (word ^ (word >> 30)) + static_cast<uint32_t>(i) + 1;
  }
  index_ = kWords;
}

void Mt19937::seed(const std::vector<uint32_t>& words) {
  seed(19650218u);
  size_t i = 1, j = 0;
  for (size_t k = std::max(kWords, words.size()); k > 0; --k) {
    const uint32_t previous = state_[i - 1];
    state_[i] = (state_[i] ^ ((previous ^ (previous >> 30)) * 1664525u)) + words[j] + static_cast<uint32_t>(j);
    j = (j + 1) % words.size();
    if (++i == kWords) {
      state_[0] = state_[kWords - 1];
      i = 1;
    }
  }
  for (size_t k = kWords - 1; k > 0; --k) {
    const uint32_t previous = state_[i - 1];
    state_[i] = (state_[i] ^ ((previous ^ (previous >> 30)) * 1566083941u)) - static_cast<uint32_t>(i);
    if (++i == kWords) {
      state_[0] = state_[kWords - 1];
      i = 1;
    }
  }
  state_[0] = 0x80000000u;
  index_ = kWords;
}

uint32_t Mt19937::next() {
  if (index_ == kWords) {
    for (size_t i = 0; i < kWords; ++i) {
      const uint32_t y = (state_[i] & 0x80000000u) | (state_[(i + 1) % kWords] & 0x7fffffffu);
      state_[i] = state_[(i + 397) % kWords] ^ (y >> 1) ^ ((y & 1) != 0 ? 0x9908b0dfu : 0u);
    }
    index_ = 0;
  }
  uint32_t y = state_[index_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

double Mt19937::next_double() {
  const double a = next() >> 5;
  const double b = next() >> 6;
  return (a * 67108864.0 + b) / 9007199254740992.0;
}

PythonRandom::PythonRandom(int64_t seed) {
  const uint64_t size = seed < 0 ? 0 - static_cast<uint64_t>(seed) : static_cast<uint64_t>(seed);
  std::vector<uint32_t> words = {static_cast<uint32_t>(size)};
  if (size >> 32 != 0) words.push_back(static_cast<uint32_t>(size >> 32));
  twister_.seed(words);
}

uint64_t PythonRandom::below(uint64_t n) {
  QUIRE_CHECK(n >= 1 && n <= uint64_t{1} << 32);
  const int bits = bit_length(n);
  const auto draw = [&]() -> uint64_t {
    if (bits <= 32) return twister_.next() >> (32 - bits);
    const uint64_t low = twister_.next();
    return low | static_cast<uint64_t>(twister_.next() >> 31) << 32;
  };
  uint64_t value = draw();
  while (value >= n) value = draw();
  return value;
}

NumpyLegacy::NumpyLegacy(int64_t seed) {
  twister_.seed(static_cast<uint32_t>(seed));
}

double NumpyLegacy::standard_exponential() {
  return -std::log(1.0 - twister_.next_double());
}

double NumpyLegacy::gauss() {
  if (has_gauss_) {
    has_gauss_ = false;
    return gauss_;
  }
  double x = 0, y = 0, square = 0;
  do {
    x = 2.0 * twister_.next_double() - 1.0;
    y = 2.0 * twister_.next_double() - 1.0;
    square = x * x + y * y;
  } while (square >= 1.0 || square == 0.0);
  const double factor = std::sqrt(-2.0 * std::log(square) / square);
  gauss_ = factor * x;
  has_gauss_ = true;
  return factor * y;
}

double NumpyLegacy::standard_gamma(double shape) {
  if (shape == 1.0) return standard_exponential();
  if (shape == 0.0) return 0.0;
  if (shape < 1.0) {  // Ahrens and Dieter
    while (true) {
      const double u = twister_.next_double();
      const double v = standard_exponential();
      if (u <= 1.0 - shape) {
        const double x = std::pow(u, 1.0 / shape);
        if (x <= v) return x;
      } else {
        const double y = -std::log((1.0 - u) / shape);
        const double x = std::pow(1.0 - shape + shape * y, 1.0 / shape);
        if (x <= v + y) return x;
      }
    }
  }
  const double b = shape - 1.0 / 3.0;  // Marsaglia and Tsang
  const double c = 1.0 / std::sqrt(9.0 * b);
  while (true) {
    double x = 0, v = 0;
    do {
      x = gauss();
      v = 1.0 + c * x;
    } while (v <= 0.0);
    v = v * v * v;
    const double u = twister_.next_double();
    if (u < 1.0 - 0.0331 * (x * x) * (x * x)) return b * v;
    if (std::log(u) < 0.5 * x * x + b * (1.0 - v + std::log(v))) return b * v;
  }
}

double NumpyLegacy::gamma(double shape, double scale) {
  return scale * standard_gamma(shape);
}

uint32_t NumpyLegacy::masked(uint32_t most) {
  if (most == 0) return 0;
  uint32_t mask = most;
  for (const int shift : {1, 2, 4, 8, 16}) mask |= mask >> shift;
  uint32_t value = twister_.next() & mask;
  while (value > most) value = twister_.next() & mask;
  return value;
}

int64_t NumpyLegacy::randint(int64_t low, int64_t high) {
  QUIRE_CHECK(low < high && high - low <= int64_t{1} << 32);
  return low + static_cast<int64_t>(masked(static_cast<uint32_t>(high - low - 1)));
}

std::vector<int64_t> NumpyLegacy::choice_without_replacement(int64_t n, int64_t count) {
  QUIRE_CHECK(count <= n && n <= int64_t{1} << 32);
  std::vector<int64_t> list(static_cast<size_t>(n));
  std::iota(list.begin(), list.end(), 0);
  for (size_t i = list.size(); i-- > 1;) std::swap(list[i], list[masked(static_cast<uint32_t>(i))]);
  list.resize(static_cast<size_t>(count));
  return list;
}

NumpyGenerator::NumpyGenerator(uint64_t seed) {
  const std::array<uint64_t, 4> words = seed_sequence(seed);
  increment_ = {words[2] << 1 | words[3] >> 63, words[3] << 1 | 1};
  step();
  const uint64_t low = state_.low + words[1];
  state_.high += words[0] + (low < state_.low ? 1 : 0);
  state_.low = low;
  step();
}

// state = state * multiplier + increment, modulo 2^128.
void NumpyGenerator::step() {
  using Wide = unsigned __int128;
  constexpr uint64_t kHigh = 0x2360ed051fc65da4ull, kLow = 0x4385df649fccf645ull;
  const Wide product = static_cast<Wide>(state_.low) * kLow;
  const uint64_t high = static_cast<uint64_t>(product >> 64) + state_.high * kLow + state_.low * kHigh;
  const uint64_t low = static_cast<uint64_t>(product) + increment_.low;
  state_.high = high + increment_.high + (low < increment_.low ? 1 : 0);
  state_.low = low;
}

uint64_t NumpyGenerator::next64() {
  step();
  const uint64_t folded = state_.high ^ state_.low;
  const unsigned turn = static_cast<unsigned>(state_.high >> 58);
  return folded >> turn | folded << ((64 - turn) & 63);
}

uint32_t NumpyGenerator::next32() {
  if (has_half_) {
    has_half_ = false;
    return half_;
  }
  const uint64_t both = next64();
  half_ = static_cast<uint32_t>(both >> 32);
  has_half_ = true;
  return static_cast<uint32_t>(both);
}

// Lemire's rejection on 32-bit draws, as numpy does below 2^32.
int64_t NumpyGenerator::integers(int64_t low, int64_t high) {
  QUIRE_CHECK(low < high && high - low <= int64_t{1} << 32);
  const uint32_t span = static_cast<uint32_t>(high - low - 1);  // inclusive
  if (span == 0) return low;
  if (span == UINT32_MAX) return low + static_cast<int64_t>(next32());
  const uint32_t count = span + 1;
  uint64_t product = static_cast<uint64_t>(next32()) * count;
  if (static_cast<uint32_t>(product) < count) {
    const uint32_t threshold = (UINT32_MAX - span) % count;
    while (static_cast<uint32_t>(product) < threshold) product = static_cast<uint64_t>(next32()) * count;
  }
  return low + static_cast<int64_t>(product >> 32);
}

std::vector<int64_t> NumpyGenerator::integers(int64_t low, int64_t high, int64_t count) {
  std::vector<int64_t> out;
  out.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) out.push_back(integers(low, high));
  return out;
}

}  // namespace quire::bench
