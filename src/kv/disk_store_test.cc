// SPDX-License-Identifier: Apache-2.0
// Page files: what is written comes back bit for bit, and nothing else is ever believed.
#include "kv/disk_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <random>

#include "base/test_folder.h"

namespace quire::kv {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

PageName named(int i) {
  return Sha256().add("page " + std::to_string(i)).finish();
}

Bytes contents(int i, size_t bytes = 1000) {
  std::mt19937 rng(static_cast<uint32_t>(i));
  Bytes out(bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(rng());
  return out;
}

// What the store has of page i, or nothing.
Bytes read(DiskStore& store, int i, size_t bytes = 1000) {
  Bytes out(bytes);
  return store.get(named(i), out) ? out : Bytes();
}

std::string slurp(const fs::path& file) {
  return *read_file(file);
}

TEST(DiskStoreTest, ReturnsWhatWasPutAlsoAfterARestart) {
  const TempFolder folder;
  for (int run = 0; run < 2; ++run) {
    const auto store = DiskStore::open(folder.path() / "tier", 1 << 20);
    EXPECT_TRUE(store->writable());
    if (run == 0) {
      for (int i = 0; i < 5; ++i) EXPECT_TRUE(store->put(named(i), contents(i)));
    }
    for (int i = 0; i < 5; ++i) EXPECT_EQ(read(*store, i), contents(i));
    EXPECT_FALSE(store->has(named(5)));
    EXPECT_EQ(read(*store, 5), Bytes());
    EXPECT_EQ(store->stats().files, 5);
    EXPECT_EQ(store->stats().bytes, 5 * (1000 + 128));
    EXPECT_EQ(fs::status(folder.path() / "tier").permissions(), fs::perms::owner_all);
  }
}

TEST(DiskStoreTest, NoticesEveryFlippedBit) {
  const TempFolder folder;
  const auto store = DiskStore::open(folder.path(), 1 << 20);
  const Bytes page = contents(0, 64);
  ASSERT_TRUE(store->put(named(0), page));
  const fs::path file = store->file_of(named(0));
  const std::string good = slurp(file);
  ASSERT_EQ(good.size(), 128u + 64u);
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    folder.write(fs::relative(file, folder.path()), bad);
    EXPECT_EQ(read(*store, 0, 64), Bytes()) << "bit " << bit;
    EXPECT_FALSE(fs::exists(file)) << "a damaged file is deleted";
  }
  EXPECT_EQ(store->stats().refused, static_cast<int64_t>(good.size() * 8));
  EXPECT_FALSE(store->has(named(0)));
  EXPECT_TRUE(store->put(named(0), page)) << "the page can be stored again";
  EXPECT_EQ(read(*store, 0, 64), page);
}

TEST(DiskStoreTest, IgnoresTornForeignAndStaleFiles) {
  const TempFolder folder;
  {
    const auto store = DiskStore::open(folder.path(), 1 << 20);
    for (int i = 0; i < 8; ++i) ASSERT_TRUE(store->put(named(i), contents(i)));
    const auto path = [&](int i) { return store->file_of(named(i)); };
    const auto replace = [&](int i, const std::string& bytes) {
      folder.write(fs::relative(path(i), folder.path()), bytes);
    };
    replace(0, slurp(path(0)).substr(0, 700));  // torn
    replace(1, slurp(path(1)).substr(0, 60));   // torn in its header
    replace(2, "");                             // torn at once
    replace(3, slurp(path(3)) + "more");        // too long
    replace(4, slurp(path(5)));                 // another page under its name
    replace(6, std::string(1128, 'x'));         // no page at all
    std::string newer = slurp(path(7));
    newer[8] = 2;  // a later version
    replace(7, newer);
  }
  folder.write("ab/readme.txt", "not a page");
  folder.write("new-7", "left by a crash");
  const auto store = DiskStore::open(folder.path(), 1 << 20);
  for (const int i : {0, 1, 2, 3, 4, 6, 7}) EXPECT_EQ(read(*store, i), Bytes()) << i;
  EXPECT_EQ(store->stats().refused, 7);
  EXPECT_EQ(read(*store, 5), contents(5));
  EXPECT_EQ(read(*store, 5, 999), Bytes()) << "a page of another size";
  EXPECT_FALSE(fs::exists(folder.path() / "new-7"));
  EXPECT_TRUE(fs::exists(folder.path() / "ab" / "readme.txt")) << "files of others are left alone";
}

TEST(DiskStoreTest, KeepsToItsSizeAndDeletesWhatWasNotUsed) {
  const TempFolder folder;
  const int64_t size = 10 * 1128 + 500;
  {
    const auto store = DiskStore::open(folder.path(), size);
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(store->put(named(i), contents(i)));
    EXPECT_EQ(store->stats().evicted, 0);
    EXPECT_EQ(read(*store, 0), contents(0));
    EXPECT_TRUE(store->touch(named(1)));
    for (int i = 10; i < 13; ++i) ASSERT_TRUE(store->put(named(i), contents(i)));
    for (const int gone : {2, 3, 4}) EXPECT_FALSE(store->has(named(gone)));
    for (const int kept : {0, 1, 5, 12}) EXPECT_EQ(read(*store, kept), contents(kept)) << kept;
    EXPECT_EQ(store->stats().evicted, 3);
    EXPECT_LE(store->stats().bytes, size);
    EXPECT_FALSE(store->put(named(99), contents(99, 20'000))) << "a page that can never fit";
    EXPECT_EQ(store->stats().files, 10);
  }
  const auto smaller = DiskStore::open(folder.path(), 4 * 1128);
  EXPECT_EQ(smaller->stats().files, 4);
  for (const int kept : {0, 1, 5, 12}) EXPECT_TRUE(smaller->has(named(kept))) << kept << " was read last";
}

TEST(DiskStoreTest, AFullDiskEndsWritingAndNotReading) {
  const TempFolder folder;
  const auto store = DiskStore::open(folder.path(), 1 << 20);
  ASSERT_TRUE(store->put(named(0), contents(0)));
  // A file that must not grow beyond 600 bytes fails in the middle, as on a full disk.
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{600, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const bool written = store->put(named(1), contents(1));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_FALSE(written);
  EXPECT_FALSE(store->writable());
  EXPECT_FALSE(store->put(named(2), contents(2)));
  EXPECT_FALSE(store->has(named(1)));
  EXPECT_EQ(read(*store, 0), contents(0));
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("new-")) << "half a file is left";
  }
}

TEST(DiskStoreTest, OneProcessWritesAndOthersRead) {
  const TempFolder folder;
  { ASSERT_TRUE(DiskStore::open(folder.path(), 1 << 20)->put(named(0), contents(0))); }
  const int other = ::open((folder.path() / "lock").c_str(), O_RDWR);
  ASSERT_EQ(::flock(other, LOCK_EX | LOCK_NB), 0) << "a closed store has given its lock back";
  {
    const auto reader = DiskStore::open(folder.path(), 1 << 20);
    EXPECT_FALSE(reader->writable());
    EXPECT_EQ(read(*reader, 0), contents(0));
    EXPECT_FALSE(reader->put(named(1), contents(1)));
    const fs::path file = reader->file_of(named(0));
    folder.write(fs::relative(file, folder.path()), "damaged");
    EXPECT_EQ(read(*reader, 0), Bytes());
    EXPECT_TRUE(fs::exists(file)) << "it is not the reader's to delete";
    EXPECT_FALSE(reader->has(named(0)));
  }
  ::close(other);
  const auto first = DiskStore::open(folder.path(), 1 << 20);
  EXPECT_TRUE(first->writable());
  EXPECT_EQ(DiskStore::open(folder.path() / ".", 1 << 20), first) << "one store per folder in a process";
}

TEST(DiskStoreTest, AFolderThatVanishesOrCannotBeMadeIsNoTier) {
  const TempFolder folder;
  const auto store = DiskStore::open(folder.path() / "tier", 1 << 20);
  ASSERT_TRUE(store->put(named(0), contents(0)));
  fs::remove_all(folder.path() / "tier");
  EXPECT_EQ(read(*store, 0), Bytes());
  EXPECT_FALSE(store->put(named(1), contents(1)));
  EXPECT_FALSE(store->writable());

  folder.write("file", "");
  const auto none = DiskStore::open(folder.path() / "file", 1 << 20);
  EXPECT_FALSE(none->writable());
  EXPECT_FALSE(none->put(named(0), contents(0)));
  EXPECT_FALSE(DiskStore::open(folder.path() / "file" / "below", 1 << 20)->writable());
}

TEST(DiskStoreTest, AFolderThatCannotBeLockedIsOnlyRead) {
  const TempFolder folder;
  { ASSERT_TRUE(DiskStore::open(folder.path(), 1 << 20)->put(named(0), contents(0))); }
  fs::remove(folder.path() / "lock");
  fs::create_directory(folder.path() / "lock");  // nobody can write to it, not even root
  const auto store = DiskStore::open(folder.path(), 1 << 20);
  EXPECT_FALSE(store->writable());
  EXPECT_EQ(read(*store, 0), contents(0));
  EXPECT_FALSE(store->put(named(1), contents(1)));
  EXPECT_EQ(store->stats().files, 1);
}

}  // namespace
}  // namespace quire::kv
