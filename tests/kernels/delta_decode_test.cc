// SPDX-License-Identifier: Apache-2.0
// Hopper's decode of a gated delta net in chunks, on the emulator: the outputs and states of the portable kernels, by
// memcmp, before and behind the end of a chunk, in place and into another page.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "backend/emulator/emulator.h"
#include "kernels/params/recurrent.h"
#include "ops/recurrent.h"
#include "tests/kernels/support.h"

namespace quire::emulator {
const KernelRecord& delta_decode_on_host();
}  // namespace quire::emulator

namespace quire::kernels {
namespace {

constexpr int kKeys = 1, kHeads = 2, kDim = 128, kChannels = (2 * kKeys + kHeads) * kDim, kPages = 3;
constexpr DeltaChunkLayout kLayout(kKeys, kHeads, kDim, kDim, 4);

// Two sequences over the same weights and inputs.
class Layer {
 public:
  Layer() : x_(random_values<bfloat>(kRows * kChannels, 1)), gates_(random_values<bfloat>(kRows * 2 * kHeads, 2)) {
    weight_ = random_values<float>(kChannels * 4, 3);
    for (float& w : weight_) w *= 0.5f;
    pages_.assign(kPages * kLayout.bytes, 0x7f);  // large numbers, where nothing was written
  }

  // Rows [begin, end) as a sequence that starts there, from a page to another; the outputs.
  std::vector<uint16_t> run(bool hopper, int begin, int end, int start, int source, int destination) {
    StateParams p = {};
    const int rows = end - begin;
    p.x_stride = kChannels;
    p.a_stride = p.b_stride = 2 * kHeads;
    p.out_stride = kHeads * kDim;
    p.page = kLayout.bytes / 4;
    p.type = kStateBF16;
    p.rows = rows;
    p.row_block = 1;
    p.seqs = 1;
    p.channels = kChannels;
    p.taps = 4;
    p.delta = p.chunked = 1;
    p.pairs = p.shared = kKeys;
    p.heads = kHeads;
    p.matrix_rows = p.matrix_cols = kDim;
    p.left = kKeys * kDim;
    p.own = 2 * kKeys * kDim;
    p.tasks = kKeys + kHeads * kDim / kStatePlain + 1;
    p.blocks = kDim / kDeltaColumns;
    p.chunk_state = kLayout.state;
    p.chunk_values = kLayout.values;
    p.chunk_keys = kLayout.keys;
    p.chunk_decays = kLayout.decays;
    p.scores = (kChannels + kKeys + 2 * kHeads + 3) / 4 * 4;
    p.scratch = p.scores + kKeys * 2 * kDeltaChunk;
    std::vector<float> scratch(static_cast<size_t>(rows * p.scratch));
    std::vector<float> decay(kHeads, -0.1f), dt_bias(kHeads, 0.2f);
    std::vector<int32_t> cu = {0, rows}, lengths = {start + rows}, from = {source}, into = {destination}, arrivals(kKeys);
    std::vector<uint16_t> out(static_cast<size_t>(rows) * kHeads * kDim);
    void *x = x_.data() + begin * kChannels, *a = gates_.data() + begin * 2 * kHeads;
    void* b = gates_.data() + begin * 2 * kHeads + kHeads;
    const auto launch = [&](const emulator::KernelRecord& record, int groups, int threads, std::vector<void*> buffers) {
      EXPECT_EQ(run_kernel(record, {static_cast<uint32_t>(groups), 1, 1}, static_cast<uint32_t>(threads), p,
                           std::move(buffers), 2),
                "");
    };
    if (hopper) {
      launch(emulator::delta_decode_on_host(), kHeads, kHopperDeltaThreads,
             {out.data(), x, a, b, weight_.data(), nullptr, decay.data(), dt_bias.data(), pages_.data(), cu.data(),
              lengths.data(), from.data(), into.data(), arrivals.data()});
      EXPECT_EQ(arrivals, std::vector<int32_t>(kKeys));
      return out;
    }
    launch(*emulator::find_kernel("state_prepare_bf16"), (rows * p.tasks + 7) / 8, kStatePrepareThreads,
           {scratch.data(), x, a, b, weight_.data(), nullptr, decay.data(), dt_bias.data(), pages_.data(), cu.data(),
            from.data()});
    launch(*emulator::find_kernel("delta_scores_bf16"), (rows / kDeltaRows + 2) * kKeys, kDeltaThreads,
           {scratch.data(), pages_.data(), cu.data(), lengths.data(), from.data()});
    launch(*emulator::find_kernel("delta_chunks_bf16"), kHeads * p.blocks, kDeltaThreads,
           {out.data(), scratch.data(), pages_.data(), cu.data(), lengths.data(), from.data(), into.data(), nullptr});
    launch(*emulator::find_kernel("delta_keys_bf16"), kKeys, kDeltaThreads,
           {x, scratch.data(), pages_.data(), cu.data(), lengths.data(), from.data(), into.data(), nullptr});
    return out;
  }

  std::vector<uint8_t>& pages() { return pages_; }

 private:
  static constexpr size_t kRows = 140;
  std::vector<bfloat> x_, gates_;
  std::vector<float> weight_;
  std::vector<uint8_t> pages_;
};

TEST(HopperDeltaDecode, HasTheBitsOfThePortableKernels) {
  struct Step {
    int begin, end, source, destination;
  };
  // A prompt; then tokens that begin a block, end a chunk and begin the next, one or several at a time, in place, into
  // another page, and from it; and a copy.
  const std::vector<std::vector<Step>> walks = {
      {{0, 1, -1, 0}, {1, 2, 0, 0}},
      {{0, 15, -1, 0}, {15, 17, 0, 1}, {17, 18, 1, 1}},
      {{0, 62, -1, 1}, {62, 63, 1, 1}, {63, 64, 1, 0}, {64, 65, 0, 0}, {65, 65, 0, 2}, {65, 66, 2, 2}},
      {{0, 127, -1, 2}, {127, 129, 2, 2}, {129, 130, 2, 0}},
  };
  for (const std::vector<Step>& walk : walks) {
    Layer portable, hopper;
    for (size_t i = 0; i < walk.size(); ++i) {
      const Step& s = walk[i];
      const auto want = portable.run(false, s.begin, s.end, s.begin, s.source, s.destination);
      const auto got = hopper.run(i > 0 || s.end == 1, s.begin, s.end, s.begin, s.source, s.destination);
      EXPECT_EQ(want, got) << "tokens " << s.begin << " to " << s.end;
      EXPECT_EQ(portable.pages(), hopper.pages()) << "after " << s.end << " tokens";
    }
  }
}

}  // namespace
}  // namespace quire::kernels
