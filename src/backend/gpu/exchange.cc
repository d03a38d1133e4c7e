// SPDX-License-Identifier: Apache-2.0
// Gathers and messages between GPUs.
#include "backend/gpu/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "backend/gpu/device_failure.h"
#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/grid_math.h"
#include "backend/gpu/step_watch.h"
#include "base/env.h"
#include "base/log.h"
#include "kernels/params/ranks.h"

namespace quire::gpu {
namespace {

using distributed::DeviceGroup;
using distributed::Group;

// Rows of elements of `element` bytes as units of 16 bytes, where everything begins on them, or else as elements.
struct Units {
  int64_t per_unit = 1;  // elements
  KernelId join, owned, own;
};
Units units_of(int64_t element, bool wide) {
  if (wide) return {16 / element, KernelId::kJoinBlocks16, KernelId::kOwnedRows16, KernelId::kOwnBlocks16};
  return element == 2 ? Units{1, KernelId::kJoinBlocks2, KernelId::kOwnedRows2, KernelId::kOwnBlocks2}
                      : Units{1, KernelId::kJoinBlocks4, KernelId::kOwnedRows4, KernelId::kOwnBlocks4};
}

size_t bytes_of(const Tensor& t) {
  QUIRE_CHECK(t.stride == t.cols || t.rows <= 1);
  return static_cast<size_t>(t.rows * row_bytes(t.dtype, t.cols));
}

}  // namespace

Result<std::unique_ptr<Exchange>> GpuExchange::make(GpuBackend& gpu, std::unique_ptr<DeviceGroup> group,
                                                    size_t staging_bytes, int64_t call_bytes) {
  std::unique_ptr<GpuExchange> out(new GpuExchange(gpu, std::move(group)));
  if (StepWatch* watch = gpu.step_watch(); watch != nullptr && !out->group_->waits()) {
    watch->add_abort(out.get(), [group = out->group_.get()] { group->abort(); });
  }
  out->call_bytes_ = call_bytes;
  if (staging_bytes > 0) {
    QUIRE_ASSIGN(out->staging_, gpu.device().allocate(staging_bytes));
  }
  return std::unique_ptr<Exchange>(std::move(out));
}

GpuExchange::~GpuExchange() {
  if (StepWatch* watch = gpu_.step_watch()) watch->remove_abort(this);
  gpu_.synchronise();
  gpu_.recorder().forget_all();
}

int64_t GpuExchange::rows_at_once(int64_t row_bytes) const {
  const int64_t rows = static_cast<int64_t>(staging_->bytes()) / row_bytes;
  QUIRE_CHECK(rows > 0, "a row of all ranks is larger than the staging memory");
  return rows;
}

// Adds a call of the group to the device's queue.
void GpuExchange::queue(std::function<Status(DeviceGroup& group, void* stream)> call) {
  gpu_.queue([group = group_.get(), watch = gpu_.step_watch(), call = std::move(call)](void* stream) {
    if (watch != nullptr) watch->stay_if_aborted();
    const StepWatch::Waiting waiting(group->waits() ? watch : nullptr);
    return call(*group, stream);
  });
  if (gpu_.step_watch() != nullptr && !gpu_.recorder().recording()) gpu_.step_watch()->probe();
}

void GpuExchange::all_gather(const void* mine, void* all, size_t bytes) {
  queue([=](DeviceGroup& group, void* stream) { return group.all_gather(mine, all, bytes, stream); });
}

void GpuExchange::join_blocks(const void* in, int64_t blocks, int64_t cols, int64_t stride, const Tensor& out) {
  const int64_t element = info(out.dtype).block_bytes;
  const bool wide = on_16_bytes(in) && on_16_bytes(out) && cols * element % 16 == 0 && stride * element % 16 == 0 &&
                    out.cols * element % 16 == 0;
  const Units units = units_of(element, wide);
  JoinBlocksParams p = {};
  p.in_block = out.rows * stride / units.per_unit;
  p.in_stride = stride / units.per_unit;
  p.out_stride = out.stride / units.per_unit;
  p.rows = static_cast<int>(out.rows);
  p.blocks = static_cast<int>(blocks);
  p.cols = static_cast<int>(cols / units.per_unit);
  p.out_cols = static_cast<int>(out.cols / units.per_unit);
  gpu_.launch(units.join, p, {out.data, in}, element_grid(out.rows * blocks * p.cols), kElementThreads);
}

void GpuExchange::gather_columns(const Tensor& mine, const Tensor& all, int root) {
  const int64_t ranks = group_->size(), element = info(mine.dtype).block_bytes;
  QUIRE_CHECK(mine.dtype == all.dtype && mine.rows == all.rows && all.cols <= ranks * mine.cols);
  const bool wanted = root == Group::kEvery || root == group_->rank();
  if (mine.rows == 1 && all.cols == ranks * mine.cols) return all_gather(mine.data, all.data, bytes_of(mine));
  const int64_t at_once = rows_at_once(ranks * mine.cols * element);
  for (int64_t first = 0; first < mine.rows; first += at_once) {
    const int64_t rows = std::min(at_once, mine.rows - first);
    const Tensor part = mine.some_rows(first, rows);
    const int64_t block = rows * mine.cols * element;
    auto* staging = static_cast<char*>(staging_->address());
    const void* from = part.data;
    if (part.stride != part.cols && rows > 1) {
      const Tensor own = {staging + group_->rank() * block, part.dtype, rows, part.cols, part.cols};
      join_blocks(part.data, 1, part.cols, part.stride, own);
      from = own.data;
    }
    all_gather(from, staging, static_cast<size_t>(block));
    if (wanted) join_blocks(staging, ranks, mine.cols, mine.cols, all.some_rows(first, rows));
  }
}

void GpuExchange::gather_rows(const Tensor& x, std::span<const int32_t> ids, int64_t width) {
  QUIRE_CHECK(std::ssize(ids) == x.rows && (x.stride == x.cols || x.rows <= 1));
  const int64_t ranks = group_->size(), element = info(x.dtype).block_bytes;
  const int64_t at_once = rows_at_once(ranks * x.cols * element);
  const Units units = units_of(element, on_16_bytes(x) && x.cols * element % 16 == 0);
  for (int64_t first = 0; first < x.rows; first += at_once) {
    const Tensor part = x.some_rows(first, std::min(at_once, x.rows - first));
    all_gather(part.data, staging_->address(), bytes_of(part));
    OwnedRowsParams p = {};
    p.in_block = part.rows * part.cols / units.per_unit;
    p.in_stride = p.out_stride = part.cols / units.per_unit;
    p.rows = static_cast<int>(part.rows);
    p.cols = static_cast<int>(part.cols / units.per_unit);
    p.width = static_cast<int>(width);
    gpu_.launch(units.owned, p, {part.data, staging_->address(), ids.data() + first},
                {static_cast<uint32_t>(part.rows)}, kElementThreads);
  }
}

// A gather brings each rank the rows of all others, and a scatter what is needed of them.
bool GpuExchange::scatters(const Tensor& x) const {
  const int64_t ranks = group_->size(), bytes = x.rows * row_bytes(x.dtype, x.cols);
  return x.cols % ranks == 0 && (ranks - 1) * (bytes - bytes / ranks) >= call_bytes_;
}

void GpuExchange::scatter_rows(const Tensor& x, std::span<const int32_t> ids, int64_t width, const Tensor& mine) {
  const int64_t ranks = group_->size(), element = info(x.dtype).block_bytes;
  QUIRE_CHECK(std::ssize(ids) == x.rows && (x.stride == x.cols || x.rows <= 1) && mine.rows == x.rows &&
              mine.cols * ranks == x.cols && mine.dtype == x.dtype && (mine.stride == mine.cols || x.rows <= 1));
  const int64_t at_once = rows_at_once(x.cols * element);
  const Units units = units_of(element, on_16_bytes(x) && mine.cols * element % 16 == 0);
  for (int64_t first = 0; first < x.rows; first += at_once) {
    const Tensor part = x.some_rows(first, std::min(at_once, x.rows - first));
    const Tensor to = mine.some_rows(first, part.rows);
    OwnBlocksParams p = {};
    p.in_stride = part.cols / units.per_unit;
    p.rows = static_cast<int>(part.rows);
    p.blocks = static_cast<int>(ranks);
    p.cols = static_cast<int>(mine.cols / units.per_unit);
    p.width = static_cast<int>(width);
    p.rank = group_->rank();
    gpu_.launch(units.own, p, {staging_->address(), part.data, ids.data() + first},
                element_grid(part.rows * ranks * p.cols), kElementThreads);
    queue([blocks = staging_->address(), to = to.data, bytes = bytes_of(to)](DeviceGroup& group, void* stream) {
      return group.merge_scatter(blocks, to, bytes, stream);
    });
  }
}

void GpuExchange::broadcast(void* data, size_t bytes, int root) {
  queue([=](DeviceGroup& group, void* stream) { return group.broadcast(data, bytes, root, stream); });
}

void GpuExchange::send(const Tensor& x, int to) {
  queue([data = x.data, bytes = bytes_of(x), to](DeviceGroup& group, void* stream) {
    return group.send(data, bytes, to, stream);
  });
}

void GpuExchange::receive(const Tensor& x, int from) {
  queue([data = x.data, bytes = bytes_of(x), from](DeviceGroup& group, void* stream) {
    return group.receive(data, bytes, from, stream);
  });
}

void GpuBackend::queue(std::function<Status(void* stream)> work) {
  before_launch();
  recorder_.note_other();
  device_->queue(std::move(work));
}

void GpuBackend::own_ids(const OwnIdsArgs& args) {
  check(args);
  if (args.ids.empty()) return;
  const OwnIdsParams p{static_cast<int>(args.ids.size()), static_cast<int>(args.width), static_cast<int>(args.rank),
                       args.other};
  launch(KernelId::kOwnIds, p, {args.out, args.ids.data()}, element_grid(p.count), kElementThreads);
}

namespace {

Result<std::unique_ptr<DeviceGroup>> device_group(GpuBackend& gpu, Group& group) {
  const DeviceInfo& info = gpu.device().info();
  if (info.api == Api::kMetal) {
    return unsupported("a model on several ranks runs on CPUs and on NVIDIA GPUs; use --device cpu");
  }
  const std::string way = env("QUIRE_GPU_EXCHANGE").value_or("");
  if (info.api == Api::kEmulator && way.empty()) return make_shared_memory_group(group);
  if (way == "host") {
    if (group.rank() == 0) {
      log_warn(
          "QUIRE_GPU_EXCHANGE is host: ranks exchange bytes through the host's memory, and steps are not recorded");
    }
    gpu.recorder().turn_off();
    return make_copied_group(gpu.device(), group);
  }
  if (!way.empty() && way != "nccl")
    return invalid_argument({"QUIRE_GPU_EXCHANGE is '", way, "'; choose nccl or host"});
  gpu.synchronise();  // and makes the GPU's context current on this thread
  return distributed::make_nccl_group(group);
}

// QUIRE_SCATTER_BYTES: for tests and measurements.
Result<int64_t> bytes_of_a_call() {
  const auto text = env("QUIRE_SCATTER_BYTES");
  if (!text) return GpuExchange::kCallBytes;
  int64_t bytes = -1;
  const auto [end, wrong] = std::from_chars(text->data(), text->data() + text->size(), bytes);
  if (wrong == std::errc() && end == text->data() + text->size() && bytes >= 0) return bytes;
  return invalid_argument({"QUIRE_SCATTER_BYTES is '", *text, "'; it must be a whole number"});
}

}  // namespace

void GpuBackend::watch_steps(Group* group) {
  watch_.reset();
  if (group == nullptr) return;
  StepWatch::Ways ways;
  ways.limit_seconds = group->limit_seconds();
  ways.end_stalled = [group] { group->end_stalled(); };
  ways.end_waiting = [seconds = ways.limit_seconds] {
    distributed::end_process(
        fmt::format("the GPUs did not finish a step within {:g} s, although none of them is at fault by itself; is the "
                    "connection between them cut?",
                    seconds));
  };
  watch_ = std::make_unique<StepWatch>(*device_, std::move(ways));
}

Result<std::unique_ptr<Exchange>> GpuBackend::join(distributed::Group& group, bool gathers) {
  QUIRE_ASSIGN(std::unique_ptr<DeviceGroup> devices, device_group(*this, group));
  if (group.rank() == 0 && group.size() > 1) log_info("ranks exchange: {}", devices->describe());
  QUIRE_ASSIGN(const int64_t call_bytes, bytes_of_a_call());
  return GpuExchange::make(*this, std::move(devices), gathers ? GpuExchange::kStagingBytes : 0, call_bytes);
}

}  // namespace quire::gpu
