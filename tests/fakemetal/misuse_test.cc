// SPDX-License-Identifier: Apache-2.0
// What the fake of Metal refuses: each misuse once, through metal-cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "backend/metal/metal_cpp.h"
#include "fake_metal.h"
#include "kernels/params/gather.h"

namespace {

using quire::metal::AutoreleasePool;

constexpr const char* kText =
    "[[kernel, max_total_threads_per_threadgroup(256)]] void gather_rows_f32( constant int& p [[buffer(0)]]) {}";

NS::String* ns(const char* text) {
  return NS::String::string(text, NS::UTF8StringEncoding);
}

NS::SharedPtr<MTL::Device> first_device() {
  const auto all = NS::TransferPtr(MTL::CopyAllDevices());
  return NS::RetainPtr(all->object<MTL::Device>(0));
}

NS::SharedPtr<MTL::Library> compile(MTL::Device* device, const char* text, bool fast, std::string* log) {
  auto options = NS::TransferPtr(MTL::CompileOptions::alloc()->init());
  options->setLanguageVersion(MTL::LanguageVersion3_1);
  options->setFastMathEnabled(fast);
  NS::Error* error = nullptr;
  auto library = NS::TransferPtr(device->newLibrary(ns(text), options.get(), &error));
  if (error != nullptr && log != nullptr) *log = error->localizedDescription()->utf8String();
  return library;
}

// A queue and everything that a dispatch of gather_rows_f32 needs.
class FakeMetal : public testing::Test {
 protected:
  AutoreleasePool pool_;
  NS::SharedPtr<MTL::Device> device_ = first_device();
  NS::SharedPtr<MTL::CommandQueue> queue_ = NS::TransferPtr(device_->newCommandQueue());
  NS::SharedPtr<MTL::Buffer> buffer_ = NS::TransferPtr(device_->newBuffer(4096, MTL::ResourceStorageModeShared));
  GatherRowsParams params_{4, 4, 1, 4, 32};

  NS::SharedPtr<MTL::ComputePipelineState> pipeline(std::string* log = nullptr) {
    const auto library = compile(device_.get(), kText, false, nullptr);
    auto descriptor = NS::TransferPtr(MTL::ComputePipelineDescriptor::alloc()->init());
    const auto function = NS::TransferPtr(library->newFunction(ns("gather_rows_f32")));
    descriptor->setComputeFunction(function.get());
    NS::Error* error = nullptr;
    auto made =
        NS::TransferPtr(device_->newComputePipelineState(descriptor.get(), MTL::PipelineOptionNone, nullptr, &error));
    if (error != nullptr && log != nullptr) *log = error->localizedDescription()->utf8String();
    return made;
  }

  // An encoder in which everything is bound except the buffers from index `bound` on.
  MTL::ComputeCommandEncoder* ready(MTL::CommandBuffer* command, int bound = 4) {
    auto* encoder = command->computeCommandEncoder(MTL::DispatchTypeSerial);
    const auto made = pipeline();
    encoder->setComputePipelineState(made.get());
    encoder->setBytes(&params_, sizeof params_, 0);
    for (int i = 1; i < bound; i++) encoder->setBuffer(buffer_.get(), 0, static_cast<NS::UInteger>(i));
    return encoder;
  }
};

TEST_F(FakeMetal, RunsCorrectUse) {
  auto* values = static_cast<float*>(buffer_->contents());
  for (int i = 0; i < 16; i++) values[16 + i] = static_cast<float>(i);
  reinterpret_cast<int*>(values)[512] = 2;
  auto* command = queue_->commandBuffer();
  auto* encoder = ready(command);
  encoder->setBufferOffset(64, 2);
  encoder->setBufferOffset(2048, 3);
  encoder->dispatchThreadgroups(MTL::Size(1, 1, 1), MTL::Size(32, 1, 1));
  encoder->endEncoding();
  command->commit();
  command->waitUntilCompleted();
  EXPECT_EQ(command->status(), MTL::CommandBufferStatusCompleted);
  EXPECT_EQ(values[0], 8.0f);
  EXPECT_EQ(values[3], 11.0f);
}

TEST_F(FakeMetal, RefusesADispatchThatLacksSomething) {
  const MTL::Size one(1, 1, 1), group(32, 1, 1);
  EXPECT_DEATH(ready(queue_->commandBuffer(), 3)->dispatchThreadgroups(one, group), "nothing is bound at index 3");
  EXPECT_DEATH(ready(queue_->commandBuffer())->dispatchThreadgroups(one, MTL::Size(512, 1, 1)), "512 threads");
  EXPECT_DEATH(ready(queue_->commandBuffer())->dispatchThreadgroups(one, MTL::Size(48, 1, 1)), "whole simdgroups");
  EXPECT_DEATH(ready(queue_->commandBuffer())->dispatchThreadgroups(MTL::Size(1, 0, 1), group), "empty grid");
  auto* bare = queue_->commandBuffer()->computeCommandEncoder(MTL::DispatchTypeSerial);
  EXPECT_DEATH(bare->dispatchThreadgroups(one, group), "without a pipeline");
  auto* small = ready(queue_->commandBuffer());
  small->setBytes(&params_, 8, 0);
  EXPECT_DEATH(small->dispatchThreadgroups(one, group), "8 are bound");
  bare->endEncoding();
  small->endEncoding();
}

TEST_F(FakeMetal, RefusesMoreThanAGpuHas) {
  const auto refusal = [&](const char* text) {
    std::string log;
    EXPECT_FALSE(static_cast<bool>(compile(device_.get(), text, false, &log)));
    return log;
  };
  EXPECT_THAT(refusal("[[kernel, max_total_threads_per_threadgroup(1056)]] void gather_rows_f32( int p) {}"),
              testing::HasSubstr("max_total_threads_per_threadgroup is 1056, the most is 1024"));
  EXPECT_THAT(refusal("[[kernel]] void gather_rows_f32( device int* p [[buffer(31)]]) {}"),
              testing::HasSubstr("buffer is 31, the most is 30"));
  std::string log;
  fakemetal::set_thread_limit("gather_rows_f32", 1056);
  EXPECT_FALSE(static_cast<bool>(pipeline(&log)));
  EXPECT_THAT(log, testing::HasSubstr("1056 threads in a threadgroup (the most are 1024)"));
  fakemetal::set_thread_limit("gather_rows_f32", 256);
  fakemetal::set_threadgroup_memory("gather_rows_f32", 32784);
  EXPECT_FALSE(static_cast<bool>(pipeline(&log)));
  EXPECT_THAT(log, testing::HasSubstr("32784 bytes of threadgroup memory"));
  fakemetal::set_threadgroup_memory("gather_rows_f32", 32768);
  EXPECT_TRUE(static_cast<bool>(pipeline()));
  // What an encoder adds counts, too.
  const MTL::Size one(1, 1, 1), group(32, 1, 1);
  fakemetal::set_threadgroup_memory("gather_rows_f32", 16384);
  auto* encoder = ready(queue_->commandBuffer());
  EXPECT_DEATH(encoder->setThreadgroupMemoryLength(20, 0), "no multiple of 16");
  encoder->setThreadgroupMemoryLength(8192, 0);
  encoder->setThreadgroupMemoryLength(8208, 1);
  EXPECT_DEATH(encoder->dispatchThreadgroups(one, group), "32784 bytes of threadgroup memory, the most are 32768");
  encoder->setThreadgroupMemoryLength(8192, 1);
  encoder->dispatchThreadgroups(one, group);
  encoder->endEncoding();
  fakemetal::set_threadgroup_memory("gather_rows_f32", 16);
}

// A kernel reaches a buffer that is not bound, by an address: here the row's number leads from one buffer to another.
TEST_F(FakeMetal, RefusesBuffersThatAreNotResident) {
  auto base = NS::TransferPtr(device_->newBuffer(4096, MTL::ResourceStorageModeShared));
  auto hidden = NS::TransferPtr(device_->newBuffer(4096, MTL::ResourceStorageModeShared));
  if (hidden->gpuAddress() < base->gpuAddress()) std::swap(base, hidden);  // the kernel passes over negative rows
  static_cast<float*>(hidden->contents())[0] = 5;
  auto* values = static_cast<float*>(buffer_->contents());
  const auto bytes = static_cast<int64_t>(hidden->gpuAddress() - base->gpuAddress());
  reinterpret_cast<int*>(values)[512] = static_cast<int>(bytes / 16);  // a row is 4 floats
  const auto run = [&](bool used) {
    values[0] = 0;
    auto* command = queue_->commandBuffer();
    auto* encoder = ready(command);
    encoder->setBuffer(base.get(), 0, 2);
    encoder->setBufferOffset(2048, 3);
    if (used) encoder->useResource(hidden.get(), MTL::ResourceUsageRead);
    encoder->dispatchThreadgroups(MTL::Size(1, 1, 1), MTL::Size(32, 1, 1));
    encoder->endEncoding();
    command->commit();
    command->waitUntilCompleted();
    return values[0];
  };
  const char* const words = "gather_rows_f32: touches a buffer of 4096 bytes that is not resident";
  EXPECT_DEATH(run(false), words);
  EXPECT_EQ(run(true), 5);
  EXPECT_DEATH(run(false), words) << "only that command buffer used it";
  auto descriptor = NS::TransferPtr(MTL::ResidencySetDescriptor::alloc()->init());
  auto set = NS::TransferPtr(device_->newResidencySet(descriptor.get(), nullptr));
  set->addAllocation(hidden.get());
  queue_->addResidencySet(set.get());
  EXPECT_DEATH(run(false), words) << "the set is not committed";
  set->commit();
  EXPECT_EQ(run(false), 5);
  queue_->removeResidencySet(set.get());
  EXPECT_DEATH(run(false), words) << "the queue does not have the set any more";
}

TEST_F(FakeMetal, RefusesBadBindings) {
  auto* encoder = ready(queue_->commandBuffer());
  std::array<char, 5000> bytes{};
  EXPECT_DEATH(encoder->setBuffer(buffer_.get(), 4096, 1), "offset 4096 is beyond its 4096 bytes");
  EXPECT_DEATH(encoder->setBufferOffset(5000, 1), "offset 5000 is beyond");
  EXPECT_DEATH(encoder->setBufferOffset(0, 9), "no buffer is bound");
  EXPECT_DEATH(encoder->setBytes(bytes.data(), bytes.size(), 0), "setBytes of 5000 bytes");
  EXPECT_DEATH(encoder->setBuffer(buffer_.get(), 0, 31), "index 31");
  encoder->endEncoding();
  EXPECT_DEATH(encoder->setBuffer(buffer_.get(), 0, 1), "after endEncoding");
  EXPECT_DEATH(encoder->dispatchThreadgroups(MTL::Size(1, 1, 1), MTL::Size(32, 1, 1)), "after endEncoding");
  EXPECT_DEATH(encoder->endEncoding(), "endEncoding twice");
}

TEST_F(FakeMetal, RefusesBadCopies) {
  auto* blit = queue_->commandBuffer()->blitCommandEncoder();
  MTL::Buffer* const b = buffer_.get();
  EXPECT_DEATH(blit->copyFromBuffer(b, 0, b, 64, 128), "overlap");
  EXPECT_DEATH(blit->copyFromBuffer(b, 4000, b, 0, 128), "beyond the buffer's end");
  EXPECT_DEATH(blit->copyFromBuffer(b, 0, b, 130, 4), "whole words");
  EXPECT_DEATH(blit->fillBuffer(b, NS::Range(0, 7), 1), "whole words");
  EXPECT_DEATH(blit->fillBuffer(b, NS::Range(0, 0), 1), "no bytes");
  blit->endEncoding();
}

TEST_F(FakeMetal, RefusesCommandBuffersInTheWrongOrder) {
  auto* command = queue_->commandBuffer();
  EXPECT_DEATH(command->waitUntilCompleted(), "before commit");
  auto* encoder = command->blitCommandEncoder();
  EXPECT_DEATH(command->commit(), "open encoder");
  EXPECT_DEATH(command->blitCommandEncoder(), "another one of the command buffer is open");
  encoder->endEncoding();
  command->commit();
  EXPECT_DEATH(command->commit(), "committed before");
  EXPECT_DEATH(command->blitCommandEncoder(), "was committed");
  command->waitUntilCompleted();
  const auto forget = [this] {
    const AutoreleasePool inner;
    queue_->commandBuffer()->blitCommandEncoder();
  };
  EXPECT_DEATH(forget(), "without endEncoding");
  const auto hoard = [this] {
    for (int i = 0; i < 100; i++) queue_->commandBuffer();
  };
  EXPECT_DEATH(hoard(), "more than 64");
}

TEST_F(FakeMetal, WatchesReferences) {
  const auto late = [this] {
    MTL::Buffer* gone = device_->newBuffer(16, MTL::ResourceStorageModeShared);
    gone->release();
    gone->contents();
  };
  EXPECT_DEATH(late(), "message contents to an object that was released");
  const long before = fakemetal::objects_alive();
  MTL::Buffer* leaked = device_->newBuffer(16, MTL::ResourceStorageModeShared);
  EXPECT_EQ(fakemetal::objects_alive(), before + 1);
  EXPECT_THAT(fakemetal::objects_alive_by_class(), testing::HasSubstr("2 MTLBuffer"));
  leaked->release();
  EXPECT_EQ(fakemetal::objects_alive(), before);
}

TEST(FakeMetalWithoutAPool, RefusesAutorelease) {
  const auto device = first_device();
  EXPECT_DEATH(device->name(), "without a pool");
}

TEST_F(FakeMetal, RefusesWhatItDoesNotKnow) {
  EXPECT_DEATH(device_->newFence(), "newFence\\] is unknown to the fake");
  EXPECT_DEATH(device_->newBuffer(0, MTL::ResourceStorageModeShared), "no bytes");
  std::string log;
  EXPECT_FALSE(static_cast<bool>(compile(device_.get(), "\n[[kernel]] void no_such_kernel(int x) {}", false, &log)));
  EXPECT_THAT(log, testing::HasSubstr("program_source:2:1: error: the emulator has no kernel 'no_such_kernel'"));
  EXPECT_FALSE(static_cast<bool>(compile(device_.get(), "[[kernel]] void gather_rows_f32(", false, &log)));
  EXPECT_FALSE(static_cast<bool>(compile(device_.get(), "{", false, &log)));
  EXPECT_THAT(log, testing::HasSubstr("expected '}'"));
  EXPECT_DEATH(compile(device_.get(), kText, true, nullptr), "fast math");
}

TEST_F(FakeMetal, HasOnlyWhatItsSystemHas) {
  const auto on_an_old_system = [] {
    setenv("FAKE_METAL_MACOS", "14", 1);
    auto options = NS::TransferPtr(MTL::CompileOptions::alloc()->init());
    options->setMathMode(MTL::MathModeSafe);
  };
  EXPECT_DEATH(on_an_old_system(), "setMathMode: needs macOS 15, this is macOS 14");
}

}  // namespace
