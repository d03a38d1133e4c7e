// SPDX-License-Identifier: Apache-2.0
// Groups of GPUs over NCCL: on a fake of it, and with QUIRE_TEST_DEVICE=cuda on the machine's GPUs, one rank each.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "backend/cuda/driver.h"
#include "backend/gpu/exchange.h"
#include "backend/gpu/gpu_backend.h"
#include "base/env.h"
#include "distributed/device_group.h"
#include "distributed/group_contract.h"

namespace quire::distributed {
namespace {

bool on_gpus() {
  return env("QUIRE_TEST_DEVICE").value_or("") == "cuda";
}

// One rank's memory and stream: a GPU's, or the host's for the fake.
class Memory {
 public:
  explicit Memory(int rank) {
    if (!on_gpus()) return;
    driver_ = cuda::Driver::load().value();
    cuda::Context context = nullptr;
    call(api().cuDevicePrimaryCtxRetain(&context, rank));
    call(api().cuCtxSetCurrent(context));
    call(api().cuStreamCreate(&stream_, cuda::kStreamNonBlocking));
  }
  ~Memory() {
    if (driver_ == nullptr) return;
    for (const auto& [address, bytes] : blocks_) api().cuMemFree_v2(reinterpret_cast<cuda::Address>(address));
    api().cuStreamDestroy_v2(stream_);
  }

  void* make(size_t bytes) {
    void* out = nullptr;
    if (driver_ == nullptr) {
      host_.emplace_back(bytes);
      out = host_.back().data();
    } else {
      call(api().cuMemAlloc_v2(reinterpret_cast<cuda::Address*>(&out), bytes));
    }
    blocks_.emplace_back(out, bytes);
    return out;
  }
  void write(void* to, std::span<const uint32_t> words) {
    if (driver_ == nullptr) {
      std::memcpy(to, words.data(), words.size_bytes());
    } else {
      call(api().cuMemcpyHtoDAsync_v2(reinterpret_cast<cuda::Address>(to), words.data(), words.size_bytes(), stream_));
      wait();
    }
  }
  std::vector<uint32_t> read(const void* from, size_t count) {
    std::vector<uint32_t> out(count);
    if (driver_ == nullptr) {
      std::memcpy(out.data(), from, count * sizeof(uint32_t));
    } else {
      call(api().cuMemcpyDtoHAsync_v2(out.data(), reinterpret_cast<cuda::Address>(from), count * sizeof(uint32_t),
                                      stream_));
      wait();
    }
    return out;
  }
  void wait() {
    if (driver_ != nullptr) call(api().cuStreamSynchronize(stream_));
  }
  void* stream() const { return stream_; }
  const cuda::DriverApi& api() const { return driver_->api(); }
  static void call(cuda::Code code) { QUIRE_CHECK(code == cuda::kSuccess); }

 private:
  std::shared_ptr<const cuda::Driver> driver_;
  cuda::Stream stream_ = nullptr;
  std::vector<std::vector<std::byte>> host_;
  std::vector<std::pair<void*, size_t>> blocks_;
};

class Nccl : public testing::Test {
 protected:
  void SetUp() override {
    if (!on_gpus()) setenv("QUIRE_LIBNCCL", std::getenv("QUIRE_FAKE_NCCL"), 1);
  }
  static int ranks() { return on_gpus() ? cuda::Driver::load().value()->devices() : 3; }
};

// Runs `rank` on a thread with a GPU for each rank.
template <typename Rank>
void on_ranks(int size, const Rank& rank) {
  std::vector<std::unique_ptr<Group>> groups = make_thread_group(size);
  std::vector<std::jthread> threads;
  for (const std::unique_ptr<Group>& group : groups) {
    threads.emplace_back([&rank, &group] {
      Memory memory(group->rank());
      auto devices = make_nccl_group(*group);
      QUIRE_CHECK(devices.ok(), devices.ok() ? "" : devices.error().message.c_str());
      if constexpr (requires { rank(**devices, memory, *group); }) {
        rank(**devices, memory, *group);
      } else {
        rank(**devices, memory);
      }
      memory.wait();
      group->barrier();
    });
  }
}

void check_device_contract(DeviceGroup& group, Memory& memory, int round, size_t count) {
  const int size = group.size(), rank = group.rank();
  const size_t bytes = count * sizeof(uint32_t);
  const std::vector<uint32_t> mine = contract_words(rank, round, count);
  auto* all = static_cast<std::byte*>(memory.make(bytes * static_cast<size_t>(size)));
  std::byte* own = all + bytes * static_cast<size_t>(rank);
  void* apart = memory.make(bytes);
  memory.write(apart, mine);
  for (const void* from : {static_cast<const void*>(apart), static_cast<const void*>(own)}) {
    ASSERT_TRUE(group.all_gather(from, all, bytes, memory.stream()).ok());
    for (int r = 0; r < size; ++r) {
      EXPECT_EQ(memory.read(all + bytes * static_cast<size_t>(r), count), contract_words(r, round, count));
    }
  }
  const int root = round % size;
  ASSERT_TRUE(group.broadcast(apart, bytes, root, memory.stream()).ok());
  EXPECT_EQ(memory.read(apart, count), contract_words(root, round, count));
  // Along a line, from each rank to the next.
  if (rank > 0) {
    ASSERT_TRUE(group.receive(apart, bytes, rank - 1, memory.stream()).ok());
    EXPECT_EQ(memory.read(apart, count), contract_words(rank - 1, round, count));
  }
  if (rank + 1 < size) {
    ASSERT_TRUE(group.send(own, bytes, rank + 1, memory.stream()).ok());
  }
  memory.wait();
  EXPECT_TRUE(group.check().ok());
}

TEST_F(Nccl, MovesBytesBetweenRanks) {
  on_ranks(ranks(), [](DeviceGroup& group, Memory& memory) {
    EXPECT_NE(group.describe().find("(NCCL 2."), std::string::npos) << group.describe();
    for (int round = 0; round < 5; ++round) {
      check_device_contract(group, memory, round, 1 + static_cast<size_t>(round) * 4001);
    }
  });
}

// As a model does it: columns of all ranks side by side, by the backend of a device, in a step that is recorded and runs
// again with other values.
TEST_F(Nccl, GathersColumnsInARecordedStep) {
  on_ranks(ranks(), [](DeviceGroup& group, Memory&, Group& host) {
    constexpr int64_t kRows = 5, kColumns = 24;
    auto opened = on_gpus() ? gpu::open_cuda(group.rank()) : gpu::open_emulator();
    ASSERT_TRUE(opened.ok());
    gpu::GpuBackend backend(std::move(*opened));
    auto devices = make_nccl_group(host);
    ASSERT_TRUE(devices.ok());
    auto exchange = gpu::GpuExchange::make(backend, std::move(*devices), size_t{1} << 20);
    ASSERT_TRUE(exchange.ok());
    const int64_t all_columns = group.size() * kColumns;
    const auto memory = backend.allocate(static_cast<size_t>(kRows * (kColumns + all_columns)) * 4);
    auto* at = static_cast<float*>((*memory)->data());
    const Tensor mine{at, DType::kF32, kRows, kColumns, kColumns};
    const Tensor all{at + kRows * kColumns, DType::kF32, kRows, all_columns, all_columns};
    (*exchange)->gather_columns(mine, all);  // the first call may do what cannot be recorded
    backend.synchronise();
    backend.device().begin_recording();
    (*exchange)->gather_columns(mine, all);
    const auto graph = backend.device().end_recording();
    ASSERT_TRUE(graph.ok());
    for (int round = 0; round < 3; ++round) {
      const auto value = [&](int64_t row, int64_t column) {
        return static_cast<float>(1000 * round + 100 * row + column);
      };
      std::vector<float> own;
      for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t c = 0; c < kColumns; ++c) own.push_back(value(r, group.rank() * kColumns + c));
      }
      backend.write(mine.data, std::as_bytes(std::span(own)));
      backend.device().run(**graph);
      const std::span<const float> got = backend.read(all);
      for (int64_t i = 0; i < kRows * all_columns; ++i) {
        ASSERT_EQ(got[static_cast<size_t>(i)], value(i / all_columns, i % all_columns)) << "round " << round;
      }
    }
  });
}

// A graph replays gathers, as a decode step does.
// Aborting frees the communicator, which must not be destroyed after that.
TEST_F(Nccl, AnAbortedGroupIsNotDestroyedAgain) {
  on_ranks(ranks(), [](DeviceGroup& group, Memory&) {
    group.abort();
    group.abort();
  });
}

TEST_F(Nccl, GathersInsideAGraph) {
  if (!on_gpus()) GTEST_SKIP() << "needs a GPU and QUIRE_TEST_DEVICE=cuda";
  constexpr int kCalls = 10;
  constexpr size_t kCount = 4096;
  on_ranks(ranks(), [](DeviceGroup& group, Memory& memory) {
    auto* all = static_cast<std::byte*>(memory.make(kCount * 4 * static_cast<size_t>(group.size())));
    void* mine = memory.make(kCount * 4);
    const cuda::DriverApi& api = memory.api();
    cuda::GraphHandle graph = nullptr;
    cuda::GraphExec exec = nullptr;
    Memory::call(api.cuStreamBeginCapture_v2(memory.stream(), cuda::kCaptureRelaxed));
    for (int i = 0; i < kCalls; ++i) ASSERT_TRUE(group.all_gather(mine, all, kCount * 4, memory.stream()).ok());
    Memory::call(api.cuStreamEndCapture(memory.stream(), &graph));
    Memory::call(api.cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int launch = 0; launch < 2; ++launch) {  // new bytes through the same graph
      memory.write(mine, contract_words(group.rank(), launch, kCount));
      Memory::call(api.cuGraphLaunch(exec, memory.stream()));
      for (int r = 0; r < group.size(); ++r) {
        EXPECT_EQ(memory.read(all + static_cast<size_t>(r) * kCount * 4, kCount), contract_words(r, launch, kCount));
      }
    }
    Memory::call(api.cuGraphExecDestroy(exec));
    Memory::call(api.cuGraphDestroy(graph));
  });
}

// Says what a gather costs inside a graph, for Qwen3-8B's columns before o and down, in bfloat16.
TEST_F(Nccl, PrintsTheCostOfAGatherInsideAGraph) {
  if (!on_gpus()) GTEST_SKIP() << "needs a GPU and QUIRE_TEST_DEVICE=cuda";
  constexpr int kCalls = 100, kLaunches = 20;
  on_ranks(ranks(), [](DeviceGroup& group, Memory& memory) {
    constexpr size_t kMostBytes = size_t{2048} * 12288 * 2;
    auto* all = static_cast<std::byte*>(memory.make(kMostBytes));
    void* mine = memory.make(kMostBytes);
    const cuda::DriverApi& api = memory.api();
    for (const size_t columns : {4096, 12288}) {
      for (const size_t rows : {1, 64, 2048}) {
        const size_t bytes = rows * columns * 2 / static_cast<size_t>(group.size());
        cuda::GraphHandle graph = nullptr;
        cuda::GraphExec exec = nullptr;
        Memory::call(api.cuStreamBeginCapture_v2(memory.stream(), cuda::kCaptureRelaxed));
        for (int i = 0; i < kCalls; ++i) ASSERT_TRUE(group.all_gather(mine, all, bytes, memory.stream()).ok());
        Memory::call(api.cuStreamEndCapture(memory.stream(), &graph));
        Memory::call(api.cuGraphInstantiateWithFlags(&exec, graph, 0));
        Memory::call(api.cuGraphLaunch(exec, memory.stream()));
        memory.wait();
        const auto begin = std::chrono::steady_clock::now();
        for (int launch = 0; launch < kLaunches; ++launch) Memory::call(api.cuGraphLaunch(exec, memory.stream()));
        memory.wait();
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        if (group.rank() == 0) {
          std::printf("%s: gather of %zu rows of %zu columns (%zu bytes per rank): %.2f us inside a graph\n",
                      group.describe().c_str(), rows, columns, bytes, seconds / kCalls / kLaunches * 1e6);
        }
        Memory::call(api.cuGraphExecDestroy(exec));
        Memory::call(api.cuGraphDestroy(graph));
      }
    }
  });
}

// What each of `size` ranks is told when the group cannot be made.
std::vector<std::string> refusals(int size) {
  std::vector<std::string> out(static_cast<size_t>(size));
  std::vector<std::unique_ptr<Group>> groups = make_thread_group(size);
  {
    std::vector<std::jthread> threads;
    for (const std::unique_ptr<Group>& group : groups) {
      threads.emplace_back([&out, &group] {
        const auto made = make_nccl_group(*group);
        out[static_cast<size_t>(group->rank())] = made.ok() ? "" : made.error().message;
      });
    }
  }
  return out;
}

TEST_F(Nccl, SaysWhatToInstall) {
  setenv("QUIRE_LIBNCCL", "libnccl-of-nobody.so.2", 1);
  for (const std::string& refusal : refusals(2)) {
    EXPECT_EQ(refusal,
              "several GPUs need NVIDIA's library NCCL, but libnccl-of-nobody.so.2 cannot be loaded: install NVIDIA's "
              "package libnccl2, or name the file in QUIRE_LIBNCCL");
  }
  unsetenv("QUIRE_LIBNCCL");
}

TEST_F(Nccl, SaysWhyRanksCannotJoin) {
  if (on_gpus()) GTEST_SKIP() << "the fake refuses a group of 7";
  for (const std::string& refusal : refusals(7)) {
    EXPECT_EQ(refusal, "ncclCommInitRank failed: invalid argument (the fake says no); NCCL_DEBUG=INFO shows more");
  }
}

}  // namespace
}  // namespace quire::distributed
