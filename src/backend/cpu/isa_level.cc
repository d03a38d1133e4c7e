// SPDX-License-Identifier: Apache-2.0
// Detects which ISA levels this machine can run.
#include "backend/cpu/isa_level.h"

#include <cstdint>

#include "base/env.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace quire::cpu {

namespace {

#if defined(__x86_64__)

struct CpuidRegisters {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidRegisters cpuid(uint32_t leaf, uint32_t subleaf) {
  CpuidRegisters r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

// XCR0: which register states the system saves.
uint64_t saved_states() {
  if ((cpuid(1, 0).ecx & (1u << 27)) == 0) return 0;  // OSXSAVE
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

bool has_avx2() {
  constexpr uint32_t kFma = 1u << 12, kF16c = 1u << 29;  // leaf 1 ecx
  constexpr uint32_t kAvx2 = 1u << 5, kBmi2 = 1u << 8;   // leaf 7 ebx
  constexpr uint64_t kYmm = 0x6;
  const uint32_t leaf1 = cpuid(1, 0).ecx;
  const uint32_t leaf7 = cpuid(7, 0).ebx;
  return (saved_states() & kYmm) == kYmm && (leaf1 & kFma) != 0 && (leaf1 & kF16c) != 0 && (leaf7 & kAvx2) != 0 &&
         (leaf7 & kBmi2) != 0;
}

bool has_avx512() {
  constexpr uint32_t kNeeded = (1u << 16) | (1u << 17) | (1u << 28) | (1u << 30) | (1u << 31);  // F DQ CD BW VL
  constexpr uint32_t kVnni = 1u << 11;                                                          // leaf 7 ecx
  constexpr uint64_t kZmm = 0xe6;
  const CpuidRegisters leaf7 = cpuid(7, 0);
  return has_avx2() && (saved_states() & kZmm) == kZmm && (leaf7.ebx & kNeeded) == kNeeded && (leaf7.ecx & kVnni) != 0;
}

// The system enables the tile registers only on request, once for the whole process.
bool request_amx() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool has_amx() {
  constexpr uint32_t kTiles = (1u << 24) | (1u << 22) | (1u << 25);  // leaf 7 edx: tiles, of bf16, of bytes
  constexpr uint32_t kVbmi = 1u << 1;                                // leaf 7 ecx
  constexpr uint32_t kBf16 = 1u << 5;                                // leaf 7.1 eax
  constexpr uint64_t kTileStates = 0x60000;
  if (!has_avx512() || (saved_states() & kTileStates) != kTileStates) return false;
  const CpuidRegisters leaf7 = cpuid(7, 0);
  return (leaf7.edx & kTiles) == kTiles && (leaf7.ecx & kVbmi) != 0 && (cpuid(7, 1).eax & kBf16) != 0 && request_amx();
}

bool has_dotprod() {
  return false;
}
bool has_i8mm() {
  return false;
}

#elif defined(__aarch64__)

#if defined(__linux__)
bool has_dotprod() {
  return (getauxval(AT_HWCAP) & (1ul << 20)) != 0;
}  // HWCAP_ASIMDDP
bool has_i8mm() {
  constexpr unsigned long kI8mm = 1ul << 13, kBf16 = 1ul << 14;  // HWCAP2_I8MM, HWCAP2_BF16
  return has_dotprod() && (getauxval(AT_HWCAP2) & (kI8mm | kBf16)) == (kI8mm | kBf16);
}
#elif defined(__APPLE__)
bool feature(const char* key) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(key, &value, &size, nullptr, 0) == 0 && value != 0;
}
bool has_dotprod() {
  return feature("hw.optional.arm.FEAT_DotProd");
}
bool has_i8mm() {
  return has_dotprod() && feature("hw.optional.arm.FEAT_I8MM") && feature("hw.optional.arm.FEAT_BF16");
}
#else
bool has_dotprod() {
  return false;
}
bool has_i8mm() {
  return false;
}
#endif
bool has_avx2() {
  return false;
}
bool has_avx512() {
  return false;
}
bool has_amx() {
  return false;
}

#else

bool has_dotprod() {
  return false;
}
bool has_i8mm() {
  return false;
}
bool has_avx2() {
  return false;
}
bool has_avx512() {
  return false;
}
bool has_amx() {
  return false;
}

#endif

bool built(Isa isa) {
  switch (isa) {
#ifdef QUIRE_LEVEL_portable
    case Isa::kPortable:
      return true;
#endif
#ifdef QUIRE_LEVEL_neon_dotprod
    case Isa::kNeonDotprod:
      return true;
#endif
#ifdef QUIRE_LEVEL_neon_i8mm
    case Isa::kNeonI8mm:
      return true;
#endif
#ifdef QUIRE_LEVEL_avx2
    case Isa::kAvx2:
      return true;
#endif
#ifdef QUIRE_LEVEL_avx512
    case Isa::kAvx512:
      return true;
#endif
#ifdef QUIRE_LEVEL_amx
    case Isa::kAmx:
      return true;
#endif
    default:
      return false;
  }
}

struct Level {
  Isa isa;
  const char* name;
  bool (*present)();
};

bool always() {
  return true;
}

constexpr Level kLevels[] = {
    {Isa::kPortable, "portable", always},    {Isa::kNeonDotprod, "neon_dotprod", has_dotprod},
    {Isa::kNeonI8mm, "neon_i8mm", has_i8mm}, {Isa::kAvx2, "avx2", has_avx2},
    {Isa::kAvx512, "avx512", has_avx512},    {Isa::kAmx, "amx", has_amx},
};

}  // namespace

const char* name(Isa isa) {
  return kLevels[static_cast<int>(isa)].name;
}

std::vector<Isa> available_isas() {
  std::vector<Isa> found;
  for (const Level& level : kLevels) {
    if (built(level.isa) && level.present()) found.push_back(level.isa);
  }
  return found;
}

Result<Isa> choose_isa(const std::string& wanted) {
  const std::vector<Isa> found = available_isas();
  if (found.empty()) {
    return unsupported(
        "this build has no kernels for this machine's CPU, since it was made for another machine alone; build quire "
        "here, or with -DQUIRE_CPU=all");
  }
  std::string name_wanted = wanted;
  const char* source = "the ISA level";
  if (name_wanted.empty()) {
    const auto from_env = env("QUIRE_CPU_ISA");
    if (!from_env) return found.back();
    name_wanted = *from_env;
    source = "QUIRE_CPU_ISA";
  }
  std::string choices;
  for (Isa isa : found) {
    if (name_wanted == name(isa)) return isa;
    choices += choices.empty() ? "" : ", ";
    choices += name(isa);
  }
  return invalid_argument(
      {source, " \"", name_wanted, "\" is not available on this machine; choose one of: ", choices});
}

}  // namespace quire::cpu
