// SPDX-License-Identifier: Apache-2.0
// Memory and steps of a GPU backend.
#include "backend/gpu/gpu_backend.h"

#include <algorithm>
#include <bit>

#include "backend/gpu/device_failure.h"
#include "backend/gpu/hopper/ops.h"
#include "base/env.h"

namespace quire::gpu {
namespace {

class GpuBuffer final : public Buffer {
 public:
  explicit GpuBuffer(std::unique_ptr<Memory> memory) : memory_(std::move(memory)) {
    data_ = memory_->address();
    bytes_ = memory_->bytes();
  }

 private:
  std::unique_ptr<Memory> memory_;
};

bool has_hopper(const DeviceInfo& info, const KernelTable& kernels) {
  return info.api == Api::kCuda && info.architecture.starts_with("sm_90") &&
         kernels.has({KernelId::kHopperLinearM8D24, DType::kBF16});
}

}  // namespace

std::string describe(const DeviceInfo& info) {
  const char* api = info.api == Api::kCuda ? "cuda" : info.api == Api::kMetal ? "metal" : "emulator";
  return std::string(api) + " (" + info.name + ", " + info.architecture + ")";
}

GpuBackend::GpuBackend(std::unique_ptr<Device> device)
    : device_(std::move(device)),
      constants_(*device_),
      staging_(*device_),
      recorder_(*device_),
      launcher_(*device_, recorder_, [this] { before_launch(); }),
      hopper_(has_hopper(device_->info(), launcher_.kernels())),
      makes_random_(env("QUIRE_GPU_DUMMY").value_or("") != "host"),
      joined_(*this, *device_, launcher_, recorder_, hopper_),
      sampler_(*device_, launcher_),
      scratch_(*device_) {
  device_->set_library_reference([this](const LibraryProduct& product) -> Status {
    reference_product(product);
    return {};
  });
}

GpuBackend::~GpuBackend() {
  (void)device_->synchronise();
}

std::string GpuBackend::describe() const {
  return gpu::describe(device_->info());
}

std::string GpuBackend::isa() const {
  return device_->info().name + ", " + device_->info().architecture;
}

std::span<const DType> GpuBackend::kv_dtypes() const {
  static constexpr DType kTypes[] = {DType::kBF16, DType::kF16,    DType::kF32,
                                     DType::kI8,   DType::kF8E4M3, DType::kF8E5M2};
  return kTypes;
}

DType GpuBackend::activation_dtype(DType model) const {
  return model == DType::kF16 || model == DType::kF32 ? model : DType::kBF16;
}

size_t GpuBackend::memory_bytes() const {
  return std::min(device_->info().working_set_bytes, device_->free_bytes());
}

Result<std::unique_ptr<Buffer>> GpuBackend::allocate(size_t bytes) {
  QUIRE_ASSIGN(std::unique_ptr<Memory> memory, device_->allocate(std::max<size_t>(bytes, 1)));
  return std::unique_ptr<Buffer>(std::make_unique<GpuBuffer>(std::move(memory)));
}

Result<std::unique_ptr<Buffer>> GpuBackend::allocate_host(size_t bytes) {
  QUIRE_ASSIGN(std::unique_ptr<Memory> memory, device_->allocate_host(std::max<size_t>(bytes, 1)));
  return std::unique_ptr<Buffer>(std::make_unique<GpuBuffer>(std::move(memory)));
}

void GpuBackend::copy_to_host(void* to, const void* from, size_t bytes) {
  QUIRE_CHECK(!recorder_.recording());
  device_->download(to, from, bytes);
}

void GpuBackend::copy_from_host(void* to, const void* from, size_t bytes) {
  QUIRE_CHECK(!recorder_.recording());
  device_->upload(to, from, bytes);
}

void GpuBackend::wait(uint64_t mark) {
  require(device_->wait(mark));
}

void GpuBackend::write(void* to, std::span<const std::byte> values) {
  QUIRE_CHECK(!recorder_.recording());
  device_->upload(to, values.data(), values.size());
}

void GpuBackend::copy(void* to, const void* from, size_t bytes) {
  QUIRE_CHECK(!recorder_.recording());
  device_->copy(to, from, bytes);
}

// All of it is taken at load: KV cache pages get what is left, so a step finds what it needs however full the device
// is.
Result<size_t> GpuBackend::reserve(const WorkspaceLimits& sizes) {
  for (Slab& slab : slabs_) slab.memory.reset();  // the weights are loaded
  const std::pair<Scratch*, size_t> scratches[] = {
      {&scratch_.attention, std::max(attention_scratch(sizes), hopper::attention_scratch(*this, sizes))},
      {&scratch_.products, product_scratch(sizes)},
      {&scratch_.activations, activation_scratch(sizes)},
      {&scratch_.moe, moe_scratch(sizes)},
      {&scratch_.adapters, adapter_scratch(sizes)},
      {&scratch_.recurrent, recurrent_scratch(sizes)},
  };
  size_t total = 0;
  for (const auto& [scratch, bytes] : scratches) {
    QUIRE_TRY(scratch->reserve(bytes));
    total += scratch->bytes();
  }
  QUIRE_TRY(joined_.reserve(sizes));
  QUIRE_TRY(staging_.reserve(sizes.staged_bytes, sizes.staged_arrays, sizes.steps_beside));
  total += joined_.device_bytes() + staging_.device_bytes();
  if (sizes.logit_rows == 0) return total;
  QUIRE_TRY(sampler_.prepare(sizes.tokens, sizes.logit_rows, sizes.vocab));
  return total + sampler_.device_bytes();
}

void GpuBackend::begin_step() {
  begin_step(false);
}

void GpuBackend::begin_step_beside() {
  begin_step(true);
}

void GpuBackend::begin_step(bool beside) {
  QUIRE_CHECK(!recorder_.recording());
  if (watch_ != nullptr) watch_->begin_step();
  staging_.begin(beside);
  QUIRE_CHECK(!sampler_.pending_tokens() && !sampler_.has_pending_rows(),
              "a step began before the one before it had run");
  joined_.forget_logits();
}

// Many long block tables may need more than a staging area has.
void GpuBackend::reserve_stage(size_t bytes, size_t arrays) {
  if (staging_.grow(bytes, arrays)) recorder_.forget_area(staging_.area());
}

// Room for 256 positions at least, and then a power of two.
int64_t GpuBackend::table_width(int64_t blocks, int64_t block_size) const {
  const int64_t least = std::max<int64_t>(1, 256 / block_size);
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(blocks, least))));
}

// The second decode step of a shape is recorded, and from then on the recording runs. The first one is not recorded,
// because it may load kernels and grow scratch.
bool GpuBackend::replay_step(const GraphKey& shape) {
  if (!recorder_.takes(shape)) {
    finish_staging();
    return false;
  }
  RecordedStep& step = recorder_.step(shape, staging_.area());
  if (!step.joined() || !joined_.stage_with_tokens(staging_, sampler_)) finish_staging();
  const bool seen = step.seen++ > 0;
  if (step.recorded()) {
    run_recorded(step);
    if (watch_ != nullptr) watch_->end_step();
    return true;
  }
  if (seen) recorder_.begin(step);
  return false;
}

void GpuBackend::end_step() {
  if (recorder_.recording()) {
    joined_.finish();
    run_recorded(recorder_.finish());
  }
  if (watch_ != nullptr) watch_->end_step();
}

void GpuBackend::run_recorded(const RecordedStep& step) {
  joined_.before_run(step.programs.size());
  recorder_.run(step);
  joined_.after_run(step);
}

void GpuBackend::before_launch() {
  joined_.finish();
  finish_staging();
  joined_.forget_logits();
}

// Queues what the step's kernels read: its arrays, and what follows from the tokens that the last step has sampled.
void GpuBackend::finish_staging() {
  staging_.upload();
  sampler_.fill_pending();
}

void GpuBackend::synchronise() {
  finish_staging();
  require(device_->synchronise());
}

std::span<const float> GpuBackend::read(const Tensor& t) {
  QUIRE_CHECK(t.dtype == DType::kF32 && t.stride == t.cols && !recorder_.recording());
  const size_t bytes = static_cast<size_t>(t.rows * t.cols) * sizeof(float);
  if (read_back_ == nullptr || read_back_->bytes() < bytes) {
    read_back_ = require(device_->allocate_host(bytes));
  }
  device_->download(read_back_->address(), t.data, bytes);
  synchronise();
  if (watch_ != nullptr) watch_->stay_if_aborted();
  return {static_cast<const float*>(read_back_->address()), bytes / sizeof(float)};
}

Result<std::unique_ptr<Backend>> make_gpu_backend(const std::string& device, int index) {
  const auto open = [&]() -> Result<std::unique_ptr<Device>> {
    if (device == "emulator") return open_emulator();
    if (device == "metal") return open_metal(0);
    QUIRE_CHECK(device == "cuda" || device == "auto");
    auto cuda = open_cuda(index);
    return cuda.ok() || device == "cuda" ? std::move(cuda) : open_metal(0);
  };
  QUIRE_ASSIGN(std::unique_ptr<Device> opened, open());
  auto backend = std::make_unique<GpuBackend>(std::move(opened));
  QUIRE_TRY(backend->check_kernels());
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace quire::gpu
