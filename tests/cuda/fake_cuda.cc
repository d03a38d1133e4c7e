// SPDX-License-Identifier: Apache-2.0
// The fake driver: host memory, work as a list of functions, and kernels from a table by name.
#include "fake_cuda.h"

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <sstream>

#include "backend/cuda/driver_api.h"
#include "fake_state.h"

namespace quire::fake {
namespace {

using namespace quire::cuda;  // NOLINT: the driver's own spelling

constexpr Code kInvalidContext = 201, kInvalidHandle = 400, kCaptureUnsupported = 900;

struct Kernel {
  std::string name;
  int max_threads = 0, shared = 0, dynamic = 0, compiled_for = 0;
  std::vector<size_t> parameters;
};
struct LoadedModule {
  std::vector<std::unique_ptr<Kernel>> kernels;
};
struct FakeEvent {
  FakeStream* stream = nullptr;
  uint64_t position = 0;
};
struct FakeGraph {
  std::vector<Work> work;
};
struct Failure {
  Code code;
  int after;
  bool forever;
};

struct State {
  Settings settings;
  std::map<uintptr_t, size_t> device, host;
  size_t used = 0;
  std::map<std::string, Failure> failures;
  std::vector<Launch> launches;
  std::set<void*> handles;
  size_t graph_runs = 0;
  Code fault = kSuccess;  // of a kernel; it is sticky
  uint64_t generation = 0;
};
State state;
thread_local uint64_t current = 0;  // the generation whose context is current

Code enter(const char* symbol, bool needs_context = true) {
  const auto found = state.failures.find(symbol);
  if (found != state.failures.end() && found->second.after-- <= 0) {
    const Code code = found->second.code;
    if (!found->second.forever) state.failures.erase(found);
    return code;
  }
  if (needs_context && current != state.generation) return kInvalidContext;
  return state.fault;
}

template <typename T>
void* keep(T* object) {
  state.handles.insert(object);
  return object;
}
template <typename T>
Code drop(void* handle) {
  if (state.handles.erase(handle) == 0) return kInvalidHandle;
  delete static_cast<T*>(handle);
  return kSuccess;
}

bool inside(const std::map<uintptr_t, size_t>& blocks, uintptr_t at, size_t bytes) {
  auto next = blocks.upper_bound(at);
  if (next == blocks.begin()) return false;
  --next;
  return at + bytes <= next->first + next->second;
}

void* pointer(Address address) {
  return reinterpret_cast<void*>(address);
}

// What a kernel does when it runs: fill_f32(params {int n; float value}, out), twice_f32(params {int n}, out, in), and
// one that faults. All others do nothing.
void execute(const std::string& name, const std::vector<std::vector<char>>& arguments) {
  const auto buffer = [&](size_t i) {
    float* out = nullptr;
    std::memcpy(&out, arguments[i].data(), sizeof out);
    return out;
  };
  int n = 0;
  if (!arguments.empty() && arguments[0].size() >= sizeof n) std::memcpy(&n, arguments[0].data(), sizeof n);
  if (name == "fill_f32") {
    float value = 0;
    std::memcpy(&value, arguments[0].data() + sizeof n, sizeof value);
    for (int i = 0; i < n; ++i) buffer(1)[i] = value;
  } else if (name == "twice_f32") {
    for (int i = 0; i < n; ++i) buffer(1)[i] = 2 * buffer(2)[i];
  } else if (name == "fault") {
    state.fault = kIllegalAddress;
  }
}

}  // namespace

void queue(void* handle, Work work) {
  auto* stream = static_cast<FakeStream*>(handle);
  if (stream->capturing) {
    stream->captured.push_back(std::move(work));
  } else {
    stream->work.push_back(std::move(work));
    ++stream->queued;
  }
}

Code drain(FakeStream& stream, uint64_t until) {
  while (stream.done < until && !stream.work.empty()) {
    const Work work = std::move(stream.work.front());
    stream.work.pop_front();
    ++stream.done;
    if (state.fault == kSuccess) work();
  }
  return state.fault;
}

void reset(const Settings& settings) {
  const uint64_t generation = state.generation + 1;
  state = {};
  state.settings = settings;
  state.generation = generation;
  set_library({});
}
void fail(const std::string& symbol, int code, int after, bool forever) {
  state.failures[symbol] = {code, after, forever};
}
const std::vector<Launch>& launches() {
  return state.launches;
}
size_t device_blocks() {
  return state.device.size();
}
size_t host_blocks() {
  return state.host.size();
}
size_t handles() {
  return state.handles.size();
}
size_t graph_runs() {
  return state.graph_runs;
}

}  // namespace quire::fake

using namespace quire::cuda;  // NOLINT: as above
using namespace quire::fake;  // NOLINT

extern "C" {

Code cuInit(unsigned) {
  return enter("cuInit", false);
}
Code cuDriverGetVersion(int* version) {
  *version = state.settings.version;
  return kSuccess;
}
Code cuGetErrorName(Code code, const char** name) {
  *name = code == kOutOfMemory      ? "CUDA_ERROR_OUT_OF_MEMORY"
          : code == kIllegalAddress ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : code == kNoDevice       ? "CUDA_ERROR_NO_DEVICE"
                                    : nullptr;
  return *name == nullptr ? kInvalidValue : kSuccess;
}
Code cuGetErrorString(Code code, const char** text) {
  *text = code == kOutOfMemory ? "out of memory" : nullptr;
  return *text == nullptr ? kInvalidValue : kSuccess;
}
Code cuDeviceGetCount(int* count) {
  *count = state.settings.devices;
  return enter("cuDeviceGetCount", false);
}
Code cuDeviceGet(DeviceId* device, int index) {
  *device = index;
  return index < state.settings.devices ? kSuccess : kInvalidValue;
}
Code cuDeviceGetName(char* name, int bytes, DeviceId) {
  std::strncpy(name, "Fake GPU", static_cast<size_t>(bytes));
  return kSuccess;
}
Code cuDeviceTotalMem_v2(size_t* bytes, DeviceId) {
  *bytes = state.settings.memory;
  return kSuccess;
}
Code cuDeviceGetAttribute(int* value, int attribute, DeviceId) {
  const std::map<int, int> table = {{kAttributeMaxThreads, 1024},
                                    {kAttributeMultiprocessors, 132},
                                    {kAttributeCapabilityMajor, state.settings.capability / 10},
                                    {kAttributeCapabilityMinor, state.settings.capability % 10},
                                    {kAttributeSharedMemoryOptin, 232448}};
  const auto found = table.find(attribute);
  if (found == table.end()) return kInvalidValue;
  *value = found->second;
  return kSuccess;
}
Code cuDevicePrimaryCtxRetain(Context* context, DeviceId) {
  *context = &state;
  return enter("cuDevicePrimaryCtxRetain", false);
}
Code cuDevicePrimaryCtxRelease_v2(DeviceId) {
  return kSuccess;
}
Code cuCtxSetCurrent(Context context) {
  current = context == &state ? state.generation : 0;
  return kSuccess;
}
Code cuMemGetInfo_v2(size_t* free, size_t* total) {
  *total = state.settings.memory;
  *free = *total - state.used;
  return enter("cuMemGetInfo_v2");
}
Code cuMemAlloc_v2(Address* address, size_t bytes) {
  if (const Code code = enter("cuMemAlloc_v2")) return code;
  if (state.used + bytes > state.settings.memory) return kOutOfMemory;
  void* block = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(block, 0xee, bytes);
  state.device[reinterpret_cast<uintptr_t>(block)] = bytes;
  state.used += bytes;
  *address = reinterpret_cast<Address>(block);
  return kSuccess;
}
Code cuMemFree_v2(Address address) {
  for (void* handle : state.handles) {
    auto* stream = FakeStream::from(handle);
    if (stream != nullptr) drain(*stream, stream->queued);
  }
  const auto found = state.device.find(address);
  if (found == state.device.end()) return kInvalidValue;
  state.used -= found->second;
  state.device.erase(found);
  std::free(pointer(address));
  return kSuccess;
}
Code cuMemHostAlloc(void** address, size_t bytes, unsigned) {
  if (const Code code = enter("cuMemHostAlloc")) return code;
  *address = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  state.host[reinterpret_cast<uintptr_t>(*address)] = bytes;
  return kSuccess;
}
Code cuMemFreeHost(void* address) {
  if (state.host.erase(reinterpret_cast<uintptr_t>(address)) == 0) return kInvalidValue;
  std::free(address);
  return kSuccess;
}
Code cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, Stream stream) {
  if (const Code code = enter("cuMemcpyHtoDAsync_v2")) return code;
  if (!inside(state.device, to, bytes)) return kInvalidValue;
  queue(stream, [=] { std::memcpy(pointer(to), from, bytes); });
  return kSuccess;
}
Code cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, Stream stream) {
  if (const Code code = enter("cuMemcpyDtoHAsync_v2")) return code;
  if (!inside(state.device, from, bytes)) return kInvalidValue;
  queue(stream, [=] { std::memcpy(to, pointer(from), bytes); });
  return kSuccess;
}
Code cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Stream stream) {
  if (const Code code = enter("cuMemcpyDtoDAsync_v2")) return code;
  if (!inside(state.device, to, bytes) || !inside(state.device, from, bytes)) return kInvalidValue;
  queue(stream, [=] { std::memcpy(pointer(to), pointer(from), bytes); });
  return kSuccess;
}
Code cuMemsetD8Async(Address to, unsigned char value, size_t bytes, Stream stream) {
  if (const Code code = enter("cuMemsetD8Async")) return code;
  if (!inside(state.device, to, bytes)) return kInvalidValue;
  queue(stream, [=] { std::memset(pointer(to), value, bytes); });
  return kSuccess;
}
Code cuStreamCreate(Stream* stream, unsigned) {
  if (const Code code = enter("cuStreamCreate")) return code;
  *stream = keep(FakeStream::make());
  return kSuccess;
}
Code cuStreamDestroy_v2(Stream stream) {
  FakeStream::forget(stream);
  return drop<FakeStream>(stream);
}
Code cuStreamSynchronize(Stream handle) {
  if (const Code code = enter("cuStreamSynchronize")) return code;
  auto* stream = FakeStream::from(handle);
  if (stream == nullptr) return kInvalidHandle;
  if (stream->capturing) return kCaptureUnsupported;
  return drain(*stream, stream->queued);
}
Code cuStreamBeginCapture_v2(Stream handle, int) {
  if (const Code code = enter("cuStreamBeginCapture_v2")) return code;
  FakeStream::from(handle)->capturing = true;
  return kSuccess;
}
Code cuStreamEndCapture(Stream handle, GraphHandle* graph) {
  auto* stream = FakeStream::from(handle);
  if (!stream->capturing) return kCaptureUnsupported;
  stream->capturing = false;
  auto* out = new FakeGraph{std::move(stream->captured)};
  stream->captured.clear();
  *graph = keep(out);
  return enter("cuStreamEndCapture");
}
Code cuGraphInstantiateWithFlags(GraphExec* exec, GraphHandle graph, unsigned long long) {
  if (const Code code = enter("cuGraphInstantiateWithFlags")) return code;
  *exec = keep(new FakeGraph(*static_cast<FakeGraph*>(graph)));
  return kSuccess;
}
Code cuGraphLaunch(GraphExec exec, Stream stream) {
  if (const Code code = enter("cuGraphLaunch")) return code;
  ++state.graph_runs;
  for (const Work& work : static_cast<FakeGraph*>(exec)->work) queue(stream, work);
  return kSuccess;
}
Code cuGraphDestroy(GraphHandle graph) {
  return drop<FakeGraph>(graph);
}
Code cuGraphExecDestroy(GraphExec exec) {
  return drop<FakeGraph>(exec);
}
Code cuEventCreate(Event* event, unsigned) {
  if (const Code code = enter("cuEventCreate")) return code;
  *event = keep(new FakeEvent);
  return kSuccess;
}
Code cuEventDestroy_v2(Event event) {
  return drop<FakeEvent>(event);
}
Code cuEventRecord(Event event, Stream handle) {
  if (const Code code = enter("cuEventRecord")) return code;
  auto* stream = FakeStream::from(handle);
  if (stream->capturing) return kCaptureUnsupported;
  *static_cast<FakeEvent*>(event) = {stream, stream->queued};
  return kSuccess;
}
Code cuEventSynchronize(Event handle) {
  if (const Code code = enter("cuEventSynchronize")) return code;
  const auto* event = static_cast<FakeEvent*>(handle);
  return event->stream == nullptr ? kSuccess : drain(*event->stream, event->position);
}

Code cuEventQuery(Event handle) {
  if (const Code code = enter("cuEventQuery")) return code;
  const auto* event = static_cast<FakeEvent*>(handle);
  return event->stream == nullptr || event->stream->done >= event->position ? kSuccess : kNotReady;
}

// An image is text: the compute capability that it is for (0: any), then lines with a kernel's name, threads, bytes of
// threadgroup memory, and bytes of each parameter.
Code cuModuleLoadData(Module* module, const void* image) {
  if (const Code code = enter("cuModuleLoadData")) return code;
  std::istringstream text(static_cast<const char*>(image));
  int capability = -1;
  text >> capability;
  if (capability < 0) return kInvalidImage;
  if (capability != 0 && capability != state.settings.capability) return kNoBinaryForGpu;
  auto loaded = std::make_unique<LoadedModule>();
  std::string line;
  std::getline(text, line);
  while (std::getline(text, line)) {
    std::istringstream words(line);
    auto kernel = std::make_unique<Kernel>();
    kernel->compiled_for = capability == 0 ? 80 : capability;
    words >> kernel->name >> kernel->max_threads >> kernel->shared;
    for (size_t bytes = 0; words >> bytes;) kernel->parameters.push_back(bytes);
    loaded->kernels.push_back(std::move(kernel));
  }
  *module = keep(loaded.release());
  return kSuccess;
}
Code cuModuleUnload(Module module) {
  return drop<LoadedModule>(module);
}
Code cuModuleGetFunction(Function* function, Module module, const char* name) {
  if (const Code code = enter("cuModuleGetFunction")) return code;
  for (const auto& kernel : static_cast<LoadedModule*>(module)->kernels) {
    if (kernel->name == name) {
      *function = kernel.get();
      return kSuccess;
    }
  }
  return kNotFound;
}
Code cuModuleGetFunctionCount(unsigned* count, Module module) {
  if (const Code code = enter("cuModuleGetFunctionCount")) return code;
  *count = static_cast<unsigned>(static_cast<LoadedModule*>(module)->kernels.size());
  return kSuccess;
}
Code cuModuleEnumerateFunctions(Function* functions, unsigned count, Module module) {
  for (unsigned i = 0; i < count; ++i) functions[i] = static_cast<LoadedModule*>(module)->kernels[i].get();
  return kSuccess;
}
Code cuFuncGetName(const char** name, Function function) {
  *name = static_cast<Kernel*>(function)->name.c_str();
  return kSuccess;
}
// A tensor map just stores what it was made from: address, sizes, strides, box, and type and swizzle in one word.
// Kernels of the fake do not read it.
Code cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* address, const uint64_t* sizes,
                            const uint64_t* strides, const unsigned* box, const unsigned* steps, int interleave,
                            int swizzle, int promotion, int fill) {
  if (const Code code = enter("cuTensorMapEncodeTiled")) return code;
  const auto at = reinterpret_cast<uintptr_t>(address);
  if (reinterpret_cast<uintptr_t>(map) % 64 != 0 || at % 16 != 0 || rank < 3 || rank > 5 ||
      interleave != kTensorMapPlain || fill != kTensorMapFillZero || promotion != kTensorMapPromote256) {
    return kInvalidValue;
  }
  std::vector<uint64_t> words = {at};
  words.insert(words.end(), sizes, sizes + rank);
  words.insert(words.end(), strides, strides + rank - 1);
  words.insert(words.end(), box, box + rank);
  words.push_back(static_cast<uint64_t>(type) | static_cast<uint64_t>(swizzle) << 32);
  for (unsigned i = 0; i < rank; ++i) {
    if (sizes[i] == 0 || box[i] == 0 || box[i] > 256 || steps[i] != 1) return kInvalidValue;
    if (i + 1 < rank && (strides[i] == 0 || strides[i] % 16 != 0)) return kInvalidValue;
  }
  std::memcpy(map, words.data(), words.size() * sizeof(uint64_t));
  return kSuccess;
}
Code cuFuncGetParamInfo(Function function, size_t index, size_t* offset, size_t* bytes) {
  const auto& parameters = static_cast<Kernel*>(function)->parameters;
  if (index >= parameters.size()) return kInvalidValue;
  *offset = 0;
  *bytes = parameters[index];
  return kSuccess;
}
Code cuFuncGetAttribute(int* value, int attribute, Function function) {
  const auto* kernel = static_cast<Kernel*>(function);
  *value = attribute == kFunctionMaxThreads   ? kernel->max_threads
           : attribute == kFunctionPtxVersion ? kernel->compiled_for
                                              : kernel->shared;
  return kSuccess;
}
Code cuFuncSetAttribute(Function function, int attribute, int value) {
  auto* kernel = static_cast<Kernel*>(function);
  if (attribute != kFunctionMaxDynamicShared || value + kernel->shared > 232448) return kInvalidValue;
  kernel->dynamic = value;
  return kSuccess;
}
Code cuLaunchKernelEx(const LaunchConfig* config, Function function, void** parameters, void**) {
  if (const Code code = enter("cuLaunchKernelEx")) return code;
  const auto* kernel = static_cast<Kernel*>(function);
  const unsigned most = static_cast<unsigned>(std::max(kernel->dynamic, 49152 - kernel->shared));
  if (config->shared_bytes > most) return kInvalidValue;
  std::vector<std::vector<char>> arguments;
  for (size_t i = 0; i < kernel->parameters.size(); ++i) {
    const char* from = static_cast<const char*>(parameters[i]);
    arguments.emplace_back(from, from + kernel->parameters[i]);
  }
  bool overlaps = false;
  for (unsigned i = 0; i < config->num_attributes; ++i) {
    overlaps |= config->attributes[i].id == kLaunchProgrammaticSerialization &&
                config->attributes[i].value.programmatic_serialization_allowed == 1;
  }
  state.launches.push_back({kernel->name,
                            {config->grid_x, config->grid_y, config->grid_z},
                            config->block_x,
                            config->shared_bytes,
                            overlaps,
                            FakeStream::from(config->stream)->capturing,
                            kernel->parameters});
  queue(config->stream, [name = kernel->name, arguments = std::move(arguments)] { execute(name, arguments); });
  return kSuccess;
}

}  // extern "C"

// Each entry point has the type that the caller expects.
#define QUIRE_SAME(symbol, parameters) static_assert(std::is_same_v<decltype(&symbol), decltype(DriverApi::symbol)>);
QUIRE_CUDA_FUNCTIONS(QUIRE_SAME)
QUIRE_CUDA_OPTIONAL_FUNCTIONS(QUIRE_SAME)
