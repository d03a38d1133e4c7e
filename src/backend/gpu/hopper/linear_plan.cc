// SPDX-License-Identifier: Apache-2.0
// Plans of sm_90a's products.
#include "backend/gpu/hopper/linear_plan.h"

#include <algorithm>

#include "backend/gpu/grid_math.h"

namespace quire::gpu {
namespace {

constexpr int kFewStageBytes = 16 * (128 * 2 + 16);  // of linear_few: 16 rows of W, 128 k
constexpr int kFewInFlight = 32 * 1024;              // bytes that linear_quantised_few has requested ahead
constexpr int kQuantisedWideInFlight = 64 * 1024;    // the same for linear_quantised_wide
constexpr int kQuantisedWideFewestStages = 2;        // of x

// linear_tall in several launches: up to so many rows of x, and launches.
constexpr int kHopperSeveralRows = 16;
constexpr int kHopperMostLaunches = 2;  // with more, the gaps between them cost more than narrow tiles gain

int groups(int items, int each) {
  return (items + each - 1) / each;
}

// The bytes of a piece of a panel: codes, then the scales of its steps.
int piece_bytes(const WeightParams& w) {
  const bool by_two = w.scheme == kSchemeScale || w.scheme == kSchemeScaleMin || w.scheme == kSchemeExponent;
  const bool grouped = w.scheme == kSchemeGroup || w.scheme == kSchemeE4M3, has_subs = !by_two && !grouped;
  const int head_bytes = w.scheme == kSchemeGroup                                  ? 8
                         : w.scheme == kSchemeExponent                             ? 1
                         : w.scheme == kSchemeScale || w.scheme == kSchemeSubScale ? 2
                                                                                   : 4;
  const int head_steps = grouped ? w.group_steps : by_two ? 2 : kHopperPieceSteps;
  const int heads = head_steps < kHopperPieceSteps ? kHopperPieceSteps / head_steps + 1 : 1;
  const int sub_steps = w.scheme == kSchemeSuperMin ? 2 : 1 << w.sub_shift,
            sub_bytes = w.scheme == kSchemeSuperMin ? 32 : 16;
  return kHopperPieceSteps * 32 * (w.low_bits + w.high_bits) + heads * 16 * head_bytes +
         (has_subs ? kHopperPieceSteps / sub_steps * sub_bytes : 0);
}

// What does not depend on how the work is divided.
void set_pieces(HopperQuantisedParams& p) {
  const WeightParams& w = p.weight;
  const auto steps = static_cast<uint>(w.group_steps);
  p.group_inverse = w.group_steps < 2 ? 0 : static_cast<uint>((0x100000000ull + steps - 1) / steps);
  const bool zero_points = w.scheme == kSchemeGroup && w.low_bits == 4 && w.zero_points != 0;
  p.kind = hopper_quantised_kind(w.low_bits, w.high_bits, w.table, zero_points ? kHopperSchemeZeroPoint : w.scheme);
  p.panels = groups(p.linear.n, 16);
  p.gate_panels = p.linear.n / 32;
  p.slot_bytes = piece_bytes(w);
}

// Bytes of x where it stays in shared memory as a whole. The chains read past the end of a row, up to a whole chunk. A
// row whose norm is computed first stands there as floats.
i64 resident_bytes(const HopperLinearParams& l) {
  return i64{l.m} * (l.k + 8) * 2 + 256 + (l.normed ? i64{l.k} * 4 : 0);
}

// linear_quantised_few: the kernel of a kind of weights, and the bytes of the scales of one of its pieces.
struct FewKernel {
  KernelId kernel = KernelId::kNone;
  int scale_bytes = 0;
};
FewKernel few_kernel(int kind) {
  switch (kind) {
#define QUIRE_FEW_KERNEL(name, low, high, table, scheme) \
  case hopper_quantised_kind(low, high, table, scheme):  \
    return {KernelId::kHopperFew_##name, HopperPieceScales<table, scheme>::bytes};
    HOPPER_QUANTISED_KINDS(QUIRE_FEW_KERNEL)
#undef QUIRE_FEW_KERNEL
    default:
      return {};
  }
}
KernelId wide_kernel(int kind, int rows) {
  switch (kind) {
#define QUIRE_WIDE_KERNEL(name, low, high, table, scheme) \
  case hopper_quantised_kind(low, high, table, scheme):   \
    return rows == 16   ? KernelId::kHopperWide16_##name  \
           : rows == 32 ? KernelId::kHopperWide32_##name  \
                        : KernelId::kHopperWide64_##name;
    HOPPER_QUANTISED_KINDS(QUIRE_WIDE_KERNEL)
#undef QUIRE_WIDE_KERNEL
    default:
      return KernelId::kNone;
  }
}
// Whether groups that share a scale begin with a piece, and have whole pairs of steps.
bool groups_fit_pieces(const WeightParams& w) {
  if (w.scheme != kSchemeGroup && w.scheme != kSchemeE4M3) return true;
  return w.group_steps % 2 == 0 && (kHopperPieceSteps % w.group_steps == 0 || w.group_steps % kHopperPieceSteps == 0);
}
// Warps of a threadgroup, and the bytes of shared memory.
int few_warps(const HopperQuantisedParams& p) {
  return p.at_once * p.turns;
}
i64 few_memory(const HopperQuantisedParams& p) {
  const i64 each = i64{p.depth} * p.slot_bytes + p.scale_bytes, sums = 32 * 16 + 2 * 8 * 16 * 4;
  return few_warps(p) * each + p.at_once * sums + resident_bytes(p.linear);
}
// Sets the turns, if there are enough warps and barriers: each warp that takes turns has one, each pair of gate and up,
// too.
bool set_turns(HopperQuantisedParams& p, int turns) {
  const int warps = p.at_once * turns, handing_on = turns > 1 ? warps : 0;
  const int gates = p.linear.epilogue == kHopperGated ? p.at_once / 2 : 0;
  p.turns = turns;
  p.gate_barrier = 1 + handing_on;
  return 32 * warps <= kHopperFewQuantisedThreads && handing_on + gates <= kHopperFewBarriers;
}

// Chooses how many pieces a warp requests ahead; false if they do not fit beside x. A warp alone with its tile unpacks
// the next piece while it still multiplies the one before.
bool fit_pieces(HopperQuantisedParams& p, int scale_bytes) {
  const bool alone = p.turns == 1;
  const i64 piece = i64{few_warps(p)} * p.slot_bytes;
  p.scale_bytes = (alone ? 2 : 1) * scale_bytes;
  p.depth = alone ? kHopperPieceDepth
                  : std::min<int>(static_cast<int>((kFewInFlight + piece - 1) / piece), kHopperPieceDepth);
  while (p.depth > (alone ? 2 : 1) && few_memory(p) > kHopperMostShared) p.depth--;
  return few_memory(p) <= kHopperMostShared;
}

}  // namespace

HopperLinearPlan hopper_linear_plan(HopperLinearParams& p, int multiprocessors) {
  if (p.m < 1 || p.m > kHopperFewRows || p.k % 16 != 0) return {};
  p.tiles = p.epilogue == kHopperGated ? groups(p.n / 2, 8) : groups(p.n, 16);
  const int per_group = groups(p.tiles, multiprocessors);
  p.active_warps = std::min(per_group, 4);
  const bool deep = p.active_warps == 1;
  const i64 memory = i64{p.active_warps} * (deep ? 24 : 8) * kFewStageBytes + i64{p.m} * (p.k + 8) * 2 + 256;
  if (p.m <= 16 && memory <= kHopperMostShared) {
    const KernelId kernel = p.m <= 8 ? (deep ? KernelId::kHopperLinearM8D24 : KernelId::kHopperLinearM8D8)
                                     : (deep ? KernelId::kHopperLinearM16D24 : KernelId::kHopperLinearM16D8);
    return {kernel, groups(p.tiles, per_group), kHopperFewThreads, static_cast<int>(memory)};
  }
  if (p.normed || p.k % 64 != 0) return {};
  const int rows = p.m <= 16 ? 16 : 32;
  return {rows == 16 ? KernelId::kHopperLinearM16Wide : KernelId::kHopperLinearM32Wide, groups(p.tiles, 4),
          kHopperLinearThreads, hopper_wide_stages(rows) * (64 + rows) * 128 + 1024};
}

HopperTallPlan hopper_tall_plan(const HopperLinearParams& p, bool adapted, int multiprocessors) {
  HopperTallPlan plan;
  const bool gated = p.epilogue == kHopperGated, residual = p.epilogue == kHopperResidual;
  if (p.m > kHopperTallRows || p.k % 16 != 0 || p.n % (gated ? 16 : 8) != 0 || p.normed) return plan;
  if (p.out_stride % 2 != 0 || p.residual_stride % 2 != 0) return plan;
  const int width = groups(groups(p.n, multiprocessors), 16) * 16;  // of a wide tile
  for (const HopperTallTile& tile : kHopperTallTiles) {
    if (p.m < tile.first || p.m > tile.last) continue;
    const bool pair = tile.peers == 2, wide = is_wide(tile);
    if (wide && (residual || width > tile.w_rows || (p.m > 64 && width < kHopperTallLeastWidth))) continue;
    const int w_rows = wide ? width : tile.w_rows;
    const int layers = groups(p.m, tile.x_rows * tile.peers), parts = layers * tile.peers;
    const int grid = groups(p.n, w_rows) * parts, launches = groups(grid, multiprocessors);
    const bool several = p.m <= kHopperSeveralRows && tile.w_rows == 48 && launches <= kHopperMostLaunches;
    if (launches > 1 && !several) continue;
    plan.kernel = tile.kernel;
    plan.beats_library = launches == 1 && tall_beats_library(p, adapted, tile, grid, multiprocessors);
    plan.grid = grid;
    plan.launches = launches;
    plan.threads = hopper_tall_threads(tile.w_rows, tile.x_rows);
    plan.lora_threads = hopper_tall_lora_threads(tile.w_rows, tile.x_rows, false);
    plan.lora_first_threads = hopper_tall_lora_threads(tile.w_rows, tile.x_rows, true);
    plan.stages = hopper_tall_most_stages(tile.w_rows, tile.x_rows);
    plan.fewest_stages = wide ? int{kHopperTallFewestStages} : plan.stages - 1;
    plan.stage_bytes = hopper_tall_stage_bytes(tile.w_rows, tile.x_rows);
    plan.lora_items = hopper_tall_lora_items(tile.w_rows);
    plan.rows = groups(groups(p.m, parts), 8) * 8;
    plan.w_rows = w_rows;
    plan.layers = layers;
    plan.w_box = gated || pair ? w_rows / 2 : w_rows;
    plan.w_halves = gated ? 2 : 1;
    plan.w_box_halves = gated && !pair ? 2 : 1;
    break;
  }
  return plan;
}

bool hopper_tall_joins_lora(const HopperTallPlan& plan, int k, int64_t runs, int groups_of_ranks) {
  const int64_t items = runs * groups_of_ranks * kHopperLoraCluster;
  if (items == 0 || plan.launches != 1 || items > int64_t{kHopperLoraMostItems} * plan.grid) return false;
  const int64_t each = (items + plan.grid - 1) / plan.grid, bytes = int64_t{k} * plan.w_rows * 2;
  return each * kHopperLoraHidingBytes <= bytes;
}

// A threadgroup has as many tiles at once as a multiprocessor has to serve, or a part of these; few tiles have several
// warps each, so that the chain does not wait for values.
HopperLinearPlan hopper_quantised_few_plan(HopperQuantisedParams& p, int multiprocessors) {
  HopperLinearParams& l = p.linear;
  const WeightParams& w = p.weight;
  const bool gated = l.epilogue == kHopperGated;
  if (l.m < 1 || l.m > kHopperQuantisedFewRows || l.k % 64 != 0 || l.k > 1 << 20) return {};
  if (w.form != kWeightQuantised || (gated && l.n % 32 != 0)) return {};
  if (l.normed && l.m > kHopperQuantisedNormRows) return {};
  if (!groups_fit_pieces(w)) return {};
  set_pieces(p);
  p.units = gated ? p.gate_panels : p.panels;
  p.x_row = (l.k + 8) * 2;
  const FewKernel few = few_kernel(p.kind);
  if (few.kernel == KernelId::kNone) return {};
  const int each = gated ? 2 : 1, grid = std::min(p.units, multiprocessors), most = groups(p.units, grid);
  p.at_once = each * groups(most, groups(most, kHopperFewAtOnce / each));
  for (int turns = std::min<int>(kHopperFewTurns, groups(l.k, 256)); turns >= 1; turns--) {
    if (!set_turns(p, turns) || !fit_pieces(p, few.scale_bytes)) continue;
    if (l.normed && few_warps(p) < 2) continue;  // two warps compute a norm
    return {few.kernel, grid, 32 * few_warps(p), static_cast<int>(few_memory(p))};
  }
  return {};
}

namespace {

// What both plans need; false if the kernel does not serve the product.
bool set_wide_product(HopperQuantisedParams& p) {
  const HopperLinearParams& l = p.linear;
  const bool gated = l.epilogue == kHopperGated;
  if (l.m < 1 || l.m > kHopperQuantisedWideRows || l.k % 64 != 0 || l.k > 1 << 20 || l.normed != 0) return false;
  if (p.weight.form != kWeightQuantised || (gated && l.n % 32 != 0) || l.n % 4 != 0) return false;
  if (l.out_stride % 4 != 0 || l.residual_stride % 4 != 0 || !groups_fit_pieces(p.weight)) return false;
  set_pieces(p);
  p.units = gated ? groups(p.gate_panels, 2) : groups(p.panels, 4);
  return true;
}

// The launch of the kernel for up to `rows` rows of x, whose tiles at once have been chosen.
HopperLinearPlan wide_launch(HopperQuantisedWideParams& wide, int rows, int grid) {
  HopperQuantisedParams& p = wide.product;
  const int most_groups = hopper_quantised_wide_groups(rows);
  p.turns = hopper_quantised_wide_turns(rows) ? std::min(most_groups / p.at_once, groups(p.linear.k, 256)) : 1;
  const int in_all = p.at_once * p.turns;
  p.scale_bytes = few_kernel(p.kind).scale_bytes;
  const int left = kHopperMostShared - kHopperQuantisedWideAlignment -
                   in_all * (4 * p.scale_bytes + hopper_quantised_wide_sums(rows));
  const int piece = 4 * in_all * p.slot_bytes, stage = hopper_quantised_wide_stage(rows);
  p.depth = std::clamp(groups(kQuantisedWideInFlight, piece), 2, int{kHopperPieceDepth});
  while (p.depth > 1 && left - p.depth * piece < (kQuantisedWideFewestStages + 1) * stage) p.depth--;
  wide.stages = std::min((left - p.depth * piece) / stage, int{kHopperQuantisedWideStages});
  if (wide.stages < std::max(p.turns, kQuantisedWideFewestStages)) return {};
  return {wide_kernel(p.kind, rows), grid, 128 * in_all + 32,
          kHopperMostShared - left + p.depth * piece + wide.stages * stage};
}

}  // namespace

// As many tiles at once as a multiprocessor has to serve, or a part of these. A tile alone has several warpgroups, and
// no more rows of x than leave them room; other threadgroups have the other rows.
HopperQuantisedWidePlan hopper_quantised_wide_plan(HopperQuantisedWideParams& wide, int multiprocessors) {
  HopperQuantisedParams& p = wide.product;
  if (!set_wide_product(p)) return {};
  const int m = p.linear.m;
  HopperQuantisedWidePlan plan;
  const int most_rows = p.units * groups(m, 32) > multiprocessors ? 64 : 32;
  plan.parts = groups(m, most_rows);
  while (plan.parts * 2 * p.units <= multiprocessors && m > 16 * plan.parts) plan.parts *= 2;
  wide.rows = groups(groups(m, plan.parts), 8) * 8;
  plan.parts = groups(m, wide.rows);
  const int grid = std::min(p.units, std::max(1, multiprocessors / plan.parts)), most = groups(p.units, grid);
  // Of the kernel: only that for many rows has four tiles at once.
  const int rows = wide.rows > 32 || most == hopper_quantised_wide_groups(64) ? 64 : wide.rows > 16 ? 32 : 16;
  p.at_once = groups(most, groups(most, hopper_quantised_wide_groups(rows)));
  plan.launch = wide_launch(wide, rows, grid);
  return plan;
}

// Each threadgroup has a multiprocessor, and a tile at a time, unless warpgroups cannot share one.
HopperLinearPlan hopper_quantised_experts_plan(HopperQuantisedWideParams& wide, int multiprocessors) {
  HopperQuantisedParams& p = wide.product;
  if (p.linear.m > 64 || !set_wide_product(p)) return {};
  wide.rows = p.linear.m;
  const int rows = wide.rows > 32 ? 64 : wide.rows > 16 ? 32 : 16;
  p.at_once = hopper_quantised_wide_turns(rows) ? 1 : hopper_quantised_wide_groups(rows);
  while (p.units % p.at_once != 0) p.at_once--;
  return wide_launch(wide, rows, multiprocessors);
}

}  // namespace quire::gpu
