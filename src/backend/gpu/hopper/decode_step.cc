// SPDX-License-Identifier: Apache-2.0
// Collecting the ops of a decode step and launching them as one program.
#include "backend/gpu/hopper/decode_step.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "backend/gpu/grid_math.h"
#include "backend/gpu/weight_layout.h"
#include "base/check.h"
#include "base/env.h"

namespace quire::gpu {
namespace {

constexpr int kMostJoinedRows = 4;  // sequences; with more, single launches are as fast
constexpr size_t kLeastOps = 6;     // fewer, such as one layer's attention, are launched one by one
constexpr size_t kMostOps = 254;    // of a launch, as flags count; more become several launches
constexpr int kLeastSlots = 4;      // of the ring
// Beyond these, single launches are at least as fast: attention's own kernels read long contexts faster, and the bytes
// of a large weight take longer than the gap between two launches, or than the norms of several rows in turn.
constexpr int64_t kMostPositions = 8192;
constexpr int64_t kMostWeight = int64_t{1} << 27, kMostWeightOfSeveral = int64_t{1} << 25;  // elements; several rows
constexpr int kMostStreamedRows = 2;  // where every threadgroup keeps the residual stream

int default_most_rows() {
  const auto asked = env("QUIRE_CUDA_JOIN");
  return asked ? std::clamp(std::atoi(asked->c_str()), 0, kMostJoinedRows) : kMostJoinedRows;
}

bool known_attention(const AttentionArgs& args) {
  const KvLayer& kv = args.kv;
  return args.causal && args.distance_bias == nullptr && args.sinks == nullptr && !kv.v_in_k &&
         kv.dtype == args.q.dtype && kv.head_dim == kv.v_dim() &&
         (kv.head_dim == 64 || kv.head_dim == 128 || kv.head_dim == 256) &&
         args.num_heads / kv.num_kv_heads <= kStepMostGroup &&
         std::has_single_bit(static_cast<uint64_t>(kv.block_size));
}

// A product that the program can do, provided that x is the output of the op before it.
bool known_product(const LinearArgs& args, const GpuMatrix& w, DType type) {
  const int64_t tiled = args.gated != nullptr ? w.n() / 2 : w.n();
  const bool residual = args.residual.data != nullptr;
  if (w.dtype() != type || type == DType::kF32 || w.k() % 64 != 0 || tiled % 8 != 0 || !args.columns.empty())
    return false;
  // The head, whose output is F32, comes last: nothing is gained by a launch of its own for it, whatever its size.
  const int64_t most = args.x.rows == 1 ? kMostWeight : kMostWeightOfSeveral;
  if ((residual || args.out.dtype != DType::kF32) && w.n() * w.k() > most) return false;
  return on_16_bytes(args.x.data) && on_16_bytes(args.out.data) && on_16_bytes(args.residual.data) &&
         args.x.stride % 8 == 0 && args.out.stride % 8 == 0 && args.residual.stride % 8 == 0;
}

// Divides the tiles of a product over `groups` threadgroups.
void divide_tiles(StepLinearOp& op, int groups) {
  const bool gated = op.epilogue == kHopperGated;
  // Tiles of eight where sixteen would leave threadgroups idle, or one with more rows.
  const auto most = [&](int rows) { return (op.n / rows + groups - 1) / groups * rows; };
  op.halves = gated || (op.n % 16 == 0 && op.n / 16 >= groups && most(16) <= most(8)) ? 2 : 1;
  const int tiles = op.n / (8 * op.halves);
  op.each = tiles / groups;
  op.rest = tiles % groups;
  op.inverse_k = (op.k & (op.k - 1)) == 0 ? 1.0f / static_cast<float>(op.k) : 0.0f;
}

// Tiles that a threadgroup has in progress: one per warp, as far as their chunks fit the ring together with those that
// come next, which a warp looks for before it has finished its own.
short tiles_in_progress(const StepLinearOp& op, int slots, int chunk) {
  const int fit = slots / op.halves, tiles = op.k > chunk ? fit / 2 : fit;
  return static_cast<short>(std::clamp(tiles, 1, int{kStepWarps}));
}
// The length of a chunk of W in the general form: as few chunks as possible, and as equal, since a short one leaves a
// part of its slot empty.
int chunk_of(int64_t columns) {
  const int64_t chunks = ceil_div(columns, int64_t{kStepMostChunk});
  return static_cast<int>(std::max<int64_t>(kStepChunk, round_up(ceil_div(columns, chunks), 128)));
}

// Entries of the exchange that an op's output takes. An entry is a value (a float, or two of T) and the flag of the op
// that wrote it in one word of eight bytes, so that whoever sees the flag has the value.
i64 exchange_entries(int rows, int64_t columns, bool floats) {
  return static_cast<i64>(rows) * (floats ? columns : columns / 2);
}

// Whether two ops write to the same scratch. Threadgroups need not agree whose stores come last, so only the last op
// may write there. The same rows written again, such as the residual, do not count: each element has one thread that
// writes it.
bool overlap(const Tensor& a, const Tensor& b) {
  const auto begin = [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data); };
  const auto end = [&](const Tensor& t) {
    return begin(t) + static_cast<uintptr_t>(t.rows * t.stride * info(t.dtype).block_bytes);
  };
  const bool same = a.data == b.data && a.dtype == b.dtype && a.stride == b.stride;
  return !same && begin(a) < end(b) && begin(b) < end(a);
}

KernelId kernel_of(int head_dim, bool general) {
  if (!general) return head_dim == 64 ? KernelId::kHopperDecodeStepD64 : KernelId::kHopperDecodeStepD128;
  return head_dim == 64    ? KernelId::kHopperDecodeStepGeneralD64
         : head_dim == 128 ? KernelId::kHopperDecodeStepGeneralD128
                           : KernelId::kHopperDecodeStepGeneralD256;
}

bool is_head(const StepOp& op) {
  return op.kind == kStepLinear && op.linear.epilogue == kHopperStoreF32;
}

}  // namespace

JoinedStep::JoinedStep(Backend& ops, Device& device, Launcher& launcher, StepRecorder& recorder, bool hopper)
    : ops_(ops),
      device_(device),
      launcher_(launcher),
      recorder_(recorder),
      hopper_(hopper),
      most_rows_(default_most_rows()),
      exchange_(device),
      scores_(device),
      partials_(device) {}

bool JoinedStep::joins(DType type, int64_t rows) const {
  return recorder_.recording() && !finishing_ && type != DType::kF32 && rows <= most_rows_ && hopper_;
}

bool JoinedStep::joins_head(int64_t rows) const {
  return rows <= most_rows_ && device_.info().graphs && hopper_;
}

Status JoinedStep::reserve(const WorkspaceLimits& sizes) {
  const int64_t rows = std::min<int64_t>(most_rows_, sizes.seqs);
  if (rows == 0 || sizes.activation == DType::kF32 || !hopper_) return {};
  const int64_t positions = std::min(kMostPositions, round_up(sizes.positions, kHopperSplit));
  const int64_t columns = std::max(sizes.out_columns, sizes.heads * sizes.head_dim);
  const auto bytes = [](int64_t entries) { return static_cast<size_t>(entries) * 8; };
  QUIRE_TRY(exchange_.reserve(bytes(kStepExchanges * rows * columns)));
  QUIRE_TRY(scores_.reserve(bytes(rows * sizes.heads * positions)));
  return partials_.reserve(bytes(rows * sizes.heads * (positions / kHopperSplit) * (sizes.head_dim + 2)));
}

// Waits for the product that takes it. Its rows are read there and as the first residual, and not written.
bool JoinedStep::join_embedding(const EmbeddingArgs& args) {
  if (!joins(args.table->dtype(), args.out.rows) || args.out.dtype != DType::kF32) return false;
  finish();
  embedding_ = args;
  embedded_ = false;
  return true;
}

// Whether a product takes what the last part gives.
bool JoinedStep::follows(const LinearArgs& args, DType type) const {
  if (add_) return follows_add(args) && type == type_ && parts_.size() < kMostOps;
  if (parts_.empty()) {
    return !embedding_ || (embedding_->out.data == args.x.data && embedding_->out.rows == args.x.rows &&
                           args.norm != nullptr && embedding_->table->dtype() == type);
  }
  if (is_head(parts_.back().op)) return false;
  const Tensor& before = parts_.back().out;
  if (args.x.data != before.data || args.x.rows != before.rows || args.x.cols != before.cols ||
      args.x.dtype != before.dtype || type != type_ || parts_.size() >= kMostOps) {
    return false;
  }
  if (args.residual.data != nullptr && streamed_) return false;
  // A threadgroup reads the residual where it wrote it itself, which takes the same tiles.
  return std::all_of(parts_.begin(), parts_.end(), [&](const Part& part) {
    return args.residual.data == nullptr || part.out.data != args.residual.data || part.out.cols == args.out.cols;
  });
}

// Whether a product normalises the sum that waits, which is not yet in memory. It must have a tile for each
// threadgroup: all of them read the sum, and only what all have written tells that all have read.
bool JoinedStep::follows_add(const LinearArgs& args) const {
  const Tensor& sum = add_->residual;
  const int64_t tiled = args.gated != nullptr ? args.out.cols : gpu_matrix(args.weight).n();
  return tiled / 8 >= device_.info().compute_units && args.norm != nullptr && args.residual.data == nullptr &&
         args.x.data == sum.data && args.x.rows == sum.rows && args.x.cols == sum.cols;
}

StepLinearOp JoinedStep::linear_op(const LinearArgs& args) {
  const GpuMatrix& w = gpu_matrix(args.weight);
  StepLinearOp l = {};
  l.x = parts_.empty() ? args.x.data : nullptr;
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
  if (embedding_ && !embedded_) {
    l.x_by_token = parts_.empty();
    l.residual_by_token = l.residual == embedding_->out.data;
    embedded_ = l.residual_by_token != 0 && l.out == l.residual;
  }
  if (add_) keep_stream(l);
  divide_tiles(l, device_.info().compute_units);
  return l;
}

// Adds in this op what waits. From the first part on, every threadgroup keeps the stream; the last part that adds to it
// writes it to memory.
void JoinedStep::keep_stream(StepLinearOp& op) {
  op.streamed = 1;
  op.post_norm = add_->post_weight;
  op.post_eps = add_->eps;
  op.add_scale = add_->scale;
  op.stream = static_cast<float*>(stream_.data);
  op.stream_stride = static_cast<int>(stream_.stride);
  for (Part& part : parts_) {
    if (part.op.kind == kStepLinear) part.op.linear.stream = nullptr;
  }
  parts_.front().op.linear.streamed = 1;
  streamed_ = general_ = true;
  embedded_ = embedding_.has_value();
}

void JoinedStep::begin_parts(const LinearArgs& args, DType type) {
  type_ = type;
  rows_ = static_cast<int>(args.x.rows);
  stream_ = args.norm != nullptr && args.x.dtype == DType::kF32 ? args.x : Tensor{};
  streamed_ = added_ = general_ = false;
  contexts_ = nullptr;
  most_k_ = head_dim_ = window_ = 0;
  positions_ = heads_ = kv_heads_ = 0;
  entries_ = 0;
}

bool JoinedStep::join_linear(const LinearArgs& args, DType type) {
  if (!joins(type, args.x.rows) || !known_product(args, gpu_matrix(args.weight), type)) return false;
  if (qkv_) finish();
  if (!follows(args, type)) finish();
  StepOp op = {};
  op.kind = kStepLinear;
  op.linear = linear_op(args);
  if (parts_.empty()) begin_parts(args, type);
  added_ = added_ || op.linear.epilogue == kHopperResidual;
  general_ = general_ || (args.norm != nullptr && op.linear.k > kStepHeld && op.linear.k <= kStepMostHeld);
  most_k_ = std::max(most_k_, op.linear.k);
  if (!is_head(op)) {
    entries_ = std::max(entries_, exchange_entries(rows_, args.out.cols, args.out.dtype == DType::kF32));
  }
  const auto alone = [this, add = std::exchange(add_, {}), held = LinearArgs(args),
                      norm = args.norm != nullptr ? *args.norm : FusedNorm{},
                      gated = args.gated != nullptr ? *args.gated : FusedGlu{}]() mutable {
    if (add) ops_.add_norm(*add);
    if (held.norm != nullptr) held.norm = &norm;
    if (held.gated != nullptr) held.gated = &gated;
    ops_.linear(held);
  };
  parts_.push_back({op, args.out, alone});
  return true;
}

// Waits for the product that normalises the sum.
bool JoinedStep::join_add(const AddNormArgs& args) {
  if (parts_.empty() || qkv_ || add_ || added_ || !joins(args.x.dtype, args.x.rows)) return false;
  const Part& before = parts_.back();
  const bool taken = rows_ <= kMostStreamedRows && before.op.kind == kStepLinear && !is_head(before.op) &&
                     before.out.data == args.x.data && before.out.cols == args.x.cols &&
                     before.out.rows == args.x.rows && before.out.dtype == args.x.dtype;
  const bool streams = stream_.data != nullptr && parts_.front().op.linear.each > 0 &&
                       stream_.data == args.residual.data && stream_.cols == args.residual.cols &&
                       stream_.stride == args.residual.stride;
  if (!taken || !streams || args.post_weight == nullptr || args.weight != nullptr || stream_.cols > kStepMostStream) {
    return false;
  }
  add_ = args;
  return true;
}

// Waits for the attention that it belongs to.
bool JoinedStep::join_qkv(const QkvToCacheArgs& args) {
  if (!joins(args.q.dtype, args.q.rows) || parts_.empty() || qkv_ || add_) return false;
  const Part& before = parts_.back();
  const int64_t dim = args.kv.head_dim, q = args.num_heads * dim, k = args.kv.num_kv_heads * dim;
  const auto* base = static_cast<const char*>(args.q.data);
  const bool one_row = args.k.data == base + q * 2 && args.v.data == base + (q + k) * 2 &&
                       args.q.stride == args.k.stride && args.q.stride == args.v.stride && args.kv.v_dim() == dim;
  const bool taken = before.op.kind == kStepLinear && before.out.data == args.q.data && before.out.cols == q + 2 * k &&
                     before.out.dtype == args.q.dtype && before.out.rows == args.q.rows;
  if (!one_row || !taken) return false;
  qkv_ = args;
  return true;
}

bool JoinedStep::join_attention(const AttentionArgs& args, bool one_token_each) {
  if (!qkv_ || finishing_) return false;
  const QkvToCacheArgs qkv = *qkv_;
  const KvLayer& kv = args.kv;
  const int64_t positions = round_up(args.max_blocks * kv.block_size, kHopperSplit);
  const int dim = static_cast<int>(kv.head_dim);
  const bool same_pages = qkv.kv.pages == kv.pages && qkv.kv.page_stride == kv.page_stride;
  const bool same_step =
      contexts_ == nullptr || (contexts_ == args.context_lens.data() && token_positions_ == qkv.positions.data() &&
                               head_dim_ == dim && heads_ == args.num_heads && kv_heads_ == kv.num_kv_heads);
  const bool same_window = args.window == 0 || window_ == 0 || window_ == args.window;
  if (!known_attention(args) || !one_token_each || args.q.data != qkv.q.data || !same_pages || !same_step ||
      !same_window || positions > kMostPositions || !on_16_bytes(args.out.data) || args.out.stride % 8 != 0 ||
      args.q.rows != rows_) {
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
  a.slots = reinterpret_cast<const i64*>(qkv.slot_mapping.data());
  a.page_stride = kv.page_stride;
  a.block_shift = std::countr_zero(static_cast<uint64_t>(kv.block_size));
  a.max_blocks = static_cast<int>(args.max_blocks);
  a.out_stride = static_cast<int>(args.out.stride);
  a.rot_dim = static_cast<int>(qkv.rot_dim);
  a.interleaved = qkv.interleaved;
  a.eps = qkv.eps;
  constexpr float kLog2E = 1.44269504088896341f;
  a.window = static_cast<int>(args.window);
  a.c = args.soft_cap > 0 ? args.scale / args.soft_cap : args.scale * kLog2E;
  a.cap = args.soft_cap > 0 ? args.soft_cap * kLog2E : 0;
  general_ = general_ || dim == 256 || a.window > 0 || a.cap > 0;
  if (args.window > 0) window_ = a.window;
  contexts_ = args.context_lens.data();
  head_dim_ = dim;
  heads_ = args.num_heads;
  kv_heads_ = kv.num_kv_heads;
  token_positions_ = qkv.positions.data();
  positions_ = std::max(positions_, positions);
  entries_ = std::max(entries_, exchange_entries(rows_, args.out.cols, false));
  qkv_.reset();
  parts_.push_back({op, args.out, [this, args, qkv] {
                      ops_.qkv_to_cache(qkv);
                      ops_.attention(args);
                    }});
  return true;
}

// Launches the embedding by itself, where no part would write its rows.
void JoinedStep::embed_first() {
  ops_.embedding(*embedding_);
  embedding_.reset();
  for (Part& part : parts_) {
    if (part.op.kind == kStepLinear) part.op.linear.x_by_token = part.op.linear.residual_by_token = 0;
  }
}

void JoinedStep::finish() {
  if (finishing_ || (parts_.empty() && !qkv_ && !embedding_)) return;
  finishing_ = true;
  if (embedding_ && !embedded_) embed_first();
  if (!launch()) {
    if (embedding_) embed_first();
    for (const Part& part : parts_) part.alone();
  }
  parts_.clear();
  embedding_.reset();
  if (add_) {
    const AddNormArgs add = *add_;
    add_.reset();
    ops_.add_norm(add);
  }
  if (qkv_) {
    const QkvToCacheArgs qkv = *qkv_;
    qkv_.reset();
    ops_.qkv_to_cache(qkv);
  }
  finishing_ = false;
}

bool JoinedStep::allocate_flags() {
  if (epochs_ != nullptr) return true;
  const auto groups = static_cast<size_t>(device_.info().compute_units);
  auto epochs = device_.allocate(groups * 4);
  auto largest = device_.allocate(groups * kStepRows * sizeof(SamplePartial));
  if (!epochs.ok() || !largest.ok()) return false;
  epochs_ = std::move(epochs).value();
  largest_ = std::move(largest).value();
  return true;
}

// Where the program will be; null if there is no memory. It is uploaded when the recording has ended.
void* JoinedStep::upload_program(int slots, int chunk) {
  std::vector<StepOp> program;
  const Part& last = parts_.back();
  for (const Part& part : parts_) {
    StepOp& op = program.emplace_back(part.op);
    const bool hidden = &part != &last && overlap(part.out, last.out);
    if (op.kind == kStepLinear) {
      op.linear.lot = tiles_in_progress(op.linear, slots, chunk);
      if (hidden) op.linear.out = nullptr;
    } else if (hidden) {
      op.attention.out = nullptr;
    }
  }
  std::vector<std::byte> code(program.size() * sizeof(StepOp));
  std::memcpy(code.data(), program.data(), code.size());
  auto memory = device_.allocate(code.size());
  if (!memory.ok()) return nullptr;
  void* at = memory.value()->address();
  recorder_.current().programs.push_back({std::move(memory).value(), std::move(code)});
  return at;
}

bool JoinedStep::launch() {
  if (parts_.size() < kLeastOps) return false;
  const int dim = head_dim_ == 0 ? 64 : head_dim_;
  DecodeStepParams p = {};
  p.rows = rows_;
  p.ops = static_cast<int>(parts_.size());
  p.heads = static_cast<int>(heads_);
  p.kv_heads = static_cast<int>(kv_heads_);
  p.stream = step_stream_at(dim, p.rows, most_k_, p.heads / std::max(p.kv_heads, 1));
  p.stream_columns = streamed_ ? static_cast<int>(stream_.cols) : 0;
  p.ring = step_ring_at(p.stream, p.rows, p.stream_columns);
  p.positions = static_cast<int>(positions_);
  p.window = window_;
  if (embedding_) {
    const GpuMatrix& table = gpu_matrix(embedding_->table);
    p.table = table.data;
    p.tokens = embedding_->tokens.data();
    p.table_stride = table.k();
    p.table_scale = embedding_->scale;
  }
  const auto most_memory = static_cast<int>(device_.info().max_threadgroup_memory);
  p.chunk = general_ ? chunk_of(parts_.front().op.linear.k) : kStepChunk;
  p.slots = std::min<int>(kStepMostSlots, (most_memory - p.ring) / step_slot_bytes(p.chunk));
  if (p.slots < kLeastSlots || !allocate_flags()) return false;
  if (is_head(parts_.back().op)) {
    p.bests = static_cast<SamplePartial*>(largest_->address());
    recorder_.current().logits = parts_.back().out;
  }
  const int64_t splits = positions_ / kHopperSplit;
  const auto bytes = [](int64_t entries) { return static_cast<size_t>(std::max<int64_t>(entries, 1)) * 8; };
  void* exchange = exchange_.grow(kStepExchanges * bytes(entries_));
  void* scores = scores_.grow(bytes(p.rows * heads_ * positions_));
  void* partials = partials_.grow(bytes(splits > 1 ? p.rows * heads_ * splits * (dim + 2) : 1));
  p.exchanged = entries_;
  const void* program = upload_program(p.slots, p.chunk);
  if (program == nullptr) return false;
  launcher_.launch({kernel_of(dim, general_), type_}, p,
                   {program, contexts_, token_positions_, exchange, scores, partials, epochs_->address()},
                   {static_cast<uint32_t>(device_.info().compute_units)}, kStepThreads,
                   static_cast<uint32_t>(p.ring + p.slots * step_slot_bytes(p.chunk)));
  return true;
}

// A flag of the exchange must not come back while an old entry may still hold it.
void JoinedStep::before_run(size_t programs) {
  runs_ += programs;
  if (runs_ < most_runs_) return;
  runs_ = programs;
  for (Scratch* scratch : {&exchange_, &scores_, &partials_}) scratch->clear();
  device_.fill(epochs_->address(), 0, epochs_->bytes());
}

void JoinedStep::after_run(const RecordedStep& step) {
  if (step.joined()) logits_ = step.logits;
}

KnownLargest JoinedStep::largest_logits(const SampleArgs& args) const {
  const bool known = args.logits.data == logits_.data && args.logits.rows == logits_.rows &&
                     args.logits.cols == logits_.cols && args.edits.empty() &&
                     std::all_of(args.rows.begin(), args.rows.end(),
                                 [](const SampleRow& row) { return row.temperature == 0 && row.mask < 0; });
  if (!known) return {};
  return {largest_->address(), device_.info().compute_units};
}

bool JoinedStep::stage_with_tokens(Staging& staging, DeviceSampler& sampler) {
  constexpr size_t kMostBytes = 16 << 10;
  const Staging::Pending arrays = staging.pending();
  if (!sampler.pending_tokens() || sampler.has_pending_rows()) return false;
  if (!arrays.whole || arrays.bytes > kMostBytes) return false;
  const TakeSampledArgs tokens = sampler.take_pending_tokens();
  staging.mark_uploaded();
  const StageStepParams p{static_cast<int>(arrays.bytes / 16), static_cast<int>(tokens.tokens.size())};
  launcher_.launch(KernelId::kHopperStageStep, p,
                   {arrays.to, arrays.from, tokens.tokens.data(), tokens.rows.data(), sampler.last_results()}, {1},
                   kStageStepThreads);
  return true;
}

}  // namespace quire::gpu
