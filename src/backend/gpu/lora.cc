// SPDX-License-Identifier: Apache-2.0
// lora on a GPU, one launch for each product. The grid covers all rows of the step, because what the lists of rows hold
// is only known on the device: a recorded step runs again with other adapters.
#include "kernels/params/lora.h"
#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/grid_math.h"

namespace quire::gpu {
namespace {

static_assert(sizeof(LoraSliceParams) == sizeof(LoraSlice) && offsetof(LoraSliceParams, b) == offsetof(LoraSlice, b) &&
              offsetof(LoraSliceParams, rank) == offsetof(LoraSlice, rank));
static_assert(sizeof(LoraSiteParams) == sizeof(LoraSite) &&
              offsetof(LoraSiteParams, slices) == offsetof(LoraSite, slices) &&
              offsetof(LoraSiteParams, num_slices) == offsetof(LoraSite, num_slices));
static_assert(int64_t{kLoraGroup} == kLoraAlign && int64_t{kLoraRows} == kLoraRunRows);
static_assert(sizeof(LoraRunParams) == sizeof(LoraRun) && offsetof(LoraRunParams, count) == offsetof(LoraRun, count) &&
              offsetof(LoraRunParams, expert) == offsetof(LoraRun, expert));

bool starts_on(const Tensor& t, int64_t elements) {
  const auto address = reinterpret_cast<uintptr_t>(t.data);
  return t.stride % elements == 0 && address % (static_cast<size_t>(row_bytes(t.dtype, elements))) == 0;
}

}  // namespace

int64_t GpuBackend::lora_spans(int64_t k) const {
  return (k + kLoraSpan - 1) / kLoraSpan;
}

void GpuBackend::lora(const LoraArgs& args) {
  check(args);
  if (args.out.rows > 0 && args.out.cols > 0) lora_products(args, 0);
}

// With `of_row`, rows and runs are those of experts' choices (AdaptedChoices), and so many of them have one row of x.
void GpuBackend::lora_products(const LoraArgs& args, int64_t of_row) {
  QUIRE_CHECK(!args.tokens.empty() || args.x.dtype == args.memory.dtype, "activations and adapters have one type");
  const bool look_up = !args.tokens.empty();
  const int64_t spans = look_up ? 1 : lora_spans(args.x.cols);
  QUIRE_CHECK(spans * args.rank <= args.t.cols, "the sums of all spans fit");
  LoraParams p = {};
  p.slot_bytes = args.memory.slot_bytes;
  p.first = static_cast<int>(args.rows.first);
  p.rows = static_cast<int>(args.out.rows);
  p.site = static_cast<int>(args.site);
  p.x_stride = args.x.stride;
  p.t_stride = args.t.stride;
  p.out_stride = args.out.stride;
  p.spans = static_cast<int>(spans);
  p.span_stride = static_cast<int>(args.rank);
  p.k = static_cast<int>(args.x.cols);
  p.from_tokens = look_up ? 1 : 0;
  p.aligned = !look_up && args.x.cols % 8 == 0 && starts_on(args.x, 8) ? 1 : 0;
  p.cols = static_cast<int>(args.out.cols);
  p.sorted = of_row > 0 ? 1 : 0;
  p.of_row = static_cast<int>(std::max<int64_t>(of_row, 1));
  const auto runs = static_cast<uint32_t>(args.rows.runs.size());
  // All spans in one launch.
  const bool whole =
      hopper_ && !look_up && of_row == 0 && args.memory.dtype != DType::kF32 && args.x.cols % 16 == 0 && p.aligned != 0;
  if (args.products != LoraProducts::kSecond && whole) {
    launch({KernelId::kHopperLoraShrink, args.memory.dtype}, p,
           {args.t.data, args.x.data, args.memory.data, args.rows.rows.data(), args.rows.runs.data()},
           {runs * kHopperLoraCluster, grid_div(args.rank, kLoraGroup)}, kLoraThreads);
  } else if (args.products != LoraProducts::kSecond) {
    launch(
        {KernelId::kLoraShrink, args.memory.dtype}, p,
        {args.t.data, args.x.data, args.tokens.data(), args.memory.data, args.rows.rows.data(), args.rows.runs.data()},
        {runs, grid_div(args.rank, kLoraGroup), static_cast<uint32_t>(spans)}, kLoraThreads);
  }
  if (args.products == LoraProducts::kFirst) return;
  p.aligned = starts_on(args.out, 4) ? 1 : 0;
  if (whole) p.spans = p.scaled = 1;
  launch({KernelId::kLoraExpand, args.memory.dtype, args.out.dtype}, p,
         {args.out.data, args.t.data, args.memory.data, args.rows.rows.data(), args.rows.runs.data()},
         {runs, grid_div(args.out.cols, kLoraColumns * kLoraThreads)}, kLoraThreads);
}

}  // namespace quire::gpu
