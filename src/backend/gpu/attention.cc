// SPDX-License-Identifier: Apache-2.0
// Attention on a GPU, and the writes to pages before it.
//
// Three forms of one arithmetic (kernels/attention_work.h), so that speed alone decides: a threadgroup a split for
// sequences with few rows, whose splits a second launch merges; a threadgroup that goes through all splits in turn for
// those with more; and one of 64 rows, where the heads are small enough.
#include <algorithm>
#include <string>
#include <vector>

#include "backend/gpu/gpu_backend.h"
#include "base/env.h"
#include "kernels/params/attention.h"

namespace quire::gpu {
namespace {

constexpr int64_t kScratchBytes = int64_t{256} << 20;  // a larger need is met by several launches
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

uint32_t ceil_div(int64_t a, int64_t b) {
  return static_cast<uint32_t>((a + b - 1) / b);
}

// What the host knows of a step's sequences.
struct Extent {
  int64_t rows = 0;                     // of q
  int64_t most_queries = 0;             // of one sequence
  int64_t most_few = 0, few = 0;        // of sequences whose rows fit one tile: the longest, and how many there are
  int64_t many = 0;                     // rows of the others
  bool one_each = false;                // every sequence has one row
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
  e.one_each = e.most_queries == 1 && e.rows == static_cast<int64_t>(contexts.size());
  return e;
}

// Splits that rows of `tokens` neighbouring positions may see, of a context of `positions`.
int splits_of(const AttentionParams& p, int64_t positions, int64_t tokens) {
  int64_t splits = ceil_div(positions, kAttentionSplitPositions);
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
  p.q_scale = args.soft_cap > 0 ? args.scale / args.soft_cap : args.scale * kLog2E;
  p.cap = args.soft_cap > 0 ? args.soft_cap * kLog2E : 0;
  p.least_queries = 1;
  p.most_queries = INT32_MAX;
  return p;
}

// One launch, or several of at most so many threadgroups that what they keep fits the scratch, each followed by its
// merge.
struct Form {
  std::string kernel;
  AttentionParams params;
  std::vector<int32_t> map;   // (sequence, first token) of each group of tokens, where they are not searched for
  int64_t all = 0, some = 0;  // threadgroups, and those of one launch
  int64_t scratch = 0;        // bytes
};

int64_t slot_bytes(const AttentionParams& p) {
  return int64_t{p.partial_rows} * (p.partial_dim + 2) * int64_t{sizeof(float)};
}

Form form_of(const AttentionArgs& args, const AttentionParams& p, const char* kernel, bool one_split) {
  Form form;
  form.params = p;
  const int dim = std::max(p.kv.head_dim, p.kv.v_dim);
  form.kernel = std::string(kernel) + spelling(args.q.dtype);
  if (p.tokens_a_group > p.tile_tokens && dim <= 64) {
    form.kernel += "_d64";
  } else if (args.q.dtype != DType::kF32) {
    form.kernel += dim <= 128 ? "_d128" : dim <= 256 ? "_d256" : "_d576";
  }
  const int64_t slot = slot_bytes(p) * std::max(p.splits, 1);
  form.all = int64_t{p.groups} * p.kv.kv_heads * p.head_tiles;
  form.some = one_split ? form.all : std::clamp<int64_t>(kScratchBytes / slot, 1, form.all);
  form.scratch = one_split ? 0 : form.some * slot;
  return form;
}

// A threadgroup finds its tokens by a search, which needs no array of the host's: a sequence's first group of tokens is
// (its first row / tokens of a group) + its number, so there may be some idle ones. QUIRE_ATTENTION_FIND=map has the
// host make a map instead, to measure what the search costs.
void find_by_map(Form& form, std::span<const int32_t> cu) {
  AttentionParams& p = form.params;
  for (int seq = 0; seq < p.seqs; ++seq) {
    const int queries = cu[static_cast<size_t>(seq) + 1] - cu[static_cast<size_t>(seq)];
    if (queries < p.least_queries) continue;
    for (int token = 0; token < queries; token += p.tokens_a_group) {
      form.map.push_back(seq);
      form.map.push_back(token);
    }
  }
  p.mapped = 1;
  p.groups = static_cast<int>(form.map.size() / 2);
  form.all = int64_t{p.groups} * p.kv.kv_heads * p.head_tiles;
}

// Sequences with more rows than a tile.
Form many_form(const AttentionArgs& args, AttentionParams p, const Extent& e, int compute_units) {
  const auto groups = [&](int tokens) { return static_cast<int>(e.rows / tokens + p.seqs); };
  const bool one_split = e.many_span <= kAttentionSplitPositions;
  const bool small_heads = std::max(p.kv.head_dim, p.kv.v_dim) <= 128 && p.head_tiles == 1;
  const int64_t wide_groups = e.many / (4 * p.tile_tokens) * p.kv.kv_heads;
  p.splits = 0;
  if (args.q.dtype != DType::kF32 && small_heads && (one_split || 2 * wide_groups >= compute_units)) {
    p.tokens_a_group = 4 * p.tile_tokens;
    p.groups = groups(p.tokens_a_group);
    p.partial_rows = 4 * kAttentionRowTile;
    return form_of(args, p, "attention_rows_", one_split);
  }
  p.groups = groups(p.tokens_a_group);
  p.partial_rows = p.tile_heads * p.tile_tokens;
  // Where rows are too few to fill the device, splits stand apart.
  const int splits = splits_of(p, e.many_span, p.tile_tokens);
  const int64_t slots = int64_t{p.groups} * p.kv.kv_heads * p.head_tiles;
  if (!one_split && slots < 2 * compute_units && slots * splits * slot_bytes(p) <= kScratchBytes) p.splits = splits;
  return form_of(args, p, "attention_", one_split);
}

std::vector<Form> forms_of(const AttentionArgs& args, AttentionParams p, const Extent& e, int compute_units) {
  std::vector<Form> forms;
  if (e.few > 0) {
    p.by_sequence = 1;
    p.groups = p.seqs;
    p.most_queries = p.tile_tokens;
    p.partial_rows = p.tile_heads * static_cast<int>(e.most_few);
    p.splits = splits_of(p, e.one_each ? int64_t{p.max_blocks} * p.kv.block_size : e.few_span, e.most_few);
    forms.push_back(form_of(args, p, "attention_", p.splits == 1));
  }
  if (e.many > 0) {
    p.by_sequence = 0;
    p.least_queries = p.tile_tokens + 1;
    p.most_queries = INT32_MAX;
    forms.push_back(many_form(args, p, e, compute_units));
  }
  return forms;
}

}  // namespace

// Forms keep at most 64 rows a threadgroup. Contexts of one split keep nothing.
size_t GpuBackend::attention_scratch(const WorkspaceLimits& sizes) const {
  const int64_t splits = ceil_div(sizes.positions, kAttentionSplitPositions);
  if (splits <= 1 || sizes.heads == 0) return 0;
  const int64_t row = (ceil_div(sizes.head_dim, 64) * 64 + 2) * int64_t{sizeof(float)};
  const int64_t slot = 4 * kAttentionRowTile * row * splits;
  // A head of q is in one tile, and a group of tokens has at least one.
  const double all = static_cast<double>(sizes.tokens + sizes.seqs) * static_cast<double>(sizes.heads * slot);
  return static_cast<size_t>(
      std::max(slot, all < static_cast<double>(kScratchBytes) ? static_cast<int64_t>(all) : kScratchBytes));
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
  launch((std::string("reshape_and_cache_") + spelling(args.k.dtype)).c_str(), p,
         {kv.pages, args.k.data, args.v.data, args.slot_mapping.data()},
         {ceil_div(int64_t{p.tokens} * p.sides * p.kv.kv_heads, kCacheRows)}, 32 * kCacheRows);
}

// A simdgroup holds a head in registers.
bool GpuBackend::joins_qkv(const QkvToCacheArgs& args) const {
  return !args.kv.v_in_k && args.kv.head_dim <= 256 && args.kv.v_dim() <= 256 && args.rot_dim <= args.kv.head_dim;
}

void GpuBackend::qkv_to_cache(const QkvToCacheArgs& args) {
  const KvLayer& kv = args.kv;
  check(args);
  QUIRE_CHECK(joins_qkv(args));
  if (args.q.rows == 0 || join_qkv(args)) return;
  QkvToCacheParams p = {};
  p.kv = pages_of(kv);
  p.q_stride = args.q.stride;
  p.k_stride = args.k.stride;
  p.v_stride = args.v.stride;
  p.tokens = static_cast<int>(args.q.rows);
  p.heads = static_cast<int>(args.num_heads);
  p.rot_dim = static_cast<int>(args.rot_dim);
  p.interleaved = args.interleaved;
  p.normed_q = args.q_norm != nullptr;
  p.normed_k = args.k_norm != nullptr;
  p.eps = args.eps;
  launch((std::string("qkv_to_cache_") + spelling(args.q.dtype)).c_str(), p,
         {args.q.data, args.k.data, args.v.data, kv.pages, args.slot_mapping.data(), args.positions.data(), args.q_norm,
          args.k_norm, args.cos_table, args.sin_table},
         {ceil_div(int64_t{p.tokens} * (p.heads + 2 * p.kv.kv_heads), kCacheRows)}, 32 * kCacheRows);
}

// Where every sequence has one token, grids follow from the number of sequences and the width of the tables alone, so
// that a recorded step serves every context that fits the tables.
void GpuBackend::attention(const AttentionArgs& args) {
  check(args);
  QUIRE_CHECK(args.q.rows < INT32_MAX && args.max_blocks * args.kv.block_size < INT32_MAX);
  if (args.q.rows == 0) return;
  const AttentionParams params = params_of(args);
  const Extent e = extent_of(staged(args.cu_seqlens_q), staged(args.context_lens), params.tile_tokens,
                             args.max_blocks * args.kv.block_size);
  QUIRE_CHECK(e.rows == args.q.rows);
  if (join_attention(args, e.one_each) || attention_on_hopper(args, e.one_each)) return;
  const std::string merge = std::string("attention_merge_") + spelling(args.q.dtype);
  std::vector<Form> forms = forms_of(args, params, e, device_->info().compute_units);
  for (Form& form : forms) {
    if (form.params.by_sequence == 0 && env("QUIRE_ATTENTION_FIND") == "map") {
      find_by_map(form, staged(args.cu_seqlens_q));
    }
    const void* map = form.map.empty() ? nullptr : stage(std::as_bytes(std::span(form.map)));
    AttentionParams p = form.params;
    void* partials = form.scratch == 0 ? nullptr : partials_.grow(*device_, static_cast<size_t>(form.scratch));
    for (int64_t first = 0; first < form.all; first += form.some) {
      p.first = static_cast<int>(first);
      const auto x = static_cast<uint32_t>(std::min(form.some, form.all - first));
      launch(form.kernel.c_str(), p,
             {args.out.data, args.q.data, args.kv.pages, args.cu_seqlens_q.data(), args.context_lens.data(),
              args.block_tables.data(), args.sinks, partials, map},
             {x, static_cast<uint32_t>(std::max(p.splits, 1))}, kAttentionThreads);
      if (p.splits <= 1) continue;
      launch(merge.c_str(), p,
             {args.out.data, partials, args.cu_seqlens_q.data(), args.context_lens.data(), args.sinks, map},
             {x, static_cast<uint32_t>(p.partial_rows)}, kAttentionThreads);
    }
  }
}

}  // namespace quire::gpu
