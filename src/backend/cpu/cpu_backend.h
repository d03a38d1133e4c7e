// SPDX-License-Identifier: Apache-2.0
// CpuBackend: checks arguments, splits the outputs of each op over threads, and calls the kernels of one ISA level.
// Ops whose rows are independent (QUIRE_ROW_OPS of ops/op_list.h) are made in cpu_backend.cc; each of the others has a
// file of its own (attention.cc, linear.cc, moe.cc, ...).
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/attention_plan.h"
#include "backend/cpu/cpu_kernels.h"
#include "backend/cpu/lora_plan.h"
#include "backend/cpu/moe_plan.h"
#include "backend/cpu/pack.h"
#include "backend/cpu/page_memory.h"
#include "backend/cpu/recurrent_layout.h"
#include "backend/cpu/thread_pool.h"
#include "base/math.h"

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

// Activations on the CPU are F32.
template <typename... Tensors>
void check_f32(const Tensors&... t) {
  QUIRE_CHECK(((t.dtype == DType::kF32) && ...));
}

inline const CpuMatrix& matrix(const PackedMatrix* weight) {
  QUIRE_CHECK(weight != nullptr);
  return static_cast<const CpuMatrix&>(*weight);
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(Isa isa, int threads, std::span<const int> cpus);

  std::string describe() const override;
  std::string isa() const override { return name(isa_); }
  std::span<const DType> kv_dtypes() const override;
  bool splits_experts() const override { return true; }
  Result<std::unique_ptr<Buffer>> allocate(size_t bytes) override;
  Result<std::unique_ptr<PackedMatrix>> pack(std::span<const RawMatrix> parts, const PackOptions& options) override;
  size_t kv_page_bytes(const KvPageShape& shape) const override;

  QUIRE_OPS(QUIRE_OVERRIDE_OP)
  QUIRE_RANK_OPS(QUIRE_OVERRIDE_OP)
  void digest_rows(const DigestRowsArgs& args) override;

 private:
  // Splits rows over threads, each row being `work` elements of work.
  template <typename Fn>
  void for_rows(int64_t rows, int64_t work, const Fn& fn) {
    const int64_t enough = ceil_div(kElementsPerPiece, std::max<int64_t>(work, 1));
    const int64_t fair = ceil_div(rows, int64_t{4} * pool_.threads());
    pool_.for_each_piece(rows, std::max(enough, fair), [&](int64_t begin, int64_t end, int) { fn(begin, end); });
  }
  template <typename Args>
  void run_rows(const Args& args, int64_t work_per_element, void (*kernel)(const Args&, int64_t, int64_t));
  // recurrent.cc
  template <typename Args>
  void recurrent(const Args& args, const Tensor& x, int64_t groups, int64_t units, int64_t matrix_floats,
                 void (*kernel)(const Args&, const StateItem&, float*));
  // linear.cc
  PreparedRows prepared_rows(Scratch& memory, const PackedView& w, int64_t rows);
  void linear_few_rows(const PackedView& w, const LinearArgs& args);
  void linear_many_rows(const PackedView& w, const LinearArgs& args, bool prepare);
  // Rows times panels [begin, end) of the output; `prepared` is null if the product takes float rows.
  void linear_piece(const PackedView& w, const LinearArgs& args, const PreparedRows* prepared, int64_t row_begin,
                    int64_t row_end, int64_t begin, int64_t end, int thread);
  // lora.cc: the products of lora_blocks_.
  void run_lora(const LoraArgs& args);
  void run_lora_blocks(const LoraArgs& args);
  void run_lora_panels(const LoraArgs& args);
  // moe.cc: one chunk of tokens, the two products of its experts and the activation between them.
  void run_experts(const MoeExpertsArgs& args, const Tensor& choices);
  Tensor moe_chunk(const MoeExpertsArgs& args);
  void moe_store(const Tensor& y, const Tensor& choices);
  void moe_add(const MoeExpertsArgs& args, const Tensor& y);
  void moe_few_tokens(const MoeExpertsArgs& args, const Tensor& hidden, const Tensor& y);
  void moe_many_tokens(const MoeExpertsArgs& args, std::span<MoePlan::Expert> experts, const Tensor& gathered,
                       const Tensor& hidden, const Tensor& y);
  // Adds what adapters have for the first product of these experts, or for the second.
  void moe_adapt(const MoeExpertsArgs& args, std::span<const MoePlan::Expert> experts, int64_t first_site,
                 const Tensor& x, const Tensor& out);
  void moe_prepared(std::span<MoePlan::Expert> experts, std::span<const PackedMatrix* const> weights);
  void moe_add_pieces(std::span<const MoePlan::Expert> experts, std::span<const PackedMatrix* const> weights);
  Tensor moe_floats(Scratch& memory, int64_t rows, int64_t cols);
  void moe_gather(const Tensor& x, const MoePlan::Expert& e, const Tensor& to, int64_t row_begin, int64_t row_end);
  void moe_activate(const MoeExpertsArgs& args, const Tensor& hidden, const Tensor& out, int64_t row_begin,
                    int64_t row_end);
  void moe_piece(const CpuMatrix& weight, const float* bias, const Tensor& x, const PreparedRows& prepared,
                 const Tensor& out, const MoePlan::Piece& piece, const uint8_t* soon, int thread);
  const uint8_t* moe_soon(size_t piece, std::span<const PackedMatrix* const> weights,
                          std::span<const MoePlan::Expert> following,
                          std::span<const PackedMatrix* const> following_weights) const;
  void* thread_scratch(int thread, int64_t k) {
    return thread_scratch_[static_cast<size_t>(thread)].grow(static_cast<size_t>(linear_scratch_bytes(k)));
  }

  Isa isa_;
  const CpuKernels& kernels_;
  ThreadPool pool_;
  std::vector<Scratch> thread_scratch_;  // one per thread, used by that thread alone
  std::vector<Scratch> thread_rows_;     // likewise: the thread's own quantised rows
  std::vector<Scratch> thread_sums_;     // likewise: gate and up of a piece
  std::vector<int64_t> state_order_;     // of a recurrent op: its sequences by length
  std::vector<StateItem> state_items_;   // and its pieces of work
  Scratch ordered_;                      // activations with their columns in the order of the weight
  Scratch rows_;                         // quantised rows that threads share
  Scratch gated_;                        // gate and up, if they are not multiplied piece by piece
  struct LoraPiece {
    const LoraBlock* block;
    LoraSlice slice;
    int64_t begin, end;  // panels
  };
  std::vector<LoraBlock> lora_blocks_;
  std::vector<LoraPiece> lora_pieces_;
  std::vector<RowDigestSums> digest_sums_;
  AttentionPlan plan_;
  MoePlan moe_;
  Scratch moe_gathered_;            // the input rows of experts
  Scratch moe_hidden_;              // the outputs of their first products
  Scratch moe_outputs_;             // their outputs
  Scratch moe_adapted_;             // between the products of adapters
  std::vector<int32_t> moe_slots_;  // of each token
};

}  // namespace quire::cpu
