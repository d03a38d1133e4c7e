// SPDX-License-Identifier: Apache-2.0
// The argument checks of the recurrent layers, and what a model's config may ask of them.
#include "ops/recurrent.h"

#include <string>

namespace quire {
namespace {

constexpr int64_t kMaxHeads = 1 << 16;

Status in_range(const char* layer, const char* field, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return {};
  return unsupported({layer, ": ", field, " is ", value, "; quire takes 1 to ", most});
}

Status multiple(const char* layer, const char* field, int64_t value, const char* of, int64_t divisor) {
  if (value % divisor == 0) return {};
  return unsupported({layer, ": ", field, " (", value, ") must be a multiple of ", of, " (", divisor, ")"});
}

void check_states(const StateSequences& s, const StateLayer& state, int64_t rows, int64_t state_bytes) {
  QUIRE_CHECK(!s.cu_seqlens_q.empty());
  QUIRE_CHECK(s.source.size() == s.cu_seqlens_q.size() - 1 && s.destination.size() == s.source.size());
  QUIRE_CHECK(s.row_destination.empty() || static_cast<int64_t>(s.row_destination.size()) == rows);
  QUIRE_CHECK(state.pages != nullptr && state.page_stride >= state_bytes && state.page_stride % 4 == 0);
}

void check_chunks(const StateSequences& s, const StateLayer& state, int64_t rows, const DeltaChunkLayout& layout) {
  QUIRE_CHECK(s.lengths.size() == s.source.size() && state.page_stride % 16 == 0);
  check_states(s, state, rows, layout.bytes);
}

void check_activation(const Tensor& t, int64_t rows, int64_t cols, DType type) {
  check_shape(t, rows, cols);
  QUIRE_CHECK(t.dtype == type);
}

}  // namespace

Status check_gated_delta_net_shape(int64_t key_heads, int64_t value_heads, int64_t dk, int64_t dv, int64_t kernel) {
  const char* layer = "gated delta net";
  QUIRE_TRY(in_range(layer, "the number of key heads", key_heads, kMaxHeads));
  QUIRE_TRY(in_range(layer, "the number of value heads", value_heads, kMaxHeads));
  QUIRE_TRY(multiple(layer, "the number of value heads", value_heads, "that of key heads", key_heads));
  QUIRE_TRY(in_range(layer, "the key head size", dk, kMaxStateDim));
  QUIRE_TRY(in_range(layer, "the value head size", dv, kMaxStateDim));
  return in_range(layer, "the convolution kernel size", kernel, kMaxConvKernel);
}

Status check_mamba2_shape(int64_t heads, int64_t head_dim, int64_t groups, int64_t state_size, int64_t kernel) {
  const char* layer = "Mamba-2";
  QUIRE_TRY(in_range(layer, "the number of heads", heads, kMaxHeads));
  QUIRE_TRY(in_range(layer, "the number of groups", groups, kMaxHeads));
  QUIRE_TRY(multiple(layer, "the number of heads", heads, "that of groups", groups));
  QUIRE_TRY(in_range(layer, "the head size", head_dim, kMaxStateDim));
  QUIRE_TRY(in_range(layer, "the state size", state_size, kMaxStateDim));
  return in_range(layer, "the convolution kernel size", kernel, kMaxConvKernel);
}

Status check_short_conv_shape(int64_t channels, int64_t kernel) {
  QUIRE_TRY(in_range("short convolution", "the number of channels", channels, int64_t{1} << 24));
  return in_range("short convolution", "the kernel size", kernel, kMaxConvKernel);
}

void check(const GatedDeltaNetArgs& args) {
  QUIRE_CHECK(check_gated_delta_net_shape(args.key_heads, args.value_heads, args.dk, args.dv, args.conv.kernel).ok());
  const int64_t rows = args.qkv.rows, channels = 2 * args.key_heads * args.dk + args.value_heads * args.dv;
  QUIRE_CHECK(args.conv.channels == channels && args.conv.weight != nullptr);
  QUIRE_CHECK(args.decay != nullptr && args.dt_bias != nullptr);
  check_activation(args.qkv, rows, channels, args.out.dtype);
  check_activation(args.a, rows, args.value_heads, args.out.dtype);
  check_activation(args.b, rows, args.value_heads, args.out.dtype);
  check_shape(args.out, rows, args.value_heads * args.dv);
  if (!args.chunked) {
    check_states(args.sequences, args.state, rows,
                 gated_delta_net_state_bytes(args.key_heads, args.value_heads, args.dk, args.dv, args.conv.kernel));
    return;
  }
  QUIRE_CHECK(fits_delta_chunks(args.dk, args.dv) && args.out.dtype != DType::kF32);
  check_chunks(args.sequences, args.state, rows,
               {args.key_heads, args.value_heads, args.dk, args.dv, args.conv.kernel});
}

void check(const Mamba2Args& args) {
  QUIRE_CHECK(check_mamba2_shape(args.heads, args.head_dim, args.groups, args.state_size, args.conv.kernel).ok());
  const int64_t rows = args.xbc.rows, channels = args.heads * args.head_dim + 2 * args.groups * args.state_size;
  QUIRE_CHECK(args.conv.channels == channels && args.conv.weight != nullptr);
  QUIRE_CHECK(args.decay != nullptr && args.skip != nullptr && args.dt_bias != nullptr);
  check_activation(args.xbc, rows, channels, args.out.dtype);
  check_activation(args.dt, rows, args.heads, args.out.dtype);
  check_shape(args.out, rows, args.heads * args.head_dim);
  if (args.chunked) {
    QUIRE_CHECK(fits_delta_chunks(args.state_size, args.head_dim) && args.out.dtype != DType::kF32);
    check_chunks(args.sequences, args.state, rows,
                 {args.groups, args.heads, args.state_size, args.head_dim, args.conv.kernel});
    return;
  }
  check_states(args.sequences, args.state, rows,
               mamba2_state_bytes(args.heads, args.head_dim, args.groups, args.state_size, args.conv.kernel));
}

void check(const ShortConvArgs& args) {
  const int64_t rows = args.bcx.rows, channels = args.conv.channels;
  QUIRE_CHECK(check_short_conv_shape(channels, args.conv.kernel).ok() && args.conv.weight != nullptr);
  check_activation(args.bcx, rows, 3 * channels, args.out.dtype);
  check_shape(args.out, rows, channels);
  check_states(args.sequences, args.state, rows, short_conv_state_bytes(channels, args.conv.kernel));
}

void check_indices(const StateSequences& s, const StateLayer& state, int64_t rows) {
  QUIRE_CHECK(s.cu_seqlens_q.front() == 0 && s.cu_seqlens_q.back() == rows);
  for (size_t i = 0; i < s.source.size(); ++i) {
    QUIRE_CHECK(s.cu_seqlens_q[i] <= s.cu_seqlens_q[i + 1]);
    QUIRE_CHECK(s.source[i] >= -1 && s.source[i] < state.num_pages);
    QUIRE_CHECK(s.destination[i] >= 0 && s.destination[i] < state.num_pages);
  }
  for (const int32_t page : s.row_destination) QUIRE_CHECK(page >= -1 && page < state.num_pages);
}

}  // namespace quire
