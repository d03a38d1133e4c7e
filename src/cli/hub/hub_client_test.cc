// SPDX-License-Identifier: Apache-2.0
// Tests of addresses, names and the hub's listing; tests/pull covers the network.
#include "cli/hub/hub_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire::cli {
namespace {

using ::testing::HasSubstr;

TEST(Url, OriginIsSchemeHostAndPort) {
  EXPECT_EQ(url_origin("https://Hub.Example/a?b"), "https://hub.example:443");
  EXPECT_EQ(url_origin("HTTP://hub.example"), "http://hub.example:80");
  EXPECT_EQ(url_origin("http://127.0.0.1:8080/x"), "http://127.0.0.1:8080");
  EXPECT_EQ(url_origin("http://user:secret@hub.example/"), "http://hub.example:80");
  for (const char* url : {"", "hub.example", "ftp://hub.example", "file:///etc/passwd", "http://", "http://a b/"}) {
    EXPECT_EQ(url_origin(url), "") << url;
  }
}

TEST(Url, JoinsLocations) {
  EXPECT_EQ(url_join("http://a/b/c?d", "/e"), "http://a/e");
  EXPECT_EQ(url_join("http://a/b/c", "d"), "http://a/b/d");
  EXPECT_EQ(url_join("http://a/b/c", "https://x:9/y?z=%2F%20&w=a+b"), "https://x:9/y?z=%2F%20&w=a+b");
  EXPECT_EQ(url_join("http://a/b", "//other/c"), "http://other/c");
}

TEST(Url, EncodesAllButTheUnreserved) {
  EXPECT_EQ(url_encode("a b/c%\xc3\xa9~"), "a%20b%2Fc%25%C3%A9~");
  EXPECT_EQ(url_encode("sub/a#b?.gguf", "/"), "sub/a%23b%3F.gguf");
}

TEST(ModelName, IsSafeAsAFolder) {
  for (const char* name : {"gpt2", "owner/name", "Owner-1/Name_2.5-GGUF"}) EXPECT_TRUE(is_model_name(name)) << name;
  for (const char* name : {"", "/", "a/", "/a", "a/b/c", "..", "../a", "a/..", ".a/b", "a b", "a/b:c", "-a", "a\\b"}) {
    EXPECT_FALSE(is_model_name(name)) << name;
  }
}

TEST(Listing, ReadsSizesAndBothKindsOfDigest) {
  const std::string sha256(64, 'a');
  const std::string sha1(40, 'b');
  const auto listing = parse_listing(R"({"sha":"c0ffee","siblings":[
      {"rfilename":"config.json","size":12,"blobId":")" +
                                         sha1 + R"("},
      {"rfilename":"model.safetensors","size":5,"blobId":")" +
                                         sha1 + R"(","lfs":{"sha256":")" + sha256 +
                                         R"(","size":1000,"pointerSize":130}},
      {"rfilename":"plain.txt"}]})",
                                     "a/b", "main");
  ASSERT_TRUE(listing.ok()) << listing.error().message;
  EXPECT_EQ(listing->commit, "c0ffee");
  ASSERT_EQ(listing->files.size(), 3u);
  EXPECT_EQ(listing->files[0].digest, "git-sha1:" + sha1);
  EXPECT_EQ(listing->files[0].size, 12u);
  EXPECT_EQ(listing->files[1].digest, "sha256:" + sha256);
  EXPECT_EQ(listing->files[1].size, 1000u);
  EXPECT_EQ(listing->files[2].digest, "");
  EXPECT_FALSE(listing->files[2].size_known);
}

TEST(Listing, BadOnesAreErrorsThatNameTheRepository) {
  for (const char* text : {"", "<html>", "{}", "{\"siblings\":3}", "{\"siblings\":[3]}", "{\"siblings\":[{}]}",
                           "{\"siblings\":[{\"rfilename\":7}]}", "{\"siblings\":[{\"rfilename\":\"../../x\"}]}",
                           "{\"siblings\":[{\"rfilename\":\"/etc/passwd\"}]}"}) {
    const auto listing = parse_listing(text, "a/b", "main");
    ASSERT_FALSE(listing.ok()) << text;
    EXPECT_THAT(listing.error().message, HasSubstr("a/b")) << text;
  }
}

TEST(HubClient, BuildsAddressesAndRefusesOddEndpoints) {
  HttpClient http(1);
  EXPECT_FALSE(HubClient::open("hub.example", "", http).ok());
  EXPECT_FALSE(HubClient::open("file:///tmp", "", http).ok());
  const auto hub = HubClient::open("http://hub.example/base//", "", http);
  ASSERT_TRUE(hub.ok());
  EXPECT_EQ(hub->file_url({"a/b", "c0ffee", {}}, "sub/x y.gguf"),
            "http://hub.example/base/a/b/resolve/c0ffee/sub/x%20y.gguf");
}

TEST(HubClient, SpeaksModelScope) {
  HttpClient http(1);
  const auto hub = HubClient::open("https://www.modelscope.cn/", "", http);
  ASSERT_TRUE(hub.ok());
  EXPECT_EQ(hub->listing_url("a/b", "main"),
            "https://www.modelscope.cn/api/v1/models/a/b/repo/files?Revision=master&Recursive=true");
  EXPECT_EQ(hub->listing_url("a/b", "v 1"),
            "https://www.modelscope.cn/api/v1/models/a/b/repo/files?Revision=v%201&Recursive=true");
  EXPECT_EQ(hub->file_url({"a/b", "master", {}}, "sub/x y.gguf"),
            "https://www.modelscope.cn/models/a/b/resolve/master/sub/x%20y.gguf");
  for (const char* other : {"https://huggingface.co", "https://notmodelscope.cn", "https://modelscope.cn.example"}) {
    EXPECT_FALSE(is_modelscope(other)) << other;
  }
  EXPECT_TRUE(is_modelscope("https://modelscope.ai"));
}

TEST(Listing, OfModelScope) {
  const std::string sha256(64, 'b');
  const auto listing = parse_modelscope_listing(
      R"({"Code": 200, "Success": true, "Data": {"Files": [
          {"Path": "sub", "Type": "tree", "Size": 0},
          {"Path": "sub/x.gguf", "Type": "blob", "Size": 1000, "Sha256": ")" +
          sha256 + R"("}, {"Path": "config.json", "Size": 12}]}})",
      "a/b", "master");
  ASSERT_TRUE(listing.ok()) << listing.error().message;
  EXPECT_EQ(listing->commit, "master");
  ASSERT_EQ(listing->files.size(), 2u);
  EXPECT_EQ(listing->files[0].path, "sub/x.gguf");
  EXPECT_EQ(listing->files[0].size, 1000u);
  EXPECT_EQ(listing->files[0].digest, "sha256:" + sha256);
  EXPECT_EQ(listing->files[1].digest, "");
  for (const char* text :
       {"", "<html>", "{}", R"({"Data": 3})", R"({"Data": {"Files": 3}})", R"({"Data": {"Files": [3]}})",
        R"({"Data": {"Files": [{"Path": "../x"}]}})", R"({"Success": false, "Message": "not found"})"}) {
    const auto bad = parse_modelscope_listing(text, "a/b", "master");
    ASSERT_FALSE(bad.ok()) << text;
    EXPECT_THAT(bad.error().message, HasSubstr("a/b")) << text;
  }
}

}  // namespace
}  // namespace quire::cli
