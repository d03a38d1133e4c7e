// SPDX-License-Identifier: Apache-2.0
// gpu::Device on CUDA: one stream, kernels from embedded images, graphs by stream capture.
#include "backend/cuda/cuda_device.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "backend/cuda/library.h"
#include "backend/cuda/library_check.h"
#include "backend/cuda/session.h"
#include "base/env.h"
#include "base/log.h"
#include "base/parallel.h"

namespace quire::cuda {
namespace {

constexpr int kLeastCapability = 80;   // has mma.m16n8k16 and cp.async
constexpr int kProgrammaticFrom = 90;  // has griddepcontrol
constexpr size_t kMostBuffers = 16, kMostParamsBytes = 4096;
constexpr uint32_t kMostGridYZ = 65535;
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

bool switched_off(const char* name) {
  return env(name).value_or("1") == "0";
}

Address address_of(const void* pointer) {
  return reinterpret_cast<Address>(pointer);
}

class CudaKernel : public gpu::Kernel {
 public:
  CudaKernel(const Session& session, std::string name, Function function) : function(function) {
    name_ = std::move(name);
    const DriverApi& api = session.api();
    api.cuFuncGetAttribute(&max_threads_, kFunctionMaxThreads, function);
    api.cuFuncGetAttribute(&shared_bytes, kFunctionSharedBytes, function);
    int compiled_for = 0;
    api.cuFuncGetAttribute(&compiled_for, kFunctionPtxVersion, function);
    waits = compiled_for >= kProgrammaticFrom;
  }

  // Checks that a launch has the kernel's parameters. `all` also checks that the kernel has no more of them; asking for
  // a parameter that does not exist counts as an error in tools that watch the driver, so this is not the default.
  void check_parameters(const DriverApi& api, const gpu::Launch& launch, bool all) const {
    if (api.cuFuncGetParamInfo == nullptr) return;
    if (params_bytes_ == launch.params_bytes && buffers_ == launch.buffers.size()) return;
    QUIRE_CHECK(params_bytes_ == 0, name_.c_str());  // all launches of a kernel are alike
    params_bytes_ = launch.params_bytes;
    buffers_ = launch.buffers.size();
    size_t offset = 0, bytes = 0;
    for (size_t i = 0; i <= launch.buffers.size(); ++i) {
      QUIRE_CHECK(api.cuFuncGetParamInfo(function, i, &offset, &bytes) == kSuccess, name_.c_str());
      QUIRE_CHECK(bytes == (i == 0 ? launch.params_bytes : sizeof(void*)), name_.c_str());
    }
    if (!all) return;
    QUIRE_CHECK(api.cuFuncGetParamInfo(function, launch.buffers.size() + 1, &offset, &bytes) != kSuccess,
                name_.c_str());
  }

  Function function;
  int shared_bytes = 0;  // static threadgroup memory
  bool waits = false;    // it waits for the kernel before it by itself, as code for sm_90 and up does
  mutable uint32_t dynamic_allowed = 0;

 private:
  mutable size_t params_bytes_ = 0, buffers_ = 0;  // of its launches
};

class CudaGraph : public gpu::Graph {
 public:
  CudaGraph(std::shared_ptr<Session> session, GraphExec exec) : exec(exec), session_(std::move(session)) {}
  ~CudaGraph() override {
    session_->bind();
    session_->api().cuGraphExecDestroy(exec);
  }

  const GraphExec exec;

 private:
  std::shared_ptr<Session> session_;
};

// The kernels of all images. An image is loaded when a search first reaches it; one without code for this GPU is
// skipped.
class Kernels {
 public:
  Kernels(std::shared_ptr<Session> session, std::span<const Image> images) : session_(std::move(session)) {
    for (const Image& image : images) entries_.push_back({.image = image});
  }
  ~Kernels() {
    session_->bind();
    for (const Entry& entry : entries_) {
      if (entry.module != nullptr) session_->api().cuModuleUnload(entry.module);
    }
  }

  // An error unless at least one image fits the GPU and the driver.
  Status load_one() {
    Status first;
    for (Entry& entry : entries_) {
      Status status = load(entry);
      if (entry.module != nullptr) return {};
      if (first.ok() && !status.ok()) first = status;
    }
    return first.ok() ? Status(session_->driver().error("cuModuleLoadData", kNoBinaryForGpu)) : first;
  }

  // Looks first in the image that lists the kernel, so that the driver is not asked for what it lacks, then in all.
  Result<const gpu::Kernel*> find(std::string_view name) {
    const auto known = kernels_.find(name);
    if (known != kernels_.end()) return static_cast<const gpu::Kernel*>(known->second.get());
    const std::string text(name);
    for (const bool listed : {true, false}) {
      for (Entry& entry : entries_) {
        QUIRE_TRY(load(entry));
        Function function = nullptr;
        if (entry.module == nullptr || (listed && !entry.names.contains(name))) continue;
        const Code code = session_->api().cuModuleGetFunction(&function, entry.module, text.c_str());
        if (code == kNotFound) continue;
        if (code != kSuccess) return session_->driver().error("cuModuleGetFunction", code);
        auto& place = kernels_[text];
        place = std::make_unique<CudaKernel>(*session_, text, function);
        return static_cast<const gpu::Kernel*>(place.get());
      }
    }
    return not_found({"this build has no CUDA kernel named '", text, "' for this GPU"});
  }

  // Asks the lists of the driver, which loads no code; where it cannot list, looks for the kernel.
  bool has(std::string_view name) {
    bool listed = false;
    for (Entry& entry : entries_) {
      if (!load(entry).ok()) return false;
      if (entry.names.contains(name)) return true;
      listed = listed || !entry.names.empty();
    }
    return !listed && find(name).ok();
  }

  // All, where the driver can list them; else those that were found so far.
  std::vector<std::string> names() {
    std::set<std::string> all;
    for (Entry& entry : entries_) {
      if (load(entry).ok()) all.insert(entry.names.begin(), entry.names.end());
    }
    for (const auto& [name, kernel] : kernels_) all.insert(name);
    return {all.begin(), all.end()};
  }

 private:
  struct Entry {
    Image image;
    bool tried = false;
    Module module = nullptr;                        // null: not tried yet, or not for this GPU
    std::set<std::string, std::less<>> names = {};  // of its kernels, where the driver can list them
  };

  Status load(Entry& entry) {
    if (entry.tried) return {};
    const Code code = session_->api().cuModuleLoadData(&entry.module, entry.image.data);
    if (code == kNoBinaryForGpu) {
      entry.tried = true;
      entry.module = nullptr;
      log_debug("cuda: the kernels of '{}' have no code for this GPU", entry.image.name);
      return {};
    }
    if (code != kSuccess) return session_->driver().error("cuModuleLoadData", code);
    entry.tried = true;
    list(entry);
    return {};
  }

  void list(Entry& entry) {
    const DriverApi& api = session_->api();
    unsigned count = 0;
    if (api.cuModuleGetFunctionCount == nullptr || api.cuModuleEnumerateFunctions == nullptr ||
        api.cuFuncGetName == nullptr || api.cuModuleGetFunctionCount(&count, entry.module) != kSuccess) {
      return;
    }
    std::vector<Function> functions(count);
    if (api.cuModuleEnumerateFunctions(functions.data(), count, entry.module) != kSuccess) return;
    for (const Function function : functions) {
      const char* name = nullptr;
      if (api.cuFuncGetName(&name, function) == kSuccess && name != nullptr) entry.names.insert(name);
    }
  }

  std::shared_ptr<Session> session_;
  std::vector<Entry> entries_;
  std::map<std::string, std::unique_ptr<CudaKernel>, std::less<>> kernels_;
};

// Pinned memory through which uploads from ordinary memory pass, chunk by chunk.
class PinnedUploads {
 public:
  static constexpr size_t kChunk = size_t{16} << 20;
  static constexpr size_t kChunks = 3;
  // One thread that reads a mapped file copies more slowly than the bus takes it.
  static constexpr int kCopyThreads = 4;
  static constexpr int64_t kCopyBlock = int64_t{1} << 20;

  explicit PinnedUploads(std::shared_ptr<Session> session) : session_(std::move(session)) {}
  ~PinnedUploads() {
    session_->bind();
    for (const Event event : events_) {
      if (event != nullptr) session_->api().cuEventDestroy_v2(event);
    }
  }

  Status upload(void* to, const void* from, size_t bytes) {
    const DriverApi& api = session_->api();
    if (memory_ == nullptr) {
      QUIRE_ASSIGN(memory_, Session::allocate_host(session_, kChunk * kChunks));
      for (Event& event : events_) {
        if (const Code code = api.cuEventCreate(&event, kEventDisableTiming)) {
          return session_->driver().error("cuEventCreate", code);
        }
      }
    }
    for (size_t at = 0; at < bytes; at += kChunk) {
      const size_t part = std::min(kChunk, bytes - at), turn = turn_++ % kChunks;
      std::byte* chunk = static_cast<std::byte*>(memory_->address()) + turn * kChunk;
      if (const Code code = api.cuEventSynchronize(events_[turn])) {  // returns at once if it was never recorded
        return session_->driver().error("cuEventSynchronize", code);
      }
      const std::byte* source = static_cast<const std::byte*>(from) + at;
      parallel_blocks(
          static_cast<int64_t>(part), kCopyBlock,
          [&](int64_t begin, int64_t end) {
            std::memcpy(chunk + begin, source + begin, static_cast<size_t>(end - begin));
          },
          kCopyThreads);
      if (const Code code = api.cuMemcpyHtoDAsync_v2(address_of(to) + at, chunk, part, session_->stream())) {
        return session_->driver().error("cuMemcpyHtoDAsync", code);
      }
      if (const Code code = api.cuEventRecord(events_[turn], session_->stream())) {
        return session_->driver().error("cuEventRecord", code);
      }
    }
    return {};
  }

 private:
  std::shared_ptr<Session> session_;
  std::unique_ptr<gpu::Memory> memory_;
  std::array<Event, kChunks> events_ = {};
  size_t turn_ = 0;
};

// One GPU. A call that cannot return an error keeps the first one for the next call that can; after a fault on the
// device nothing is queued any more. An error while recording fails that recording alone.
class CudaDevice : public gpu::Device {
 public:
  CudaDevice(std::shared_ptr<Session> session, std::span<const Image> images, std::filesystem::path folder)
      : session_(std::move(session)), kernels_(session_, images), uploads_(session_), folder_(std::move(folder)) {
    describe();
    programmatic_ = capability() >= kProgrammaticFrom && !switched_off("QUIRE_CUDA_PDL");
    wait_each_ = env("QUIRE_CUDA_SYNC").value_or("0") != "0";
  }
  ~CudaDevice() override {
    session_->bind();
    api().cuStreamSynchronize(session_->stream());
    for (const Event event : marks_) {
      if (event != nullptr) api().cuEventDestroy_v2(event);
    }
    if (probe_ != nullptr) api().cuEventDestroy_v2(probe_);
  }

  Status start() { return kernels_.load_one(); }

  size_t free_bytes() const override { return session_->free_bytes(); }
  Result<std::unique_ptr<gpu::Memory>> allocate(size_t bytes) override {
    last_ = Queued::kOther;
    return Session::allocate(session_, bytes);
  }
  Result<std::unique_ptr<gpu::Memory>> allocate_host(size_t bytes) override {
    return Session::allocate_host(session_, bytes);
  }

  Result<const gpu::Kernel*> kernel(std::string_view name) override {
    session_->bind();
    return kernels_.find(name);
  }
  bool has_kernel(std::string_view name) override {
    session_->bind();
    return kernels_.has(name);
  }
  std::vector<std::string> kernel_names() const override {
    session_->bind();
    return kernels_.names();
  }

  bool map_rows(const gpu::RowsMap& rows, void* map) override;
  bool map_pages(const gpu::PagesMap& pages, void* map) override;
  void queue(std::function<Status(void*)> work) override;
  void launch(const gpu::Launch& launch) override;
  void upload(void* to, const void* from, size_t bytes) override;
  void download(void* to, const void* from, size_t bytes) override;
  void copy(void* to, const void* from, size_t bytes) override;
  void fill(void* to, uint8_t value, size_t bytes) override;
  Status synchronise() override;
  uint64_t mark() override;
  Status wait(uint64_t mark) override;
  void set_probe() override;
  bool probe_passed() override;

  void begin_recording() override;
  Result<std::unique_ptr<gpu::Graph>> end_recording() override;
  void run(const gpu::Graph& graph) override;

  bool library_serves(DType type, int64_t n, int64_t k) override;
  void library_product(const gpu::LibraryProduct& product) override;
  void set_library_reference(ProductFn reference) override { reference_ = std::move(reference); }
  double library_seconds() const override { return library_seconds_; }
  std::string library_version() override { return open_library() ? library_->version() : std::string(); }
  std::vector<ProductFn> library_algorithms(const gpu::LibraryProduct& shape, size_t most) override;

 private:
  static constexpr size_t kMarks = 64;

  const DriverApi& api() const { return session_->api(); }
  int capability() const {
    return session_->attribute(kAttributeCapabilityMajor) * 10 + session_->attribute(kAttributeCapabilityMinor);
  }
  void describe();
  bool open_library();
  // A tensor map of 16-bit elements with pieces swizzled over 128 bytes; the first dimension is contiguous.
  bool map_boxes(void* map, const void* data, std::span<const uint64_t> sizes, std::span<const uint64_t> strides,
                 std::span<const unsigned> box);
  // Called before anything is queued. False: the device or the recording has failed.
  bool ready() {
    session_->bind();
    return !failure_ && !recording_failure_;
  }
  void note(const Error& error) {
    auto& place = session_->recording() ? recording_failure_ : failure_;
    if (!place) place = error;
  }
  bool check(const char* call, Code code, const std::string& advice = "") {
    if (code != kSuccess) note(session_->driver().error(call, code, advice));
    return code == kSuccess;
  }
  // An address outside the device's memory would be a fault on some machines and go unnoticed on others.
  void check_block(const void* address, size_t bytes) const {
    QUIRE_CHECK(lies_in(session_->device_blocks(), address, bytes), "the range lies in no block of this device");
  }
  bool allow_dynamic(const CudaKernel& kernel, uint32_t bytes);
  Code submit(const CudaKernel& kernel, const gpu::Launch& launch);

  std::shared_ptr<Session> session_;
  mutable Kernels kernels_;
  PinnedUploads uploads_;
  std::optional<Error> failure_, recording_failure_;
  bool programmatic_ = false, wait_each_ = false;
  // What was queued last: a kernel of quire's, a mark after one, a mark after something else, or something else.
  enum class Queued { kOther, kKernel, kMarkedKernel, kMark } last_ = Queued::kOther;
  std::array<Event, kMarks> marks_ = {};
  uint64_t next_mark_ = 1;
  Event probe_ = nullptr;
  std::filesystem::path folder_;  // where choices_ is kept
  bool library_tried_ = false, timing_logged_ = false;
  double library_seconds_ = 0;
  std::unique_ptr<Library> library_;
  ChoiceFile choices_;
  ProductFn reference_;
  std::unique_ptr<gpu::Memory> workspace_;
};

std::string capability_name(int capability) {
  return "sm_" + std::to_string(capability);
}

std::string device_name(const DriverApi& api, DeviceId device) {
  char name[256] = "";
  return api.cuDeviceGetName(name, sizeof name, device) == kSuccess ? std::string(name) : "an NVIDIA GPU";
}

void CudaDevice::describe() {
  info_.api = gpu::Api::kCuda;
  info_.name = device_name(api(), session_->device());
  info_.architecture = capability_name(capability());
  info_.compute_units = session_->attribute(kAttributeMultiprocessors);
  info_.max_threads = session_->attribute(kAttributeMaxThreads);
  info_.max_threadgroup_memory = static_cast<size_t>(session_->attribute(kAttributeSharedMemoryOptin));
  api().cuDeviceTotalMem_v2(&info_.memory_bytes, session_->device());
  info_.working_set_bytes = info_.memory_bytes;
  info_.unified = false;
  info_.graphs = true;
  info_.asynchronous = true;
}

// A kernel may use more than 48 KiB of threadgroup memory only after the driver was told so.
bool CudaDevice::allow_dynamic(const CudaKernel& kernel, uint32_t bytes) {
  if (bytes <= kernel.dynamic_allowed) return true;
  const size_t all = bytes + static_cast<size_t>(kernel.shared_bytes);
  constexpr size_t kByDefault = 48 << 10;
  if (all > kByDefault &&
      !check("cuFuncSetAttribute",
             api().cuFuncSetAttribute(kernel.function, kFunctionMaxDynamicShared, static_cast<int>(bytes)),
             "'" + kernel.name() + "' wants " + std::to_string(all) + " bytes of threadgroup memory and the GPU has " +
                 std::to_string(info_.max_threadgroup_memory))) {
    return false;
  }
  kernel.dynamic_allowed = bytes;
  return true;
}

Code CudaDevice::submit(const CudaKernel& kernel, const gpu::Launch& launch) {
  void* nothing = nullptr;
  std::array<void*, kMostBuffers + 1> parameters;
  parameters.fill(&nothing);  // for a kernel with more parameters than the launch has
  parameters[0] = const_cast<void*>(launch.params);
  for (size_t i = 0; i < launch.buffers.size(); ++i) parameters[i + 1] = const_cast<void**>(&launch.buffers[i]);
  LaunchAttribute overlap;
  overlap.id = kLaunchProgrammaticSerialization;
  overlap.value.programmatic_serialization_allowed = 1;
  LaunchConfig config;
  config.grid_x = launch.grid.x;
  config.grid_y = launch.grid.y;
  config.grid_z = launch.grid.z;
  config.block_x = launch.threads;
  config.shared_bytes = launch.dynamic_memory;
  config.stream = session_->stream();
  config.attributes = &overlap;
  // A kernel may start while the one before it ends: it waits for that one by itself (griddepcontrol.wait). After
  // anything that is not a kernel of quire's, launches run strictly in order.
  const bool follows_one = last_ == Queued::kKernel || last_ == Queued::kMarkedKernel;
  config.num_attributes = programmatic_ && follows_one && kernel.waits ? 1 : 0;
  return api().cuLaunchKernelEx(&config, kernel.function, parameters.data(), nullptr);
}

void CudaDevice::launch(const gpu::Launch& launch) {
  if (!ready()) return;
  QUIRE_CHECK(launch.kernel != nullptr && launch.params != nullptr);
  const auto& kernel = static_cast<const CudaKernel&>(*launch.kernel);
  QUIRE_CHECK(launch.params_bytes <= kMostParamsBytes && launch.buffers.size() <= kMostBuffers, kernel.name().c_str());
  QUIRE_CHECK(launch.grid.x > 0 && launch.grid.y > 0 && launch.grid.z > 0, kernel.name().c_str());
  QUIRE_CHECK(launch.grid.y <= kMostGridYZ && launch.grid.z <= kMostGridYZ, kernel.name().c_str());
  QUIRE_CHECK(
      launch.threads > 0 && launch.threads % 32 == 0 && launch.threads <= static_cast<uint32_t>(kernel.max_threads()),
      kernel.name().c_str());
  kernel.check_parameters(api(), launch, wait_each_);
  if (!allow_dynamic(kernel, launch.dynamic_memory)) return;
  const Code code = submit(kernel, launch);
  if (code != kSuccess) {
    char text[160];
    std::snprintf(text, sizeof text, "' of %u x %u x %u threadgroups of %u threads", launch.grid.x, launch.grid.y,
                  launch.grid.z, launch.threads);
    check("cuLaunchKernelEx", code, "it was '" + kernel.name() + text);
    return;
  }
  last_ = Queued::kKernel;
  if (wait_each_ && !session_->recording()) {
    check("cuStreamSynchronize", api().cuStreamSynchronize(session_->stream()), "after '" + kernel.name() + "'");
  }
}

bool CudaDevice::map_boxes(void* map, const void* data, std::span<const uint64_t> sizes,
                           std::span<const uint64_t> strides, std::span<const unsigned> box) {
  if (api().cuTensorMapEncodeTiled == nullptr || !ready()) return false;
  const unsigned steps[] = {1, 1, 1, 1, 1};
  return api().cuTensorMapEncodeTiled(map, kTensorMapUint16, static_cast<unsigned>(sizes.size()),
                                      const_cast<void*>(data), sizes.data(), strides.data(), box.data(), steps,
                                      kTensorMapPlain, kTensorMapSwizzle128, kTensorMapPromote256,
                                      kTensorMapFillZero) == kSuccess;
}

bool CudaDevice::map_rows(const gpu::RowsMap& rows, void* map) {
  const auto half = static_cast<uint64_t>(rows.rows / rows.halves), stride = static_cast<uint64_t>(rows.stride) * 2;
  const uint64_t sizes[] = {static_cast<uint64_t>(rows.cols), half, static_cast<uint64_t>(rows.halves)};
  const uint64_t strides[] = {stride, stride * half};
  const unsigned box[] = {64, static_cast<unsigned>(rows.box), static_cast<unsigned>(rows.box_halves)};
  return map_boxes(map, rows.data, sizes, strides, box);
}

bool CudaDevice::map_pages(const gpu::PagesMap& pages, void* map) {
  const auto row = static_cast<uint64_t>(pages.head_dim) * 2, heads = static_cast<uint64_t>(pages.heads);
  const uint64_t columns = static_cast<uint64_t>(pages.head_dim) / 64;
  const uint64_t sizes[] = {64, static_cast<uint64_t>(pages.block_size), columns, heads,
                            static_cast<uint64_t>(pages.num_pages)};
  const uint64_t strides[] = {row * heads, 128, row, static_cast<uint64_t>(pages.page_stride)};
  const unsigned box[] = {64, static_cast<unsigned>(pages.box_rows), static_cast<unsigned>(columns), 1, 1};
  return map_boxes(map, pages.data, sizes, strides, box);
}

void CudaDevice::upload(void* to, const void* from, size_t bytes) {
  if (bytes == 0 || !ready()) return;
  check_block(to, bytes);
  last_ = Queued::kOther;
  if (lies_in(session_->host_blocks(), from, bytes)) {
    check("cuMemcpyHtoDAsync", api().cuMemcpyHtoDAsync_v2(address_of(to), from, bytes, session_->stream()));
    return;
  }
  QUIRE_CHECK(!session_->recording(),
              "a graph reads its uploads again at each run: their source must be of allocate_host()");
  const Status status = uploads_.upload(to, from, bytes);
  if (!status.ok()) note(status.error());
}

void CudaDevice::download(void* to, const void* from, size_t bytes) {
  if (bytes == 0 || !ready()) return;
  check_block(from, bytes);
  last_ = Queued::kOther;
  QUIRE_CHECK(!session_->recording() || lies_in(session_->host_blocks(), to, bytes),
              "a graph writes its downloads again at each run: their target must be of allocate_host()");
  check("cuMemcpyDtoHAsync", api().cuMemcpyDtoHAsync_v2(to, address_of(from), bytes, session_->stream()));
}

void CudaDevice::copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0 || !ready()) return;
  check_block(to, bytes);
  check_block(from, bytes);
  last_ = Queued::kOther;
  check("cuMemcpyDtoDAsync", api().cuMemcpyDtoDAsync_v2(address_of(to), address_of(from), bytes, session_->stream()));
}

void CudaDevice::fill(void* to, uint8_t value, size_t bytes) {
  if (bytes == 0 || !ready()) return;
  check_block(to, bytes);
  last_ = Queued::kOther;
  check("cuMemsetD8Async", api().cuMemsetD8Async(address_of(to), value, bytes, session_->stream()));
}

void CudaDevice::queue(std::function<Status(void*)> work) {
  if (!ready()) return;
  last_ = Queued::kOther;
  const Status status = work(session_->stream());
  if (!status.ok()) note(status.error());
}

Status CudaDevice::synchronise() {
  QUIRE_CHECK(!session_->recording(), "nothing can be waited for while it is recorded");
  session_->bind();
  if (!failure_) check("cuStreamSynchronize", api().cuStreamSynchronize(session_->stream()));
  last_ = Queued::kOther;
  if (failure_) return *failure_;
  return {};
}

uint64_t CudaDevice::mark() {
  QUIRE_CHECK(!session_->recording(), "a mark is no part of a graph");
  if (last_ == Queued::kMark || last_ == Queued::kMarkedKernel) return next_mark_ - 1;  // nothing was queued since
  const uint64_t out = next_mark_++;
  if (!ready()) return out;
  last_ = last_ == Queued::kKernel ? Queued::kMarkedKernel : Queued::kMark;
  Event& event = marks_[out % kMarks];
  if (event == nullptr && !check("cuEventCreate", api().cuEventCreate(&event, kEventDisableTiming))) return out;
  check("cuEventRecord", api().cuEventRecord(event, session_->stream()));
  return out;
}

Status CudaDevice::wait(uint64_t mark) {
  QUIRE_CHECK(mark < next_mark_, "there is no such mark");
  session_->bind();
  if (mark == 0) return {};  // the beginning of the queue
  // The event of an old mark may belong to a later mark by now: then this waits longer, never shorter.
  if (!failure_) check("cuEventSynchronize", api().cuEventSynchronize(marks_[mark % kMarks]));
  if (failure_) return *failure_;
  return {};
}

void CudaDevice::set_probe() {
  QUIRE_CHECK(!session_->recording(), "a probe is no part of a graph");
  if (!ready()) return;
  if (probe_ == nullptr && !check("cuEventCreate", api().cuEventCreate(&probe_, kEventDisableTiming))) return;
  last_ = Queued::kOther;
  check("cuEventRecord", api().cuEventRecord(probe_, session_->stream()));
}

// After a fault it is passed: who waits for the device reports that.
bool CudaDevice::probe_passed() {
  session_->bind();
  return probe_ == nullptr || api().cuEventQuery(probe_) != kNotReady;
}

void CudaDevice::begin_recording() {
  QUIRE_CHECK(!session_->recording(), "recordings do not nest");
  if (!ready()) return;
  last_ = Queued::kOther;
  // Relaxed, because the first use of a kernel or of the library may do work that is not part of the graph.
  if (check("cuStreamBeginCapture", api().cuStreamBeginCapture_v2(session_->stream(), kCaptureRelaxed))) {
    session_->set_recording(true);
  }
}

Result<std::unique_ptr<gpu::Graph>> CudaDevice::end_recording() {
  session_->bind();
  if (failure_) return *failure_;
  QUIRE_CHECK(session_->recording(), "begin_recording() comes first");
  GraphHandle graph = nullptr;
  check("cuStreamEndCapture", api().cuStreamEndCapture(session_->stream(), &graph));
  GraphExec exec = nullptr;
  if (!recording_failure_) check("cuGraphInstantiate", api().cuGraphInstantiateWithFlags(&exec, graph, 0));
  if (graph != nullptr) api().cuGraphDestroy(graph);
  session_->set_recording(false);
  last_ = Queued::kOther;
  if (recording_failure_) {
    const Error error = *recording_failure_;
    recording_failure_.reset();
    return error;
  }
  return std::unique_ptr<gpu::Graph>(std::make_unique<CudaGraph>(session_, exec));
}

void CudaDevice::run(const gpu::Graph& graph) {
  QUIRE_CHECK(!session_->recording(), "graphs do not nest");
  if (!ready()) return;
  last_ = Queued::kOther;
  check("cuGraphLaunch", api().cuGraphLaunch(static_cast<const CudaGraph&>(graph).exec, session_->stream()));
  if (wait_each_) {
    check("cuStreamSynchronize", api().cuStreamSynchronize(session_->stream()), "after a recorded step");
  }
}

bool CudaDevice::open_library() {
  if (library_tried_) return library_ != nullptr;
  library_tried_ = true;
  if (switched_off("QUIRE_CUDA_LIBRARY")) return false;
  auto library = Library::load();
  if (!library.ok()) {
    log_info("cuda: {}; quire's own kernels serve every product", library.error().message);
    return false;
  }
  auto workspace = allocate(kWorkspaceBytes);
  if (!workspace.ok()) {
    log_warn("cuda: {}", workspace.error().message);
    return false;
  }
  library_ = std::move(library).value();
  workspace_ = std::move(workspace).value();
  library_->use(workspace_->address(), workspace_->bytes(), session_->stream());
  choices_ = ChoiceFile(folder_, fmt::format("{}, {}, driver for CUDA {}, {}, K in {}", info_.name, info_.architecture,
                                             session_->driver().version(), library_->version(), library_split()));
  return true;
}

bool CudaDevice::library_serves(DType type, int64_t n, int64_t k) {
  if (!ready() || !library_knows({type, n, k})) return false;
  if (const auto known = library_ != nullptr ? library_->served({type, n, k}) : std::nullopt) return *known;
  QUIRE_CHECK(!session_->recording(), "which product serves a weight is decided when it is loaded");
  const auto start = std::chrono::steady_clock::now();
  if (!open_library()) return false;
  const bool timed = !choices_.find({type, n, k});
  if (!timing_logged_ && timed) {
    timing_logged_ = true;
    log_info("cuda: timing the algorithms of {}, about half a second for each shape of weights{}", library_->version(),
             choices_.path().empty() ? "" : "; later starts find the choice in " + choices_.path().string());
  }
  const Result<bool> served = choose_algorithms(*this, *library_, {type, n, k}, library_split(), reference_, choices_);
  if (!served.ok()) {
    log_warn("cuda: cuBLASLt could not be checked for {}x{} {} ({}); quire's own kernels serve it", n, k, name(type),
             served.error().message);
  } else if (!*served) {
    log_warn(
        "cuda: cuBLASLt does not give the bits of quire's own kernels for every number of rows at {}x{} {}; quire's "
        "own "
        "kernels serve it",
        n, k, name(type));
  }
  const bool out = served.ok() && *served;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  library_seconds_ += seconds;
  log_debug("cuda: cuBLASLt was {} for {}x{} {} in {:.2f} s", timed ? "timed and checked" : "checked", n, k, name(type),
            seconds);
  library_->decide({type, n, k}, out);
  return out;
}

void CudaDevice::library_product(const gpu::LibraryProduct& product) {
  if (product.m == 0 || !ready()) return;
  QUIRE_CHECK(library_ != nullptr && library_->served({product.type, product.n, product.k}).value_or(false),
              "library_serves() must have said yes");
  last_ = Queued::kOther;
  const Status status = library_->product(product);
  if (!status.ok()) note(status.error());
}

std::vector<ProductFn> CudaDevice::library_algorithms(const gpu::LibraryProduct& shape, size_t most) {
  std::vector<ProductFn> out;
  if (!open_library()) return out;
  std::vector<LtAlgo> algorithms = library_->candidates({shape.type, shape.n, shape.k}, shape.out_type, shape.m, 0);
  if (algorithms.size() > most) algorithms.resize(most);
  for (const LtAlgo& algorithm : algorithms) {
    out.push_back([this, algorithm](const gpu::LibraryProduct& product) { return library_->run(product, algorithm); });
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<gpu::Device>> open_device(int index, std::span<const Image> images,
                                                 const std::filesystem::path& folder) {
  if (images.empty()) {
    return unsupported("this build has no CUDA kernels: build quire where nvcc (CUDA 12.8 or later) is installed");
  }
  QUIRE_ASSIGN(const std::shared_ptr<const Driver> driver, Driver::load());
  if (index < 0 || index >= driver->devices()) {
    return invalid_argument(
        {"there is no CUDA device ", index, ": this machine has ", driver->devices(), ", counted from 0"});
  }
  DeviceId id = 0;
  if (const Code code = driver->api().cuDeviceGet(&id, index)) return driver->error("cuDeviceGet", code);
  int major = 0, minor = 0;
  driver->api().cuDeviceGetAttribute(&major, kAttributeCapabilityMajor, id);
  driver->api().cuDeviceGetAttribute(&minor, kAttributeCapabilityMinor, id);
  if (major * 10 + minor < kLeastCapability) {
    return unsupported({device_name(driver->api(), id), " has compute capability ", major, ".", minor,
                        "; quire needs 8.0 or later (Ampere): choose another --device"});
  }
  QUIRE_ASSIGN(std::shared_ptr<Session> session, Session::open(driver, index));
  auto device = std::make_unique<CudaDevice>(std::move(session), images, folder);
  QUIRE_TRY(device->start());
  return std::unique_ptr<gpu::Device>(std::move(device));
}

Result<std::vector<std::string>> list_devices() {
  QUIRE_ASSIGN(const std::shared_ptr<const Driver> driver, Driver::load());
  const DriverApi& api = driver->api();
  std::vector<std::string> out;
  for (int i = 0; i < driver->devices(); ++i) {
    DeviceId id = 0;
    int major = 0, minor = 0, units = 0;
    size_t bytes = 0;
    if (const Code code = api.cuDeviceGet(&id, i)) return driver->error("cuDeviceGet", code);
    api.cuDeviceGetAttribute(&major, kAttributeCapabilityMajor, id);
    api.cuDeviceGetAttribute(&minor, kAttributeCapabilityMinor, id);
    api.cuDeviceGetAttribute(&units, kAttributeMultiprocessors, id);
    api.cuDeviceTotalMem_v2(&bytes, id);
    char text[160];
    std::snprintf(text, sizeof text, " (%s, %d multiprocessors, %.1f GiB, driver for %s)",
                  capability_name(major * 10 + minor).c_str(), units, static_cast<double>(bytes) / (1 << 30),
                  driver->version_text().c_str());
    out.push_back(device_name(api, id) + text);
  }
  return out;
}

}  // namespace quire::cuda
