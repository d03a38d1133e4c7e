// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts by the kernels of sm_90a: the rows of x are sorted by expert, both products run on sorted rows,
// and the weighted sum finds each choice's row. The host never learns how many tokens an expert has.
#include <algorithm>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/grid_math.h"
#include "backend/gpu/hopper/linear_plan.h"
#include "backend/gpu/hopper/ops.h"

namespace quire::gpu::hopper {
namespace {

constexpr int64_t kSortGroups = 128;  // threadgroups of the sort; each copies a part of the rows
// Choices per expert, on average, from which on quantised experts become plain ones first, and bytes of those at once.
// A prefill with 512 choices for each expert in AWQ (2048 x 768) is 1.1 times as fast without that, one with 1,024 for
// each in MXFP4 (2880 x 2880) 0.8 times as fast. Layouts that linear_quantised_wide does not serve gain from it sooner.
constexpr int64_t kDequantisedChoices = 768, kDequantisedUnserved = 32;
constexpr int64_t kExpandedBytes = int64_t{512} << 20;
// Choices per expert up to which MXFP4 has a kernel of its own: at 16 a step of GPT-OSS-20B takes 0.9 of the time that
// it takes with linear_quantised_wide, at 32 1.26.
constexpr int64_t kFp4Choices = 24;
// Shared memory of the two products of few rows in MXFP4, at least.
constexpr int64_t kFp4FirstBytes = 118 << 10, kFp4SecondBytes = 102 << 10;

// Rows in a tile: enough for the choices of most experts, so that few weights are read twice, and few more, because the
// rest of a tile is padding. `most` is what the kernels take.
int64_t tile_rows_for(int64_t choices, int64_t experts, int64_t most) {
  int64_t rows = 8;
  while (rows < most && 5 * choices > 4 * rows * experts) rows *= 2;
  return rows;
}

// Tiles that there must be room for.
int64_t tiles_for(int64_t choices, int64_t experts, int64_t tile_rows) {
  return choices / tile_rows + std::min(experts, choices);
}

// Whether an expert has so many choices, on average.
bool has_choices(const MoeExpertsArgs& args, int64_t each) {
  return args.x.rows * args.k >= each * static_cast<int64_t>(args.gate_up.size());
}

bool in_fp4(const MoeExpertsArgs& args) {
  return args.gate_up[0]->dtype() == DType::kMXFP4 && args.down[0]->dtype() == DType::kMXFP4 &&
         args.x.dtype == DType::kBF16 && !has_choices(args, kFp4Choices);
}

// Whether linear_quantised_wide serves these experts, which their layout decides.
bool unpacks(const GpuBackend& gpu, const Experts& experts, bool gated) {
  HopperQuantisedWideParams p = {};
  p.product.linear.m = 64;
  p.product.linear.n = experts.weight.n;
  p.product.linear.k = experts.weight.k;
  p.product.linear.epilogue = gated ? kHopperGated : kHopperStore;
  p.product.weight = experts.weight;
  return hopper_quantised_experts_plan(p, gpu.device().info().compute_units).kernel != KernelId::kNone;
}

KernelId plain_kernel(int64_t rows) {
  switch (rows) {
    case 8:
      return KernelId::kHopperMoeR8;
    case 16:
      return KernelId::kHopperMoeR16;
    case 32:
      return KernelId::kHopperMoeR32;
    case 64:
      return KernelId::kHopperMoeR64;
    default:
      return KernelId::kHopperMoeR128;
  }
}

// Where the choices of a call are in scratch.
struct Buffers {
  int* places;                // [choices]
  int* experts;               // [tiles], and then the rows of each tile
  Tensor x, both, hidden, y;  // both: gate and up, with adapters
};

// One product of the sorted rows.
struct Product {
  const Experts& experts;
  std::span<const PackedMatrix* const> matrices;
  const void* weights;  // of the first
  Tensor x, out;
  HopperEpilogue epilogue;
  bool early;
  bool dequantised;  // quantised experts become plain ones first
};

HopperLinearParams params_of(const MoeExpertsArgs& args, const Product& product) {
  HopperLinearParams p = {};
  p.n = product.experts.weight.n;
  p.k = product.experts.weight.k;
  p.x_stride = static_cast<int>(product.x.stride);
  p.out_stride = static_cast<int>(product.out.stride);
  p.epilogue = product.epilogue;
  p.activation = static_cast<int>(args.activation);
  p.limit = args.limit;
  p.biased = product.experts.bias != nullptr;
  return p;
}

bool is_plain(const Experts& experts, DType type) {
  return experts.weight.form == (type == DType::kF16 ? kWeightF16 : kWeightBF16);
}

// Experts [first, first + count), whose plain weights are at `weights`.
struct ExpertRange {
  const void* weights;
  int64_t first, count;
};

bool run_plain(GpuBackend& gpu, const MoeExpertsArgs& args, const Product& product, const ExpertRange& range,
               const Buffers& s, int64_t tile_rows, int64_t tiles, bool dry) {
  const WeightParams& w = product.experts.weight;
  const bool gated = product.epilogue == kHopperGated;
  if (w.k % 16 != 0 || w.n % (gated ? 4 : 2) != 0) return false;
  HopperMoeParams p = {};
  p.linear = params_of(args, product);
  p.first = static_cast<int>(range.first);
  p.experts = static_cast<int>(range.count);
  p.early = product.early;
  const int rows_of_w = 64 * hopper_moe_groups(static_cast<int>(tile_rows));
  if (!gpu.device().map_rows({range.weights, range.count * w.n, w.k, w.k, 1, rows_of_w / 2, 1}, &p.w) ||
      !gpu.device().map_rows({product.x.data, product.x.rows, w.k, product.x.stride, 1, static_cast<int>(tile_rows), 1},
                             &p.x)) {
    return false;
  }
  if (dry) return true;
  gpu.launch({plain_kernel(tile_rows), args.x.dtype}, p, {product.out.data, product.experts.bias, s.experts},
             {grid_div(gated ? w.n / 2 : w.n, gated ? rows_of_w / 2 : rows_of_w), static_cast<uint32_t>(tiles)},
             static_cast<uint32_t>(hopper_moe_threads(static_cast<int>(tile_rows))),
             static_cast<uint32_t>(hopper_moe_memory(static_cast<int>(tile_rows))));
  return true;
}

bool run_quantised(GpuBackend& gpu, const MoeExpertsArgs& args, const Product& product, const Buffers& s,
                   int64_t tile_rows, int64_t tiles, bool dry) {
  HopperQuantisedWideParams p = {};
  p.product.linear = params_of(args, product);
  p.product.linear.m = static_cast<int>(tile_rows);
  p.product.weight = product.experts.weight;
  p.row_tiles = static_cast<int>(tiles);
  p.late = !product.early;
  const HopperLinearPlan plan = hopper_quantised_experts_plan(p, gpu.device().info().compute_units);
  const Tensor& x = product.x;
  if (plan.kernel == KernelId::kNone ||
      !gpu.device().map_rows({x.data, x.rows, product.experts.weight.k, x.stride, 1, p.rows, 1}, &p.x)) {
    return false;
  }
  if (dry) return true;
  gpu.launch({plan.kernel, args.x.dtype}, p,
             {product.out.data, product.weights, product.experts.bias, nullptr, s.experts},
             {static_cast<uint32_t>(plan.grid)}, static_cast<uint32_t>(plan.threads),
             static_cast<uint32_t>(plan.dynamic_memory));
  return true;
}

// MXFP4 with bf16 activations and few rows.
bool run_fp4(GpuBackend& gpu, const MoeExpertsArgs& args, const Product& product, const Buffers& s, int64_t tile_rows,
             int64_t tiles, bool dry) {
  const WeightParams& w = product.experts.weight;
  const bool gated = product.epilogue == kHopperGated;
  if (w.form != kWeightQuantised || w.scheme != kSchemeExponent || args.x.dtype != DType::kBF16) return false;
  if (tile_rows > kHopperFp4Rows || w.k % 32 != 0 || w.n % (gated ? 32 : 16) != 0) return false;
  HopperMoeFp4Params p = {};
  p.linear = params_of(args, product);
  p.linear.m = static_cast<int>(std::min(tile_rows, args.x.rows));
  p.linear.tiles = w.n / 16;
  p.weight = w;
  p.tile_rows = static_cast<int>(tile_rows);
  p.max_tiles = static_cast<int>(tiles);
  p.early = product.early;
  const auto experts = static_cast<int64_t>(args.gate_up.size());
  const int64_t all = p.linear.tiles * std::min(experts, args.x.rows * args.k);
  const int64_t each = grid_div(all, gpu.device().info().compute_units);
  int warps = tile_rows > 8 ? kHopperFp4Threads / 32 : 8;
  int64_t least = 0;
  if (tile_rows <= 8 && each <= kHopperFp4Threads / 32) {
    // One threadgroup per multiprocessor, and so much memory that no two of a product share one, but the second product
    // can begin beside the first.
    warps = std::max(2, static_cast<int>(each));
    least = product.early ? kFp4SecondBytes : kFp4FirstBytes;
  }
  const auto memory = [&] {
    return std::max<int64_t>(least, hopper_fp4_memory(warps, static_cast<int>(tile_rows), p.linear.m, w.k));
  };
  while (warps > 4 && memory() > kHopperMostShared) warps -= 2;
  if (memory() > kHopperMostShared) return false;
  if (dry) return true;
  gpu.launch({tile_rows > 8 ? KernelId::kHopperMoeFp4M16 : KernelId::kHopperMoeFp4M8}, p,
             {product.out.data, product.x.data, product.weights, product.experts.bias, s.experts},
             {grid_div(p.linear.tiles, warps), static_cast<uint32_t>(tiles)}, static_cast<uint32_t>(32 * warps),
             static_cast<uint32_t>(memory()));
  return true;
}

// How many experts of so many bytes are expanded at once. What was not taken at load may be gone to pages by now, so
// memory is only added where plenty is left.
int64_t expanded_at_once(GpuBackend& gpu, int64_t bytes, int64_t experts) {
  constexpr size_t kKeptFree = size_t{1} << 30;
  const int64_t wanted = std::clamp<int64_t>(kExpandedBytes / bytes, 1, experts);
  const int64_t held = static_cast<int64_t>(gpu.scratch().products.bytes()) / bytes;
  if (held >= wanted || gpu.device().free_bytes() > static_cast<size_t>(wanted * bytes) + kKeptFree) return wanted;
  return std::clamp<int64_t>(held, 1, wanted);
}

// Many rows of quantised experts: some experts at a time become plain weights first. That costs less than to unpack the
// same weights for each of an expert's tiles.
bool run_dequantised(GpuBackend& gpu, const MoeExpertsArgs& args, Product product, const Buffers& s, int64_t tile_rows,
                     int64_t tiles, bool dry) {
  const WeightParams& w = product.experts.weight;
  const DType type = args.x.dtype;
  const int64_t bytes = int64_t{w.n} * w.k * info(type).block_bytes, all = static_cast<int64_t>(args.gate_up.size());
  const int64_t at_once = expanded_at_once(gpu, bytes, all);
  product.early = false;
  ExpertRange range = {gpu.scratch().products.grow(static_cast<size_t>(at_once * bytes)), 0, at_once};
  if (dry) return run_plain(gpu, args, product, range, s, tile_rows, tiles, true);
  for (; range.first < all; range.first += at_once) {
    range.count = std::min(at_once, all - range.first);
    // Rows of neighbouring experts are like those of one matrix.
    const int64_t together = w.n % 16 == 0 && w.expert_stride == w.n / 16 * w.stride ? range.count : 1;
    for (int64_t e = 0; e < range.count; e += together) {
      char* to = static_cast<char*>(const_cast<void*>(range.weights)) + e * bytes;
      gpu.dequantise_rows(gpu_matrix(product.matrices[static_cast<size_t>(range.first + e)]), 0,
                          {to, type, together * w.n, w.k, w.k});
    }
    run_plain(gpu, args, product, range, s, tile_rows, tiles, false);
  }
  return true;
}

bool run(GpuBackend& gpu, const MoeExpertsArgs& args, const Product& product, const Buffers& s, int64_t tile_rows,
         int64_t tiles, bool dry) {
  const ExpertRange all = {product.weights, 0, static_cast<int64_t>(args.gate_up.size())};
  if (is_plain(product.experts, args.x.dtype)) return run_plain(gpu, args, product, all, s, tile_rows, tiles, dry);
  if (product.dequantised) return run_dequantised(gpu, args, product, s, tile_rows, tiles, dry);
  if (run_fp4(gpu, args, product, s, tile_rows, tiles, dry)) return true;
  return product.experts.weight.form == kWeightQuantised && run_quantised(gpu, args, product, s, tile_rows, tiles, dry);
}

void sort(GpuBackend& gpu, const MoeExpertsArgs& args, const Buffers& s, int64_t tile_rows, int64_t tiles) {
  const int64_t choices = args.x.rows * args.k;
  HopperMoeSortParams p = {};
  p.choices = static_cast<int>(choices);
  p.of_token = static_cast<int>(args.k);
  p.experts = static_cast<int>(args.gate_up.size());
  p.tile_rows = static_cast<int>(tile_rows);
  p.max_tiles = static_cast<int>(tiles);
  p.pieces = static_cast<int>(args.x.cols / 8);
  p.x_stride = static_cast<int>(args.x.stride / 8);
  p.sorted_stride = static_cast<int>(s.x.stride / 8);
  gpu.launch(KernelId::kHopperMoeSort, p, {s.places, s.experts, s.x.data, args.ids, args.x.data},
             {static_cast<uint32_t>(std::min(choices, kSortGroups))}, kHopperMoeSortThreads);
}

// Bytes of the tables and of the sorted rows.
int64_t table_bytes(int64_t choices, int64_t tiles) {
  return round_up((choices + 2 * tiles) * 4, 256);
}
int64_t row_bytes(int64_t columns) {
  return round_up(columns, 8) * 2;
}

}  // namespace

bool moe_experts(GpuBackend& gpu, const MoeExpertsArgs& args, const Experts& gate_up, const Experts& down,
                 const Tensor& choices_out) {
  const DType type = args.x.dtype;
  const auto experts = static_cast<int64_t>(args.gate_up.size());
  if (!gpu.hopper() || type == DType::kF32 || experts > kHopperMoeSortExperts) return false;
  if (args.x.cols % 8 != 0 || !on_16_bytes(args.x) || args.x.stride > INT32_MAX) return false;
  const int64_t choices = args.x.rows * args.k, inner = down.weight.k;
  const bool unpacked = unpacks(gpu, gate_up, args.gated && args.lora == nullptr) && unpacks(gpu, down, false);
  const bool dequantised = has_choices(args, unpacked ? kDequantisedChoices : kDequantisedUnserved);
  const bool plain = (is_plain(gate_up, type) && is_plain(down, type)) || dequantised;
  const int64_t tile_rows = tile_rows_for(choices, experts, plain ? 128 : in_fp4(args) ? kHopperFp4Rows : 64);
  const int64_t tiles = tiles_for(choices, experts, tile_rows), rows = tiles * tile_rows;
  const int64_t tables = table_bytes(choices, tiles), columns = args.x.cols;
  const bool adapted = args.lora != nullptr;
  const int64_t both = adapted ? gate_up.weight.n : 0;
  auto* base = static_cast<char*>(gpu.scratch().moe.grow(static_cast<size_t>(
      tables + rows * (row_bytes(columns) + row_bytes(both) + row_bytes(inner) + row_bytes(args.out.cols)))));
  Buffers s;
  s.places = reinterpret_cast<int*>(base);
  s.experts = s.places + choices;
  auto take = [&, at = base + tables](int64_t cols) mutable {
    const Tensor out = {at, type, rows, cols, round_up(cols, 8)};
    at += rows * row_bytes(cols);
    return out;
  };
  s.x = take(columns);
  s.both = take(both);
  s.hidden = take(inner);
  s.y = take(args.out.cols);
  const HopperEpilogue epilogue = adapted ? kHopperStore : args.gated ? kHopperGated : kHopperActivated;
  const Product first = {
      gate_up, args.gate_up, gpu_matrix(args.gate_up[0]).data, s.x, adapted ? s.both : s.hidden, epilogue,
      false,   dequantised};
  const Product second = {down,     args.down,  gpu_matrix(args.down[0]).data, s.hidden, s.y, kHopperStore,
                          !adapted, dequantised};
  for (const Product* product : {&first, &second}) {
    if (!run(gpu, args, *product, s, tile_rows, tiles, true)) return false;
  }
  sort(gpu, args, s, tile_rows, tiles);
  GpuBackend::AdaptedChoices choices_of = {};
  if (adapted) choices_of = gpu.sort_adapted(args, s.places, rows);
  run(gpu, args, first, s, tile_rows, tiles, false);
  if (adapted) {
    gpu.adapt_choices(*args.lora, choices_of, false, s.x, 1, s.both);
    gpu.activate_experts(args, s.both, s.hidden);
  }
  run(gpu, args, second, s, tile_rows, tiles, false);
  if (adapted) gpu.adapt_choices(*args.lora, choices_of, true, s.hidden, 1, s.y);
  if (choices_out.data != nullptr) {
    gpu.copy_rows(s.y, s.places, choices_out);
  } else {
    gpu.moe_combine(args, s.y, s.places);
  }
  return true;
}

size_t moe_scratch(const GpuBackend& gpu, const WorkspaceLimits& sizes, int64_t choices) {
  if (!gpu.hopper()) return 0;
  size_t most = 0;
  // Fewer choices may need more rows of padding.
  for (int64_t some = choices; some > 0; some /= 2) {
    const int64_t tile_rows = tile_rows_for(some, sizes.experts, 128),
                  tiles = tiles_for(some, sizes.experts, tile_rows);
    // x, what is between the products, and the output.
    const int64_t row = 2 * row_bytes(sizes.expert_columns) + 32;
    most = std::max(most, static_cast<size_t>(table_bytes(some, tiles) + tiles * tile_rows * row));
  }
  return most;
}

}  // namespace quire::gpu::hopper
