// SPDX-License-Identifier: Apache-2.0
// CpuBackend: memory, packing, and the ops whose rows are independent of each other.
#include "backend/cpu/cpu_backend.h"

#include "backend/cpu/topology.h"
#include "base/log.h"

namespace quire::cpu {
namespace {

class CpuBuffer final : public Buffer {
 public:
  explicit CpuBuffer(PageMemory memory) : memory_(std::move(memory)) {
    data_ = memory_.data();
    bytes_ = memory_.bytes();
  }

 private:
  PageMemory memory_;
};

// The first is the default for the pages of a quantised model. AMX tiles multiply bf16, so fp16 would be rounded again.
constexpr DType kKvDTypes[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kI8, DType::kF8E4M3, DType::kF8E5M2};
constexpr DType kTileKvDTypes[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kI8, DType::kF8E4M3, DType::kF8E5M2};

// The tensor whose rows threads divide between them.
template <typename Args>
const Tensor& rows_of(const Args& args) {
  if constexpr (requires { args.out; }) {
    return args.out;
  } else if constexpr (requires { args.k; }) {
    return args.k;  // reshape_and_cache
  } else {
    return args.x;  // rope, in place
  }
}

}  // namespace

CpuBackend::CpuBackend(Isa isa, int threads, std::span<const int> cpus)
    : isa_(isa),
      kernels_(cpu::kernels(isa)),
      pool_(threads, cpus),
      thread_scratch_(static_cast<size_t>(threads)),
      thread_rows_(static_cast<size_t>(threads)),
      thread_sums_(static_cast<size_t>(threads)) {}

std::string CpuBackend::describe() const {
  return std::string("cpu (") + name(isa_) + ", " + std::to_string(pool_.threads()) +
         (pool_.threads() == 1 ? " thread)" : " threads)");
}

std::span<const DType> CpuBackend::kv_dtypes() const {
  return isa_ >= Isa::kAmx ? std::span<const DType>(kTileKvDTypes) : kKvDTypes;
}

Result<std::unique_ptr<Buffer>> CpuBackend::allocate(size_t bytes) {
  QUIRE_ASSIGN(PageMemory memory, PageMemory::allocate(bytes));
  return std::unique_ptr<Buffer>(std::make_unique<CpuBuffer>(std::move(memory)));
}

Result<std::unique_ptr<PackedMatrix>> CpuBackend::pack(std::span<const RawMatrix> parts, const PackOptions& options) {
  QUIRE_ASSIGN(std::unique_ptr<CpuMatrix> packed, cpu::pack(parts, options, kernels_.linear.packings, pool_));
  return std::unique_ptr<PackedMatrix>(std::move(packed));
}

template <typename Args>
void CpuBackend::run_rows(const Args& args, int64_t work_per_element, void (*kernel)(const Args&, int64_t, int64_t)) {
  check(args);
  if constexpr (requires { check_indices(args); }) check_indices(args);
  if constexpr (requires { args.x; }) check_f32(args.x);
  const Tensor& t = rows_of(args);
  check_f32(t);
  for_rows(t.rows, work_per_element * t.cols, [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
}

#define QUIRE_ROW_OP(name, Args, work_per_element)   \
  void CpuBackend::name(const Args& args) {          \
    run_rows(args, work_per_element, kernels_.name); \
  }
QUIRE_ROW_OPS(QUIRE_ROW_OP)
#undef QUIRE_ROW_OP

}  // namespace quire::cpu

namespace quire {

Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuOptions& options) {
  QUIRE_ASSIGN(const cpu::Isa isa, cpu::choose_isa(options.isa));
  constexpr int kMaxThreads = 1024;
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return invalid_argument(
        {"the number of CPU threads is ", options.threads, "; give 0 (all usable cores) up to ", kMaxThreads});
  }
  const cpu::CpuChoice all =
      options.threads > 0 ? cpu::CpuChoice{.threads = options.threads, .cpus = {}, .reason = {}} : cpu::choose_cpus();
  if (!all.reason.empty() && options.part == 0) log_info("cpu: {}", all.reason);
  const cpu::CpuChoice choice = cpu::part_of(all, options.part, options.parts);
  return std::unique_ptr<Backend>(std::make_unique<cpu::CpuBackend>(isa, choice.threads, choice.cpus));
}

}  // namespace quire
