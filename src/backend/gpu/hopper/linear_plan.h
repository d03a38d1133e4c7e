// SPDX-License-Identifier: Apache-2.0
// How the products of sm_90a are launched: which kernel, how many threadgroups, how much memory.
#pragma once

#include "backend/gpu/linear_policy.h"
#include "kernels/params/hopper.h"
#include "kernels/params/hopper_quantised.h"

namespace quire::gpu {

constexpr int kHopperMostShared = 229376;  // bytes that a threadgroup may have, beside 3 KB of its own

struct HopperLinearPlan {
  KernelId kernel = KernelId::kNone;  // kNone: not served
  int grid = 0;
  int threads = 0;
  int dynamic_memory = 0;
};

// linear_few, which keeps all of x in threadgroup memory (at most 16 rows) and may compute its norm, or linear_wide,
// which streams x. Fills in the tiles of `p`.
HopperLinearPlan hopper_linear_plan(HopperLinearParams& p, int multiprocessors);

// linear_tall: all of a product in one wave of tiles; with few rows of x, also in several launches of a wave of narrow
// tiles each, whose first weights arrive while the launch before ends.
struct HopperTallPlan {
  KernelId kernel = KernelId::kNone;  // kNone: not served
  bool beats_library = false;
  int grid = 0;  // threadgroups of all launches
  int launches = 1, threads = 0;
  int lora_threads = 0, lora_first_threads = 0;        // with adapters; and if they compute the first product
  int stages = 0, fewest_stages = 0, stage_bytes = 0;  // of the ring, which gives up some for adapters
  int lora_items = 0;                                  // parts of adapters that there may be memory for
  int rows = 0;                                        // of x in a threadgroup: the box of x's tensor map
  int w_rows = 0;                                      // of W in a tile
  int layers = 0;                                      // of threadgroups, or pairs of them, that share the rows of x
  int w_box = 0, w_halves = 0;  // the box of W's tensor map, and the number of halves that W's rows are seen as
  int w_box_halves = 0;
};
inline constexpr int kHopperTallBeside = 2048;  // bytes of shared memory beside the ring: barriers, and alignment
// `adapted`: adapters are added to the sums.
HopperTallPlan hopper_tall_plan(const HopperLinearParams& p, bool adapted, int multiprocessors);
// Whether it computes the first product of so many runs of rows, in groups of 16 ranks, as well. All threadgroups must
// run at the same time, because they wait for each other; and it must be faster.
bool hopper_tall_joins_lora(const HopperTallPlan& plan, int k, int64_t runs, int groups_of_ranks);

// linear_quantised_few, for up to kHopperQuantisedFewRows rows that fit the memory of a multiprocessor. Fills in what
// follows from `linear` and `weight`.
HopperLinearPlan hopper_quantised_few_plan(HopperQuantisedParams& p, int multiprocessors);
// linear_quantised_wide, for up to kHopperQuantisedWideRows rows. `product` has been filled in as for the other, `x` is
// filled in by the caller.
struct HopperQuantisedWidePlan {
  HopperLinearPlan launch;  // kNone: this kernel does not serve it
  int parts = 1;            // threadgroups that share the rows of x
};
HopperQuantisedWidePlan hopper_quantised_wide_plan(HopperQuantisedWideParams& p, int multiprocessors);
// The same for experts; linear.m is the number of rows in a tile of x, up to 64.
HopperLinearPlan hopper_quantised_experts_plan(HopperQuantisedWideParams& p, int multiprocessors);

}  // namespace quire::gpu
