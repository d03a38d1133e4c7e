// SPDX-License-Identifier: Apache-2.0
// Pipelines: libraries, pipeline states and the binary archive.
#include "backend/metal/metal_pipelines.h"

#include <fmt/format.h>

#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace quire::metal {
namespace {

NS::String* ns_string(std::string_view text) {
  return NS::String::string(std::string(text).c_str(), NS::UTF8StringEncoding);
}

std::string words(const NS::Error* error) {
  if (error == nullptr) return "no reason given";
  const NS::String* description = error->localizedDescription();
  return description == nullptr ? "no reason given" : description->utf8String();
}

// 64-bit FNV-1a. It only makes a file name; it is no protection.
uint64_t hash_of(std::string_view text, uint64_t hash = 0xcbf29ce484222325u) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

NS::URL* file_url(const std::filesystem::path& path) {
  return NS::URL::fileURLWithPath(ns_string(path.string()));
}

// The names of the kernels in a text: the words before "(" that follow "[[kernel" and "void", as KERNEL writes them.
std::vector<std::string> kernels_of(std::string_view text) {
  std::vector<std::string> found;
  for (size_t at = text.find("[[kernel"); at != text.npos; at = text.find("[[kernel", at + 1)) {
    const size_t begin = text.find("void ", at) + 5;
    const size_t end = text.find('(', begin);
    if (end == text.npos) break;
    found.emplace_back(text.substr(begin, end - begin));
  }
  return found;
}

}  // namespace

int macos_major() {
  const AutoreleasePool pool;
  return static_cast<int>(NS::ProcessInfo::processInfo()->operatingSystemVersion().majorVersion);
}

MetalKernel::MetalKernel(std::string name, NS::SharedPtr<MTL::ComputePipelineState> pipeline)
    : pipeline_(std::move(pipeline)) {
  name_ = std::move(name);
  // The kernel's own limit (max_total_threads_per_threadgroup), or less if the compiler needed more registers.
  max_threads_ = static_cast<int>(pipeline_->maxTotalThreadsPerThreadgroup());
}

Pipelines::Pipelines(NS::SharedPtr<MTL::Device> device, std::span<const kernels::EmbeddedText> texts,
                     std::filesystem::path folder)
    : device_(std::move(device)), folder_(std::move(folder)) {
  for (const kernels::EmbeddedText& text : texts) {
    for (std::string& name : kernels_of(text.text)) text_of_.emplace(std::move(name), texts_.size());
    texts_.push_back({text, {}, {}});
  }
}

Pipelines::~Pipelines() {
  if (archive_grew_) save_archive();
}

// The arithmetic is fixed (docs/determinism.md): no reassociation, no approximate division or square root, NaN and
// infinity as in IEEE 754. Contraction is switched off in the source itself (kernels/compat), because the compiler has
// no option for it.
Status Pipelines::compile_library(Text& text) {
  if (text.library) return {};
  if (text.error) return *text.error;
  const AutoreleasePool pool;
  auto options = NS::TransferPtr(MTL::CompileOptions::alloc()->init());
  options->setLanguageVersion(MTL::LanguageVersion3_1);  // the first version with bfloat
  if (macos_major() >= 15) {
    options->setMathMode(MTL::MathModeSafe);
    options->setMathFloatingPointFunctions(MTL::MathFloatingPointFunctionsPrecise);
  } else {
    options->setFastMathEnabled(false);
  }
  NS::Error* error = nullptr;
  text.library = NS::TransferPtr(device_->newLibrary(ns_string(text.source.text), options.get(), &error));
  if (text.library) return {};
  text.error =
      unsupported(fmt::format("Metal could not compile the kernels of {}.h; its log follows, please report it\n{}",
                              text.source.name, words(error)));
  return *text.error;
}

std::vector<std::string> Pipelines::names() const {
  std::vector<std::string> result;
  for (const auto& [name, text] : text_of_) result.push_back(name);
  return result;
}

Result<const MetalKernel*> Pipelines::kernel(std::string_view name) {
  if (const auto found = kernels_.find(name); found != kernels_.end()) return found->second.get();
  const auto text = text_of_.find(name);
  if (text == text_of_.end()) return not_found(fmt::format("the Metal sources of this build have no kernel {}", name));
  QUIRE_TRY(compile_library(texts_[text->second]));
  QUIRE_ASSIGN(auto pipeline, compile(texts_[text->second].library.get(), name));
  const AutoreleasePool pool;
  if (pipeline->threadExecutionWidth() != 32) {
    return unsupported(
        fmt::format("the kernel {} would run in simdgroups of {} threads on this GPU; the kernels are "
                    "written for 32, which Apple GPUs have",
                    name, pipeline->threadExecutionWidth()));
  }
  auto made = std::make_unique<MetalKernel>(std::string(name), std::move(pipeline));
  return kernels_.emplace(std::string(name), std::move(made)).first->second.get();
}

// The archive is searched first. On a miss the kernel is compiled into the archive and then loaded from it, so that it
// is compiled only once. Only if the archive refuses is it compiled without it.
Result<NS::SharedPtr<MTL::ComputePipelineState>> Pipelines::compile(MTL::Library* library, std::string_view name) {
  const AutoreleasePool pool;
  if (!archive_opened_) open_archive();
  const auto function = NS::TransferPtr(library->newFunction(ns_string(name)));
  if (!function) return not_found(fmt::format("the library that Metal compiled does not have the kernel {}", name));
  auto descriptor = NS::TransferPtr(MTL::ComputePipelineDescriptor::alloc()->init());
  descriptor->setComputeFunction(function.get());
  descriptor->setLabel(ns_string(name));
  descriptor->setThreadGroupSizeIsMultipleOfThreadExecutionWidth(true);  // as Launch requires: a multiple of 32
  NS::Error* error = nullptr;
  if (archive_) {
    descriptor->setBinaryArchives(NS::Array::array(archive_.get()));
    auto kept = NS::TransferPtr(device_->newComputePipelineState(
        descriptor.get(), MTL::PipelineOptionFailOnBinaryArchiveMiss, nullptr, &error));
    if (kept) return kept;
    error = nullptr;
    if (archive_->addComputePipelineFunctions(descriptor.get(), &error)) {
      archive_grew_ = true;
    } else {
      log_debug("Metal did not take {} into its archive: {}", name, words(error));
    }
    error = nullptr;
  }
  auto made =
      NS::TransferPtr(device_->newComputePipelineState(descriptor.get(), MTL::PipelineOptionNone, nullptr, &error));
  if (made) return made;
  return unsupported(
      fmt::format("Metal could not compile the kernel {}; its log follows, please report it\n{}", name, words(error)));
}

// An archive holds machine code, so its name is derived from everything that the code depends on.
void Pipelines::open_archive() {
  archive_opened_ = true;
  if (folder_.empty()) return;
  const AutoreleasePool pool;
  const std::string system = NS::ProcessInfo::processInfo()->operatingSystemVersionString()->utf8String();
  const std::string device = device_->name()->utf8String();
  uint64_t hash = hash_of(device, hash_of(system));
  for (const Text& text : texts_) hash = hash_of(text.source.text, hash);
  archive_file_ = folder_ / fmt::format("{:016x}.metalarchive", hash);
  auto descriptor = NS::TransferPtr(MTL::BinaryArchiveDescriptor::alloc()->init());
  NS::Error* error = nullptr;
  std::error_code ignored;
  if (std::filesystem::exists(archive_file_, ignored)) {
    descriptor->setUrl(file_url(archive_file_));
    archive_ = NS::TransferPtr(device_->newBinaryArchive(descriptor.get(), &error));
    if (archive_) return;
    log_info("the compiled Metal kernels in {} cannot be used and will be compiled again: {}", archive_file_.string(),
             words(error));
    error = nullptr;
    descriptor->setUrl(nullptr);
  }
  archive_ = NS::TransferPtr(device_->newBinaryArchive(descriptor.get(), &error));
  if (!archive_) log_info("compiled Metal kernels will not be kept: {}", words(error));
}

// Written to a temporary file and renamed, so that another process never reads half a file.
void Pipelines::save_archive() {
  const AutoreleasePool pool;
  std::error_code failed;
  std::filesystem::create_directories(folder_, failed);
  std::filesystem::path half = archive_file_;
  half += fmt::format(".{:x}", reinterpret_cast<uintptr_t>(this));
  NS::Error* error = nullptr;
  if (!archive_->serializeToURL(file_url(half), &error)) {
    log_info("could not keep the compiled Metal kernels in {}: {}", folder_.string(), words(error));
    return;
  }
  std::filesystem::rename(half, archive_file_, failed);
  if (failed) {
    log_info("could not keep the compiled Metal kernels in {}: {}", archive_file_.string(), failed.message());
    std::filesystem::remove(half, failed);
  }
}

}  // namespace quire::metal
