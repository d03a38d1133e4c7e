// SPDX-License-Identifier: Apache-2.0
// linear and linear_heads on the CPU: how rows, panels and heads are divided over threads.
#include <algorithm>

#include "backend/cpu/cpu_backend.h"
#include "base/math.h"

namespace quire::cpu {
namespace {

// Panels divided into as many shares as there are threads, and these into pieces. Threads take pieces in turns, and
// tickets are in such an order that the pieces that a thread takes one after the other are of one share, neighbours in
// memory: a kernel prefetches the panels behind those it multiplies. Shares are as equal as whole pairs of panels
// allow, so that no thread is left with a last piece.
struct PanelPieces {
  int64_t panels, shares, share, grain;

  PanelPieces(int64_t count, int64_t most, int threads)
      : panels(count),
        shares(threads),
        share(round_up(ceil_div(count, shares), 2)),
        grain(whole_sets(std::min(most, share / 4))) {}
  int64_t tickets() const { return shares * ceil_div(share, grain); }
  int64_t begin(int64_t ticket) const { return ticket % shares * share + ticket / shares * grain; }
  // Not above begin(ticket) if the ticket has no piece.
  int64_t end(int64_t ticket) const { return std::min({panels, (ticket % shares + 1) * share, begin(ticket) + grain}); }
};

// Up to this many rows every thread prepares the activations for itself, which is cheaper than a second parallel
// region.
constexpr int64_t kOwnPrepareRows = 4;
// From this many rows on, gate and up are multiplied piece by piece (1.3 times as fast with AMX and 512 rows); fewer
// rows stay in a cache anyway. A thread keeps this many floats of both, or two panels.
constexpr int64_t kGatedRows = 64;
constexpr int64_t kGatedFloats = 1 << 14;
// The most rows of a piece of linear_heads; a piece prepares its rows itself.
constexpr int64_t kHeadRows = 256;

}  // namespace

PreparedRows CpuBackend::prepared_rows(Scratch& memory, const PackedView& w, int64_t rows) {
  const auto bytes = static_cast<size_t>(kernels_.linear.prepared_bytes(w, rows));
  return {static_cast<std::byte*>(memory.grow(bytes)), rows};
}

void CpuBackend::linear(const LinearArgs& args) {
  check(args);
  check_f32(args.x, args.out);
  const CpuMatrix& weight = matrix(args.weight);
  const PackedView& w = weight.view();
  if (args.x.rows == 0) return;
  if (!args.columns.empty()) {
    auto* ordered = static_cast<float*>(ordered_.grow(static_cast<size_t>(args.x.rows * w.k) * sizeof(float)));
    LinearArgs plain = args;
    plain.x = {ordered, DType::kF32, args.x.rows, w.k, w.k};
    plain.columns = {};
    gather_columns({args.x, args.columns, plain.x});
    return linear(plain);
  }
  // If up does not begin at an even panel, no piece can compute both gate and up.
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
  if (prepared != nullptr && kernels_.linear.gated != nullptr &&
      kernels_.linear.gated(*prepared, w, args, row_begin, row_end, begin, end, thread_scratch(thread, w.k))) {
    return;
  }
  // Gate and up of a few panels stay in a near cache until they are multiplied.
  const int64_t rows = row_end - row_begin;
  const int64_t half = w.panels() / 2;
  const int64_t most = whole_sets(kGatedFloats / (2 * kPanel * rows));
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
  const PanelPieces pieces(w.panels(), w.panels(), pool_.threads());
  pool_.run([&](int thread) {
    const PreparedRows rows = prepared_rows(thread_rows_[static_cast<size_t>(thread)], w, args.x.rows);
    kernels_.linear.prepare(args.x, w, 0, args.x.rows, rows);
    void* scratch = thread_scratch(thread, w.k);
    pool_.take_pieces(pieces.tickets(), 1, [&](int64_t ticket, int64_t) {
      const int64_t begin = pieces.begin(ticket), end = pieces.end(ticket);
      if (begin >= end) return;
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
    for_rows(ceil_div(rows, kRowTile), w.k * kRowTile, [&](int64_t begin, int64_t end) {
      kernels_.linear.prepare(args.x, w, begin * kRowTile, std::min(rows, end * kRowTile), prepared);
    });
  }
  // A piece is a block of rows times some panels. Pieces of the same row block follow each other, so that threads share
  // the block in L2.
  const int64_t bytes_per_row = prepare ? kernels_.linear.prepared_bytes(w, rows) / rows : w.k * 4;
  int64_t row_block = std::max<int64_t>(64, kRowBlockBytes / bytes_per_row / kRowTile * kRowTile);
  const int64_t row_blocks = ceil_div(rows, row_block);
  row_block = round_up(ceil_div(rows, row_blocks), kRowTile);
  const PanelPieces pieces(panels, 8, pool_.threads());
  const int64_t tickets = pieces.tickets();
  pool_.for_each_piece(row_blocks * tickets, 1, [&](int64_t piece, int64_t, int thread) {
    const int64_t row_begin = piece / tickets * row_block;
    const int64_t row_end = std::min(rows, row_begin + row_block);
    const int64_t begin = pieces.begin(piece % tickets), end = pieces.end(piece % tickets);
    if (row_begin >= row_end || begin >= end) return;
    linear_piece(w, args, prepare ? &prepared : nullptr, row_begin, row_end, begin, end, thread);
  });
}

// A piece is a block of rows times some panels of one head.
void CpuBackend::linear_heads(const LinearHeadsArgs& args) {
  check(args);
  check_f32(args.x, args.out);
  const CpuMatrix& weight = matrix(args.weight);
  const int64_t rows = args.x.rows;
  if (rows == 0) return;
  PackedView first = weight.view();
  first.n = args.n;
  const int64_t x_head = args.x.cols / args.heads, out_head = args.out.cols / args.heads;
  const int64_t row_blocks = ceil_div(rows, kHeadRows);
  const int64_t row_block = round_up(ceil_div(rows, row_blocks), kRowTile);
  const int64_t panels = first.panels();
  const int64_t grain =
      std::min(round_up(panels, 2), whole_sets(panels * args.heads * row_blocks / (int64_t{4} * pool_.threads())));
  const int64_t panel_pieces = ceil_div(panels, grain);
  pool_.for_each_piece(row_blocks * args.heads * panel_pieces, 1, [&](int64_t piece, int64_t, int thread) {
    const int64_t head = piece / panel_pieces % args.heads;
    const int64_t row_begin = piece / panel_pieces / args.heads * row_block;
    const int64_t count = std::min(rows - row_begin, row_block);
    const int64_t begin = piece % panel_pieces * grain;
    const int64_t end = std::min(panels, begin + grain);
    if (count <= 0) return;
    PackedView w = first;
    w.data += head * panels * w.panel_stride;
    LinearArgs one;
    one.x = args.x.some_rows(row_begin, count).columns(head * x_head, w.k);
    one.out = args.out.some_rows(row_begin, count).columns(head * out_head, args.n);
    PreparedRows prepared;
    if (weight.prepares_rows()) {
      prepared = prepared_rows(thread_rows_[static_cast<size_t>(thread)], w, count);
      kernels_.linear.prepare(one.x, w, 0, count, prepared);
    }
    linear_piece(w, one, weight.prepares_rows() ? &prepared : nullptr, 0, count, begin, end, thread);
  });
}

}  // namespace quire::cpu
