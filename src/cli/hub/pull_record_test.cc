// SPDX-License-Identifier: Apache-2.0
// Tests of the record of a pull.
#include "cli/hub/pull_record.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_folder.h"

namespace quire::cli {
namespace {

namespace fs = std::filesystem;

class PullRecordFile : public ::testing::Test {
 protected:
  const TempFolder temp_;
  const fs::path& folder_ = temp_.path();
};

TEST_F(PullRecordFile, ComesBackAsItWasSaved) {
  PullRecord record;
  record.name = "a/b";
  record.revision = "0123";
  record.files["x.json"] = {12, "git-sha1:00", true};
  record.files["sub/y \"z\".gguf"] = {uint64_t{1} << 40, "", false};
  ASSERT_TRUE(record.save(folder_).ok());
  const PullRecord back = PullRecord::load(folder_);
  EXPECT_EQ(back.name, "a/b");
  EXPECT_EQ(back.revision, "0123");
  ASSERT_EQ(back.files.size(), 2u);
  EXPECT_EQ(back.files.at("x.json").digest, "git-sha1:00");
  EXPECT_TRUE(back.files.at("x.json").done);
  EXPECT_EQ(back.files.at("sub/y \"z\".gguf").size, uint64_t{1} << 40);
  EXPECT_FALSE(back.complete());
}

TEST_F(PullRecordFile, MissingOrDamagedIsEmptyAndComplete) {
  EXPECT_TRUE(PullRecord::load(folder_).files.empty());
  for (const char* text : {"", "{", "[]", "{\"files\": 3}", "{\"files\": {\"a\": {\"size\": -1}}}"}) {
    ASSERT_TRUE(write_file(folder_ / kPullRecordName, text).ok());
    EXPECT_TRUE(PullRecord::load(folder_).files.empty()) << text;
    EXPECT_TRUE(PullRecord::load(folder_).complete()) << text;
  }
}

}  // namespace
}  // namespace quire::cli
