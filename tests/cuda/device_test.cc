// SPDX-License-Identifier: Apache-2.0
// The CUDA device on the fake driver: opening, memory, launches, marks, graphs, and error messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "backend/cuda/cuda_device.h"
#include "backend/cuda/driver_api.h"
#include "fake_cuda.h"

namespace quire::cuda {
namespace {

using testing::HasSubstr;

struct FillParams {
  int n;
  float value;
};
struct TwiceParams {
  int n;
};

const Image kImages[] = {
    {"hopper", "90\nwide_f32 384 1024 8 8\nfill_f32 256 0 8 8\n"},
    {"other", "100\nonly_there 128 0 8 8\n"},
    {"portable", "0\nfill_f32 256 0 8 8\ntwice_f32 256 64 4 8 8\nfault 32 0 4\n"},
};

class CudaDevice : public testing::Test {
 protected:
  void SetUp() override {
    setenv("QUIRE_LIBCUDA", std::getenv("QUIRE_FAKE_CUDA"), 1);
    for (const char* name : {"QUIRE_CUDA_PDL", "QUIRE_CUDA_SYNC"}) unsetenv(name);
    fake::reset();
  }
  void TearDown() override {
    device_.reset();
    EXPECT_EQ(fake::device_blocks(), 0u);
    EXPECT_EQ(fake::host_blocks(), 0u);
    EXPECT_EQ(fake::handles(), 0u);
  }
  gpu::Device& open(const fake::Settings& settings = {}) {
    device_.reset();
    fake::reset(settings);
    auto device = open_device(0, kImages);
    EXPECT_TRUE(device.ok()) << device.error().message;
    device_ = std::move(device).value();
    return *device_;
  }
  static std::string refusal(int index = 0, std::span<const Image> images = kImages) {
    const auto device = open_device(index, images);
    return device.ok() ? "it opened" : device.error().message;
  }
  void fill(void* out, int n, float value) {
    const FillParams params = {n, value};
    void* const buffers[] = {out};
    device_->launch(launch_of("fill_f32", params, buffers, 32));
  }
  void twice(void* out, void* in, int n) {
    const TwiceParams params = {n};
    void* const buffers[] = {out, in};
    gpu::Launch launch = launch_of("twice_f32", params, buffers, 64);
    launch.grid = {3, 2, 1};
    device_->launch(launch);
  }
  template <typename Params>
  gpu::Launch launch_of(const char* kernel, const Params& params, std::span<void* const> buffers, uint32_t threads) {
    gpu::Launch out;
    out.kernel = device_->kernel(kernel).value();
    out.params = &params;
    out.params_bytes = sizeof params;
    out.buffers = buffers;
    out.threads = threads;
    return out;
  }
  float first(const void* address) {
    float out = -1;
    device_->download(&out, address, sizeof out);
    EXPECT_TRUE(device_->synchronise().ok());
    return out;
  }

  std::unique_ptr<gpu::Device> device_;
};

TEST_F(CudaDevice, SaysWhyItDoesNotOpen) {
  setenv("QUIRE_LIBCUDA", "libno_such_driver.so.1", 1);
  EXPECT_THAT(refusal(), HasSubstr("no NVIDIA driver found (libno_such_driver.so.1)"));
  EXPECT_THAT(refusal(0, {}), HasSubstr("this build has no CUDA kernels"));
  setenv("QUIRE_LIBCUDA", "libm.so.6", 1);
  EXPECT_THAT(refusal(), HasSubstr("driver is too old"));
  setenv("QUIRE_LIBCUDA", std::getenv("QUIRE_FAKE_CUDA"), 1);
  fake::reset({.devices = 0});
  EXPECT_THAT(refusal(), HasSubstr("no NVIDIA GPU is visible"));
  fake::reset();
  fake::fail("cuInit", kNoDevice);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("cuInit failed with CUDA_ERROR_NO_DEVICE"), HasSubstr("CUDA 13.0")));
  fake::reset();
  EXPECT_THAT(refusal(3), HasSubstr("no CUDA device 3: this machine has 1"));
  fake::reset({.capability = 75});
  EXPECT_THAT(refusal(), HasSubstr("compute capability 7.5; quire needs 8.0"));
  fake::reset();
  fake::fail("cuModuleLoadData", kUnsupportedPtxVersion, 0, true);
  EXPECT_THAT(refusal(), HasSubstr("newer than the NVIDIA driver; update it"));
  fake::reset({.capability = 89});
  const Image hopper_alone[] = {kImages[0]};
  EXPECT_THAT(refusal(0, hopper_alone), HasSubstr("no kernels for this GPU"));
  fake::reset();
  fake::fail("cuStreamCreate", kOutOfMemory, 1);
  EXPECT_THAT(refusal(), HasSubstr("cuStreamCreate failed with CUDA_ERROR_OUT_OF_MEMORY"));
}

TEST_F(CudaDevice, DescribesItself) {
  const gpu::DeviceInfo& info = open().info();
  EXPECT_EQ(info.name, "Fake GPU");
  EXPECT_EQ(info.architecture, "sm_90");
  EXPECT_EQ(info.compute_units, 132);
  EXPECT_EQ(info.max_threadgroup_memory, 232448u);
  EXPECT_TRUE(info.graphs && info.asynchronous && !info.unified);
  EXPECT_THAT(list_devices().value(),
              testing::ElementsAre("Fake GPU (sm_90, 132 multiprocessors, 0.2 GiB, driver for CUDA 13.0)"));
}

TEST_F(CudaDevice, FindsKernelsInAnyImageThatFits) {
  gpu::Device& device = open();
  EXPECT_EQ(device.kernel("wide_f32").value()->max_threads(), 384);
  EXPECT_EQ(device.kernel("fill_f32").value(), device.kernel("fill_f32").value());
  EXPECT_THAT(device.kernel("only_there").error().message, HasSubstr("no CUDA kernel named 'only_there'"));
  EXPECT_THAT(device.kernel_names(), testing::ElementsAre("fault", "fill_f32", "twice_f32", "wide_f32"));
}

TEST_F(CudaDevice, LoadsOnlyTheImageThatListsAKernel) {
  gpu::Device& device = open();
  fake::fail("cuModuleGetFunction", kInvalidValue, 1, true);
  EXPECT_TRUE(device.has_kernel("wide_f32") && !device.has_kernel("only_there")) << "the lists are enough";
  EXPECT_TRUE(device.kernel("twice_f32").ok()) << "in the last image alone";
  EXPECT_THAT(device.kernel("wide_f32").error().message, HasSubstr("cuModuleGetFunction failed"));
}

TEST_F(CudaDevice, FindsKernelsByNameWhereTheDriverDoesNotListThem) {
  fake::fail("cuModuleGetFunctionCount", kInvalidValue, 0, true);
  device_ = open_device(0, kImages).value();
  gpu::Device& device = *device_;
  EXPECT_TRUE(device.has_kernel("wide_f32") && !device.has_kernel("only_there"));
  EXPECT_TRUE(device.kernel("wide_f32").ok() && device.kernel("fill_f32").ok());
  EXPECT_THAT(device.kernel("only_there").error().message, HasSubstr("no CUDA kernel named 'only_there'"));
  EXPECT_THAT(device.kernel_names(), testing::ElementsAre("fill_f32", "wide_f32"));
}

TEST_F(CudaDevice, GivesZeroedMemoryAndTakesItBack) {
  gpu::Device& device = open();
  const size_t before = device.free_bytes();
  auto memory = device.allocate(1024).value();
  EXPECT_EQ(first(memory->address()), 0.0f);
  EXPECT_EQ(device.free_bytes(), before - 1024);
  const auto none = device.allocate(size_t{1} << 32);
  EXPECT_THAT(none.error().message,
              AllOf(HasSubstr("cuMemAlloc failed with CUDA_ERROR_OUT_OF_MEMORY (out of memory)"),
                    HasSubstr("4.00 GiB were asked for and 0.25 GiB are free"), HasSubstr("--kv-cache-memory-bytes")));
  EXPECT_EQ(none.error().code, ErrorCode::kExhausted);
  EXPECT_TRUE(device.synchronise().ok()) << "running out of memory is not final";
  memory.reset();
  EXPECT_EQ(device.free_bytes(), before);
}

TEST_F(CudaDevice, RunsWorkInOrder) {
  gpu::Device& device = open();
  const auto a = device.allocate(64).value(), b = device.allocate(64).value();
  fill(a->address(), 16, 3);
  twice(b->address(), a->address(), 16);
  fill(a->address(), 16, 5);
  EXPECT_EQ(first(b->address()), 6.0f);
  EXPECT_EQ(first(static_cast<float*>(a->address()) + 15), 5.0f);
  device.copy(b->address(), a->address(), 64);
  device.fill(a->address(), 0, 32);
  EXPECT_EQ(first(b->address()), 5.0f);
  EXPECT_EQ(first(a->address()), 0.0f);
  ASSERT_EQ(fake::launches().size(), 3u);
  const fake::Launch& second = fake::launches()[1];
  EXPECT_EQ(second.kernel, "twice_f32");
  EXPECT_THAT(second.grid, testing::ElementsAre(3, 2, 1));
  EXPECT_EQ(second.threads, 64u);
}

TEST_F(CudaDevice, CopiesWhatIsUploadedFromOrdinaryMemoryBeforeItReturns) {
  gpu::Device& device = open();
  const size_t count = 5'000'000;  // five pieces of the staging memory, in four places
  const auto memory = device.allocate(count * 4).value();
  std::vector<uint32_t> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<uint32_t>(i * 2654435761u);
  const std::vector<uint32_t> kept = values;
  device.upload(memory->address(), values.data(), count * 4);
  std::fill(values.begin(), values.end(), 0);
  device.download(values.data(), memory->address(), count * 4);
  ASSERT_TRUE(device.synchronise().ok());
  EXPECT_TRUE(values == kept);
}

TEST_F(CudaDevice, ReadsPinnedMemoryWhenItsTurnComes) {
  gpu::Device& device = open();
  const auto memory = device.allocate(16).value(), host = device.allocate_host(16).value();
  auto* value = static_cast<float*>(host->address());
  *value = 1;
  device.upload(memory->address(), value, 4);
  *value = 2;  // breaks the contract, and shows: nothing was copied in between
  EXPECT_EQ(first(memory->address()), 2.0f);
}

TEST_F(CudaDevice, WaitsForAMarkWithoutWhatComesAfter) {
  gpu::Device& device = open();
  EXPECT_TRUE(device.wait(0).ok());
  const auto memory = device.allocate(64).value(), host = device.allocate_host(8).value();
  auto* values = static_cast<float*>(host->address());
  fill(memory->address(), 1, 1);
  device.download(&values[0], memory->address(), 4);
  const uint64_t early = device.mark();
  fill(memory->address(), 1, 2);
  device.download(&values[1], memory->address(), 4);
  const uint64_t late = device.mark();
  ASSERT_TRUE(device.wait(early).ok());
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[1], 0.0f);
  ASSERT_TRUE(device.wait(late).ok());
  EXPECT_EQ(values[1], 2.0f);
  for (int i = 0; i < 200; ++i) device.mark();
  EXPECT_TRUE(device.wait(early).ok());
}

TEST_F(CudaDevice, SaysWhetherTheQueueHasPassedItsProbe) {
  gpu::Device& device = open();
  EXPECT_TRUE(device.probe_passed()) << "there is none yet";
  const auto memory = device.allocate(64).value();
  fill(memory->address(), 1, 1);
  device.set_probe();
  std::thread([&] { EXPECT_FALSE(device.probe_passed()); }).join();
  ASSERT_TRUE(device.synchronise().ok());
  std::thread([&] { EXPECT_TRUE(device.probe_passed()); }).join();
  fill(memory->address(), 1, 2);
  EXPECT_TRUE(device.probe_passed()) << "this work came after it";
  device.set_probe();
  EXPECT_FALSE(device.probe_passed());
}

TEST_F(CudaDevice, RecordsAStepAndRunsItAgain) {
  gpu::Device& device = open();
  const auto a = device.allocate(64).value(), b = device.allocate(64).value(), host = device.allocate_host(4).value();
  auto* value = static_cast<float*>(host->address());
  device.begin_recording();
  device.upload(a->address(), value, 4);
  twice(b->address(), a->address(), 1);
  twice(b->address(), b->address(), 1);
  const auto more = device.allocate(64).value();  // zeroed outside the recording
  auto graph = device.end_recording();
  ASSERT_TRUE(graph.ok()) << graph.error().message;
  EXPECT_EQ(first(b->address()), 0.0f) << "recorded, not run";
  for (const float start : {1.0f, 10.0f}) {
    *value = start;
    device.run(**graph);
    EXPECT_EQ(first(b->address()), 4 * start);
  }
  EXPECT_EQ(fake::graph_runs(), 2u);
  EXPECT_EQ(first(more->address()), 0.0f);
  EXPECT_TRUE(fake::launches()[0].captured && fake::launches()[1].captured);
}

TEST_F(CudaDevice, LosesARecordingThatFailsAndNothingElse) {
  gpu::Device& device = open();
  const auto a = device.allocate(64).value();
  device.begin_recording();
  fake::fail("cuLaunchKernelEx", kInvalidValue);
  fill(a->address(), 16, 3);
  const auto graph = device.end_recording();
  ASSERT_FALSE(graph.ok());
  EXPECT_THAT(graph.error().message, HasSubstr("'fill_f32' of 1 x 1 x 1 threadgroups of 32 threads"));
  fill(a->address(), 16, 4);
  EXPECT_EQ(first(a->address()), 4.0f);
}

// Another library's work (NCCL's) goes into the device's stream, between two launches that then do not overlap.
TEST_F(CudaDevice, QueuesTheWorkOfAnotherLibrary) {
  gpu::Device& device = open();
  const auto a = device.allocate(64).value();
  void* stream = nullptr;
  fill(a->address(), 1, 1);
  device.queue([&](void* given) {
    stream = given;
    return Status();
  });
  fill(a->address(), 1, 1);
  EXPECT_NE(stream, nullptr);
  EXPECT_FALSE(fake::launches()[1].overlaps);
  device.begin_recording();
  device.queue([](void*) { return Status(unavailable("the other library says no")); });
  EXPECT_THAT(device.end_recording().error().message, HasSubstr("says no"));
  EXPECT_TRUE(device.synchronise().ok());
  device.queue([](void*) { return Status(unavailable("the link is down")); });
  EXPECT_EQ(device.synchronise().error().message, "the link is down");
}

TEST_F(CudaDevice, OverlapsAKernelThatFollowsOneAndWaitsByItself) {
  for (const bool expected : {true, false}) {
    open({.capability = expected ? 90 : 80});
    const auto a = device_->allocate(64).value();
    fill(a->address(), 1, 1);
    fill(a->address(), 1, 1);
    twice(a->address(), a->address(), 1);  // compiled for older GPUs: it does not wait for the preceding launch
    device_->fill(a->address(), 0, 4);
    fill(a->address(), 1, 1);
    device_->mark();  // after a kernel it changes nothing
    fill(a->address(), 1, 1);
    device_->fill(a->address(), 0, 4);
    device_->mark();
    fill(a->address(), 1, 1);
    std::vector<bool> overlaps;
    for (const fake::Launch& launch : fake::launches()) overlaps.push_back(launch.overlaps);
    EXPECT_THAT(overlaps, testing::ElementsAre(false, expected, false, false, expected, false));
  }
  setenv("QUIRE_CUDA_PDL", "0", 1);
  open();
  const auto a = device_->allocate(64).value();
  fill(a->address(), 1, 1);
  fill(a->address(), 1, 1);
  EXPECT_FALSE(fake::launches()[1].overlaps);
}

TEST_F(CudaDevice, AllowsAKernelAsMuchMemoryAsItAsksFor) {
  gpu::Device& device = open();
  const auto a = device.allocate(64).value();
  const FillParams params = {1, 1};
  void* const buffers[] = {a->address()};
  gpu::Launch launch = launch_of("wide_f32", params, buffers, 384);
  launch.dynamic_memory = 200 << 10;
  device.launch(launch);
  ASSERT_TRUE(device.synchronise().ok());
  EXPECT_EQ(fake::launches()[0].dynamic_bytes, 200u << 10);
  launch.dynamic_memory = 240 << 10;
  device.launch(launch);
  EXPECT_THAT(device.synchronise().error().message,
              HasSubstr("'wide_f32' wants 246784 bytes of threadgroup memory and the GPU has 232448"));
}

TEST_F(CudaDevice, DescribesRowsForTheCopyEngine) {
  gpu::Device& device = open();
  const auto a = device.allocate(4096).value();
  alignas(64) uint64_t map[16] = {};
  const gpu::RowsMap rows = {
      .data = a->address(), .rows = 10, .cols = 128, .stride = 136, .halves = 2, .box = 16, .box_halves = 2};
  ASSERT_TRUE(device.map_rows(rows, map));
  // The tensor map as the fake stores it: address, sizes, strides in bytes, box, type and swizzle.
  const uint64_t kind = kTensorMapUint16 | uint64_t{kTensorMapSwizzle128} << 32;
  EXPECT_THAT(std::vector<uint64_t>(map, map + 10),
              testing::ElementsAre(reinterpret_cast<uintptr_t>(a->address()), 128, 5, 2, 272, 1360, 64, 16, 2, kind));
  fake::fail("cuTensorMapEncodeTiled", kInvalidValue);
  EXPECT_FALSE(device.map_rows(rows, map));
  EXPECT_TRUE(device.synchronise().ok()) << "the device still works";
}

TEST_F(CudaDevice, DescribesPagesForTheCopyEngine) {
  gpu::Device& device = open();
  const auto a = device.allocate(4096).value();
  alignas(64) uint64_t map[16] = {};
  const gpu::PagesMap pages = {.data = a->address(),
                               .page_stride = 1296,
                               .num_pages = 3,
                               .block_size = 24,
                               .heads = 2,
                               .head_dim = 128,
                               .box_rows = 8};
  ASSERT_TRUE(device.map_pages(pages, map));
  const uint64_t kind = kTensorMapUint16 | uint64_t{kTensorMapSwizzle128} << 32;
  EXPECT_THAT(std::vector<uint64_t>(map, map + 16),
              testing::ElementsAre(reinterpret_cast<uintptr_t>(a->address()), 64, 24, 2, 2, 3, 512, 128, 256, 1296, 64,
                                   8, 2, 1, 1, kind));
  fake::fail("cuTensorMapEncodeTiled", kInvalidValue);
  EXPECT_FALSE(device.map_pages(pages, map));
  EXPECT_TRUE(device.synchronise().ok()) << "the device still works";
}

TEST_F(CudaDevice, KeepsTheFirstFault) {
  for (const bool each : {false, true}) {
    if (each) setenv("QUIRE_CUDA_SYNC", "1", 1);
    gpu::Device& device = open();
    const TwiceParams params = {0};
    device.launch(launch_of("fault", params, {}, 32));
    const Status status = device.synchronise();
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().message, HasSubstr("cuStreamSynchronize failed with CUDA_ERROR_ILLEGAL_ADDRESS"));
    EXPECT_THAT(status.error().message, HasSubstr(each ? "after 'fault'" : "QUIRE_CUDA_SYNC=1"));
    EXPECT_EQ(device.synchronise().error().message, status.error().message);
    EXPECT_FALSE(device.wait(device.mark()).ok());
  }
}

TEST_F(CudaDevice, MayBeUsedByOneThreadAfterAnother) {
  gpu::Device& device = open();
  const auto a = device.allocate(64).value();
  std::thread([&] { fill(a->address(), 16, 7); }).join();
  EXPECT_EQ(first(a->address()), 7.0f);
}

using CudaDeviceDeathTest = CudaDevice;

TEST_F(CudaDeviceDeathTest, StopsAtMisuse) {
  setenv("QUIRE_CUDA_SYNC", "1", 1);  // then too few buffers are found as well
  gpu::Device& device = open();
  const auto a = device.allocate(64).value();
  float value = 0;
  EXPECT_DEATH(device.download(&value, static_cast<std::byte*>(a->address()) + 64, 4), "lies in no block");
  EXPECT_DEATH(device.fill(&value, 0, 4), "lies in no block");
  const TwiceParams params = {1};
  void* const one[] = {a->address()};
  EXPECT_DEATH(device.launch(launch_of("twice_f32", params, one, 32)), "twice_f32");
  void* const three[] = {a->address(), a->address(), a->address()};
  EXPECT_DEATH(device.launch(launch_of("twice_f32", params, three, 32)), "twice_f32");
  device.begin_recording();
  EXPECT_DEATH(device.upload(a->address(), &value, 4), "must be of allocate_host");
  EXPECT_DEATH((void)device.synchronise(), "while it is recorded");
  EXPECT_TRUE(device.end_recording().ok());
}

}  // namespace
}  // namespace quire::cuda
