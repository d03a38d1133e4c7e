// SPDX-License-Identifier: Apache-2.0
// The cases of the GPU benchmark: linear, quantised linear, paged attention, gated delta nets, ops on rows, and
// sampling.
#include "bench/gpu_kernels.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "backend/exchange.h"
#include "bench/gpu_rig.h"

namespace quire::bench {
namespace {

constexpr DType kType = DType::kBF16;
constexpr size_t kLibraryAlgorithms = 8;  // how many of the library's proposals are timed
constexpr int64_t kTurnSamples = 1;
// The clock of a busy GPU depends on what ran before, so the library's proposals are timed twice: once alone, to find
// the kNearest fastest, and then those and our kernel in turn, in alternating order. The best of the kTurns times of
// each counts.
constexpr size_t kNearest = 3;
constexpr int kTurns = 5;

struct AttentionShape {
  const char* op;
  int64_t heads, kv_heads, head_dim;
  int32_t sequences, queries, context;
};
struct DeltaShape {
  int64_t key_heads, value_heads, dim;
  int32_t sequences, tokens;  // tokens per sequence
  int64_t mamba2_dim = 0;     // not 0: Mamba-2 with that head size, with groups as key heads and `dim` as state size
};
struct Plan {
  std::vector<cases::LinearShape> shapes, quantised_shapes;
  std::vector<int64_t> rows, quantised_rows;
  std::vector<DType> quantised;
  std::vector<AttentionShape> attention;
  std::vector<DeltaShape> delta;
  int64_t tokens = 0;  // rows of norm, rope and glu
  int64_t vocab = 0, sample_rows = 0;
  int64_t limit_bytes = 0;  // size of the copy
  int64_t limit_side = 0;   // M, N and K of the matrix product
  std::vector<int64_t> exchange_columns, exchange_rows;
};

// qkv, o, gate+up and down of Qwen3-8B; the gated delta net of Qwen3.5-4B. The plan of --quick is tiny: it shows on the
// emulator that everything runs.
Plan usual_plan() {
  using enum DType;
  return {.shapes = {{6144, 4096}, {4096, 4096}, {24576, 4096}, {4096, 12288}},
          .quantised_shapes = {{4096, 4096}, {24576, 4096}, {4096, 12288}},
          .rows = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096},
          .quantised_rows = {1, 8, 16, 64},
          .quantised = {kQ8_0, kQ4_0, kQ4_K, kQ6_K, kG4},
          .attention = {{"decode", 16, 8, 128, 64, 1, 4096},
                        {"decode", 16, 8, 128, 1, 1, 4096},
                        {"decode", 16, 8, 128, 256, 1, 512},
                        {"decode", 32, 8, 128, 64, 1, 576},
                        {"decode", 4, 1, 256, 64, 1, 576},
                        {"decode", 8, 4, 256, 64, 1, 576},
                        {"decode", 64, 8, 64, 64, 1, 576},
                        {"prefill", 32, 8, 128, 1, 8192, 8192},
                        {"prefill", 16, 8, 128, 1, 8192, 8192},
                        {"prefill", 16, 8, 128, 16, 512, 512}},
          .delta = {{16, 32, 128, 1, 512},
                    {16, 32, 128, 16, 512},
                    {16, 32, 128, 1, 1},
                    {16, 32, 128, 64, 1},
                    {8, 128, 128, 1, 512, 64},
                    {8, 128, 128, 16, 512, 64},
                    {8, 128, 128, 1, 1, 64},
                    {8, 128, 128, 64, 1, 64}},
          .tokens = 4096,
          .vocab = 151936,
          .sample_rows = 256,
          .limit_bytes = int64_t{2} << 30,
          .limit_side = 8192,
          .exchange_columns = {4096, 12288},
          .exchange_rows = {1, 64, 2048}};
}

Plan quick_plan() {
  return {.shapes = {{64, 64}},
          .quantised_shapes = {{64, 256}},
          .rows = {1, 20},
          .quantised_rows = {1},
          .quantised = {DType::kQ8_0},
          .attention = {{"decode", 4, 2, 64, 2, 1, 70}, {"prefill", 4, 2, 64, 1, 40, 40}},
          .delta = {{1, 2, 32, 1, 20}, {1, 2, 32, 2, 1}, {1, 2, 16, 2, 20, 32}},
          .tokens = 4,
          .vocab = 1000,
          .sample_rows = 3,
          .limit_bytes = 1 << 20,
          .limit_side = 64,
          .exchange_columns = {64},
          .exchange_rows = {1, 20}};
}

Result<Plan> plan_of(const KernelOptions& o) {
  Plan out = o.quick ? quick_plan() : usual_plan();
  if (!o.rows.empty()) out.rows = out.quantised_rows = o.rows;
  if (!o.shapes.empty()) {
    QUIRE_ASSIGN(out.shapes, shapes_of(o));
    out.quantised_shapes = out.shapes;
  }
  if (!o.types.empty()) {
    QUIRE_ASSIGN(out.quantised, types_of(o.types, {}, true));
    std::erase_if(out.quantised, [](DType type) { return !is_quantised(type); });
  }
  const auto wanted = [&](const char* op) {
    return o.ops.empty() || std::find(o.ops.begin(), o.ops.end(), op) != o.ops.end();
  };
  for (const std::string& op : o.ops) {
    if (op != "linear" && op != "quantised" && op != "attention" && op != "delta" && op != "rows" && op != "limits" &&
        op != "exchange") {
      return invalid_argument(
          {"--ops has '", op,
           "'; on a GPU choose from linear, quantised, attention, delta, rows, exchange and limits"});
    }
  }
  if (!wanted("linear")) out.shapes.clear();
  if (!wanted("quantised")) out.quantised.clear();
  if (!wanted("attention")) out.attention.clear();
  if (!wanted("delta")) out.delta.clear();
  if (!wanted("rows")) out.tokens = 0;
  if (o.ops.empty() || !wanted("exchange")) out.exchange_columns.clear();  // needs NCCL on CUDA
  return out;
}

class Runner {
 public:
  Runner(GpuRig& rig, const Plan& plan, GpuFigures& figures, const KernelProgress& progress)
      : rig_(rig), plan_(plan), figures_(figures), progress_(progress) {}

  Status run() {
    QUIRE_TRY(limits());
    for (const cases::LinearShape& shape : plan_.shapes) QUIRE_TRY(linear(kType, shape, plan_.rows));
    for (const DType type : plan_.quantised) {
      for (const cases::LinearShape& shape : plan_.quantised_shapes)
        QUIRE_TRY(linear(type, shape, plan_.quantised_rows));
    }
    for (const AttentionShape& shape : plan_.attention) QUIRE_TRY(attention(shape));
    for (const DeltaShape& shape : plan_.delta) {
      for (const bool chunked : {false, true}) QUIRE_TRY(delta(shape, chunked));
    }
    if (plan_.tokens > 0) QUIRE_TRY(rows());
    if (plan_.tokens > 0) QUIRE_TRY(sampling());
    if (!plan_.exchange_columns.empty()) QUIRE_TRY(exchange());
    return {};
  }

 private:
  Status limits();
  Status linear(DType type, const cases::LinearShape& shape, const std::vector<int64_t>& rows);
  Status attention(const AttentionShape& shape);
  Status delta(const DeltaShape& shape, bool chunked);
  Status rows();
  Status sampling();
  Status exchange();
  Status file(GpuFigure figure, size_t calls, const std::function<void(size_t)>& call, bool plain = false) {
    progress_(figures_.device, figure.op + " " + figure.shape + " rows " + std::to_string(figure.rows),
              figures_.kernels.size(), 0);
    QUIRE_ASSIGN(figure.seconds, rig_.time(calls, call, plain));
    figures_.kernels.push_back(std::move(figure));
    return {};
  }
  // The library's algorithms, fastest first; empty if there is no library.
  struct Peer {
    double seconds = 0;
    std::function<Result<double>()> time;
  };
  Result<std::vector<Peer>> library(int64_t m, int64_t n, int64_t k, const Tensor& x, const Tensor& y,
                                    const std::vector<const void*>& w);

  GpuRig& rig_;
  const Plan& plan_;
  GpuFigures& figures_;
  const KernelProgress& progress_;
};

Result<std::vector<Runner::Peer>> Runner::library(int64_t m, int64_t n, int64_t k, const Tensor& x, const Tensor& y,
                                                  const std::vector<const void*>& w) {
  std::vector<Peer> out;
  const gpu::LibraryProduct shape = {
      .x = x.data, .y = y.data, .type = kType, .out_type = kType, .m = m, .n = n, .k = k, .x_stride = k, .y_stride = n};
  for (const auto& algorithm : rig_.device().library_algorithms(shape, kLibraryAlgorithms)) {
    const auto product = [shape, algorithm, &w](size_t i) {
      gpu::LibraryProduct one = shape;
      one.w = w[i % w.size()];
      return algorithm(one);
    };
    if (!product(0).ok()) continue;
    const auto time = [this, product, count = w.size()] {
      return rig_.time(
          count, [&](size_t i) { (void)product(i); }, kTurnSamples, false);
    };
    QUIRE_ASSIGN(const double seconds, time());
    out.push_back({seconds, time});
  }
  std::sort(out.begin(), out.end(), [](const Peer& a, const Peer& b) { return a.seconds < b.seconds; });
  return out;
}

Status Runner::limits() {
  progress_(figures_.device, "limits", 0, 0);
  const auto bytes = static_cast<size_t>(plan_.limit_bytes);
  QUIRE_ASSIGN(void* const from, rig_.memory(bytes));
  QUIRE_ASSIGN(void* const to, rig_.memory(bytes));
  rig_.randomise(from, kType, plan_.limit_bytes / 2, 1);
  // Not recorded: inside a graph a copy goes to the copy engines, which are slower than the multiprocessors.
  QUIRE_ASSIGN(const double copy, rig_.time(
                                      4, [&](size_t) { rig_.device().copy(to, from, bytes); }, true));
  figures_.copy_rate = 2 * static_cast<double>(bytes) / copy;
  rig_.release();
  const int64_t side = plan_.limit_side;
  QUIRE_ASSIGN(const Tensor x, rig_.tensor(kType, side, side, 1));
  QUIRE_ASSIGN(const Tensor w, rig_.tensor(kType, side, side, 2));
  QUIRE_ASSIGN(const Tensor y, rig_.tensor(kType, side, side, 3));
  QUIRE_ASSIGN(const std::vector<Peer> products, library(side, side, side, x, y, {w.data}));
  const auto edge = static_cast<double>(side);
  if (!products.empty()) figures_.matmul_rate = 2 * edge * edge * edge / products.front().seconds;
  rig_.release();
  return {};
}

Status Runner::linear(DType type, const cases::LinearShape& shape, const std::vector<int64_t>& rows) {
  constexpr size_t kMostCopies = 40;
  const int64_t n = shape.n, k = cases::rounded_k(type, shape.k);
  QUIRE_ASSIGN(const auto weights, rig_.weights(type, n, k, kMostCopies));
  std::vector<const void*> plain;
  for (const PackedMatrix* weight : weights) plain.push_back(static_cast<const gpu::GpuMatrix*>(weight)->data);
  const int64_t most = *std::max_element(rows.begin(), rows.end());
  QUIRE_ASSIGN(const Tensor x, rig_.tensor(kType, most, k, 2));
  QUIRE_ASSIGN(const Tensor y, rig_.tensor(kType, most, n, 3));
  for (const int64_t m : rows) {
    GpuFigure figure;
    figure.op = "linear";
    figure.type = name(type);
    figure.shape = std::to_string(n) + "x" + std::to_string(k);
    figure.rows = m;
    figure.operations = 2.0 * static_cast<double>(m * n * k);
    figure.bytes = static_cast<double>(weights[0]->bytes()) + 2.0 * static_cast<double>(m * (n + k));
    const auto ours = [&](size_t i) {
      rig_.backend().linear({.x = x.first_rows(m), .weight = weights[i], .out = y.first_rows(m)});
    };
    GpuFigure gated = figure;
    QUIRE_TRY(file(std::move(figure), weights.size(), ours));
    if (n >= 4 * k) {  // gate and up
      gated.op = "linear, gated";
      gated.bytes -= static_cast<double>(m * n);
      const FusedGlu gate{Activation::kSilu};
      QUIRE_TRY(file(std::move(gated), weights.size(), [&](size_t i) {
        rig_.backend().linear(
            {.x = x.first_rows(m), .weight = weights[i], .out = y.first_rows(m).columns(0, n / 2), .gated = &gate});
      }));
      // What the library takes is filed with the last figure, that of the plain product.
      std::swap(figures_.kernels.back(), figures_.kernels[figures_.kernels.size() - 2]);
    }
    if (type != kType) continue;
    QUIRE_ASSIGN(std::vector<Peer> peers, library(m, n, k, x, y, plain));
    if (peers.empty()) continue;
    peers.erase(peers.begin() + static_cast<ptrdiff_t>(std::min(kNearest, peers.size())), peers.end());
    peers.push_back({0, [&] { return rig_.time(weights.size(), ours, kTurnSamples, false); }});
    std::vector<std::vector<double>> turns(peers.size());
    for (int turn = 0; turn < kTurns; ++turn) {
      for (size_t i = 0; i < peers.size(); ++i) {
        const size_t whose = turn % 2 == 0 ? i : peers.size() - 1 - i;
        QUIRE_ASSIGN(const double seconds, peers[whose].time());
        turns[whose].push_back(seconds);
      }
    }
    GpuFigure& filed = figures_.kernels.back();
    const auto best = [](const std::vector<double>& seconds) {
      return *std::min_element(seconds.begin(), seconds.end());
    };
    filed.seconds = best(turns.back());
    filed.library = best(turns.front());
    for (size_t i = 1; i + 1 < turns.size(); ++i) filed.library = std::min(filed.library, best(turns[i]));
  }
  rig_.release();
  return {};
}

Status Runner::attention(const AttentionShape& shape) {
  constexpr int64_t kBlock = 16;
  Backend& backend = rig_.backend();
  const int64_t blocks = (shape.context + kBlock - 1) / kBlock, pages = blocks * shape.sequences;
  const int64_t width = backend.table_width(blocks, kBlock);
  KvLayer kv;
  kv.page_stride =
      static_cast<int64_t>(backend.kv_page_bytes({kType, kBlock, shape.kv_heads, shape.head_dim, 0, false}));
  kv.num_pages = pages;
  kv.block_size = kBlock;
  kv.num_kv_heads = shape.kv_heads;
  kv.head_dim = shape.head_dim;
  kv.dtype = kType;
  QUIRE_ASSIGN(kv.pages, rig_.memory(static_cast<size_t>(kv.page_stride * pages)));
  rig_.randomise(kv.pages, kType, kv.page_stride * pages / 2, 1);
  const int64_t tokens = int64_t{shape.sequences} * shape.queries, cols = shape.heads * shape.head_dim;
  QUIRE_ASSIGN(const Tensor q, rig_.tensor(kType, tokens, cols, 2));
  QUIRE_ASSIGN(const Tensor out, rig_.tensor(kType, tokens, cols, 3));

  std::vector<int32_t> order(static_cast<size_t>(pages)), cu = {0}, lengths, tables;
  std::iota(order.begin(), order.end(), 0);
  cases::Random random(4);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.next() % i]);
  double pairs = 0;
  for (int32_t s = 0; s < shape.sequences; ++s) {
    cu.push_back(cu.back() + shape.queries);
    lengths.push_back(shape.context);
    tables.insert(tables.end(), order.begin() + s * blocks, order.begin() + (s + 1) * blocks);
    tables.resize(static_cast<size_t>((s + 1) * width));
    for (int32_t t = 0; t < shape.queries; ++t) pairs += static_cast<double>(shape.context - shape.queries + t + 1);
  }
  backend.begin_step();
  AttentionArgs args;
  args.q = q;
  args.kv = kv;
  args.num_heads = shape.heads;
  args.scale = 0.0883883f;
  args.cu_seqlens_q = rig_.stage(cu);
  args.context_lens = rig_.stage(lengths);
  args.block_tables = rig_.stage(tables);
  args.max_blocks = width;
  args.out = out;

  GpuFigure figure;
  figure.op = shape.op;
  figure.type = name(kType);
  figure.shape = std::to_string(shape.heads) + "/" + std::to_string(shape.kv_heads) + "x" +
                 std::to_string(shape.head_dim) + " " + std::to_string(shape.sequences) + "@" +
                 std::to_string(shape.context);
  figure.rows = tokens;
  figure.operations = 4.0 * pairs * static_cast<double>(cols);
  const int64_t positions = int64_t{shape.sequences} * shape.context;
  figure.bytes = 4.0 * static_cast<double>(positions * shape.kv_heads * shape.head_dim + tokens * cols);
  QUIRE_TRY(file(std::move(figure), 4, [&](size_t) { backend.attention(args); }));
  rig_.release();
  return {};
}

// A gated delta net or Mamba-2 token by token or in chunks: prompts from their beginnings, or one token in the middle
// of a chunk.
Status Runner::delta(const DeltaShape& shape, bool chunked) {
  constexpr size_t kLeastBytes = size_t{256} << 20;  // of states that calls use in turn: more than a cache holds
  constexpr int64_t kKernel = 4;
  const bool mamba2 = shape.mamba2_dim > 0;
  const int64_t keys = shape.key_heads, heads = shape.value_heads, dk = shape.dim, sequences = shape.sequences;
  const int64_t dv = mamba2 ? shape.mamba2_dim : dk;
  const int64_t rows = sequences * shape.tokens, channels = 2 * keys * dk + heads * dv;
  const DeltaChunkLayout layout(keys, heads, dk, dv, kKernel);
  const int64_t state = chunked ? layout.bytes : gated_delta_net_state_bytes(keys, heads, dk, dv, kKernel);
  const bool decode = shape.tokens == 1;
  const auto turn = static_cast<size_t>(state * sequences);
  const size_t turns = decode ? std::clamp<size_t>(std::min(kLeastBytes, 64 * turn) / turn, 1, 64) : 1;
  QUIRE_ASSIGN(void* const pages, rig_.memory(turn * turns));
  QUIRE_ASSIGN(const Tensor in, rig_.tensor(kType, rows, channels, 1));
  QUIRE_ASSIGN(const Tensor gates, rig_.tensor(kType, rows, 2 * heads, 2));
  QUIRE_ASSIGN(const Tensor weight, rig_.tensor(DType::kF32, channels, kKernel, 3));
  QUIRE_ASSIGN(const Tensor out, rig_.tensor(kType, rows, heads * dv, 4));
  const int32_t start = decode ? kStateChunk / 2 : 0;
  const std::vector<float> decay(static_cast<size_t>(heads), -0.1f), dt_bias(static_cast<size_t>(heads));
  std::vector<int32_t> cu = {0}, source, destination;
  for (int32_t s = 0; s < shape.sequences; ++s) {
    cu.push_back(cu.back() + shape.tokens);
    source.push_back(decode ? s : -1);
    destination.push_back(s);
  }
  const std::vector<int32_t> lengths(source.size(), start + shape.tokens);
  Backend& backend = rig_.backend();
  backend.begin_step();
  const CausalConv conv{channels, kKernel, weight.f32(), nullptr};
  const float* const decays = rig_.stage(decay).data();
  const float* const biases = rig_.stage(dt_bias).data();
  const StateSequences steps{rig_.stage(cu), rig_.stage(source), rig_.stage(destination), {}, rig_.stage(lengths)};

  GpuFigure figure;
  figure.op = mamba2 ? (chunked ? "m-chunks" : "mamba2") : chunked ? "chunks" : "delta";
  figure.type = name(kType);
  figure.shape = std::to_string(keys) + "/" + std::to_string(heads) + "x" + std::to_string(dv) + " " +
                 std::to_string(sequences) + "@" + std::to_string(start + shape.tokens);
  figure.rows = rows;
  figure.operations = (mamba2 ? 5.0 : 7.0) * static_cast<double>(rows * heads * dk * dv);  // token by token
  // A token reads the state and writes it; in chunks it reads the matrices and, here, half of the rest.
  const int64_t moved = !decode ? state : chunked ? (layout.bytes + layout.values) / 2 : 2 * state;
  figure.bytes = static_cast<double>(moved * sequences + 2 * rows * (channels + heads * dv));
  QUIRE_TRY(file(std::move(figure), std::max<size_t>(turns, 4), [&](size_t i) {
    const StateLayer states{static_cast<std::byte*>(pages) + i % turns * turn, state, sequences};
    if (mamba2) {
      backend.mamba2({.xbc = in,
                      .dt = gates.columns(0, heads),
                      .heads = heads,
                      .head_dim = dv,
                      .groups = keys,
                      .state_size = dk,
                      .conv = conv,
                      .decay = decays,
                      .skip = biases,
                      .dt_bias = biases,
                      .dt_min = 0,
                      .dt_max = 100,
                      .state = states,
                      .sequences = steps,
                      .out = out,
                      .chunked = chunked});
      return;
    }
    backend.gated_delta_net({.qkv = in,
                             .a = gates.columns(0, heads),
                             .b = gates.columns(heads, heads),
                             .key_heads = keys,
                             .value_heads = heads,
                             .dk = dk,
                             .dv = dv,
                             .conv = conv,
                             .decay = decays,
                             .dt_bias = biases,
                             .state = states,
                             .sequences = steps,
                             .out = out,
                             .chunked = chunked});
  }));
  rig_.release();
  return {};
}

// Norm, rope and glu with the widths of Qwen3-8B. Several copies of the rows, so that they are read from memory.
Status Runner::rows() {
  constexpr size_t kCopies = 4;
  constexpr int64_t kHidden = 4096, kHeadDim = 128, kMlp = 12288;
  Backend& backend = rig_.backend();
  for (const int64_t tokens : {plan_.tokens, std::max<int64_t>(plan_.tokens / 64, 1)}) {
    std::vector<Tensor> hidden, normed, gated;
    for (size_t i = 0; i < kCopies; ++i) {
      QUIRE_ASSIGN(Tensor h, rig_.tensor(DType::kF32, tokens, kHidden, i));
      QUIRE_ASSIGN(Tensor x, rig_.tensor(kType, tokens, kHidden, i));
      QUIRE_ASSIGN(Tensor g, rig_.tensor(kType, tokens, 2 * kMlp, i));
      hidden.push_back(h);
      normed.push_back(x);
      gated.push_back(g);
    }
    QUIRE_ASSIGN(const Tensor weight, rig_.tensor(DType::kF32, 1, kHidden, 9));
    QUIRE_ASSIGN(const Tensor table, rig_.tensor(DType::kF32, tokens, kHeadDim / 2, 10));
    std::vector<int32_t> positions(static_cast<size_t>(tokens));
    std::iota(positions.begin(), positions.end(), 0);
    backend.begin_step();
    const auto staged = rig_.stage(positions);
    const auto figure = [&](const char* op, int64_t cols, int64_t bytes) {
      GpuFigure out;
      out.op = op;
      out.type = name(kType);
      out.shape = std::to_string(cols);
      out.rows = tokens;
      out.bytes = static_cast<double>(bytes);
      return out;
    };
    QUIRE_TRY(file(figure("norm", kHidden, tokens * kHidden * 6), kCopies, [&](size_t i) {
      backend.rms_norm({.x = hidden[i], .weight = weight.f32(), .group = kHidden, .eps = 1e-6f, .out = normed[i]});
    }));
    QUIRE_TRY(file(figure("rope", kHidden, tokens * kHidden * 4), kCopies, [&](size_t i) {
      backend.rope({.x = normed[i],
                    .head_dim = kHeadDim,
                    .rot_dim = kHeadDim,
                    .cos_table = table.f32(),
                    .sin_table = table.f32(),
                    .positions = staged});
    }));
    QUIRE_TRY(file(figure("glu", kMlp, tokens * kMlp * 6), kCopies, [&](size_t i) {
      backend.glu(
          {.gate = gated[i].columns(0, kMlp), .up = gated[i].columns(kMlp, kMlp), .out = gated[i].columns(0, kMlp)});
    }));
    rig_.release();
  }
  return {};
}

// Sampling over Qwen3's vocabulary: greedy, at a temperature alone, with top_p, and with the settings that Qwen3
// recommends. Greedy reads the logits once, cut-offs more often. The logits are random and so about equally likely,
// which is the worst case for all but greedy.
Status Runner::sampling() {
  Backend& backend = rig_.backend();
  if (!backend.samples()) return {};
  const int64_t vocab = plan_.vocab, most = plan_.sample_rows;
  QUIRE_TRY(backend.prepare_sampling(most, most, vocab));
  QUIRE_ASSIGN(const Tensor logits, rig_.tensor(DType::kF32, most, vocab, 5));
  struct Settings {
    const char* name;
    float temperature, top_p;
    int32_t top_k;
  };
  constexpr Settings kAll[] = {
      {"greedy", 0, 1, 0}, {"drawn", 1, 1, 0}, {"top_p", 1, 0.9f, 0}, {"top_k_p", 0.6f, 0.95f, 20}};
  for (const Settings& each : kAll) {
    for (const int64_t rows : {most, int64_t{1}}) {
      std::vector<SampleRow> settings(static_cast<size_t>(rows));
      for (SampleRow& row : settings) {
        row.seed = 7;
        row.temperature = each.temperature;
        row.top_p = each.top_p;
        row.top_k = each.top_k;
      }
      GpuFigure figure;
      figure.op = each.name;
      figure.type = "F32";
      figure.shape = std::to_string(vocab);
      figure.rows = rows;
      figure.bytes = 4.0 * static_cast<double>(rows * vocab);
      SampleArgs args;
      args.logits = logits.first_rows(rows);
      args.rows = settings;
      QUIRE_TRY(file(
          std::move(figure), 4,
          [&](size_t) {
            backend.sample(args);
            backend.finish_samples(rows);
          },
          true));
    }
  }
  rig_.release();
  return {};
}

// What ranks call around their products, by a group of one rank: the calls and the copies without a wire. The columns
// are those before o and down of Qwen3-8B.
Status Runner::exchange() {
  constexpr size_t kCalls = 20;
  Backend& backend = rig_.backend();
  const auto groups = distributed::make_thread_group(1);
  QUIRE_ASSIGN(const std::unique_ptr<Exchange> ranks, backend.join(*groups.front(), true));
  const int64_t most = *std::max_element(plan_.exchange_rows.begin(), plan_.exchange_rows.end());
  for (const DType type : {kType, DType::kF32}) {
    for (const int64_t columns : plan_.exchange_columns) {
      QUIRE_ASSIGN(const Tensor mine, rig_.tensor(type, most, columns, 6));
      QUIRE_ASSIGN(const Tensor all, rig_.tensor(type, most, columns, 7));
      for (const int64_t rows : plan_.exchange_rows) {
        GpuFigure figure;
        figure.op = "gather";
        figure.type = name(type);
        figure.shape = std::to_string(columns);
        figure.rows = rows;
        figure.bytes = 2.0 * static_cast<double>(rows * row_bytes(type, columns));
        QUIRE_TRY(file(std::move(figure), kCalls, [&](size_t) {
          ranks->gather_columns(mine.first_rows(rows), all.first_rows(rows), distributed::Group::kEvery);
        }));
      }
      rig_.release();
    }
  }
  return {};
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f%%", 100 * share);
  return text;
}

}  // namespace

std::optional<double> GpuFigures::share_matmul(const GpuFigure& figure) const {
  if (matmul_rate == 0 || figure.operations == 0) return std::nullopt;
  return figure.operations / figure.seconds / matmul_rate;
}

Result<GpuFigures> gpu_kernels(const KernelOptions& options, const KernelProgress& progress) {
  QUIRE_ASSIGN(const Plan plan, plan_of(options));
  if (options.samples < 1 || options.samples > 10000) return invalid_argument("--samples must be 1 to 10000");
  QUIRE_ASSIGN(const auto rig, GpuRig::open(options.device, options.samples));
  GpuFigures out;
  out.device = rig->backend().describe();
  Runner runner(*rig, plan, out, progress);
  QUIRE_TRY(runner.run());
  if (const std::string library = rig->device().library_version(); !library.empty()) {
    out.notes.push_back("the library is " + library + "; its time is the best of " +
                        std::to_string(kLibraryAlgorithms) + " proposals, which may add up in any order");
  }
  return out;
}

json::Value GpuFigures::to_json() const {
  json::Value out{json::Object{}};
  out.set("device", device);
  out.set("copy_tb_per_s", copy_rate * 1e-12);
  out.set("matmul_tflop_per_s", matmul_rate * 1e-12);
  json::Array list, words;
  for (const GpuFigure& f : kernels) {
    json::Value item{json::Object{}};
    item.set("kernel", f.op);
    item.set("type", f.type);
    item.set("case", f.shape);
    item.set("rows", f.rows);
    item.set("seconds", f.seconds);
    item.set("bytes", f.bytes);
    item.set("flops", f.operations);
    item.set("share_copy", share_copy(f));
    const std::optional<double> product = share_matmul(f);
    item.set("share_matmul", product ? json::Value(*product) : json::Value());
    item.set("library_seconds", f.library > 0 ? json::Value(f.library) : json::Value());
    list.push_back(std::move(item));
  }
  for (const std::string& note : notes) words.emplace_back(note);
  out.set("kernels", std::move(list));
  out.set("notes", std::move(words));
  return out;
}

std::string GpuFigures::to_text() const {
  char text[240];
  std::string out = device + "\n";
  std::snprintf(text, sizeof text, "Limits: a copy moves %.2f TB/s, the library multiplies at %.0f TFLOP/s (bf16)\n",
                copy_rate * 1e-12, matmul_rate * 1e-12);
  out += text;
  if (!kernels.empty()) {
    out +=
        "  op       type  case                 rows         us      TB/s   of copy   TFLOP/s  of matmul   library us  "
        " ";
    out += "library/ours\n";
  }
  for (const GpuFigure& f : kernels) {
    const std::optional<double> product = share_matmul(f);
    char beside[64] = "";
    if (f.library > 0) std::snprintf(beside, sizeof beside, "%12.2f %13.2f", f.library * 1e6, f.library / f.seconds);
    std::snprintf(text, sizeof text, "  %-8s %-5s %-18s %6lld %10.2f %9.3f %9s %9.1f %10s %s\n", f.op.c_str(),
                  f.type.c_str(), f.shape.c_str(), static_cast<long long>(f.rows), f.seconds * 1e6,
                  f.bytes / f.seconds * 1e-12, percent(share_copy(f)).c_str(), f.operations / f.seconds * 1e-12,
                  product ? percent(*product).c_str() : "-", beside);
    out += text;
  }
  for (const std::string& note : notes) out += "  " + note + "\n";
  out.pop_back();
  return out;
}

}  // namespace quire::bench
