// SPDX-License-Identifier: Apache-2.0
// Weights, linear and embedding on a GPU.
//
// Which way a product goes is a matter of speed alone: all of them run one chain of k16 steps for each sum (16-bit
// activations), so they are equal by memcmp.
//   - sm_90a's linear_tall for up to 256 rows, where the weight's rows are not too many for its narrow tiles
//   - the vendor's library from 33 rows on, where the driver has found that it gives these bits; a quantised weight is
//     made plain first, in pieces, from 65 rows on
//   - sm_90a's kernels (kernels/cuda) for weights of the activations' own type, and for quantised ones up to 64 rows
//   - else the own kernels: few rows (16) or many (64) in a tile, every weight type
// Float activations have the own kernel alone.
#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/weight_layout.h"
#include "backend/raw_matrix.h"
#include "kernels/params/hopper.h"
#include "kernels/params/hopper_quantised.h"
#include "kernels/params/linear.h"

namespace quire::gpu {
namespace {

// What is packed before it goes to the device: the most that is in memory twice.
constexpr int64_t kSlabBytes = int64_t{16} << 20;
// Rows from which the library is quicker than the own kernels.
constexpr int64_t kLibraryRows = 33;
constexpr int64_t kLibraryRowsQuantised = 65;
// Elements of a quantised weight that are made plain at a time.
constexpr int64_t kPlainElements = int64_t{64} << 20;
// Rows up to which a norm is made again in every threadgroup of the portable kernel.
constexpr int64_t kJoinedRows = 4;

const GpuMatrix& matrix(const PackedMatrix* weight) {
  QUIRE_CHECK(weight != nullptr);
  return static_cast<const GpuMatrix&>(*weight);
}

int64_t element_bytes(DType type) {
  return info(type).block_bytes;
}

bool on_16_bytes(const Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.stride * element_bytes(t.dtype) % 16 == 0;
}

uint32_t pieces(int64_t count, int64_t of) {
  return static_cast<uint32_t>((count + of - 1) / of);
}

// Panels [first, first + count) of a quantised weight, by all the threads that the host has.
void pack_panels(std::span<const RawMatrix> parts, const WeightParams& w, int64_t first, int64_t count, uint8_t* to) {
  const int64_t hands =
      std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, std::min<int64_t>(count / 4 + 1, 16));
  const auto work = [&](int64_t hand) {
    for (int64_t i = hand; i < count; i += hands) pack_panel(parts, w, first + i, to + i * w.stride);
  };
  std::vector<std::thread> others;
  for (int64_t hand = 1; hand < hands; ++hand) others.emplace_back(work, hand);
  work(0);
  for (std::thread& other : others) other.join();
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

// Rows go as they are, or one by one where they are mapped or padded.
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

// What activations are in this product. After a norm that is the output's type, where that is not F32 anyway.
DType product_type(const LinearArgs& args) {
  if (args.norm == nullptr) return args.x.dtype;
  return args.out.dtype == DType::kF32 ? matrix(args.weight).activation : args.out.dtype;
}

LinearEpilogue epilogue_of(const LinearArgs& args) {
  if (args.residual.data != nullptr) return kLinearResidual;
  if (args.gated != nullptr) return kLinearGated;
  return args.out.dtype == DType::kF32 ? kLinearStoreF32 : kLinearStore;
}

void check_linear(const LinearArgs& args) {
  check(args);
  QUIRE_CHECK(args.out.dtype == DType::kF32 || args.out.dtype == product_type(args));
  QUIRE_CHECK(args.gated == nullptr || args.out.dtype == product_type(args));
}

LinearLast last_of(const LinearArgs& args) {
  LinearLast last = {};
  last.out_stride = args.out.stride;
  last.residual_stride = args.residual.stride;
  last.epilogue = epilogue_of(args);
  last.activation = args.gated != nullptr ? static_cast<int>(args.gated->activation) : 0;
  last.biased = args.bias != nullptr;
  last.columns = static_cast<int>(args.out.cols);
  last.scale = args.residual_scale;
  last.limit = args.gated != nullptr ? args.gated->limit : 0.0f;
  return last;
}

HopperLinearParams hopper_params(const LinearArgs& args) {
  const GpuMatrix& w = matrix(args.weight);
  HopperLinearParams p = {};
  p.m = static_cast<int>(args.x.rows);
  p.n = static_cast<int>(w.n());
  p.k = static_cast<int>(w.k());
  p.x_stride = static_cast<int>(args.x.stride);
  p.out_stride = static_cast<int>(args.out.stride);
  p.residual_stride = static_cast<int>(args.residual.stride);
  p.epilogue = epilogue_of(args);  // they count alike
  p.activation = args.gated != nullptr ? static_cast<int>(args.gated->activation) : 0;
  p.limit = args.gated != nullptr ? args.gated->limit : 0.0f;
  p.normed = args.norm != nullptr;
  p.biased = args.bias != nullptr;
  p.eps = args.norm != nullptr ? args.norm->eps : 0.0f;
  p.scale = args.residual_scale;
  return p;
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
    // Asked while there is memory for the check: later the pages have it.
    if (type == options.activation) (void)device_->library_serves(type, n, parts[0].k);
  }
  return std::unique_ptr<PackedMatrix>(std::move(packed));
}

void GpuBackend::embedding(const EmbeddingArgs& args) {
  check(args);
  const GpuMatrix& table = matrix(args.table);
  if (args.out.rows == 0 || join_embedding(args)) return;
  EmbeddingParams p = {};
  p.weight = weight_params(table);
  p.out_stride = args.out.stride;
  p.from_tokens = 1;
  p.scale = args.scale;
  launch((std::string("embedding_") + spelling(args.out.dtype)).c_str(), p,
         {args.out.data, table.data, args.tokens.data()},
         {static_cast<uint32_t>(args.out.rows), pieces(table.k(), 16 * kEmbeddingThreads)}, kEmbeddingThreads);
}

// Rows [first, first + out.rows) of a weight as plain elements.
void GpuBackend::plain_rows(const GpuMatrix& weight, int64_t first, const Tensor& out) {
  EmbeddingParams p = {};
  p.weight = weight_params(weight);
  p.out_stride = out.stride;
  p.first_row = static_cast<int>(first);
  p.scale = 1.0f;
  launch((std::string("embedding_") + spelling(out.dtype)).c_str(), p, {out.data, weight.data, nullptr},
         {static_cast<uint32_t>(out.rows), pieces(weight.k(), 16 * kEmbeddingThreads)}, kEmbeddingThreads);
}

bool GpuBackend::has_hopper() const {
  if (hopper_ < 0) {
    const DeviceInfo& info = device_->info();
    const bool chip = info.api == Api::kCuda && info.architecture.starts_with("sm_90");
    HopperLinearParams p = {};
    p.m = 1;
    p.n = p.k = 64;
    const HopperLinearPlan plan = hopper_linear_plan(&p, info.compute_units);
    hopper_ = chip && device_->kernel(std::string("hopper_linear_bf16_") + plan.kernel).ok() ? 1 : 0;
  }
  return hopper_ == 1;
}

bool GpuBackend::joins_linear(int64_t rows) const {
  return rows <= (has_hopper() ? int64_t{kLinearFewRows} : kJoinedRows);
}

void GpuBackend::linear(const LinearArgs& args) {
  check_linear(args);
  if (args.x.rows == 0) return;
  const DType type = product_type(args);
  if (!join_linear(args, type)) linear_by_kernels(args, type);
}

void GpuBackend::linear_by_kernels(const LinearArgs& args, DType type) {
  if (!args.columns.empty()) return linear_by_columns(args, type);
  if (linear_tall(args, type, true) || linear_by_library(args, type) || linear_tall(args, type, false)) return;
  if (linear_on_hopper(args, type) || quantised_on_hopper(args, type)) return;
  linear_own(args, type);
}

// Norm first, then the columns in the weight's order, then the product.
void GpuBackend::linear_by_columns(const LinearArgs& args, DType type) {
  const int64_t rows = args.x.rows;
  const auto taken = static_cast<int64_t>(args.columns.size());
  const int64_t size = element_bytes(type), stride = (taken + 7) / 8 * 8, normed_stride = (args.x.cols + 7) / 8 * 8;
  auto* base = static_cast<char*>(columns_.grow(*device_, static_cast<size_t>(rows * (stride + normed_stride) * size)));
  LinearArgs next = args;
  if (args.norm != nullptr) {
    next.x = {base + rows * stride * size, type, rows, args.x.cols, normed_stride};
    rms_norm({args.x, args.norm->weight, args.x.cols, args.norm->eps, next.x});
    next.norm = nullptr;
  }
  const Tensor gathered = {base, type, rows, taken, stride};
  gather_columns({next.x, args.columns, gathered});
  next.x = gathered;
  next.columns = {};
  linear(next);
}

// What the library is held to: the kernels that serve few rows.
void GpuBackend::own_product(const LibraryProduct& product) {
  GpuMatrix weight(product.type, product.n, product.k);
  weight.data = const_cast<void*>(product.w);
  LinearArgs args;
  args.x = {const_cast<void*>(product.x), product.type, product.m, product.k, product.x_stride};
  args.weight = &weight;
  args.out = {product.y, product.out_type, product.m, product.n, product.y_stride};
  if (!linear_on_hopper(args, product.type) && !linear_tall(args, product.type, false)) linear_own(args, product.type);
}

// Beside the library it is asked first where it pays, and last where the library does not serve.
bool GpuBackend::linear_tall(const LinearArgs& args, DType type, bool only_if_it_pays) {
  const GpuMatrix& w = matrix(args.weight);
  const int64_t rows = args.x.rows;
  if (rows > kHopperTallRows || w.dtype() != type || type == DType::kF32 || !has_hopper()) return false;
  if (!on_16_bytes(args.x) || reinterpret_cast<uintptr_t>(args.out.data) % 16 != 0 ||
      reinterpret_cast<uintptr_t>(args.residual.data) % 8 != 0) {
    return false;
  }
  HopperTallParams p = {};
  p.linear = hopper_params(args);
  const HopperTallPlan plan = hopper_tall_plan(p.linear, device_->info().compute_units);
  if (plan.kernel == nullptr || (only_if_it_pays && !plan.pays)) return false;
  p.rows = plan.rows;
  p.layers = plan.layers;
  const RowsMap weight = {w.data, w.n(), w.k(), w.k(), plan.w_halves, plan.w_box, plan.w_box_halves};
  const RowsMap x = {args.x.data, rows, w.k(), args.x.stride, 1, plan.rows, 1};
  if (!device_->map_rows(weight, &p.w) || !device_->map_rows(x, &p.x)) return false;
  launch((std::string("hopper_linear_") + spelling(type) + "_" + plan.kernel).c_str(), p,
         {args.out.data, args.bias, args.residual.data}, {static_cast<uint32_t>(plan.grid)}, kHopperTallThreads,
         static_cast<uint32_t>(plan.dynamic_memory));
  return true;
}

bool GpuBackend::linear_on_hopper(const LinearArgs& args, DType type) {
  const GpuMatrix& w = matrix(args.weight);
  if (args.x.rows > kHopperMaxRows || w.dtype() != type || type == DType::kF32 || !has_hopper()) return false;
  if (!on_16_bytes(args.x) || reinterpret_cast<uintptr_t>(args.out.data) % 16 != 0 || w.k() % 16 != 0) return false;
  HopperLinearParams p = hopper_params(args);
  const HopperLinearPlan plan = hopper_linear_plan(&p, device_->info().compute_units);
  if (plan.kernel == nullptr) return false;
  const std::string name = std::string("hopper_linear_") + spelling(type) + "_" + plan.kernel;
  launch(name.c_str(), p,
         {args.out.data, args.x.data, w.data, args.bias, args.norm != nullptr ? args.norm->weight : nullptr,
          args.residual.data},
         {static_cast<uint32_t>(plan.grid)}, static_cast<uint32_t>(plan.threads),
         static_cast<uint32_t>(plan.dynamic_memory));
  return true;
}

// The norm of one row or two is made in the kernel, that of more rows before it.
bool GpuBackend::quantised_on_hopper(const LinearArgs& args, DType type) {
  const GpuMatrix& w = matrix(args.weight);
  const int64_t rows = args.x.rows;
  if (!is_quantised(w.dtype()) || type == DType::kF32 || rows > kHopperQuantisedRows || !has_hopper()) return false;
  if (!on_16_bytes(args.x) || reinterpret_cast<uintptr_t>(args.out.data) % 16 != 0) return false;
  HopperQuantisedParams p = {};
  p.linear = hopper_params(args);
  p.weight = weight_params(w);
  p.linear.normed = args.norm != nullptr && rows <= kHopperQuantisedNormed;
  HopperLinearPlan plan = hopper_quantised_plan(&p, device_->info().compute_units);
  if (plan.kernel == nullptr && p.linear.normed != 0) {
    p.linear.normed = 0;
    plan = hopper_quantised_plan(&p, device_->info().compute_units);
  }
  if (plan.kernel == nullptr) return false;
  const void* x = args.x.data;
  if (args.norm != nullptr && p.linear.normed == 0) {
    void* memory = columns_.grow(*device_, static_cast<size_t>(rows * w.k() * element_bytes(type)));
    const Tensor normed = {memory, type, rows, w.k(), w.k()};
    rms_norm({args.x, args.norm->weight, w.k(), args.norm->eps, normed});
    x = normed.data;
    p.linear.x_stride = static_cast<int>(w.k());
  }
  const std::string name = std::string("hopper_linear_") + spelling(type) + "_quantised_" + plan.kernel;
  launch(name.c_str(), p,
         {args.out.data, x, w.data, args.bias, args.norm != nullptr ? args.norm->weight : nullptr, args.residual.data},
         {static_cast<uint32_t>(plan.grid)}, static_cast<uint32_t>(plan.threads),
         static_cast<uint32_t>(plan.dynamic_memory));
  return true;
}

bool GpuBackend::linear_by_library(const LinearArgs& args, DType type) {
  const GpuMatrix& w = matrix(args.weight);
  const int64_t rows = args.x.rows, n = w.n(), k = w.k();
  const bool plain = w.dtype() == type;
  if (rows < (plain ? kLibraryRows : kLibraryRowsQuantised) || type == DType::kF32 || args.norm != nullptr)
    return false;
  if (k % 8 != 0 || !on_16_bytes(args.x)) return false;
  // A weight of another type is made plain in pieces of `part` rows.
  const int64_t part = plain ? n : std::min(n, std::max<int64_t>(64, kPlainElements / k / 64 * 64));
  if (!device_->library_serves(type, part, k)) return false;
  if (n % part != 0 && !device_->library_serves(type, n % part, k)) return false;

  const LinearLast last = last_of(args);
  const bool whole = last.epilogue == kLinearStoreF32 || (last.epilogue == kLinearStore && args.bias == nullptr);
  const int64_t size = element_bytes(type);
  const int64_t sums_bytes = whole ? 0 : (rows * n * size + 255) / 256 * 256;
  auto* base = static_cast<char*>(
      linear_.grow(*device_, static_cast<size_t>(std::max<int64_t>(1, sums_bytes + (plain ? 0 : part * k * size)))));
  const Tensor sums = whole ? args.out : Tensor{base, type, rows, n, n};
  for (int64_t first = 0; first < n; first += part) {
    const int64_t count = std::min(part, n - first);
    const void* weight = w.data;
    if (!plain) {
      const Tensor made = {base + sums_bytes, type, count, k, k};
      plain_rows(w, first, made);
      weight = made.data;
    }
    if (recording_) current_->others = true;
    device_->library_product({args.x.data, weight, sums.columns(first, count).data, type, sums.dtype, rows, count, k,
                              args.x.stride, sums.stride});
  }
  if (whole && args.bias == nullptr) return true;
  LinearFinishParams p = {};
  p.last = last;
  p.y_stride = sums.stride;
  p.m = static_cast<int>(rows);
  launch((std::string("linear_finish_") + spelling(type)).c_str(), p,
         {args.out.data, sums.data, args.bias, args.residual.data},
         {static_cast<uint32_t>(rows), pieces(last.columns, kLinearThreads)}, kLinearThreads);
  return true;
}

void GpuBackend::linear_own(const LinearArgs& args, DType type) {
  const GpuMatrix& w = matrix(args.weight);
  const int64_t rows = args.x.rows;
  LinearParams p = {};
  p.weight = weight_params(w);
  p.last = last_of(args);
  p.x_stride = args.x.stride;
  p.m = static_cast<int>(rows);
  p.normed = args.norm != nullptr;
  p.aligned = on_16_bytes(args.x);
  p.tiles = static_cast<int>(pieces(args.out.cols, args.gated != nullptr ? 8 : 16));
  p.choices = 1;
  p.eps = args.norm != nullptr ? args.norm->eps : 0.0f;
  const auto run = [&](const char* form, Grid grid, int threads) {
    const std::string name = std::string("linear_") + spelling(type) + form;
    launch(name.c_str(), p,
           {args.out.data, args.x.data, w.data, args.bias, args.norm != nullptr ? args.norm->weight : nullptr,
            args.residual.data},
           grid, static_cast<uint32_t>(threads));
  };
  if (type == DType::kF32) {
    return run("_any", {pieces(args.out.cols, 32), pieces(rows, kLinearFloatRows)}, kLinearThreads);
  }
  const bool plain = w.dtype() == type;
  if (rows > kLinearFewRows) {
    QUIRE_CHECK(args.norm == nullptr, "norms are joined for few rows alone");
    return run(plain ? "_many" : "_any_many", {pieces(p.tiles, 4), pieces(rows, kLinearManyRows)}, kLinearThreads);
  }
  if (!plain) return run("_any_few", {static_cast<uint32_t>(p.tiles), 1}, kLinearAnyThreads);
  // Few tiles in a threadgroup where there are few of them, so that all of the chip has some.
  p.simdgroups = 4;
  while (p.simdgroups > 1 && p.tiles < 2 * p.simdgroups * device_->info().compute_units) p.simdgroups /= 2;
  run("_few", {pieces(p.tiles, p.simdgroups), 1}, 32 * p.simdgroups);
}

// Of linear_by_library(), which only CUDA has: sums before what follows them, and pieces of a weight made plain.
size_t GpuBackend::linear_scratch(const WorkspaceLimits& sizes) const {
  if (device_->info().api != Api::kCuda || sizes.activation == DType::kF32) return 0;
  const int64_t size = element_bytes(sizes.activation);
  const int64_t sums = (sizes.tokens * sizes.out_columns * size + 255) / 256 * 256;
  const int64_t plain =
      std::max<int64_t>(64 * sizes.quantised_columns, sizes.quantised_columns > 0 ? kPlainElements : 0);
  return static_cast<size_t>(sums + plain * size);
}

// Of linear_by_columns(), and of a norm before quantised weights on sm_90a.
size_t GpuBackend::columns_scratch(const WorkspaceLimits& sizes) const {
  const auto padded = [](int64_t columns) { return (columns + 7) / 8 * 8; };
  const int64_t size = element_bytes(sizes.activation);
  const int64_t reordered = sizes.tokens * 2 * padded(sizes.reordered_columns);
  const int64_t normed = std::min<int64_t>(sizes.tokens, kHopperQuantisedRows) * padded(sizes.quantised_columns);
  return static_cast<size_t>(std::max(reordered, normed) * size);
}

}  // namespace quire::gpu
