// SPDX-License-Identifier: Apache-2.0
// Backend: the interface that binds every op to one kind of device. Models are written against it and nothing below it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "ops/op_list.h"
#include "ops/rank_ops.h"

namespace quire {

namespace distributed {
class Group;
}
class Exchange;

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

// What a recorded step (a CUDA graph) depends on: two steps with equal keys run the same launches on the same
// addresses.
struct GraphKey {
  const void* model = nullptr;  // several models may share a backend
  int64_t tokens = 0;
  int64_t seqs = 0;
  int64_t wanted = 0;         // rows whose logits are needed
  int64_t max_blocks = 0;     // width of the widest block table
  int64_t most_each = 0;      // tokens of the sequence that has the most; 1: a decode step without drafts
  bool keeps_states = false;  // recurrent states are kept after each token (GroupBatch::state_rows)
  int64_t adapters = 0;       // 0: no row has an adapter; otherwise, which linears have ops of adapters

  auto operator<=>(const GraphKey&) const = default;
};

// The largest step of a loaded model, as far as ops need workspace memory for it.
struct WorkspaceLimits {
  int64_t tokens = 0, seqs = 0, positions = 0;  // per step; positions per sequence
  int64_t logit_rows = 0, vocab = 0;            // per call of sample()
  size_t staged_bytes = 0, staged_arrays = 0;   // as for reserve_stage()
  DType activation = DType::kF32;               // the type that products and attention run in
  int64_t heads = 0, head_dim = 0;              // query heads; the largest head of K or V
  bool v_in_k = false;                          // of a layer (KvLayer::v_in_k)
  int64_t out_columns = 0;                      // of the widest product except the LM head
  int64_t reordered_columns = 0;                // of the widest x whose columns a product reorders
  int64_t quantised_columns = 0;                // the largest K of a product whose weight has another type
  int64_t state_columns = 0;                    // floats per token of a recurrent layer
  int64_t experts = 0, chosen = 0;              // of a layer; per token
  int64_t expert_columns = 0;                   // between and after the two products of an expert
  bool steps_beside = false;                    // begin_step_beside() is called
  int64_t expert_rank = 0, expert_slots = 0;    // of experts' adapters: the largest rank (of gate and up), padded

  // What both steps fit into: for two models that share a backend.
  void raise_to(const WorkspaceLimits& other) {
    const auto raise = [](auto& mine, auto theirs) { mine = std::max(mine, theirs); };
    for (const auto field :
         {&WorkspaceLimits::tokens, &WorkspaceLimits::seqs, &WorkspaceLimits::positions, &WorkspaceLimits::logit_rows,
          &WorkspaceLimits::vocab, &WorkspaceLimits::heads, &WorkspaceLimits::head_dim, &WorkspaceLimits::out_columns,
          &WorkspaceLimits::reordered_columns, &WorkspaceLimits::quantised_columns, &WorkspaceLimits::state_columns,
          &WorkspaceLimits::experts, &WorkspaceLimits::chosen, &WorkspaceLimits::expert_columns,
          &WorkspaceLimits::expert_rank, &WorkspaceLimits::expert_slots}) {
      raise(this->*field, other.*field);
    }
    raise(steps_beside, other.steps_beside);
    raise(staged_bytes, other.staged_bytes);
    raise(staged_arrays, other.staged_arrays);
    v_in_k |= other.v_in_k;
    if (other.activation == DType::kF32) activation = DType::kF32;  // the widest of the plain types
  }
};

// One device. Owned by the engine and used from the engine's thread alone. Ops run in the order of the calls, and the
// host sees their results after synchronise() (a no-op on the CPU). Every op checks its arguments with check() of its
// header: a mismatch is a bug of the caller.
//
// All addresses in the arguments of an op, also those inside spans, are in the backend's memory. They come from
// allocate(), from Constant (for what is made once, at load) or from stage() (for what changes with each step). On the
// CPU this is plain memory, and the last two return the host's array itself.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string describe() const = 0;  // "cpu (avx512, 2 threads)"
  virtual std::string isa() const = 0;       // the part of it that decides bits: "avx512", "NVIDIA H200, sm_90"
  virtual std::span<const DType> kv_dtypes() const = 0;  // the first is the default

  // The type of activations for a model of type `model` (a plain type; BF16 for quantised files).
  virtual DType activation_dtype(DType /*model*/) const { return DType::kF32; }
  // Whether gated_delta_net and mamba2 keep their states in chunks for these sizes and this type of activations
  // (ops/recurrent.h).
  virtual bool chunks_delta_net(int64_t /*dk*/, int64_t /*dv*/, DType /*activation*/) const { return false; }
  virtual bool chunks_mamba2(int64_t /*state_size*/, int64_t /*head_dim*/, DType /*activation*/) const { return false; }
  // Whether the host may read and write the backend's memory.
  virtual bool host_memory() const { return true; }
  // Bytes that a plan may give to weights, pages and workspaces; 0: plan with the host's memory (kv/memory_plan.h).
  virtual size_t memory_bytes() const { return 0; }

  // A copy of a constant in the backend's memory, which lives as long as the backend. Only if !host_memory().
  virtual Result<const void*> upload(std::span<const std::byte> values) { return values.data(); }
  // The address at which the ops of this step find an array of the host. It is valid until the step after the next one
  // begins to stage.
  virtual const void* stage(std::span<const std::byte> values) { return values.data(); }
  // Steps. Call begin_step(), then reserve_stage() with the total bytes and the number of the arrays, then stage() for
  // each array, then replay_step(). It returns true if a recorded step runs again with the newly staged arrays; then
  // the model calls no ops. Otherwise call the ops, and end_step() after them.
  virtual void begin_step() {}
  // The same for a step of a model that this rank runs alone beside one of several ranks (a draft model): which of the
  // other steps are recorded must not depend on it, since all ranks record the same ones.
  virtual void begin_step_beside() { begin_step(); }
  virtual void reserve_stage(size_t /*bytes*/, size_t /*arrays*/) {}
  virtual bool replay_step(const GraphKey&) { return false; }
  virtual void end_step() {}
  // The width to which a block table of `blocks` entries is padded, so that few different keys of steps occur.
  virtual int64_t table_width(int64_t blocks, int64_t /*block_size*/) const { return blocks; }

  // Zeroed memory, committed lazily where the system can.
  virtual Result<std::unique_ptr<Buffer>> allocate(size_t bytes) = 0;
  // Copies values of the host to the backend's memory, after the ops that were called before. Not between begin_step()
  // and end_step().
  virtual void write(void* to, std::span<const std::byte> values) { std::memcpy(to, values.data(), values.size()); }
  // Copies within the backend's memory, likewise.
  virtual void copy(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
  // Copies between the backend's memory and the host's, only if !host_memory(). They are queued behind the ops that
  // were called before; mark() is a point in that queue, and wait() waits for it. Memory of allocate_host() must not
  // change until a copy from it is done; other memory was read when the call returns.
  virtual Result<std::unique_ptr<Buffer>> allocate_host(size_t bytes) { return allocate(bytes); }
  virtual void copy_to_host(void* /*to*/, const void* /*from*/, size_t /*bytes*/) {}
  virtual void copy_from_host(void* /*to*/, const void* /*from*/, size_t /*bytes*/) {}
  virtual uint64_t mark() { return 0; }
  virtual void wait(uint64_t /*mark*/) {}
  // Allocates the workspaces of the ops for steps of up to these sizes, before KV cache pages take the rest, and
  // returns their total size. Without this call, or for a larger step, ops allocate workspaces when they first need
  // them, and the program ends if the device is full by then.
  virtual Result<size_t> reserve(const WorkspaceLimits&) { return size_t{0}; }
  // The part of the time of pack() that went into checks of the vendor's library.
  virtual double library_seconds() const { return 0; }
  // Whether pack() takes weights of this type. Every backend packs the types of files; GF8 only some.
  virtual bool packs(DType type) const { return type != DType::kGF8; }
  // Whether pack() makes random elements of this plain type itself (RawMatrix::random).
  virtual bool makes(DType /*type*/) const { return false; }
  // Concatenates `parts` along N into one packed weight. REQUIRES: they have the same dtype and K, and packs() it.
  virtual Result<std::unique_ptr<PackedMatrix>> pack(std::span<const RawMatrix> parts, const PackOptions& options) = 0;
  // Call this with the experts of a layer, matrices of one shape and type, before moe_experts takes them: a backend may
  // move them to consecutive addresses, if PackOptions::stack has not put them there. Their values do not change.
  virtual Status stack(std::span<const PackedMatrix* const> /*experts*/) { return {}; }
  // The largest head of K or V that attention takes; a model with a larger one is refused at load. 0: any.
  virtual int64_t max_head_dim() const { return 0; }
  // Bytes of one layer's K and V for one page, padding included.
  virtual size_t kv_page_bytes(const KvPageShape& shape) const = 0;

  // The ops (ops/op_list.h).
#define QUIRE_VIRTUAL_OP(name, Args, ...) virtual void name(const Args& args) = 0;
  QUIRE_OPS(QUIRE_VIRTUAL_OP)
#undef QUIRE_VIRTUAL_OP
#define QUIRE_VIRTUAL_OP(name, Args)                     \
  virtual void name(const Args&) {                       \
    QUIRE_CHECK(false, "this backend has no op " #name); \
  }
  QUIRE_OPTIONAL_OPS(QUIRE_VIRTUAL_OP)
  QUIRE_RANK_OPS(QUIRE_VIRTUAL_OP)
#undef QUIRE_VIRTUAL_OP

  // Whether the backend has fused ops for a step of `rows` rows; otherwise a model calls the separate ops.
  virtual bool joins_linear(int64_t /*rows*/) const {
    return false;
  }  // LinearArgs::norm
  virtual bool joins_residual(int64_t rows) const {
    return joins_linear(rows);
  }  // LinearArgs::residual
  virtual bool joins_head(int64_t /*rows*/) const {
    return false;
  }  // the LM head in the step of the layers
  virtual bool joins_add_norm(const AddNormArgs&) const {
    return false;
  }  // add_norm()
  virtual bool joins_qkv(const QkvToCacheArgs&) const {
    return false;
  }  // qkv_to_cache()
  virtual bool joins_mla(const MlaToCacheArgs&) const {
    return false;
  }  // mla_to_cache()

  // Whether linear() computes these adapters (LinearArgs::lora) with the product.
  virtual bool joins_lora(const LinearArgs& /*args*/) {
    return false;
  }
  // Whether lora() takes its two products one by one.
  virtual bool splits_lora() const {
    return false;
  }
  // The number of sums over parts of a row of K elements that lora() keeps in LoraArgs::t.
  virtual int64_t lora_spans(int64_t /*k*/) const {
    return 1;
  }

  // Whether there are the ops of a model on several ranks (ops/rank_ops.h).
  virtual bool splits_experts() const {
    return false;
  }
  // This backend's end of an exchange between the backends of a group's ranks, which all call it; on all of them it
  // succeeds or none. `gathers`: it will be asked for gathers, not for messages alone. It must not outlive either.
  virtual Result<std::unique_ptr<Exchange>> join(distributed::Group& group, bool gathers);
  // From now on a step that the device does not finish within the group's limit ends the process. `group`: of all
  // ranks; null ends the watch, and comes after the end of all exchanges.
  virtual void watch_steps(distributed::Group* /*group*/) {}

  // Sampling in the backend's memory (ops/sampling.h), if samples(). Call prepare_sampling() once, with the most rows
  // of a step and of one call of sample(). In a step: call sample() for its rows, then finish_samples(), which starts
  // to copy the results to the host; sampled() waits for that copy. Nothing else waits, so that take_sampled() can pass
  // the tokens to the next step before the host has seen them.
  virtual bool samples() const {
    return false;
  }
  virtual Status prepare_sampling(int64_t /*rows*/, int64_t /*rows_of_a_call*/, int64_t /*vocab*/) {
    return {};
  }
  virtual uint64_t finish_samples(int64_t /*rows*/) {
    return 0;
  }
  virtual SampledRows sampled(uint64_t /*finished*/) {
    return {};
  }

  virtual void synchronise() {}
  // The rows of an F32 tensor on the host, after all earlier work; valid until the next call. REQUIRES: contiguous
  // rows.
  virtual std::span<const float> read(const Tensor& t) {
    synchronise();
    QUIRE_CHECK(t.stride == t.cols);
    return {t.f32(), static_cast<size_t>(t.rows * t.cols)};
  }
};

// An array that ops read: filled on the host while a model is loaded, then moved to the backend's memory once.
template <typename T>
class Constant {
 public:
  Constant() = default;
  Constant(std::vector<T> values) : host_(std::move(values)), size_(host_.size()) {}  // NOLINT: implicit on purpose

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  // The host's copy. REQUIRES: place() was not called yet.
  std::vector<T>& host() { return host_; }
  // The address for ops; null if empty.
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
  int threads = 0;          // 0: chosen for the machine's cores (cpu/topology.h)
  std::string isa;          // "", or the name of a level for --cpu-isa (QUIRE_CPU_ISA)
  int part = 0, parts = 1;  // the backend is one of several that divide these threads and cores among them
};
Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuOptions& options);

}  // namespace quire
