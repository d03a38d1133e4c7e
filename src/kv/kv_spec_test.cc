// SPDX-License-Identifier: Apache-2.0
// The KV cache's element type and the bytes of its pages.
#include "kv/kv_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire::kv {
namespace {

using ::testing::HasSubstr;

constexpr KvDType kPlain[] = {KvDType::kFloat32, KvDType::kFloat16, KvDType::kBFloat16};
constexpr KvDType kAll[] = {KvDType::kFloat32, KvDType::kFloat16, KvDType::kBFloat16,
                            KvDType::kFp8E4M3, KvDType::kFp8E5M2, KvDType::kInt8PerTokenHead};

KvDType resolved(const KvDTypeChoice& choice, std::span<const KvDType> supported = kPlain) {
  const auto result = resolve_kv_dtype(choice, supported);
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result.ok() ? *result : KvDType::kFp8E5M2;
}

Error refused(const KvDTypeChoice& choice, std::span<const KvDType> supported = kPlain) {
  const auto result = resolve_kv_dtype(choice, supported);
  EXPECT_FALSE(result.ok());
  return result.ok() ? Error{} : result.error();
}

// Bug: a bfloat16 model got float16 pages, because the type was fixed in the code instead of taken from the model, and
// the size of the cache was computed from an assumed element size; outputs differed and the number of pages was wrong.
TEST(KvSpecRegression, PagesHaveTheModelsTypeAndTheirBytesFollowIt) {
  KvSpec spec{.num_layers = 28, .num_kv_heads = 8, .k_head_dim = 128, .v_head_dim = 128, .block_size = 16};
  const int64_t elements = 28 * 2 * 16 * 8 * 128;
  spec.dtype = resolved({.checkpoint = DType::kBF16});
  EXPECT_EQ(spec.dtype, KvDType::kBFloat16);
  EXPECT_EQ(spec.page_bytes(), elements * 2);
  spec.dtype = resolved({.checkpoint = DType::kF32});
  EXPECT_EQ(spec.dtype, KvDType::kFloat32);
  EXPECT_EQ(spec.page_bytes(), elements * 4);
  spec.dtype = resolved({.checkpoint = DType::kF16});
  EXPECT_EQ(spec.dtype, KvDType::kFloat16);
  EXPECT_EQ(spec.page_bytes(), elements * 2);
  // No type to infer: the fallback, and not a guess from block data.
  EXPECT_EQ(resolved({}), KvDType::kFloat16);
  EXPECT_EQ(resolved({.checkpoint = DType::kQ4_1, .quantised_file = true}), KvDType::kFloat16);
}

TEST(KvDType, TheFlagWinsOverDtypeAndDtypeOverTheCheckpoint) {
  EXPECT_EQ(resolved({.kv_cache_dtype = "float32", .dtype = "bfloat16", .checkpoint = DType::kF16}), KvDType::kFloat32);
  EXPECT_EQ(resolved({.dtype = "bfloat16", .checkpoint = DType::kF16}), KvDType::kBFloat16);
  EXPECT_EQ(resolved({.dtype = "float", .quantised_file = true}), KvDType::kFloat32);
  EXPECT_EQ(resolved({.dtype = "half"}), KvDType::kFloat16);
  // A quantised file's few plain tensors (norms in F32) say nothing about the pages.
  EXPECT_EQ(resolved({.checkpoint = DType::kF32, .quantised_file = true}), KvDType::kFloat16);
}

TEST(KvDType, EverySpellingParses) {
  for (const KvDType type : kAll) EXPECT_EQ(resolved({.kv_cache_dtype = name(type)}, kAll), type);
  EXPECT_EQ(resolved({.kv_cache_dtype = "fp8"}, kAll), KvDType::kFp8E4M3);
}

TEST(KvDType, AnUnknownSpellingListsTheChoices) {
  const Error error = refused({.kv_cache_dtype = "fp7"});
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message, HasSubstr("--kv-cache-dtype"));
  EXPECT_THAT(error.message, HasSubstr("'fp7'"));
  for (const KvDType type : kAll) EXPECT_THAT(error.message, HasSubstr(name(type)));
  EXPECT_THAT(refused({.dtype = "int8"}).message, HasSubstr("--dtype: 'int8'"));
}

TEST(KvDType, ATypeTheBackendLacksIsRefusedWithThoseItHas) {
  const Error error = refused({.kv_cache_dtype = "fp8_e5m2"});
  EXPECT_EQ(error.code, ErrorCode::kUnsupported);
  EXPECT_THAT(error.message, HasSubstr("fp8_e5m2"));
  EXPECT_THAT(error.message, HasSubstr("float32, float16, bfloat16"));
  const KvDType only[] = {KvDType::kFloat16};
  EXPECT_THAT(refused({.checkpoint = DType::kBF16}, only).message, HasSubstr("the checkpoint's type"));
}

TEST(KvDType, StorageTypesAreThoseOfTheOps) {
  EXPECT_EQ(storage_type(KvDType::kFloat32), DType::kF32);
  EXPECT_EQ(storage_type(KvDType::kFloat16), DType::kF16);
  EXPECT_EQ(storage_type(KvDType::kBFloat16), DType::kBF16);
  EXPECT_EQ(storage_type(KvDType::kFp8E4M3), std::nullopt);
}

TEST(KvSpec, CountsKAndVApartAndScalesWithThem) {
  const KvSpec spec{.num_layers = 3, .num_kv_heads = 2, .k_head_dim = 96, .v_head_dim = 64, .block_size = 32};
  EXPECT_EQ(spec.token_bytes_per_layer(), 2 * (96 + 64) * 2);
  EXPECT_EQ(spec.layer_page_bytes(), 32 * 2 * (96 + 64) * 2);
  EXPECT_EQ(spec.page_bytes(), 3 * 32 * 2 * (96 + 64) * 2);
  EXPECT_EQ(spec.bytes_per_token(), 3 * 2 * (96 + 64) * 2);
  KvSpec int8 = spec;
  int8.dtype = KvDType::kInt8PerTokenHead;  // one float for each head's K and one for its V
  EXPECT_EQ(int8.token_bytes_per_layer(), 2 * (96 + 4 + 64 + 4));
}

TEST(KvSpec, ABlockSizeThatIsNoMultipleOf16IsRefused) {
  KvSpec spec{.num_layers = 1, .num_kv_heads = 1, .k_head_dim = 64, .v_head_dim = 64};
  for (const int64_t good : {16, 32, 48, 128, 1024}) {
    spec.block_size = good;
    EXPECT_TRUE(spec.validate().ok()) << good;
  }
  for (const int64_t bad : {-16, 0, 1, 8, 17, 40, 1 << 20}) {
    spec.block_size = bad;
    const Status status = spec.validate();
    ASSERT_FALSE(status.ok()) << bad;
    EXPECT_THAT(status.error().message, HasSubstr("--block-size"));
  }
}

TEST(KvSpec, ShapesFromALyingFileAreRefused) {
  const KvSpec good{.num_layers = 30, .num_kv_heads = 3, .k_head_dim = 64, .v_head_dim = 64};
  EXPECT_TRUE(good.validate().ok());
  for (const int64_t bad : {int64_t{-1}, int64_t{0}, int64_t{1} << 40}) {
    for (auto field : {&KvSpec::num_layers, &KvSpec::num_kv_heads, &KvSpec::k_head_dim, &KvSpec::v_head_dim}) {
      KvSpec spec = good;
      spec.*field = bad;
      EXPECT_FALSE(spec.validate().ok()) << bad;
    }
  }
  const KvSpec huge{.num_layers = 4096, .num_kv_heads = 8192, .k_head_dim = 16384, .v_head_dim = 16384};
  EXPECT_FALSE(huge.validate().ok());
}

}  // namespace
}  // namespace quire::kv
