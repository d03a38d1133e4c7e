// SPDX-License-Identifier: Apache-2.0
// The start-up check of the vendor's library.
#include "backend/cuda/library_check.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>
#include <thread>

#include "backend/gpu/linear_policy.h"
#include "base/half.h"

namespace quire::cuda {
namespace {

// Rows whose bits are compared: at both ends of tiles of 16 to 256 rows and inside them.
constexpr int64_t kWatched[] = {0, 1, 5, 15, 16, 63, 64, 130, 255, 256, 300, 511, 700, 1023, 2047, 3000, 4095};
// Numbers of rows that reach every one of quire's own kernels, up to the most that one serves beside the library.
constexpr int64_t kReferenceRows[] = {1, 2, 7, 16, 17, 33, 64, 128, 160, gpu::kHopperTallRows};
// How many of a range's algorithms are timed: fewer where a product takes long, because there the same ones win again
// and again, and in F32, which is for logits alone. A weight with so many outputs is an LM head, whose results are
// never in 16 bits: the first algorithm will do.
constexpr size_t kTried = 10, kTriedMany = 6, kTriedF32 = 4;
constexpr int64_t kManyRows = 1024, kVocabulary = 65536;
// They are timed in turn, because the clock of a busy GPU drifts: all once, and those near the fastest again.
constexpr double kTimedSeconds = 3e-4;  // the time that a turn should take
constexpr double kMostRuns = 1000;
constexpr double kNear = 1.12;  // times the fastest: may still be the fastest
// With many rows, they are timed again as parts of a graph, because the gap between two launches counts too. A GPU that
// works without a rest lowers its clock, and then a time depends on what ran before: so each turn follows a rest, and
// the median of the turns counts. After the second turn, those that are clearly behind in both are left out.
constexpr int64_t kGraphRows = 256;
constexpr size_t kFinalists = 3;
constexpr int kTurns = 3;
constexpr double kTurnSeconds = 4e-4, kMostRecorded = 32, kBehind = 1.03;
constexpr std::chrono::microseconds kRest(1000);
constexpr int64_t kWalkBytes = 128 << 20;  // copies of the weight that are used in turn: more than a cache holds
constexpr int64_t kMostCopies = 48;
constexpr int64_t kFreshElements = 1 << 20;  // random elements that the host makes; after them rows repeat

uint16_t random_value(DType type, uint64_t index, uint64_t seed) {
  uint64_t z = (index + 1) * 0x9e3779b97f4a7c15u + seed * 0xd1342543de82ef95u;
  z = (z ^ (z >> 32)) * 0xd6e8feb86659fd93u;
  z = (z ^ (z >> 29)) * 0xaf251af3b0f025b5u;
  const auto bits = static_cast<int32_t>((z >> 40) & 0xffff) - 32768;
  const float value = static_cast<float>(bits) * 0x1p-15f;
  return type == DType::kBF16 ? float_to_bf16(value) : float_to_fp16(value);
}

uint16_t rounded(DType type, float value) {
  return type == DType::kBF16 ? float_to_bf16(value) : float_to_fp16(value);
}

}  // namespace

Result<ProductCheck> ProductCheck::make(gpu::Device& device, const ProductShape& shape, int64_t most_rows) {
  ProductCheck out(device, shape, most_rows);
  const int64_t element = info(shape.type).block_bytes;
  QUIRE_ASSIGN(out.x_, device.allocate(static_cast<size_t>(most_rows * shape.k * element)));
  const int64_t weight_bytes = shape.n * shape.k * element;
  out.copies_ = std::clamp<int64_t>(kWalkBytes / weight_bytes + 1, 1, kMostCopies);
  QUIRE_ASSIGN(out.w_, device.allocate(static_cast<size_t>(out.copies_ * weight_bytes)));
  QUIRE_ASSIGN(out.y_, device.allocate(static_cast<size_t>(most_rows * shape.n) * sizeof(float)));
  QUIRE_ASSIGN(out.watched_, device.allocate_host(std::size(kWatched) * static_cast<size_t>(shape.n) * sizeof(float)));
  QUIRE_TRY(out.fill(out.x_->address(), most_rows, 1, 1));
  QUIRE_TRY(out.fill(out.w_->address(), shape.n, 2, -1));
  for (int64_t i = 1; i < out.copies_; ++i) {
    device.copy(static_cast<std::byte*>(out.w_->address()) + i * weight_bytes, out.w_->address(),
                static_cast<size_t>(weight_bytes));
  }
  return out;
}

// Fills in rows whose second half is `sign` times the first half (in a weight, every other row). Where x repeats and w
// changes its sign, only the rounding errors of a sum are left, so another order of sums shows in 16 bits too.
Status ProductCheck::fill(void* to, int64_t rows, uint64_t seed, int sign) {
  const int64_t k = shape_.k, fresh = std::min(rows, std::max<int64_t>(1, kFreshElements / k) | 1);
  std::vector<uint16_t> values(static_cast<size_t>(fresh * k));
  for (int64_t row = 0; row < fresh; ++row) {
    uint16_t* at = values.data() + row * k;
    const bool mirrored = sign > 0 || (sign < 0 && row % 2 == 1);
    for (int64_t j = 0; j < k; ++j) {
      const uint16_t flip = sign < 0 ? 0x8000 : 0;
      at[j] = mirrored && j >= k / 2 ? at[j - k / 2] ^ flip
                                     : random_value(shape_.type, static_cast<uint64_t>(row * k + j), seed);
    }
  }
  device_->upload(to, values.data(), 2 * values.size());
  auto* bytes = static_cast<std::byte*>(to);
  for (int64_t done = fresh; done < rows;) {  // each copy doubles what is there
    const int64_t part = std::min(done, rows - done);
    device_->copy(bytes + 2 * done * k, bytes, static_cast<size_t>(2 * part * k));
    done += part;
  }
  return device_->synchronise();
}

gpu::LibraryProduct ProductCheck::of_rows(int64_t first, int64_t rows, DType out_type) const {
  return {.x = static_cast<const std::byte*>(x_->address()) + first * shape_.k * info(shape_.type).block_bytes,
          .w = w_->address(),
          .y = y_->address(),
          .type = shape_.type,
          .out_type = out_type,
          .m = rows,
          .n = shape_.n,
          .k = shape_.k,
          .x_stride = shape_.k,
          .y_stride = shape_.n};
}

// As in a model, each run reads a weight that no cache holds.
Status ProductCheck::run(const ProductFn& product, int64_t rows, DType out_type, int runs) {
  for (int i = 0; i < runs; ++i) {
    gpu::LibraryProduct p = of_rows(0, rows, out_type);
    p.w = static_cast<const std::byte*>(p.w) + i % copies_ * shape_.n * shape_.k * info(shape_.type).block_bytes;
    QUIRE_TRY(product(p));
  }
  return {};
}

Result<double> ProductCheck::seconds(const ProductFn& product, int64_t rows, DType out_type, int runs) {
  QUIRE_TRY(device_->synchronise());
  const auto start = std::chrono::steady_clock::now();
  QUIRE_TRY(run(product, rows, out_type, runs));
  QUIRE_TRY(device_->synchronise());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / runs;
}

Result<std::unique_ptr<gpu::Graph>> ProductCheck::record(const ProductFn& product, int64_t rows, DType out_type,
                                                         int runs) {
  device_->begin_recording();
  const Status done = run(product, rows, out_type, runs);
  auto graph = device_->end_recording();
  if (!done.ok()) return done.failure();
  return graph;
}

Result<double> ProductCheck::seconds(const gpu::Graph& graph) {
  QUIRE_TRY(device_->synchronise());
  const auto start = std::chrono::steady_clock::now();
  device_->run(graph);
  QUIRE_TRY(device_->synchronise());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Result<bool> ProductCheck::agrees(const ProductFn& product, int64_t first, int64_t rows, DType out_type) {
  QUIRE_CHECK(first >= 0 && first + rows <= most_rows_);
  const size_t row_bytes = static_cast<size_t>(shape_.n * info(out_type).block_bytes);
  device_->fill(y_->address(), 0xff, row_bytes * static_cast<size_t>(rows));
  QUIRE_TRY(product(of_rows(first, rows, out_type)));
  std::vector<int64_t> watched;
  for (const int64_t row : kWatched) {
    if (row >= first && row < first + rows) watched.push_back(row);
  }
  auto* const all = static_cast<std::byte*>(watched_->address());
  for (size_t i = 0; i < watched.size(); ++i) {
    const auto* from =
        static_cast<const std::byte*>(y_->address()) + static_cast<size_t>(watched[i] - first) * row_bytes;
    device_->download(all + i * row_bytes, from, row_bytes);
  }
  QUIRE_TRY(device_->synchronise());
  for (size_t i = 0; i < watched.size(); ++i) {
    const std::span<const std::byte> got(all + i * row_bytes, row_bytes);
    const auto known = expected_.find(watched[i]);
    if (known == expected_.end()) {
      QUIRE_CHECK(out_type == DType::kF32, "the first product that computes a row does so in F32");
      Expected& row = expected_[watched[i]];
      row.floats.resize(static_cast<size_t>(shape_.n));
      std::memcpy(row.floats.data(), got.data(), row_bytes);
      for (const float value : row.floats) row.halves.push_back(rounded(shape_.type, value));
    } else {
      const Expected& row = known->second;
      const void* const want =
          out_type == DType::kF32 ? static_cast<const void*>(row.floats.data()) : row.halves.data();
      if (std::memcmp(got.data(), want, row_bytes) != 0) return false;
    }
  }
  return true;
}

namespace {

// Whether `reference` agrees for few rows at both ends.
Result<bool> reference_agrees(ProductCheck& check, const ProductShape& shape, const ProductFn& reference) {
  for (const DType out_type : {DType::kF32, shape.type}) {
    for (const int64_t rows : kReferenceRows) {
      for (const int64_t first : {int64_t{0}, check.most_rows() - rows}) {
        QUIRE_ASSIGN(const bool equal, check.agrees(reference, first, rows, out_type));
        if (!equal) return false;
      }
    }
  }
  return true;
}

struct Rows {
  int64_t first, count;
};

ProductFn with(Library& library, const LtAlgo& algorithm) {
  return [&library, algorithm](const gpu::LibraryProduct& product) { return library.run(product, algorithm); };
}

// Whether an algorithm runs and agrees on all ranges.
bool agrees(ProductCheck& check, Library& library, const LtAlgo& algorithm, std::span<const Rows> ranges,
            DType out_type) {
  const ProductFn run = with(library, algorithm);
  return std::all_of(ranges.begin(), ranges.end(), [&](const Rows& rows) {
    const Result<bool> equal = check.agrees(run, rows.first, rows.count, out_type);
    return equal.ok() && *equal;
  });
}

struct Timed {
  LtAlgo algorithm;
  double seconds = 0;
};

void in_order(std::vector<Timed>& all) {
  std::stable_sort(all.begin(), all.end(), [](const Timed& a, const Timed& b) { return a.seconds < b.seconds; });
}

// Orders algorithms that are about equally fast.
Status time_closely(ProductCheck& check, Library& library, std::span<Timed> all, int64_t rows, DType out_type) {
  const int runs = static_cast<int>(std::clamp(kTurnSeconds / all.front().seconds, 1.0, kMostRecorded));
  struct Finalist {
    std::unique_ptr<gpu::Graph> graph;
    std::vector<double> turns = {};
    bool behind = false;
  };
  std::vector<Finalist> finalists;
  for (const Timed& one : all) {
    QUIRE_ASSIGN(auto graph, check.record(with(library, one.algorithm), rows, out_type, runs));
    finalists.push_back({std::move(graph)});
    QUIRE_ASSIGN(const double uploaded, check.seconds(*finalists.back().graph));
    static_cast<void>(uploaded);  // the first run uploads the graph
  }
  for (int turn = 0; turn < kTurns; ++turn) {
    for (Finalist& one : finalists) {
      if (one.behind) continue;
      std::this_thread::sleep_for(kRest);
      QUIRE_ASSIGN(const double seconds, check.seconds(*one.graph));
      one.turns.push_back(seconds);
    }
    if (turn != 1) continue;
    double least = std::numeric_limits<double>::infinity();
    for (const Finalist& one : finalists)
      least = std::min(least, *std::max_element(one.turns.begin(), one.turns.end()));
    for (Finalist& one : finalists)
      one.behind = *std::min_element(one.turns.begin(), one.turns.end()) > kBehind * least;
  }
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<double>& turns = finalists[i].turns;  // of two, the median is the longer one
    std::nth_element(turns.begin(), turns.begin() + kTurns / 2, turns.end());
    all[i].seconds = turns[kTurns / 2] / runs;
  }
  return {};
}

// The algorithms that run, the fastest first. Whether their bits are equal is not known yet.
Result<std::vector<Timed>> by_speed(ProductCheck& check, Library& library, std::span<const LtAlgo> candidates,
                                    int64_t rows, DType out_type) {
  std::vector<Timed> all;
  if (candidates.size() == 1) return std::vector<Timed>{{candidates.front()}};
  double least = std::numeric_limits<double>::infinity();
  const auto turn = [&](Timed& one, double known) -> Result<double> {
    const int runs = static_cast<int>(std::clamp(kTimedSeconds / known, 1.0, kMostRuns));
    return check.seconds(with(library, one.algorithm), rows, out_type, runs);
  };
  for (const LtAlgo& algorithm : candidates) {
    Timed one{algorithm};
    const Result<double> first = check.seconds(with(library, algorithm), rows, out_type, 1);  // may load its code
    if (!first.ok()) continue;                                                                // it does not run
    const Result<double> second = check.seconds(with(library, algorithm), rows, out_type, 1);
    if (!second.ok()) continue;
    one.seconds = *second;
    if (one.seconds < 2 * least && one.seconds < kTimedSeconds) {  // one short run says little
      QUIRE_ASSIGN(one.seconds, turn(one, one.seconds));
    }
    least = std::min(least, one.seconds);
    all.push_back(one);
  }
  in_order(all);
  const auto near = [&] {
    const auto is_near = [&](const Timed& one) { return one.seconds <= kNear * all.front().seconds; };
    return static_cast<size_t>(std::find_if_not(all.begin(), all.end(), is_near) - all.begin());
  };
  if (out_type == DType::kF32 || all.size() < 2 || near() < 2) return all;
  for (Timed& one : std::span(all).first(near())) {
    QUIRE_ASSIGN(const double seconds, turn(one, one.seconds));
    one.seconds = std::min(one.seconds, seconds);
  }
  in_order(all);
  const size_t finalists = std::min(near(), kFinalists);
  if (rows < kGraphRows || finalists < 2) return all;
  const auto last = std::span(all).first(finalists);
  QUIRE_TRY(time_closely(check, library, last, rows, out_type));
  std::stable_sort(last.begin(), last.end(), [](const Timed& a, const Timed& b) { return a.seconds < b.seconds; });
  return all;
}

// The fastest of the first algorithms whose bits are equal; nothing if there is none. All that agree give the same
// bits, so the choice among them may depend on a clock.
Result<std::optional<LtAlgo>> fastest(ProductCheck& check, Library& library, std::span<const LtAlgo> candidates,
                                      std::span<const Rows> ranges, int64_t rows, int64_t outputs, DType out_type) {
  const bool vocabulary = outputs >= kVocabulary, logits = out_type == DType::kF32;
  const size_t most = logits ? kTriedF32 : vocabulary ? 1 : rows > kManyRows ? kTriedMany : kTried;
  for (std::span<const LtAlgo> left = candidates; !left.empty();) {
    const auto some = left.first(std::min(left.size(), most));
    left = left.subspan(some.size());
    QUIRE_ASSIGN(const std::vector<Timed> ordered, by_speed(check, library, some, rows, out_type));
    for (const Timed& one : ordered) {
      if (agrees(check, library, one.algorithm, ranges, out_type)) return std::optional<LtAlgo>(one.algorithm);
    }
  }
  return std::optional<LtAlgo>();
}

// The library's first proposals. Without a split of K, it may propose little for one number of rows and much for the
// next; so those for the other end of the range follow where there are few, and the algorithm of the range above.
std::vector<LtAlgo> proposals(Library& library, const ProductShape& shape, DType out_type, int64_t most, int64_t least,
                              int split, const std::optional<LtAlgo>& above) {
  std::vector<LtAlgo> out;
  if (above) out.push_back(*above);
  for (const int64_t rows : {most, least}) {
    if (rows == least && out.size() >= kTried) break;
    for (const LtAlgo& one : library.candidates(shape, out_type, rows, split)) {
      if (std::find(out.begin(), out.end(), one) == out.end()) out.push_back(one);
    }
  }
  return out;
}

// An algorithm for each range of rows and both output types: that of `before`, or else the fastest. Nothing if some
// range has none.
Result<std::optional<Choices>> choose_all(gpu::Device& device, Library& library, const ProductShape& shape, int split,
                                          const ProductFn& reference, const Choices* before) {
  Choices out;
  QUIRE_ASSIGN(ProductCheck check, ProductCheck::make(device, shape, most_rows(shape)));
  if (reference != nullptr) {
    QUIRE_ASSIGN(const bool itself, reference_agrees(check, shape, reference));
    if (!itself) return std::optional<Choices>();
  }
  // The most rows first: they set what is expected of every watched row that was not computed yet.
  std::vector<int64_t> steps(kRowSteps.begin(), kRowSteps.end());
  std::erase_if(steps, [&](int64_t step) { return step > check.most_rows(); });
  for (const DType out_type : {DType::kF32, shape.type}) {
    std::optional<LtAlgo> chosen;
    for (size_t i = steps.size(); i-- > 0;) {
      // All rows of the range from the first on; the fewest that it serves, at the end and around a middle row.
      const int64_t most = steps[i], least = i == 0 ? 1 : steps[i - 1] + 1, last = check.most_rows() - least;
      const Rows ranges[] = {{0, most}, {last, least}, {std::min<int64_t>(255, last), least}};
      if (before != nullptr) {
        const auto known = before->find({out_type, most});
        if (known == before->end() || !library.has(shape, out_type, most, known->second) ||
            !agrees(check, library, known->second, ranges, out_type)) {
          return std::optional<Choices>();
        }
        out.insert(*known);
        continue;
      }
      const std::vector<LtAlgo> candidates = proposals(library, shape, out_type, most, least, split, chosen);
      if (out_type == DType::kF32 && i + 1 == steps.size()) {
        // The first that runs sets what is expected of rows that no reference computed.
        (void)std::any_of(candidates.begin(), candidates.end(),
                          [&](const LtAlgo& one) { return check.agrees(with(library, one), 0, most, out_type).ok(); });
      }
      QUIRE_ASSIGN(chosen, fastest(check, library, candidates, ranges, most, shape.n, out_type));
      QUIRE_TRY(device.synchronise());
      if (!chosen) return std::optional<Choices>();
      out[{out_type, most}] = *chosen;
    }
  }
  return std::optional<Choices>(std::move(out));
}

}  // namespace

Result<bool> choose_algorithms(gpu::Device& device, Library& library, const ProductShape& shape, int split,
                               const ProductFn& reference, ChoiceFile& known) {
  std::optional<Choices> chosen;
  const std::optional<Choices> before = known.find(shape);
  if (before) {
    QUIRE_ASSIGN(chosen, choose_all(device, library, shape, split, reference, &*before));
  }
  if (!chosen) {
    QUIRE_ASSIGN(chosen, choose_all(device, library, shape, split, reference, nullptr));
    if (!chosen) return false;
    known.keep(shape, *chosen);
  }
  for (const auto& [key, algorithm] : *chosen) library.choose(shape, key.first, key.second, algorithm);
  return true;
}

Result<bool> check_equal(gpu::Device& device, const ProductShape& shape, const ProductFn& reference) {
  QUIRE_CHECK(device.library_serves(shape.type, shape.n, shape.k), "there is nothing to compare with");
  const int64_t most = *std::max_element(std::begin(kReferenceRows), std::end(kReferenceRows));
  QUIRE_ASSIGN(ProductCheck check, ProductCheck::make(device, shape, most));
  const ProductFn library = [&](const gpu::LibraryProduct& product) -> Status {
    device.library_product(product);
    return {};
  };
  for (const DType out_type : {DType::kF32, shape.type}) {
    QUIRE_ASSIGN(const bool itself, check.agrees(library, 0, most, out_type));
    if (!itself) return false;
  }
  return reference_agrees(check, shape, reference);
}

}  // namespace quire::cuda
