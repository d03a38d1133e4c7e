// SPDX-License-Identifier: Apache-2.0
// The recurrent layers on the CPU: how sequences and heads are divided over threads.
#include <algorithm>
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/recurrent_layout.h"
#include "base/math.h"

namespace quire::cpu {
namespace {

// The items of a step, those of the longest sequences first. The units of a group are divided over several items if
// the sequence has so large a share of the tokens that threads would wait for it; each of these items computes the
// group's shared inputs again. `order` and `items` keep their memory from step to step.
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
    const int64_t wanted = ceil_div(4 * threads * tokens(s), total);
    const int64_t parts = std::clamp<int64_t>(ceil_div(wanted, groups), 1, units);
    for (int64_t group = 0; group < groups; ++group) {
      for (int64_t part = 0; part < parts; ++part) {
        items.push_back({s, group, part * units / parts, (part + 1) * units / parts});
      }
    }
  }
}

constexpr int64_t kTailChannels = 1024;  // per piece of work

// Channels [begin, begin + count) of a sequence's new tail: its last inputs, preceded by the end of the old tail if
// there are too few. In ascending order, so that source and destination may be the same.
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

// The recurrence runs first, item by item; then the convolution's tails are written, which several items may read.
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

  const int64_t pieces = ceil_div(args.conv.channels, kTailChannels);
  for_rows(static_cast<int64_t>(s.source.size()) * pieces, kTailChannels, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto sequence = static_cast<size_t>(i / pieces);
      const int64_t channel = i % pieces * kTailChannels;
      const int64_t first = s.cu_seqlens_q[sequence], tokens = s.cu_seqlens_q[sequence + 1] - first;
      const float* source = state_of(args.state, s.source[sequence]);
      float* destination = state_of(args.state, s.destination[sequence]);
      const int64_t count = std::min(kTailChannels, args.conv.channels - channel);
      write_tail(args.conv, x, first, tokens, source, destination, channel, count);
      // The last row comes first, because the page of the first one may be the source.
      for (int64_t t = s.row_destination.empty() ? 0 : tokens - 1; t > 0; --t) {
        float* page = state_of(args.state, s.row_destination[static_cast<size_t>(first + t - 1)]);
        if (page != nullptr) write_tail(args.conv, x, first, t, source, page, channel, count);
      }
      if (tokens > 0 || channel > 0) continue;
      const int64_t tail = args.conv.tail_floats();  // no tokens: copy the rest of the state too
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
  check(args);
  QUIRE_CHECK(!args.chunked);
  check_indices(args.sequences, args.state, args.qkv.rows);
  check_f32(args.out);
  recurrent(args, args.qkv, args.key_heads, args.value_heads / args.key_heads * slices_of(args.dv),
            args.value_heads * args.dk * args.dv, kernels_.gated_delta_net);
}

void CpuBackend::mamba2(const Mamba2Args& args) {
  check(args);
  QUIRE_CHECK(!args.chunked);
  check_indices(args.sequences, args.state, args.xbc.rows);
  check_f32(args.out);
  recurrent(args, args.xbc, args.groups, args.heads / args.groups * slices_of(args.head_dim),
            args.heads * args.head_dim * args.state_size, kernels_.mamba2);
}

void CpuBackend::short_conv(const ShortConvArgs& args) {
  check(args);
  check_indices(args.sequences, args.state, args.bcx.rows);
  check_f32(args.out);
  const int64_t channels = args.conv.channels, rows = args.bcx.rows;
  const int64_t pieces = ceil_div(channels, kShortConvChannels);
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
