// SPDX-License-Identifier: Apache-2.0
// The thread pool, its memory, and the choice of CPUs and of an ISA level.
#include "backend/cpu/thread_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <numeric>

#include "backend/backend.h"
#include "backend/cpu/isa_level.h"
#include "backend/cpu/page_memory.h"
#include "backend/cpu/topology.h"
#include "base/test_folder.h"

namespace quire::cpu {
namespace {

TEST(ThreadPool, CallsEachThreadAtMostOnceARegionAndTheCallerAlways) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    std::vector<int> calls(static_cast<size_t>(threads));
    for (int i = 0; i < 2000; ++i) pool.run([&](int thread) { ++calls[static_cast<size_t>(thread)]; });
    EXPECT_EQ(calls[0], 2000);
    EXPECT_THAT(calls, testing::Each(testing::Le(2000)));
  }
}

TEST(ThreadPool, WorkersTakePartWhenThereIsTime) {
  ThreadPool pool(3);
  std::atomic<int> inside{0};
  pool.run([&](int) {
    ++inside;
    while (inside.load() < 3) std::this_thread::yield();  // ends only when all three have come
  });
  EXPECT_EQ(inside.load(), 3);
}

TEST(ThreadPool, GivesOutEveryPieceOnce) {
  ThreadPool pool(3);
  for (const int64_t count : {0, 1, 2, 7, 64, 1000}) {
    for (const int64_t grain : {1, 3, 64}) {
      std::vector<int> hits(static_cast<size_t>(count));
      pool.for_each_piece(count, grain, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
      });
      EXPECT_THAT(hits, testing::Each(1));
    }
  }
}

TEST(ThreadPool, WakesWorkersThatWentToSleep) {
  ThreadPool pool(3);
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // far beyond the spin
    std::atomic<int> inside{0};
    pool.run([&](int) {
      ++inside;
      while (inside.load() < 3) std::this_thread::yield();
    });
    EXPECT_EQ(inside.load(), 3);
  }
}

TEST(ThreadPool, KeepsSubnormalsOnEveryThread) {
  ThreadPool pool(4);
  std::vector<float> results(4);
  volatile float tiny = 1e-40f;
  std::atomic<int> inside{0};
  pool.run([&](int thread) {
    results[static_cast<size_t>(thread)] = tiny * 0.5f;
    ++inside;
    while (inside.load() < 4) std::this_thread::yield();
  });
  EXPECT_THAT(results, testing::Each(testing::Gt(0.0f)));
}

// A made-up /sys and /proc.
class FakeMachine {
 public:
  void write(const std::string& file, const std::string& text) const { root_.write(file, text + "\n"); }
  void write_cpu(int cpu, const std::string& file, const std::string& text) const {
    write("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/" + file, text);
  }
  CpuChoice choose(int cpus) const {
    std::vector<int> all(static_cast<size_t>(cpus));
    std::iota(all.begin(), all.end(), 0);
    return choose_cpus(root_.path(), all);
  }
  CpuChoice choose_of(const std::vector<int>& allowed) const { return choose_cpus(root_.path(), allowed); }

 private:
  const TempFolder root_;
};

TEST(Topology, TakesEveryCpuWhereNothingTellsThemApart) {
  const FakeMachine machine;
  const CpuChoice choice = machine.choose(6);
  EXPECT_EQ(choice.threads, 6);
  EXPECT_THAT(choice.cpus, testing::IsEmpty());
  EXPECT_EQ(choice.reason, "");
  EXPECT_GE(choose_cpus().threads, 1) << "the machine that runs this";
}

TEST(Topology, PrefersPerformanceCores) {
  const FakeMachine intel;  // two cores of two threads, and four small ones
  intel.write("sys/devices/cpu_core/cpus", "0-3");
  intel.write("sys/devices/cpu_atom/cpus", "4-7");
  for (const int cpu : {0, 1, 2, 3}) {
    intel.write_cpu(cpu, "topology/thread_siblings_list", cpu < 2 ? "0-1" : "2,3");
  }
  const CpuChoice choice = intel.choose(8);
  EXPECT_EQ(choice.threads, 2);
  EXPECT_THAT(choice.cpus, testing::ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(choice.reason, "2 threads on 8 CPUs: performance cores only, one thread a core; --threads overrides");
  EXPECT_EQ(intel.choose_of({5, 6, 7}).threads, 3) << "small cores are better than none";
}

TEST(Topology, ReadsCapacitiesAndFrequencies) {
  const FakeMachine arm;
  const char* capacities[] = {"160", "160", "160", "160", "870", "870", "870", "1024"};
  for (int cpu = 0; cpu < 8; ++cpu) arm.write_cpu(cpu, "cpu_capacity", capacities[cpu]);
  EXPECT_THAT(arm.choose(8).cpus, testing::ElementsAre(4, 5, 6, 7));
  const FakeMachine compact;
  for (int cpu = 0; cpu < 4; ++cpu) compact.write_cpu(cpu, "cpufreq/cpuinfo_max_freq", cpu < 2 ? "5000000" : "3300000");
  EXPECT_THAT(compact.choose(4).cpus, testing::ElementsAre(0, 1));
  compact.write_cpu(2, "cpufreq/cpuinfo_max_freq", "4800000");
  compact.write_cpu(3, "cpufreq/cpuinfo_max_freq", "4700000");
  EXPECT_THAT(compact.choose(4).cpus, testing::IsEmpty()) << "some boost a little higher: equal cores";
}

TEST(Topology, StaysInTheNodeWithTheMostCpus) {
  const FakeMachine machine;
  machine.write("sys/devices/system/node/online", "0-1");
  machine.write("sys/devices/system/node/node0/cpulist", "0-3");
  machine.write("sys/devices/system/node/node1/cpulist", "4-7");
  EXPECT_THAT(machine.choose(8).cpus, testing::ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(machine.choose_of({2, 3, 5, 6, 7}).cpus, testing::ElementsAre(5, 6, 7)) << "the affinity mask counts";
  EXPECT_THAT(machine.choose_of({2, 3}).cpus, testing::IsEmpty()) << "one node already";
}

TEST(Topology, KeepsBothThreadsOfASingleCore) {
  const FakeMachine machine;
  for (const int cpu : {0, 1}) machine.write_cpu(cpu, "topology/thread_siblings_list", "0-1");
  EXPECT_EQ(machine.choose(2).threads, 2);
  EXPECT_EQ(machine.choose_of({1}).threads, 1);
}

TEST(Topology, RespectsTheQuotaOfTheGroupAndThoseAboveIt) {
  const FakeMachine machine;
  machine.write("proc/self/cgroup", "0::/pods/one");
  machine.write("sys/fs/cgroup/pods/one/cpu.max", "max 100000");
  EXPECT_EQ(machine.choose(8).threads, 8);
  machine.write("sys/fs/cgroup/pods/cpu.max", "350000 100000");
  EXPECT_EQ(machine.choose(8).threads, 4);
  machine.write("sys/fs/cgroup/pods/one/cpu.max", "20000 100000");
  const CpuChoice choice = machine.choose(8);
  EXPECT_EQ(choice.threads, 1);
  EXPECT_THAT(choice.reason, testing::HasSubstr("1 thread on 8 CPUs: the control group's quota"));
  EXPECT_THAT(choice.cpus, testing::IsEmpty());
  const FakeMachine old;
  old.write("proc/self/cgroup", "3:cpu,cpuacct:/docker/x\n2:memory:/docker/x");
  old.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000");
  old.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(old.choose(8).threads, 2);
}

TEST(Topology, NonsenseInTheFilesChangesNothing) {
  const FakeMachine machine;
  machine.write("sys/devices/cpu_core/cpus", "zero to three");
  machine.write("sys/devices/system/node/online", "0-99999999999");
  machine.write("proc/self/cgroup", "0::/../../x\nnonsense");
  machine.write("sys/fs/cgroup/cpu.max", "-5 0");
  for (int cpu = 0; cpu < 4; ++cpu) {
    machine.write_cpu(cpu, "cpu_capacity", "-1");
    machine.write_cpu(cpu, "topology/thread_siblings_list", "7-");
  }
  EXPECT_EQ(machine.choose(4).threads, 4);
  EXPECT_EQ(machine.choose(4).reason, "");
}

TEST(PageMemory, PiecesShareAMappingAndOutliveEachOther) {
  std::vector<PageMemory> pieces;
  for (const size_t bytes : {size_t{1}, size_t{5000}, size_t{300} << 10, size_t{20} << 20, size_t{7} << 20}) {
    auto piece = PageMemory::allocate_piece(bytes);
    ASSERT_TRUE(piece.ok());
    EXPECT_EQ(piece->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(piece->data()) % 4096, 0u);
    EXPECT_EQ(static_cast<char*>(piece->data())[bytes - 1], 0) << "zeroed";
    std::memset(piece->data(), static_cast<int>(pieces.size()) + 1, bytes);
    pieces.push_back(std::move(*piece));
  }
  const auto at = [&](size_t i) { return static_cast<const char*>(pieces[i].data()); };
  EXPECT_EQ(at(1) - at(0), 4096);
  EXPECT_EQ(at(2) - at(1), 8192);
  pieces.erase(pieces.begin());
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(at(i)[0], static_cast<int>(i) + 2);
    EXPECT_EQ(at(i)[pieces[i].bytes() - 1], static_cast<int>(i) + 2);
  }
  EXPECT_FALSE(PageMemory::allocate(SIZE_MAX - 100).ok());
}

TEST(PageMemory, MorePiecesThanAMappingHolds) {
  std::vector<PageMemory> pieces;
  for (int i = 0; i < 9; ++i) {  // 9 x 15 MiB
    auto piece = PageMemory::allocate_piece(size_t{15} << 20);
    ASSERT_TRUE(piece.ok());
    static_cast<char*>(piece->data())[0] = static_cast<char>(i);
    pieces.push_back(std::move(*piece));
  }
  for (int i = 0; i < 9; ++i) EXPECT_EQ(static_cast<char*>(pieces[static_cast<size_t>(i)].data())[0], i);
}

TEST(Topology, PartsOfAChoiceHaveEachThreadAndCpuOnce) {
  CpuChoice all;
  all.threads = 5;
  all.cpus = {2, 4, 6, 8, 10};
  std::vector<int> cpus;
  std::vector<int> threads;
  for (int part = 0; part < 3; ++part) {
    const CpuChoice one = part_of(all, part, 3);
    threads.push_back(one.threads);
    EXPECT_EQ(one.cpus.size(), static_cast<size_t>(one.threads));
    cpus.insert(cpus.end(), one.cpus.begin(), one.cpus.end());
  }
  EXPECT_EQ(threads, (std::vector<int>{2, 2, 1}));
  EXPECT_EQ(cpus, all.cpus);
  EXPECT_EQ(part_of(all, 0, 1).threads, 5);
  all.cpus.clear();  // wherever the system puts them
  EXPECT_TRUE(part_of(all, 1, 2).cpus.empty());
  EXPECT_EQ(part_of(CpuChoice{.threads = 2, .cpus = {}, .reason = {}}, 2, 3).threads, 1) << "at least one each";
}

TEST(Isa, ChoosesTheBestAndRefusesTheUnknown) {
  const std::vector<Isa> levels = available_isas();
  ASSERT_FALSE(levels.empty());
  EXPECT_EQ(levels.front(), Isa::kPortable);
  for (const Isa isa : levels) {
    const auto chosen = choose_isa(name(isa));
    ASSERT_TRUE(chosen.ok());
    EXPECT_EQ(*chosen, isa);
  }
  const auto wrong = choose_isa("mmx");
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(wrong.error().message, testing::AllOf(testing::HasSubstr("mmx"), testing::HasSubstr("portable")));
}

}  // namespace
}  // namespace quire::cpu
