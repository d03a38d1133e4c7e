// SPDX-License-Identifier: Apache-2.0
// linear through a vendor's library: an emulator whose library sums on the host, in the order of the emulator's matrix
// tile, must give the bits of the own kernels for every way that sums leave, and for weights that are made plain first.
#include "backend/gpu/test_device.h"
#include "backend/testing/linear_cases.h"

namespace quire::gpu {
namespace {

class LibraryDevice final : public Device {
 public:
  explicit LibraryDevice(std::unique_ptr<Device> real) : real_(std::move(real)) { info_ = real_->info(); }
  size_t free_bytes() const override { return real_->free_bytes(); }
  Result<std::unique_ptr<Memory>> allocate(size_t bytes) override { return real_->allocate(bytes); }
  Result<std::unique_ptr<Memory>> allocate_host(size_t bytes) override { return real_->allocate_host(bytes); }
  Result<const Kernel*> kernel(std::string_view name) override { return real_->kernel(name); }
  std::vector<std::string> kernel_names() const override { return real_->kernel_names(); }
  void launch(const Launch& launch) override { real_->launch(launch); }
  void upload(void* to, const void* from, size_t bytes) override { real_->upload(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { real_->download(to, from, bytes); }
  void copy(void* to, const void* from, size_t bytes) override { real_->copy(to, from, bytes); }
  void fill(void* to, uint8_t value, size_t bytes) override { real_->fill(to, value, bytes); }
  Status synchronise() override { return real_->synchronise(); }
  uint64_t mark() override { return real_->mark(); }
  Status wait(uint64_t mark) override { return real_->wait(mark); }

  bool library_serves(DType type, int64_t, int64_t) override { return type != DType::kF32; }
  void library_product(const LibraryProduct& p) override {
    ++products;
    const Status done = real_->synchronise();
    QUIRE_CHECK(done.ok());
    for (int64_t m = 0; m < p.m; ++m) {
      for (int64_t n = 0; n < p.n; ++n) {
        float acc = 0;
        for (int64_t k = 0; k < p.k; ++k) {
          acc += value(p.x, m * p.x_stride + k, p.type) * value(p.w, n * p.k + k, p.type);
        }
        const int64_t at = m * p.y_stride + n;
        const uint16_t bits = p.type == DType::kF16 ? float_to_fp16(acc) : float_to_bf16(acc);
        if (p.out_type == DType::kF32) static_cast<float*>(p.y)[at] = acc;
        if (p.out_type != DType::kF32) static_cast<uint16_t*>(p.y)[at] = bits;
      }
    }
  }
  int products = 0;

 private:
  static float value(const void* data, int64_t at, DType type) {
    const uint16_t bits = static_cast<const uint16_t*>(data)[at];
    return type == DType::kF16 ? fp16_to_float(bits) : bf16_to_float(bits);
  }
  std::unique_ptr<Device> real_;
};

struct LibraryCase {
  DType type, weight, out;
  bool biased = false, gated = false, residual = false;
};

TEST(GpuLinearLibrary, HasTheBitsOfTheOwnKernelsHoweverSumsLeave) {
  const LibraryCase cases_[] = {
      {DType::kBF16, DType::kBF16, DType::kBF16},
      {DType::kF16, DType::kF16, DType::kF16, true},
      {DType::kBF16, DType::kBF16, DType::kF32},
      {DType::kBF16, DType::kBF16, DType::kF32, true},
      {DType::kBF16, DType::kBF16, DType::kBF16, true, true},
      {DType::kF16, DType::kF16, DType::kF32, true, false, true},
      {DType::kBF16, DType::kQ4_K, DType::kBF16},
      {DType::kF16, DType::kG8, DType::kF16, true, true},
      {DType::kBF16, DType::kQ8_0, DType::kF32, true},
  };
  const int64_t rows = 66, n = 56, k = 256;
  for (const LibraryCase& c : cases_) {
    auto opened = open_emulator(emulator::EmulatorOptions{});
    ASSERT_TRUE(opened.ok());
    auto owned = std::make_unique<LibraryDevice>(std::move(opened).value());
    LibraryDevice& device = *owned;
    TestDevice test(std::make_unique<GpuBackend>(std::move(owned)));
    const cases::Weight weight = cases::random_weight_of(c.weight, n, k, 5);
    const RawMatrix raw = weight.raw();
    const auto packed = test.ops().pack({&raw, 1}, {.activation = c.type});
    ASSERT_TRUE(packed.ok());
    const FusedGlu form{Activation::kGelu};
    const HostMatrix x(rows, k, c.type, 3, 1.0f, 8), bias(1, n, DType::kF32, 4), before(rows, n, DType::kF32, 6);
    const auto run = [&](int64_t first, int64_t count) {
      LinearArgs args{test.put(x).some_rows(first, count), packed->get(), c.biased ? test.put(bias).f32() : nullptr,
                      test.room(count, c.gated ? n / 2 : n, c.out, 8)};
      if (c.gated) args.gated = &form;
      if (c.residual) args.residual = test.put(before).some_rows(first, count);
      args.residual_scale = 0.3f;
      test.ops().linear(args);
      return test.rows_of(args.out);
    };
    const std::vector<uint8_t> whole = run(0, rows);
    EXPECT_EQ(device.products, 1) << name(c.weight);
    std::vector<uint8_t> in_parts;
    for (int64_t first = 0; first < rows; first += 11) {
      const std::vector<uint8_t> part = run(first, 11);
      in_parts.insert(in_parts.end(), part.begin(), part.end());
    }
    EXPECT_EQ(device.products, 1) << "few rows are not the library's";
    EXPECT_EQ(whole, in_parts) << name(c.type) << ", " << name(c.weight) << " weight to " << name(c.out)
                               << (c.gated ? ", gated" : "") << (c.residual ? ", residual" : "");
  }
}

}  // namespace
}  // namespace quire::gpu
