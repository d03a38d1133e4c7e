// SPDX-License-Identifier: Apache-2.0
// The Metal driver on the fake of Metal: order of work, copies, limits, compiled kernels, failures.
//
// Run twice, the second time with FAKE_METAL_DEFER=1: then nothing runs before somebody waits for it, so whatever reads
// or overwrites too early gets wrong numbers.
#include "backend/metal/metal_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "backend/emulator/emulator.h"
#include "backend/gpu/gpu_backend.h"
#include "base/env.h"
#include "base/test_folder.h"
#include "fake_metal.h"
#include "kernels/compat/dialect.h"
#include "kernels/params/gather.h"

namespace quire::metal {
namespace {

using gpu::Device;
using gpu::Kernel;
using gpu::Memory;
using testing::HasSubstr;

constexpr kernels::EmbeddedText kTexts[] = {
    {"first",
     "[[kernel, max_total_threads_per_threadgroup(256)]] void gather_rows_f32( constant int& p [[buffer(0)]]) {}"},
    {"second", "[[kernel, max_total_threads_per_threadgroup(256)]] void copy_pages( constant int& p [[buffer(0)]]) {}"},
    {"broken", "\n\n[[kernel]] void never_written( constant int& p) {}"},
};

bool deferred() {
  return std::getenv("FAKE_METAL_DEFER") != nullptr;
}

std::unique_ptr<Device> open_here(const std::filesystem::path& folder = {}) {
  auto device = open({0, kTexts, folder});
  EXPECT_TRUE(device.ok()) << (device.ok() ? "" : device.error().message);
  return std::move(*device);
}

class MetalDevice : public testing::Test {
 protected:
  void SetUp() override { device_ = open_here(); }
  // No Metal object may be alive after a test.
  void TearDown() override {
    memory_.clear();
    device_.reset();
    EXPECT_EQ(fakemetal::objects_alive(), 0) << fakemetal::objects_alive_by_class();
  }

  float* floats(size_t count, float first = 0, bool host = false) {
    auto made = host ? device_->allocate_host(count * 4) : device_->allocate(count * 4);
    EXPECT_TRUE(made.ok());
    memory_.push_back(std::move(*made));
    auto* values = static_cast<float*>(memory_.back()->address());
    std::vector<float> start(count);
    std::iota(start.begin(), start.end(), first);
    device_->upload(values, start.data(), count * 4);
    return values;
  }
  int* ints(const std::vector<int>& values) {
    memory_.push_back(device_->allocate(values.size() * 4).value());
    device_->upload(memory_.back()->address(), values.data(), values.size() * 4);
    return static_cast<int*>(memory_.back()->address());
  }
  // out[i] = in[index[i]], rows of `cols` floats.
  void gather(float* out, const float* in, const int* index, int rows, int cols) {
    const auto kernel = device_->kernel("gather_rows_f32");
    ASSERT_TRUE(kernel.ok()) << kernel.error().message;
    const GatherRowsParams params{cols, cols, rows, cols, 32};
    void* const buffers[] = {out, const_cast<float*>(in), const_cast<int*>(index)};
    device_->launch({*kernel, &params, sizeof params, buffers, {static_cast<uint32_t>(rows), 1, 1}, 32, 0});
  }

  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<Memory>> memory_;
};

TEST_F(MetalDevice, DescribesItself) {
  const gpu::DeviceInfo& info = device_->info();
  EXPECT_EQ(info.api, gpu::Api::kMetal);
  EXPECT_EQ(info.name, "Apple M0 (fake)");
  EXPECT_EQ(info.architecture, "apple7");
  EXPECT_EQ(info.max_threads, 1024);
  EXPECT_EQ(info.max_threadgroup_memory, 32768u);
  EXPECT_EQ(info.memory_bytes, size_t{4} << 30);
  EXPECT_EQ(info.working_set_bytes, size_t{2} << 30);
  EXPECT_TRUE(info.unified && info.asynchronous && !info.graphs);
  EXPECT_THAT(device_->kernel_names(), testing::UnorderedElementsAre("copy_pages", "gather_rows_f32", "never_written"));
}

TEST_F(MetalDevice, BindsAnyAddressInsideABlock) {
  float* in = floats(64, 100);
  float* out = floats(64);
  const int* index = ints({9, 9, 1, 0});
  gather(out + 8, in + 4, index + 2, 2, 4);
  ASSERT_TRUE(device_->synchronise().ok());
  EXPECT_EQ(out[7], 7);
  EXPECT_EQ(out[8], 108);
  EXPECT_EQ(out[12], 104);
  EXPECT_EQ(out[16], 16);
}

TEST_F(MetalDevice, AcceptsANullBufferThatTheKernelDoesNotRead) {
  const auto kernel = device_->kernel("gather_rows_f32");
  const GatherRowsParams params{4, 4, 0, 4, 32};  // no rows
  void* const buffers[] = {nullptr, nullptr, nullptr};
  device_->launch({*kernel, &params, sizeof params, buffers, {1, 1, 1}, 32, 0});
  EXPECT_TRUE(device_->synchronise().ok());
}

TEST_F(MetalDevice, AnUploadDoesNotOvertakeTheLaunchThatReadsTheOldValue) {
  for (const size_t count : {size_t{8}, size_t{1} << 19}) {  // 32 bytes are staged, 2 MiB wait for the queue
    for (const bool host : {false, true}) {
      float* in = floats(count, 1);
      float* before = floats(8);
      float* after = floats(8);
      float* fresh = floats(count, 1000, host);
      ASSERT_TRUE(device_->synchronise().ok());
      std::vector<float> stack(fresh, fresh + count);
      const int* index = ints({0});
      gather(before, in, index, 1, 8);
      device_->upload(in, host ? fresh : stack.data(), count * 4);
      if (!host) std::fill(stack.begin(), stack.end(), -1.0f);  // it was copied before the call returned
      gather(after, in, index, 1, 8);
      ASSERT_TRUE(device_->synchronise().ok());
      EXPECT_EQ(before[0], 1) << count;
      EXPECT_EQ(after[0], 1000) << count;
    }
  }
}

TEST_F(MetalDevice, ADownloadReadsTheStateAtItsPlaceInTheQueue) {
  for (const size_t bytes : {size_t{32}, size_t{30}, size_t{2} << 20}) {  // staged; not whole words; too large
    for (const bool host : {false, true}) {
      const size_t count = (bytes + 3) / 4;
      float* out = floats(count, 5);
      float* in = floats(count, 50);
      const int* index = ints({0});
      std::vector<float> stack(count, -1.0f);
      float* to = host ? floats(count, -1, true) : stack.data();
      ASSERT_TRUE(device_->synchronise().ok());
      gather(out, in, index, 1, 8);
      device_->download(to, out, bytes);
      gather(out, in + 4, index, 1, 4);
      ASSERT_TRUE(device_->synchronise().ok());
      EXPECT_EQ(to[0], 50) << bytes << host;
      EXPECT_EQ(to[6], 56) << bytes << host;
      EXPECT_EQ(out[0], 54) << bytes << host;
    }
  }
}

TEST_F(MetalDevice, CopiesAndFillsKeepTheirPlaceInTheQueue) {
  float* a = floats(16, 1);
  float* b = floats(16, 100);
  float* c = floats(16, 200);
  const int* index = ints({1, 0});
  gather(b, a, index, 2, 8);                                // b = a's halves, swapped
  device_->copy(c + 4, b, 32);                              // c[4..11] = a[8..15]
  device_->fill(b, 0, 32);                                  // after the copy
  device_->fill(reinterpret_cast<char*>(b) + 33, 0xff, 2);  // not whole words
  device_->copy(reinterpret_cast<char*>(c) + 1, reinterpret_cast<char*>(b) + 33, 2);
  ASSERT_TRUE(device_->synchronise().ok());
  EXPECT_EQ(c[4], 9);
  EXPECT_EQ(c[11], 16);
  EXPECT_EQ(b[0], 0);
  EXPECT_EQ(reinterpret_cast<unsigned char*>(c)[1], 0xff);
  EXPECT_EQ(reinterpret_cast<unsigned char*>(c)[2], 0xff);
  device_->fill(a, 0, 64);  // no work is in flight
  EXPECT_EQ(a[3], deferred() ? a[3] : 0);
  ASSERT_TRUE(device_->synchronise().ok());
  EXPECT_EQ(a[3], 0);
}

TEST_F(MetalDevice, AStepIsOneCommandBuffer) {
  float* a = floats(8);
  float* b = floats(8);
  const int* index = ints({0});
  ASSERT_TRUE(device_->synchronise().ok());
  const long before = fakemetal::counts().command_buffers;
  for (int i = 0; i < 200; i++) gather(b, a, index, 1, 8);
  EXPECT_EQ(fakemetal::counts().command_buffers, before);
  ASSERT_TRUE(device_->synchronise().ok());
  EXPECT_EQ(fakemetal::counts().command_buffers, before + 1);
  ASSERT_TRUE(device_->synchronise().ok());
  EXPECT_EQ(fakemetal::counts().command_buffers, before + 1) << "without work there is no command buffer";
  for (int i = 0; i < 600; i++) gather(b, a, index, 1, 8);
  ASSERT_TRUE(device_->synchronise().ok());
  EXPECT_EQ(fakemetal::counts().command_buffers, before + 4) << "a long step is divided";
}

TEST_F(MetalDevice, WaitsForAMarkAndNoFurther) {
  float* in = floats(32, 7);
  float* out = floats(8);
  const int* index = ints({0, 1, 2, 3});
  float first = 0, second = 0;
  ASSERT_TRUE(device_->synchronise().ok());
  gather(out, in, index, 1, 8);
  device_->download(&first, out, 4);
  const uint64_t mark = device_->mark();
  const long run = fakemetal::counts().dispatches;
  gather(out, in, index + 1, 1, 8);
  device_->download(&second, out, 4);
  const uint64_t later = device_->mark();
  EXPECT_GT(later, mark);
  ASSERT_TRUE(device_->wait(mark).ok());
  EXPECT_EQ(first, 7);
  if (deferred()) {
    EXPECT_EQ(fakemetal::counts().dispatches, run + 1);
    EXPECT_EQ(second, 0);
  }
  ASSERT_TRUE(device_->wait(later).ok());
  EXPECT_EQ(second, 15);
  EXPECT_TRUE(device_->wait(mark).ok()) << "a mark that has passed needs no wait";
}

TEST_F(MetalDevice, NeverHoldsMoreCommandBuffersThanAQueueHas) {
  float* a = floats(8);
  const int* index = ints({0});
  float* b = floats(8);
  for (int i = 0; i < 200; i++) {
    gather(b, a, index, 1, 8);
    device_->mark();
  }
  EXPECT_TRUE(device_->synchronise().ok());
}

TEST_F(MetalDevice, ABlockMayBeFreedWhileTheQueueStillReadsIt) {
  float* out = floats(8);
  const int* index = ints({0});
  auto block = device_->allocate(32).value();
  const float value = 3;
  device_->upload(block->address(), &value, 4);
  gather(out, static_cast<float*>(block->address()), index, 1, 1);
  block.reset();
  ASSERT_TRUE(device_->synchronise().ok());
  EXPECT_EQ(out[0], 3);
}

TEST_F(MetalDevice, ABlockMayOutliveTheDevice) {
  floats(8);
  device_.reset();
  memory_.clear();  // TearDown() checks what is left
}

TEST_F(MetalDevice, GivesZeroedMemory) {
  auto block = device_->allocate(4096).value();
  const auto* bytes = static_cast<const char*>(block->address());
  EXPECT_TRUE(std::all_of(bytes, bytes + 4096, [](char c) { return c == 0; }));
  EXPECT_NE(device_->allocate(0).value()->address(), nullptr);
}

TEST_F(MetalDevice, KeepsItsBlocksResident) {
  float* a = floats(1024);
  float* b = floats(1024);
  gather(b, a, ints({0}), 1, 8);
  ASSERT_TRUE(device_->synchronise().ok());
  EXPECT_EQ(fakemetal::counts().resident_bytes, 4096u + 4096u + 16u);
}

TEST_F(MetalDevice, RespectsTheWorkingSet) {
  const size_t used = device_->info().working_set_bytes - device_->free_bytes();
  fakemetal::set_working_set(used + (1 << 20));
  const auto refused = device_->allocate(2 << 20);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("--kv-cache-memory-bytes"));
  // Memory that queued work still holds is waited for before an allocation fails.
  auto block = device_->allocate(700 << 10).value();
  float* out = floats(8);
  gather(out, static_cast<float*>(block->address()), ints({0}), 1, 8);
  block.reset();
  EXPECT_TRUE(device_->allocate(700 << 10).ok());
  fakemetal::set_working_set(size_t{2} << 30);
  fakemetal::set_longest_buffer(1 << 20);
  const auto too_long = device_->allocate(2 << 20);
  ASSERT_FALSE(too_long.ok());
  EXPECT_THAT(too_long.error().message, HasSubstr("at most 0.00 GiB"));
  fakemetal::set_longest_buffer(size_t{1} << 30);
}

TEST_F(MetalDevice, ReportsTheCompilersLog) {
  for (int i = 0; i < 2; i++) {
    const auto broken = device_->kernel("never_written");
    ASSERT_FALSE(broken.ok());
    EXPECT_THAT(broken.error().message, HasSubstr("kernels of broken.h"));
    EXPECT_THAT(broken.error().message, HasSubstr("program_source:3:1: error: the emulator has no kernel"));
  }
  EXPECT_TRUE(device_->kernel("copy_pages").ok()) << "the other sources still compile";
  const auto unknown = device_->kernel("nowhere");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, ErrorCode::kNotFound);
}

TEST_F(MetalDevice, CompilesASourceOnceWhenItsFirstKernelIsNeeded) {
  const fakemetal::Counts before = fakemetal::counts();
  const auto first = device_->kernel("gather_rows_f32");
  const auto again = device_->kernel("gather_rows_f32");
  EXPECT_EQ(*first, *again);
  EXPECT_EQ(fakemetal::counts().libraries, before.libraries + 1);
  EXPECT_EQ(fakemetal::counts().pipelines, before.pipelines + 1);
}

TEST_F(MetalDevice, KnowsHowManyThreadsAKernelMayHave) {
  EXPECT_EQ((*device_->kernel("gather_rows_f32"))->max_threads(), 256);
  fakemetal::set_thread_limit("copy_pages", 192);
  EXPECT_EQ((*device_->kernel("copy_pages"))->max_threads(), 192);
  fakemetal::set_thread_limit("copy_pages", 256);
}

TEST_F(MetalDevice, AKernelWithTooMuchThreadgroupMemoryIsNamed) {
  fakemetal::set_threadgroup_memory("copy_pages", 40000);
  const auto refused = device_->kernel("copy_pages");
  fakemetal::set_threadgroup_memory("copy_pages", 16);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("could not compile the kernel copy_pages"));
  EXPECT_THAT(refused.error().message, HasSubstr("40000 bytes of threadgroup memory"));
}

// Metal's compiler may give a kernel fewer threads than its source asks for: that is reported, and nothing runs wrong.
TEST(MetalDeathTest, AnOpWhoseKernelGetsTooFewThreadsIsNamed) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  auto device = gpu::open_metal(0);
  ASSERT_TRUE(device.ok()) << device.error().message;
  gpu::GpuBackend backend(std::move(*device));
  const auto memory = backend.allocate(4096);
  ASSERT_TRUE(memory.ok());
  const Tensor row{(*memory)->data(), DType::kF32, 1, 256, 256};
  backend.scale({row, 2.0f, {}, row});
  backend.synchronise();
  EXPECT_DEATH(
      {
        fakemetal::set_thread_limit("rms_norm_f32_f32", 32);
        backend.rms_norm({row, row.f32(), 256, 1e-5f, row});
      },
      "the kernel rms_norm_f32_f32 runs with [0-9]+ threads in a threadgroup, but metal .* gives it 32");
}

TEST_F(MetalDevice, AFailureOfTheGpuIsReportedAndFinal) {
  float* a = floats(8, 1);
  float* b = floats(8);
  const int* index = ints({0});
  ASSERT_TRUE(device_->synchronise().ok());
  float got = -1;
  fakemetal::fail_next_command(8, "Insufficient Memory");
  gather(b, a, index, 1, 8);
  device_->download(&got, b, 4);
  const Status failed = device_->synchronise();
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, ErrorCode::kExhausted);
  EXPECT_THAT(failed.error().message, HasSubstr("Insufficient Memory"));
  EXPECT_EQ(got, -1);
  gather(b, a, index, 1, 8);
  EXPECT_FALSE(device_->wait(device_->mark()).ok());
}

// Compiled kernels are kept in a folder of the test's own.
class MetalArchive : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(fakemetal::objects_alive(), 0) << fakemetal::objects_alive_by_class(); }
  // What it costs to get a kernel in a new device.
  fakemetal::Counts ask(const char* kernel) {
    const fakemetal::Counts before = fakemetal::counts();
    EXPECT_TRUE(open_here(folder_)->kernel(kernel).ok());
    fakemetal::Counts now = fakemetal::counts();
    return {now.libraries - before.libraries, now.pipelines - before.pipelines, now.archive_hits - before.archive_hits};
  }
  const TempFolder temp_;
  const std::filesystem::path folder_ = temp_.path() / "archive";
};

TEST_F(MetalArchive, SavesTheNextStartFromCompiling) {
  EXPECT_EQ(ask("gather_rows_f32").pipelines, 1);
  EXPECT_EQ(ask("gather_rows_f32").pipelines, 0);
  EXPECT_EQ(ask("copy_pages").pipelines, 1) << "the archive grows";
  EXPECT_EQ(ask("gather_rows_f32").archive_hits, 1);
  EXPECT_EQ(ask("copy_pages").archive_hits, 1);
}

TEST_F(MetalArchive, ABadFileIsReplaced) {
  ask("gather_rows_f32");
  for (const auto& file : std::filesystem::directory_iterator(folder_)) std::ofstream(file.path()) << "nonsense";
  EXPECT_EQ(ask("gather_rows_f32").pipelines, 1);
  EXPECT_EQ(ask("gather_rows_f32").pipelines, 0);
}

TEST_F(MetalArchive, AFolderThatCannotBeWrittenIsOnlyALogLine) {
  std::ofstream(folder_) << "a file where a folder should be";
  EXPECT_EQ(ask("gather_rows_f32").pipelines, 1);
}

class OldSystem : public testing::Test {
 protected:
  void play(const char* macos) { setenv("FAKE_METAL_MACOS", macos, 1); }
  void TearDown() override {
    unsetenv("FAKE_METAL_MACOS");
    EXPECT_EQ(fakemetal::objects_alive(), 0) << fakemetal::objects_alive_by_class();
  }
};

TEST_F(OldSystem, Macos14WorksWithoutResidencySets) {
  play("14");
  const auto device = open_here();
  EXPECT_TRUE(device->kernel("copy_pages").ok());
  EXPECT_TRUE(device->allocate(64).ok());
  device->mark();
  EXPECT_TRUE(device->synchronise().ok());
}

TEST_F(OldSystem, Macos13IsRefusedInOneSentence) {
  play("13");
  const auto device = open({0, kTexts, {}});
  ASSERT_FALSE(device.ok());
  EXPECT_THAT(device.error().message, HasSubstr("macOS 14"));
}

TEST(OpenMetal, SaysWhichDevicesThereAre) {
  const auto device = open({3, kTexts, {}});
  ASSERT_FALSE(device.ok());
  EXPECT_THAT(device.error().message, HasSubstr("no Metal device 3"));
}

// This is the driver's open_metal(), not that of a build without Metal.
TEST(OpenMetal, HasEveryKernelOfTheEmulator) {
  const TempFolder home;
  setenv("QUIRE_HOME", home.path().c_str(), 1);
  {
    auto device = gpu::open_metal(0);
    ASSERT_TRUE(device.ok()) << device.error().message;
    std::vector<std::string> all;
    for (const emulator::KernelRecord* kernel : emulator::all_kernels()) all.push_back(kernel->name);
    EXPECT_THAT((*device)->kernel_names(), testing::UnorderedElementsAreArray(all));
    for (const std::string& name : all) {
      const auto kernel = (*device)->kernel(name);
      EXPECT_TRUE(kernel.ok()) << kernel.error().message;
    }
  }
  unsetenv("QUIRE_HOME");
  EXPECT_EQ(fakemetal::objects_alive(), 0) << fakemetal::objects_alive_by_class();
}

}  // namespace
}  // namespace quire::metal
