// SPDX-License-Identifier: Apache-2.0
// What ops keep of a device's memory beside the model's own scratch, taken at load: pages get what is left after it, so
// a step finds what it needs however full the device is.
#include <algorithm>
#include <utility>

#include "backend/gpu/gpu_backend.h"

namespace quire::gpu {

Status GpuScratch::reserve(Device& device, size_t bytes) {
  if (bytes <= this->bytes()) return {};
  QUIRE_ASSIGN(std::unique_ptr<Memory> block, device.allocate(bytes));
  blocks_.push_back(std::move(block));
  return {};
}

Result<size_t> GpuBackend::reserve(const WorkspaceLimits& sizes) {
  const std::pair<GpuScratch*, size_t> scratches[] = {
      {&partials_, std::max(attention_scratch(sizes), attention_scratch_on_hopper(sizes))},
      {&linear_, linear_scratch(sizes)},
      {&columns_, columns_scratch(sizes)},
      {&moe_, moe_scratch(sizes)},
      {&state_, state_scratch(sizes)},
  };
  size_t total = 0;
  for (const auto& [scratch, bytes] : scratches) {
    QUIRE_TRY(scratch->reserve(*device_, bytes));
    total += scratch->bytes();
  }
  QUIRE_TRY(reserve_joined(sizes));
  for (const GpuScratch* scratch : {&joined_.exchange, &joined_.scores, &joined_.partials}) total += scratch->bytes();
  QUIRE_TRY(reserve_stages(sizes));
  for (const Stage& stage : stages_) total += stage.device->bytes();
  if (sizes.logit_rows == 0) return total;
  QUIRE_TRY(prepare_sampling(sizes.tokens, sizes.logit_rows, sizes.vocab));
  for (const auto* memory : {&sample_partials_, &sample_bins_, &sample_values_, &sample_listed_, &sample_searches_,
                             &sample_cuts_, &sample_logprobs_}) {
    total += (*memory)->bytes();
  }
  for (const SampleArea& area : sample_areas_) total += area.results->bytes() + area.top->bytes();
  return total;
}

}  // namespace quire::gpu
