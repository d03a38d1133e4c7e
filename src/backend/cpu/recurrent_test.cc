// SPDX-License-Identifier: Apache-2.0
// gated_delta_net, mamba2 and short_conv: the contract in scalar floats by bits on every ISA level, whatever the
// chunks, the batch, the threads and the pages are; and the textbook recurrences in doubles within a tolerance.
#include "backend/testing/recurrent_cases.h"

#include <cstring>

namespace quire::cpu {
namespace {

using namespace cases;

// Pages of one layer, filled with NaN, each with room after its state; and steps over them, compared with the oracle.
class Pages {
 public:
  Pages(const RecurrentLayer& layer, const Truth& truth, int64_t pages)
      : layer_(layer), truth_(truth), stride_(layer.state_floats + 3), data_(static_cast<size_t>(pages * stride_)) {
    std::fill(data_.begin(), data_.end(), std::nanf(""));
  }

  // Runs a step and checks every output and every page.
  void step(Backend& backend, const std::vector<Chunk>& chunks, const std::string& what) {
    std::vector<float> in, want;
    std::vector<int32_t> cu = {0}, source, destination;
    std::vector<float> pages = data_;
    for (const Chunk& c : chunks) {
      const Truth::Sequence& s = truth_.sequences[c.sequence];
      in.insert(in.end(), s.in.begin() + c.begin * layer_.in_cols, s.in.begin() + c.end * layer_.in_cols);
      want.insert(want.end(), s.out.begin() + c.begin * layer_.out_cols, s.out.begin() + c.end * layer_.out_cols);
      cu.push_back(cu.back() + static_cast<int32_t>(c.end - c.begin));
      source.push_back(c.source);
      destination.push_back(c.destination);
      std::copy(s.states[static_cast<size_t>(c.end)].begin(), s.states[static_cast<size_t>(c.end)].end(),
                pages.begin() + c.destination * stride_);
      for (size_t t = 0; t + 1 < c.rows.size(); ++t) {
        const std::vector<float>& state = s.states[static_cast<size_t>(c.begin) + t + 1];
        std::copy(state.begin(), state.end(), pages.begin() + c.rows[t] * stride_);
      }
    }
    const std::vector<int32_t> row_pages = row_destinations(chunks);
    const int64_t rows = cu.back(), stride = layer_.out_cols + 1;
    std::vector<float> out(static_cast<size_t>(rows * stride + 1), -7.0f);
    in.push_back(0);  // so that there is memory to point to
    const StateLayer state = {data_.data(), stride_ * 4, static_cast<int64_t>(data_.size()) / stride_};
    layer_.run(backend, on_host,
               {{in.data(), DType::kF32, rows, layer_.in_cols, layer_.in_cols},
                state,
                {cu, source, destination, row_pages},
                {out.data(), DType::kF32, rows, layer_.out_cols, stride}});
    for (int64_t r = 0; r < rows; ++r) {
      const auto bytes = static_cast<size_t>(layer_.out_cols) * sizeof(float);
      ASSERT_EQ(std::memcmp(out.data() + r * stride, want.data() + r * layer_.out_cols, bytes), 0)
          << layer_.name << ", " << what << ": row " << r;
      ASSERT_EQ(out[static_cast<size_t>((r + 1) * stride - 1)], -7.0f) << layer_.name << ", " << what;
    }
    if (std::memcmp(data_.data(), pages.data(), pages.size() * sizeof(float)) == 0) return;
    for (size_t i = 0; i < pages.size(); ++i) {
      ASSERT_EQ(std::memcmp(&data_[i], &pages[i], sizeof(float)), 0)
          << layer_.name << ", " << what << ": page " << i / static_cast<size_t>(stride_) << " float "
          << i % static_cast<size_t>(stride_) << " is " << data_[i] << ", want " << pages[i];
    }
  }

 private:
  const RecurrentLayer& layer_;
  const Truth& truth_;
  int64_t stride_;  // floats
  std::vector<float> data_;
};

// All sequences in one call; each alone; token by token in place; and divided at random (random_steps).
void run_schedules(const RecurrentLayer& layer, const Truth& truth, Backend& backend, const std::string& what) {
  const size_t count = truth.sequences.size();
  int64_t longest = 0;
  for (size_t s = 0; s < count; ++s) longest = std::max(longest, truth.length(s));
  {
    Pages pages(layer, truth, 4);
    std::vector<Chunk> chunks;
    for (size_t s = 0; s < count; ++s) chunks.push_back({s, 0, truth.length(s), -1, static_cast<int32_t>(s)});
    ASSERT_NO_FATAL_FAILURE(pages.step(backend, chunks, what + ", whole"));
  }
  for (size_t s = 0; s < count; ++s) {
    Pages pages(layer, truth, 2);
    ASSERT_NO_FATAL_FAILURE(pages.step(backend, {{s, 0, truth.length(s), -1, 1}}, what + ", alone"));
  }
  {
    Pages pages(layer, truth, 4);
    for (int64_t t = 0; t < longest; ++t) {
      std::vector<Chunk> chunks;
      for (size_t s = 0; s < count; ++s) {
        const auto page = static_cast<int32_t>(s);
        if (t < truth.length(s)) chunks.push_back({s, t, t + 1, t == 0 ? -1 : page, page});
      }
      ASSERT_NO_FATAL_FAILURE(pages.step(backend, chunks, what + ", token by token at " + std::to_string(t)));
    }
  }
  Pages pages(layer, truth, 16);
  std::vector<int64_t> lengths;
  for (size_t s = 0; s < count; ++s) lengths.push_back(truth.length(s));
  int step = 0;
  for (const std::vector<Chunk>& chunks : random_steps(lengths, 40, 30)) {
    ASSERT_NO_FATAL_FAILURE(pages.step(backend, chunks, what + ", random step " + std::to_string(step++)));
  }
  Pages kept(layer, truth, 18);
  step = 0;
  for (const std::vector<Chunk>& chunks : draft_steps(lengths, 40)) {
    ASSERT_NO_FATAL_FAILURE(kept.step(backend, chunks, what + ", step with drafts " + std::to_string(step++)));
  }
}

TEST(RecurrentOps, HaveTheOraclesBitsInAnyChunksBatchesPagesAndThreads) {
  for (const RecurrentCase& c : recurrent_cases()) {
    const Truth truth(*c.layer, c.lengths);
    for (const Isa isa : probed_isas()) {
      for (const int threads : {1, 2, 3}) {
        auto backend = make_cpu_backend({threads, name(isa)});
        ASSERT_TRUE(backend.ok());
        const std::string what = std::string(name(isa)) + ", threads " + std::to_string(threads);
        ASSERT_NO_FATAL_FAILURE(run_schedules(*c.layer, truth, *backend.value(), what));
      }
    }
  }
}

TEST(RecurrentOps, AgreeWithTheTextbookInDoubles) {
  for (const RecurrentCase& c : recurrent_cases()) {
    const Truth truth(*c.layer, c.lengths);
    for (const Truth::Sequence& s : truth.sequences) {
      const std::vector<double> exact = c.layer->exact(s.in);
      double largest = 0, error = 0;
      for (size_t i = 0; i < exact.size(); ++i) {
        largest = std::max(largest, std::fabs(exact[i]));
        error = std::max(error, std::fabs(exact[i] - double{s.out[i]}));
      }
      // A sum of up to 256 products and a decayed past of as many tokens: some hundred roundings of half an ulp.
      EXPECT_LE(error, largest * 300 * 0x1p-24) << c.layer->name;
      EXPECT_GT(largest, 1e-3) << c.layer->name;
    }
  }
}

TEST(RecurrentShapes, AreRefusedInASentenceThatNamesTheField) {
  EXPECT_TRUE(check_gated_delta_net_shape(16, 32, 128, 256, 4).ok());
  EXPECT_EQ(check_gated_delta_net_shape(16, 32, 257, 128, 4).error().message,
            "gated delta net: the key head size is 257; quire takes 1 to 256");
  EXPECT_FALSE(check_gated_delta_net_shape(16, 32, 128, 512, 4).ok());
  EXPECT_FALSE(check_gated_delta_net_shape(16, 24, 128, 128, 4).ok());
  EXPECT_FALSE(check_gated_delta_net_shape(0, 0, 128, 128, 4).ok());
  EXPECT_FALSE(check_gated_delta_net_shape(16, 32, 128, 128, 9).ok());
  EXPECT_FALSE(check_gated_delta_net_shape(16, 32, 128, 128, 0).ok());
  EXPECT_TRUE(check_mamba2_shape(48, 64, 1, 128, 4).ok());
  EXPECT_FALSE(check_mamba2_shape(48, 64, 1, 300, 4).ok());
  EXPECT_FALSE(check_mamba2_shape(48, 64, 5, 128, 4).ok());
  EXPECT_FALSE(check_mamba2_shape(48, 0, 1, 128, 4).ok());
  EXPECT_TRUE(check_short_conv_shape(2048, 3).ok());
  EXPECT_FALSE(check_short_conv_shape(2048, 16).ok());
  // Qwen3.5-0.8B: 16 heads of 128 x 128, and three rows of 6144 channels.
  EXPECT_EQ(gated_delta_net_state_bytes(16, 16, 128, 128, 4), 1048576 + 73728);
}

}  // namespace
}  // namespace quire::cpu
