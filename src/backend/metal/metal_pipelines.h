// SPDX-License-Identifier: Apache-2.0
// Pipelines: the kernels' sources, compiled on this machine, each kernel at its first use, and kept on disk for the
// next start.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/gpu/device.h"
#include "backend/metal/metal_cpp.h"
#include "base/result.h"
#include "kernels/embedded.h"

namespace quire::metal {

class MetalKernel final : public gpu::Kernel {
 public:
  MetalKernel(std::string name, NS::SharedPtr<MTL::ComputePipelineState> pipeline);
  MTL::ComputePipelineState* pipeline() const { return pipeline_.get(); }

 private:
  NS::SharedPtr<MTL::ComputePipelineState> pipeline_;
};

// There are two steps from source to a runnable kernel: the library (all of one file's source, compiled to Apple's
// portable intermediate form when its first kernel is needed) and the pipeline (one kernel, compiled for this GPU).
// Pipelines are kept in a Metal binary archive, one file per combination of sources, system build and device, so that
// only the first start waits for them. The archive is only an optimisation: if anything goes wrong with it, that is
// logged and ignored.
//
// Each source has one library, because there is only one mode of arithmetic: safe, precise, without contraction. Owned
// by the device. Not thread-safe: one thread at a time.
class Pipelines {
 public:
  // The texts must outlive the object. `folder` is where archives are kept; if it is empty, none are.
  Pipelines(NS::SharedPtr<MTL::Device> device, std::span<const kernels::EmbeddedText> texts,
            std::filesystem::path folder);
  ~Pipelines();  // writes the archive if it has grown
  Pipelines(const Pipelines&) = delete;
  Pipelines& operator=(const Pipelines&) = delete;

  // The kernel of that name; the Error contains the compiler's log.
  Result<const MetalKernel*> kernel(std::string_view name);
  bool has(std::string_view name) const { return text_of_.contains(name); }
  std::vector<std::string> names() const;

 private:
  struct Text {
    kernels::EmbeddedText source;
    NS::SharedPtr<MTL::Library> library;
    std::optional<Error> error;  // a text that failed to compile is not tried again
  };
  Status compile_library(Text& text);
  Result<NS::SharedPtr<MTL::ComputePipelineState>> compile(MTL::Library* library, std::string_view name);
  void open_archive();
  void save_archive();

  NS::SharedPtr<MTL::Device> device_;
  std::filesystem::path folder_;
  std::vector<Text> texts_;
  std::map<std::string, size_t, std::less<>> text_of_;  // from a kernel's name to the text that contains it
  bool archive_opened_ = false;
  std::filesystem::path archive_file_;
  NS::SharedPtr<MTL::BinaryArchive> archive_;
  bool archive_grew_ = false;
  std::map<std::string, std::unique_ptr<MetalKernel>, std::less<>> kernels_;
};

// The major version of the system: 14 for macOS 14.5.
int macos_major();

}  // namespace quire::metal
