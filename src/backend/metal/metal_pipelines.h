// SPDX-License-Identifier: Apache-2.0
// Pipelines: the kernels' text compiled on this machine, each kernel at its first use, and kept on disk for the next
// start.
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

// Two steps lead from text to a kernel that runs: the library (one file's text, checked and brought to Apple's portable
// form, when the first of its kernels is asked for) and the pipeline (one kernel, compiled for this very GPU).
// Pipelines are kept in a Metal binary archive, one file for each triple of texts, system build and device, so that
// only the first start waits for them. The archive is a convenience: whatever goes wrong with it is a line in the log
// and nothing else.
//
// A text has one library, since there is one mode of arithmetic: safe, precise, nothing contracted.
// Owned by the device. One thread at a time.
class Pipelines {
 public:
  // The texts must outlive the object. `folder` is where archives live; empty: none are kept.
  Pipelines(NS::SharedPtr<MTL::Device> device, std::span<const kernels::EmbeddedText> texts,
            std::filesystem::path folder);
  ~Pipelines();  // writes the archive when it has grown
  Pipelines(const Pipelines&) = delete;
  Pipelines& operator=(const Pipelines&) = delete;

  // The kernel of that name; the Error carries the compiler's log.
  Result<const MetalKernel*> kernel(std::string_view name);
  bool has(std::string_view name) const { return text_of_.contains(name); }
  std::vector<std::string> names() const;

 private:
  struct Text {
    kernels::EmbeddedText source;
    NS::SharedPtr<MTL::Library> library;
    std::optional<Error> error;  // a text that did not compile once is not tried again
  };
  Status compile_library(Text& text);
  Result<NS::SharedPtr<MTL::ComputePipelineState>> compile(MTL::Library* library, std::string_view name);
  void open_archive();
  void save_archive();

  NS::SharedPtr<MTL::Device> device_;
  std::filesystem::path folder_;
  std::vector<Text> texts_;
  std::map<std::string, size_t, std::less<>> text_of_;  // a kernel's name to the text that has it
  bool archive_opened_ = false;
  std::filesystem::path archive_file_;
  NS::SharedPtr<MTL::BinaryArchive> archive_;
  bool archive_grew_ = false;
  std::map<std::string, std::unique_ptr<MetalKernel>, std::less<>> kernels_;
};

// The system's version as far as it matters here: 14 for macOS 14.5.
int macos_major();

}  // namespace quire::metal
