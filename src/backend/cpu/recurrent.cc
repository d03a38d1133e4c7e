// SPDX-License-Identifier: Apache-2.0
// The recurrent layers, and the small ops that go with them.
#include <algorithm>
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/recurrent_layout.h"

namespace quire::cpu {
namespace {

// Columns that follow one another, as most of a projection's parts do: copied in one go.
struct ColumnRun {
  int64_t from, to, count;
};

std::vector<ColumnRun> runs_of(std::span<const int32_t> columns) {
  std::vector<ColumnRun> runs;
  for (size_t i = 0; i < columns.size(); ++i) {
    const int64_t column = columns[i];
    if (!runs.empty() && runs.back().from + runs.back().count == column) {
      ++runs.back().count;
    } else {
      runs.push_back({column, static_cast<int64_t>(i), 1});
    }
  }
  return runs;
}

void check_sequences(const StateSequences& s, const StateLayer& state, int64_t rows, int64_t state_bytes) {
  QUIRE_CHECK(!s.cu_seqlens_q.empty() && s.cu_seqlens_q.front() == 0 && s.cu_seqlens_q.back() == rows);
  const size_t sequences = s.cu_seqlens_q.size() - 1;
  QUIRE_CHECK(s.source.size() == sequences && s.destination.size() == sequences);
  QUIRE_CHECK(state.pages != nullptr && state.page_stride >= state_bytes && state.page_stride % 4 == 0);
  for (size_t i = 0; i < sequences; ++i) {
    QUIRE_CHECK(s.cu_seqlens_q[i] <= s.cu_seqlens_q[i + 1]);
    QUIRE_CHECK(s.source[i] >= -1 && s.source[i] < state.num_pages);
    QUIRE_CHECK(s.destination[i] >= 0 && s.destination[i] < state.num_pages);
  }
}

// The items of a step, the longest sequences' first. A group is cut where the sequence has so large a share of the
// tokens that threads would wait for it; the cuts cost the group's shared inputs once more.
// `order` and `items` keep their memory from step to step.
void fill_items(std::span<const int32_t> cu_seqlens, int64_t groups, int64_t units, int threads,
                std::vector<int64_t>& order, std::vector<StateItem>& items) {
  const int64_t total = cu_seqlens.back();
  order.clear();
  items.clear();
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    if (cu_seqlens[s] < cu_seqlens[s + 1]) order.push_back(static_cast<int64_t>(s));
  }
  const auto tokens = [&](int64_t s) {
    return int64_t{cu_seqlens[static_cast<size_t>(s) + 1]} - cu_seqlens[static_cast<size_t>(s)];
  };
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return tokens(a) != tokens(b) ? tokens(a) > tokens(b) : a < b; });
  for (const int64_t s : order) {
    const int64_t wanted = (4 * threads * tokens(s) + total - 1) / total;
    const int64_t parts = std::clamp<int64_t>((wanted + groups - 1) / groups, 1, units);
    for (int64_t group = 0; group < groups; ++group) {
      for (int64_t part = 0; part < parts; ++part) {
        items.push_back({s, group, part * units / parts, (part + 1) * units / parts});
      }
    }
  }
}

constexpr int64_t kTailChannels = 1024;  // of one piece

// Channels [begin, begin + count) of a sequence's new tail: its last inputs, and what is left of the old tail where
// there are fewer. Ascending, so that it may be done in place.
void write_tail(const CausalConv& conv, const Tensor& x, int64_t first, int64_t tokens, const float* source,
                float* destination, int64_t begin, int64_t count) {
  const auto bytes = static_cast<size_t>(count) * sizeof(float);
  for (int64_t j = 0; j < conv.kernel - 1; ++j) {
    const int64_t t = tokens - (conv.kernel - 1) + j;
    float* to = destination + j * conv.channels + begin;
    if (t >= 0) {
      std::memcpy(to, x.row_f32(first + t) + begin, bytes);
    } else if (source == nullptr) {
      std::memset(to, 0, bytes);
    } else {
      std::memmove(to, source + (conv.kernel - 1 + t) * conv.channels + begin, bytes);
    }
  }
}

}  // namespace

void CpuBackend::gather_columns(const GatherColumnsArgs& args) {
  check_float(args.x, args.x.rows, args.x.cols);
  check_float(args.out, args.x.rows, static_cast<int64_t>(args.columns.size()));
  for (const int32_t column : args.columns) QUIRE_CHECK(column >= 0 && column < args.x.cols);
  const std::vector<ColumnRun> runs = runs_of(args.columns);
  for_rows(args.x.rows, args.out.cols, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = args.x.row_f32(row);
      float* out = args.out.row_f32(row);
      for (const ColumnRun& run : runs) {
        if (run.count == 1) {
          out[run.to] = x[run.from];
        } else {
          std::memcpy(out + run.to, x + run.from, static_cast<size_t>(run.count) * sizeof(float));
        }
      }
    }
  });
}

void CpuBackend::scale(const ScaleArgs& args) {
  check_float(args.x, args.x.rows, args.x.cols);
  check_float(args.out, args.x.rows, args.x.cols);
  QUIRE_CHECK(args.rows.empty() || static_cast<int64_t>(args.rows.size()) == args.x.rows);
  for_rows(args.x.rows, args.x.cols, [&](int64_t begin, int64_t end) { kernels_.scale(args, begin, end); });
}

void CpuBackend::soft_cap(const SoftCapArgs& args) {
  check_float(args.x, args.x.rows, args.x.cols);
  check_float(args.out, args.x.rows, args.x.cols);
  QUIRE_CHECK(args.cap > 0);
  for_rows(args.x.rows, 4 * args.x.cols, [&](int64_t begin, int64_t end) { kernels_.soft_cap(args, begin, end); });
}

void CpuBackend::gated_rms_norm(const GatedRmsNormArgs& args) {
  check_float(args.x, args.x.rows, args.x.cols);
  check_float(args.gate, args.x.rows, args.x.cols);
  check_float(args.out, args.x.rows, args.x.cols);
  QUIRE_CHECK(args.group > 0 && args.x.cols % args.group == 0 && args.weight != nullptr);
  QUIRE_CHECK(args.weight_size == args.group || args.weight_size == args.x.cols);
  for_rows(args.x.rows, 4 * args.x.cols,
           [&](int64_t begin, int64_t end) { kernels_.gated_rms_norm(args, begin, end); });
}

// The recurrence first, by items; then the convolution's tails, which several items may have read.
template <typename Args>
void CpuBackend::recurrent(const Args& args, const Tensor& x, int64_t groups, int64_t units, int64_t matrix_floats,
                           void (*kernel)(const Args&, const StateItem&, float*)) {
  const StateSequences& s = args.sequences;
  fill_items(s.cu_seqlens_q, groups, units, pool_.threads(), state_order_, state_items_);
  const std::vector<StateItem>& items = state_items_;
  pool_.for_each_piece(static_cast<int64_t>(items.size()), 1, [&](int64_t begin, int64_t end, int thread) {
    auto* scratch =
        static_cast<float*>(thread_scratch_[static_cast<size_t>(thread)].grow(kStateScratchFloats * sizeof(float)));
    for (int64_t i = begin; i < end; ++i) kernel(args, items[static_cast<size_t>(i)], scratch);
  });

  const int64_t pieces = (args.conv.channels + kTailChannels - 1) / kTailChannels;
  for_rows(static_cast<int64_t>(s.source.size()) * pieces, kTailChannels, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto sequence = static_cast<size_t>(i / pieces);
      const int64_t channel = i % pieces * kTailChannels;
      const int64_t first = s.cu_seqlens_q[sequence], tokens = s.cu_seqlens_q[sequence + 1] - first;
      const float* source = state_of(args.state, s.source[sequence]);
      float* destination = state_of(args.state, s.destination[sequence]);
      write_tail(args.conv, x, first, tokens, source, destination, channel,
                 std::min(kTailChannels, args.conv.channels - channel));
      if (tokens > 0 || channel > 0) continue;
      const int64_t tail = args.conv.tail_floats();  // nothing ran: the rest of the state is carried over too
      const auto bytes = static_cast<size_t>(matrix_floats) * sizeof(float);
      if (source == nullptr) {
        std::memset(destination + tail, 0, bytes);
      } else {
        std::memmove(destination + tail, source + tail, bytes);
      }
    }
  });
}

void CpuBackend::gated_delta_net(const GatedDeltaNetArgs& args) {
  QUIRE_CHECK(check_gated_delta_net_shape(args.key_heads, args.value_heads, args.dk, args.dv, args.conv.kernel).ok());
  const int64_t rows = args.qkv.rows;
  const int64_t channels = 2 * args.key_heads * args.dk + args.value_heads * args.dv;
  QUIRE_CHECK(args.conv.channels == channels && args.conv.weight != nullptr);
  QUIRE_CHECK(args.decay != nullptr && args.dt_bias != nullptr);
  check_float(args.qkv, rows, channels);
  check_float(args.a, rows, args.value_heads);
  check_float(args.b, rows, args.value_heads);
  check_float(args.out, rows, args.value_heads * args.dv);
  check_sequences(args.sequences, args.state, rows,
                  gated_delta_net_state_bytes(args.key_heads, args.value_heads, args.dk, args.dv, args.conv.kernel));
  recurrent(args, args.qkv, args.key_heads, args.value_heads / args.key_heads * slices_of(args.dv),
            args.value_heads * args.dk * args.dv, kernels_.gated_delta_net);
}

void CpuBackend::mamba2(const Mamba2Args& args) {
  QUIRE_CHECK(check_mamba2_shape(args.heads, args.head_dim, args.groups, args.state_size, args.conv.kernel).ok());
  const int64_t rows = args.xbc.rows;
  const int64_t channels = args.heads * args.head_dim + 2 * args.groups * args.state_size;
  QUIRE_CHECK(args.conv.channels == channels && args.conv.weight != nullptr);
  QUIRE_CHECK(args.decay != nullptr && args.skip != nullptr && args.dt_bias != nullptr);
  check_float(args.xbc, rows, channels);
  check_float(args.dt, rows, args.heads);
  check_float(args.out, rows, args.heads * args.head_dim);
  check_sequences(args.sequences, args.state, rows,
                  mamba2_state_bytes(args.heads, args.head_dim, args.groups, args.state_size, args.conv.kernel));
  recurrent(args, args.xbc, args.groups, args.heads / args.groups * slices_of(args.head_dim),
            args.heads * args.head_dim * args.state_size, kernels_.mamba2);
}

void CpuBackend::short_conv(const ShortConvArgs& args) {
  const int64_t channels = args.conv.channels, rows = args.bcx.rows;
  QUIRE_CHECK(check_short_conv_shape(channels, args.conv.kernel).ok() && args.conv.weight != nullptr);
  check_float(args.bcx, rows, 3 * channels);
  check_float(args.out, rows, channels);
  check_sequences(args.sequences, args.state, rows, short_conv_state_bytes(channels, args.conv.kernel));
  const int64_t pieces = (channels + kShortConvChannels - 1) / kShortConvChannels;
  pool_.for_each_piece(
      pieces, rows * channels < kElementsPerPiece ? pieces : 1, [&](int64_t begin, int64_t end, int thread) {
        auto* scratch = static_cast<float*>(
            thread_scratch_[static_cast<size_t>(thread)].grow(kShortConvScratchFloats * sizeof(float)));
        for (int64_t i = begin; i < end; ++i) {
          kernels_.short_conv(args, i * kShortConvChannels, std::min(channels, (i + 1) * kShortConvChannels), scratch);
        }
      });
}

}  // namespace quire::cpu
