// SPDX-License-Identifier: Apache-2.0
// Tests of the checksums against values computed elsewhere (sha256sum, git hash-object).
#include "cli/hub/digest.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_folder.h"

namespace quire::cli {
namespace {

TEST(Digest, EqualsTheKnownOnes) {
  const TempFolder folder;
  const auto path = folder.path() / "file";
  ASSERT_TRUE(write_file(path, "hello\n").ok());
  EXPECT_EQ(*file_digest(path, kSha256), "sha256:5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
  EXPECT_EQ(*file_digest(path, kGitSha1), "git-sha1:ce013625030ba8dba906f756967f9e9ca394464a");
  ASSERT_TRUE(write_file(path, "").ok());
  EXPECT_EQ(*file_digest(path, kGitSha1), "git-sha1:e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  ASSERT_TRUE(write_file(path, std::string(3'000'000, 'a')).ok());
  size_t heard = 0;
  EXPECT_EQ(*file_digest(path, kSha256, [&](size_t n) { heard += n; }),
            "sha256:2a152c894398719c0570f83fac34ac03a0f6e8e474b995c2403aa5434f7b9dd4");
  EXPECT_EQ(heard, 3'000'000u);
}

TEST(Digest, AMissingFileIsAnError) {
  EXPECT_FALSE(file_digest("/nowhere/at/all", kSha256).ok());
}

TEST(Digest, KnowsItsKindByTheLength) {
  EXPECT_EQ(digest_from_hex(std::string(64, 'A')), "sha256:" + std::string(64, 'a'));
  EXPECT_EQ(digest_from_hex(std::string(40, '0')), "git-sha1:" + std::string(40, '0'));
  EXPECT_EQ(digest_from_hex(std::string(40, 'g')), "");
  EXPECT_EQ(digest_from_hex("abc"), "");
  EXPECT_EQ(digest_from_hex(""), "");
}

}  // namespace
}  // namespace quire::cli
