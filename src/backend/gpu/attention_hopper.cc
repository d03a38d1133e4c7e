// SPDX-License-Identifier: Apache-2.0
// Attention by the kernels of sm_90a (kernels/cuda): plain causal attention over pages of the activations' own type.
//
// They have the bits of the portable kernels, so what they do not serve may go there at any time: other head sizes,
// windows, caps, sinks, pages of other types.
#include <algorithm>
#include <string>

#include "backend/gpu/gpu_backend.h"
#include "kernels/params/attention.h"
#include "kernels/params/hopper.h"

namespace quire::gpu {
namespace {

constexpr int64_t kMostScratch = int64_t{512} << 20;  // bytes

bool serves(const AttentionArgs& args) {
  const KvLayer& kv = args.kv;
  const bool plain = args.causal && args.window == 0 && args.soft_cap <= 0 && args.sinks == nullptr && !kv.v_in_k;
  if (!plain || kv.dtype != args.q.dtype || args.q.dtype == DType::kF32 || kv.head_dim != kv.v_dim()) return false;
  if (kv.head_dim != 64 && kv.head_dim != 128 && kv.head_dim != 256) return false;
  if (args.num_heads / kv.num_kv_heads > kAttentionRowTile) return false;
  const auto aligned = [](const Tensor& t) {
    return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.stride % 8 == 0 && t.stride < INT32_MAX;
  };
  return aligned(args.q) && aligned(args.out);
}

// The sequences whose rows fit one tile, and the others.
struct Kinds {
  int64_t few_seqs = 0;  // all sequences up to the last one of few rows
  int64_t few_context = 0;
  bool few = false, many = false;
};

Kinds kinds_of(std::span<const int32_t> cu, std::span<const int32_t> contexts, int64_t group) {
  Kinds kinds;
  for (size_t i = 0; i < contexts.size(); ++i) {
    const int64_t rows = (cu[i + 1] - cu[i]) * group;
    if (rows > kAttentionRowTile) kinds.many = true;
    if (rows == 0 || rows > kAttentionRowTile) continue;
    kinds.few = true;
    kinds.few_seqs = static_cast<int64_t>(i) + 1;
    kinds.few_context = std::max<int64_t>(kinds.few_context, contexts[i]);
  }
  return kinds;
}

}  // namespace

bool GpuBackend::attention_on_hopper(const AttentionArgs& args, bool one_each) {
  if (!serves(args) || !has_hopper()) return false;
  const KvLayer& kv = args.kv;
  const auto cu = staged(args.cu_seqlens_q);
  const auto contexts = staged(args.context_lens);
  const int dim = static_cast<int>(kv.head_dim);
  HopperAttentionParams p = {};
  p.page_stride = kv.page_stride;
  p.v_offset = kv.block_size * kv.num_kv_heads * dim * 2;
  p.max_blocks = static_cast<int>(args.max_blocks);
  p.block_size = static_cast<int>(kv.block_size);
  p.heads = static_cast<int>(args.num_heads);
  p.kv_heads = static_cast<int>(kv.num_kv_heads);
  p.q_stride = static_cast<int>(args.q.stride);
  p.out_stride = static_cast<int>(args.out.stride);
  p.c = args.scale * 1.44269504088896341f;
  const Kinds kinds = kinds_of(cu, contexts, args.num_heads / kv.num_kv_heads);
  if (kinds.many && dim == 256) return false;  // o of 64 rows would not fit the registers

  // A step where every sequence has one token may be recorded: then its grids follow from its shape alone.
  const int64_t positions = one_each ? args.max_blocks * kv.block_size : kinds.few_context;
  const int64_t few_seqs = one_each ? static_cast<int64_t>(contexts.size()) : kinds.few_seqs;
  const int64_t splits = (positions + kHopperSplit - 1) / kHopperSplit;
  const int64_t tokens = cu[static_cast<size_t>(few_seqs)];
  const int64_t scratch = splits > 1 ? hopper_attention_scratch(tokens, p.heads, splits, dim) * 4 : 0;
  if (kinds.few && scratch > kMostScratch) return false;

  const std::string type = std::string("_") + spelling(args.q.dtype) + "_d" + std::to_string(dim);
  const auto run = [&](const std::string& kernel, void* kept, Grid grid, int threads, int memory) {
    launch((kernel + type).c_str(), p,
           {args.out.data, args.q.data, kv.pages, args.block_tables.data(), args.cu_seqlens_q.data(),
            args.context_lens.data(), kept},
           grid, static_cast<uint32_t>(threads), static_cast<uint32_t>(memory));
  };
  if (kinds.few) {
    void* kept = scratch > 0 ? partials_.grow(*device_, static_cast<size_t>(scratch)) : nullptr;
    p.seqs = static_cast<int>(few_seqs);
    p.max_splits = static_cast<int>(splits);
    p.rows_from = 1;
    p.rows_to = kAttentionRowTile;
    // Inside a recorded step nothing but the launch before writes to pages, and that writes this step's positions.
    p.early = recording() ? 1 : 0;
    const int64_t units = few_seqs * p.kv_heads * splits;
    const int multiprocessors = device_->info().compute_units;
    if (6 * units <= multiprocessors && dim <= 128) {  // a cluster for each, all at once
      run("hopper_attention_quick", kept,
          {static_cast<uint32_t>(kHopperClusterSize * p.kv_heads), static_cast<uint32_t>(splits),
           static_cast<uint32_t>(few_seqs)},
          kHopperQuickThreads, hopper_quick_memory(dim));
    } else {
      p.stages = hopper_team_stages(units, dim, multiprocessors);
      run("hopper_attention_team", kept, {static_cast<uint32_t>(units)}, hopper_team_threads(dim),
          hopper_team_memory(dim, p.stages));
    }
    if (splits > 1) {
      const int64_t rows = tokens * p.heads, a_group = kHopperMergeThreads / 32;
      launch(("hopper_attention_merge" + type).c_str(), p,
             {args.out.data, kept, args.cu_seqlens_q.data(), args.context_lens.data()},
             {static_cast<uint32_t>((rows + a_group - 1) / a_group)}, kHopperMergeThreads);
    }
  }
  if (kinds.many) {
    p.seqs = static_cast<int>(contexts.size());
    p.rows_from = kAttentionRowTile + 1;
    p.rows_to = INT32_MAX;
    p.early = 0;
    run("hopper_attention_prefill", nullptr,
        {static_cast<uint32_t>(hopper_prefill_grid(cu.back(), p.seqs, p.heads, p.kv_heads))}, kHopperPrefillThreads,
        hopper_prefill_memory(dim));
  }
  return true;
}

size_t GpuBackend::attention_scratch_on_hopper(const WorkspaceLimits& sizes) const {
  const int64_t splits = (sizes.positions + kHopperSplit - 1) / kHopperSplit;
  if (splits <= 1 || sizes.heads == 0 || !has_hopper()) return 0;
  const int64_t all = hopper_attention_scratch(sizes.tokens, sizes.heads, splits, sizes.head_dim) * 4;
  return static_cast<size_t>(std::min(all, kMostScratch));
}

}  // namespace quire::gpu
