// SPDX-License-Identifier: Apache-2.0
// A step that may be recorded runs again for other contexts, and for sequences in another order: its launches follow
// from its shape alone.
#include <gtest/gtest.h>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/recording_device.h"

namespace quire::gpu {
namespace {

struct Sequences {
  std::vector<int32_t> tokens, contexts;
};

// Heads of 128 and latent vectors have kernels for Hopper; heads of 32 have the portable ones.
struct Heads {
  int64_t heads, kv_heads, dim, v_dim, window;
};

// What attention launches for these sequences, with block tables of 2,048 positions.
std::vector<std::string> launches(const Heads& heads, const Sequences& sequences) {
  constexpr int64_t kBlocks = 128, kBlockSize = 16;
  std::vector<std::string> notes;
  auto device = std::make_unique<RecordingDevice>(notes);
  device->whole_launches = true;
  GpuBackend gpu(std::move(device));
  std::vector<int32_t> cu = {0};
  for (const int32_t tokens : sequences.tokens) cu.push_back(cu.back() + tokens);
  const std::vector<int32_t> tables(sequences.tokens.size() * kBlocks, 1);
  const std::unique_ptr<Buffer> memory = gpu.allocate(size_t{1} << 20).value();
  void* const somewhere = memory->data();
  gpu.begin_step();
  const auto staged = [&](const std::vector<int32_t>& values) {
    return std::span(static_cast<const int32_t*>(gpu.stage(std::as_bytes(std::span(values)))), values.size());
  };
  AttentionArgs args;
  const int64_t q = heads.heads * heads.dim, out = heads.heads * heads.v_dim;
  args.q = {somewhere, DType::kBF16, cu.back(), q, q};
  args.out = {static_cast<char*>(somewhere) + (1 << 19), DType::kBF16, cu.back(), out, out};
  args.kv.pages = somewhere;
  args.kv.block_size = kBlockSize;
  args.kv.num_kv_heads = heads.kv_heads;
  args.kv.head_dim = heads.dim;
  args.kv.v_head_dim = heads.v_dim;
  args.kv.v_in_k = heads.v_dim != heads.dim;
  args.kv.dtype = DType::kBF16;
  args.kv.num_pages = 2;
  args.kv.page_stride = static_cast<int64_t>(gpu.kv_page_bytes(
      {args.kv.dtype, kBlockSize, heads.kv_heads, heads.dim, args.kv.v_in_k ? heads.v_dim : 0, args.kv.v_in_k}));
  args.num_heads = heads.heads;
  args.scale = 0.1f;
  args.window = heads.window;
  args.cu_seqlens_q = staged(cu);
  args.context_lens = staged(sequences.contexts);
  args.block_tables = staged(tables);
  args.max_blocks = kBlocks;
  gpu.attention(args);
  std::erase(notes, "upload");
  return notes;
}

TEST(RecordedShape, DecidesTheLaunchesOfAttention) {
  // Pairs of the same shape: as many tokens and sequences, and as many tokens of the sequence that has the most.
  const std::pair<Sequences, Sequences> pairs[] = {
      {{{1}, {1}}, {{1}, {2048}}},
      {{{4}, {4}}, {{4}, {1500}}},                                   // few rows
      {{{9}, {9}}, {{9}, {2048}}},                                   // many, where four heads share K and V
      {{{5, 5}, {5, 700}}, {{5, 5}, {2000, 5}}},                     // all of them many
      {{{5, 1, 1}, {900, 40, 1500}}, {{1, 1, 5}, {30, 2000, 100}}},  // many and few, in any order
      {{{5, 4, 1, 4}, {5, 4, 1, 4}}, {{4, 5, 3, 2}, {2000, 1025, 3, 700}}},
  };
  const Heads kinds[] = {{32, 8, 128, 128, 0}, {32, 8, 128, 128, 512}, {8, 2, 256, 256, 0},
                         {8, 2, 32, 32, 0},    {8, 2, 32, 32, 512},    {16, 1, 576, 512, 0}};
  for (const Heads& heads : kinds) {
    for (size_t i = 0; i < std::size(pairs); ++i) {
      const std::vector<std::string> first = launches(heads, pairs[i].first), second = launches(heads, pairs[i].second);
      EXPECT_FALSE(first.empty());
      EXPECT_TRUE(first == second) << "pair " << i << ", heads of " << heads.dim << ", window " << heads.window;
    }
  }
  // Longer prompts are not recorded, and take what their contexts need.
  EXPECT_FALSE(launches(kinds[3], {{40}, {40}}) == launches(kinds[3], {{40}, {2048}}));
}

// Which steps these are.
TEST(RecordedShape, IsThatOfDecodeAndOfFewDrafts) {
  EXPECT_TRUE(StepRecorder::may_take(32, 32, 1));
  EXPECT_FALSE(StepRecorder::may_take(33, 33, 1));
  EXPECT_TRUE(StepRecorder::may_take(9, 1, 9));
  EXPECT_FALSE(StepRecorder::may_take(10, 1, 10));
  EXPECT_TRUE(StepRecorder::may_take(20, 4, 8));
  EXPECT_FALSE(StepRecorder::may_take(10, 5, 3));
  EXPECT_FALSE(StepRecorder::may_take(0, 0, 0));
}

}  // namespace
}  // namespace quire::gpu
