// SPDX-License-Identifier: Apache-2.0
// The fake cuBLASLt: three algorithms that compute on the host, each with the requested split of K.
#include <algorithm>
#include <cstring>

#include "backend/cuda/library_api.h"
#include "base/half.h"
#include "fake_cuda.h"
#include "fake_state.h"

namespace quire::fake {
namespace {

struct Layout {
  int type;
  uint64_t rows, cols;
  int64_t ld;
};
struct Preference {
  uint32_t reduction = 7;
};
// The words of LtAlgo: the algorithm, its split of K, its reduction scheme.
enum { kId, kSplit, kReduction };

LibrarySettings settings;
std::vector<std::pair<int, int64_t>> ran;

float to_float(const char* from, int type) {
  uint16_t bits = 0;
  std::memcpy(&bits, from, 2);
  return type == cuda::kLtTypeBF16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

// Rows of 16-bit numbers as floats.
std::vector<float> floats(const void* from, int type, int64_t rows, int64_t cols, int64_t ld) {
  std::vector<float> out(static_cast<size_t>(rows * cols));
  float* to = out.data();
  for (int64_t row = 0; row < rows; ++row) {
    const char* const numbers = static_cast<const char*>(from) + 2 * row * ld;
    for (int64_t i = 0; i < cols; ++i) *to++ = to_float(numbers + 2 * i, type);
  }
  return out;
}

// Eight outputs are computed at once: the tests multiply some thousand matrices of 4096 rows.
using Eight = float __attribute__((vector_size(8 * sizeof(float))));

// Rows of weights, eight to a group: [groups, k], with zeros after the last one.
std::vector<Eight> groups_of_eight(const void* from, int type, int64_t rows, int64_t k, int64_t ld) {
  std::vector<Eight> out(static_cast<size_t>((rows + 7) / 8 * k), Eight{});
  for (int64_t row = 0; row < rows; ++row) {
    const char* const numbers = static_cast<const char*>(from) + 2 * row * ld;
    for (int64_t i = 0; i < k; ++i)
      out[static_cast<size_t>(row / 8 * k + i)][row % 8] = to_float(numbers + 2 * i, type);
  }
  return out;
}

void store(void* to, int type, int64_t i, float value) {
  if (type == cuda::kLtTypeF32) {
    std::memcpy(static_cast<char*>(to) + 4 * i, &value, 4);
    return;
  }
  const uint16_t bits = type == cuda::kLtTypeBF16 ? float_to_bf16(value) : float_to_fp16(value);
  std::memcpy(static_cast<char*>(to) + 2 * i, &bits, 2);
}

// The products of a row of x with eight rows of weights. It reads the fake's own vectors alone, so it is not
// instrumented.
#if defined(__clang__)
__attribute__((no_sanitize("address", "undefined")))
#endif
void dot(const float* x, const Eight* w, int64_t k, int64_t split, bool backwards, float* to) {
  Eight sum = {};
  for (int64_t part = 0; part < split; ++part) {
    Eight partial = {};
    for (int64_t j = part * k / split; j < (part + 1) * k / split; ++j) {
      const int64_t i = backwards ? k - 1 - j : j;
      partial += x[i] * w[i];
    }
    sum += partial;
  }
  std::memcpy(to, &sum, sizeof sum);
}

}  // namespace

void set_library(const LibrarySettings& wanted) {
  settings = wanted;
  ran.clear();
}
const std::vector<std::pair<int, int64_t>>& products() {
  return ran;
}

}  // namespace quire::fake

using namespace quire::cuda;  // NOLINT: the library's own spelling
using namespace quire::fake;  // NOLINT

extern "C" {

size_t cublasLtGetVersion() {
  return 130100;
}
int cublasLtCreate(void** handle) {
  *handle = &settings;
  return 0;
}
int cublasLtDestroy(void*) {
  return 0;
}
int cublasLtMatmulDescCreate(void** desc, int, int) {
  *desc = new int(0);
  return 0;
}
int cublasLtMatmulDescDestroy(void* desc) {
  delete static_cast<int*>(desc);
  return 0;
}
int cublasLtMatmulDescSetAttribute(void* desc, int attribute, const void* value, size_t) {
  if (attribute == kLtDescTransA) std::memcpy(desc, value, sizeof(int));
  return 0;
}
int cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t cols, int64_t ld) {
  *layout = new Layout{type, rows, cols, ld};
  return 0;
}
int cublasLtMatrixLayoutDestroy(void* layout) {
  delete static_cast<Layout*>(layout);
  return 0;
}
int cublasLtMatrixLayoutSetAttribute(void* layout, int attribute, const void* value, size_t) {
  auto* l = static_cast<Layout*>(layout);
  if (attribute == kLtLayoutCols) std::memcpy(&l->cols, value, sizeof l->cols);
  if (attribute == kLtLayoutLd) std::memcpy(&l->ld, value, sizeof l->ld);
  return 0;
}
int cublasLtMatmulPreferenceCreate(void** preference) {
  *preference = new Preference;
  return 0;
}
int cublasLtMatmulPreferenceDestroy(void* preference) {
  delete static_cast<Preference*>(preference);
  return 0;
}
int cublasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value, size_t) {
  auto* p = static_cast<Preference*>(preference);
  if (attribute == kLtPrefReductionMask) std::memcpy(&p->reduction, value, sizeof p->reduction);
  return 0;
}
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void* preference, int wanted,
                                   LtHeuristic* found, int* count) {
  const uint32_t reduction = static_cast<Preference*>(preference)->reduction;
  *count = std::min(wanted, 3);
  for (int i = 0; i < *count; ++i) {
    found[i] = {};
    found[i].algo.data[kId] = static_cast<uint64_t>(i + 1);
    found[i].algo.data[kSplit] = reduction == 0 ? 1 : static_cast<uint64_t>(i + 2);
    found[i].algo.data[kReduction] = reduction;
  }
  return 0;
}
int cublasLtMatmulAlgoConfigGetAttribute(const LtAlgo* algo, int attribute, void* value, size_t bytes,
                                         size_t* written) {
  const uint64_t word = algo->data[attribute == kLtAlgoSplitK ? kSplit : kReduction];
  std::memcpy(value, &word, bytes);
  *written = bytes;
  return 0;
}
int cublasLtMatmulAlgoConfigSetAttribute(LtAlgo* algo, int attribute, const void* value, size_t) {
  uint32_t word = 0;
  std::memcpy(&word, value, sizeof word);
  algo->data[attribute == kLtAlgoSplitK ? kSplit : kReduction] = word;
  return 0;
}
int cublasLtMatmulAlgoCheck(void*, void*, void*, void*, void*, void*, const LtAlgo*, LtHeuristic*) {
  return 0;
}
int cublasLtMatmul(void*, void* desc, const void*, const void* a, void* a_layout, const void* b, void* b_layout,
                   const void*, const void*, void*, void* d, void* d_layout, const LtAlgo* algo, void*, size_t,
                   void* stream) {
  const Layout w = *static_cast<Layout*>(a_layout), x = *static_cast<Layout*>(b_layout);
  const Layout y = *static_cast<Layout*>(d_layout);
  const auto id = static_cast<int>(algo->data[kId]);
  if (*static_cast<int*>(desc) != kLtOpT || id == settings.refused) return 15;
  const auto split = static_cast<int64_t>(algo->data[kSplit]);
  ran.emplace_back(id, static_cast<int64_t>(x.cols));
  const bool backwards = (settings.all_odd || id == settings.odd) && x.cols <= 16;
  queue(stream, [=] {
    const auto rows = static_cast<int64_t>(y.cols), cols = static_cast<int64_t>(y.rows);
    const auto k = static_cast<int64_t>(w.rows);
    const std::vector<float> left = floats(b, w.type, rows, k, x.ld);
    const std::vector<Eight> right = groups_of_eight(a, w.type, cols, k, w.ld);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t first = 0; first < cols; first += 8) {
        float sums[8];
        dot(&left[static_cast<size_t>(row * k)], &right[static_cast<size_t>(first / 8 * k)], k, split, backwards, sums);
        for (int64_t i = first; i < std::min(first + 8, cols); ++i) store(d, y.type, row * y.ld + i, sums[i - first]);
      }
    }
  });
  return 0;
}

}  // extern "C"

#define QUIRE_SAME(symbol, result, parameters) \
  static_assert(std::is_same_v<decltype(&symbol), decltype(LibraryApi::symbol)>);
QUIRE_CUBLASLT_FUNCTIONS(QUIRE_SAME)
