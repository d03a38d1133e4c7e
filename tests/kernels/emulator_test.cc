// SPDX-License-Identifier: Apache-2.0
// The emulator: what right kernels compute under every lane order, and how wrong ones are found out.
#include <gmock/gmock.h>

#include <cstring>
#include <fstream>

#include "backend/emulator/emulator_device.h"
#include "kernels/compat/async_copy.h"
#include "kernels/compat/tile.h"
#include "tests/kernels/support.h"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

struct TestParams {
  int n, threads;
};

namespace {

// Each thread reads what its opposite wrote; `kBarrier` says whether they wait for each other.
template <int kBarrier>
struct Exchange {
  enum { kThreads = 128 };
  struct Smem {
    float values[128];
  };
  static FN void run(Ctx c, CONSTANT const TestParams& p, TGROUP Smem& sm, DEVICE float* out) {
    sm.values[c.tid] = (float)c.tid;
    if (kBarrier) TG_BARRIER();
    out[c.tid] = sm.values[(uint)p.threads - 1 - c.tid];
  }
};
KERNEL(exchange_with_barrier, Exchange<1>, TestParams, float)
KERNEL(exchange_without_barrier, Exchange<0>, TestParams, float)

struct Sum {
  enum { kThreads = 64 };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const TestParams& p, TGROUP Smem& sm, DEVICE float* out, DEVICE const float* in) {
    out[c.tid] = simd_sum(in[c.tid]);
  }
};
KERNEL(sum, Sum, TestParams, float, const float)

struct DivergentBarrier {
  enum { kThreads = 64 };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const TestParams& p, TGROUP Smem& sm, DEVICE float* out) {
    if (c.tid < 40) {
      TG_BARRIER();  // mark: first barrier
    } else {
      TG_BARRIER();  // mark: second barrier
    }
  }
};
KERNEL(divergent_barrier, DivergentBarrier, TestParams, float)

struct BarrierAfterReturn {
  enum { kThreads = 64 };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const TestParams& p, TGROUP Smem& sm, DEVICE float* out) {
    if (c.tid >= 40) return;
    TG_BARRIER();  // mark: lonely barrier
  }
};
KERNEL(barrier_after_return, BarrierAfterReturn, TestParams, float)

struct DivergentSum {
  enum { kThreads = 32 };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const TestParams& p, TGROUP Smem& sm, DEVICE float* out) {
    if (c.lane < 8) {
      out[c.tid] = simd_sum(1.0f);  // mark: lonely sum
    } else {
      out[c.tid] = simd_max(1.0f);  // mark: lonely maximum
    }
  }
};
KERNEL(divergent_sum, DivergentSum, TestParams, float)

// One lane makes a product more than the others; nobody waits, but the trails tell.
struct DivergentProduct {
  enum { kThreads = 32 };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const TestParams& p, TGROUP Smem& sm, DEVICE float* out) {
    FragA<half> a = {};
    FragB<half> b = {};
    Acc16 acc;
    acc_zero(acc);
    for (uint i = 0; i < (c.lane == 3 ? 2u : 1u); i++) acc_mma(acc, a, b);  // mark: lonely product
    out[c.tid] = acc_get(acc, 0);
  }
};
KERNEL(divergent_product, DivergentProduct, TestParams, float)

struct ReadsUnwritten {
  enum { kThreads = 32 };
  struct Smem {
    float values[32];
    half halves[32];
  };
  static FN void run(Ctx c, CONSTANT const TestParams& p, TGROUP Smem& sm, DEVICE float* out) {
    out[c.tid] = sm.values[c.tid];
    out[32 + c.tid] = to_f(sm.halves[c.tid]);
    sm.values[c.tid] = 1.0f;  // gone before the next threadgroup starts
  }
};
KERNEL(reads_unwritten, ReadsUnwritten, TestParams, float)

struct WritesTooFar {
  enum { kThreads = 32 };
  struct Smem {
    float values[32];
  };
  static FN void run(Ctx c, CONSTANT const TestParams& p, TGROUP Smem& sm, DEVICE float* out) {
    TGROUP float* values = sm.values;
    values[c.tid + (uint)p.n] = 1.0f;
  }
};
KERNEL(writes_too_far, WritesTooFar, TestParams, float)

// Copies two groups of 16 bytes a thread; waits for `n` groups fewer than there are.
template <int kWait>
struct AsyncCopy {
  enum { kThreads = 32 };
  struct Smem {
    uint4 words[2][32];
  };
  static FN void run(Ctx c, CONSTANT const TestParams& p, TGROUP Smem& sm, DEVICE uint4* out, DEVICE const uint4* in) {
    copy16_async(&sm.words[0][c.tid], in + c.tid);
    copy_commit();
    copy16_async(&sm.words[1][c.tid], in + 32 + c.tid);
    copy_commit();
    copy_wait<kWait>();
    TG_BARRIER();
    out[c.tid] = sm.words[0][31 - c.tid];
    out[32 + c.tid] = sm.words[1][31 - c.tid];
  }
};
KERNEL(async_copy_all, AsyncCopy<0>, TestParams, uint4, const uint4)
KERNEL(async_copy_first, AsyncCopy<1>, TestParams, uint4, const uint4)

#ifdef QUIRE_ASAN
struct PrivateOverrun {
  enum { kThreads = 64 };
  typedef NoSmem Smem;
  static FN void run(Ctx c, CONSTANT const TestParams& p, TGROUP Smem& sm, DEVICE float* out) {
    float values[4];
    UNROLL for (int i = 0; i < 4; i++) values[i] = out[c.tid] + (float)i;  // on the stack, not a table of constants
    SG_BARRIER();
    THREAD float* at = values + (c.tid == 37 ? p.n : 0);
    out[c.tid] = *at;
  }
};
KERNEL(private_overrun, PrivateOverrun, TestParams, float)
#endif

struct Misaligned {
  enum { kThreads = 32 };
  struct Smem {
    half a[16 * 24];
  };
  static FN void run(Ctx c, CONSTANT const TestParams& p, TGROUP Smem& sm, DEVICE float* out) {
    FragA<half> a;
    frag_load_a(a, sm.a + p.n, p.threads, c.lane);
  }
};
KERNEL(misaligned, Misaligned, TestParams, float)

}  // namespace

namespace quire::kernels {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The number of the line of this file that ends in "mark: <what>".
std::string line_of(const std::string& what) {
  std::ifstream file(std::string(QUIRE_SOURCE_DIR) + "/tests/kernels/emulator_test.cc");
  std::string line;
  for (int number = 1; std::getline(file, line); number++) {
    if (line.ends_with("mark: " + what)) return std::to_string(number);
  }
  return "no such line";
}

class Orders : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Emulator, Orders, testing::ValuesIn(kOrders));

TEST_P(Orders, ThreadgroupBarrierLetsThreadsSeeEachOther) {
  std::vector<float> out(128);
  ASSERT_EQ(run_kernel(exchange_with_barrier_record, {1, 1, 1}, 128, TestParams{0, 128}, {out.data()}, GetParam()), "");
  for (int i = 0; i < 128; i++) EXPECT_EQ(out[i], static_cast<float>(127 - i));
}

TEST(Emulator, MissingBarrierGivesOtherResultsUnderAnotherOrder) {
  std::vector<float> ascending(128), descending(128);
  const TestParams params = {0, 128};
  ASSERT_EQ(run_kernel(exchange_without_barrier_record, {1, 1, 1}, 128, params, {ascending.data()}, 0), "");
  ASSERT_EQ(run_kernel(exchange_without_barrier_record, {1, 1, 1}, 128, params, {descending.data()}, 1), "");
  EXPECT_NE(std::memcmp(ascending.data(), descending.data(), 128 * sizeof(float)), 0);
}

TEST_P(Orders, DivergentBarriersAreReportedWithBothLines) {
  std::vector<float> out(64);
  EXPECT_THAT(run_kernel(divergent_barrier_record, {1, 1, 1}, 64, TestParams{}, {out.data()}, GetParam()),
              AllOf(HasSubstr("divergent_barrier"),
                    HasSubstr("TG_BARRIER at kernels/emulator_test.cc:" + line_of("first barrier")),
                    HasSubstr("TG_BARRIER at kernels/emulator_test.cc:" + line_of("second barrier"))));
}

TEST_P(Orders, BarrierThatSomeThreadsNeverReachIsReported) {
  std::vector<float> out(64);
  EXPECT_THAT(run_kernel(barrier_after_return_record, {1, 1, 1}, 64, TestParams{}, {out.data()}, GetParam()),
              AllOf(HasSubstr("emulator_test.cc:" + line_of("lonely barrier")), HasSubstr("has ended")));
}

TEST_P(Orders, DivergentSimdOperationsAreReportedWithBothLines) {
  std::vector<float> out(64);
  EXPECT_THAT(run_kernel(divergent_sum_record, {1, 1, 1}, 32, TestParams{}, {out.data()}, GetParam()),
              AllOf(HasSubstr("simd_sum at kernels/emulator_test.cc:" + line_of("lonely sum")),
                    HasSubstr("simd_max at kernels/emulator_test.cc:" + line_of("lonely maximum"))));
}

TEST_P(Orders, ProductThatOneLaneMakesAloneIsReported) {
  std::vector<float> out(64);
  EXPECT_THAT(run_kernel(divergent_product_record, {1, 1, 1}, 32, TestParams{}, {out.data()}, GetParam()),
              AllOf(HasSubstr("divergent simdgroup"),
                    HasSubstr("acc_mma at kernels/emulator_test.cc:" + line_of("lonely product"))));
}

TEST(Emulator, ThreadgroupMemoryIsPoisonedBeforeEachGroup) {
  std::vector<float> out(64);
  ASSERT_EQ(run_kernel(reads_unwritten_record, {5, 1, 1}, 32, TestParams{}, {out.data()}, 0), "");
  for (const float value : out) EXPECT_TRUE(std::isnan(value));
}

#ifndef QUIRE_ASAN  // which reports the write itself
TEST(Emulator, WriteBehindThreadgroupMemoryIsReported) {
  std::vector<float> out(1);
  EXPECT_EQ(run_kernel(writes_too_far_record, {1, 1, 1}, 32, TestParams{0, 0}, {out.data()}, 0), "");
  EXPECT_THAT(run_kernel(writes_too_far_record, {1, 1, 1}, 32, TestParams{1, 0}, {out.data()}, 0),
              AllOf(HasSubstr("writes_too_far"), HasSubstr("past the end of its threadgroup memory")));
}
#endif

TEST_P(Orders, AsynchronousCopiesLandWhenTheyAreWaitedForAndNoSooner) {
  alignas(16) uint32_t in[256], out[256];
  for (uint32_t i = 0; i < 256; i++) in[i] = i;
  const auto expected = [](uint32_t i) { return i / 128 * 128 + (31 - i % 128 / 4) * 4 + i % 4; };
  ASSERT_EQ(run_kernel(async_copy_all_record, {1, 1, 1}, 32, TestParams{}, {out, in}, GetParam()), "");
  for (uint32_t i = 0; i < 256; i++) EXPECT_EQ(out[i], expected(i));
  ASSERT_EQ(run_kernel(async_copy_first_record, {1, 1, 1}, 32, TestParams{}, {out, in}, GetParam()), "");
  for (uint32_t i = 0; i < 256; i++) EXPECT_EQ(out[i], i < 128 ? expected(i) : 0xffffffffu);
}

TEST(Emulator, TileRowsMustStartOnSixteenBytes) {
  std::vector<float> out(1);
  EXPECT_EQ(run_kernel(misaligned_record, {1, 1, 1}, 32, TestParams{8, 16}, {out.data()}, 0), "");
  EXPECT_THAT(run_kernel(misaligned_record, {1, 1, 1}, 32, TestParams{4, 16}, {out.data()}, 0), HasSubstr("16-byte"));
  EXPECT_THAT(run_kernel(misaligned_record, {1, 1, 1}, 32, TestParams{0, 20}, {out.data()}, 0), HasSubstr("16-byte"));
}

// One emulator over and over, on a thread whose own mode flushes subnormals.
TEST(Emulator, ComputesWithSubnormalsWhateverTheCallersMode) {
  std::vector<float> out(64);
  const std::vector<float> in(64, 0x1p-140f);
  emulator::Emulator emulator({.order = 0, .workers = 1});
  void* buffers[] = {out.data(), (void*)in.data()};
  const TestParams params = {};
  const std::array<uint32_t, 3> grid = {1, 1, 1};
#if defined(__x86_64__)
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | 0x8040);
#endif
  bool ok = true;
  for (int i = 0; i < 3; i++) ok = emulator.run(sum_record, grid, 64, &params, buffers).ok() && ok;
#if defined(__x86_64__)
  EXPECT_EQ(_mm_getcsr() & 0x8040u, 0x8040u);
  _mm_setcsr(mode);
#endif
  EXPECT_TRUE(ok);
  EXPECT_EQ(out[0], 0x1p-135f);
}

// What a launch gets wrong is our bug: it aborts, and names the kernel.
TEST(EmulatorDeviceDeathTest, WrongLaunchesNameTheKernel) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto device = std::move(gpu::open_emulator({.order = 0, .workers = 1}).value());
  gpu::Launch launch;
  launch.kernel = device->kernel("copy_pages").value();
  int params[6] = {};
  launch.params = params;
  launch.params_bytes = 24;
  void* buffers[3] = {};
  launch.buffers = buffers;
  launch.threads = 32;
  const auto with = [&](auto change) {
    gpu::Launch other = launch;
    change(other);
    device->launch(other);
  };
  EXPECT_DEATH(with([](gpu::Launch& l) { l.params_bytes = 20; }), "copy_pages.*parameters");
  EXPECT_DEATH(with([](gpu::Launch& l) { l.buffers = l.buffers.first(2); }), "copy_pages.*buffers");
  EXPECT_DEATH(with([](gpu::Launch& l) { l.grid.y = 0; }), "copy_pages.*grid");
  EXPECT_DEATH(with([](gpu::Launch& l) { l.threads = 33; }), "copy_pages.*threads");
  EXPECT_DEATH(with([](gpu::Launch& l) { l.threads = 512; }), "copy_pages.*kThreads");
}

TEST(EmulatorDeviceDeathTest, WritesPastABlockAreFound) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto device = std::move(gpu::open_emulator({.order = 0, .workers = 1}).value());
  const auto write_at = [&](int offset) {
    const auto memory = std::move(device->allocate(100).value());
    static_cast<volatile uint8_t*>(memory->address())[offset] = 1;
  };
#ifdef QUIRE_ASAN
  EXPECT_DEATH(write_at(100), "use-after-poison");
  EXPECT_DEATH(write_at(-1), "use-after-poison");
#else
  EXPECT_DEATH(write_at(100), "past the end of a block");
  EXPECT_DEATH(write_at(-1), "before the start of a block");
#endif
  write_at(99);
}

#ifdef QUIRE_ASAN
TEST(EmulatorDeathTest, SanitizersSeeTheStacksOfKernels) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  std::vector<float> out(64);
  EXPECT_EQ(run_kernel(private_overrun_record, {1, 1, 1}, 64, TestParams{3, 0}, {out.data()}, 0), "");
  EXPECT_DEATH(run_kernel(private_overrun_record, {1, 1, 1}, 64, TestParams{4, 0}, {out.data()}, 0),
               "stack-buffer-overflow|insufficient space");
}
#endif

TEST(EmulatorDevice, TakesItsLaneOrderFromTheEnvironment) {
  setenv("QUIRE_EMULATOR_ORDER", "5", 1);
  EXPECT_THAT(gpu::open_emulator().value()->info().name, HasSubstr("lane order 5"));
  EXPECT_THAT(gpu::open_emulator({.order = 1}).value()->info().name, HasSubstr("lane order 1"));
  unsetenv("QUIRE_EMULATOR_ORDER");
  EXPECT_THAT(gpu::open_emulator().value()->info().name, HasSubstr("lane order 0"));
}

TEST(EmulatorDevice, RefusesJunkInItsEnvironment) {
  for (const char* name : {"QUIRE_EMULATOR_ORDER", "QUIRE_EMULATOR_WORKERS"}) {
    for (const char* junk : {"junk", "1x", "-1", "2.5", "99999999999"}) {
      setenv(name, junk, 1);
      const auto opened = gpu::open_emulator();
      ASSERT_FALSE(opened.ok()) << name << "=" << junk;
      EXPECT_THAT(opened.error().message, HasSubstr(std::string(name) + " is '" + junk + "'; it must be"));
      EXPECT_TRUE(gpu::open_emulator({.order = 2, .workers = 1}).ok()) << "what the caller chose needs no variable";
    }
    unsetenv(name);
  }
  setenv("QUIRE_EMULATOR_WORKERS", "3", 1);
  EXPECT_EQ(gpu::open_emulator().value()->info().compute_units, 3);
  unsetenv("QUIRE_EMULATOR_WORKERS");
}

TEST(EmulatorDevice, SaysWhatItLacks) {
  const auto device = std::move(gpu::open_emulator().value());
  EXPECT_THAT(device->kernel("no_such_kernel").error().message, HasSubstr("no_such_kernel"));
  EXPECT_FALSE(device->allocate(size_t{1} << 60).ok());
  const size_t before = device->free_bytes();
  {
    const auto memory = std::move(device->allocate(1000).value());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->address()) % 256, 0u);
    EXPECT_EQ(device->free_bytes(), before - 1000);
    const auto* bytes = static_cast<const uint8_t*>(memory->address());
    EXPECT_TRUE(std::all_of(bytes, bytes + 1000, [](uint8_t byte) { return byte == 0; }));
  }
  EXPECT_EQ(device->free_bytes(), before);
}

}  // namespace
}  // namespace quire::kernels
