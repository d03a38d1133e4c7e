// SPDX-License-Identifier: Apache-2.0
// Samples of the machine's limits.
#include "backend/cpu/limits/limits.h"

#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "backend/cpu/limits/peak.h"
#include "base/half.h"
#include "base/philox.h"

namespace quire::cpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kOperandBytes = 4096;
constexpr double kSampleSeconds = 2e-3;
constexpr int64_t kPiecesPerThread = 32;
constexpr size_t kStretch = size_t{64} << 20;     // bytes of one sample of reading
constexpr size_t kReadPiece = size_t{256} << 10;  // what one thread takes at once

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

[[maybe_unused]] bool on_every_cpu() {
  return true;
}

#if defined(__x86_64__)
struct Leaf7 {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  explicit Leaf7(uint32_t subleaf) { __get_cpuid_count(7, subleaf, &eax, &ebx, &ecx, &edx); }
};
bool has_avx512_bf16() {
  return (Leaf7(1).eax & (1u << 5)) != 0;
}
bool has_amx_bf16() {
  return (Leaf7(0).edx & (1u << 22)) != 0;
}
#elif defined(__aarch64__)
bool has_bf16() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP2) & (1ul << 14)) != 0;  // HWCAP2_BF16
#elif defined(__APPLE__)
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname("hw.optional.arm.FEAT_BF16", &value, &size, nullptr, 0) == 0 && value != 0;
#else
  return false;
#endif
}
#endif

// Instruction, kind, level, operations of a round: sums times products of one sum times two.
std::vector<PeakProbe> architecture_probes() {
  using enum Arithmetic;
  return {
#if defined(__x86_64__)
    {"mulps+addps xmm", kFp32, Isa::kPortable, 10 * 4 * 2, on_every_cpu, peak::kMulAddXmm},
        {"vfmadd231ps ymm", kFp32, Isa::kAvx2, 12 * 8 * 2, on_every_cpu, peak::kFmaYmm},
        {"vpmaddubsw+vpmaddwd ymm", kInt8, Isa::kAvx2, 10 * 32 * 2, on_every_cpu, peak::kMaddubsYmm},
        {"vfmadd231ps zmm", kFp32, Isa::kAvx512, 24 * 16 * 2, on_every_cpu, peak::kFmaZmm},
        {"vpdpbusd zmm", kInt8, Isa::kAvx512, 24 * 64 * 2, on_every_cpu, peak::kDpbusdZmm},
        {"vdpbf16ps zmm", kBf16, Isa::kAvx512, 24 * 32 * 2, has_avx512_bf16, peak::kDpbf16Zmm},
        {"tdpbusd", kInt8, Isa::kAmx, 4 * 16 * 16 * 64 * 2, on_every_cpu, peak::kDpbusdTile},
        {"tdpbf16ps", kBf16, Isa::kAmx, 4 * 16 * 16 * 32 * 2, has_amx_bf16, peak::kDpbf16Tile},
#elif defined(__aarch64__)
    {"fmla", kFp32, Isa::kPortable, 24 * 4 * 2, on_every_cpu, peak::kFmla},
        {"sdot", kInt8, Isa::kNeonDotprod, 24 * 16 * 2, on_every_cpu, peak::kSdot},
        {"smmla", kInt8, Isa::kNeonI8mm, 24 * 32 * 2, on_every_cpu, peak::kSmmla},
        {"bfmmla", kBf16, Isa::kNeonI8mm, 24 * 16 * 2, has_bf16, peak::kBfmmla},
#endif
  };
}

// Plain values of either sign around one: no zeros (they save power, and so clock), no denormals.
std::vector<std::byte> make_operands() {
  std::vector<std::byte> out(3 * kOperandBytes);
  for (size_t i = 0; i < kOperandBytes; ++i) {
    const uint32_t bits = Philox::generate(1, i)[0];
    const float value = (0.5f + 0.5f * uniform_from_bits(bits)) * ((bits & 1) != 0 ? 1.0f : -1.0f);
    const uint16_t half = float_to_bf16(value);
    if (i < kOperandBytes / 4) std::memcpy(out.data() + 4 * i, &value, 4);
    if (i < kOperandBytes / 2) std::memcpy(out.data() + kOperandBytes + 2 * i, &half, 2);
    out[2 * kOperandBytes + i] = static_cast<std::byte>(bits >> 24);
  }
  return out;
}

uint64_t read_baseline(const std::byte* data, size_t bytes) {
  typedef uint64_t Vector __attribute__((vector_size(16)));
  return peak::read_vectors<Vector>(data, bytes);
}

// Wider loads read faster, also from memory.
peak::ReadFunction widest_read() {
  peak::ReadFunction found = read_baseline;
#if defined(__x86_64__)
  for (const Isa level : available_isas()) {
    if (level == Isa::kAvx2) found = peak::kReadYmm;
    if (level == Isa::kAvx512) found = peak::kReadZmm;
  }
#endif
  return found;
}

Result<PageMemory> touched(size_t bytes, bool huge, ThreadPool& pool) {
  QUIRE_ASSIGN(PageMemory memory, PageMemory::allocate(bytes));
#if defined(__linux__)
  // PageMemory asks for huge pages; what it got before the first touch can still be declined.
  if (!huge) ::madvise(memory.data(), bytes, MADV_NOHUGEPAGE);
#else
  (void)huge;
#endif
  auto* data = static_cast<std::byte*>(memory.data());
  pool.for_each_piece(static_cast<int64_t>(bytes / kReadPiece), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      std::memset(data + static_cast<size_t>(i) * kReadPiece, static_cast<int>(i & 0x7f) + 1, kReadPiece);
    }
  });
  return memory;
}

}  // namespace

const char* name(Arithmetic arithmetic) {
  constexpr const char* kNames[] = {"fp32", "bf16", "int8"};
  return kNames[static_cast<int>(arithmetic)];
}

std::vector<PeakProbe> peak_probes() {
  const std::vector<Isa> levels = available_isas();
  std::vector<PeakProbe> out;
  for (const PeakProbe& probe : architecture_probes()) {
    const bool has_level = std::find(levels.begin(), levels.end(), probe.level) != levels.end();
    if (has_level && probe.run != nullptr && probe.present()) out.push_back(probe);
  }
  return out;
}

const PeakProbe* strongest(const std::vector<PeakProbe>& probes, Isa level, Arithmetic arithmetic) {
  const PeakProbe* found = nullptr;
  for (const PeakProbe& probe : probes) {
    if (probe.arithmetic == arithmetic && probe.level <= level) found = &probe;
  }
  return found;
}

Result<std::unique_ptr<LimitsMeter>> LimitsMeter::make(int threads, size_t buffer_bytes) {
  const size_t bytes = std::max(buffer_bytes / kStretch, size_t{1}) * kStretch;
  std::unique_ptr<LimitsMeter> out(new LimitsMeter(threads, bytes));
  QUIRE_ASSIGN(out->small_, touched(bytes, false, out->pool_));
  QUIRE_ASSIGN(out->huge_, touched(bytes, true, out->pool_));
  out->operands_ = make_operands();
  return out;
}

double LimitsMeter::operations_per_s(const PeakProbe& probe) {
  const std::byte* operands = operands_.data() + static_cast<size_t>(probe.arithmetic) * kOperandBytes;
  const int64_t pieces = kPiecesPerThread * pool_.threads();
  const double piece_seconds = kSampleSeconds / kPiecesPerThread;
  int64_t rounds = 64;  // of one piece; grows until a piece takes its time
  for (;;) {
    const auto start = Clock::now();
    probe.run(rounds, operands);
    if (seconds_since(start) >= piece_seconds) break;
    rounds *= 2;
  }
  const auto start = Clock::now();
  pool_.for_each_piece(pieces, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) probe.run(rounds, operands);
  });
  return static_cast<double>(pieces * rounds) * probe.operations / seconds_since(start);
}

double LimitsMeter::read_bytes_per_s(Pages pages) {
  size_t& next = next_[pages == Pages::kHuge ? 1 : 0];
  const auto* data = static_cast<const std::byte*>((pages == Pages::kHuge ? huge_ : small_).data()) + next;
  next = (next + kStretch) % bytes_;
  static const peak::ReadFunction read = widest_read();
  std::atomic<uint64_t> sum = 0;
  const auto start = Clock::now();
  pool_.for_each_piece(static_cast<int64_t>(kStretch / kReadPiece), 1, [&](int64_t begin, int64_t end, int) {
    const auto first = static_cast<size_t>(begin) * kReadPiece;
    sum.fetch_add(read(data + first, static_cast<size_t>(end - begin) * kReadPiece), std::memory_order_relaxed);
  });
  const double seconds = seconds_since(start);
  QUIRE_CHECK(sum.load() != 0, "the buffer holds no zeros");
  return static_cast<double>(kStretch) / seconds;
}

size_t stream_bytes(bool quick) {
  size_t cache = 0;
#if defined(_SC_LEVEL3_CACHE_SIZE)
  const long bytes = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  cache = bytes > 0 ? static_cast<size_t>(bytes) : 0;
#endif
  const size_t least = size_t{256} << 20;
  const size_t most = quick ? least : size_t{1} << 30;
  return std::clamp(2 * cache, least, most);
}

}  // namespace quire::cpu
