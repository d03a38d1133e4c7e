// SPDX-License-Identifier: Apache-2.0
// The trace: what it holds, what it drops, and that spans nest.
#include "base/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "base/file.h"
#include "base/json.h"
#include "base/test_folder.h"

namespace quire::trace {
namespace {

struct Found {
  std::string name;
  double begin, end;
};
struct Trace {
  std::map<int64_t, std::string> threads;
  std::map<std::string, std::vector<Found>> spans;  // by the thread's name, as written
  int64_t lost = 0;
};

Trace read_trace(const std::filesystem::path& path) {
  auto text = read_file(path);
  auto parsed = json::parse(text.ok() ? *text : "");
  EXPECT_TRUE(parsed.ok());
  Trace out;
  if (!parsed.ok()) return out;
  out.lost = parsed->find("otherData")->find("lost_spans")->as_int();
  for (const json::Value& event : parsed->find("traceEvents")->as_array()) {
    const int64_t tid = event.find("tid")->as_int();
    const std::string& name = event.find("name")->as_string();
    if (name == "thread_name") out.threads[tid] = event.find("args")->find("name")->as_string();
    if (event.find("ph")->as_string() != "X") continue;
    const double begin = event.find("ts")->as_double();
    out.spans[out.threads.at(tid)].push_back({name, begin, begin + event.find("dur")->as_double()});
  }
  return out;
}

class TraceTest : public testing::Test {
 protected:
  ~TraceTest() override { EXPECT_TRUE(finish().ok()); }
  const TempFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "trace.json";
};

std::vector<std::string> names(const std::vector<Found>& spans) {
  std::vector<std::string> out;
  for (const Found& span : spans) out.push_back(span.name);
  return out;
}

TEST_F(TraceTest, SpansNestAndThreadsAppearUnderTheirNames) {
  { const Span early("before the start"); }
  name_thread("main");
  ASSERT_TRUE(start(path_).ok());
  {
    const Span outer("step %d \"quoted\"", 7);
    const OpSpan op("linear %d rows", 3);
    std::thread([] {
      name_thread("worker 1");
      const WorkSpan share(WorkSpan::Of::kWorker);
    }).join();
    const WorkSpan own(WorkSpan::Of::kCaller);
  }
  { const WorkSpan alone(WorkSpan::Of::kWorker); }
  ASSERT_TRUE(finish().ok());
  { const Span late("after the end"); }

  const Trace trace = read_trace(path_);
  EXPECT_EQ(trace.lost, 0);
  EXPECT_THAT(names(trace.spans.at("worker 1")), testing::ElementsAre("linear 3 rows"));
  const std::vector<Found>& own = trace.spans.at("main");
  EXPECT_THAT(names(own), testing::ElementsAre("own share", "linear 3 rows", "step 7 \"quoted\"", "work"));
  for (size_t inner = 0; inner + 2 < own.size(); ++inner) {  // a scope ends before the one around it
    EXPECT_GE(own[inner].begin, own[inner + 1].begin);
    EXPECT_LE(own[inner].end, own[inner + 1].end + 1e-3);  // nanoseconds are the unit of the file's last digit
  }
}

TEST_F(TraceTest, KeepsTheLastSpansOfAThreadAndCountsTheOthers) {
  ASSERT_TRUE(start(path_, 4).ok());
  for (int i = 0; i < 10; ++i) const Span span("span %d", i);
  const std::string longer(200, 'x');
  { const Span span("%s", longer.c_str()); }
  ASSERT_TRUE(finish().ok());
  const Trace trace = read_trace(path_);
  ASSERT_EQ(trace.spans.size(), 1u);
  EXPECT_EQ(trace.lost, 7);
  EXPECT_THAT(names(trace.spans.begin()->second),
              testing::ElementsAre("span 7", "span 8", "span 9", longer.substr(0, Span::kMaxName)));
}

TEST_F(TraceTest, AFileThatCanNotBeWrittenIsKnownAtOnce) {
  const Status status = start(path_ / "no folder" / "x.json");
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, testing::HasSubstr("no folder"));
  EXPECT_FALSE(on());
  ASSERT_TRUE(start(path_).ok());
  EXPECT_TRUE(start(path_).ok());
  EXPECT_FALSE(start(path_.string() + "2").ok());
}

}  // namespace
}  // namespace quire::trace
