// SPDX-License-Identifier: Apache-2.0
// Dummy weights: Philox words become floats, in chunks that the threads share.
#include "weights/dummy.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "base/check.h"
#include "base/half.h"
#include "base/parallel.h"
#include "base/philox.h"
#include "weights/file_sniff.h"

namespace quire::weights {
namespace {

constexpr int64_t kChunk = 1 << 16;  // elements per piece of a thread's work; a multiple of 4
constexpr int64_t kMaxBytes = int64_t{1} << 42;

// The last step of the formula in dummy.h: from v in [-1, 1) to the element.
struct Spread {
  float base;
  float scale;
};
Spread spread_of(std::string_view name, std::span<const int64_t> shape) {
  if (shape.size() >= 2) return {0.0f, static_cast<float>(std::sqrt(3.0 / static_cast<double>(shape.back())))};
  if (name.ends_with(".bias")) return {0.0f, 0.1f};
  return {1.0f, 0.1f};
}

uint64_t key_of(uint64_t seed, std::string_view name) {
  return seed ^ fnv1a64(name.data(), name.size());
}

float element(uint32_t word, Spread spread) {
  const float v = 2.0f * uniform_from_bits(word) - 1.0f;
  const float scaled = v * spread.scale;
  return spread.base == 0.0f ? scaled : spread.base + scaled;  // 0 + x would turn -0 into 0
}

// Fills a multiple of 4 elements from a multiple of 4 on, several counters side by side so that it vectorises.
void fill_aligned(uint64_t key, int64_t begin, std::span<float> values, Spread spread) {
  constexpr size_t kLanes = 64;
  size_t at = 0;
  for (; at + 4 * kLanes <= values.size(); at += 4 * kLanes) {
    const uint64_t first = (static_cast<uint64_t>(begin) + at) / 4;
    uint32_t c[4][kLanes];
    for (size_t lane = 0; lane < kLanes; ++lane) {
      c[0][lane] = static_cast<uint32_t>(first + lane);
      c[1][lane] = static_cast<uint32_t>((first + lane) >> 32);
      c[2][lane] = c[3][lane] = 0;
    }
    Philox::generate_lanes(key, c);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      for (size_t word = 0; word < 4; ++word) values[at + lane * 4 + word] = element(c[word][lane], spread);
    }
  }
  for (; at < values.size(); at += 4) {
    const Philox::Block block = Philox::generate(key, (static_cast<uint64_t>(begin) + at) / 4);
    for (size_t word = 0; word < 4; ++word) values[at + word] = element(block[word], spread);
  }
}

// Memory aligned to a cache line, freed with its last owner; null if there is not enough.
std::shared_ptr<std::byte> allocate(int64_t bytes) {
  constexpr size_t kAlign = 64;
  const size_t rounded = (static_cast<size_t>(bytes) + kAlign - 1) / kAlign * kAlign;
  return {static_cast<std::byte*>(std::aligned_alloc(kAlign, rounded)), [](std::byte* p) { std::free(p); }};
}

// One loop per type, so that the conversion vectorises.
template <uint16_t (*kConvert)(float)>
void store_16(std::span<const float> values, std::byte* dst) {
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t h = kConvert(values[i]);
    std::memcpy(dst + i * 2, &h, sizeof h);
  }
}

void store(DType type, std::span<const float> values, std::byte* dst) {
  if (type == DType::kF32) {
    std::memcpy(dst, values.data(), values.size_bytes());
  } else if (type == DType::kF16) {
    store_16<float_to_fp16>(values, dst);
  } else {
    store_16<float_to_bf16>(values, dst);
  }
}

}  // namespace

void fill_dummy(uint64_t seed, std::string_view name, std::span<const int64_t> shape, int64_t begin,
                std::span<float> values) {
  const Spread spread = spread_of(name, shape);
  fill_random({.key = key_of(seed, name), .base = spread.base, .scale = spread.scale}, begin, values);
}

void fill_random(const RandomElements& random, int64_t begin, std::span<float> values) {
  const uint64_t key = random.key;
  const Spread spread{random.base, random.scale};
  const auto one_by_one = [&](size_t from, size_t to) {
    for (size_t i = from; i < to; ++i) {
      const uint64_t index = static_cast<uint64_t>(begin) + i;
      values[i] = element(Philox::generate(key, index / 4)[index % 4], spread);
    }
  };
  const size_t head = std::min(values.size(), static_cast<size_t>((4 - begin % 4) % 4));
  const size_t whole = (values.size() - head) / 4 * 4;
  one_by_one(0, head);
  fill_aligned(key, begin + static_cast<int64_t>(head), values.subspan(head, whole), spread);
  one_by_one(head + whole, values.size());
}

DummySource::DummySource(uint64_t seed, DType type, int threads)
    : seed_(seed),
      type_(type),
      threads_(threads > 0 ? threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))) {
  QUIRE_CHECK(!is_quantised(type), "dummy weights are not quantised");
}

Result<int64_t> DummySource::bytes_of(std::string_view name, std::span<const int64_t> shape) const {
  int64_t bytes = info(type_).block_bytes;
  for (const int64_t dim : shape) {
    if (dim <= 0 || __builtin_mul_overflow(bytes, dim, &bytes) || bytes > kMaxBytes) {
      return invalid_argument({"dummy tensor ", in_quotes(name), " cannot have the shape ", shape_string(shape),
                               ": check the sizes in config.json"});
    }
  }
  return bytes;
}

Result<RandomElements> DummySource::random(std::string_view name, std::span<const int64_t> shape) const {
  QUIRE_ASSIGN(const int64_t bytes, bytes_of(name, shape));
  const Spread spread = spread_of(name, shape);
  RandomElements out{key_of(seed_, name), spread.base, spread.scale, type_};
  out.row_step = shape.empty() ? 1 : shape.back();
  out.rows = bytes / info(type_).block_bytes / out.row_step;
  return out;
}

Result<const TensorRef*> DummySource::make(std::string_view name, std::span<const int64_t> shape) const {
  QUIRE_ASSIGN(const int64_t bytes, bytes_of(name, shape));
  const std::lock_guard lock(mutex_);
  if (const auto it = made_.find(name); it != made_.end()) {
    const TensorRef& old = *it->second;
    if (std::equal(old.shape.begin(), old.shape.end(), shape.begin(), shape.end())) return it->second.get();
    return invalid_argument({"dummy tensor ", in_quotes(name), " was requested with the shape ", shape_string(shape),
                             " after ", shape_string(old.shape)});
  }
  const std::shared_ptr<std::byte> memory = allocate(bytes);
  if (memory == nullptr) {
    return exhausted({"no memory for dummy tensor ", in_quotes(name), " of ", bytes, " bytes"});
  }
  generate(name, shape, {memory.get(), static_cast<size_t>(bytes)});
  auto tensor = std::make_unique<TensorRef>(TensorRef{
      std::string(name), type_, {shape.begin(), shape.end()}, {memory.get(), static_cast<size_t>(bytes)}, memory});
  return made_.emplace(std::string(name), std::move(tensor)).first->second.get();
}

void DummySource::generate(std::string_view name, std::span<const int64_t> shape, std::span<std::byte> out) const {
  const int64_t size = info(type_).block_bytes;
  const int64_t elements = static_cast<int64_t>(out.size()) / size;
  // Less work than a few chunks is not worth a thread.
  const int64_t block = elements < 8 * kChunk ? std::max<int64_t>(elements, 1) : kChunk;
  const auto work = [&](int64_t begin, int64_t end) {
    std::vector<float> values(static_cast<size_t>(std::min(kChunk, end - begin)));
    for (int64_t at = begin; at < end; at += kChunk) {
      const std::span<float> part(values.data(), static_cast<size_t>(std::min(kChunk, end - at)));
      fill_dummy(seed_, name, shape, at, part);
      store(type_, part, out.data() + at * size);
    }
  };
  parallel_blocks(elements, block, work, threads_);
}

const TensorRef* DummySource::find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto it = made_.find(name);
  return it == made_.end() ? nullptr : it->second.get();
}

Result<const TensorRef*> DummySource::get(std::string_view name) const {
  if (const TensorRef* tensor = find(name)) return tensor;
  return not_found({"dummy tensor ", in_quotes(name), " does not exist yet: its shape is not known"});
}

std::vector<std::string> DummySource::names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> out;
  for (const auto& [name, tensor] : made_) out.push_back(name);
  return out;
}

int64_t DummySource::total_bytes() const {
  const std::lock_guard lock(mutex_);
  int64_t total = 0;
  for (const auto& [name, tensor] : made_) total += static_cast<int64_t>(tensor->data.size());
  return total;
}

std::string DummySource::describe() const {
  return "dummy weights of type " + std::string(quire::name(type_)) + ", seed " + std::to_string(seed_);
}

void DummySource::release(const TensorRef& tensor) const {
  const std::lock_guard lock(mutex_);
  const auto it = made_.find(tensor.name);
  if (it != made_.end() && it->second.get() == &tensor) made_.erase(it);
}

}  // namespace quire::weights
