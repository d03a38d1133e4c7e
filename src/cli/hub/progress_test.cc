// SPDX-License-Identifier: Apache-2.0
// Tests of the progress bar on a terminal of a given width and on a file.
#include "cli/hub/progress.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <sstream>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/test_folder.h"

namespace quire::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Runs `use` on a Progress that writes to a file; returns what it wrote.
template <typename Use>
std::string written(Progress::Plain plain, int columns, const Use& use) {
  const TempFolder folder;
  const std::string path = folder.path() / "written";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  EXPECT_GE(fd, 0);
  {
    Progress progress(fd, plain, columns);
    use(progress);
  }
  ::close(fd);
  auto text = read_file(path);
  return text.ok() ? *text : "";
}

// What a terminal finally shows: carriage returns go back, ESC [ K clears to the end of the line.
std::string shown(const std::string& text) {
  std::string screen;
  std::string line;
  size_t at = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      at = 0;
    } else if (text[i] == '\n') {
      screen += line + "\n";
      line.clear();
      at = 0;
    } else if (text.compare(i, 3, "\x1b[K") == 0) {
      line.resize(at);
      i += 2;
    } else {
      line.resize(std::max(line.size(), at + 1), ' ');
      line[at++] = text[i];
    }
  }
  return screen + line;
}

TEST(Progress, LeavesTheFinishedBarOnItsOwnLine) {
  const auto text = written(Progress::Plain::kSilent, 100, [](Progress& progress) {
    progress.start("weights", 1000);
    progress.add(400);
    progress.add(600);
    progress.finish();
  });
  EXPECT_THAT(shown(text), HasSubstr("weights  [########################]  100%  1.00 kB of 1.00 kB"));
  EXPECT_EQ(shown(text).back(), '\n');
}

TEST(Progress, LeavesNothingWhenItIsClearedOrDestroyed) {
  EXPECT_EQ(shown(written(Progress::Plain::kSilent, 80,
                          [](Progress& progress) {
                            progress.start("weights", 1000);
                            progress.add(10);
                            progress.clear();
                          })),
            "");
  EXPECT_EQ(shown(written(Progress::Plain::kLines, 80, [](Progress& progress) { progress.start("weights", 1000); })),
            "");
}

TEST(Progress, NeverDrawsPastTheTerminalsWidth) {
  for (const int columns : {1, 2, 10, 20, 40, 60, 80, 200}) {
    const auto text = written(Progress::Plain::kSilent, columns, [](Progress& progress) {
      progress.start("a/rather/long/label-\xc3\xa9\xc3\xa9\xc3\xa9-00001-of-00002.safetensors", 123'456'789);
      progress.set(45'678'901);
      progress.finish();
    });
    std::istringstream lines(shown(text));
    for (std::string line; std::getline(lines, line);) EXPECT_LT(line.size(), static_cast<size_t>(columns)) << line;
  }
}

TEST(Progress, PutsANoteAboveTheBar) {
  const auto text = written(Progress::Plain::kSilent, 80, [](Progress& progress) {
    progress.start("weights", 1000);
    progress.note("hello");
    progress.set(1000);
    progress.finish();
  });
  EXPECT_EQ(shown(text).substr(0, 6), "hello\n");
  EXPECT_THAT(shown(text), HasSubstr("\nweights"));
}

TEST(Progress, WritesALineEachTenPercentToAFile) {
  const auto text = written(Progress::Plain::kLines, 0, [](Progress& progress) {
    progress.start("weights", 1000);
    for (int i = 0; i < 1000; ++i) progress.add(1);
    progress.finish();
  });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 10) << text;
  EXPECT_THAT(text, HasSubstr("weights: 30% of 1.00 kB\n"));
  EXPECT_THAT(text, HasSubstr("weights: 100% of 1.00 kB\n"));
  EXPECT_THAT(text, Not(HasSubstr("\r")));
}

TEST(Progress, IsSilentInAFileWhenAskedTo) {
  EXPECT_EQ(written(Progress::Plain::kSilent, 0,
                    [](Progress& progress) {
                      progress.start("weights", 1000);
                      progress.add(1000);
                      progress.finish();
                    }),
            "");
}

TEST(Progress, CountsFromManyThreads) {
  const auto text = written(Progress::Plain::kLines, 0, [](Progress& progress) {
    progress.start("weights", 80'000);
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 10'000; ++i) progress.add(1);
      });
    }
    for (auto& thread : threads) thread.join();
    progress.finish();
  });
  EXPECT_THAT(text, HasSubstr("weights: 100% of 80.0 kB\n"));
}

TEST(Progress, AnUnknownTotalShowsTheBytesAlone) {
  const auto text = written(Progress::Plain::kSilent, 80, [](Progress& progress) {
    progress.start("list", 0);
    progress.set(1500);
    progress.finish();
  });
  EXPECT_THAT(shown(text), HasSubstr("list  1.50 kB"));
  EXPECT_THAT(shown(text), Not(HasSubstr("%")));
}

}  // namespace
}  // namespace quire::cli
