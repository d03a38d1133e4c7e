// SPDX-License-Identifier: Apache-2.0
// The KV cache's element type.
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

TEST(KvDType, IsTheCheckpointsTypeAndNotAGuess) {
  EXPECT_EQ(resolved({.checkpoint = DType::kBF16}), KvDType::kBFloat16);
  EXPECT_EQ(resolved({.checkpoint = DType::kF32}), KvDType::kFloat32);
  EXPECT_EQ(resolved({.checkpoint = DType::kF16}), KvDType::kFloat16);
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

TEST(KvDType, OfAQuantisedModelThatWasBfloat16KeepsItsRange) {
  EXPECT_EQ(resolved({.checkpoint = DType::kBF16, .quantised_file = true}), KvDType::kBFloat16);
  EXPECT_EQ(resolved({.checkpoint = DType::kF16, .quantised_file = true, .fallback = KvDType::kBFloat16}),
            KvDType::kBFloat16);
  EXPECT_EQ(resolved({.checkpoint = DType::kF16, .quantised_file = true}), KvDType::kFloat16);
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
  EXPECT_EQ(storage_type(KvDType::kFp8E4M3), DType::kF8E4M3);
  EXPECT_EQ(storage_type(KvDType::kFp8E5M2), DType::kF8E5M2);
  EXPECT_EQ(storage_type(KvDType::kInt8PerTokenHead), DType::kI8);
}

}  // namespace
}  // namespace quire::kv
