// SPDX-License-Identifier: Apache-2.0
// The machine's own limits: how fast it multiplies with each instruction, and how fast it reads memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cpu/isa_level.h"
#include "backend/cpu/page_memory.h"
#include "backend/cpu/thread_pool.h"

namespace quire::cpu {

// What is multiplied. Sums are fp32, of int8 int32.
enum class Arithmetic { kFp32, kBf16, kInt8 };
const char* name(Arithmetic arithmetic);

// One multiply-add instruction in a loop of independent sums, enough of them that its latency does not show. Operands
// come from registers (or tiles) alone, so nothing but the instruction itself is timed.
struct PeakProbe {
  const char* instruction;  // "tdpbusd"
  Arithmetic arithmetic;
  Isa level;                                          // the first level whose kernels may use it
  double operations;                                  // of one round: a multiplication and an addition are two
  bool (*present)();                                  // whether this machine has it, given that it has the level
  void (*run)(int64_t rounds, const void* operands);  // operands: 4 KiB of values of that kind; null: not built
};
// Those that this machine can run, weakest first.
std::vector<PeakProbe> peak_probes();
// Of these the strongest that a level's kernels may use; null: the level has none of that kind.
const PeakProbe* strongest(const std::vector<PeakProbe>& probes, Isa level, Arithmetic arithmetic);

// Takes samples of the limits, each some milliseconds long and over all threads, as kernels run: work is handed out
// piece by piece. One thread at a time. A sample is noisy on a shared machine: take many, near to what is compared.
class LimitsMeter {
 public:
  // Allocates and touches the buffer that is read, twice: in small pages and in pages of 2 MiB (where the system
  // grants them). It should be well beyond the last cache.
  static Result<std::unique_ptr<LimitsMeter>> make(int threads, size_t buffer_bytes);

  double operations_per_s(const PeakProbe& probe);
  enum class Pages { kSmall, kHuge };
  // Reads the next stretch of the buffer; after a whole round it begins again.
  double read_bytes_per_s(Pages pages);
  size_t buffer_bytes() const { return bytes_; }

 private:
  LimitsMeter(int threads, size_t bytes) : pool_(threads), bytes_(bytes) {}

  ThreadPool pool_;
  size_t bytes_;
  PageMemory small_, huge_;
  size_t next_[2] = {0, 0};          // where each buffer's next stretch begins
  std::vector<std::byte> operands_;  // 4 KiB of fp32, bf16 and int8 each
};

// A good size for the buffer: beyond the last cache, if that is known, but no more than a gibibyte.
size_t stream_bytes(bool quick);

}  // namespace quire::cpu
