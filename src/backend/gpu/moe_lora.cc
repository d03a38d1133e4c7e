// SPDX-License-Identifier: Apache-2.0
// Adapters of experts on a GPU: choices are sorted by expert and adapter, and each of lora's two products is one launch
// for all of them.
#include <algorithm>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/grid_math.h"
#include "kernels/params/lora.h"
#include "kernels/params/moe.h"

namespace quire::gpu {
namespace {

// Sums between the two products, which bound the choices that run at once.
constexpr int64_t kMostSumBytes = int64_t{64} << 20;

int64_t most_runs(int64_t choices, int64_t keys) {
  return choices / kLoraRows + std::min(choices, keys);
}

// Ints for the lists of so many choices: keys, the number of choices of each key, the sorted rows and the runs.
int64_t list_ints(int64_t choices, int64_t keys) {
  return round_up(choices, 64) + round_up(keys, 64) + most_runs(choices, keys) * (kLoraRows + 4);
}

// Sums of a row with an adapter.
int64_t sums_of_row(const GpuBackend& gpu, const MoeLora& lora, int64_t hidden, int64_t inner) {
  return std::max(gpu.lora_spans(hidden) * lora.gate_up_rank, gpu.lora_spans(inner) * lora.down_rank);
}

}  // namespace

int64_t GpuBackend::adapted_at_once(const MoeExpertsArgs& args, int64_t most) const {
  if (args.lora == nullptr) return most;
  const int64_t sums = sums_of_row(*this, *args.lora, args.x.cols, args.down[0]->k());
  return std::clamp(kMostSumBytes / (4 * sums), args.k, std::max(most, args.k));
}

size_t GpuBackend::adapter_scratch(const WorkspaceLimits& sizes) const {
  if (sizes.expert_rank == 0) return 0;
  const int64_t sums = lora_spans(sizes.expert_columns) * sizes.expert_rank;
  const int64_t choices = sizes.tokens * sizes.chosen;
  const int64_t at_once = std::min(choices, std::max(kMostSumBytes / (4 * sums), sizes.chosen));
  const int64_t rows = at_once + sizes.experts * (hopper_ ? 128 : 0);  // the padding of sorted rows
  return static_cast<size_t>(4 * (list_ints(at_once, sizes.experts * sizes.expert_slots) + rows * sums) + 1024);
}

GpuBackend::AdaptedChoices GpuBackend::sort_adapted(const MoeExpertsArgs& args, const int* places, int64_t rows) {
  const MoeLora& lora = *args.lora;
  const auto experts = static_cast<int64_t>(args.gate_up.size());
  const int64_t choices = args.x.rows * args.k, keys = experts * lora.num_slots, runs = most_runs(choices, keys);
  const int64_t sums = sums_of_row(*this, lora, args.x.cols, args.down[0]->k());
  const int64_t ints = round_up(list_ints(choices, keys), 64);
  auto* base = static_cast<int*>(scratch_.adapters.grow(static_cast<size_t>(4 * (ints + rows * sums))));
  int* key_of_choice = base;
  int* counts = key_of_choice + round_up(choices, 64);
  auto* list = reinterpret_cast<LoraRun*>(counts + round_up(keys, 64));
  auto* sorted = reinterpret_cast<int32_t*>(list + runs);

  MoeLoraKeysParams k = {};
  k.listed = static_cast<int>(lora.rows.rows.size());
  k.first = static_cast<int>(lora.rows.first);
  k.tokens = static_cast<int>(args.x.rows);
  k.k = static_cast<int>(args.k);
  k.slots = static_cast<int>(lora.num_slots);
  launch(KernelId::kMoeLoraKeys, k, {key_of_choice, args.ids, lora.rows.rows.data(), lora.rows.slots.data()},
         {grid_div(k.listed, kMoeThreads)}, kMoeThreads);
  MoeLoraPlaceParams p = {};
  p.order.choices = static_cast<int>(choices);
  p.order.experts = static_cast<int>(keys);
  p.order.tile_rows = kLoraRows;
  p.order.max_tiles = static_cast<int>(runs);
  p.slots = k.slots;
  p.placed = places != nullptr;
  const Grid each_key = {static_cast<uint32_t>(keys)};
  launch(KernelId::kMoeCount, p.order, {counts, key_of_choice}, each_key, kMoeThreads);
  launch(KernelId::kMoeLoraPlace, p, {sorted, list, counts, key_of_choice, places}, each_key, kMoeThreads);
  return {sorted, {list, static_cast<size_t>(runs)}, {base + ints, DType::kF32, rows, sums, sums}};
}

void GpuBackend::adapt_choices(const MoeLora& lora, const AdaptedChoices& choices, bool down, const Tensor& x,
                               int64_t of_row, const Tensor& out) {
  const int64_t rank = down ? lora.down_rank : lora.gate_up_rank;
  if (rank == 0) return;
  LoraArgs args;
  args.x = x;
  args.memory = lora.memory;
  args.rows.rows = {choices.rows, static_cast<size_t>(out.rows)};
  args.rows.runs = choices.runs;
  args.site = down ? lora.down_site : lora.gate_up_site;
  args.t = choices.t;
  args.out = out;
  args.rank = rank;
  lora_products(args, of_row);
}

}  // namespace quire::gpu
