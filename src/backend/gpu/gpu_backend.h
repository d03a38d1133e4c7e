// SPDX-License-Identifier: Apache-2.0
// GpuBackend: the ops on any GPU. An op checks shapes, chooses a kernel from the table, fills its parameters and
// launches it. Drivers (cuda/, metal/, emulator/) know nothing of ops, and ops know nothing of drivers.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/gpu/constants.h"
#include "backend/gpu/device.h"
#include "backend/gpu/device_sampler.h"
#include "backend/gpu/hopper/decode_step.h"
#include "backend/gpu/launcher.h"
#include "backend/gpu/scratch.h"
#include "backend/gpu/staging.h"
#include "backend/gpu/step_recorder.h"
#include "backend/gpu/step_watch.h"
#include "backend/gpu/weight_layout.h"

namespace quire::gpu {

// Owns the device and the parts that do one job each; the ops, one file per stem of src/ops, are built from them. Used
// from one thread at a time, as Backend is.
class GpuBackend final : public Backend {
 public:
  explicit GpuBackend(std::unique_ptr<Device> device);
  ~GpuBackend() override;

  // An error that names the kernels which this build lacks for the device.
  const Status& check_kernels() const { return launcher_.kernels().complete(); }
  Device& device() { return *device_; }
  const Device& device() const { return *device_; }
  Staging& staging() { return staging_; }
  StepRecorder& recorder() { return recorder_; }
  JoinedStep& joined() { return joined_; }
  bool hopper() const { return hopper_; }  // the kernels of sm_90a are there
  // Memory between the launches of one op.
  struct Scratches {
    explicit Scratches(Device& d)
        : attention(d), activations(d), products(d), moe(d), adapters(d), recurrent(d), arrivals(d) {}
    Scratch attention;                 // splits before they are merged
    Scratch activations;               // x, prepared for its product
    Scratch products;                  // sums, and dequantised weights
    Scratch moe, adapters, recurrent;  // adapters: those of experts
    Scratch arrivals;                  // counters that are zero between launches
  };
  Scratches& scratch() { return scratch_; }
  template <typename Params>
  void launch(KernelRef kernel, const Params& params, std::initializer_list<const void*> buffers, Grid grid,
              uint32_t threads, uint32_t dynamic_memory = 0) {
    launcher_.launch(kernel, params, buffers, grid, threads, dynamic_memory);
  }

  // gpu_backend.cc
  std::string describe() const override;
  std::string isa() const override;
  std::span<const DType> kv_dtypes() const override;
  DType activation_dtype(DType model) const override;
  bool chunks_delta_net(int64_t dk, int64_t dv, DType activation) const override;
  bool chunks_mamba2(int64_t state_size, int64_t head_dim, DType activation) const override;
  bool packs(DType) const override { return true; }
  bool makes(DType type) const override;
  double library_seconds() const override { return device_->library_seconds(); }
  bool host_memory() const override { return false; }
  size_t memory_bytes() const override;
  Result<const void*> upload(std::span<const std::byte> values) override { return constants_.upload(values); }
  const void* stage(std::span<const std::byte> values) override { return staging_.stage(values); }
  void begin_step() override;
  void begin_step_beside() override;
  void reserve_stage(size_t bytes, size_t arrays) override;
  bool replay_step(const GraphKey& shape) override;
  void end_step() override;
  int64_t table_width(int64_t blocks, int64_t block_size) const override;
  Result<std::unique_ptr<Buffer>> allocate(size_t bytes) override;
  void write(void* to, std::span<const std::byte> values) override;
  void copy(void* to, const void* from, size_t bytes) override;
  Result<std::unique_ptr<Buffer>> allocate_host(size_t bytes) override;
  void copy_to_host(void* to, const void* from, size_t bytes) override;
  void copy_from_host(void* to, const void* from, size_t bytes) override;
  uint64_t mark() override { return device_->mark(); }
  void wait(uint64_t mark) override;
  Result<size_t> reserve(const WorkspaceLimits& sizes) override;
  void synchronise() override;
  std::span<const float> read(const Tensor& t) override;

  QUIRE_OPS(QUIRE_OVERRIDE_OP)
  QUIRE_OPTIONAL_OPS(QUIRE_OVERRIDE_OP)
  QUIRE_RANK_OPS(QUIRE_OVERRIDE_OP)

  // pack.cc
  Result<std::unique_ptr<PackedMatrix>> pack(std::span<const RawMatrix> parts, const PackOptions& options) override;

  // norm.cc
  bool joins_add_norm(const AddNormArgs& args) const override;

  // attention.cc
  int64_t max_head_dim() const override;
  size_t kv_page_bytes(const KvPageShape& shape) const override;
  bool joins_qkv(const QkvToCacheArgs& args) const override;
  bool joins_mla(const MlaToCacheArgs& args) const override;

  // gather.cc: out[i] = x[rows[i]], as gather(); a negative row leaves out's as it is.
  void copy_rows(const Tensor& x, const int32_t* rows, const Tensor& out);

  // embedding.cc: rows [first, first + out.rows) of a weight as plain elements.
  void dequantise_rows(const GpuMatrix& weight, int64_t first, const Tensor& out);

  // linear.cc
  bool joins_linear(int64_t rows) const override;
  bool joins_residual(int64_t rows) const override;
  bool joins_lora(const LinearArgs& args) override;
  bool splits_lora() const override { return true; }
  int64_t lora_spans(int64_t k) const override;
  bool joins_head(int64_t rows) const override { return joined_.joins_head(rows); }
  void library_product(const LibraryProduct& product);

  // moe.cc
  Status stack(std::span<const PackedMatrix* const> experts) override;
  // The weighted sum of the experts' outputs y. `places`: the row of each choice, or null: they are in order.
  void moe_combine(const MoeExpertsArgs& args, const Tensor& y, const int* places);
  // What is between the two products, where adapters add to the first one.
  void activate_experts(const MoeExpertsArgs& args, const Tensor& both, const Tensor& hidden);

  // moe_lora.cc: the choices of rows with adapters, those of one expert and one adapter together.
  struct AdaptedChoices {
    const int32_t* rows;  // of what the adapters add to, and of t
    std::span<const LoraRun> runs;
    Tensor t;
  };
  // Sorts them. `places`: the row of each choice among `rows` ones, or null: they are in order.
  AdaptedChoices sort_adapted(const MoeExpertsArgs& args, const int* places, int64_t rows);
  // Adds what the adapters of one of an expert's products add. Row i of `out` has row i / of_row of x.
  void adapt_choices(const MoeLora& lora, const AdaptedChoices& choices, bool down, const Tensor& x, int64_t of_row,
                     const Tensor& out);

  // exchange.cc
  bool splits_experts() const override { return true; }
  Result<std::unique_ptr<Exchange>> join(distributed::Group& group, bool gathers) override;
  void watch_steps(distributed::Group* group) override;
  StepWatch* step_watch() { return watch_.get(); }  // may be null
  // Queues work of another library behind the ops before it (Device::queue).
  void queue(std::function<Status(void* stream)> work);

  // sampling.cc
  bool samples() const override { return true; }
  Status prepare_sampling(int64_t rows, int64_t rows_of_a_call, int64_t vocab) override;
  uint64_t finish_samples(int64_t rows) override;
  SampledRows sampled(uint64_t finished) override;

 private:
  // The most scratch that a kind of op takes, in bytes; each is defined beside its op.
  size_t attention_scratch(const WorkspaceLimits& sizes) const;
  size_t activation_scratch(const WorkspaceLimits& sizes) const;
  size_t product_scratch(const WorkspaceLimits& sizes) const;
  size_t moe_scratch(const WorkspaceLimits& sizes) const;
  size_t adapter_scratch(const WorkspaceLimits& sizes) const;
  size_t recurrent_scratch(const WorkspaceLimits& sizes) const;

  Status upload_quantised(std::span<const RawMatrix> parts, const WeightParams& w, GpuMatrix& weight,
                          const PackOptions& options);
  void make_random(std::span<const RawMatrix> parts, const GpuMatrix& weight);
  void make_random_codes(std::span<const RawMatrix> parts, const GpuMatrix& weight);
  const void* put_row_map(const RawMatrix& part);
  Status place_weight(const PackOptions::Stack& stack, GpuMatrix& weight);

  void begin_step(bool beside);
  void before_launch();
  void finish_staging();
  void run_recorded(const RecordedStep& step);
  // linear.cc: what the products of the vendor's library must be equal to.
  void reference_product(const LibraryProduct& product);
  void lora_products(const LoraArgs& args, int64_t of_row);
  void run_experts(const MoeExpertsArgs& args, const Tensor& choices);
  // How many choices run at once: `most`, or fewer if there are adapters.
  int64_t adapted_at_once(const MoeExpertsArgs& args, int64_t most) const;
  void moe_chunk(const MoeExpertsArgs& args, const Tensor& choices_out);

  std::unique_ptr<Device> device_;
  Constants constants_;
  Staging staging_;
  StepRecorder recorder_;
  Launcher launcher_;
  bool hopper_;
  bool makes_random_;
  JoinedStep joined_;
  DeviceSampler sampler_;
  Scratches scratch_;
  // While weights are loaded: pinned memory between packing and upload, and the mark behind its last copy.
  struct Slab {
    std::unique_ptr<Memory> memory;
    uint64_t copied = 0;
  };
  Slab slabs_[2];
  size_t next_slab_ = 0;
  std::unique_ptr<Memory> read_back_;  // what read() returns
  std::unique_ptr<StepWatch> watch_;   // null: this is the only rank
};

}  // namespace quire::gpu
