// SPDX-License-Identifier: Apache-2.0
// cuBLASLt as the device uses it: a missing library, the choice of algorithms and its cache, the check of their bits,
// and products in pieces.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "backend/cuda/cuda_device.h"
#include "backend/cuda/library_check.h"
#include "base/file.h"
#include "base/half.h"
#include "base/test_folder.h"
#include "fake_cuda.h"

namespace quire::cuda {
namespace {

constexpr int64_t kN = 8, kK = 48;
const Image kPortableImage[] = {{"portable", "0\nfill_f32 256 0 8 8\n"}};

class CudaLibrary : public testing::Test {
 protected:
  void SetUp() override {
    setenv("QUIRE_LIBCUDA", std::getenv("QUIRE_FAKE_CUDA"), 1);
    setenv("QUIRE_LIBCUBLASLT", std::getenv("QUIRE_FAKE_CUDA"), 1);
    for (const char* name : {"QUIRE_CUDA_LIBRARY", "QUIRE_CUDA_SPLIT_K"}) unsetenv(name);
    open();
  }
  void TearDown() override {
    device_.reset();
    EXPECT_EQ(fake::device_blocks(), 0u);
    EXPECT_EQ(fake::handles(), 0u);
  }
  void open(const fake::LibrarySettings& settings = {}, const std::filesystem::path& folder = {}) {
    device_.reset();
    fake::reset();
    fake::set_library(settings);
    device_ = open_device(0, kPortableImage, folder).value();
  }
  bool serves(DType type = DType::kBF16, int64_t n = kN, int64_t k = kK) { return device_->library_serves(type, n, k); }
  // Runs a product with that many rows.
  int algorithm_of(int64_t rows) {
    const auto memory = device_->allocate(static_cast<size_t>(2 * rows * kK * 2)).value();
    auto* const y = static_cast<std::byte*>(memory->address()) + rows * kK * 2;
    device_->library_product({.x = memory->address(),
                              .w = memory->address(),
                              .y = y,
                              .m = rows,
                              .n = kN,
                              .k = kK,
                              .x_stride = kK,
                              .y_stride = kN});
    EXPECT_TRUE(device_->synchronise().ok());
    return fake::products().back().first;
  }

  std::unique_ptr<gpu::Device> device_;
};

// The fake's sum, for rows that do not come from it.
Status reference_product(const gpu::LibraryProduct& p, bool backwards) {
  for (int64_t m = 0; m < p.m; ++m) {
    for (int64_t n = 0; n < p.n; ++n) {
      float sum = 0;
      for (int64_t j = 0; j < p.k; ++j) {
        const int64_t i = backwards ? p.k - 1 - j : j;
        sum += bf16_to_float(static_cast<const uint16_t*>(p.x)[m * p.x_stride + i]) *
               bf16_to_float(static_cast<const uint16_t*>(p.w)[n * p.k + i]);
      }
      if (p.out_type == DType::kF32) static_cast<float*>(p.y)[m * p.y_stride + n] = sum;
      if (p.out_type == DType::kBF16) static_cast<uint16_t*>(p.y)[m * p.y_stride + n] = float_to_bf16(sum);
    }
  }
  return {};
}

TEST_F(CudaLibrary, IsNotUsedWhereItIsMissingOrNotWanted) {
  setenv("QUIRE_LIBCUBLASLT", "libno_such_library.so.13", 1);
  EXPECT_FALSE(serves());
  setenv("QUIRE_LIBCUBLASLT", "libm.so.6", 1);
  open();
  EXPECT_FALSE(serves());
  setenv("QUIRE_LIBCUBLASLT", std::getenv("QUIRE_FAKE_CUDA"), 1);
  setenv("QUIRE_CUDA_LIBRARY", "0", 1);
  open();
  EXPECT_FALSE(serves());
  unsetenv("QUIRE_CUDA_LIBRARY");
  open();
  EXPECT_TRUE(serves());
}

TEST_F(CudaLibrary, ServesOnlyPlainTypesAndEvenShapes) {
  EXPECT_TRUE(serves(DType::kF16));
  EXPECT_FALSE(serves(DType::kF32));
  EXPECT_FALSE(serves(DType::kQ8_0));
  EXPECT_FALSE(serves(DType::kBF16, kN + 1, kK));
  EXPECT_FALSE(serves(DType::kBF16, kN, kK + 4));
}

TEST_F(CudaLibrary, DecidesOnce) {
  EXPECT_TRUE(serves());
  const size_t ran = fake::products().size();
  EXPECT_GT(ran, 0u);
  EXPECT_TRUE(serves());
  EXPECT_EQ(fake::products().size(), ran);
}

TEST_F(CudaLibrary, PassesOverAnAlgorithmWithOtherBitsOrThatDoesNotRun) {
  for (const fake::LibrarySettings& settings :
       std::vector<fake::LibrarySettings>{{.odd = 1}, {.refused = 1}, {.odd = 1, .refused = 2}}) {
    open(settings);
    ASSERT_TRUE(serves());
    const size_t before = fake::products().size();
    const int algorithm = algorithm_of(3);
    ASSERT_EQ(fake::products().size(), before + 1);
    EXPECT_NE(algorithm, settings.odd);
    EXPECT_NE(algorithm, settings.refused);
  }
}

// How many products are needed until the library serves the shape, and which algorithm it then uses for ten rows.
struct Start {
  size_t products = 0;
  int algorithm = 0;
};

class CudaLibraryChoices : public CudaLibrary {
 protected:
  Start start(const fake::LibrarySettings& settings = {}) {
    open(settings, folder_);
    EXPECT_TRUE(serves());
    const size_t products = fake::products().size();
    return {products, algorithm_of(10)};
  }
  std::filesystem::path file() const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) return entry.path();
    return {};
  }

  const TempFolder temp_;
  const std::filesystem::path folder_ = temp_.path() / "choices";
};

TEST_F(CudaLibraryChoices, AreKeptAndOnlyCheckedByALaterStart) {
  const Start first = start();
  const Start second = start();
  EXPECT_EQ(second.products, 2 * 3 * kRowSteps.size()) << "both types, three ranges of rows";
  EXPECT_GT(first.products, 3 * second.products);
  EXPECT_EQ(second.algorithm, first.algorithm);
  EXPECT_TRUE(serves(DType::kBF16, kN, 2 * kK));  // another shape, into the same file
  EXPECT_EQ(start().products, second.products);
}

TEST_F(CudaLibraryChoices, AreMadeAgainWhereTheirBitsChanged) {
  const Start first = start();
  const Start second = start({.odd = first.algorithm});
  EXPECT_GT(second.products, first.products / 2);
  EXPECT_NE(second.algorithm, first.algorithm);
  EXPECT_EQ(start({.odd = first.algorithm}).products, 2 * 3 * kRowSteps.size()) << "the new choices are kept";
}

TEST_F(CudaLibraryChoices, AreMadeAgainWhereTheFileIsBroken) {
  const Start first = start();
  const std::string text = read_file(file()).value();
  const size_t word = text.find("000000000000000");
  ASSERT_NE(word, std::string::npos);
  for (const std::string& broken :
       {std::string(), text.substr(0, text.size() / 2), std::string("[1, 2]"),
        text.substr(0, word) + "x" + text.substr(word + 1), std::string(R"({"whose": "another GPU", "shapes": {}})")}) {
    ASSERT_TRUE(write_file(file(), broken).ok());
    EXPECT_GT(start().products, first.products / 2) << broken.substr(0, 60);
    EXPECT_EQ(start().products, 2 * 3 * kRowSteps.size());
  }
}

TEST_F(CudaLibraryChoices, AreNotNeededWhereNoFileCanBeWritten) {
  ASSERT_TRUE(write_file(folder_, "a file where the folder should be").ok());
  EXPECT_GT(start().products, 2 * 3 * kRowSteps.size());
  EXPECT_GT(start().products, 2 * 3 * kRowSteps.size());
}

TEST_F(CudaLibrary, ServesNothingWhoseBitsDependOnTheNumberOfRows) {
  open({.all_odd = true});
  EXPECT_FALSE(serves());
  EXPECT_TRUE(device_->synchronise().ok()) << "the device still works";
}

TEST_F(CudaLibrary, SplitsKAsOftenAsRequested) {
  EXPECT_EQ(library_split(), 1);
  setenv("QUIRE_CUDA_SPLIT_K", "3", 1);
  EXPECT_EQ(library_split(), 3);
  EXPECT_TRUE(serves());
  EXPECT_EQ(fake::products().front().first, 2) << "the one that splits K in three by itself comes first";
}

TEST_F(CudaLibrary, ServesOnlyWhatAgreesWithTheOwnKernels) {
  for (const bool backwards : {false, true}) {
    open();
    int64_t calls = 0;
    device_->set_library_reference([&](const gpu::LibraryProduct& product) -> Status {
      ++calls;
      QUIRE_TRY(device_->synchronise());
      return reference_product(product, backwards);
    });
    EXPECT_EQ(serves(), !backwards);
    EXPECT_GT(calls, 0);
  }
}

TEST_F(CudaLibrary, MultipliesManyRowsInPieces) {
  ASSERT_TRUE(serves());
  const int64_t rows = 4100, x_stride = kK + 8, y_stride = kN + 8;
  std::vector<uint16_t> x(static_cast<size_t>(rows * x_stride)), w(static_cast<size_t>(kN * kK));
  for (size_t i = 0; i < x.size(); ++i) x[i] = float_to_bf16(static_cast<float>(i % 77) - 38.0f);
  for (size_t i = 0; i < w.size(); ++i) w[i] = float_to_bf16(static_cast<float>(i % 13) * 0.37f);
  const auto dx = device_->allocate(x.size() * 2).value(), dw = device_->allocate(w.size() * 2).value();
  const auto dy = device_->allocate(static_cast<size_t>(rows * y_stride) * 4).value();
  device_->upload(dx->address(), x.data(), x.size() * 2);
  device_->upload(dw->address(), w.data(), w.size() * 2);
  const size_t before = fake::products().size();
  gpu::LibraryProduct product = {.x = dx->address(),
                                 .w = dw->address(),
                                 .y = dy->address(),
                                 .out_type = DType::kF32,
                                 .m = rows,
                                 .n = kN,
                                 .k = kK,
                                 .x_stride = x_stride,
                                 .y_stride = y_stride};
  device_->begin_recording();
  device_->library_product(product);
  auto graph = device_->end_recording();
  ASSERT_TRUE(graph.ok());
  device_->run(**graph);
  std::vector<float> got(static_cast<size_t>(rows * y_stride)), expected(got.size());
  device_->download(got.data(), dy->address(), got.size() * 4);
  ASSERT_TRUE(device_->synchronise().ok());
  ASSERT_EQ(fake::products().size(), before + 2);
  EXPECT_EQ(fake::products()[before].second, 4096);
  EXPECT_EQ(fake::products()[before + 1].second, 4);
  product.x = x.data();
  product.w = w.data();
  product.y = expected.data();
  ASSERT_TRUE(reference_product(product, false).ok());
  EXPECT_TRUE(got == expected);
}

TEST_F(CudaLibrary, ChecksWhetherAnOwnProductIsEqual) {
  ASSERT_TRUE(serves());
  const ProductShape shape = {DType::kBF16, kN, kK};
  const auto backwards_from = [&](int64_t rows) {
    return check_equal(*device_, shape, [this, rows](const gpu::LibraryProduct& product) -> Status {
      QUIRE_TRY(device_->synchronise());
      return reference_product(product, product.m >= rows);
    });
  };
  EXPECT_TRUE(backwards_from(1000).value());
  EXPECT_FALSE(backwards_from(1).value());
  EXPECT_FALSE(backwards_from(200).value()) << "many rows are checked as well";
  EXPECT_FALSE(check_equal(*device_, shape, [](const gpu::LibraryProduct&) { return Status(); }).value());
}

}  // namespace
}  // namespace quire::cuda
