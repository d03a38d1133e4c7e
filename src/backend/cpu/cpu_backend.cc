// SPDX-License-Identifier: Apache-2.0
// The cpu backend: linear, attention and the elementwise ops.
#include "backend/cpu/cpu_backend.h"

#include <cstring>

#include "backend/cpu/attention_layout.h"
#include "backend/cpu/topology.h"
#include "base/log.h"

namespace quire::cpu {
namespace {

class CpuBuffer final : public Buffer {
 public:
  explicit CpuBuffer(PageMemory memory) : memory_(std::move(memory)) {
    data_ = memory_.data();
    bytes_ = memory_.bytes();
  }

 private:
  PageMemory memory_;
};

// Pieces of panels, which kernels take in pairs.
constexpr int64_t even(int64_t panels) {
  return std::max<int64_t>(2, panels / 2 * 2);
}

// The first is what pages of a quantised model hold by default. Tiles multiply bf16, so fp16 would only be rounded
// again.
constexpr DType kKvDTypes[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kI8, DType::kF8E4M3, DType::kF8E5M2};
constexpr DType kTileKvDTypes[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kI8, DType::kF8E4M3, DType::kF8E5M2};

void check_pages(const KvLayer& kv) {
  QUIRE_CHECK(kv.num_kv_heads > 0 && kv.head_dim > 0 && kv.head_dim <= kMaxHeadDim);
  QUIRE_CHECK(kv.v_dim() <= (kv.v_in_k ? kv.head_dim : kMaxHeadDim));
  QUIRE_CHECK(kv.block_size > 0 && kv.block_size % kKvHalf == 0);
}

// Below this many rows every thread makes the activations ready for itself: cheaper than a second region.
constexpr int64_t kOwnPrepareRows = 4;
// From this many rows on a gate and its up are joined piece by piece (1.3 times as fast with AMX and 512 rows); fewer
// rows stay in a cache anyway. A thread keeps this many floats of both, or two panels.
constexpr int64_t kGatedRows = 64;
constexpr int64_t kGatedFloats = 1 << 14;
// Bytes of activations that one piece of a linear reads again and again: they should stay in L2.
constexpr int64_t kRowBlockBytes = 1 << 20;

}  // namespace

CpuBackend::CpuBackend(Isa isa, int threads, std::span<const int> cpus)
    : isa_(isa),
      kernels_(cpu::kernels(isa)),
      pool_(threads, cpus),
      thread_scratch_(static_cast<size_t>(threads)),
      thread_rows_(static_cast<size_t>(threads)),
      thread_sums_(static_cast<size_t>(threads)) {}

std::string CpuBackend::describe() const {
  return std::string("cpu (") + name(isa_) + ", " + std::to_string(pool_.threads()) +
         (pool_.threads() == 1 ? " thread)" : " threads)");
}

std::span<const DType> CpuBackend::kv_dtypes() const {
  return isa_ >= Isa::kAmx ? std::span<const DType>(kTileKvDTypes) : kKvDTypes;
}

Result<std::unique_ptr<Buffer>> CpuBackend::allocate(size_t bytes) {
  QUIRE_ASSIGN(PageMemory memory, PageMemory::allocate(bytes));
  return std::unique_ptr<Buffer>(std::make_unique<CpuBuffer>(std::move(memory)));
}

Result<std::unique_ptr<PackedMatrix>> CpuBackend::pack(std::span<const RawMatrix> parts, const PackOptions& options) {
  QUIRE_ASSIGN(std::unique_ptr<CpuMatrix> packed, cpu::pack(parts, options, kernels_.linear.packings, pool_));
  return std::unique_ptr<PackedMatrix>(std::move(packed));
}

PreparedRows CpuBackend::prepared_rows(Scratch& memory, const PackedView& w, int64_t rows) {
  const auto bytes = static_cast<size_t>(kernels_.linear.prepared_bytes(w, rows));
  return {static_cast<std::byte*>(memory.grow(bytes)), rows};
}

void CpuBackend::linear(const LinearArgs& args) {
  const CpuMatrix& weight = matrix(args.weight);
  const PackedView& w = weight.view();
  check_float(args.x, args.x.rows, w.k);
  QUIRE_CHECK(args.gated == nullptr || w.n % 2 == 0, "a gate and its up have as many columns");
  check_float(args.out, args.x.rows, args.gated != nullptr ? w.n / 2 : w.n);
  if (args.x.rows == 0) return;
  if (!args.columns.empty()) {
    auto* ordered = static_cast<float*>(ordered_.grow(static_cast<size_t>(args.x.rows * w.k) * sizeof(float)));
    LinearArgs plain = args;
    plain.x = {ordered, DType::kF32, args.x.rows, w.k, w.k};
    plain.columns = {};
    gather_columns({args.x, args.columns, plain.x});
    return linear(plain);
  }
  // Where the up does not begin at an even panel no piece can hold both.
  if (args.gated != nullptr && (args.x.rows < kGatedRows || w.n % (4 * kPanel) != 0)) {
    const int64_t half = w.n / 2;
    auto* both = static_cast<float*>(gated_.grow(static_cast<size_t>(args.x.rows * w.n) * sizeof(float)));
    LinearArgs plain = args;
    plain.gated = nullptr;
    plain.out = {both, DType::kF32, args.x.rows, w.n, w.n};
    linear(plain);
    return glu({{both, DType::kF32, args.x.rows, half, w.n},
                {both + half, DType::kF32, args.x.rows, half, w.n},
                args.gated->activation,
                args.out,
                args.gated->limit});
  }
  if (weight.prepares_rows() && args.x.rows <= kOwnPrepareRows) return linear_few_rows(w, args);
  linear_many_rows(w, args, weight.prepares_rows());
}

void CpuBackend::linear_piece(const PackedView& w, const LinearArgs& args, const PreparedRows* prepared,
                              int64_t row_begin, int64_t row_end, int64_t begin, int64_t end, int thread) {
  const auto multiply = [&](const LinearArgs& to, int64_t from, int64_t until) {
    if (prepared != nullptr) {
      kernels_.linear.product(*prepared, w, to, row_begin, row_end, from, until, thread_scratch(thread, w.k));
    } else if (is_quantised(w.dtype)) {
      kernels_.linear.dequantised(w, to, row_begin, row_end, from, until, thread_scratch(thread, w.k));
    } else {
      kernels_.linear.plain(w, to, row_begin, row_end, from, until);
    }
  };
  if (args.gated == nullptr) return multiply(args, begin, end);
  // Gate and up of some panels stay near until they are joined.
  const int64_t rows = row_end - row_begin;
  const int64_t half = w.panels() / 2;
  const int64_t most = even(kGatedFloats / (2 * kPanel * rows));
  Scratch& memory = thread_sums_[static_cast<size_t>(thread)];
  for (int64_t p = begin; p < end; p += most) {
    const int64_t panels = std::min(most, end - p);
    const int64_t width = panels * kPanel;
    auto* sums = static_cast<float*>(memory.grow(static_cast<size_t>(rows * 2 * width) * sizeof(float)));
    // Element (row, column) of a linear's output goes to data[row * stride + column].
    LinearArgs to = args;
    to.out = {sums - row_begin * 2 * width - p * kPanel, DType::kF32, rows, width, 2 * width};
    multiply(to, p, p + panels);
    to.out.data = sums + width - row_begin * 2 * width - (half + p) * kPanel;
    multiply(to, half + p, half + p + panels);
    float* y = static_cast<float*>(args.out.data) + row_begin * args.out.stride + p * kPanel;
    kernels_.glu({{sums, DType::kF32, rows, width, 2 * width},
                  {sums + width, DType::kF32, rows, width, 2 * width},
                  args.gated->activation,
                  {y, DType::kF32, rows, width, args.out.stride},
                  args.gated->limit},
                 0, rows);
  }
}

void CpuBackend::linear_few_rows(const PackedView& w, const LinearArgs& args) {
  const int64_t panels = w.panels();
  const int64_t grain = even(panels / (4 * pool_.threads()));
  pool_.run([&](int thread) {
    const PreparedRows rows = prepared_rows(thread_rows_[static_cast<size_t>(thread)], w, args.x.rows);
    kernels_.linear.prepare(args.x, w, 0, args.x.rows, rows);
    void* scratch = thread_scratch(thread, w.k);
    pool_.take_pieces(panels, grain, [&](int64_t begin, int64_t end) {
      kernels_.linear.product(rows, w, args, 0, args.x.rows, begin, end, scratch);
    });
  });
}

void CpuBackend::linear_many_rows(const PackedView& w, const LinearArgs& args, bool prepare) {
  const int64_t rows = args.x.rows;
  const int64_t panels = args.gated != nullptr ? w.panels() / 2 : w.panels();
  PreparedRows prepared;
  if (prepare) {
    prepared = prepared_rows(rows_, w, rows);
    for_rows((rows + kRowTile - 1) / kRowTile, w.k * kRowTile, [&](int64_t begin, int64_t end) {
      kernels_.linear.prepare(args.x, w, begin * kRowTile, std::min(rows, end * kRowTile), prepared);
    });
  }
  // A piece is a block of rows times some panels. Row blocks come first in the order, so that threads share them in L2.
  const int64_t bytes_per_row = prepare ? kernels_.linear.prepared_bytes(w, rows) / rows : w.k * 4;
  int64_t row_block = std::max<int64_t>(64, kRowBlockBytes / bytes_per_row / kRowTile * kRowTile);
  const int64_t row_blocks = (rows + row_block - 1) / row_block;
  row_block = ((rows + row_blocks - 1) / row_blocks + kRowTile - 1) / kRowTile * kRowTile;
  const int64_t grain = even(std::min<int64_t>(8, panels * row_blocks / (4 * pool_.threads())));
  const int64_t panel_pieces = (panels + grain - 1) / grain;
  pool_.for_each_piece(row_blocks * panel_pieces, 1, [&](int64_t piece, int64_t, int thread) {
    const int64_t row_begin = piece / panel_pieces * row_block;
    const int64_t row_end = std::min(rows, row_begin + row_block);
    const int64_t begin = piece % panel_pieces * grain;
    const int64_t end = std::min(panels, begin + grain);
    if (row_begin >= row_end) return;
    linear_piece(w, args, prepare ? &prepared : nullptr, row_begin, row_end, begin, end, thread);
  });
}

void CpuBackend::embedding(const EmbeddingArgs& args) {
  const PackedView& table = matrix(args.table).view();
  const auto rows = static_cast<int64_t>(args.tokens.size());
  check_float(args.out, rows, table.k);
  for (const int32_t token : args.tokens) QUIRE_CHECK(token >= 0 && token < table.n);
  for_rows(rows, table.k, [&](int64_t begin, int64_t end) { kernels_.embedding(table, args, begin, end); });
}

void CpuBackend::rms_norm(const RmsNormArgs& args) {
  check_float(args.out, args.x.rows, args.x.cols);
  QUIRE_CHECK(args.group > 0 && args.x.cols % args.group == 0 && args.weight != nullptr);
  for_rows(args.x.rows, args.x.cols, [&](int64_t begin, int64_t end) { kernels_.rms_norm(args, begin, end); });
}

void CpuBackend::layer_norm(const LayerNormArgs& args) {
  check_float(args.out, args.x.rows, args.x.cols);
  QUIRE_CHECK(args.group > 0 && args.x.cols % args.group == 0 && args.weight != nullptr);
  for_rows(args.x.rows, args.x.cols, [&](int64_t begin, int64_t end) { kernels_.layer_norm(args, begin, end); });
}

void CpuBackend::rope(const RopeArgs& args) {
  check_float(args.x, static_cast<int64_t>(args.positions.size()), args.x.cols);
  QUIRE_CHECK(args.head_dim > 0 && args.x.cols % args.head_dim == 0);
  QUIRE_CHECK(args.rot_dim >= 0 && args.rot_dim % 2 == 0 && args.offset >= 0);
  QUIRE_CHECK(args.offset + args.rot_dim <= args.head_dim);
  for_rows(args.x.rows, args.x.cols, [&](int64_t begin, int64_t end) { kernels_.rope(args, begin, end); });
}

void CpuBackend::glu(const GluArgs& args) {
  check_float(args.up, args.gate.rows, args.gate.cols);
  check_float(args.out, args.gate.rows, args.gate.cols);
  for_rows(args.gate.rows, 4 * args.gate.cols, [&](int64_t begin, int64_t end) { kernels_.glu(args, begin, end); });
}

void CpuBackend::activation(const ActivationArgs& args) {
  check_float(args.out, args.x.rows, args.x.cols);
  for_rows(args.x.rows, 4 * args.x.cols, [&](int64_t begin, int64_t end) { kernels_.activation(args, begin, end); });
}

void CpuBackend::residual_add(const ResidualAddArgs& args) {
  check_float(args.residual, args.x.rows, args.x.cols);
  check_float(args.out, args.x.rows, args.x.cols);
  for_rows(args.x.rows, args.x.cols, [&](int64_t begin, int64_t end) { kernels_.residual_add(args, begin, end); });
}

void CpuBackend::gather(const GatherArgs& args) {
  check_float(args.out, static_cast<int64_t>(args.rows.size()), args.x.cols);
  for (const int32_t row : args.rows) QUIRE_CHECK(row >= 0 && row < args.x.rows);
  for_rows(args.out.rows, args.x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(args.out.row_f32(i), args.x.row_f32(args.rows[static_cast<size_t>(i)]),
                  static_cast<size_t>(args.x.cols) * sizeof(float));
    }
  });
}

void CpuBackend::reshape_and_cache(const ReshapeAndCacheArgs& args) {
  const KvLayer& kv = args.kv;
  const int64_t cols = kv.num_kv_heads * kv.head_dim;
  check_pages(kv);
  check_float(args.k, static_cast<int64_t>(args.slot_mapping.size()), cols);
  if (!kv.v_in_k) check_float(args.v, args.k.rows, kv.num_kv_heads * kv.v_dim());
  for (const int64_t slot : args.slot_mapping) QUIRE_CHECK(slot < kv.num_pages * kv.block_size);
  for_rows(args.k.rows, 2 * cols, [&](int64_t begin, int64_t end) { kernels_.reshape_and_cache(args, begin, end); });
}

size_t CpuBackend::kv_page_bytes(const KvPageShape& shape) const {
  return static_cast<size_t>(cpu::kv_page_bytes(shape));
}

void CpuBackend::attention(const AttentionArgs& args) {
  check_pages(args.kv);
  check_float(args.q, args.q.rows, args.num_heads * args.kv.head_dim);
  check_float(args.out, args.q.rows, args.num_heads * args.kv.v_dim());
  QUIRE_CHECK(args.num_heads % args.kv.num_kv_heads == 0 && args.window >= 0 && args.soft_cap >= 0);
  QUIRE_CHECK(args.cu_seqlens_q.size() == args.context_lens.size() + 1);
  QUIRE_CHECK(args.block_tables.size() >= args.context_lens.size() * static_cast<size_t>(args.max_blocks));
  const int64_t most_rows = args.kv.dtype == DType::kBF16 ? kernels_.attention.most_rows : kAttentionRows;
  plan_.build(args, pool_.threads(), most_rows);
  const auto items = plan_.items();
  const auto scratch = static_cast<size_t>(attention_scratch_floats(args.kv.head_dim, args.kv.v_dim())) * sizeof(float);
  pool_.for_each_piece(static_cast<int64_t>(items.size()), 1, [&](int64_t begin, int64_t end, int thread) {
    auto* floats = static_cast<float*>(thread_scratch_[static_cast<size_t>(thread)].grow(scratch));
    for (int64_t i = begin; i < end; ++i) kernels_.attention.run(args, items[static_cast<size_t>(i)], floats);
  });
  const auto merges = plan_.merges();
  pool_.for_each_piece(static_cast<int64_t>(merges.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) kernels_.attention.merge(args, merges[static_cast<size_t>(i)]);
  });
}

}  // namespace quire::cpu

namespace quire {

Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuOptions& options) {
  QUIRE_ASSIGN(const cpu::Isa isa, cpu::choose_isa(options.isa));
  constexpr int kMaxThreads = 1024;
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return invalid_argument("the number of CPU threads is " + std::to_string(options.threads) +
                            "; give 0 (all usable cores) up to " + std::to_string(kMaxThreads));
  }
  const cpu::CpuChoice choice =
      options.threads > 0 ? cpu::CpuChoice{.threads = options.threads, .cpus = {}, .reason = {}} : cpu::choose_cpus();
  if (!choice.reason.empty()) spdlog::info("cpu: {}", choice.reason);
  return std::unique_ptr<Backend>(std::make_unique<cpu::CpuBackend>(isa, choice.threads, choice.cpus));
}

}  // namespace quire
