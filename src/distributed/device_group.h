// SPDX-License-Identifier: Apache-2.0
// DeviceGroup: a Group whose bytes are in the memory of GPUs and move in the order of a stream.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/result.h"
#include "distributed/group.h"

namespace quire::distributed {

// One rank's end of a group of GPUs. Every rank makes the same calls in the same order. Pointers are addresses on this
// rank's GPU and `stream` is a stream of it (a CUstream); a call only adds work to the stream and can be captured into
// a graph. An Error means that the call was not added: the ranks have parted, and the process must end.
class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string describe() const = 0;  // "2 GPUs (NCCL 2.27.7)"

  // Rank r's `bytes` bytes at `mine` arrive at `all` + r * bytes on every rank. `mine` may be its own place in `all`.
  virtual Status all_gather(const void* mine, void* all, size_t bytes, void* stream) = 0;
  // Every rank has a block of `bytes` bytes for each rank at `blocks`; the blocks for this rank arrive at `mine` as
  // one, their sum as whole numbers. Where all ranks but one have zeros, these are the bits of that one.
  virtual Status merge_scatter(const void* blocks, void* mine, size_t bytes, void* stream) = 0;
  // The bytes of rank `root` on every rank.
  virtual Status broadcast(void* data, size_t bytes, int root, void* stream) = 0;
  // From one rank to another. The stream of the sender goes on when the receiver's has come to the matching call, so
  // ranks must not send to each other in a circle.
  virtual Status send(const void* data, size_t bytes, int to, void* stream) = 0;
  virtual Status receive(void* data, size_t bytes, int from, void* stream) = 0;
  // Lets calls that wait for other ranks on a stream end without them: the process is about to end, and nobody may make
  // another call. Any thread.
  virtual void abort() {}
  // Whether a call waits for the other ranks before it returns.
  virtual bool waits() const { return false; }
  // An Error if something went wrong on a stream since: a link that failed, a GPU that was lost.
  virtual Status check() const = 0;
};

// A group over NCCL, whose library is loaded here. `host` has the same ranks, and brings them together; every rank
// calls this, with its GPU's primary context current, and on all of them it succeeds or none.
Result<std::unique_ptr<DeviceGroup>> make_nccl_group(Group& host);

}  // namespace quire::distributed
