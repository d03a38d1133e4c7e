// SPDX-License-Identifier: Apache-2.0
// Queueing kernels.
#include "backend/gpu/launcher.h"

#include "base/check.h"

namespace quire::gpu {

void Launcher::launch(KernelRef ref, const void* params, size_t params_bytes,
                      std::initializer_list<const void*> buffers, Grid grid, uint32_t threads,
                      uint32_t dynamic_memory) {
  before_();
  const Kernel& kernel = kernels_.get(ref, params_bytes);
  // A compiler that needs many registers may leave a kernel fewer threads than its text asks for (Metal does).
  if (const int most = kernel.max_threads(); threads > static_cast<uint32_t>(most)) {
    const std::string why = "the kernel " + kernel.name() + " runs with " + std::to_string(threads) +
                            " threads in a threadgroup, but " + describe(device_.info()) + " gives it " +
                            std::to_string(most) +
                            "; use --device cpu, and please report it with the output of quire devices";
    QUIRE_CHECK(false, why.c_str());
  }
  void* addresses[16];
  QUIRE_CHECK(buffers.size() <= 16);
  size_t count = 0;
  for (const void* buffer : buffers) addresses[count++] = const_cast<void*>(buffer);
  const Launch launch = {&kernel, params, params_bytes, {addresses, count}, grid, threads, dynamic_memory};
  device_.launch(launch);
  recorder_.note(launch);
}

}  // namespace quire::gpu
