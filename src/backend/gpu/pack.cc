// SPDX-License-Identifier: Apache-2.0
// Packing weights into device memory.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/grid_math.h"
#include "backend/gpu/linear_policy.h"
#include "backend/gpu/weight_layout.h"
#include "backend/random_rows.h"
#include "backend/raw_matrix.h"
#include "base/math.h"
#include "base/parallel.h"
#include "kernels/params/dummy.h"

namespace quire::gpu {
namespace {

// What is packed at a time before it is uploaded: the most of a weight that is in memory twice.
constexpr int64_t kSlabBytes = int64_t{16} << 20;

// Packs panels [first, first + count) of a quantised weight. Returns what pack_panel() does.
bool pack_panels(std::span<const RawMatrix> parts, const WeightParams& w, int64_t first, int64_t count, uint8_t* to) {
  std::atomic<bool> zero_points = true;
  parallel_blocks(count, 4, [&](int64_t begin, int64_t end) {
    std::memset(to + begin * w.stride, 0, static_cast<size_t>((end - begin) * w.stride));
    for (int64_t i = begin; i < end; ++i) {
      if (!pack_panel(parts, w, first + i, to + i * w.stride)) zero_points = false;
    }
  });
  return zero_points;
}

// Rows are uploaded in place, or copied one by one where they are reordered, padded or made.
void upload_plain(Device& device, std::span<const RawMatrix> parts, const WeightParams& w, char* to,
                  const PackOptions& options) {
  const int64_t row_size = row_bytes(parts[0].dtype, w.k);
  const int64_t slab = std::clamp<int64_t>(kSlabBytes / w.stride, 1, w.n);
  std::vector<std::byte> memory;
  int64_t part_first = 0;
  for (const RawMatrix& part : parts) {
    for (int64_t first = 0; first < part.n; first += slab) {
      const int64_t count = std::min(slab, part.n - first);
      const bool copied = !part.row_map.empty() || row_size != w.stride || part.random;
      const std::byte* from = copied ? nullptr : part.data + first * row_size;
      if (copied) {
        memory.resize(static_cast<size_t>(slab * w.stride));
        constexpr int64_t kRows = 64;  // worth a thread
        parallel_blocks(count, kRows, [&](int64_t begin, int64_t end) {
          RandomRow made;
          for (int64_t i = begin; i < end; ++i) {
            std::memcpy(memory.data() + i * w.stride, source_row(parts, part_first + first + i, made).data,
                        static_cast<size_t>(row_size));
          }
        });
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
Status GpuBackend::upload_quantised(std::span<const RawMatrix> parts, const WeightParams& w, GpuMatrix& weight,
                                    const PackOptions& options) {
  char* to = static_cast<char*>(weight.data);
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
    const bool zero_points = pack_panels(parts, w, first, count, static_cast<uint8_t*>(buffer.memory->address()));
    if (weight.zero_points != nullptr && !zero_points) *weight.zero_points = false;
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
    weight.zero_points = first.zero_points;
    weight.data = static_cast<char*>(first.data) + static_cast<size_t>(stack.place) * weight.bytes();
    return {};
  }
  QUIRE_ASSIGN(std::unique_ptr<Memory> memory, device_->allocate(weight.bytes() * static_cast<size_t>(stack.count)));
  weight.data = memory->address();
  weight.memory = std::move(memory);
  if (weight.dtype() == DType::kG4) weight.zero_points = std::make_shared<std::atomic<bool>>(true);
  return {};
}

bool GpuBackend::makes(DType type) const {
  return makes_random_ && !is_quantised(type);
}

// A row map passes through scratch memory, whose uploads and readers run in the order of the queue.
const void* GpuBackend::put_row_map(const RawMatrix& part) {
  if (part.row_map.empty()) return nullptr;
  void* place = scratch_.products.grow(part.row_map.size_bytes());
  device_->upload(place, part.row_map.data(), part.row_map.size_bytes());
  return place;
}

// Random weights are made where they are used. Nothing waits.
void GpuBackend::make_random(std::span<const RawMatrix> parts, const GpuMatrix& weight) {
  const WeightParams w = weight_params(weight);
  const DType type = weight.dtype();
  int64_t first_row = 0;
  for (const RawMatrix& part : parts) {
    const RandomElements& random = *part.random;
    QUIRE_CHECK(!is_quantised(type) && !is_quantised(random.stored) && random.rows > 0 && random.rows <= part.n);
    DummyParams p = {};
    p.first = random.first;
    p.row_step = random.row_step;
    p.column_step = random.column_step;
    p.stride = w.stride / info(type).block_bytes;
    p.key_low = static_cast<uint32_t>(random.key);
    p.key_high = static_cast<uint32_t>(random.key >> 32);
    p.base = random.base;
    p.scale = random.scale;
    p.stored = random.stored == DType::kF32 ? 0 : random.stored == DType::kF16 ? 1 : 2;
    p.rows = static_cast<int>(random.rows);
    p.columns = w.k;
    p.mapped = !part.row_map.empty();
    launch({KernelId::kFillDummy, type}, p, {static_cast<char*>(weight.data) + first_row * w.stride, put_row_map(part)},
           {static_cast<uint32_t>(random.rows), grid_div(w.k, kDummyColumns)}, kDummyThreads);
    first_row += part.n;
  }
}

void GpuBackend::make_random_codes(std::span<const RawMatrix> parts, const GpuMatrix& weight) {
  DummyCodesParams p = {};
  p.weight = weight_params(weight);
  p.head_steps = head_of(p.weight).steps;
  for (const RawMatrix& part : parts) {
    const RandomElements& random = *part.random;
    const RandomElements::Codes& codes = random.codes;
    QUIRE_CHECK(random.rows == part.n && random.first % part.k == 0 && codes.scale_columns > 0);
    p.first = random.first / part.k;
    p.scale_rows = codes.scale_rows;
    p.scales = ceil_div(part.k, codes.scale_columns);
    p.key_low = static_cast<uint32_t>(random.key);
    p.key_high = static_cast<uint32_t>(random.key >> 32);
    p.scale_key_low = static_cast<uint32_t>(random.key ^ kRandomScales);
    p.scale_key_high = static_cast<uint32_t>((random.key ^ kRandomScales) >> 32);
    p.scale = random.scale;
    p.middle = codes.middle;
    p.scale_columns = static_cast<int>(codes.scale_columns);
    p.bits = codes.bits;
    p.fp8 = codes.fp8;
    p.sub = codes.sub;
    p.rows = static_cast<int>(part.n);
    p.mapped = !part.row_map.empty();
    launch(KernelId::kFillDummyCodes, p, {weight.data, put_row_map(part)},
           {grid_div(part.n, kPanelRows), grid_div(part.k, 16 * kDummySteps)}, kDummyThreads);
    p.first_row += p.rows;
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
  const bool codes = parts[0].random && parts[0].random->codes.bits > 0;
  if (parts[0].random && !codes) {
    make_random(parts, *packed);
  } else if (codes && makes_random_ && is_quantised(type)) {
    make_random_codes(parts, *packed);
  } else if (is_quantised(type)) {
    QUIRE_TRY(upload_quantised(parts, w, *packed, options));
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
