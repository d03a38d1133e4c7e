// SPDX-License-Identifier: Apache-2.0
// gated_delta_net, mamba2 and short_conv on a GPU: near the oracle's values for all types, and the same bits whatever
// the chunks, the batch, the pages and the order of lanes are.
#include <algorithm>
#include <cmath>

#include "backend/gpu/test_device.h"
#include "backend/testing/recurrent_cases.h"
#include "base/test_sanitized.h"

namespace quire::gpu {
namespace {

using cases::Chunk;
using cases::RecurrentCase;
using cases::RecurrentLayer;
using cases::Truth;

// The inputs of a step, as a device's matrix.
HostMatrix rows_of(const RecurrentLayer& layer, const Truth& truth, DType type, const std::vector<Chunk>& chunks) {
  int64_t count = 0;
  for (const Chunk& c : chunks) count += c.end - c.begin;
  HostMatrix out(count, layer.in_cols, type, 1);
  int64_t row = 0;
  for (const Chunk& c : chunks) {
    for (int64_t t = c.begin; t < c.end; ++t, ++row) {
      const float* in = truth.sequences[c.sequence].in.data() + t * layer.in_cols;
      for (int64_t i = 0; i < layer.in_cols; ++i) out.at(row, i) = in[i];
    }
  }
  return out;
}

struct Spans {
  explicit Spans(const std::vector<Chunk>& chunks) {
    for (const Chunk& c : chunks) {
      cu.push_back(cu.back() + static_cast<int32_t>(c.end - c.begin));
      source.push_back(c.source);
      destination.push_back(c.destination);
      lengths.push_back(static_cast<int32_t>(c.end));
    }
    rows = cases::row_destinations(chunks);
  }
  std::vector<int32_t> cu = {0}, source, destination, lengths, rows;
};

// Outputs of all tokens and the state after each, of one sequence from its beginning, token by token.
struct Trail {
  std::vector<std::vector<uint8_t>> outputs;  // [tokens]
  std::vector<std::vector<float>> states;     // [tokens + 1]
};

// The pages of a layer on a device, filled with NaN, each with room after its state; and steps over them.
class Pages {
 public:
  Pages(TestDevice& device, const RecurrentLayer& layer, const Truth& truth, DType type, int64_t count)
      : device_(device),
        layer_(layer),
        truth_(truth),
        type_(type),
        // Hopper's kernel for decode needs states on 16 bytes.
        stride_(layer.page_floats() + (layer.page_floats() % 4 == 0 ? 4 : 3)),
        host_(static_cast<size_t>(count * stride_), std::nanf("")) {
    pages_ = device.put(host_);
    place_ = [this](const std::vector<float>& values) -> const float* {
      if (values.empty()) return nullptr;
      auto found = placed_.find(&values);
      if (found == placed_.end()) found = placed_.emplace(&values, device_.put(values)).first;
      return found->second;
    };
  }
  ~Pages() { device_.clear(); }

  // The outputs of the step, row by row.
  std::vector<std::vector<uint8_t>> step(const std::vector<Chunk>& chunks) {
    const HostMatrix in = rows_of(layer_, truth_, type_, chunks);
    const Spans s(chunks);
    const Tensor out = device_.room(in.rows, layer_.out_cols, type_);
    layer_.run(device_.ops(), place_,
               {device_.put(in),
                {pages_, stride_ * 4, static_cast<int64_t>(host_.size()) / stride_},
                {{device_.put(s.cu), s.cu.size()},
                 {device_.put(s.source), s.source.size()},
                 {device_.put(s.destination), s.destination.size()},
                 {s.rows.empty() ? nullptr : device_.put(s.rows), s.rows.size()},
                 {device_.put(s.lengths), s.lengths.size()}},
                out});
    const std::vector<uint8_t> all = device_.rows_of(out);
    std::vector<std::vector<uint8_t>> rows;
    const auto bytes = static_cast<ptrdiff_t>(layer_.out_cols * info(type_).block_bytes);
    for (auto at = all.begin(); at != all.end(); at += bytes) rows.emplace_back(at, at + bytes);
    return rows;
  }

  std::vector<float> page(int32_t index) {
    const auto bytes = device_.get(pages_ + index * stride_, static_cast<size_t>(layer_.page_floats()) * 4);
    std::vector<float> out(static_cast<size_t>(layer_.page_floats()));
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }

  // Runs a step that must give what the trails say, and change no page but its destinations.
  void expect(const std::vector<Chunk>& chunks, const std::vector<Trail>& trails, const std::string& what) {
    const std::vector<std::vector<uint8_t>> rows = step(chunks);
    size_t row = 0;
    for (const Chunk& c : chunks) {
      const Trail& trail = trails[c.sequence];
      for (int64_t t = c.begin; t < c.end; ++t, ++row) {
        ASSERT_EQ(rows[row], trail.outputs[static_cast<size_t>(t)])
            << layer_.name << ", " << what << ": sequence " << c.sequence << " token " << t;
      }
      want(c.destination, trail, c.end);
      for (size_t t = 0; t + 1 < c.rows.size(); ++t) {
        if (c.rows[t] >= 0) want(c.rows[t], trail, c.begin + static_cast<int64_t>(t) + 1);
      }
    }
    const std::vector<uint8_t> bytes = device_.get(pages_, host_.size() * sizeof(float));
    for (size_t i = 0; i < host_.size(); ++i) {
      ASSERT_EQ(std::memcmp(&host_[i], bytes.data() + 4 * i, 4), 0)
          << layer_.name << ", " << what << ": page " << i / static_cast<size_t>(stride_) << " float "
          << i % static_cast<size_t>(stride_);
    }
  }

 private:
  // A page has the state after so many tokens; what a state leaves undefined may be anything.
  void want(int32_t page, const Trail& trail, int64_t tokens) {
    float* to = host_.data() + page * stride_;
    const std::vector<float>& state = trail.states[static_cast<size_t>(tokens)];
    const std::vector<float> now = layer_.chunked() ? this->page(page) : state;
    std::copy(now.begin(), now.end(), to);
    for (const auto& [begin, end] : layer_.defined(tokens)) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) to[i] = state[i];
    }
  }

  TestDevice& device_;
  const RecurrentLayer& layer_;
  const Truth& truth_;
  DType type_;
  int64_t stride_;  // floats
  std::vector<float> host_;
  float* pages_ = nullptr;
  std::map<const std::vector<float>*, const float*> placed_;
  cases::PlaceFloats place_;
};

Trail gpu_trail(const RecurrentLayer& layer, const Truth& truth, DType type, size_t sequence) {
  Pages pages(test_device(), layer, truth, type, 1);
  Trail trail;
  trail.states.emplace_back(static_cast<size_t>(layer.page_floats()));
  for (int64_t t = 0; t < truth.length(sequence); ++t) {
    trail.outputs.push_back(pages.step({{sequence, t, t + 1, t == 0 ? -1 : 0, 0}}).front());
    trail.states.push_back(pages.page(0));
  }
  return trail;
}

// A sum of up to 256 products and a decayed past: some hundred roundings of the largest value, and one of the output.
void expect_near(std::span<const float> got, std::span<const float> want, DType type, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 0;
  for (const float x : want) largest = std::max(largest, std::fabs(double{x}));
  for (size_t i = 0; i < got.size(); ++i) {
    const double bound = std::fabs(double{want[i]}) * 1.01 * rounding(type) + largest * 300 * 0x1p-24 + 0x1p-25;
    ASSERT_NEAR(double{got[i]}, double{want[i]}, bound) << what << ": " << i;
  }
}

// Chunks round q, k and values to the type of activations, so their outputs are compared with the textbook.
void expect_near_textbook(const RecurrentLayer& layer, const Truth& truth, const std::vector<Trail>& trails,
                          DType type) {
  double largest = 0, error = 0, squares = 0, all = 0;
  for (size_t s = 0; s < trails.size(); ++s) {
    const std::vector<double> want = layer.exact(truth.sequences[s].in);
    for (size_t t = 0; t < trails[s].outputs.size(); ++t) {
      const std::vector<float> got = floats_of(trails[s].outputs[t], type);
      for (size_t i = 0; i < got.size(); ++i) {
        const double exact = want[t * got.size() + i], off = double{got[i]} - exact;
        largest = std::max(largest, std::fabs(exact));
        error = std::max(error, std::fabs(off));
        squares += off * off;
        all += exact * exact;
      }
    }
  }
  EXPECT_LE(error, 2 * largest * rounding(type)) << layer.name;
  EXPECT_LE(std::sqrt(squares / all), rounding(type)) << layer.name;
}

// `steps` random steps of at most `most` tokens a sequence, besides those with drafts.
void check_layer(const RecurrentLayer& layer, const std::vector<int64_t>& lengths, DType type, int steps = 12,
                 uint32_t most = 14) {
  const Truth truth(layer, lengths, type);
  const std::string what = name(type);
  const size_t count = lengths.size();
  std::vector<Trail> trails;
  for (size_t s = 0; s < count; ++s) {
    trails.push_back(gpu_trail(layer, truth, type, s));
    const Truth::Sequence& oracle = truth.sequences[s];
    for (size_t t = 0; t < trails[s].outputs.size() && !layer.chunked(); ++t) {
      const std::string at =
          layer.name + ", " + what + ", sequence " + std::to_string(s) + " token " + std::to_string(t);
      const auto cols = static_cast<size_t>(layer.out_cols);
      ASSERT_NO_FATAL_FAILURE(
          expect_near(floats_of(trails[s].outputs[t], type), std::span(oracle.out).subspan(t * cols, cols), type, at));
      ASSERT_NO_FATAL_FAILURE(expect_near(trails[s].states[t + 1], oracle.states[t + 1], DType::kF32, at + ", state"));
    }
  }
  if (layer.chunked()) expect_near_textbook(layer, truth, trails, type);
  for (int order = 0; order < kDevices; ++order) {
    Pages pages(test_device(order), layer, truth, type, 4);
    std::vector<Chunk> chunks;
    for (size_t s = 0; s < count; ++s) chunks.push_back({s, 0, lengths[s], -1, static_cast<int32_t>(s)});
    ASSERT_NO_FATAL_FAILURE(pages.expect(chunks, trails, what + ", all at once, order " + std::to_string(order)));
  }
  Pages pages(test_device(), layer, truth, type, 12);
  int step = 0;
  for (const std::vector<Chunk>& chunks : cases::random_steps(lengths, trials(steps), most)) {
    ASSERT_NO_FATAL_FAILURE(pages.expect(chunks, trails, what + ", random step " + std::to_string(step++)));
  }
  Pages kept(test_device(), layer, truth, type, 18);
  step = 0;
  for (const std::vector<Chunk>& chunks : cases::draft_steps(lengths, trials(steps))) {
    ASSERT_NO_FATAL_FAILURE(kept.expect(chunks, trails, what + ", step with drafts " + std::to_string(step++)));
  }
}

TEST(GpuRecurrentOps, HaveTheSameBitsInAnyChunksAndAreNearTheOracle) {
  for (const RecurrentCase& c : cases::recurrent_cases()) {
    if (!c.gpu) continue;
    std::vector<int64_t> lengths = c.lengths;
    for (int64_t& length : lengths) length = std::min<int64_t>(length, 20);  // the emulator is slow
    ASSERT_NO_FATAL_FAILURE(check_layer(*c.layer, lengths, *c.gpu));
  }
}

TEST(GpuRecurrentOps, HaveTheSameBitsInChunksForAnyCut) {
  for (const RecurrentCase& c : cases::chunk_cases()) {
    ASSERT_NO_FATAL_FAILURE(check_layer(*c.layer, c.lengths, *c.gpu, 30, 40));
  }
}

}  // namespace
}  // namespace quire::gpu
