// SPDX-License-Identifier: Apache-2.0
// Compares, at compile time, quire's declarations of the driver and of cuBLASLt with those of the CUDA toolkit.
#include <cublasLt.h>
#include <cuda.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

#include "backend/cuda/driver_api.h"
#include "backend/cuda/library_api.h"

namespace quire::cuda {
namespace {

// Passed in the same way: both are pointers (to functions or data), or both integers or enumerations of the same size.
template <typename Ours, typename Theirs>
constexpr bool kSamePassing = sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
                              (std::is_integral_v<Ours> ||
                               std::is_pointer_v<Ours>)&&!std::is_floating_point_v<Theirs> &&
                              !std::is_class_v<Theirs>;

template <typename Ours, typename Theirs>
struct SameCall : std::false_type {};
template <typename R, typename... A, typename S, typename... B>
struct SameCall<R (*)(A...), S (*)(B...)> : std::bool_constant<kSamePassing<R, S> && (kSamePassing<A, B> && ...)> {};

// The names below are the symbols themselves; the macros of cuda.h expand to the same ones.
#define QUIRE_SAME_CALL(symbol, parameters) \
  static_assert(SameCall<decltype(DriverApi::symbol), decltype(&::symbol)>::value, #symbol);
QUIRE_CUDA_FUNCTIONS(QUIRE_SAME_CALL)
QUIRE_CUDA_OPTIONAL_FUNCTIONS(QUIRE_SAME_CALL)
#define QUIRE_SAME_LIBRARY_CALL(symbol, result, parameters) \
  static_assert(SameCall<decltype(LibraryApi::symbol), decltype(&::symbol)>::value, #symbol);
QUIRE_CUBLASLT_FUNCTIONS(QUIRE_SAME_LIBRARY_CALL)

// The macros expand to those symbols, not to later versions of them.
#define QUIRE_TEXT_OF(x) #x
#define QUIRE_TEXT(x) QUIRE_TEXT_OF(x)
constexpr bool same_text(const char* a, const char* b) {
  while (*a != '\0' && *a == *b) ++a, ++b;
  return *a == *b;
}
static_assert(same_text(QUIRE_TEXT(cuMemAlloc), "cuMemAlloc_v2"));
static_assert(same_text(QUIRE_TEXT(cuMemFree), "cuMemFree_v2"));
static_assert(same_text(QUIRE_TEXT(cuMemGetInfo), "cuMemGetInfo_v2"));
static_assert(same_text(QUIRE_TEXT(cuMemcpyHtoDAsync), "cuMemcpyHtoDAsync_v2"));
static_assert(same_text(QUIRE_TEXT(cuStreamBeginCapture), "cuStreamBeginCapture_v2"));
static_assert(same_text(QUIRE_TEXT(cuGraphInstantiate), "cuGraphInstantiateWithFlags"));
static_assert(same_text(QUIRE_TEXT(cuDevicePrimaryCtxRelease), "cuDevicePrimaryCtxRelease_v2"));

static_assert(sizeof(LaunchConfig) == sizeof(CUlaunchConfig) && alignof(LaunchConfig) == alignof(CUlaunchConfig));
static_assert(offsetof(LaunchConfig, shared_bytes) == offsetof(CUlaunchConfig, sharedMemBytes));
static_assert(offsetof(LaunchConfig, block_x) == offsetof(CUlaunchConfig, blockDimX));
static_assert(offsetof(LaunchConfig, stream) == offsetof(CUlaunchConfig, hStream));
static_assert(offsetof(LaunchConfig, attributes) == offsetof(CUlaunchConfig, attrs));
static_assert(offsetof(LaunchConfig, num_attributes) == offsetof(CUlaunchConfig, numAttrs));
static_assert(sizeof(LaunchAttribute) == sizeof(CUlaunchAttribute));
static_assert(offsetof(LaunchAttribute, value) == offsetof(CUlaunchAttribute, value));
static_assert(sizeof(LtAlgo) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(LtHeuristic) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(LtHeuristic, workspace_bytes) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(LtHeuristic, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));

struct Pair {
  long ours, theirs;
};
constexpr Pair kConstants[] = {
    {kSuccess, CUDA_SUCCESS},
    {kInvalidValue, CUDA_ERROR_INVALID_VALUE},
    {kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY},
    {kStubLibrary, CUDA_ERROR_STUB_LIBRARY},
    {kNeedsNewerDriver, CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER},
    {kNoDevice, CUDA_ERROR_NO_DEVICE},
    {kInvalidImage, CUDA_ERROR_INVALID_IMAGE},
    {kNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU},
    {kEccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE},
    {kInvalidPtx, CUDA_ERROR_INVALID_PTX},
    {kNvlinkUncorrectable, CUDA_ERROR_NVLINK_UNCORRECTABLE},
    {kJitCompilerNotFound, CUDA_ERROR_JIT_COMPILER_NOT_FOUND},
    {kUnsupportedPtxVersion, CUDA_ERROR_UNSUPPORTED_PTX_VERSION},
    {kNotFound, CUDA_ERROR_NOT_FOUND},
    {kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS},
    {kLaunchOutOfResources, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES},
    {kLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT},
    {kHardwareStackError, CUDA_ERROR_HARDWARE_STACK_ERROR},
    {kIllegalInstruction, CUDA_ERROR_ILLEGAL_INSTRUCTION},
    {kMisalignedAddress, CUDA_ERROR_MISALIGNED_ADDRESS},
    {kInvalidAddressSpace, CUDA_ERROR_INVALID_ADDRESS_SPACE},
    {kInvalidPc, CUDA_ERROR_INVALID_PC},
    {kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED},
    {kSystemNotReady, CUDA_ERROR_SYSTEM_NOT_READY},
    {kDriverMismatch, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH},
    {kCompatNotSupported, CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE},
    {kAttributeMaxThreads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
    {kAttributeMultiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
    {kAttributeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
    {kAttributeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
    {kAttributeSharedMemoryOptin, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
    {kFunctionMaxThreads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
    {kFunctionSharedBytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES},
    {kFunctionPtxVersion, CU_FUNC_ATTRIBUTE_PTX_VERSION},
    {kFunctionMaxDynamicShared, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES},
    {kStreamNonBlocking, CU_STREAM_NON_BLOCKING},
    {kEventDisableTiming, CU_EVENT_DISABLE_TIMING},
    {kCaptureRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED},
    {kLaunchProgrammaticSerialization, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION},
    {kTensorMapUint16, CU_TENSOR_MAP_DATA_TYPE_UINT16},
    {kTensorMapPlain, CU_TENSOR_MAP_INTERLEAVE_NONE},
    {kTensorMapSwizzle128, CU_TENSOR_MAP_SWIZZLE_128B},
    {kTensorMapPromote256, CU_TENSOR_MAP_L2_PROMOTION_L2_256B},
    {kTensorMapFillZero, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE},
    {kLtCompute32F, CUBLAS_COMPUTE_32F},
    {kLtOpT, CUBLAS_OP_T},
    {kLtTypeF32, CUDA_R_32F},
    {kLtTypeF16, CUDA_R_16F},
    {kLtTypeBF16, CUDA_R_16BF},
    {kLtDescTransA, CUBLASLT_MATMUL_DESC_TRANSA},
    {kLtLayoutCols, CUBLASLT_MATRIX_LAYOUT_COLS},
    {kLtLayoutLd, CUBLASLT_MATRIX_LAYOUT_LD},
    {kLtPrefWorkspaceBytes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES},
    {kLtPrefReductionMask, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK},
    {kLtPrefAlignmentA, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES},
    {kLtPrefAlignmentB, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES},
    {kLtPrefAlignmentC, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES},
    {kLtPrefAlignmentD, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES},
    {kLtAlgoSplitK, CUBLASLT_ALGO_CONFIG_SPLITK_NUM},
    {kLtAlgoReduction, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME},
    {kLtReductionNone, CUBLASLT_REDUCTION_SCHEME_NONE},
    {kLtReductionCompute, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE},
};

TEST(CudaAbi, HasTheNumbersOfTheToolkitsHeaders) {
  for (size_t i = 0; i < std::size(kConstants); ++i) EXPECT_EQ(kConstants[i].ours, kConstants[i].theirs) << "row " << i;
}

}  // namespace
}  // namespace quire::cuda
