// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA driver's binary interface that quire calls, declared here so that the build needs no toolkit.
// Where there is one, tests/cuda/abi_test.cc compares every line of this file with its headers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire::cuda {

// Handles are opaque; an address on the device is an integer to the driver.
using Code = int;  // 0: success
using DeviceId = int;
using Context = void*;
using Module = void*;
using Function = void*;
using Stream = void*;
using Event = void*;
using GraphHandle = void*;
using GraphExec = void*;
using Address = unsigned long long;

inline constexpr Code kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kStubLibrary = 34, kNeedsNewerDriver = 36,
                      kNoDevice = 100, kInvalidImage = 200, kNoBinaryForGpu = 209, kEccUncorrectable = 214,
                      kInvalidPtx = 218, kNvlinkUncorrectable = 220, kJitCompilerNotFound = 221,
                      kUnsupportedPtxVersion = 222, kNotFound = 500, kNotReady = 600, kIllegalAddress = 700,
                      kLaunchOutOfResources = 701, kLaunchTimeout = 702, kHardwareStackError = 714,
                      kIllegalInstruction = 715, kMisalignedAddress = 716, kInvalidAddressSpace = 717, kInvalidPc = 718,
                      kLaunchFailed = 719, kSystemNotReady = 802, kDriverMismatch = 803, kCompatNotSupported = 804;

inline constexpr int kAttributeMaxThreads = 1, kAttributeMultiprocessors = 16, kAttributeCapabilityMajor = 75,
                     kAttributeCapabilityMinor = 76, kAttributeSharedMemoryOptin = 97;
inline constexpr int kFunctionMaxThreads = 0, kFunctionSharedBytes = 1, kFunctionPtxVersion = 5,
                     kFunctionMaxDynamicShared = 8;
inline constexpr unsigned kStreamNonBlocking = 1, kEventDisableTiming = 2;
inline constexpr int kCaptureRelaxed = 2;
inline constexpr int kLaunchProgrammaticSerialization = 6;
inline constexpr int kTensorMapUint16 = 1, kTensorMapPlain = 0, kTensorMapSwizzle128 = 3, kTensorMapPromote256 = 3,
                     kTensorMapFillZero = 0;

struct LaunchAttribute {
  int id = 0;
  int pad = 0;
  union {
    char bytes[64];
    int programmatic_serialization_allowed;
  } value = {};
};

struct LaunchConfig {
  unsigned grid_x = 1, grid_y = 1, grid_z = 1;
  unsigned block_x = 1, block_y = 1, block_z = 1;
  unsigned shared_bytes = 0;
  Stream stream = nullptr;
  LaunchAttribute* attributes = nullptr;
  unsigned num_attributes = 0;
};

// X(symbol as libcuda exports it, parameters). The functions of the first list are required, those of the second are
// used where they exist.
#define QUIRE_CUDA_FUNCTIONS(X)                                                                   \
  X(cuInit, (unsigned flags))                                                                     \
  X(cuDriverGetVersion, (int* version))                                                           \
  X(cuGetErrorName, (Code code, const char** name))                                               \
  X(cuGetErrorString, (Code code, const char** text))                                             \
  X(cuDeviceGetCount, (int* count))                                                               \
  X(cuDeviceGet, (DeviceId * device, int index))                                                  \
  X(cuDeviceGetName, (char* name, int bytes, DeviceId device))                                    \
  X(cuDeviceTotalMem_v2, (size_t * bytes, DeviceId device))                                       \
  X(cuDeviceGetAttribute, (int* value, int attribute, DeviceId device))                           \
  X(cuDevicePrimaryCtxRetain, (Context * context, DeviceId device))                               \
  X(cuDevicePrimaryCtxRelease_v2, (DeviceId device))                                              \
  X(cuCtxSetCurrent, (Context context))                                                           \
  X(cuMemGetInfo_v2, (size_t * free, size_t * total))                                             \
  X(cuMemAlloc_v2, (Address * address, size_t bytes))                                             \
  X(cuMemFree_v2, (Address address))                                                              \
  X(cuMemHostAlloc, (void** address, size_t bytes, unsigned flags))                               \
  X(cuMemFreeHost, (void* address))                                                               \
  X(cuMemcpyHtoDAsync_v2, (Address to, const void* from, size_t bytes, Stream stream))            \
  X(cuMemcpyDtoHAsync_v2, (void* to, Address from, size_t bytes, Stream stream))                  \
  X(cuMemcpyDtoDAsync_v2, (Address to, Address from, size_t bytes, Stream stream))                \
  X(cuMemsetD8Async, (Address to, unsigned char value, size_t bytes, Stream stream))              \
  X(cuStreamCreate, (Stream * stream, unsigned flags))                                            \
  X(cuStreamDestroy_v2, (Stream stream))                                                          \
  X(cuStreamSynchronize, (Stream stream))                                                         \
  X(cuStreamBeginCapture_v2, (Stream stream, int mode))                                           \
  X(cuStreamEndCapture, (Stream stream, GraphHandle * graph))                                     \
  X(cuGraphInstantiateWithFlags, (GraphExec * exec, GraphHandle graph, unsigned long long flags)) \
  X(cuGraphLaunch, (GraphExec exec, Stream stream))                                               \
  X(cuGraphDestroy, (GraphHandle graph))                                                          \
  X(cuGraphExecDestroy, (GraphExec exec))                                                         \
  X(cuEventCreate, (Event * event, unsigned flags))                                               \
  X(cuEventDestroy_v2, (Event event))                                                             \
  X(cuEventRecord, (Event event, Stream stream))                                                  \
  X(cuEventSynchronize, (Event event))                                                            \
  X(cuEventQuery, (Event event))                                                                  \
  X(cuModuleLoadData, (Module * module, const void* image))                                       \
  X(cuModuleUnload, (Module module))                                                              \
  X(cuModuleGetFunction, (Function * function, Module module, const char* name))                  \
  X(cuFuncGetAttribute, (int* value, int attribute, Function function))                           \
  X(cuFuncSetAttribute, (Function function, int attribute, int value))                            \
  X(cuLaunchKernelEx, (const LaunchConfig* config, Function function, void** params, void** extra))
#define QUIRE_CUDA_OPTIONAL_FUNCTIONS(X)                                                                \
  X(cuFuncGetName, (const char** name, Function function))                                              \
  X(cuFuncGetParamInfo, (Function function, size_t index, size_t * offset, size_t * bytes))             \
  X(cuModuleGetFunctionCount, (unsigned* count, Module module))                                         \
  X(cuModuleEnumerateFunctions, (Function * functions, unsigned count, Module module))                  \
  X(cuTensorMapEncodeTiled,                                                                             \
    (void* map, int type, unsigned rank, void* address, const uint64_t* sizes, const uint64_t* strides, \
     const unsigned* box, const unsigned* steps, int interleave, int swizzle, int promotion, int fill))

// The functions of one loaded libcuda; those of the second list may be null.
struct DriverApi {
#define QUIRE_CUDA_MEMBER(symbol, parameters) Code(*symbol) parameters = nullptr;
  QUIRE_CUDA_FUNCTIONS(QUIRE_CUDA_MEMBER)
  QUIRE_CUDA_OPTIONAL_FUNCTIONS(QUIRE_CUDA_MEMBER)
#undef QUIRE_CUDA_MEMBER
};

}  // namespace quire::cuda
