// SPDX-License-Identifier: Apache-2.0
// Attention on a GPU, and the writes to pages before it.
//
// Launches of one arithmetic (kernels/attention_work.h), chosen by speed alone: sequences of few rows have one
// threadgroup per split, whose results a second launch merges; in sequences of more rows a threadgroup goes through all
// splits in turn; and where the heads are small enough, such a threadgroup has 64 rows. MLA's sequences of few rows
// have a threadgroup per tile of positions for the scores, and then one per split and 64 dims of the output.
#include <algorithm>
#include <vector>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/grid_math.h"
#include "backend/gpu/hopper/ops.h"
#include "backend/gpu/step_recorder.h"
#include "base/env.h"
#include "kernels/params/attention.h"
#include "kernels/params/attention_cache.h"

namespace quire::gpu {
namespace {

constexpr int64_t kScratchBytes = int64_t{256} << 20;  // what needs more is divided into several launches
constexpr float kLog2E = 1.44269504088896341f;

int page_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return kKvF32;
    case DType::kF16:
      return kKvF16;
    case DType::kBF16:
      return kKvBF16;
    case DType::kI8:
      return kKvI8;
    case DType::kF8E4M3:
      return kKvE4M3;
    case DType::kF8E5M2:
      return kKvE5M2;
    default:
      QUIRE_CHECK(false, "no page has this type");
      return 0;
  }
}

KvPages pages_of(const KvLayer& kv) {
  QUIRE_CHECK(kv.head_dim <= kAttentionMaxDim && kv.v_dim() <= kAttentionMaxDim,
              "a head is larger than the GPU's kernels take");
  KvPages pages = kv_pages(page_type(kv.dtype), static_cast<int>(kv.block_size), static_cast<int>(kv.num_kv_heads),
                           static_cast<int>(kv.head_dim), static_cast<int>(kv.v_dim()), kv.v_in_k);
  pages.page_stride = kv.page_stride;
  QUIRE_CHECK(kv.page_stride >= ::kv_page_bytes(pages) && kv.page_stride % 16 == 0, "pages overlap");
  return pages;
}

// What the host knows about a step's sequences.
struct Extent {
  int64_t rows = 0;                     // of q
  int64_t most_queries = 0;             // of one sequence
  int64_t most_few = 0, few = 0;        // of sequences whose rows fit one tile: the most rows, and how many there are
  int64_t many = 0;                     // rows of the other sequences
  bool one_each = false;                // every sequence has one row
  bool by_shape = false;                // the step may be recorded, so that nothing here depends on what it is about
  int64_t few_span = 0, many_span = 0;  // the longest context of each kind
};

Extent extent_of(std::span<const int32_t> cu, std::span<const int32_t> contexts, int64_t tile_tokens, int64_t limit) {
  Extent e;
  e.rows = cu.back();
  for (size_t i = 0; i < contexts.size(); ++i) {
    const int64_t n = cu[i + 1] - cu[i];
    QUIRE_CHECK(n >= 0 && contexts[i] <= limit, "a context is longer than its block table");
    if (n == 0) continue;
    QUIRE_CHECK(contexts[i] >= n, "queries see no position");
    e.most_queries = std::max(e.most_queries, n);
    if (n <= tile_tokens) {
      ++e.few;
      e.most_few = std::max(e.most_few, n);
      e.few_span = std::max<int64_t>(e.few_span, contexts[i]);
    } else {
      e.many += n;
      e.many_span = std::max<int64_t>(e.many_span, contexts[i]);
    }
  }
  const auto seqs = static_cast<int64_t>(contexts.size());
  e.one_each = e.most_queries == 1 && e.rows == seqs;
  e.by_shape = e.one_each || StepRecorder::may_take(e.rows, seqs, e.most_queries);
  if (!e.by_shape) return e;
  // Contexts as long as the tables, and sequences of both kinds where the shape leaves that open.
  const bool many = e.most_queries > tile_tokens;
  e.few = many && e.rows == seqs * e.most_queries ? 0 : seqs;
  e.many = many ? e.rows : 0;
  e.most_few = std::min(e.most_queries, tile_tokens);
  e.few_span = e.many_span = limit;
  return e;
}

// Splits that rows of `tokens` neighbouring positions may see, of a context of `positions`.
int splits_of(const AttentionParams& p, int64_t positions, int64_t tokens) {
  int64_t splits = grid_div(positions, kAttentionSplitPositions);
  if (p.window > 0) {
    const int64_t seen = (p.causal != 0 ? 1 : 2) * int64_t{p.window} + tokens;
    splits = std::min<int64_t>(splits, seen / kAttentionSplitPositions + 2);
  }
  return static_cast<int>(std::max<int64_t>(splits, 1));
}

AttentionParams params_of(const AttentionArgs& args) {
  AttentionParams p = {};
  p.kv = pages_of(args.kv);
  p.q_stride = args.q.stride;
  p.out_stride = args.out.stride;
  p.seqs = static_cast<int>(args.context_lens.size());
  p.max_blocks = static_cast<int>(args.max_blocks);
  p.heads = static_cast<int>(args.num_heads);
  p.group = p.heads / p.kv.kv_heads;
  const int rows = args.q.dtype == DType::kF32 ? kAttentionRowTileF32 : kAttentionRowTile;
  p.tile_heads = std::min(p.group, rows);
  p.head_tiles = (p.group + p.tile_heads - 1) / p.tile_heads;
  p.tile_tokens = p.tokens_a_group = rows / p.tile_heads;
  p.k_steps = (p.kv.head_dim + 15) / 16;
  p.k_chunks = (p.kv.head_dim + 63) / 64;
  p.v_chunks = (p.kv.v_dim + 63) / 64;
  p.partial_dim = p.v_chunks * 64;
  p.positions = kAttentionPositions;
  p.causal = args.causal;
  p.window = static_cast<int>(args.window);
  p.has_sinks = args.sinks != nullptr;
  p.max_distance = args.distance_bias != nullptr ? static_cast<int>(args.max_distance) : 0;
  p.q_scale = args.soft_cap > 0 ? args.scale / args.soft_cap : args.scale * kLog2E;
  p.cap = args.soft_cap > 0 ? args.soft_cap * kLog2E : 0;
  p.least_queries = 1;
  p.most_queries = INT32_MAX;
  return p;
}

// One launch, or several of so many threadgroups that their partial results fit the scratch, each followed by its
// merge.
struct AttentionLaunch {
  KernelId kernel = KernelId::kNone;
  AttentionParams params;
  std::vector<int32_t> map;         // (sequence, first token) of each group of tokens, where they are not searched for
  int64_t groups = 0, at_once = 0;  // threadgroups, and those of one launch
  int64_t scratch = 0;              // bytes
  int64_t scores_at = -1;           // scores have a launch of their own, and are at this byte of the scratch
};

int64_t slot_bytes(const AttentionParams& p) {
  return int64_t{p.partial_rows} * (p.partial_dim + 2) * int64_t{sizeof(float)};
}

// Of one threadgroup's rows.
int64_t scores_bytes(int64_t tiles) {
  return tiles * kAttentionTileScores * int64_t{sizeof(float)};
}

KernelId tile_kernel(const AttentionArgs& args, int dim) {
  if (args.q.dtype == DType::kF32) return KernelId::kAttentionF32;
  return dim <= 128 ? KernelId::kAttentionD128 : dim <= 256 ? KernelId::kAttentionD256 : KernelId::kAttentionD576;
}

AttentionLaunch launch_of(const AttentionArgs& args, const AttentionParams& p, bool one_split) {
  AttentionLaunch out;
  out.params = p;
  const int dim = std::max(p.kv.head_dim, p.kv.v_dim);
  if (p.tokens_a_group > p.tile_tokens) {
    out.kernel = dim <= 64 ? KernelId::kAttentionRowsD64 : KernelId::kAttentionRowsD128;
  } else {
    out.kernel = tile_kernel(args, dim);
  }
  const int64_t slot = slot_bytes(p) * std::max(p.splits, 1);
  out.groups = int64_t{p.groups} * p.kv.kv_heads * p.head_tiles;
  out.at_once = one_split ? out.groups : std::clamp<int64_t>(kScratchBytes / slot, 1, out.groups);
  out.scratch = one_split ? 0 : out.at_once * slot;
  return out;
}

// Scores apart from the values; `positions` is the longest context.
AttentionLaunch scores_first(AttentionParams p, int64_t positions) {
  constexpr int kTilesOfSplit = kAttentionSplitPositions / kAttentionPositions;
  const int64_t tiles = int64_t{p.splits} * kTilesOfSplit;
  p.score_tiles = static_cast<int>(
      p.window > 0 ? tiles : std::min<int64_t>(tiles, grid_div(std::max<int64_t>(positions, 1), kAttentionPositions)));
  AttentionLaunch out;
  out.kernel = KernelId::kAttentionValues;
  out.params = p;
  out.groups = int64_t{p.groups} * p.kv.kv_heads * p.head_tiles;
  const int64_t partials = p.splits == 1 ? 0 : slot_bytes(p) * p.splits, scores = scores_bytes(p.score_tiles);
  out.at_once = std::clamp<int64_t>((kScratchBytes - 16) / (partials + scores), 1, out.groups);
  out.scores_at = round_up(out.at_once * partials, 16);
  out.scratch = out.scores_at + out.at_once * scores;
  return out;
}

// A threadgroup finds its tokens by a search, which needs no array from the host: the first group of tokens of sequence
// i is (its first row / tokens of a group) + i, so some groups may be idle. With QUIRE_ATTENTION_FIND=map the host
// makes a map instead, to measure what the search costs.
void find_by_map(AttentionLaunch& launch, std::span<const int32_t> cu) {
  AttentionParams& p = launch.params;
  for (int seq = 0; seq < p.seqs; ++seq) {
    const int queries = cu[static_cast<size_t>(seq) + 1] - cu[static_cast<size_t>(seq)];
    if (queries < p.least_queries) continue;
    for (int token = 0; token < queries; token += p.tokens_a_group) {
      launch.map.push_back(seq);
      launch.map.push_back(token);
    }
  }
  p.mapped = 1;
  p.groups = static_cast<int>(launch.map.size() / 2);
  launch.groups = int64_t{p.groups} * p.kv.kv_heads * p.head_tiles;
}

// Sequences with more rows than a tile.
AttentionLaunch many_rows(const AttentionArgs& args, AttentionParams p, const Extent& e, int compute_units) {
  const auto groups = [&](int tokens) { return static_cast<int>(e.rows / tokens + p.seqs); };
  const bool one_split = e.many_span <= kAttentionSplitPositions;
  const bool small_heads = std::max(p.kv.head_dim, p.kv.v_dim) <= 128 && p.head_tiles == 1;
  const int64_t wide_groups = e.many / (4 * p.tile_tokens) * p.kv.kv_heads;
  p.splits = 0;
  if (args.q.dtype != DType::kF32 && small_heads && (one_split || 2 * wide_groups >= compute_units)) {
    p.tokens_a_group = 4 * p.tile_tokens;
    p.groups = groups(p.tokens_a_group);
    p.partial_rows = 4 * kAttentionRowTile;
    return launch_of(args, p, one_split);
  }
  p.groups = groups(p.tokens_a_group);
  p.partial_rows = p.tile_heads * p.tile_tokens;
  // Where rows are too few to fill the device, each split has its own threadgroups.
  const int splits = splits_of(p, e.many_span, p.tile_tokens);
  const int64_t slots = int64_t{p.groups} * p.kv.kv_heads * p.head_tiles;
  if (!one_split && slots < 2 * compute_units && slots * splits * slot_bytes(p) <= kScratchBytes) p.splits = splits;
  return launch_of(args, p, one_split);
}

std::vector<AttentionLaunch> launches_of(const AttentionArgs& args, AttentionParams p, const Extent& e,
                                         int compute_units) {
  std::vector<AttentionLaunch> launches;
  if (e.few > 0) {
    p.by_sequence = 1;
    p.groups = p.seqs;
    p.most_queries = p.tile_tokens;
    p.partial_rows = p.tile_heads * static_cast<int>(e.most_few);
    p.splits = splits_of(p, e.few_span, e.most_few);
    const bool apart = args.kv.v_in_k && args.q.dtype != DType::kF32;
    launches.push_back(apart ? scores_first(p, e.few_span) : launch_of(args, p, p.splits == 1));
  }
  if (e.many > 0) {
    p.by_sequence = 0;
    p.least_queries = p.tile_tokens + 1;
    p.most_queries = INT32_MAX;
    launches.push_back(many_rows(args, p, e, compute_units));
  }
  return launches;
}

}  // namespace

// A threadgroup keeps partial results of at most 64 rows. Contexts of one split keep nothing but MLA's scores, of which
// every sequence has those of a tile of heads.
size_t GpuBackend::attention_scratch(const WorkspaceLimits& sizes) const {
  if (sizes.heads == 0) return 0;
  const int64_t splits = std::max<int64_t>(1, grid_div(sizes.positions, kAttentionSplitPositions));
  const int64_t row = (grid_div(sizes.head_dim, 64) * 64 + 2) * int64_t{sizeof(float)};
  // Of `groups` threadgroups that take `each` bytes, as many as fit, but at least one.
  const auto most = [](int64_t groups, int64_t each) {
    const double all = static_cast<double>(groups) * static_cast<double>(each);
    return std::max(each, all < static_cast<double>(kScratchBytes) ? static_cast<int64_t>(all) : kScratchBytes);
  };
  // Every head of q is in one tile, and a group of tokens has at least one of them.
  int64_t bytes =
      splits == 1 ? 0 : most((sizes.tokens + sizes.seqs) * sizes.heads, 4 * kAttentionRowTile * row * splits);
  if (sizes.v_in_k && sizes.activation != DType::kF32) {
    const int64_t scores = scores_bytes(splits * (kAttentionSplitPositions / kAttentionPositions));
    const int64_t partials = splits == 1 ? 0 : kAttentionRowTile * row * splits;
    bytes = std::max(bytes, most(sizes.seqs * grid_div(sizes.heads, kAttentionRowTile), scores + partials + 16));
  }
  return static_cast<size_t>(bytes);
}

int64_t GpuBackend::max_head_dim() const {
  return kAttentionMaxDim;
}

size_t GpuBackend::kv_page_bytes(const KvPageShape& shape) const {
  const int64_t v_dim = shape.v_head_dim > 0 ? shape.v_head_dim : shape.head_dim;
  return static_cast<size_t>(::kv_page_bytes(
      kv_pages(page_type(shape.dtype), static_cast<int>(shape.block_size), static_cast<int>(shape.num_kv_heads),
               static_cast<int>(shape.head_dim), static_cast<int>(v_dim), shape.v_in_k)));
}

void GpuBackend::reshape_and_cache(const ReshapeAndCacheArgs& args) {
  const KvLayer& kv = args.kv;
  check(args);
  if (args.k.rows == 0) return;
  CacheParams p = {};
  p.kv = pages_of(kv);
  p.k_stride = args.k.stride;
  p.v_stride = args.v.stride;
  p.tokens = static_cast<int>(args.k.rows);
  p.sides = kv.v_in_k ? 1 : 2;
  launch({KernelId::kReshapeAndCache, args.k.dtype}, p, {kv.pages, args.k.data, args.v.data, args.slot_mapping.data()},
         {grid_div(int64_t{p.tokens} * p.sides * p.kv.kv_heads, kCacheRows)}, 32 * kCacheRows);
}

constexpr int kQkvManyTokens = 256, kQkvHeads = 8;
constexpr uint32_t kQkvResident = 4;  // threadgroups that a multiprocessor has room for beside a product's

// A simdgroup holds a head in registers.
bool GpuBackend::joins_qkv(const QkvToCacheArgs& args) const {
  return !args.kv.v_in_k && args.kv.head_dim <= 256 && args.kv.v_dim() <= 256 && args.rot_dim <= args.kv.head_dim;
}

void GpuBackend::qkv_to_cache(const QkvToCacheArgs& args) {
  const KvLayer& kv = args.kv;
  check(args);
  QUIRE_CHECK(joins_qkv(args));
  if (args.q.rows == 0 || joined_.join_qkv(args)) return;
  QkvToCacheParams p = {};
  p.kv = pages_of(kv);
  p.q_stride = args.q.stride;
  p.k_stride = args.k.stride;
  p.v_stride = args.v.stride;
  p.tokens = static_cast<int>(args.q.rows);
  p.heads = static_cast<int>(args.num_heads);
  // With many tokens the arithmetic counts, not the latency: the tables are loaded once for several heads. With fewer,
  // a simdgroup has as many heads as let all of them run at once.
  uint32_t groups = 0;
  const auto with = [&](int each) {
    p.each = each;
    p.q_units = static_cast<int>(grid_div(p.heads, each));
    p.kv_units = static_cast<int>(grid_div(p.kv.kv_heads, each));
    groups = grid_div(int64_t{p.tokens} * (p.q_units + 2 * p.kv_units), kCacheRows);
  };
  with(p.tokens >= kQkvManyTokens ? kQkvHeads : 1);
  while (p.each < kQkvHeads && groups > kQkvResident * static_cast<uint32_t>(device_->info().compute_units)) {
    with(2 * p.each);
  }
  p.rot_dim = static_cast<int>(args.rot_dim);
  p.interleaved = args.interleaved;
  p.normed_q = args.q_norm != nullptr;
  p.normed_k = args.k_norm != nullptr;
  p.eps = args.eps;
  p.whole_heads = p.each > 1 && (p.kv.head_dim == 128 || p.kv.head_dim == 256) && p.kv.v_dim == p.kv.head_dim &&
                  p.rot_dim == p.kv.head_dim && p.interleaved == 0;
  launch({KernelId::kQkvToCache, args.q.dtype}, p,
         {args.q.data, args.k.data, args.v.data, kv.pages, args.slot_mapping.data(), args.positions.data(), args.q_norm,
          args.k_norm, args.cos_table, args.sin_table},
         {groups}, 32 * kCacheRows);
}

// A simdgroup holds the latent vector and its key in registers.
bool GpuBackend::joins_mla(const MlaToCacheArgs& args) const {
  return args.kv.head_dim <= kAttentionMaxDim;
}

void GpuBackend::mla_to_cache(const MlaToCacheArgs& args) {
  const KvLayer& kv = args.kv;
  check(args);
  QUIRE_CHECK(joins_mla(args));
  if (args.q.rows == 0) return;
  MlaToCacheParams p = {};
  p.kv = pages_of(kv);
  p.q_stride = args.q.stride;
  p.latent_stride = args.latent.stride;
  p.q_latent_stride = args.q_latent.stride;
  p.tokens = static_cast<int>(args.q.rows);
  p.heads = static_cast<int>(args.num_heads);
  p.q_head = static_cast<int>(args.q.cols / args.num_heads);
  p.rot_dim = static_cast<int>(args.rot_dim);
  p.interleaved = args.interleaved;
  p.eps = args.eps;
  launch({KernelId::kMlaToCache, args.q.dtype}, p,
         {args.q_latent.data, args.q.data, args.latent.data, kv.pages, args.slot_mapping.data(), args.positions.data(),
          args.norm, args.cos_table, args.sin_table},
         {grid_div(int64_t{p.tokens} * (1 + p.heads), kCacheRows)}, 32 * kCacheRows);
}

// In a step that may be recorded, grids depend only on its shape and the width of the block tables, so that the
// recording serves every context that fits the tables.
void GpuBackend::attention(const AttentionArgs& args) {
  check(args);
  QUIRE_CHECK(args.distance_bias == nullptr || args.sinks == nullptr, "a model has sinks or a bias by distance");
  QUIRE_CHECK(args.q.rows < INT32_MAX && args.max_blocks * args.kv.block_size < INT32_MAX);
  if (args.q.rows == 0) return;
  const AttentionParams params = params_of(args);
  const std::span<const int32_t> cu = staging_.host(args.cu_seqlens_q);
  const Extent e =
      extent_of(cu, staging_.host(args.context_lens), params.tile_tokens, args.max_blocks * args.kv.block_size);
  QUIRE_CHECK(e.rows == args.q.rows);
  if (joined_.join_attention(args, e.one_each) || hopper::attention(*this, args, e.by_shape)) return;
  const float* sinks = args.distance_bias != nullptr ? args.distance_bias : args.sinks;  // see AttentionParams
  for (AttentionLaunch& l : launches_of(args, params, e, device_->info().compute_units)) {
    if (l.params.by_sequence == 0 && env("QUIRE_ATTENTION_FIND") == "map") find_by_map(l, cu);
    const void* map = l.map.empty() ? nullptr : stage(std::as_bytes(std::span(l.map)));
    AttentionParams p = l.params;
    void* partials = l.scratch == 0 ? nullptr : scratch_.attention.grow(static_cast<size_t>(l.scratch));
    for (int64_t first = 0; first < l.groups; first += l.at_once) {
      p.first = static_cast<int>(first);
      const auto x = static_cast<uint32_t>(std::min(l.at_once, l.groups - first));
      if (l.scores_at >= 0) {
        void* scores = static_cast<char*>(partials) + l.scores_at;
        launch({KernelId::kAttentionScores, args.q.dtype}, p,
               {scores, args.q.data, args.kv.pages, args.cu_seqlens_q.data(), args.context_lens.data(),
                args.block_tables.data(), map},
               {x, static_cast<uint32_t>(p.score_tiles)}, kAttentionThreads);
        launch({KernelId::kAttentionValues, args.q.dtype}, p,
               {args.out.data, scores, args.kv.pages, args.cu_seqlens_q.data(), args.context_lens.data(),
                args.block_tables.data(), sinks, partials, map},
               {x, static_cast<uint32_t>(p.splits), static_cast<uint32_t>(p.v_chunks)}, kAttentionThreads);
      } else {
        launch({l.kernel, args.q.dtype}, p,
               {args.out.data, args.q.data, args.kv.pages, args.cu_seqlens_q.data(), args.context_lens.data(),
                args.block_tables.data(), sinks, partials, map},
               {x, static_cast<uint32_t>(std::max(p.splits, 1))}, kAttentionThreads);
      }
      if (p.splits <= 1) continue;
      launch({KernelId::kAttentionMerge, args.q.dtype}, p,
             {args.out.data, partials, args.cu_seqlens_q.data(), args.context_lens.data(), sinks, map},
             {x, static_cast<uint32_t>(p.partial_rows)}, kAttentionThreads);
    }
  }
}

}  // namespace quire::gpu
