// SPDX-License-Identifier: Apache-2.0
// GpuExchange: the exchange of GPUs, by the calls of a DeviceGroup and kernels that bring what arrives in order.
#pragma once

#include <functional>
#include <memory>

#include "backend/exchange.h"
#include "backend/gpu/device.h"
#include "distributed/device_group.h"

namespace quire::gpu {

class GpuBackend;

// Columns of a rank are one block, so that a gather of several rows arrives as a block from each rank: a kernel puts
// the blocks side by side. With one row there is nothing to do. Rows that each belong to one rank (gather_rows) are
// gathered from all ranks, since the host does not know whose they are, and a kernel takes the owner's: R times what is
// needed. Of many such rows each rank gets a part of the columns instead (scatter_rows): a kernel writes zeros where
// another rank owns the row, and what the ranks have is added up as whole numbers, which keeps the owner's bits.
class GpuExchange final : public Exchange {
 public:
  static constexpr size_t kStagingBytes = size_t{64} << 20;  // 2048 rows of 16384 elements of 16 bits

  // Another call costs as much as so many bytes between GPUs.
  static constexpr int64_t kCallBytes = int64_t{4} << 20;

  // What arrives goes through `staging`, in several calls if it is more; 0: there will be no gathers. Rows are
  // scattered if that saves `call_bytes`.
  static Result<std::unique_ptr<Exchange>> make(GpuBackend& gpu, std::unique_ptr<distributed::DeviceGroup> group,
                                                size_t staging_bytes, int64_t call_bytes = kCallBytes);
  // Drops recorded steps, which hold calls of the group: NCCL waits for the end of its graphs.
  ~GpuExchange() override;

  void gather_columns(const Tensor& mine, const Tensor& all, int root) override;
  void gather_rows(const Tensor& x, std::span<const int32_t> ids, int64_t width) override;
  bool scatters(const Tensor& x) const override;
  void scatter_rows(const Tensor& x, std::span<const int32_t> ids, int64_t width, const Tensor& mine) override;
  void broadcast(void* data, size_t bytes, int root) override;
  void send(const Tensor& x, int to) override;
  void receive(const Tensor& x, int from) override;

 private:
  GpuExchange(GpuBackend& gpu, std::unique_ptr<distributed::DeviceGroup> group) : gpu_(gpu), group_(std::move(group)) {}
  void queue(std::function<Status(distributed::DeviceGroup& group, void* stream)> call);
  void all_gather(const void* mine, void* all, size_t bytes);
  // Blocks of `cols` columns, each [out.rows, cols] with that stride, side by side.
  void join_blocks(const void* in, int64_t blocks, int64_t cols, int64_t stride, const Tensor& out);
  int64_t rows_at_once(int64_t row_bytes) const;

  GpuBackend& gpu_;
  std::unique_ptr<distributed::DeviceGroup> group_;
  std::unique_ptr<Memory> staging_;
  int64_t call_bytes_ = kCallBytes;
};

// Groups that need no NCCL. Of devices whose memory the host sees, and whose work is done when a call returns:
std::unique_ptr<distributed::DeviceGroup> make_shared_memory_group(distributed::Group& host);
// Of any devices: bytes are copied to the host and back, and every call waits. It cannot be recorded.
std::unique_ptr<distributed::DeviceGroup> make_copied_group(Device& device, distributed::Group& host);

}  // namespace quire::gpu
