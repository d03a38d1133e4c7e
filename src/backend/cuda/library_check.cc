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
// How many algorithms of a range are timed, of those whose bits are equal. They are timed in turn, twice, because the
// clock of a busy GPU drifts. F32 outputs are logits alone, so less time is spent on them.
constexpr size_t kTried = 10, kTriedF32 = 4;
constexpr int kRounds = 2, kRoundsF32 = 1;
constexpr int kLeastRuns = 4;  // of each algorithm in a round
constexpr double kMostRuns = 1000;
constexpr double kTimedSeconds = 3e-4;  // the time that a round should take
constexpr double kHopeless = 1.5;       // times the fastest so far: not timed again
// With many rows, algorithms near the fastest are timed again as parts of a graph, because the gap between two launches
// counts too. A GPU that works without a rest lowers its clock, and then a time depends on what ran before: so each
// turn follows a rest, and the median of the turns counts.
constexpr int64_t kGraphRows = 256;
constexpr size_t kFinalists = 4;
constexpr int kTurns = 3;
constexpr double kTurnSeconds = 5e-4, kMostRecorded = 32, kNear = 1.12;
constexpr std::chrono::microseconds kRest(1500);
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

bool same_bits(std::span<const std::byte> got, const std::vector<float>& expected, DType out_type) {
  if (out_type == DType::kF32) return std::memcmp(got.data(), expected.data(), got.size()) == 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const uint16_t want = rounded(out_type, expected[i]);
    if (std::memcmp(got.data() + 2 * i, &want, 2) != 0) return false;
  }
  return true;
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
  if (!done.ok()) return done.error();
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
      std::vector<float>& values = expected_[watched[i]];
      values.resize(static_cast<size_t>(shape_.n));
      std::memcpy(values.data(), got.data(), row_bytes);
    } else if (!same_bits(got, known->second, out_type)) {
      return false;
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

// The first algorithms that run and agree on all ranges.
std::vector<LtAlgo> agreeing(ProductCheck& check, Library& library, std::span<const LtAlgo> candidates,
                             std::span<const Rows> ranges, DType out_type) {
  std::vector<LtAlgo> out;
  for (const LtAlgo& algorithm : candidates) {
    const ProductFn run = with(library, algorithm);
    const bool agreed = std::all_of(ranges.begin(), ranges.end(), [&](const Rows& rows) {
      const Result<bool> agrees = check.agrees(run, rows.first, rows.count, out_type);
      return agrees.ok() && *agrees;
    });
    if (agreed) out.push_back(algorithm);
    if (out.size() == (out_type == DType::kF32 ? kTriedF32 : kTried)) break;
  }
  return out;
}

struct Timed {
  LtAlgo algorithm;
  double seconds = 0;
};

void in_order(std::vector<Timed>& all) {
  std::stable_sort(all.begin(), all.end(), [](const Timed& a, const Timed& b) { return a.seconds < b.seconds; });
}

// Orders algorithms that are about equally fast.
Status time_closely(ProductCheck& check, Library& library, std::vector<Timed>& all, int64_t rows, DType out_type) {
  const int runs = static_cast<int>(std::clamp(kTurnSeconds / all.front().seconds, 1.0, kMostRecorded));
  std::vector<std::unique_ptr<gpu::Graph>> graphs;
  for (const Timed& one : all) {
    QUIRE_ASSIGN(auto graph, check.record(with(library, one.algorithm), rows, out_type, runs));
    graphs.push_back(std::move(graph));
  }
  std::vector<std::vector<double>> turns(all.size());
  for (int turn = 0; turn <= kTurns; ++turn) {
    for (size_t i = 0; i < all.size(); ++i) {
      std::this_thread::sleep_for(kRest);
      QUIRE_ASSIGN(const double seconds, check.seconds(*graphs[i]));
      if (turn > 0) turns[i].push_back(seconds);  // the first run uploads the graph
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    std::nth_element(turns[i].begin(), turns[i].begin() + kTurns / 2, turns[i].end());
    all[i].seconds = turns[i][kTurns / 2] / runs;
  }
  in_order(all);
  return {};
}

// The fastest algorithm. All candidates give the same bits, so the choice among them may depend on a clock. Nothing if
// there are none.
Result<std::optional<LtAlgo>> fastest(ProductCheck& check, Library& library, std::span<const LtAlgo> candidates,
                                      int64_t rows, DType out_type) {
  std::vector<Timed> all;
  for (const LtAlgo& algorithm : candidates) all.push_back({algorithm});
  const bool logits = out_type == DType::kF32;
  double least = std::numeric_limits<double>::infinity();
  for (int round = 0; round < (logits ? kRoundsF32 : kRounds); ++round) {
    for (Timed& one : all) {
      if (round > 0 && one.seconds > kHopeless * least) continue;
      const ProductFn product = with(library, one.algorithm);
      QUIRE_ASSIGN(double seconds, check.seconds(product, rows, out_type, kLeastRuns));
      const int runs = static_cast<int>(std::min(kTimedSeconds / seconds, kMostRuns));
      if (runs > kLeastRuns && seconds < kHopeless * least) {
        QUIRE_ASSIGN(seconds, check.seconds(product, rows, out_type, runs));
      }
      one.seconds = round == 0 ? seconds : std::min(one.seconds, seconds);
      least = std::min(least, one.seconds);
    }
  }
  in_order(all);
  if (!logits && rows >= kGraphRows && all.size() > 1) {
    const double near = kNear * all.front().seconds;
    std::erase_if(all, [&](const Timed& one) { return one.seconds > near; });
    if (all.size() > kFinalists) all.resize(kFinalists);
    if (all.size() > 1) QUIRE_TRY(time_closely(check, library, all, rows, out_type));
  }
  return all.empty() ? std::nullopt : std::optional<LtAlgo>(all.front().algorithm);
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
            agreeing(check, library, {&known->second, 1}, ranges, out_type).empty()) {
          return std::optional<Choices>();
        }
        out.insert(*known);
        continue;
      }
      // Without a split of K, the library may propose little for one number of rows and much for the next. So its
      // proposals for both ends of the range are tried, and the algorithm of the range above.
      std::vector<LtAlgo> candidates;
      if (chosen) candidates.push_back(*chosen);
      for (const int64_t rows : {most, least}) {
        for (const LtAlgo& one : library.candidates(shape, out_type, rows, split)) {
          if (std::find(candidates.begin(), candidates.end(), one) == candidates.end()) candidates.push_back(one);
        }
      }
      candidates = agreeing(check, library, candidates, ranges, out_type);
      QUIRE_TRY(device.synchronise());
      QUIRE_ASSIGN(chosen, fastest(check, library, candidates, most, out_type));
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
