// SPDX-License-Identifier: Apache-2.0
// The fake's compiler: accepts a source whose kernels the emulator has, and stores binary archives as lists of names.
#include <algorithm>
#include <cctype>
#include <fstream>
#include <sstream>

#include "kernels/compat/dialect.h"
#include "objects.h"
#include "tests/kernels/msl_kernels.h"

namespace fakemetal {
namespace {

constexpr uintptr_t kFailOnArchiveMiss = 4, kMathModeSafe = 0, kPrecise = 1, kLanguage31 = 0x30001;
// Limits of the language and of all Apple GPUs.
constexpr int kLastBuffer = 30, kMostThreads = 1024;
constexpr const char* kArchiveHead = "fake Metal archive";

std::map<std::string, int>& thread_limits() {
  static std::map<std::string, int> limits;
  return limits;
}

std::map<std::string, size_t>& threadgroup_memory() {
  static std::map<std::string, size_t> bytes;
  return bytes;
}

// The names of the functions that a source declares as kernels: "[[kernel, ...]] void NAME(" or "kernel void NAME(".
std::vector<std::pair<std::string, size_t>> kernels_named(const std::string& text) {
  std::vector<std::pair<std::string, size_t>> found;
  for (size_t at = text.find("kernel"); at != std::string::npos; at = text.find("kernel", at + 6)) {
    const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
    if ((at > 0 && is_word(text[at - 1])) || is_word(text[at + 6])) continue;
    const size_t open = text.find_first_of("({;", at + 6);
    const size_t name_end = text.find("void ", at);
    if (open == std::string::npos || name_end == std::string::npos) break;
    size_t begin = name_end + 5;
    while (begin < text.size() && std::isspace(static_cast<unsigned char>(text[begin])) != 0) begin++;
    size_t end = begin;
    while (end < text.size() && is_word(text[end])) end++;
    if (end < text.size() && text[end] == '(') found.emplace_back(text.substr(begin, end - begin), at);
  }
  return found;
}

std::string at_line(const std::string& text, size_t position, const std::string& words) {
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(position), '\n');
  return "program_source:" + std::to_string(line) + ":1: error: " + words;
}

// A line for each attribute `word`(n) of the text whose number is above `most`.
std::string above(const std::string& text, const std::string& word, int most) {
  std::string log;
  for (size_t at = text.find(word + "("); at != std::string::npos; at = text.find(word + "(", at + 1)) {
    const int value = std::atoi(text.c_str() + at + word.size() + 1);  // 0: an expression
    if (value <= most) continue;
    log += at_line(text, at, word + " is " + std::to_string(value) + ", the most is " + std::to_string(most)) + "\n";
  }
  return log;
}

Library* new_library(Device*, SEL, String* source, CompileOptions* options, Error** error) {
  if (options == nullptr || options->fast) misuse("the kernels are compiled with fast math");
  if (options->language < kLanguage31) misuse("the kernels are compiled for a language without bfloat");
  const std::string& text = source->text;
  std::string log;
  for (const char* pair : {"{}", "()", "[]"}) {
    if (std::count(text.begin(), text.end(), pair[0]) == std::count(text.begin(), text.end(), pair[1])) continue;
    log += at_line(text, text.size(), std::string("expected '") + pair[1] + "'") + "\n";
  }
  log += above(text, "[[buffer", kLastBuffer) + above(text, "max_total_threads_per_threadgroup", kMostThreads);
  std::map<std::string, const Kernel*> kernels;
  for (const auto& [name, position] : kernels_named(text)) {
    const Kernel* kernel = quire::kernels::find_msl_kernel(name);
    if (kernel == nullptr) log += at_line(text, position, "the emulator has no kernel '" + name + "'") + "\n";
    if (!kernels.emplace(name, kernel).second) log += at_line(text, position, "redefinition of '" + name + "'") + "\n";
  }
  if (kernels.empty() && log.empty()) log = at_line(text, 0, "no kernels") + "\n";
  counters().libraries++;
  if (!log.empty()) {
    report(error, log);
    return nullptr;
  }
  auto* library = make<Library>("MTLLibrary");
  library->kernels = std::move(kernels);
  return library;
}

bool in_archives(const PipelineDescriptor& descriptor, const std::string& name) {
  if (descriptor.archives.get() == nullptr) return false;
  const auto& items = descriptor.archives->items;
  return std::any_of(items.begin(), items.end(),
                     [&](const Ref<Object>& one) { return static_cast<Archive*>(one.get())->names.contains(name); });
}

Pipeline* new_pipeline(Device*, SEL, PipelineDescriptor* descriptor, uintptr_t options, void*, Error** error) {
  const Function* function = descriptor->function.get();
  if (function == nullptr) misuse("a pipeline without a function");
  if (in_archives(*descriptor, function->name)) {
    counters().archive_hits++;
  } else if ((options & kFailOnArchiveMiss) != 0) {
    report(error, "no entry in the binary archive");
    return nullptr;
  } else {
    counters().pipelines++;
  }
  int threads = function->kernel->max_threads;
  size_t memory = function->kernel->threadgroup_bytes;
  if (const auto set = thread_limits().find(function->name); set != thread_limits().end()) threads = set->second;
  if (const auto set = threadgroup_memory().find(function->name); set != threadgroup_memory().end())
    memory = set->second;
  if (threads > kMostThreads || memory > kMostThreadgroupMemory || function->kernel->buffers > kLastBuffer) {
    report(error, function->name + ": " + std::to_string(threads) + " threads in a threadgroup (the most are 1024), " +
                      std::to_string(memory) + " bytes of threadgroup memory (32768), " +
                      std::to_string(function->kernel->buffers + 1) + " buffers (31)");
    return nullptr;
  }
  auto* pipeline = make<Pipeline>("MTLComputePipelineState");
  pipeline->name = function->name;
  pipeline->kernel = function->kernel;
  pipeline->most_threads = static_cast<size_t>(threads);
  pipeline->threadgroup_bytes = memory;
  return pipeline;
}

Archive* new_archive(Device*, SEL, ArchiveDescriptor* descriptor, Error** error) {
  std::set<std::string> names;
  if (!descriptor->path.empty()) {
    std::ifstream file(descriptor->path);
    std::string line;
    if (!std::getline(file, line) || line != kArchiveHead) {
      report(error, "not a binary archive");
      return nullptr;
    }
    while (std::getline(file, line)) names.insert(line);
  }
  auto* archive = make<Archive>("MTLBinaryArchive");
  archive->names = std::move(names);
  return archive;
}

bool save_archive(Archive* self, SEL, Url* url, Error** error) {
  std::ofstream file(url->path);
  file << kArchiveHead << '\n';
  for (const std::string& name : self->names) file << name << '\n';
  file.close();
  if (!file.fail()) return true;
  report(error, "the file cannot be written");
  return false;
}

void install_libraries() {
  class_method("MTLCompileOptions", "alloc", [](Class, SEL) { return make<CompileOptions>("MTLCompileOptions"); });
  method("MTLCompileOptions",
         "setLanguageVersion:", [](CompileOptions* self, SEL, uintptr_t version) { self->language = version; });
  method("MTLCompileOptions", "setFastMathEnabled:", [](CompileOptions* self, SEL, bool fast) { self->fast = fast; });
  method(
      "MTLCompileOptions",
      "setMathMode:", [](CompileOptions* self, SEL, uintptr_t mode) { self->fast = mode != kMathModeSafe; }, 15);
  method(
      "MTLCompileOptions", "setMathFloatingPointFunctions:",
      [](CompileOptions* self, SEL, uintptr_t functions) { self->fast = self->fast || functions != kPrecise; }, 15);
  method("MTLDevice", "newLibraryWithSource:options:error:", new_library);
  method("MTLLibrary", "functionNames", [](Library* self, SEL) {
    auto* names = autoreleased(make<Array>("NSArray"));
    for (const auto& [name, kernel] : self->kernels) names->items.push_back(Ref<Object>::take(make_string(name)));
    return names;
  });
  method("MTLLibrary", "newFunctionWithName:", [](Library* self, SEL, String* name) -> Function* {
    const auto found = self->kernels.find(name->text);
    if (found == self->kernels.end()) return nullptr;
    auto* function = make<Function>("MTLFunction");
    function->name = found->first;
    function->kernel = found->second;
    return function;
  });
}

void install_pipelines() {
  class_method("MTLComputePipelineDescriptor", "alloc",
               [](Class, SEL) { return make<PipelineDescriptor>("MTLComputePipelineDescriptor"); });
  method("MTLComputePipelineDescriptor", "setComputeFunction:", [](PipelineDescriptor* self, SEL, Function* function) {
    self->function = Ref<Function>::take(function);
  });
  method("MTLComputePipelineDescriptor", "setBinaryArchives:", [](PipelineDescriptor* self, SEL, Array* archives) {
    self->archives = Ref<Array>::take(archives);
  });
  method("MTLComputePipelineDescriptor",
         "setThreadGroupSizeIsMultipleOfThreadExecutionWidth:", [](PipelineDescriptor*, SEL, bool) {});
  method("MTLDevice", "newComputePipelineStateWithDescriptor:options:reflection:error:", new_pipeline);
  method("MTLComputePipelineState", "maxTotalThreadsPerThreadgroup",
         [](Pipeline* self, SEL) -> uintptr_t { return self->most_threads; });
  method("MTLComputePipelineState", "threadExecutionWidth", [](Pipeline*, SEL) -> uintptr_t { return 32; });
  class_method("MTLBinaryArchiveDescriptor", "alloc",
               [](Class, SEL) { return make<ArchiveDescriptor>("MTLBinaryArchiveDescriptor"); });
  method("MTLBinaryArchiveDescriptor", "setUrl:", [](ArchiveDescriptor* self, SEL, Url* url) {
    self->path = url == nullptr ? std::filesystem::path() : url->path;
  });
  method("MTLDevice", "newBinaryArchiveWithDescriptor:error:", new_archive);
  method("MTLBinaryArchive", "addComputePipelineFunctionsWithDescriptor:error:",
         [](Archive* self, SEL, PipelineDescriptor* descriptor, Error**) {
           counters().pipelines++;
           self->names.insert(descriptor->function->name);
           return true;
         });
  method("MTLBinaryArchive", "serializeToURL:error:", save_archive);
}

}  // namespace

void set_thread_limit(const std::string& kernel, int threads) {
  thread_limits()[kernel] = threads;
}

void set_threadgroup_memory(const std::string& kernel, size_t bytes) {
  threadgroup_memory()[kernel] = bytes;
}

void install_compiler() {
  install_libraries();
  install_pipelines();
}

}  // namespace fakemetal
