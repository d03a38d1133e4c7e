// SPDX-License-Identifier: Apache-2.0
// Loading libcuda, and a table of advice for its errors.
#include "backend/cuda/driver.h"

#include <string_view>

#include "base/env.h"

namespace quire::cuda {
namespace {

struct Advice {
  Code code;
  ErrorCode kind;
  const char* text;
};
constexpr const char* kOurFault =
    "a kernel went wrong, which is a bug of quire: run again with QUIRE_CUDA_SYNC=1 to learn its name, and report it";
constexpr const char* kNewDriver = "update the NVIDIA driver";
constexpr Advice kAdvice[] = {
    {kOutOfMemory, ErrorCode::kExhausted, "free memory on the GPU, or ask for less (--kv-cache-memory-bytes)"},
    {kStubLibrary, ErrorCode::kUnavailable, "the libcuda.so.1 that was found is the toolkit's stub, not a driver"},
    {kNeedsNewerDriver, ErrorCode::kUnavailable, kNewDriver},
    {kNoDevice, ErrorCode::kUnavailable, "no NVIDIA GPU is visible; look at nvidia-smi and CUDA_VISIBLE_DEVICES"},
    {kInvalidImage, ErrorCode::kUnsupported, "the driver cannot read this build's kernels; update the NVIDIA driver"},
    {kNoBinaryForGpu, ErrorCode::kUnsupported, "this build has no kernels for this GPU; build for its architecture"},
    {kInvalidPtx, ErrorCode::kUnsupported, kNewDriver},
    {kUnsupportedPtxVersion, ErrorCode::kUnsupported,
     "this build's kernels are newer than the NVIDIA driver; update it"},
    {kJitCompilerNotFound, ErrorCode::kUnavailable,
     "the driver's compiler (libnvidia-ptxjitcompiler) is missing; install the whole driver, or build for this GPU"},
    {kEccUncorrectable, ErrorCode::kUnavailable, "the GPU's memory has a fault; look at nvidia-smi -q"},
    {kNvlinkUncorrectable, ErrorCode::kUnavailable, "the GPU's links have a fault; look at nvidia-smi -q"},
    {kIllegalAddress, ErrorCode::kInternal, kOurFault},
    {kLaunchOutOfResources, ErrorCode::kInternal, kOurFault},
    {kLaunchTimeout, ErrorCode::kUnavailable, "the system stops long kernels on a GPU that drives a display"},
    {kHardwareStackError, ErrorCode::kInternal, kOurFault},
    {kIllegalInstruction, ErrorCode::kInternal, kOurFault},
    {kMisalignedAddress, ErrorCode::kInternal, kOurFault},
    {kInvalidAddressSpace, ErrorCode::kInternal, kOurFault},
    {kInvalidPc, ErrorCode::kInternal, kOurFault},
    {kLaunchFailed, ErrorCode::kInternal, kOurFault},
    {kSystemNotReady, ErrorCode::kUnavailable, "the machine's GPUs are not up yet; is nvidia-fabricmanager running?"},
    {kDriverMismatch, ErrorCode::kUnavailable, "driver and kernel module differ in version; restart the machine"},
    {kCompatNotSupported, ErrorCode::kUnavailable, kNewDriver},
};

std::string_view without_version(std::string_view call) {
  const size_t at = call.rfind("_v");
  return at != std::string_view::npos && at + 3 == call.size() ? call.substr(0, at) : call;
}

}  // namespace

Result<std::shared_ptr<const Driver>> Driver::load() {
  const std::string path = env("QUIRE_LIBCUDA").value_or("libcuda.so.1");
  SharedLibrary library(path);
  if (!library) {
    return unavailable({"no NVIDIA driver found (", path, "): install one, or choose another device with --device"});
  }
  const std::shared_ptr<Driver> out(new Driver(std::move(library)));
  const char* missing = nullptr;
#define QUIRE_CUDA_FIND(name, parameters) \
  out->api_.name = reinterpret_cast<Code(*) parameters>(out->library_.symbol(#name));
#define QUIRE_CUDA_NEED(name, parameters) \
  QUIRE_CUDA_FIND(name, parameters)       \
  if (out->api_.name == nullptr) missing = #name;
  QUIRE_CUDA_FUNCTIONS(QUIRE_CUDA_NEED)
  QUIRE_CUDA_OPTIONAL_FUNCTIONS(QUIRE_CUDA_FIND)
#undef QUIRE_CUDA_NEED
#undef QUIRE_CUDA_FIND
  if (missing != nullptr) {
    return unavailable({"the NVIDIA driver is too old (", path, " has no ", std::string(without_version(missing)),
                        "): update it to one for CUDA 12 or later"});
  }
  const DriverApi& api = out->api_;
  if (const Code code = api.cuDriverGetVersion(&out->version_)) return out->error("cuDriverGetVersion", code);
  if (const Code code = api.cuInit(0)) return out->error("cuInit", code);
  if (const Code code = api.cuDeviceGetCount(&out->devices_)) return out->error("cuDeviceGetCount", code);
  if (out->devices_ == 0) return out->error("cuDeviceGetCount", kNoDevice);
  return std::shared_ptr<const Driver>(out);
}

std::string Driver::version_text() const {
  return "CUDA " + std::to_string(version_ / 1000) + "." + std::to_string(version_ % 1000 / 10);
}

Failure Driver::error(std::string_view call, Code code, const std::string& advice) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (api_.cuGetErrorName(code, &name) != kSuccess || name == nullptr) name = "an unknown error";
  if (api_.cuGetErrorString(code, &text) != kSuccess) text = nullptr;
  const Advice* known = nullptr;
  for (const Advice& row : kAdvice) {
    if (row.code == code) known = &row;
  }
  std::string message = std::string(without_version(call)) + " failed with " + name;
  if (text != nullptr) message += " (" + std::string(text) + ")";
  if (!advice.empty()) {
    message += ": " + advice;
  } else if (known != nullptr) {
    message += ": " + std::string(known->text);
  }
  message += "; the driver is for " + version_text();
  return Error{known != nullptr ? known->kind : ErrorCode::kUnavailable, message};
}

}  // namespace quire::cuda
