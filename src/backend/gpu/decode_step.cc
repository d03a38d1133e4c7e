// SPDX-License-Identifier: Apache-2.0
// Joins the ops of a recorded decode step of few sequences into one launch (kernels/cuda/decode_step.cuh, sm_90a).
//
// While such a step is recorded, ops that the program knows wait here as long as each takes what the one before gave;
// anything else that is launched comes after them. What waits becomes one launch, or, where it is too little or does
// not fit, the launches it would have been. Both have the same bits.
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "backend/gpu/gpu_backend.h"
#include "base/env.h"

namespace quire::gpu {
namespace {

constexpr int kMostJoinedRows = 4;  // sequences; with more, launches one by one are as quick
constexpr size_t kLeastOps = 4;     // fewer are launched one by one
constexpr size_t kMostOps = 254;    // of a launch, as flags count; more are several launches
constexpr int kLeastSlots = 4;      // of the ring
// Beyond these the ops have enough to do for themselves: long contexts, where attention's own kernels read faster, and
// weights whose bytes take longer than what stands between two launches.
constexpr int64_t kMostPositions = 8192;
constexpr int64_t kMostWeight = int64_t{1} << 25;  // elements

bool on_16_bytes(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

bool plain_attention(const AttentionArgs& args) {
  const KvLayer& kv = args.kv;
  return args.causal && args.window == 0 && args.soft_cap <= 0 && args.sinks == nullptr && !kv.v_in_k &&
         kv.dtype == args.q.dtype && kv.head_dim == kv.v_dim() && (kv.head_dim == 64 || kv.head_dim == 128) &&
         args.num_heads / kv.num_kv_heads <= kStepMostGroup &&
         std::has_single_bit(static_cast<uint64_t>(kv.block_size));
}

// A product that the program can do, given that x comes from where it should.
bool known_product(const LinearArgs& args, const GpuMatrix& w, DType type) {
  const int64_t tiled = args.gated != nullptr ? w.n() / 2 : w.n();
  const bool residual = args.residual.data != nullptr;
  if (w.dtype() != type || type == DType::kF32 || w.k() % 64 != 0 || tiled % 8 != 0 || !args.columns.empty())
    return false;
  // The head, in float, comes last: nothing is gained by letting it begin after a launch has ended.
  if ((residual || args.out.dtype != DType::kF32) && w.n() * w.k() > kMostWeight) return false;
  return on_16_bytes(args.x.data) && on_16_bytes(args.out.data) && on_16_bytes(args.residual.data) &&
         args.x.stride % 8 == 0 && args.out.stride % 8 == 0 && args.residual.stride % 8 == 0;
}

// Scratch that two ops use in turn: threadgroups need not agree whose stores come last, so only the last op has any.
// Not the same rows written again, as the residual is: each of its elements has one thread that writes it.
bool overlap(const Tensor& a, const Tensor& b) {
  const auto begin = [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data); };
  const auto end = [&](const Tensor& t) {
    return begin(t) + static_cast<uintptr_t>(t.rows * t.stride * info(t.dtype).block_bytes);
  };
  const bool same = a.data == b.data && a.dtype == b.dtype && a.stride == b.stride;
  return !same && begin(a) < end(b) && begin(b) < end(a);
}
void forget_out(StepOp& op) {
  if (op.kind == kStepLinear) {
    op.linear.out = nullptr;
  } else {
    op.attention.out = nullptr;
  }
}

}  // namespace

int joined_rows() {
  const auto asked = env("QUIRE_CUDA_JOIN");
  return asked ? std::clamp(std::atoi(asked->c_str()), 0, kMostJoinedRows) : kMostJoinedRows;
}

bool GpuBackend::joins_step(DType type, int64_t rows) const {
  return recording_ && !joined_.finishing && type != DType::kF32 && rows <= joined_.most_rows && has_hopper();
}

bool GpuBackend::joins_head(int64_t rows) const {
  return rows <= joined_.most_rows && device_->info().graphs && has_hopper();
}

Status GpuBackend::reserve_joined(const WorkspaceLimits& sizes) {
  const int64_t rows = std::min<int64_t>(joined_.most_rows, sizes.seqs);
  if (rows == 0 || sizes.activation == DType::kF32 || !has_hopper()) return {};
  const int64_t positions =
      std::min(kMostPositions, (sizes.positions + kHopperSplit - 1) / kHopperSplit * kHopperSplit);
  const int64_t columns = std::max(sizes.out_columns, sizes.heads * sizes.head_dim);
  const auto bytes = [](int64_t entries) { return static_cast<size_t>(entries) * 8; };
  QUIRE_TRY(joined_.exchange.reserve(*device_, bytes(kStepExchanges * rows * columns)));
  QUIRE_TRY(joined_.scores.reserve(*device_, bytes(rows * sizes.heads * positions)));
  return joined_.partials.reserve(*device_,
                                  bytes(rows * sizes.heads * (positions / kHopperSplit) * (sizes.head_dim + 2)));
}

// Waits for the product that takes it. Its rows are read there and as the first residual, and not written.
bool GpuBackend::join_embedding(const EmbeddingArgs& args) {
  const auto& table = static_cast<const GpuMatrix&>(*args.table);
  if (!joins_step(table.dtype(), args.out.rows) || args.out.dtype != DType::kF32) return false;
  finish_joined();
  joined_.embedding = args;
  joined_.embedded = false;
  return true;
}

bool GpuBackend::join_linear(const LinearArgs& args, DType type) {
  const GpuMatrix& w = static_cast<const GpuMatrix&>(*args.weight);
  if (!joins_step(type, args.x.rows) || !known_product(args, w, type)) return false;
  if (joined_.qkv) finish_joined();
  const auto follows = [&] {
    if (joined_.parts.empty()) {
      return !joined_.embedding ||
             (joined_.embedding->out.data == args.x.data && joined_.embedding->out.rows == args.x.rows &&
              args.norm != nullptr && joined_.embedding->table->dtype() == type);
    }
    const StepOp& last = joined_.parts.back().op;
    if (last.kind == kStepLinear && last.linear.epilogue == kHopperStoreF32) return false;
    const Tensor& before = joined_.parts.back().out;
    if (args.x.data != before.data || args.x.rows != before.rows || args.x.cols != before.cols ||
        args.x.dtype != before.dtype || type != joined_.type || joined_.parts.size() >= kMostOps) {
      return false;
    }
    // A threadgroup reads the residual where it wrote it itself: that takes the same tiles.
    return std::all_of(joined_.parts.begin(), joined_.parts.end(), [&](const JoinedStep::Part& part) {
      return args.residual.data == nullptr || part.out.data != args.residual.data || part.out.cols == args.out.cols;
    });
  };
  if (!follows()) finish_joined();

  StepOp op = {};
  op.kind = kStepLinear;
  StepLinearOp& l = op.linear;
  l.x = joined_.parts.empty() ? args.x.data : nullptr;
  l.out = args.out.data;
  l.w = w.data;
  l.bias = args.bias;
  l.norm = args.norm != nullptr ? args.norm->weight : nullptr;
  l.residual = static_cast<const float*>(args.residual.data);
  l.n = static_cast<int>(w.n());
  l.k = static_cast<int>(w.k());
  l.x_stride = static_cast<int>(args.x.stride);
  l.out_stride = static_cast<int>(args.out.stride);
  l.residual_stride = static_cast<int>(args.residual.stride);
  l.epilogue = args.residual.data != nullptr   ? kHopperResidual
               : args.gated != nullptr         ? kHopperGated
               : args.out.dtype == DType::kF32 ? kHopperStoreF32
                                               : kHopperStore;
  l.activation = args.gated != nullptr ? static_cast<int>(args.gated->activation) : 0;
  l.limit = args.gated != nullptr ? args.gated->limit : 0.0f;
  l.eps = args.norm != nullptr ? args.norm->eps : 0.0f;
  l.scale = args.residual_scale;
  if (joined_.embedding && !joined_.embedded) {
    l.x_by_token = joined_.parts.empty();
    l.residual_by_token = l.residual == joined_.embedding->out.data;
    joined_.embedded = l.residual_by_token != 0 && l.out == l.residual;
  }
  step_cut(&l, device_->info().compute_units);
  if (joined_.parts.empty()) {
    joined_.type = type;
    joined_.rows = static_cast<int>(args.x.rows);
    joined_.contexts = nullptr;
    joined_.most_k = joined_.head_dim = 0;
    joined_.positions = joined_.heads = joined_.kv_heads = 0;
    joined_.entries = 0;
  }
  joined_.most_k = std::max(joined_.most_k, l.k);
  if (l.epilogue != kHopperStoreF32) {
    joined_.entries = std::max(
        joined_.entries, step_entries(joined_.rows, static_cast<int>(args.out.cols), args.out.dtype == DType::kF32));
  }
  const auto alone = [this, held = LinearArgs(args), type, norm = args.norm != nullptr ? *args.norm : FusedNorm{},
                      gated = args.gated != nullptr ? *args.gated : FusedGlu{}]() mutable {
    if (held.norm != nullptr) held.norm = &norm;
    if (held.gated != nullptr) held.gated = &gated;
    linear_by_kernels(held, type);
  };
  joined_.parts.push_back({op, args.out, alone});
  return true;
}

// Waits for the attention that it belongs to.
bool GpuBackend::join_qkv(const QkvToCacheArgs& args) {
  if (!joins_step(args.q.dtype, args.q.rows) || joined_.parts.empty() || joined_.qkv) return false;
  const JoinedStep::Part& before = joined_.parts.back();
  const int64_t dim = args.kv.head_dim, q = args.num_heads * dim, k = args.kv.num_kv_heads * dim;
  const auto* base = static_cast<const char*>(args.q.data);
  const bool one_row = args.k.data == base + q * 2 && args.v.data == base + (q + k) * 2 &&
                       args.q.stride == args.k.stride && args.q.stride == args.v.stride && args.kv.v_dim() == dim;
  const bool taken = before.op.kind == kStepLinear && before.out.data == args.q.data && before.out.cols == q + 2 * k &&
                     before.out.dtype == args.q.dtype && before.out.rows == args.q.rows;
  if (!one_row || !taken) return false;
  joined_.qkv = args;
  return true;
}

bool GpuBackend::join_attention(const AttentionArgs& args, bool one_each) {
  if (!joined_.qkv || joined_.finishing) return false;
  const QkvToCacheArgs qkv = *joined_.qkv;
  const KvLayer& kv = args.kv;
  const int64_t positions = (args.max_blocks * kv.block_size + kHopperSplit - 1) / kHopperSplit * kHopperSplit;
  const int dim = static_cast<int>(kv.head_dim);
  const bool same_pages = qkv.kv.pages == kv.pages && qkv.kv.page_stride == kv.page_stride;
  const bool same_step =
      joined_.contexts == nullptr ||
      (joined_.contexts == args.context_lens.data() && joined_.at_positions == qkv.positions.data() &&
       joined_.slots == qkv.slot_mapping.data() && joined_.head_dim == dim && joined_.heads == args.num_heads &&
       joined_.kv_heads == kv.num_kv_heads);
  if (!plain_attention(args) || !one_each || args.q.data != qkv.q.data || !same_pages || !same_step ||
      positions > kMostPositions || !on_16_bytes(args.out.data) || args.out.stride % 8 != 0 ||
      args.q.rows != joined_.rows) {
    return false;
  }
  StepOp op = {};
  op.kind = kStepAttention;
  StepAttentionOp& a = op.attention;
  a.out = args.out.data;
  a.pages = static_cast<char*>(kv.pages);
  a.q_norm = qkv.q_norm;
  a.k_norm = qkv.k_norm;
  a.cosines = qkv.cos_table;
  a.sines = qkv.sin_table;
  a.block_tables = args.block_tables.data();
  a.page_stride = kv.page_stride;
  a.block_shift = std::countr_zero(static_cast<uint64_t>(kv.block_size));
  a.max_blocks = static_cast<int>(args.max_blocks);
  a.out_stride = static_cast<int>(args.out.stride);
  a.rot_dim = static_cast<int>(qkv.rot_dim);
  a.interleaved = qkv.interleaved;
  a.eps = qkv.eps;
  a.c = args.scale * 1.44269504088896341f;
  joined_.contexts = args.context_lens.data();
  joined_.head_dim = dim;
  joined_.heads = args.num_heads;
  joined_.kv_heads = kv.num_kv_heads;
  joined_.at_positions = qkv.positions.data();
  joined_.slots = qkv.slot_mapping.data();
  joined_.positions = std::max(joined_.positions, positions);
  joined_.entries = std::max(joined_.entries, step_entries(joined_.rows, static_cast<int>(args.out.cols), false));
  joined_.qkv.reset();
  joined_.parts.push_back({op, args.out, [this, args, qkv] {
                             qkv_to_cache(qkv);
                             attention(args);
                           }});
  return true;
}

// The embedding by itself, where nothing would write its rows otherwise.
void GpuBackend::embed_first() {
  embedding(*joined_.embedding);
  joined_.embedding.reset();
  for (JoinedStep::Part& part : joined_.parts) {
    if (part.op.kind == kStepLinear) part.op.linear.x_by_token = part.op.linear.residual_by_token = 0;
  }
}

void GpuBackend::finish_joined() {
  if (joined_.finishing || (joined_.parts.empty() && !joined_.qkv && !joined_.embedding)) return;
  joined_.finishing = true;
  if (joined_.embedding && !joined_.embedded) embed_first();
  if (!launch_joined()) {
    if (joined_.embedding) embed_first();
    for (const JoinedStep::Part& part : joined_.parts) part.alone();
  }
  joined_.parts.clear();
  joined_.embedding.reset();
  if (joined_.qkv) {
    const QkvToCacheArgs qkv = *joined_.qkv;
    joined_.qkv.reset();
    qkv_to_cache(qkv);
  }
  joined_.finishing = false;
}

bool GpuBackend::launch_joined() {
  const size_t count = joined_.parts.size();
  if (count < kLeastOps) return false;
  const int dim = joined_.head_dim == 0 ? 64 : joined_.head_dim;
  DecodeStepParams p = {};
  p.rows = joined_.rows;
  p.ops = static_cast<int>(count);
  p.heads = static_cast<int>(joined_.heads);
  p.kv_heads = static_cast<int>(joined_.kv_heads);
  p.ring = step_ring_at(dim, p.rows, joined_.most_k, p.heads / std::max(p.kv_heads, 1));
  p.positions = static_cast<int>(joined_.positions);
  if (joined_.embedding) {
    const auto& table = static_cast<const GpuMatrix&>(*joined_.embedding->table);
    p.table = table.data;
    p.tokens = joined_.embedding->tokens.data();
    p.table_stride = table.k();
    p.table_scale = joined_.embedding->scale;
  }
  const auto most_memory = static_cast<int>(device_->info().max_threadgroup_memory);
  p.slots = std::min<int>(kStepMostSlots, (most_memory - p.ring) / kStepSlotBytes);
  if (p.slots < kLeastSlots) return false;

  const int64_t splits = joined_.positions / kHopperSplit;
  const auto bytes = [](int64_t entries) { return static_cast<size_t>(std::max<int64_t>(entries, 1)) * 8; };
  if (joined_.epochs == nullptr) {
    const auto groups = static_cast<size_t>(device_->info().compute_units);
    auto epochs = device_->allocate(groups * 4);
    auto bests = device_->allocate(groups * kStepRows * sizeof(SamplePartial));
    if (!epochs.ok() || !bests.ok()) return false;
    joined_.epochs = std::move(epochs).value();
    joined_.bests = std::move(bests).value();
  }
  const JoinedStep::Part& last = joined_.parts.back();
  if (last.op.kind == kStepLinear && last.op.linear.epilogue == kHopperStoreF32) {
    p.bests = static_cast<SamplePartial*>(joined_.bests->address());
    current_->logits = last.out;
  }
  void* exchange = joined_.exchange.grow(*device_, kStepExchanges * bytes(joined_.entries));
  void* scores = joined_.scores.grow(*device_, bytes(p.rows * joined_.heads * joined_.positions));
  void* partials = joined_.partials.grow(*device_, bytes(splits > 1 ? p.rows * joined_.heads * splits * (dim + 2) : 1));
  p.exchanged = joined_.entries;

  // Uploaded when the recording has ended: its runs read what is there by then.
  std::vector<StepOp> program;
  for (const JoinedStep::Part& part : joined_.parts) {
    program.push_back(part.op);
    if (part.op.kind == kStepLinear) program.back().linear.lot = step_lot(part.op.linear, p.slots);
    if (&part != &joined_.parts.back() && overlap(part.out, joined_.parts.back().out)) forget_out(program.back());
  }
  const size_t size = program.size() * sizeof(StepOp);
  auto memory = device_->allocate(size);
  if (!memory.ok()) return false;
  void* at = memory.value()->address();
  std::vector<std::byte> text(size);
  std::memcpy(text.data(), program.data(), size);
  current_->programs.push_back({std::move(memory).value(), std::move(text)});
  launch((std::string("hopper_decode_step_") + spelling(joined_.type) + "_d" + std::to_string(dim)).c_str(), p,
         {at, joined_.contexts, joined_.at_positions, joined_.slots, exchange, scores, partials,
          joined_.epochs->address()},
         {static_cast<uint32_t>(device_->info().compute_units)}, kStepThreads,
         static_cast<uint32_t>(p.ring + p.slots * kStepSlotBytes));
  return true;
}

// Flags of the exchange must not return while an entry of long ago may still hold them.
void GpuBackend::count_joined_run(size_t programs) {
  joined_.runs += programs;
  if (joined_.runs < joined_.most_runs) return;
  joined_.runs = programs;
  for (GpuScratch* scratch : {&joined_.exchange, &joined_.scores, &joined_.partials}) scratch->clear(*device_);
  device_->fill(joined_.epochs->address(), 0, joined_.epochs->bytes());
}

}  // namespace quire::gpu
