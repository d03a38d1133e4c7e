// SPDX-License-Identifier: Apache-2.0
// Memory, staging and recorded steps of a GPU backend.
#include "backend/gpu/gpu_backend.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace quire::gpu {
namespace {

constexpr size_t kConstantBlock = size_t{4} << 20;
constexpr size_t kStageBytes = size_t{16} << 20;
// Longer tables than these, of contexts of millions for every sequence, are given room when they come.
constexpr size_t kMostReservedStage = size_t{64} << 20;
constexpr size_t kAlign = 256;
constexpr size_t kMaxRecorded = 512;  // shapes; beyond that the least seen one goes
// With more tokens a step's work takes longer than its launches, which run ahead of it; and shapes would rarely recur.
constexpr int64_t kMostRecordedTokens = 32;
constexpr size_t kFewLaunches = 16;  // of a recorded step that need no graph

size_t aligned(size_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

class GpuBuffer final : public Buffer {
 public:
  explicit GpuBuffer(std::unique_ptr<Memory> memory) : memory_(std::move(memory)) {
    data_ = memory_->address();
    bytes_ = memory_->bytes();
  }

 private:
  std::unique_ptr<Memory> memory_;
};

}  // namespace

const char* spelling(DType type) {
  switch (type) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kQ8_0:
      return "q8_0";
    case DType::kQ4_0:
      return "q4_0";
    case DType::kQ4_1:
      return "q4_1";
    case DType::kQ5_0:
      return "q5_0";
    case DType::kQ5_1:
      return "q5_1";
    case DType::kQ2_K:
      return "q2_k";
    case DType::kQ3_K:
      return "q3_k";
    case DType::kQ4_K:
      return "q4_k";
    case DType::kQ5_K:
      return "q5_k";
    case DType::kQ6_K:
      return "q6_k";
    case DType::kIQ4_NL:
      return "iq4_nl";
    case DType::kIQ4_XS:
      return "iq4_xs";
    case DType::kMXFP4:
      return "mxfp4";
    case DType::kI8:
      return "i8";
    case DType::kF8E4M3:
      return "e4m3";
    case DType::kF8E5M2:
      return "e5m2";
    case DType::kG4:
      return "g4";
    case DType::kG8:
      return "g8";
  }
  return "";
}

void give_up(const Error& error) {
  std::fprintf(stderr,
               "quire: the GPU failed: %s. What was under way is lost: start quire again, and if it comes back, report "
               "it with the output of quire devices and quire selftest\n",
               error.message.c_str());
  std::fflush(stderr);
  std::_Exit(1);  // threads that wait for the device would never end
}

void* GpuScratch::grow(Device& device, size_t bytes) {
  if (!blocks_.empty() && blocks_.back()->bytes() >= bytes) return blocks_.back()->address();
  blocks_.push_back(require(device.allocate(aligned(bytes + bytes / 2))));
  return blocks_.back()->address();
}

void GpuScratch::clear(Device& device) {
  for (const auto& block : blocks_) device.fill(block->address(), 0, block->bytes());
}

GpuBackend::GpuBackend(std::unique_ptr<Device> device) : device_(std::move(device)) {
  device_->hold_library_to([this](const LibraryProduct& product) -> Status {
    own_product(product);
    return {};
  });
}

GpuBackend::~GpuBackend() {
  (void)device_->synchronise();
}

std::string GpuBackend::describe() const {
  const DeviceInfo& info = device_->info();
  const char* api = info.api == Api::kCuda ? "cuda" : info.api == Api::kMetal ? "metal" : "emulator";
  return std::string(api) + " (" + info.name + ", " + info.architecture + ")";
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

Result<const void*> GpuBackend::upload(std::span<const std::byte> values) {
  const size_t bytes = aligned(std::max<size_t>(values.size(), 1));
  if (constants_.empty() || constant_used_ + bytes > constants_.back()->bytes()) {
    QUIRE_ASSIGN(std::unique_ptr<Memory> block, device_->allocate(std::max(bytes, kConstantBlock)));
    constants_.push_back(std::move(block));
    constant_used_ = 0;
  }
  char* at = static_cast<char*>(constants_.back()->address()) + constant_used_;
  constant_used_ += bytes;
  device_->upload(at, values.data(), values.size());
  return static_cast<const void*>(at);
}

Status GpuBackend::make_stage(Stage& stage, size_t bytes) {
  QUIRE_ASSIGN(stage.host, device_->allocate_host(bytes));
  QUIRE_ASSIGN(stage.device, device_->allocate(bytes));
  return {};
}

Status GpuBackend::reserve_stages(const WorkspaceLimits& sizes) {
  const size_t needed = std::min(std::bit_ceil(sizes.staged_bytes + sizes.staged_arrays * kAlign), kMostReservedStage);
  for (Stage& stage : stages_) {
    if (stage.host == nullptr) QUIRE_TRY(make_stage(stage, std::max(kStageBytes, needed)));
  }
  return {};
}

// Two areas take turns. An area is written again only when the work that read it is done: with a step under way, the
// host fills the other one.
void GpuBackend::begin_step() {
  QUIRE_CHECK(!recording_);
  stages_[stage_].mark = device_->mark();
  stage_ = 1 - stage_;
  Stage& stage = stages_[stage_];
  if (stage.host == nullptr) require(make_stage(stage, kStageBytes));
  require(device_->wait(stage.mark));
  QUIRE_CHECK(!taking_, "a step began before the one before it had run");
  staged_ = uploaded_ = 0;
  joined_.logits = {};
}

// Many long block tables may need more than an area has. The area is idle now; steps that were recorded with its old
// address are forgotten.
void GpuBackend::reserve_stage(size_t bytes, size_t arrays) {
  QUIRE_CHECK(staged_ == 0 && !recording_);
  Stage& area = stages_[stage_];
  const size_t needed = bytes + arrays * kAlign;
  if (needed <= area.host->bytes()) return;
  require(make_stage(area, std::bit_ceil(needed)));
  std::erase_if(steps_, [&](const auto& step) { return step.first.second == stage_; });
}

const void* GpuBackend::stage(std::span<const std::byte> values) {
  Stage& stage = stages_[stage_];
  if (stage.host == nullptr) begin_step();
  Stage& area = stages_[stage_];
  const size_t bytes = aligned(values.size());
  QUIRE_CHECK(staged_ + bytes <= area.host->bytes(), "a step's arrays are larger than the staging area");
  std::memcpy(static_cast<char*>(area.host->address()) + staged_, values.data(), values.size());
  const void* at = static_cast<char*>(area.device->address()) + staged_;
  staged_ += bytes;
  return at;
}

void GpuBackend::flush_stage() {
  if (uploaded_ != staged_) {
    Stage& area = stages_[stage_];
    device_->upload(static_cast<char*>(area.device->address()) + uploaded_,
                    static_cast<char*>(area.host->address()) + uploaded_, staged_ - uploaded_);
    uploaded_ = staged_;
  }
  if (taking_) fill_tokens();
}

const void* GpuBackend::host_copy(const void* on_device) const {
  const Stage& area = stages_[stage_];
  const char* base = static_cast<const char*>(area.device->address());
  const char* at = static_cast<const char*>(on_device);
  QUIRE_CHECK(at >= base && at < base + staged_, "this array was not staged in this step");
  return static_cast<const char*>(area.host->address()) + (at - base);
}

int64_t GpuBackend::table_width(int64_t blocks) const {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(blocks, 16))));
}

// A decode step of a shape that was seen before is recorded, and from then on only run again. The first one runs as it
// is: it may load kernels and grow scratch, which a recording must not.
bool GpuBackend::replay_step(const GraphKey& shape) {
  current_ = nullptr;
  if (!device_->info().graphs || !shape.one_token_each || shape.tokens > kMostRecordedTokens) {
    flush_stage();
    return false;
  }
  if (steps_.size() >= kMaxRecorded) {
    auto least = std::min_element(steps_.begin(), steps_.end(),
                                  [](const auto& a, const auto& b) { return a.second.seen < b.second.seen; });
    steps_.erase(least);
  }
  Recorded& step = steps_[{shape, stage_}];
  if (!step.joined() || !stage_with_tokens()) flush_stage();
  if (step.recorded()) {
    ++step.seen;
    run_recorded(step);
    return true;
  }
  if (step.seen++ > 0) {
    current_ = &step;
    recording_ = true;
    device_->begin_recording();
  }
  return false;
}

void GpuBackend::run_recorded(const Recorded& step) {
  count_joined_run(step.programs.size());
  if (step.graph != nullptr) return device_->run(*step.graph);
  for (const RecordedLaunch& l : step.launches) {
    device_->launch({l.kernel, l.params.data(), l.params.size(), l.buffers, l.grid, l.threads, l.dynamic_memory});
  }
  if (step.joined()) joined_.logits = step.logits;
}

void GpuBackend::end_step() {
  if (!recording_) return;
  finish_joined();
  recording_ = false;
  auto graph = require(device_->end_recording());
  if (current_->launches.size() <= kFewLaunches && !current_->others) {
    current_->graph.reset();
  } else {
    current_->graph = std::move(graph);
    current_->launches.clear();
  }
  for (Recorded::Program& program : current_->programs) {
    device_->upload(program.memory->address(), program.text.data(), program.text.size());
    program.text.clear();
  }
  run_recorded(*current_);
}

void GpuBackend::synchronise() {
  flush_stage();
  require(device_->synchronise());
}

std::span<const float> GpuBackend::read(const Tensor& t) {
  QUIRE_CHECK(t.dtype == DType::kF32 && t.stride == t.cols && !recording_);
  const size_t bytes = static_cast<size_t>(t.rows * t.cols) * sizeof(float);
  if (read_back_ == nullptr || read_back_->bytes() < bytes) {
    read_back_ = require(device_->allocate_host(bytes));
  }
  device_->download(read_back_->address(), t.data, bytes);
  synchronise();
  return {static_cast<const float*>(read_back_->address()), bytes / sizeof(float)};
}

void GpuBackend::launch(const char* name, const void* params, size_t params_bytes,
                        std::initializer_list<const void*> buffers, Grid grid, uint32_t threads,
                        uint32_t dynamic_memory) {
  finish_joined();
  flush_stage();
  joined_.logits = {};
  auto found = kernels_.find(name);
  if (found == kernels_.end()) {
    found = kernels_.emplace(name, require(device_->kernel(name))).first;
  }
  // A compiler that needs many registers may leave a kernel fewer threads than its text asks for (Metal does).
  if (const int most = found->second->max_threads(); threads > static_cast<uint32_t>(most)) {
    const std::string why = std::string("the kernel ") + name + " runs with " + std::to_string(threads) +
                            " threads in a threadgroup, but " + describe() + " gives it " + std::to_string(most) +
                            "; use --device cpu, and please report it with the output of quire devices";
    QUIRE_CHECK(false, why.c_str());
  }
  void* addresses[16];
  QUIRE_CHECK(buffers.size() <= 16);
  size_t count = 0;
  for (const void* buffer : buffers) addresses[count++] = const_cast<void*>(buffer);
  device_->launch({found->second, params, params_bytes, {addresses, count}, grid, threads, dynamic_memory});
  if (!recording_) return;
  const auto* bytes = static_cast<const std::byte*>(params);
  RecordedLaunch kept{found->second, {}, {}, grid, threads, dynamic_memory};
  kept.params.assign(bytes, bytes + params_bytes);
  kept.buffers.assign(addresses, addresses + count);
  current_->launches.push_back(std::move(kept));
}

Result<std::unique_ptr<Backend>> make_gpu_backend(const std::string& device) {
  const auto over = [](Result<std::unique_ptr<Device>> opened) -> Result<std::unique_ptr<Backend>> {
    if (!opened.ok()) return opened.error();
    return std::unique_ptr<Backend>(std::make_unique<GpuBackend>(std::move(opened).value()));
  };
  if (device == "emulator") return over(open_emulator());
  if (device == "cuda") return over(open_cuda(0));
  if (device == "metal") return over(open_metal(0));
  QUIRE_CHECK(device == "auto");
  auto cuda = open_cuda(0);
  return over(cuda.ok() ? std::move(cuda) : open_metal(0));
}

}  // namespace quire::gpu
