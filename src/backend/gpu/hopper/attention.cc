// SPDX-License-Identifier: Apache-2.0
// Attention by the kernels of sm_90a (kernels/cuda): causal attention over pages of the activations' own type, with K
// and V or with latent vectors.
//
// They give the same bits as the portable kernels, which therefore serve everything else: other head sizes, pages of
// other types.
#include <algorithm>
#include <bit>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/grid_math.h"
#include "backend/gpu/hopper/ops.h"
#include "kernels/params/attention.h"
#include "kernels/params/hopper.h"

namespace quire::gpu::hopper {
namespace {

constexpr int64_t kMostScratch = int64_t{512} << 20;  // bytes

// Bytes for splits before they are merged: o [tokens][heads][splits][D], then (m, l) [tokens][heads][splits][2],
// floats.
int64_t scratch_bytes(int64_t tokens, int64_t heads, int64_t splits, int64_t head_dim) {
  return tokens * heads * splits * (head_dim + 2) * int64_t{sizeof(float)};
}

// Threadgroups for `seqs` sequences whose rows are [begin, end): those of row r of sequence i are counted from
// r / (rows of a threadgroup) + i on, and the kernel takes them from the last one down.
int prefill_groups(int begin, int end, int seqs, int heads, int kv_heads, int head_dim) {
  const bool pairs = head_dim != 256 && heads / kv_heads % 2 == 0;
  const int rows = head_dim == 256 || pairs ? 64 : 128;
  return (end / rows + seqs - begin / rows) * (pairs ? heads / 2 : heads);
}

KernelId by_head_dim(int dim, KernelId d64, KernelId d128, KernelId d256) {
  return dim == 64 ? d64 : dim == 128 ? d128 : d256;
}

bool fits(const AttentionArgs& args) {
  return args.causal && args.distance_bias == nullptr && args.kv.dtype == args.q.dtype && args.q.dtype != DType::kF32 &&
         on_16_bytes(args.q) && on_16_bytes(args.out) && args.q.stride < INT32_MAX && args.out.stride < INT32_MAX;
}

bool serves(const AttentionArgs& args) {
  const KvLayer& kv = args.kv;
  if (!fits(args) || kv.v_in_k || kv.head_dim != kv.v_dim()) return false;
  if (kv.head_dim != 64 && kv.head_dim != 128 && kv.head_dim != 256) return false;
  return args.num_heads / kv.num_kv_heads <= kAttentionRowTile;
}

bool serves_latent(const AttentionArgs& args) {
  const KvLayer& kv = args.kv;
  const bool plain = args.window == 0 && args.soft_cap <= 0 && args.sinks == nullptr;
  return fits(args) && plain && kv.v_in_k && kv.num_kv_heads == 1 && kv.head_dim == kHopperLatentKey &&
         kv.v_dim() == kHopperLatentValue && args.q.rows <= 65535;
}

// Sequences whose rows fit one tile ("few"), and those of more rows ("many").
struct Kinds {
  int64_t few_seqs = 0;  // all sequences up to the last one of few rows
  int64_t few_context = 0;
  int64_t many_begin = 0, many_end = 0;  // from the first sequence of many rows to the end of the last one
  bool few = false, many = false;
};

Kinds kinds_of(std::span<const int32_t> cu, std::span<const int32_t> contexts, int64_t group, bool by_shape,
               int64_t table_positions) {
  Kinds kinds;
  int64_t most = 0;
  for (size_t i = 0; i < contexts.size(); ++i) {
    const int64_t rows = (cu[i + 1] - cu[i]) * group;
    most = std::max(most, rows);
    if (rows > kAttentionRowTile) {
      if (!kinds.many) kinds.many_begin = static_cast<int64_t>(i);
      kinds.many = true;
      kinds.many_end = static_cast<int64_t>(i) + 1;
    }
    if (rows == 0 || rows > kAttentionRowTile) continue;
    kinds.few = true;
    kinds.few_seqs = static_cast<int64_t>(i) + 1;
    kinds.few_context = std::max<int64_t>(kinds.few_context, contexts[i]);
  }
  if (!by_shape) return kinds;
  // The shape says whether any sequence has many rows, and if so, whether all of them do.
  kinds.few_seqs = static_cast<int64_t>(contexts.size());
  kinds.few = !kinds.many || cu.back() * group < kinds.few_seqs * most;
  kinds.few_context = table_positions;
  kinds.many_begin = 0;
  kinds.many_end = kinds.few_seqs;
  return kinds;
}

HopperAttentionParams params_of(const AttentionArgs& args) {
  const KvLayer& kv = args.kv;
  HopperAttentionParams p = {};
  p.page_stride = kv.page_stride;
  p.v_offset = kv.block_size * kv.num_kv_heads * kv.head_dim * 2;
  p.max_blocks = static_cast<int>(args.max_blocks);
  p.block_size = static_cast<int>(kv.block_size);
  p.heads = static_cast<int>(args.num_heads);
  p.kv_heads = static_cast<int>(kv.num_kv_heads);
  p.q_stride = static_cast<int>(args.q.stride);
  p.out_stride = static_cast<int>(args.out.stride);
  constexpr float kLog2E = 1.44269504088896341f;
  p.window = static_cast<int>(args.window);
  p.has_sinks = args.sinks != nullptr;
  p.c = args.soft_cap > 0 ? args.scale / args.soft_cap : args.scale * kLog2E;
  p.cap = args.soft_cap > 0 ? args.soft_cap * kLog2E : 0;
  return p;
}

// Positions of a box that the copy engine brings to a team.
int team_box_rows(const KvLayer& kv) {
  return kv.block_size % 16 == 0 ? 16 : 8;
}

// K and V as the copy engine reads them. False: this device cannot.
bool map_pages(GpuBackend& gpu, const KvLayer& kv, HopperTeamParams& p) {
  PagesMap map = {kv.pages,        kv.page_stride, kv.num_pages,     kv.block_size,
                  kv.num_kv_heads, kv.head_dim,    team_box_rows(kv)};
  if (!gpu.device().map_pages(map, &p.k)) return false;
  map.data = static_cast<const char*>(kv.pages) + p.attention.v_offset;
  return gpu.device().map_pages(map, &p.v);
}

// As many teams as run at once: each takes one unit of work after the other.
void launch_teams(GpuBackend& gpu, const AttentionArgs& args, HopperTeamParams& p, void* scratch, int64_t units) {
  const int dim = static_cast<int>(args.kv.head_dim), multiprocessors = gpu.device().info().compute_units;
  const auto size = static_cast<uint32_t>(args.kv.block_size);
  p.group = p.attention.heads / p.attention.kv_heads;
  p.block_shift = std::has_single_bit(size) ? std::countr_zero(size) : -1;
  void* counter = gpu.scratch().arrivals.grow(sizeof(int32_t));
  const KernelId kernel =
      team_box_rows(args.kv) == 16
          ? by_head_dim(dim, KernelId::kHopperAttentionTeamD64B16, KernelId::kHopperAttentionTeamD128B16,
                        KernelId::kHopperAttentionTeamD256B16)
          : by_head_dim(dim, KernelId::kHopperAttentionTeamD64B8, KernelId::kHopperAttentionTeamD128B8,
                        KernelId::kHopperAttentionTeamD256B8);
  gpu.launch({kernel, args.q.dtype}, p,
             {args.out.data, args.q.data, args.block_tables.data(), args.cu_seqlens_q.data(), args.context_lens.data(),
              scratch, args.sinks, counter},
             {static_cast<uint32_t>(std::min<int64_t>(units, hopper_team_at_once(dim) * multiprocessors))},
             static_cast<uint32_t>(hopper_team_threads(dim)), static_cast<uint32_t>(hopper_team_memory(dim)));
}

// For the p.seqs sequences from `first_seq` on.
void launch(GpuBackend& gpu, KernelId kernel, const AttentionArgs& args, const HopperAttentionParams& p, void* scratch,
            Grid grid, int threads, int memory, int64_t first_seq = 0) {
  gpu.launch({kernel, args.q.dtype}, p,
             {args.out.data, args.q.data, args.kv.pages, args.block_tables.data() + first_seq * args.max_blocks,
              args.cu_seqlens_q.data() + first_seq, args.context_lens.data() + first_seq, scratch, args.sinks},
             grid, static_cast<uint32_t>(threads), static_cast<uint32_t>(memory));
}

void merge(GpuBackend& gpu, const AttentionArgs& args, const HopperAttentionParams& p, KernelId kernel, void* scratch,
           int64_t tokens) {
  gpu.launch({kernel, args.q.dtype}, p,
             {args.out.data, scratch, args.cu_seqlens_q.data(), args.context_lens.data(), args.sinks},
             {grid_div(tokens * p.heads, kHopperMergeThreads / 32)}, kHopperMergeThreads);
}

// The first `seqs` sequences, which have `tokens` rows of q and up to `splits` splits. Those of more rows than a tile
// are passed over.
void attend_few(GpuBackend& gpu, const AttentionArgs& args, HopperTeamParams& team, int64_t seqs, int64_t tokens,
                int64_t splits) {
  HopperAttentionParams& p = team.attention;
  const int dim = static_cast<int>(args.kv.head_dim), multiprocessors = gpu.device().info().compute_units;
  void* scratch = splits > 1
                      ? gpu.scratch().attention.grow(static_cast<size_t>(scratch_bytes(tokens, p.heads, splits, dim)))
                      : nullptr;
  p.seqs = static_cast<int>(seqs);
  p.max_splits = static_cast<int>(splits);
  p.rows_from = 1;
  p.rows_to = kAttentionRowTile;
  // In a recorded step only the launch before this one writes to pages, and it writes this step's positions.
  p.early = gpu.recorder().recording() ? 1 : 0;
  const int64_t units = seqs * p.kv_heads * splits;
  const int cluster = hopper_quick_cluster(dim);
  if (cluster * units <= multiprocessors) {  // a cluster for each, all at once
    launch(gpu,
           by_head_dim(dim, KernelId::kHopperAttentionQuickD64, KernelId::kHopperAttentionQuickD128,
                       KernelId::kHopperAttentionQuickD256),
           args, p, scratch,
           {static_cast<uint32_t>(cluster * p.kv_heads), static_cast<uint32_t>(splits), static_cast<uint32_t>(seqs)},
           kHopperQuickThreads, hopper_quick_memory(dim));
  } else {
    launch_teams(gpu, args, team, scratch, units);
  }
  if (splits <= 1) return;
  merge(gpu, args, p,
        by_head_dim(dim, KernelId::kHopperAttentionMergeD64, KernelId::kHopperAttentionMergeD128,
                    KernelId::kHopperAttentionMergeD256),
        scratch, tokens);
}

bool attend_latent(GpuBackend& gpu, const AttentionArgs& args, HopperAttentionParams p, int64_t splits) {
  const int64_t tokens = args.q.rows, bytes = scratch_bytes(tokens, p.heads, splits, kHopperLatentValue);
  if (splits > 1 && bytes > kMostScratch) return false;
  void* scratch = splits > 1 ? gpu.scratch().attention.grow(static_cast<size_t>(bytes)) : nullptr;
  p.seqs = static_cast<int>(args.context_lens.size());
  p.max_splits = static_cast<int>(splits);
  p.rows_from = 1;
  p.rows_to = INT32_MAX;
  p.early = gpu.recorder().recording() ? 1 : 0;
  // Few sequences of one token: a cluster for each, all at once.
  constexpr int kCluster = hopper_quick_cluster(kHopperLatentKey);
  if (tokens == p.seqs && p.heads <= kAttentionRowTile &&
      kCluster * splits * p.seqs <= gpu.device().info().compute_units) {
    launch(gpu, KernelId::kHopperAttentionQuickLatent, args, p, scratch,
           {kCluster, static_cast<uint32_t>(splits), static_cast<uint32_t>(p.seqs)}, kHopperQuickThreads,
           hopper_quick_memory(kHopperLatentKey));
    if (splits > 1) merge(gpu, args, p, KernelId::kHopperAttentionMergeD512, scratch, tokens);
    return true;
  }
  launch(gpu, KernelId::kHopperAttentionLatent, args, p, scratch,
         {grid_div(p.heads, kAttentionRowTile), static_cast<uint32_t>(splits), static_cast<uint32_t>(tokens)},
         kHopperLatentThreads, hopper_latent_memory());
  if (splits > 1) merge(gpu, args, p, KernelId::kHopperAttentionMergeD512, scratch, tokens);
  return true;
}

}  // namespace

bool attention(GpuBackend& gpu, const AttentionArgs& args, bool by_shape) {
  const bool latent = serves_latent(args);
  if (!gpu.hopper() || (!latent && !serves(args))) return false;
  const auto cu = gpu.staging().host(args.cu_seqlens_q);
  const auto contexts = gpu.staging().host(args.context_lens);
  const int64_t table_positions = args.max_blocks * args.kv.block_size;
  if (latent) {
    int64_t longest = by_shape ? table_positions : 1;
    for (const int32_t context : contexts) longest = std::max<int64_t>(longest, context);
    return attend_latent(gpu, args, params_of(args), grid_div(longest, kHopperSplit));
  }
  const int dim = static_cast<int>(args.kv.head_dim);
  HopperAttentionParams p = params_of(args);
  const Kinds kinds = kinds_of(cu, contexts, args.num_heads / args.kv.num_kv_heads, by_shape, table_positions);
  int64_t splits = grid_div(kinds.few_context, kHopperSplit);
  // Rows of a tile see the window and a few positions more.
  if (p.window > 0) splits = std::min<int64_t>(splits, (p.window + kAttentionRowTile) / kHopperSplit + 2);
  const int64_t tokens = cu[static_cast<size_t>(kinds.few_seqs)];
  if (kinds.few && splits > 1 && scratch_bytes(tokens, p.heads, splits, dim) > kMostScratch) return false;
  if (kinds.few) {
    HopperTeamParams team = {};
    team.attention = p;
    if (!map_pages(gpu, args.kv, team)) return false;
    attend_few(gpu, args, team, kinds.few_seqs, tokens, splits);
  }
  if (kinds.many) {
    // A threadgroup that finds no rows takes two microseconds of a multiprocessor, so the sequences that only decode
    // have none, as far as they come before or after the others.
    p.seqs = static_cast<int>(kinds.many_end - kinds.many_begin);
    p.rows_from = kAttentionRowTile + 1;
    p.rows_to = INT32_MAX;
    const bool general = p.window > 0 || p.cap > 0 || p.has_sinks != 0;
    const KernelId kernel =
        general
            ? by_head_dim(dim, KernelId::kHopperAttentionPrefillGeneralD64,
                          KernelId::kHopperAttentionPrefillGeneralD128, KernelId::kHopperAttentionPrefillGeneralD256)
            : by_head_dim(dim, KernelId::kHopperAttentionPrefillD64, KernelId::kHopperAttentionPrefillD128,
                          KernelId::kHopperAttentionPrefillD256);
    const int groups = prefill_groups(cu[static_cast<size_t>(kinds.many_begin)],
                                      cu[static_cast<size_t>(kinds.many_end)], p.seqs, p.heads, p.kv_heads, dim);
    launch(gpu, kernel, args, p, nullptr, {static_cast<uint32_t>(groups)}, kHopperPrefillThreads,
           hopper_prefill_memory(dim), kinds.many_begin);
  }
  return true;
}

size_t attention_scratch(const GpuBackend& gpu, const WorkspaceLimits& sizes) {
  const int64_t splits = grid_div(sizes.positions, kHopperSplit);
  if (splits <= 1 || sizes.heads == 0 || !gpu.hopper()) return 0;
  return static_cast<size_t>(std::min(scratch_bytes(sizes.tokens, sizes.heads, splits, sizes.head_dim), kMostScratch));
}

}  // namespace quire::gpu::hopper
