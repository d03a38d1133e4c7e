// SPDX-License-Identifier: Apache-2.0
// open_cuda() with kernels of the caller's choice, and what `quire devices` shows of NVIDIA GPUs.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/gpu/device.h"

namespace quire::cuda {

// Machine code for one or more architectures, as nvcc -fatbin writes it. Lives as long as the program.
struct Image {
  std::string_view name;  // "norm"
  const void* data;
};

// Like gpu::open_cuda, which passes the images that are embedded in the build. The choice of the library's algorithms
// is kept in `folder`, or not at all if that is empty.
Result<std::unique_ptr<gpu::Device>> open_device(int index, std::span<const Image> images,
                                                 const std::filesystem::path& folder = {});

// One line for each GPU that the driver shows: "NVIDIA H200 (sm_90, 132 multiprocessors, 139.8 GiB, CUDA 13.0)".
Result<std::vector<std::string>> list_devices();

}  // namespace quire::cuda
