// SPDX-License-Identifier: Apache-2.0
// Packing weights into device memory.
#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/weight_layout.h"
#include "backend/raw_matrix.h"
#include "base/parallel.h"

namespace quire::gpu {
namespace {

// What is packed at a time before it is uploaded: the most of a weight that is in memory twice.
constexpr int64_t kSlabBytes = int64_t{16} << 20;

// Packs panels [first, first + count) of a quantised weight.
void pack_panels(std::span<const RawMatrix> parts, const WeightParams& w, int64_t first, int64_t count, uint8_t* to) {
  parallel_blocks(count, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) pack_panel(parts, w, first + i, to + i * w.stride);
  });
}

void upload_quantised(Device& device, std::span<const RawMatrix> parts, const WeightParams& w, char* to,
                      const PackOptions& options) {
  const int64_t panels = (w.n + kPanelRows - 1) / kPanelRows;
  const int64_t slab = std::clamp<int64_t>(kSlabBytes / w.stride, 1, panels);
  std::vector<uint8_t> memory(static_cast<size_t>(slab * w.stride));
  for (int64_t first = 0; first < panels; first += slab) {
    const int64_t count = std::min(slab, panels - first);
    if (first > 0) std::fill(memory.begin(), memory.end(), uint8_t{0});
    pack_panels(parts, w, first, count, memory.data());
    device.upload(to + first * w.stride, memory.data(), static_cast<size_t>(count * w.stride));
    if (options.consumed) report_consumed(parts, first * kPanelRows, (first + count) * kPanelRows, options);
  }
}

// Rows are uploaded in place, or copied one by one where they are reordered or padded.
void upload_plain(Device& device, std::span<const RawMatrix> parts, const WeightParams& w, char* to,
                  const PackOptions& options) {
  const int64_t row_size = row_bytes(parts[0].dtype, w.k);
  const int64_t slab = std::clamp<int64_t>(kSlabBytes / w.stride, 1, w.n);
  std::vector<std::byte> memory;
  int64_t part_first = 0;
  for (const RawMatrix& part : parts) {
    for (int64_t first = 0; first < part.n; first += slab) {
      const int64_t count = std::min(slab, part.n - first);
      const std::byte* from = part.data + first * row_size;
      if (!part.row_map.empty() || row_size != w.stride) {
        memory.resize(static_cast<size_t>(slab * w.stride));
        for (int64_t i = 0; i < count; ++i) {
          std::memcpy(memory.data() + i * w.stride, source_row(parts, part_first + first + i).data,
                      static_cast<size_t>(row_size));
        }
        from = memory.data();
      }
      device.upload(to + (part_first + first) * w.stride, from, static_cast<size_t>(count * w.stride));
      if (options.consumed) report_consumed(parts, part_first + first, part_first + first + count, options);
    }
    part_first += part.n;
  }
}

}  // namespace

Result<std::unique_ptr<PackedMatrix>> GpuBackend::pack(std::span<const RawMatrix> parts, const PackOptions& options) {
  QUIRE_TRY(check_parts(parts));
  int64_t n = 0;
  for (const RawMatrix& part : parts) n += part.n;
  const DType type = parts[0].dtype;
  auto packed = std::make_unique<GpuMatrix>(type, n, parts[0].k);
  packed->group = parts[0].group;
  packed->activation = options.activation;
  const WeightParams w = weight_params(*packed);
  packed->bytes_ = static_cast<size_t>(weight_bytes(w));
  QUIRE_ASSIGN(std::unique_ptr<Memory> memory, device_->allocate(packed->bytes_));
  packed->data = memory->address();
  packed->memory = std::move(memory);
  if (is_quantised(type)) {
    upload_quantised(*device_, parts, w, static_cast<char*>(packed->data), options);
  } else {
    upload_plain(*device_, parts, w, static_cast<char*>(packed->data), options);
    // The library is checked now, while there is memory for it: later the KV cache has taken the rest.
    if (type == options.activation) (void)device_->library_serves(type, n, parts[0].k);
  }
  return std::unique_ptr<PackedMatrix>(std::move(packed));
}

}  // namespace quire::gpu
