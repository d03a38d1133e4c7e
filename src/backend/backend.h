// SPDX-License-Identifier: Apache-2.0
// Backend: the table that binds every op to one kind of device. Models are written against this and nothing below it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

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

// One device. Owned by the engine and used from its thread alone; ops run in the order of the calls, and their results
// are visible to the host after synchronise() (a no-op on the CPU). Ops check their shapes: a mismatch is our bug.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string describe() const = 0;              // "cpu (avx512, 2 threads)"
  virtual std::span<const DType> kv_dtypes() const = 0;  // the first: where nothing else decides

  // Zeroed memory, committed lazily where the system can.
  virtual Result<std::unique_ptr<Buffer>> allocate(size_t bytes) = 0;
  // Concatenates `parts` along N into one packed weight; they share dtype and K.
  virtual Result<std::unique_ptr<PackedMatrix>> pack(std::span<const RawMatrix> parts, const PackOptions& options) = 0;
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

  virtual void synchronise() {}
};

struct CpuOptions {
  int threads = 0;  // 0: as many as the machine has good cores for (cpu/topology.h)
  std::string isa;  // "", or a level's name: as --cpu-isa takes it (QUIRE_CPU_ISA)
};
Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuOptions& options);

}  // namespace quire
