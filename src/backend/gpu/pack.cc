// SPDX-License-Identifier: Apache-2.0
// Packing weights into device memory.
#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/grid_math.h"
#include "backend/gpu/linear_policy.h"
#include "backend/gpu/weight_layout.h"
#include "backend/raw_matrix.h"
#include "base/parallel.h"
#include "kernels/params/dummy.h"

namespace quire::gpu {
namespace {

// What is packed at a time before it is uploaded: the most of a weight that is in memory twice.
constexpr int64_t kSlabBytes = int64_t{16} << 20;

// Packs panels [first, first + count) of a quantised weight.
void pack_panels(std::span<const RawMatrix> parts, const WeightParams& w, int64_t first, int64_t count, uint8_t* to) {
  parallel_blocks(count, 4, [&](int64_t begin, int64_t end) {
    std::memset(to + begin * w.stride, 0, static_cast<size_t>((end - begin) * w.stride));
    for (int64_t i = begin; i < end; ++i) pack_panel(parts, w, first + i, to + i * w.stride);
  });
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

// Panels are packed into one of two pinned buffers while the other is being copied.
Status GpuBackend::upload_quantised(std::span<const RawMatrix> parts, const WeightParams& w, char* to,
                                    const PackOptions& options) {
  const int64_t panels = (w.n + kPanelRows - 1) / kPanelRows;
  const int64_t slab = std::clamp<int64_t>(kSlabBytes / w.stride, 1, panels);
  for (int64_t first = 0; first < panels; first += slab) {
    const int64_t count = std::min(slab, panels - first);
    Slab& buffer = slabs_[next_slab_++ % std::size(slabs_)];
    const auto bytes = static_cast<size_t>(count * w.stride);
    QUIRE_TRY(device_->wait(buffer.copied));
    if (buffer.memory == nullptr || buffer.memory->bytes() < bytes) {
      buffer.memory.reset();
      QUIRE_ASSIGN(buffer.memory, device_->allocate_host(std::max(bytes, static_cast<size_t>(kSlabBytes))));
    }
    pack_panels(parts, w, first, count, static_cast<uint8_t*>(buffer.memory->address()));
    device_->upload(to + first * w.stride, buffer.memory->address(), bytes);
    buffer.copied = device_->mark();
    if (options.consumed) report_consumed(parts, first * kPanelRows, (first + count) * kPanelRows, options);
  }
  return {};
}

// The matrices of a stack share the block of the first one.
Status GpuBackend::place_weight(const PackOptions::Stack& stack, GpuMatrix& weight) {
  QUIRE_CHECK(stack.place < stack.count && (stack.first == nullptr) == (stack.place == 0));
  if (stack.first != nullptr) {
    const GpuMatrix& first = gpu_matrix(stack.first);
    QUIRE_CHECK(first.n() == weight.n() && first.k() == weight.k(), "the matrices of a stack have one shape");
    if (first.dtype() != weight.dtype() || first.group != weight.group) {
      return unsupported({"it has the type ", name(weight.dtype()), " and other experts of its layer have ",
                          name(first.dtype()), "; they must have one type and groups of one size"});
    }
    weight.memory = first.memory;
    weight.data = static_cast<char*>(first.data) + static_cast<size_t>(stack.place) * weight.bytes();
    return {};
  }
  QUIRE_ASSIGN(std::unique_ptr<Memory> memory, device_->allocate(weight.bytes() * static_cast<size_t>(stack.count)));
  weight.data = memory->address();
  weight.memory = std::move(memory);
  return {};
}

bool GpuBackend::makes(DType type) const {
  return makes_random_ && (!is_quantised(type) || type == DType::kMXFP4);
}

// Random weights are made where they are used. Nothing waits: a row map passes through scratch memory, whose uploads
// and readers run in the order of the queue.
void GpuBackend::make_random(std::span<const RawMatrix> parts, const GpuMatrix& weight) {
  const WeightParams w = weight_params(weight);
  const DType type = weight.dtype();
  const bool fp4 = type == DType::kMXFP4;
  int64_t first_row = 0;
  for (const RawMatrix& part : parts) {
    const RandomElements& random = *part.random;
    QUIRE_CHECK((fp4 || !is_quantised(type)) && !is_quantised(random.stored) && random.rows > 0 &&
                random.rows <= part.n);
    DummyParams p = {};
    p.first = random.first;
    p.row_step = random.row_step;
    p.column_step = random.column_step;
    p.stride = fp4 ? w.stride : w.stride / info(type).block_bytes;
    p.key_low = static_cast<uint32_t>(random.key);
    p.key_high = static_cast<uint32_t>(random.key >> 32);
    p.base = random.base;
    p.scale = random.scale;
    p.stored = random.stored == DType::kF32 ? 0 : random.stored == DType::kF16 ? 1 : 2;
    p.rows = static_cast<int>(random.rows);
    p.columns = w.k;
    p.first_row = static_cast<int>(first_row);
    p.mapped = !part.row_map.empty();
    p.head_at = w.head_at;
    const void* map = nullptr;
    if (p.mapped != 0) {
      void* place = scratch_.products.grow(part.row_map.size_bytes());
      device_->upload(place, part.row_map.data(), part.row_map.size_bytes());
      map = place;
    }
    const auto rows = static_cast<uint32_t>(random.rows);
    if (fp4) {
      launch(KernelId::kFillDummyFp4, p, {weight.data, map},
             {grid_div(rows, kPanelRows), grid_div(w.k, 32 * kDummyBlocks)}, kDummyThreads);
    } else {
      launch({KernelId::kFillDummy, type}, p, {static_cast<char*>(weight.data) + first_row * w.stride, map},
             {rows, grid_div(w.k, kDummyColumns)}, kDummyThreads);
    }
    first_row += part.n;
  }
}

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
  QUIRE_TRY(place_weight(options.stack, *packed));
  if (parts[0].random) {
    make_random(parts, *packed);
  } else if (is_quantised(type)) {
    QUIRE_TRY(upload_quantised(parts, w, static_cast<char*>(packed->data), options));
  } else {
    upload_plain(*device_, parts, w, static_cast<char*>(packed->data), options);
  }
  if (options.for_linear && options.activation != DType::kF32) {
    // The library is checked now, while there is memory for it: later the KV cache has taken the rest.
    const int64_t part = library_rows(*packed, options.activation);
    (void)device_->library_serves(options.activation, part, packed->k());
    if (n % part != 0) (void)device_->library_serves(options.activation, n % part, packed->k());
  }
  return std::unique_ptr<PackedMatrix>(std::move(packed));
}

}  // namespace quire::gpu
