// SPDX-License-Identifier: Apache-2.0
// The Metal driver's interface for tests: open_metal() with other kernel sources and another folder for compiled
// kernels.
#pragma once

#include <filesystem>
#include <memory>
#include <span>

#include "backend/gpu/device.h"
#include "base/result.h"
#include "kernels/embedded.h"

namespace quire::metal {

struct OpenOptions {
  int index = 0;
  std::span<const kernels::EmbeddedText> texts;  // must outlive the device
  std::filesystem::path archive_folder;          // empty: compiled kernels are not kept
};

Result<std::unique_ptr<gpu::Device>> open(const OpenOptions& options);

}  // namespace quire::metal
