// SPDX-License-Identifier: Apache-2.0
// The part of cuBLASLt's binary interface that quire calls; tests/cuda/abi_test.cc compares it with the toolkit's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire::cuda {

inline constexpr int kLtCompute32F = 68, kLtOpT = 1;
inline constexpr int kLtTypeF32 = 0, kLtTypeF16 = 2, kLtTypeBF16 = 14;
inline constexpr int kLtDescTransA = 3;
inline constexpr int kLtLayoutCols = 3, kLtLayoutLd = 4;
inline constexpr int kLtPrefWorkspaceBytes = 1, kLtPrefReductionMask = 3, kLtPrefAlignmentA = 5, kLtPrefAlignmentB = 6,
                     kLtPrefAlignmentC = 7, kLtPrefAlignmentD = 8;
inline constexpr int kLtAlgoSplitK = 2, kLtAlgoReduction = 3;
// How the parts of a split K are summed: not at all, or in a pass of its own over float sums in the workspace.
inline constexpr int kLtReductionNone = 0, kLtReductionCompute = 2;

struct LtAlgo {
  uint64_t data[8];
  bool operator==(const LtAlgo&) const = default;
};
struct LtHeuristic {
  LtAlgo algo;
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

// X(symbol, result, parameters)
#define QUIRE_CUBLASLT_FUNCTIONS(X)                                                                                  \
  X(cublasLtGetVersion, size_t, ())                                                                                  \
  X(cublasLtCreate, int, (void** handle))                                                                            \
  X(cublasLtDestroy, int, (void* handle))                                                                            \
  X(cublasLtMatmulDescCreate, int, (void** desc, int compute_type, int scale_type))                                  \
  X(cublasLtMatmulDescDestroy, int, (void* desc))                                                                    \
  X(cublasLtMatmulDescSetAttribute, int, (void* desc, int attribute, const void* value, size_t bytes))               \
  X(cublasLtMatrixLayoutCreate, int, (void** layout, int type, uint64_t rows, uint64_t cols, int64_t ld))            \
  X(cublasLtMatrixLayoutDestroy, int, (void* layout))                                                                \
  X(cublasLtMatrixLayoutSetAttribute, int, (void* layout, int attribute, const void* value, size_t bytes))           \
  X(cublasLtMatmulPreferenceCreate, int, (void** preference))                                                        \
  X(cublasLtMatmulPreferenceDestroy, int, (void* preference))                                                        \
  X(cublasLtMatmulPreferenceSetAttribute, int, (void* preference, int attribute, const void* value, size_t bytes))   \
  X(cublasLtMatmulAlgoGetHeuristic, int,                                                                             \
    (void* handle, void* desc, void* a, void* b, void* c, void* d, void* preference, int wanted, LtHeuristic* found, \
     int* count))                                                                                                    \
  X(cublasLtMatmulAlgoConfigGetAttribute, int,                                                                       \
    (const LtAlgo* algo, int attribute, void* value, size_t bytes, size_t* written))                                 \
  X(cublasLtMatmulAlgoConfigSetAttribute, int, (LtAlgo * algo, int attribute, const void* value, size_t bytes))      \
  X(cublasLtMatmulAlgoCheck, int,                                                                                    \
    (void* handle, void* desc, void* a, void* b, void* c, void* d, const LtAlgo* algo, LtHeuristic* result))         \
  X(cublasLtMatmul, int,                                                                                             \
    (void* handle, void* desc, const void* alpha, const void* a, void* a_layout, const void* b, void* b_layout,      \
     const void* beta, const void* c, void* c_layout, void* d, void* d_layout, const LtAlgo* algo, void* workspace,  \
     size_t workspace_bytes, void* stream))

struct LibraryApi {
#define QUIRE_CUBLASLT_MEMBER(symbol, result, parameters) result(*symbol) parameters = nullptr;
  QUIRE_CUBLASLT_FUNCTIONS(QUIRE_CUBLASLT_MEMBER)
#undef QUIRE_CUBLASLT_MEMBER
};

}  // namespace quire::cuda
