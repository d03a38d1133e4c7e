// SPDX-License-Identifier: Apache-2.0
// The staging areas.
#include "backend/gpu/staging.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "backend/gpu/device_failure.h"
#include "backend/gpu/grid_math.h"
#include "base/check.h"

namespace quire::gpu {
namespace {

constexpr size_t kLeastBytes = size_t{16} << 20;
// Longer block tables (contexts of millions of tokens in every sequence) get their room when they occur.
constexpr size_t kMostReserved = size_t{64} << 20;

}  // namespace

Status Staging::allocate(Area& area, size_t bytes) {
  QUIRE_ASSIGN(area.host, device_.allocate_host(bytes));
  QUIRE_ASSIGN(area.device, device_.allocate(bytes));
  return {};
}

Status Staging::reserve(size_t bytes, size_t arrays, bool beside) {
  const size_t needed = std::min(std::bit_ceil(bytes + arrays * kBlockAlignment), kMostReserved);
  for (Area& area : std::span(areas_).first(beside ? 4 : 2)) {
    if (area.host == nullptr) QUIRE_TRY(allocate(area, std::max(kLeastBytes, needed)));
  }
  return {};
}

size_t Staging::device_bytes() const {
  size_t total = 0;
  for (const Area& area : areas_) total += area.device != nullptr ? area.device->bytes() : 0;
  return total;
}

void Staging::begin(bool beside) {
  areas_[area_].mark = device_.mark();
  int& turn = beside ? turn_beside_ : turn_;
  turn = 1 - turn;
  area_ = (beside ? 2 : 0) + turn;
  Area& area = areas_[area_];
  if (area.host == nullptr) require(allocate(area, kLeastBytes));
  require(device_.wait(area.mark));
  staged_ = uploaded_ = 0;
}

bool Staging::grow(size_t bytes, size_t arrays) {
  QUIRE_CHECK(staged_ == 0);
  Area& area = areas_[area_];
  const size_t needed = bytes + arrays * kBlockAlignment;
  if (needed <= area.host->bytes()) return false;
  require(allocate(area, std::bit_ceil(needed)));
  return true;
}

const void* Staging::stage(std::span<const std::byte> values) {
  if (areas_[area_].host == nullptr) begin();
  Area& area = areas_[area_];
  const size_t bytes = aligned(values.size());
  QUIRE_CHECK(staged_ + bytes <= area.host->bytes(), "a step's arrays are larger than the staging area");
  std::memcpy(static_cast<char*>(area.host->address()) + staged_, values.data(), values.size());
  const void* at = static_cast<char*>(area.device->address()) + staged_;
  staged_ += bytes;
  return at;
}

const void* Staging::host_copy(const void* on_device) const {
  const Area& area = areas_[area_];
  const char* base = static_cast<const char*>(area.device->address());
  const char* at = static_cast<const char*>(on_device);
  QUIRE_CHECK(at >= base && at < base + staged_, "this array was not staged in this step");
  return static_cast<const char*>(area.host->address()) + (at - base);
}

Staging::Pending Staging::pending() const {
  const Area& area = areas_[area_];
  if (area.host == nullptr) return {nullptr, nullptr, 0, true};
  return {static_cast<char*>(area.device->address()) + uploaded_, static_cast<char*>(area.host->address()) + uploaded_,
          staged_ - uploaded_, uploaded_ == 0};
}

void Staging::upload() {
  if (uploaded_ == staged_) return;
  const Pending p = pending();
  device_.upload(p.to, p.from, p.bytes);
  uploaded_ = staged_;
}

void Staging::mark_uploaded() {
  uploaded_ = staged_;
}

}  // namespace quire::gpu
