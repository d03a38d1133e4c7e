// SPDX-License-Identifier: Apache-2.0
// CpuBackend: checks shapes, splits each op's outputs over threads, and calls the kernels of one ISA level. The larger
// ops have their host side in a file of their own (moe.cc, recurrent.cc); the rest is in cpu_backend.cc.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/attention_plan.h"
#include "backend/cpu/cpu_kernels.h"
#include "backend/cpu/page_memory.h"
#include "backend/cpu/moe_plan.h"
#include "backend/cpu/pack.h"
#include "backend/cpu/recurrent_layout.h"
#include "backend/cpu/thread_pool.h"

namespace quire::cpu {

// Scratch that only grows; its address is stable until the next grow().
class Scratch {
 public:
  void* grow(size_t bytes) {
    if (bytes > memory_.bytes()) {
      memory_ = PageMemory();  // give the old one back first
      auto memory = PageMemory::allocate(bytes + bytes / 2);
      QUIRE_CHECK(memory.ok(), "no memory for scratch");
      memory_ = std::move(memory).value();
    }
    return memory_.data();
  }

 private:
  PageMemory memory_;
};

// Elementwise work below this many elements is not worth a second thread.
constexpr int64_t kElementsPerPiece = 8192;

inline void check_float(const Tensor& t, int64_t rows, int64_t cols) {
  QUIRE_CHECK(t.dtype == DType::kF32 && t.data != nullptr);
  QUIRE_CHECK(t.rows == rows && t.cols == cols && t.stride >= cols);
}

inline const CpuMatrix& matrix(const PackedMatrix* weight) {
  QUIRE_CHECK(weight != nullptr);
  return static_cast<const CpuMatrix&>(*weight);
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(Isa isa, int threads, std::span<const int> cpus);

  std::string describe() const override;
  std::span<const DType> kv_dtypes() const override;
  Result<std::unique_ptr<Buffer>> allocate(size_t bytes) override;
  Result<std::unique_ptr<PackedMatrix>> pack(std::span<const RawMatrix> parts, const PackOptions& options) override;
  size_t kv_page_bytes(const KvPageShape& shape) const override;

  void embedding(const EmbeddingArgs& args) override;
  void rms_norm(const RmsNormArgs& args) override;
  void layer_norm(const LayerNormArgs& args) override;
  void rope(const RopeArgs& args) override;
  void linear(const LinearArgs& args) override;
  void glu(const GluArgs& args) override;
  void activation(const ActivationArgs& args) override;
  void residual_add(const ResidualAddArgs& args) override;
  void gather(const GatherArgs& args) override;
  void gather_columns(const GatherColumnsArgs& args) override;
  void scale(const ScaleArgs& args) override;
  void soft_cap(const SoftCapArgs& args) override;
  void gated_rms_norm(const GatedRmsNormArgs& args) override;
  void reshape_and_cache(const ReshapeAndCacheArgs& args) override;
  void attention(const AttentionArgs& args) override;
  void gated_delta_net(const GatedDeltaNetArgs& args) override;  // recurrent.cc
  void mamba2(const Mamba2Args& args) override;
  void short_conv(const ShortConvArgs& args) override;
  void moe_route(const MoeRouteArgs& args) override;  // moe.cc
  void moe_experts(const MoeExpertsArgs& args) override;

 private:
  // Splits rows of about `cols` elements of work each.
  template <typename Fn>
  void for_rows(int64_t rows, int64_t cols, const Fn& fn) {
    const int64_t enough = (kElementsPerPiece + cols - 1) / (cols > 0 ? cols : 1);
    const int64_t fair = (rows + 4 * pool_.threads() - 1) / (4 * pool_.threads());
    pool_.for_each_piece(rows, std::max(enough, fair), [&](int64_t begin, int64_t end, int) { fn(begin, end); });
  }
  template <typename Args>
  void recurrent(const Args& args, const Tensor& x, int64_t groups, int64_t units, int64_t matrix_floats,
                 void (*kernel)(const Args&, const StateItem&, float*));
  PreparedRows prepared_rows(Scratch& memory, const PackedView& w, int64_t rows);
  void linear_few_rows(const PackedView& w, const LinearArgs& args);
  void linear_many_rows(const PackedView& w, const LinearArgs& args, bool prepare);
  // Rows times panels [begin, end) of the output; `prepared` is null where rows meet the weight as floats.
  void linear_piece(const PackedView& w, const LinearArgs& args, const PreparedRows* prepared, int64_t row_begin,
                    int64_t row_end, int64_t begin, int64_t end, int thread);
  // moe.cc: a step's share of tokens; its products and what stands between them.
  void moe_chunk(const MoeExpertsArgs& args);
  void moe_few_tokens(const MoeExpertsArgs& args, const Tensor& hidden, const Tensor& y);
  void moe_many_tokens(const MoeExpertsArgs& args, std::span<MoePlan::Expert> experts, const Tensor& gathered,
                       const Tensor& hidden, const Tensor& y);
  void moe_prepared(std::span<MoePlan::Expert> experts, std::span<const PackedMatrix* const> weights);
  void moe_cut(std::span<const MoePlan::Expert> experts, std::span<const PackedMatrix* const> weights);
  Tensor moe_floats(Scratch& memory, int64_t rows, int64_t cols);
  void moe_gather(const Tensor& x, const MoePlan::Expert& e, const Tensor& to, int64_t row_begin, int64_t row_end);
  void moe_activate(const MoeExpertsArgs& args, const Tensor& hidden, const Tensor& out, int64_t row_begin,
                    int64_t row_end);
  void moe_piece(const CpuMatrix& weight, const float* bias, const Tensor& x, const PreparedRows& prepared,
                 const Tensor& out, const MoePlan::Piece& piece, int thread);
  void* thread_scratch(int thread, int64_t k) {
    return thread_scratch_[static_cast<size_t>(thread)].grow(static_cast<size_t>(linear_scratch_bytes(k)));
  }

  Isa isa_;
  const CpuKernels& kernels_;
  ThreadPool pool_;
  std::vector<Scratch> thread_scratch_;  // one a thread, touched by that thread alone
  std::vector<Scratch> thread_rows_;     // likewise: its own quantised rows
  std::vector<Scratch> thread_sums_;     // likewise: gate and up of a piece
  std::vector<int64_t> state_order_;     // of a recurrent op: its sequences by length, and its pieces of work
  std::vector<StateItem> state_items_;
  Scratch ordered_;  // activations whose columns a weight takes in an order of its own
  Scratch rows_;     // quantised rows that threads share
  Scratch gated_;    // gate and up where pieces do not join them
  AttentionPlan plan_;
  MoePlan moe_;
  Scratch moe_gathered_;  // the rows that experts see
  Scratch moe_hidden_;    // what their first products put out
  Scratch moe_outputs_;   // what they put out
};

}  // namespace quire::cpu
