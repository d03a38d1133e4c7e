// SPDX-License-Identifier: Apache-2.0
// Backend: the table that binds every op to one kind of device. Models are written against this and nothing below it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/embedding.h"
#include "ops/gather.h"
#include "ops/linear.h"
#include "ops/moe.h"
#include "ops/norm.h"
#include "ops/recurrent.h"
#include "ops/rope.h"
#include "ops/sampling.h"

namespace quire {

// A block of the backend's memory, freed with its owner.
class Buffer {
 public:
  virtual ~Buffer() = default;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 protected:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// The shape of a step, as far as recorded work depends on it: two steps of equal shape run the same launches on the
// same addresses.
struct StepShape {
  int64_t tokens = 0;
  int64_t seqs = 0;
  int64_t wanted = 0;
  int64_t max_blocks = 0;       // the widest block table
  bool one_token_each = false;  // every sequence has one token: a decode step

  auto operator<=>(const StepShape&) const = default;
};

// The most that a step of a loaded model has, as far as ops keep memory of their own for it.
struct StepSizes {
  int64_t tokens = 0, seqs = 0, positions = 0;          // of a step; of one sequence
  int64_t logit_rows = 0, vocab = 0;                    // rows of one call of sample()
  size_t staged_bytes = 0, staged_arrays = 0;           // as reserve_stage() takes them
  DType activation = DType::kF32;                       // what products and attention run in
  int64_t heads = 0, head_dim = 0;                      // of queries; of K or V, the most over the layers
  int64_t out_columns = 0;                              // of the widest product, the head aside
  int64_t reordered_columns = 0;                        // of the widest x that a product takes in another order
  int64_t quantised_columns = 0;                        // k of the widest product whose weight is of another type
  int64_t state_columns = 0;                            // floats a token of a recurrent layer
  int64_t experts = 0, chosen = 0, expert_columns = 0;  // of a token; between and after an expert's two products
};

// One device. Owned by the engine and used from its thread alone; ops run in the order of the calls, and their results
// are visible to the host after synchronise() (a no-op on the CPU). Ops check their shapes: a mismatch is our bug.
//
// All addresses in an op's arguments, those inside spans too, are in the backend's memory: of allocate(), or of
// Constant (what is made once, at load), or of stage() (what changes with each step). On the CPU that is plain memory,
// and the latter two give back what they got.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string describe() const = 0;              // "cpu (avx512, 2 threads)"
  virtual std::span<const DType> kv_dtypes() const = 0;  // the first: where nothing else decides

  // What activations are, for a model whose own type is `model` (a plain type; BF16 for quantised files).
  virtual DType activation_dtype(DType /*model*/) const { return DType::kF32; }
  // Whether the host may read and write the backend's memory as it is.
  virtual bool host_memory() const { return true; }
  // Bytes that a plan may give to weights, pages and scratch; 0: the host's memory is what counts (kv/memory_plan.h).
  virtual size_t memory_bytes() const { return 0; }

  // A copy of a constant in the backend's memory, which lives as long as the backend. Only where !host_memory().
  virtual Result<const void*> upload(std::span<const std::byte> values) { return values.data(); }
  // Where ops of this step find an array of the host. It is valid until the step after the next one begins to stage.
  virtual const void* stage(std::span<const std::byte> values) { return values.data(); }
  // Steps. begin_step() before the first stage(), and reserve_stage() with the bytes and the number of the arrays.
  // After the last one, replay_step(): true where the step was recorded before and runs again as it was, with what is
  // staged now; then the model calls no ops. Else the ops follow, and end_step().
  virtual void begin_step() {}
  virtual void reserve_stage(size_t /*bytes*/, size_t /*arrays*/) {}
  virtual bool replay_step(const StepShape&) { return false; }
  virtual void end_step() {}
  // How wide a block table of `blocks` entries is made, so that few shapes occur.
  virtual int64_t table_width(int64_t blocks) const { return blocks; }

  // Zeroed memory, committed lazily where the system can.
  virtual Result<std::unique_ptr<Buffer>> allocate(size_t bytes) = 0;
  // Takes the memory that ops keep for themselves in steps of these sizes, before pages take the rest; returns how much
  // that is. Without it, or where a step is larger than was said, ops take it when they first need it, and a device
  // that is full by then ends the program.
  virtual Result<size_t> reserve(const StepSizes&) { return size_t{0}; }
  // Concatenates `parts` along N into one packed weight; they share dtype and K.
  virtual Result<std::unique_ptr<PackedMatrix>> pack(std::span<const RawMatrix> parts, const PackOptions& options) = 0;
  // Says that these matrices of one shape and type are the experts of a layer, before moe_experts takes them: a backend
  // may want them one after another. Their addresses, not their bits, may change.
  virtual Status stack(std::span<const PackedMatrix* const> /*experts*/) { return {}; }
  // The largest head, of K or V, that attention takes; a model with a larger one is refused at load. 0: any.
  virtual int64_t max_head_dim() const { return 0; }
  // Bytes of one layer's K and V for one page of block_size positions; the only place that knows padding.
  virtual size_t kv_page_bytes(const KvPageShape& shape) const = 0;

  virtual void embedding(const EmbeddingArgs& args) = 0;
  virtual void rms_norm(const RmsNormArgs& args) = 0;
  virtual void layer_norm(const LayerNormArgs& args) = 0;
  virtual void rope(const RopeArgs& args) = 0;
  virtual void linear(const LinearArgs& args) = 0;
  virtual void glu(const GluArgs& args) = 0;
  virtual void activation(const ActivationArgs& args) = 0;
  virtual void residual_add(const ResidualAddArgs& args) = 0;
  virtual void gather(const GatherArgs& args) = 0;
  virtual void gather_columns(const GatherColumnsArgs& args) = 0;
  virtual void scale(const ScaleArgs& args) = 0;
  virtual void soft_cap(const SoftCapArgs& args) = 0;
  virtual void gated_rms_norm(const GatedRmsNormArgs& args) = 0;
  virtual void reshape_and_cache(const ReshapeAndCacheArgs& args) = 0;
  virtual void attention(const AttentionArgs& args) = 0;
  virtual void gated_delta_net(const GatedDeltaNetArgs& args) = 0;
  virtual void mamba2(const Mamba2Args& args) = 0;
  virtual void short_conv(const ShortConvArgs& args) = 0;
  virtual void moe_route(const MoeRouteArgs& args) = 0;
  virtual void moe_experts(const MoeExpertsArgs& args) = 0;

  // Joined ops, where the backend has them for a step of `rows` rows; else a model calls the single ones.
  virtual bool joins_linear(int64_t /*rows*/) const { return false; }  // LinearArgs::norm and ::residual
  // Whether the head of a step of few rows is best run with its layers.
  virtual bool joins_head(int64_t /*rows*/) const { return false; }
  virtual bool joins_qkv(const QkvToCacheArgs&) const { return false; }
  virtual void qkv_to_cache(const QkvToCacheArgs&) { QUIRE_CHECK(false, "this backend does not join ops"); }

  // Sampling in the backend's memory (ops/sampling.h), where samples(). prepare_sampling() once: the most rows of a
  // step, and of one call. In a step: sample() for its rows, then finish_samples(), which begins to read the results
  // back; sampled() waits for them. Nothing else waits, so that take_sampled() may give them to a next step before.
  virtual bool samples() const { return false; }
  virtual Status prepare_sampling(int64_t /*rows*/, int64_t /*rows_of_a_call*/, int64_t /*vocab*/) { return {}; }
  virtual void sample(const SampleArgs&) { QUIRE_CHECK(false, "this backend does not sample"); }
  virtual uint64_t finish_samples(int64_t /*rows*/) { return 0; }
  virtual SampledRows sampled(uint64_t /*finished*/) { return {}; }
  virtual void take_sampled(const TakeSampledArgs&) { QUIRE_CHECK(false, "this backend does not sample"); }

  virtual void synchronise() {}
  // Rows of an F32 tensor for the host, after all work before; valid until the next call. The rows are contiguous.
  virtual std::span<const float> read(const Tensor& t) {
    synchronise();
    QUIRE_CHECK(t.stride == t.cols);
    return {t.f32(), static_cast<size_t>(t.rows * t.cols)};
  }
};

// An array that ops read: filled on the host while a model is loaded, then put into the backend's memory, once.
template <typename T>
class Constant {
 public:
  Constant() = default;
  Constant(std::vector<T> values) : host_(std::move(values)), size_(host_.size()) {}  // NOLINT: a vector is one

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  // The host's side, before place().
  std::vector<T>& host() { return host_; }
  // The backend's side; null where empty.
  const T* data() const { return size_ == 0 ? nullptr : placed_ != nullptr ? placed_ : host_.data(); }
  std::span<const T> span() const { return {data(), size_}; }

  Status place(Backend& backend) {
    if (empty() || backend.host_memory() || placed_ != nullptr) return {};
    QUIRE_ASSIGN(const void* address, backend.upload(std::as_bytes(std::span(host_))));
    placed_ = static_cast<const T*>(address);
    host_ = {};
    return {};
  }

 private:
  std::vector<T> host_;
  size_t size_ = 0;
  const T* placed_ = nullptr;
};
using Floats = Constant<float>;

struct CpuOptions {
  int threads = 0;  // 0: as many as the machine has good cores for (cpu/topology.h)
  std::string isa;  // "", or a level's name: as --cpu-isa takes it (QUIRE_CPU_ISA)
};
Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuOptions& options);

}  // namespace quire
