// SPDX-License-Identifier: Apache-2.0
// Resolving the table of kernels on a device.
#include "backend/gpu/kernel_table.h"

#include <string_view>

#include "backend/gpu/device_failure.h"
#include "base/check.h"
#include "kernels/params/activation.h"
#include "kernels/params/attention.h"
#include "kernels/params/attention_cache.h"
#include "kernels/params/copy_pages.h"
#include "kernels/params/decode_step.h"
#include "kernels/params/dummy.h"
#include "kernels/params/embedding.h"
#include "kernels/params/gather.h"
#include "kernels/params/hopper.h"
#include "kernels/params/hopper_quantised.h"
#include "kernels/params/linear.h"
#include "kernels/params/lora.h"
#include "kernels/params/moe.h"
#include "kernels/params/norm.h"
#include "kernels/params/ranks.h"
#include "kernels/params/recurrent.h"
#include "kernels/params/rope.h"
#include "kernels/params/sampling.h"

namespace quire::gpu {
namespace {

constexpr const char* kTypeNames[] = {"f32", "f16", "bf16"};  // in the order of DType

// Bit 3 * first + second: the kernel exists for these types. A name with one type has 0 as its second, one without
// types has 0 as both.
enum KernelTypes : uint16_t {
  kNoType = 0b000000001,
  kF32Only = 0b000000001,
  k16Bits = 0b001001000,
  kAnyType = kF32Only | k16Bits,
  kResidualPairs = 0b101011001,  // of one type, or to f32
  kPairs = 0b101011111,          // also from f32
  kOptional = 1 << 15,
  kHopperNoType = kNoType | kOptional,
  kHopper16Bits = k16Bits | kOptional,
};

struct Row {
  const char* name;
  uint16_t types;
  size_t params_bytes;
};
constexpr Row kTable[] = {
#define QUIRE_KERNEL_ROW(id, name, types, Params) {name, types, sizeof(Params)},
    QUIRE_GPU_KERNELS(QUIRE_KERNEL_ROW)
#undef QUIRE_KERNEL_ROW
};

size_t type_index(DType type) {
  QUIRE_CHECK(type <= DType::kBF16, "kernels exist for plain types alone");
  return static_cast<size_t>(type);
}

// The name with the types in place of '#'.
std::string name_of(std::string_view pattern, size_t first, size_t second) {
  std::string out;
  size_t next = first;
  for (const char c : pattern) {
    if (c != '#') {
      out += c;
    } else {
      out += kTypeNames[next];
      next = second;
    }
  }
  return out;
}

}  // namespace

size_t KernelTable::index(KernelRef ref) {
  QUIRE_CHECK(ref.id < KernelId::kNone);
  return (static_cast<size_t>(ref.id) * kTypes + type_index(ref.first)) * kTypes + type_index(ref.second);
}

KernelTable::KernelTable(Device& device) : device_(device) {
  static_assert(std::size(kTable) == kRows && std::size(kTypeNames) == kTypes);
  std::string missing, why;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Row& row = kTable[i / (kTypes * kTypes)];
    const size_t pair = i % (kTypes * kTypes);
    if ((row.types >> pair & 1) == 0) continue;
    std::string name = name_of(row.name, pair / kTypes, pair % kTypes);
    if (device.has_kernel(name)) {
      entries_[i].name = std::move(name);
      continue;
    }
    if ((row.types & kOptional) != 0) continue;
    const auto kernel = device.kernel(name);
    if (kernel.ok()) {
      entries_[i] = {std::move(name), *kernel};
    } else {
      if (missing.empty()) why = kernel.error().message;
      missing += (missing.empty() ? "" : ", ") + name;
    }
  }
  if (!missing.empty()) {
    complete_ = unsupported({"this build lacks kernels for ", describe(device.info()), " (", why, "): ", missing});
  }
}

bool KernelTable::has(KernelRef ref) const {
  return !entries_[index(ref)].name.empty();
}

const Kernel& KernelTable::get(KernelRef ref, size_t params_bytes) {
  const Row& row = kTable[static_cast<size_t>(ref.id)];
  Entry& entry = entries_[index(ref)];
  if (entry.kernel == nullptr) {
    QUIRE_CHECK(!entry.name.empty(), row.name);
    entry.kernel = require(device_.kernel(entry.name));
  }
  QUIRE_CHECK(params_bytes == row.params_bytes, row.name);
  return *entry.kernel;
}

}  // namespace quire::gpu
