// SPDX-License-Identifier: Apache-2.0
// GpuBackend: the ops on any GPU: checks shapes, chooses the kernel by its name, fills its parameters and launches it.
// Drivers (cuda/, metal/, emulator/) know nothing of ops, and ops know nothing of drivers. One file a kind of op:
// elementwise.cc, norm.cc, linear.cc, attention.cc, state.cc, moe.cc, sampling.cc; gpu_backend.cc has memory and steps,
// decode_step.cc what joins the ops of a step.
#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/device.h"
#include "kernels/params/decode_step.h"

namespace quire::gpu {

// "f32", "f16", "bf16", "q8_0": how kernels' names spell a type.
const char* spelling(DType type);

// A weight in device memory. Plain types: rows of k elements, back to back where k is a multiple of 16 bytes.
class GpuMatrix final : public PackedMatrix {
 public:
  GpuMatrix(DType dtype, int64_t n, int64_t k) : PackedMatrix(dtype, n, k) {}
  size_t bytes() const override { return bytes_; }

  void* data = nullptr;            // laid out as kernels/params/linear.h says
  int64_t group = 0;               // G4 and G8
  DType activation = DType::kF32;  // what it was packed for
  size_t bytes_ = 0;
  std::shared_ptr<Memory> memory;  // owns; experts of a layer share one block
};

// Memory that only grows and that no step keeps: scratch between two launches of one op. Never grows while a step is
// recorded, because the old block must outlive what was queued: the first step of a shape runs unrecorded.
class GpuScratch {
 public:
  void* grow(Device& device, size_t bytes);
  // Takes so much at once, so that grow() need not; the error says what the device said.
  Status reserve(Device& device, size_t bytes);
  size_t bytes() const { return blocks_.empty() ? 0 : blocks_.back()->bytes(); }
  // Zeroes all of it, old blocks too: recorded steps may still use them.
  void clear(Device& device);

 private:
  std::vector<std::unique_ptr<Memory>> blocks_;  // the last one is in use; the others wait for the device to be idle
};

// How many sequences a step may have whose ops become one launch: what QUIRE_CUDA_JOIN says, or four.
int joined_rows();

// The ops of a recorded step that wait to become one launch (decode_step.cc), and what such launches share.
struct JoinedStep {
  struct Part {
    StepOp op;
    Tensor out;
    std::function<void()> alone;  // its own launches
  };
  std::vector<Part> parts;
  std::optional<QkvToCacheArgs> qkv;       // waits for its attention
  std::optional<EmbeddingArgs> embedding;  // of the step's tokens: what the first part takes
  bool embedded = false;                   // a part writes where the embedding would
  bool finishing = false;
  // Of the parts:
  DType type = DType::kBF16;
  int rows = 0, most_k = 0, head_dim = 0;
  int64_t heads = 0, kv_heads = 0, positions = 0;
  i64 entries = 0;                                                            // of an exchange buffer
  const void *contexts = nullptr, *at_positions = nullptr, *slots = nullptr;  // arrays of the step

  int most_rows = joined_rows();  // of steps that are joined
  GpuScratch exchange, scores, partials;
  std::unique_ptr<Memory> epochs;
  std::unique_ptr<Memory> bests;           // each threadgroup's largest of the logits
  Tensor logits;                           // that it is of, while nothing else was launched since
  uint64_t runs = 0;                       // of programs since flags began to count
  uint64_t most_runs = uint64_t{1} << 22;  // until they are counted anew; they have room for 2^24
};

// A device that has failed gives nothing back, and ops have no way to say so: tells why and ends the program.
[[noreturn]] void give_up(const Error& error);
inline void require(const Status& status) {
  if (!status.ok()) give_up(status.error());
}
template <typename T>
T require(Result<T> result) {
  if (!result.ok()) give_up(result.error());
  return std::move(result).value();
}

class GpuBackend final : public Backend {
 public:
  explicit GpuBackend(std::unique_ptr<Device> device);
  ~GpuBackend() override;
  Device& device() { return *device_; }
  // Instead of joined_rows(), for tests.
  void join_steps_up_to(int rows) { joined_.most_rows = rows; }
  // After how many launches of joined steps their flags are counted anew.
  void count_joined_to(uint64_t runs) { joined_.most_runs = runs; }

  // gpu_backend.cc
  std::string describe() const override;
  std::span<const DType> kv_dtypes() const override;
  DType activation_dtype(DType model) const override;
  bool host_memory() const override { return false; }
  size_t memory_bytes() const override;
  Result<const void*> upload(std::span<const std::byte> values) override;
  const void* stage(std::span<const std::byte> values) override;
  void begin_step() override;
  void reserve_stage(size_t bytes, size_t arrays) override;
  bool replay_step(const GraphKey& shape) override;
  void end_step() override;
  int64_t table_width(int64_t blocks) const override;
  Result<std::unique_ptr<Buffer>> allocate(size_t bytes) override;
  Result<size_t> reserve(const WorkspaceLimits& sizes) override;  // reserve.cc
  void synchronise() override;
  std::span<const float> read(const Tensor& t) override;

  QUIRE_OPS(QUIRE_OVERRIDE_OP)
  QUIRE_OPTIONAL_OPS(QUIRE_OVERRIDE_OP)

  // linear.cc
  Result<std::unique_ptr<PackedMatrix>> pack(std::span<const RawMatrix> parts, const PackOptions& options) override;
  bool joins_linear(int64_t rows) const override;
  bool joins_head(int64_t rows) const override;

  // attention.cc
  int64_t max_head_dim() const override;
  size_t kv_page_bytes(const KvPageShape& shape) const override;
  bool joins_qkv(const QkvToCacheArgs& args) const override;

  // moe.cc
  Status stack(std::span<const PackedMatrix* const> experts) override;

  // sampling.cc
  bool samples() const override { return true; }
  Status prepare_sampling(int64_t rows, int64_t rows_of_a_call, int64_t vocab) override;
  uint64_t finish_samples(int64_t rows) override;
  SampledRows sampled(uint64_t finished) override;

 private:
  // Launches the kernel of that name, or the one that `kernel` was found to be.
  void launch(const char* name, const void* params, size_t params_bytes, std::initializer_list<const void*> buffers,
              Grid grid, uint32_t threads, uint32_t dynamic_memory = 0);
  template <typename Params>
  void launch(const char* name, const Params& params, std::initializer_list<const void*> buffers, Grid grid,
              uint32_t threads, uint32_t dynamic_memory = 0) {
    static_assert(sizeof(Params) <= 4096);
    launch(name, &params, sizeof params, buffers, grid, threads, dynamic_memory);
  }
  // The host's copy of an array that stage() was given in this step, by its address on the device.
  template <typename T>
  std::span<const T> staged(std::span<const T> on_device) const {
    return {static_cast<const T*>(host_copy(on_device.data())), on_device.size()};
  }
  const void* host_copy(const void* on_device) const;
  // The most scratch that a kind of op takes, in bytes; each stands beside its op.
  size_t attention_scratch(const WorkspaceLimits& sizes) const;
  size_t attention_scratch_on_hopper(const WorkspaceLimits& sizes) const;
  size_t linear_scratch(const WorkspaceLimits& sizes) const;
  size_t columns_scratch(const WorkspaceLimits& sizes) const;
  size_t moe_scratch(const WorkspaceLimits& sizes) const;
  size_t state_scratch(const WorkspaceLimits& sizes) const;
  Status reserve_stages(const WorkspaceLimits& sizes);
  bool recording() const { return recording_; }
  // decode_step.cc; false: not joined, and what waited was launched
  bool joins_step(DType type, int64_t rows) const;
  bool join_embedding(const EmbeddingArgs& args);
  bool join_linear(const LinearArgs& args, DType type);
  bool join_qkv(const QkvToCacheArgs& args);
  bool join_attention(const AttentionArgs& args, bool one_each);
  void embed_first();
  void finish_joined();
  bool launch_joined();
  void count_joined_run(size_t programs);
  // sampling.cc: whether the last launch was a joined step that found the token of each of these rows.
  bool best_is_known(const SampleArgs& args) const;
  Status reserve_joined(const WorkspaceLimits& sizes);
  // linear.cc: the ways of a product, `type` being what the activations are; false: this one does not serve.
  void linear_by_kernels(const LinearArgs& args, DType type);
  void linear_by_columns(const LinearArgs& args, DType type);
  void own_product(const LibraryProduct& product);
  bool linear_tall(const LinearArgs& args, DType type, bool only_if_it_pays);
  bool linear_on_hopper(const LinearArgs& args, DType type);
  bool quantised_on_hopper(const LinearArgs& args, DType type);
  bool linear_by_library(const LinearArgs& args, DType type);
  void linear_own(const LinearArgs& args, DType type);
  bool has_hopper() const;
  void plain_rows(const GpuMatrix& weight, int64_t first, const Tensor& out);
  // attention_hopper.cc; false: not served
  bool attention_on_hopper(const AttentionArgs& args, bool one_each);
  // moe.cc
  void moe_chunk(const MoeExpertsArgs& args);

  std::unique_ptr<Device> device_;
  std::map<std::string, const Kernel*, std::less<>> kernels_;

  // Constants: cut from blocks, because there are thousands of small ones.
  std::vector<std::unique_ptr<Memory>> constants_;
  size_t constant_used_ = 0;

  // Staging: two areas in turn, so that a step may be staged while the one before still runs.
  struct Stage {
    std::unique_ptr<Memory> host, device;
    uint64_t mark = 0;  // the work that reads it
  };
  Stage stages_[2];
  int stage_ = 0;
  size_t staged_ = 0;                      // bytes in use
  size_t uploaded_ = 0;                    // of them on the device
  std::optional<TakeSampledArgs> taking_;  // tokens that are to be filled in once the arrays are there
  Status make_stage(Stage& stage, size_t bytes);
  void flush_stage();
  void fill_tokens();  // sampling.cc
  bool stage_with_tokens();

  // Recorded steps, by their shape and staging area. A few launches are quicker one by one, where each may start while
  // the one before ends, than as a graph, which starts and ends as a whole.
  struct RecordedLaunch {
    const Kernel* kernel = nullptr;
    std::vector<std::byte> params;
    std::vector<void*> buffers;
    Grid grid;
    uint32_t threads = 0, dynamic_memory = 0;
  };
  struct Recorded {
    struct Program {  // of joined ops
      std::unique_ptr<Memory> memory;
      std::vector<std::byte> text;  // until it is uploaded
    };
    std::vector<Program> programs;
    std::unique_ptr<Graph> graph;  // or, where the launches are few:
    std::vector<RecordedLaunch> launches;
    bool others = false;  // the library's products were recorded as well: a graph it is
    bool recorded() const { return graph != nullptr || !launches.empty(); }
    bool joined() const { return !programs.empty() && launches.size() == programs.size(); }  // and nothing else
    Tensor logits;  // whose largest the last program finds as well
    int64_t seen = 0;
  };
  std::map<std::pair<GraphKey, int>, Recorded> steps_;
  void run_recorded(const Recorded& step);
  Recorded* current_ = nullptr;
  bool recording_ = false;

  JoinedStep joined_;

  std::unique_ptr<Memory> read_back_;  // of read()

  // Sampling: two areas of results in turn, each with what its rows were given (settings, edits, masks).
  struct SampleArea {
    std::unique_ptr<Memory> results, top;            // on the device
    std::unique_ptr<Memory> host_results, host_top;  // read back
    std::unique_ptr<Memory> host_given, given;
    size_t used = 0;    // bytes of what was given
    size_t known = 0;   // of the given memory's bytes those that stand on both sides
    uint64_t mark = 0;  // the work that reads and fills it
    bool open = false;  // between the first sample() and finish_samples()
    bool tops = false;  // some row wants the likeliest tokens
    int64_t rows = 0;   // finished
  };
  SampleArea& open_sample_area();
  // Room for `bytes` in the area's given memory: the host's side, and where it will be on the device.
  struct Given {
    std::byte* host = nullptr;
    std::byte* device = nullptr;
  };
  Given give(SampleArea& area, size_t bytes);
  SampleArea sample_areas_[2];
  std::vector<std::byte> given_;  // of one sample(), before it goes to its area
  int sample_area_ = 0;           // that the next sample() fills; the other one was sampled last
  std::unique_ptr<Memory> sample_partials_, sample_bins_, sample_logprobs_;
  std::unique_ptr<Memory> sample_values_, sample_listed_, sample_searches_, sample_cuts_;  // of the search for a cut
  GpuScratch sample_saved_;
  int64_t sample_rows_ = 0, sample_rows_of_a_call_ = 0, sample_chunks_ = 0;
  GpuScratch partials_;      // attention.cc: splits before they merge
  GpuScratch moe_;           // moe.cc
  GpuScratch linear_;        // linear.cc
  GpuScratch columns_;       // linear.cc: x before its product
  mutable int hopper_ = -1;  // whether the kernels of sm_90a are there; -1: not yet asked
  GpuScratch state_;         // state.cc
};

// The backend on a device: "cuda", "metal" or "emulator"; "auto" takes the first of cuda and metal that is there.
Result<std::unique_ptr<Backend>> make_gpu_backend(const std::string& device);

}  // namespace quire::gpu
