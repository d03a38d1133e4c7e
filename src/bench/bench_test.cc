// SPDX-License-Identifier: Apache-2.0
// The parts of the benchmark that need no model: event parsing, chunk reading, random generators, statistics.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/json.h"
#include "bench/arrivals.h"
#include "bench/python_random.h"
#include "bench/report.h"
#include "bench/stream.h"

namespace quire::bench {
namespace {

using testing::ElementsAre;

std::vector<std::string> cut(std::string_view bytes, const std::vector<size_t>& pieces = {}) {
  SseParser parser;
  std::vector<std::string> out;
  const auto take = [&](std::string_view data) { out.emplace_back(data); };
  size_t at = 0;
  for (const size_t end : pieces) {
    parser.feed(bytes.substr(at, end - at), take);
    at = end;
  }
  parser.feed(bytes.substr(at), take);
  parser.finish(take);
  return out;
}

TEST(SseParser, TakesLinesOfEveryKindOfEnd) {
  EXPECT_THAT(cut("data: a\n\ndata: b\r\n\r\ndata: c\r\rdata:d\n\n"), ElementsAre("a", "b", "c", "d"));
}

TEST(SseParser, JoinsTheLinesOfAnEventAndSkipsWhatIsNoData) {
  EXPECT_THAT(cut(": hello\nevent: x\nid: 7\ndata: {\"a\":\ndata:  1}\nretry: 3\n\n:\n\ndatax: no\n\ndata\n\n"),
              ElementsAre("{\"a\":\n 1}", ""));
}

TEST(SseParser, SkipsAByteOrderMarkAndEndsAnOpenEventAtTheEnd) {
  EXPECT_THAT(cut("\xEF\xBB\xBF"
                  "data: first\n\ndata: last"),
              ElementsAre("first", "last"));
}

TEST(SseParser, GivesTheSameEventsHoweverTheBytesAreSplit) {
  const std::string stream =
      "data: one\r\n\r\n: comment\r\ndata: two\r\ndata: lines\r\n\r\ndata: {\"t\":\"\xE2\x82\xAC\"}\r\rdata: "
      "[DONE]\n\n";
  const auto whole = cut(stream);
  ASSERT_THAT(whole, ElementsAre("one", "two\nlines", "{\"t\":\"\xE2\x82\xAC\"}", "[DONE]"));
  for (size_t first = 0; first <= stream.size(); ++first) {
    for (size_t second = first; second <= stream.size(); ++second) EXPECT_EQ(cut(stream, {first, second}), whole);
  }
}

TEST(SseParser, StopsAtAnEventThatNeverEnds) {
  SseParser parser;
  int events = 0;
  const std::string piece(size_t{1} << 20, 'x');
  for (int i = 0; i < 20; ++i) parser.feed(piece, [&](std::string_view) { ++events; });
  parser.feed("\n\ndata: later\n\n", [&](std::string_view) { ++events; });
  EXPECT_TRUE(parser.too_long());
  EXPECT_EQ(events, 0);
}

StreamChunk read(std::string_view data, StreamApi api = StreamApi::kCompletions) {
  StreamChunk chunk;
  EXPECT_TRUE(read_chunk(data, api, chunk)) << data;
  return chunk;
}

TEST(ReadChunk, ReadsCompletionsChatsAndUsage) {
  auto chunk = read(
      R"({"id":"x","choices":[{"index":0,"text":"a\n\u00e9\ud83d\ude42\"","logprobs":{"tokens":["]"]}}],"usage":null})");
  EXPECT_TRUE(chunk.has_choices);
  EXPECT_EQ(chunk.text, "a\n\xC3\xA9\xF0\x9F\x99\x82\"");
  EXPECT_EQ(chunk.output_tokens, -1);
  chunk = read(R"( { "choices" : [ { "delta" : {"role":"assistant","content":"","x":[{}]} } ] })", StreamApi::kChat);
  EXPECT_TRUE(chunk.has_choices);
  EXPECT_EQ(chunk.text, "");
  chunk = read(R"({"choices":[{"delta":{"reasoning_content":"hm ","content":"so"}}]})", StreamApi::kChat);
  EXPECT_EQ(chunk.text, "hm so");
  chunk = read(R"({"choices":[],"usage":{"prompt_tokens":12,"total_tokens":19,"completion_tokens":7}})");
  EXPECT_FALSE(chunk.has_choices);
  EXPECT_EQ(chunk.prompt_tokens, 12);
  EXPECT_EQ(chunk.output_tokens, 7);
}

TEST(ReadChunk, ReadsResponsesAndErrors) {
  auto chunk = read(R"({"type":"response.output_text.delta","delta":"hi"})", StreamApi::kResponses);
  EXPECT_TRUE(chunk.has_choices);
  EXPECT_EQ(chunk.text, "hi");
  chunk = read(R"({"type":"response.completed","response":{"usage":{"input_tokens":3,"output_tokens":2}}})",
               StreamApi::kResponses);
  EXPECT_FALSE(chunk.has_choices);
  EXPECT_EQ(chunk.prompt_tokens, 3);
  EXPECT_EQ(chunk.output_tokens, 2);
  chunk = read(R"({"error":{"message":"no pages","type":"x"}})");
  EXPECT_TRUE(chunk.has_error);
  EXPECT_EQ(chunk.error, "no pages");
}

TEST(ReadChunk, RefusesWhatIsNoObject) {
  StreamChunk chunk;
  for (const char* bad : {"[DONE]", "", "{", "{\"choices\":", "{\"choices\":[{\"text\":\"a}]}", "{\"a\" 1}",
                          "{\"a\":]}", "{\"choices\":[{]}", "{,}"}) {
    EXPECT_FALSE(read_chunk(bad, StreamApi::kCompletions, chunk)) << bad;
  }
}

// The skimmer has no depth limit and builds no tree; it must return for any input.
TEST(ReadChunk, SurvivesBrokenBytes) {
  const std::string good = R"({"choices":[{"delta":{"content":"a\ud83d\u"}}],"usage":{"prompt_tokens":1e5}})";
  std::mt19937 random(1);
  StreamChunk chunk;
  for (int i = 0; i < 20000; ++i) {
    std::string bad = good.substr(0, random() % (good.size() + 1));
    for (int k = 0; k < 3 && !bad.empty(); ++k) bad[random() % bad.size()] = static_cast<char>(random());
    for (const StreamApi api : {StreamApi::kCompletions, StreamApi::kChat, StreamApi::kResponses}) {
      read_chunk(bad, api, chunk);
    }
  }
  EXPECT_FALSE(read_chunk("{\"a\":" + std::string(1 << 20, '['), StreamApi::kChat, chunk));
}

// As printed by Python: random.seed(s); random.shuffle(list(range(10))), and so on. The Python tests draw more.
TEST(PythonRandom, ShufflesAsCPython) {
  std::vector<int> list = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  PythonRandom(0).shuffle(list);
  EXPECT_THAT(list, ElementsAre(7, 8, 1, 5, 3, 4, 2, 0, 9, 6));
}

TEST(NumpyGenerator, DrawsIntegersAsDefaultRng) {
  EXPECT_THAT(NumpyGenerator(0).integers(0, 1000, 6), ElementsAre(850, 636, 511, 269, 307, 40));
}

TEST(NumpyLegacy, DrawsGammasAsRandomState) {
  NumpyLegacy one(0);
  EXPECT_DOUBLE_EQ(one.gamma(1.0, 0.1), 0.079587450816311009);
  NumpyLegacy half(0);
  EXPECT_DOUBLE_EQ(half.gamma(0.5, 1.0), 0.30400188976070441);
  NumpyLegacy two(0);
  EXPECT_DOUBLE_EQ(two.gamma(2.0, 1.0), 5.1388295763402443);
}

// [delay for delay in numpy.random.gamma(shape, 1 / (rate * shape))], cumulated, scaled to end at count / rate.
TEST(Arrivals, FollowTheGammaAndEndAtCountOverRate) {
  for (const double burstiness : {1.0, 0.25, 4.0}) {
    NumpyLegacy numpy(3), same(3);
    const Arrivals arrivals = make_arrivals({.request_rate = 10, .burstiness = burstiness}, 100, numpy);
    ASSERT_EQ(arrivals.times.size(), 100u);
    EXPECT_NEAR(arrivals.times.back(), 10.0, 1e-9);
    EXPECT_GT(arrivals.times.front(), 0.0);
    double sum = 0;
    std::vector<double> gaps;
    for (int i = 0; i < 100; ++i) gaps.push_back(same.gamma(burstiness, 1 / (10 * burstiness)));
    for (const double gap : gaps) sum += gap;
    for (size_t i = 1; i < 100; ++i) {
      EXPECT_NEAR(arrivals.times[i] - arrivals.times[i - 1], gaps[i] * 10.0 / sum, 1e-9);
    }
  }
}

TEST(Arrivals, KnowNoRateFixedGapsAndRamps) {
  NumpyLegacy numpy(0);
  EXPECT_TRUE(make_arrivals({}, 5, numpy).times.empty());
  const auto fixed = make_arrivals({.request_rate = 4, .burstiness = INFINITY}, 4, numpy);
  EXPECT_THAT(fixed.times, ElementsAre(0.25, 0.5, 0.75, 1.0));
  ArrivalOptions ramp;
  ramp.ramp_up_strategy = "linear";
  ramp.ramp_up_start_rps = 1;
  ramp.ramp_up_end_rps = 5;
  EXPECT_THAT(make_arrivals(ramp, 5, numpy).rates, ElementsAre(1, 2, 3, 4, 5));
  ramp.ramp_up_strategy = "exponential";
  ramp.ramp_up_end_rps = 16;
  EXPECT_THAT(make_arrivals(ramp, 5, numpy).rates, ElementsAre(1, 2, 4, 8, 16));
}

TEST(Statistics, PercentilesInterpolateAsNumpy) {
  EXPECT_DOUBLE_EQ(percentile({4, 1, 3, 2}, 50), 2.5);
  EXPECT_DOUBLE_EQ(percentile({4, 1, 3, 2}, 99), 3.97);
  EXPECT_DOUBLE_EQ(percentile({7}, 99), 7);
  EXPECT_EQ(percentile({}, 99), 0);
  EXPECT_DOUBLE_EQ(deviation({1, 2, 3, 4}), std::sqrt(1.25));
}

Outcome outcome(double start, double ttft, std::vector<double> itl, int64_t tokens) {
  Outcome out;
  out.success = out.sent = true;
  out.start = start;
  out.ttft = out.latency = ttft;
  for (const double gap : itl) out.latency += gap;
  out.itl = std::move(itl);
  out.prompt_len = 10;
  out.output_tokens = tokens;
  return out;
}

TEST(Report, CountsAndLaysOutAsVllm) {
  LoadResult result;
  result.duration = 4;
  result.outcomes = {outcome(0, 0.5, {0.25, 0.25}, 3), outcome(0.5, 1.0, {}, 1), outcome(2.5, 0.1, {0.1}, 2)};
  result.outcomes.emplace_back();  // never sent
  result.outcomes.emplace_back();
  result.outcomes.back().sent = true;
  result.outcomes.back().error = "HTTP 500";
  ReportOptions options;
  options.metrics = {"ttft", "e2el"};
  options.goodput = {{"ttft", 600}, {"tpot", 300}};
  options.max_concurrency = 32;
  options.request_rate = 10;
  const Report report(result, options, std::nullopt);
  EXPECT_EQ(report.text(),
            "============ Serving Benchmark Result ============\n"
            "Successful requests:                     3         \n"
            "Failed requests:                         1         \n"
            "Maximum request concurrency:             32        \n"
            "Request rate configured (RPS):           10.00     \n"
            "Benchmark duration (s):                  4.00      \n"
            "Total input tokens:                      30        \n"
            "Total generated tokens:                  6         \n"
            "Request throughput (req/s):              0.75      \n"
            "Request goodput (req/s):                 0.50      \n"
            "Output token throughput (tok/s):         1.50      \n"
            "Peak output token throughput (tok/s):    2.00      \n"
            "Peak concurrent requests:                2.00      \n"
            "Total token throughput (tok/s):          9.00      \n"
            "---------------Time to First Token----------------\n"
            "Mean TTFT (ms):                          533.33    \n"
            "Median TTFT (ms):                        500.00    \n"
            "P99 TTFT (ms):                           990.00    \n"
            "----------------End-to-end Latency----------------\n"
            "Mean E2EL (ms):                          733.33    \n"
            "Median E2EL (ms):                        1000.00   \n"
            "P99 E2EL (ms):                           1000.00   \n"
            "==================================================\n");
  const json::Value figures = report.figures();
  EXPECT_EQ(figures.find("mean_itl_ms"), nullptr);
  EXPECT_EQ(figures.find("input_lens"), nullptr);
  EXPECT_EQ(figures.find("latencies")->as_array().size(), 4u);
  EXPECT_NEAR(figures.find("mean_e2el_ms")->as_double(), 733.333, 0.001);
}

TEST(SpecDecode, ReadsVllmsCountersAndTheirGrowth) {
  const auto text = [](int drafts, int accepted, int first) {
    return "# HELP x\nvllm:spec_decode_num_drafts_total{engine=\"0\"} " + std::to_string(drafts) +
           "\nvllm:spec_decode_num_draft_tokens_total{engine=\"0\"} " + std::to_string(2 * drafts) +
           "\nvllm:spec_decode_num_accepted_tokens_total{engine=\"0\"} " + std::to_string(accepted) +
           "\nvllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",position=\"0\"} " +
           std::to_string(first) + "\n";
  };
  EXPECT_FALSE(read_spec_decode("vllm:num_requests_running 3\n"));
  const auto grown = difference(read_spec_decode(text(10, 5, 4)), read_spec_decode(text(30, 25, 14)));
  ASSERT_TRUE(grown);
  EXPECT_EQ(grown->drafts, 20);
  EXPECT_EQ(grown->draft_tokens, 40);
  EXPECT_EQ(grown->accepted_tokens, 20);
  EXPECT_THAT(grown->accepted_per_position, ElementsAre(10));
  EXPECT_FALSE(difference(read_spec_decode(text(10, 5, 4)), read_spec_decode(text(10, 5, 4))));
}

}  // namespace
}  // namespace quire::bench
