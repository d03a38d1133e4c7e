// SPDX-License-Identifier: Apache-2.0
// Staging: the arrays of a step (token ids, positions, block tables, slots) on their way to the device.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "backend/gpu/device.h"

namespace quire::gpu {

// Two areas of pinned host memory, each with its copy on the device, used in turn: the arrays of a step are written
// while the step before still reads its own. Steps beside those of several ranks (Backend::begin_step_beside) have two
// more. Owned by the backend and used from its thread.
class Staging {
 public:
  explicit Staging(Device& device) : device_(device) {}

  // Allocates the areas at load, large enough for so many bytes in so many arrays.
  Status reserve(size_t bytes, size_t arrays, bool beside);
  size_t device_bytes() const;

  // Turns to the other area and waits for the work that read it.
  void begin(bool beside = false);
  // Makes the area larger if these arrays do not fit. True: its addresses have changed.
  // REQUIRES: nothing is staged yet.
  bool grow(size_t bytes, size_t arrays);
  // Copies an array into the area; returns the address that it will have on the device.
  const void* stage(std::span<const std::byte> values);
  // The host's copy of an array, by its address on the device.
  template <typename T>
  std::span<const T> host(std::span<const T> on_device) const {
    return {static_cast<const T*>(host_copy(on_device.data())), on_device.size()};
  }
  int area() const { return area_; }  // 0 or 1; 2 or 3 for steps beside

  // What was staged and is not on the device yet.
  struct Pending {
    void* to;          // on the device
    const void* from;  // on the host
    size_t bytes;
    bool whole;  // nothing of the step was uploaded before
  };
  Pending pending() const;
  void upload();         // queues the copy of what is pending
  void mark_uploaded();  // a kernel copies it instead

 private:
  struct Area {
    std::unique_ptr<Memory> host, device;
    uint64_t mark = 0;  // the work that reads it
  };
  Status allocate(Area& area, size_t bytes);
  const void* host_copy(const void* on_device) const;

  Device& device_;
  Area areas_[4];
  int area_ = 0;
  int turn_ = 0, turn_beside_ = 0;    // 0 or 1
  size_t staged_ = 0, uploaded_ = 0;  // bytes of the area
};

}  // namespace quire::gpu
