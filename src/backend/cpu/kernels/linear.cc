// SPDX-License-Identifier: Apache-2.0
// linear with float activations: plain weights, and quantised weights that are expanded block by block.
#include "backend/cpu/kernels/linear_values.h"

namespace quire::cpu::QUIRE_ISA_NS {

namespace {

template <DType kType>
float element(const uint8_t* p) {
  if constexpr (kType == DType::kF32) {
    float f;
    std::memcpy(&f, p, sizeof f);
    return f;
  } else if constexpr (kType == DType::kF16) {
    return half_to_float(p);
  } else {
    uint16_t h;
    std::memcpy(&h, p, sizeof h);
    const uint32_t bits = static_cast<uint32_t>(h) << 16;
    float f;
    std::memcpy(&f, &bits, sizeof f);
    return f;
  }
}

void store_row(const LinearArgs& args, int64_t n, int64_t row, int64_t panel, const float* acc) {
  float* y = static_cast<float*>(args.out.data) + row * args.out.stride + panel * kPanel;
  for (int64_t c = 0; c < kPanel && panel * kPanel + c < n; ++c) {
    y[c] = args.bias == nullptr ? acc[c] : acc[c] + args.bias[panel * kPanel + c];
  }
}

template <DType kType>
void plain_panels(const PackedView& w, const LinearArgs& args, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                  int64_t panel_end) {
  constexpr int64_t kSize = info(kType).block_bytes;
  const float* x = static_cast<const float*>(args.x.data);
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    for (int64_t row = row_begin; row < row_end; ++row) {
      float acc[kPanel] = {};
      for (int64_t k = 0; k < w.k; ++k) {
        const uint8_t* values = w.data + p * w.panel_stride + k * kPanel * kSize;
        const float xk = x[row * args.x.stride + k];
        for (int c = 0; c < kPanel; ++c) acc[c] = std::fma(xk, element<kType>(values + c * kSize), acc[c]);
      }
      store_row(args, w.n, row, p, acc);
    }
  }
}

template <DType kType>
void dequantised_panels(const PackedView& w, const LinearArgs& args, int64_t row_begin, int64_t row_end,
                        int64_t panel_begin, int64_t panel_end) {
  const float* x = static_cast<const float*>(args.x.data);
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    for (int64_t row = row_begin; row < row_end; row += kRowTile) {
      const int64_t rows = row_end - row < kRowTile ? row_end - row : kRowTile;
      float acc[kRowTile][kPanel] = {};
      for (int64_t b = 0; b < w.k / kBlock; ++b) {
        float values[kBlock][kPanel];
        block_values<kType>(w, w.data + p * w.panel_stride, b, values);
        for (int64_t r = 0; r < rows; ++r) {
          for (int k = 0; k < kBlock; ++k) {
            const float xk = x[(row + r) * args.x.stride + b * kBlock + k];
            for (int c = 0; c < kPanel; ++c) acc[r][c] = std::fma(xk, values[k][c], acc[r][c]);
          }
        }
      }
      for (int64_t r = 0; r < rows; ++r) store_row(args, w.n, row + r, p, acc[r]);
    }
  }
}

}  // namespace

void linear_plain(const PackedView& w, const LinearArgs& args, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                  int64_t panel_end) {
  switch (w.dtype) {
    case DType::kF32:
      return plain_panels<DType::kF32>(w, args, row_begin, row_end, panel_begin, panel_end);
    case DType::kF16:
      return plain_panels<DType::kF16>(w, args, row_begin, row_end, panel_begin, panel_end);
    default:
      return plain_panels<DType::kBF16>(w, args, row_begin, row_end, panel_begin, panel_end);
  }
}

void linear_dequantised(const PackedView& w, const LinearArgs& args, int64_t row_begin, int64_t row_end,
                        int64_t panel_begin, int64_t panel_end, void* scratch) {
  (void)scratch;
  QUIRE_DISPATCH_QUANT(w.dtype, dequantised_panels, w, args, row_begin, row_end, panel_begin, panel_end)
}

}  // namespace quire::cpu::QUIRE_ISA_NS
