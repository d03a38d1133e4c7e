// SPDX-License-Identifier: Apache-2.0
// The registry's text form and the server's series: values, buckets, escapes, threads, and the logged line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

#include "metrics/registry.h"
#include "metrics/server_metrics.h"

namespace quire::metrics {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string number(double value) {
  std::string text;
  append_number(text, value);
  return text;
}

std::string exposed(const Registry& registry) {
  std::string text;
  registry.expose(text);
  return text;
}

// The value after a line's head ("name{labels}"); the test fails if there is none, or more than one.
double value_of(const std::string& text, const std::string& head) {
  std::istringstream lines(text);
  std::string line;
  double value = std::numeric_limits<double>::quiet_NaN();
  int found = 0;
  while (std::getline(lines, line)) {
    if (line.rfind(head + " ", 0) != 0) continue;
    value = std::stod(line.substr(head.size() + 1));
    ++found;
  }
  EXPECT_EQ(found, 1) << head;
  return value;
}

// The upper bounds of a histogram, as text and in order.
std::vector<std::string> bounds_of(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  std::string line;
  std::vector<std::string> bounds;
  while (std::getline(lines, line)) {
    if (line.rfind(name + "_bucket{", 0) != 0) continue;
    const size_t start = line.find("le=\"") + 4;
    bounds.push_back(line.substr(start, line.find('"', start) - start));
  }
  return bounds;
}

std::string head(const std::string& name, const std::string& more = "") {
  return "vllm:" + name + "{engine=\"0\"," + more + "model_name=\"tiny\"}";
}

// As head(), for a label that sorts after model_name.
std::string tail(const std::string& name, const std::string& more) {
  return "vllm:" + name + "{engine=\"0\",model_name=\"tiny\"," + more + "}";
}

ServerMetricsOptions tiny_options() {
  ServerMetricsOptions options;
  options.model_name = "tiny";
  options.max_model_len = 2048;
  options.num_speculative_tokens = 2;
  options.max_loras = 4;
  options.offload = true;
  options.ranks = 2;
  options.cache_config = {{"block_size", "16"}, {"num_gpu_blocks", "513"}, {"enable_prefix_caching", "True"}};
  return options;
}

// Two steps, one finished request of two answers, a refused one, and a few HTTP requests.
void play(ServerMetrics& metrics) {
  StepStats step;
  step.running = 3;
  step.waiting = 2;
  step.waiting_deferred = 1;
  step.kv_usage = 0.25;
  step.prefix_requests = 2;
  step.prefix_queries = 100;
  step.prefix_hits = 64;
  step.prompt_tokens = 100;
  step.cached_tokens = 64;
  step.generation_tokens = 2;
  metrics.on_step(step);
  StepStats decode;
  decode.running = 2;
  decode.kv_usage = 0.5;
  decode.preemptions = 1;
  decode.generation_tokens = 2;
  decode.drafts = 1;
  decode.draft_tokens = 2;
  decode.accepted_tokens = 1;
  decode.accepted_per_position = {1, 0};
  metrics.on_step(decode);
  metrics.on_adapters({"old"}, {});
  metrics.on_adapters({"a", "b"}, {"c"});
  metrics.on_first_token(0.03);
  metrics.on_inter_token(0.025);  // on a bound: it belongs to that bucket
  FinishedRequest request;
  request.finish_reason = "stop";
  request.e2e_s = 1.2;
  request.queue_s = 0.1;
  request.prefill_s = 0.3;
  request.decode_s = 0.8;
  request.inference_s = 1.1;
  request.prompt_tokens = 50;
  request.cached_tokens = 32;
  request.generation_tokens = 5;
  request.num_preemptions = 1;
  metrics.on_finished(request);
  request.finish_reason = "length";
  request.generation_tokens = 1;
  request.max_tokens = 16;
  request.n = 2;
  request.max_num_generation_tokens = 5;
  metrics.on_finished(request);
  metrics.on_rejected("max_num_queued_reqs");
  metrics.add_key("ada");
  metrics.on_key_begin("ada", 7, 2);
  metrics.on_key_end("ada", 11, 2);
  metrics.on_key_rejected("ada", "max_sequences");
  metrics.on_http("/v1/chat/completions", "POST", 200, 1.2, 300, 4000);
  metrics.on_http("/v1/chat/completions", "POST", 400, 0.001, 20, 100);
  metrics.on_http("none", "GET", 404, 0.001, 0, 22);
  metrics.on_http("/health", "GET", 200, 0.001, 0, 0);
}

TEST(Numbers, ArePrintedAsPythonsClientPrintsThem) {
  EXPECT_EQ(number(0), "0.0");
  EXPECT_EQ(number(1), "1.0");
  EXPECT_EQ(number(0.3), "0.3");
  EXPECT_EQ(number(2.5), "2.5");
  EXPECT_EQ(number(0.001), "0.001");
  EXPECT_EQ(number(0.00012345), "0.00012345");
  EXPECT_EQ(number(0.00001), "1e-05");
  EXPECT_EQ(number(7680), "7680.0");
  EXPECT_EQ(number(999999), "999999.0");
  EXPECT_EQ(number(1e6), "1e+06");
  EXPECT_EQ(number(1234567.5), "1.2345675e+06");
  EXPECT_EQ(number(1763184451.0), "1.763184451e+09");
  EXPECT_EQ(number(1e15), "1e+15");
  EXPECT_EQ(number(1e22), "1e+22");
  EXPECT_EQ(number(1e100), "1e+100");
  EXPECT_EQ(number(-1), "-1.0");
  EXPECT_EQ(number(-0.0), "-0.0");
  EXPECT_EQ(number(-12345678.25), "-12345678.25");  // only positive numbers take Go's form
  EXPECT_EQ(number(std::numeric_limits<double>::infinity()), "+Inf");
  EXPECT_EQ(number(-std::numeric_limits<double>::infinity()), "-Inf");
  EXPECT_EQ(number(std::numeric_limits<double>::quiet_NaN()), "NaN");
}

TEST(Registry, WritesEachKindInTheTextForm) {
  Registry registry(false);
  registry.counter("calls", "Calls, by kind.", {"kind"}).with({"a"}).add(2);
  registry.gauge("level", "A level.").with().set(0.5);
  registry.summary("size", "Sizes.").with().observe(3);
  auto& histogram = registry.histogram("time", "Times.", {0.3, 1}, {"z", "a"}).with({"last", "first"});
  histogram.observe(0.3);
  histogram.observe(0.5);
  histogram.observe(7);
  EXPECT_EQ(exposed(registry),
            "# HELP calls_total Calls, by kind.\n"
            "# TYPE calls_total counter\n"
            "calls_total{kind=\"a\"} 2.0\n"
            "# HELP level A level.\n"
            "# TYPE level gauge\n"
            "level 0.5\n"
            "# HELP size Sizes.\n"
            "# TYPE size summary\n"
            "size_count 1.0\n"
            "size_sum 3.0\n"
            "# HELP time Times.\n"
            "# TYPE time histogram\n"
            "time_bucket{a=\"first\",le=\"0.3\",z=\"last\"} 1.0\n"
            "time_bucket{a=\"first\",le=\"1.0\",z=\"last\"} 2.0\n"
            "time_bucket{a=\"first\",le=\"+Inf\",z=\"last\"} 3.0\n"
            "time_count{a=\"first\",z=\"last\"} 3.0\n"
            "time_sum{a=\"first\",z=\"last\"} 7.8\n");
}

TEST(Registry, SaysWhenASeriesBeganInAGaugeBehindItsFamily) {
  Registry registry;
  registry.counter("calls", "Calls.", {"kind"}).with({"a"});
  const std::string text = exposed(registry);
  EXPECT_THAT(text, HasSubstr("# HELP calls_created Calls.\n# TYPE calls_created gauge\ncalls_created{kind=\"a\"} 1."));
  EXPECT_GT(value_of(text, "calls_created{kind=\"a\"}"), 1.6e9);
}

TEST(Registry, EscapesLabelsAndHelp) {
  Registry registry;
  registry.gauge("g", "One \\ two\n\"three\".", {"l"}).with({"a\\b\"c\nd"}).set(1);
  EXPECT_EQ(exposed(registry), "# HELP g One \\\\ two\\n\"three\".\n# TYPE g gauge\ng{l=\"a\\\\b\\\"c\\nd\"} 1.0\n");
}

TEST(Registry, ReplacesBytesThatAreNotUtf8) {
  Registry registry;
  registry.gauge("g", "G.", {"l"}).with({"a\xff"}).set(1);
  EXPECT_THAT(exposed(registry), HasSubstr("g{l=\"a\xEF\xBF\xBD\"} 1.0\n"));
}

TEST(Registry, GivesOneSeriesForOneSetOfLabelValues) {
  Registry registry;
  auto& family = registry.counter("c", "C.", {"x", "y"});
  EXPECT_EQ(&family.with({"a", "b"}), &family.with({"a", "b"}));
  EXPECT_NE(&family.with({"ab", "c"}), &family.with({"a", "bc"}));
}

TEST(Registry, NeverLetsACounterFall) {
  Counter counter;
  counter.add(2);
  counter.add(-1);
  counter.add(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(counter.value(), 2);
}

TEST(Registry, LosesNoUpdateOfManyThreads) {
  Registry registry;
  auto& calls = registry.counter("calls", "Calls.", {"thread"});
  Counter& counter = registry.counter("c", "C.").with();
  Histogram& histogram = registry.histogram("h", "H.", {1, 2}).with();
  constexpr int kThreads = 4, kRounds = 2000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        counter.add();
        histogram.observe(i % 3 + 0.5);
        calls.with({std::to_string((t + i) % 5)}).add();
        if (i % 500 == 0) {
          EXPECT_THAT(exposed(registry), HasSubstr("h_bucket{le=\"+Inf\"}"));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string text = exposed(registry);
  EXPECT_EQ(value_of(text, "c_total"), kThreads * kRounds);
  EXPECT_EQ(value_of(text, "h_count"), kThreads * kRounds);
  EXPECT_EQ(value_of(text, "h_bucket{le=\"2.0\"}"), kThreads * (kRounds - kRounds / 3));
  double sum = 0;
  for (int i = 0; i < 5; ++i) sum += value_of(text, "calls_total{thread=\"" + std::to_string(i) + "\"}");
  EXPECT_EQ(sum, kThreads * kRounds);
}

TEST(ServerMetrics, ShowsEverySeriesAtZeroBeforeTheFirstRequest) {
  const std::string text = ServerMetrics(tiny_options()).expose();
  EXPECT_EQ(value_of(text, head("num_requests_running")), 0);
  EXPECT_EQ(value_of(text, head("generation_tokens_total")), 0);
  EXPECT_EQ(value_of(text, head("e2e_request_latency_seconds_count")), 0);
  for (const char* reason : {"stop", "length", "abort", "error", "repetition"}) {
    EXPECT_EQ(value_of(text, head("request_success_total", "finished_reason=\"" + std::string(reason) + "\",")), 0);
  }
  EXPECT_EQ(value_of(text, tail("engine_sleep_state", "sleep_state=\"awake\"")), 1);
  EXPECT_EQ(value_of(text, tail("engine_sleep_state", "sleep_state=\"discard_all\"")), 0);
  EXPECT_THAT(text, Not(HasSubstr("  ")));  // readers split at the one blank before the value
}

TEST(ServerMetrics, CountsStepsAsVllmDoes) {
  ServerMetrics metrics(tiny_options());
  play(metrics);
  const std::string text = metrics.expose();
  EXPECT_EQ(value_of(text, head("num_requests_running")), 2);
  EXPECT_EQ(value_of(text, head("num_requests_waiting")), 0);
  EXPECT_EQ(value_of(text, head("kv_cache_usage_perc")), 0.5);
  EXPECT_EQ(value_of(text, head("prefix_cache_queries_total")), 100);
  EXPECT_EQ(value_of(text, head("prefix_cache_hits_total")), 64);
  EXPECT_EQ(value_of(text, head("num_preemptions_total")), 1);
  EXPECT_EQ(value_of(text, head("spec_decode_num_drafts_total")), 1);
  EXPECT_EQ(value_of(text, head("spec_decode_num_draft_tokens_total")), 2);
  EXPECT_EQ(value_of(text, head("spec_decode_num_accepted_tokens_total")), 1);
  EXPECT_EQ(value_of(text, tail("spec_decode_num_accepted_tokens_per_pos_total", "position=\"0\"")), 1);
  EXPECT_EQ(value_of(text, tail("spec_decode_num_accepted_tokens_per_pos_total", "position=\"1\"")), 0);
  EXPECT_EQ(value_of(text, head("prompt_tokens_total")), 100);
  EXPECT_EQ(value_of(text, tail("prompt_tokens_by_source_total", "source=\"local_compute\"")), 36);
  EXPECT_EQ(value_of(text, tail("prompt_tokens_by_source_total", "source=\"local_cache_hit\"")), 64);
  EXPECT_EQ(value_of(text, tail("prompt_tokens_by_source_total", "source=\"external_kv_transfer\"")), 0);
  EXPECT_EQ(value_of(text, head("prompt_tokens_cached_total")), 64);
  EXPECT_EQ(value_of(text, head("generation_tokens_total")), 4);
  EXPECT_EQ(value_of(text, head("iteration_tokens_total_count")), 2);
  EXPECT_EQ(value_of(text, head("iteration_tokens_total_sum")), 36 + 2 + 2);
  EXPECT_EQ(value_of(text, "vllm:admission_rejections_total{model_name=\"tiny\",reason=\"max_num_queued_reqs\"}"), 1);
}

TEST(ServerMetrics, KeepsTheTwoPartsOfTheQueueApart) {
  ServerMetrics metrics(tiny_options());
  metrics.on_queue(1, 2, 3, 0.125);
  const std::string text = metrics.expose();
  EXPECT_EQ(value_of(text, head("num_requests_waiting")), 5);
  EXPECT_EQ(value_of(text, tail("num_requests_waiting_by_reason", "reason=\"capacity\"")), 2);
  EXPECT_EQ(value_of(text, tail("num_requests_waiting_by_reason", "reason=\"deferred\"")), 3);
  EXPECT_EQ(value_of(text, head("iteration_tokens_total_count")), 0);  // not a step
}

TEST(ServerMetrics, ObservesARequestAtItsEnd) {
  ServerMetrics metrics(tiny_options());
  play(metrics);
  const std::string text = metrics.expose();
  EXPECT_EQ(value_of(text, head("request_success_total", "finished_reason=\"stop\",")), 1);
  EXPECT_EQ(value_of(text, head("request_success_total", "finished_reason=\"length\",")), 1);
  EXPECT_EQ(value_of(text, head("e2e_request_latency_seconds_bucket", "le=\"1.0\",")), 0);
  EXPECT_EQ(value_of(text, head("e2e_request_latency_seconds_bucket", "le=\"1.5\",")), 2);
  EXPECT_EQ(value_of(text, head("request_time_per_output_token_seconds_count")), 2);
  EXPECT_EQ(value_of(text, head("request_time_per_output_token_seconds_sum")), 0.8 / 4);  // one token: 0
  EXPECT_EQ(value_of(text, head("inter_token_latency_seconds_bucket", "le=\"0.025\",")), 1);
  EXPECT_EQ(value_of(text, head("inter_token_latency_seconds_bucket", "le=\"0.01\",")), 0);
  EXPECT_EQ(value_of(text, head("time_to_first_token_seconds_sum")), 0.03);
  EXPECT_EQ(value_of(text, head("request_prompt_tokens_sum")), 100);
  EXPECT_EQ(value_of(text, head("request_prefill_kv_computed_tokens_sum")), 36);
  EXPECT_EQ(value_of(text, head("request_generation_tokens_sum")), 6);
  EXPECT_EQ(value_of(text, head("request_num_preemptions_count")), 2);
  EXPECT_EQ(value_of(text, head("request_params_max_tokens_count")), 1);
  EXPECT_EQ(value_of(text, head("request_params_n_sum")), 2);  // once for both answers
  EXPECT_EQ(value_of(text, head("request_max_num_generation_tokens_sum")), 5);
}

TEST(ServerMetrics, CountsHttpByRouteAndClassOfStatus) {
  ServerMetrics metrics(tiny_options());
  play(metrics);
  const std::string text = metrics.expose();
  const std::string chat = "handler=\"/v1/chat/completions\"";
  EXPECT_EQ(value_of(text, "http_requests_total{" + chat + ",method=\"POST\",status=\"2xx\"}"), 1);
  EXPECT_EQ(value_of(text, "http_requests_total{" + chat + ",method=\"POST\",status=\"4xx\"}"), 1);
  EXPECT_EQ(value_of(text, "http_requests_total{handler=\"none\",method=\"GET\",status=\"4xx\"}"), 1);
  EXPECT_EQ(value_of(text, "http_request_size_bytes_sum{" + chat + "}"), 320);
  EXPECT_EQ(value_of(text, "http_response_size_bytes_sum{" + chat + "}"), 4100);
  EXPECT_EQ(value_of(text, "http_request_duration_seconds_bucket{" + chat + ",le=\"1.0\",method=\"POST\"}"), 1);
  EXPECT_EQ(value_of(text, "http_request_duration_highr_seconds_count"), 3);
  EXPECT_THAT(text, Not(HasSubstr("/health")));
}

TEST(ServerMetrics, StaysBoundedWhateverClientsSend) {
  ServerMetrics metrics(tiny_options());
  for (int i = 0; i < 1000; ++i) {
    metrics.on_http("/" + std::to_string(i), "M" + std::to_string(i), 404, 0, 0, 0);
  }
  const std::string text = metrics.expose();
  EXPECT_EQ(value_of(text, "http_requests_total{handler=\"none\",method=\"OTHER\",status=\"4xx\"}"), 900);
  EXPECT_LT(text.size(), size_t{256} << 10);
}

TEST(ServerMetrics, EndsTheTokenBucketsAtTheLongestSequence) {
  ServerMetricsOptions options = tiny_options();
  options.max_model_len = 50;
  EXPECT_THAT(bounds_of(ServerMetrics(options).expose(), "vllm:request_prompt_tokens"),
              ElementsAre("1.0", "2.0", "5.0", "10.0", "20.0", "50.0", "+Inf"));
  options.max_model_len = 49;
  EXPECT_THAT(bounds_of(ServerMetrics(options).expose(), "vllm:request_prompt_tokens"),
              ElementsAre("1.0", "2.0", "5.0", "10.0", "20.0", "+Inf"));
  options.max_model_len = 1'000'000;
  EXPECT_EQ(bounds_of(ServerMetrics(options).expose(), "vllm:request_prompt_tokens").end()[-2], "1e+06");
}

TEST(ServerMetrics, TakesOtherBucketsByFamily) {
  ServerMetricsOptions options = tiny_options();
  auto buckets = parse_histogram_buckets(R"({"request_latency": [0.5, 1, 30], "request_tokens": [100]})");
  ASSERT_TRUE(buckets.ok()) << buckets.error().message;
  options.custom_buckets = *buckets;
  const std::string text = ServerMetrics(options).expose();
  EXPECT_THAT(bounds_of(text, "vllm:request_queue_time_seconds"), ElementsAre("0.5", "1.0", "30.0", "+Inf"));
  EXPECT_THAT(bounds_of(text, "vllm:e2e_request_latency_seconds"), ElementsAre("0.5", "1.0", "30.0", "+Inf"));
  EXPECT_THAT(bounds_of(text, "vllm:request_params_max_tokens"), ElementsAre("100.0", "+Inf"));
  EXPECT_THAT(bounds_of(text, "vllm:request_params_n"), ElementsAre("1.0", "2.0", "5.0", "10.0", "20.0", "+Inf"));
}

TEST(ServerMetrics, RefusesBucketsThatMakeNoSense) {
  for (const char* text :
       {"", "[]", "{\"latency\": [1]}", R"({"request_tokens": []})", R"({"request_tokens": 5})",
        R"({"request_tokens": [2, 1]})", R"({"request_tokens": [1, 1]})", R"({"request_tokens": ["1"]})",
        R"({"request_tokens": [Infinity]})", R"({"request_tokens": [-1]})", R"({"kv_cache_residency": [1]})"}) {
    const auto buckets = parse_histogram_buckets(text);
    ASSERT_FALSE(buckets.ok()) << text;
    EXPECT_EQ(buckets.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(buckets.error().message, HasSubstr("--custom-histogram-buckets"));
  }
}

TEST(ServerMetrics, DescribesTheCacheInLabels) {
  const std::string text = ServerMetrics(tiny_options()).expose();
  const size_t start = text.find("\nvllm:cache_config_info{") + 1;
  const std::string line = text.substr(start, text.find('\n', start) - start);
  EXPECT_THAT(line, HasSubstr(",block_size=\"16\","));
  EXPECT_THAT(line, HasSubstr(",num_gpu_blocks=\"513\","));
  EXPECT_THAT(line, HasSubstr(",engine=\"0\","));
  EXPECT_THAT(line, HasSubstr(",kv_offloading_size=\"None\","));
  EXPECT_THAT(line, Not(HasSubstr("model_name")));
  EXPECT_EQ(line.substr(line.size() - 5), "} 1.0");
}

TEST(ServerMetrics, CountsTheTiersBelowTheCache) {
  ServerMetrics metrics(tiny_options());
  StepStats step;
  step.prompt_tokens = 100;
  step.cached_tokens = 80;
  step.host_tokens = 16;
  step.disk_tokens = 32;
  step.offload_queries = 68;
  step.offload_hits = 48;
  metrics.on_step(step);
  OffloadTotals totals;
  totals.disk_read_pages = 3;
  totals.files = 7;
  metrics.set_offload_source([&] { return totals; });
  std::string text = metrics.expose();
  EXPECT_EQ(value_of(text, tail("prompt_tokens_by_source_total", "source=\"local_cache_hit\"")), 32);
  EXPECT_EQ(value_of(text, tail("prompt_tokens_by_source_total", "source=\"external_kv_transfer\"")), 48);
  EXPECT_EQ(value_of(text, tail("prompt_tokens_cached_by_source_total", "source=\"host\"")), 16);
  EXPECT_EQ(value_of(text, tail("prompt_tokens_cached_by_source_total", "source=\"disk\"")), 32);
  EXPECT_THAT(text, HasSubstr("vllm:external_prefix_cache_hits_total{engine=\"0\",model_name=\"tiny\"} 48"));
  const std::string pages =
      "quire:kv_offload_pages_total{direction=\"read\",engine=\"0\",model_name=\"tiny\",tier=\"disk\"}";
  EXPECT_EQ(value_of(text, pages), 3);
  EXPECT_THAT(text, HasSubstr("quire:kv_offload_files{engine=\"0\",model_name=\"tiny\"} 7"));
  // The model is unloaded and loaded again: totals go on.
  totals.disk_read_pages = 4;
  metrics.set_offload_source({});
  EXPECT_EQ(value_of(metrics.expose(), pages), 4);
  totals.disk_read_pages = 2;
  metrics.set_offload_source([&] { return totals; });
  EXPECT_EQ(value_of(metrics.expose(), pages), 6);
  ServerMetricsOptions without = tiny_options();
  without.offload = false;
  EXPECT_THAT(ServerMetrics(without).expose(), Not(HasSubstr("offload_pages")));
}

TEST(ServerMetrics, ReportsWhatEachRankDid) {
  ServerMetrics metrics(tiny_options());
  const auto series = [](const char* name, int rank) {
    return std::string("quire:rank_") + name + "{engine=\"0\",model_name=\"tiny\",rank=\"" + std::to_string(rank) +
           "\"}";
  };
  EXPECT_EQ(value_of(metrics.expose(), series("steps_total", 1)), 0);
  std::vector<RankTotals> totals(2);
  totals[1] = {3, 2'000'000'000, 500'000'000, 4096, 99, 1 << 20};
  metrics.set_rank_source([&] { return totals; });
  std::string text = metrics.expose();
  EXPECT_EQ(value_of(text, series("steps_total", 0)), 0);
  EXPECT_EQ(value_of(text, series("steps_total", 1)), 3);
  EXPECT_EQ(value_of(text, series("compute_seconds_total", 1)), 2);
  EXPECT_EQ(value_of(text, series("wait_seconds_total", 1)), 0.5);
  EXPECT_EQ(value_of(text, series("sent_bytes_total", 1)), 4096);
  EXPECT_EQ(value_of(text, series("pages", 1)), 99);
  EXPECT_EQ(value_of(text, series("resident_memory_bytes", 1)), 1 << 20);
  // The model is unloaded and loaded again: totals go on.
  totals[1].steps = 5;
  metrics.set_rank_source({});
  totals[1].steps = 1;
  metrics.set_rank_source([&] { return totals; });
  EXPECT_EQ(value_of(metrics.expose(), series("steps_total", 1)), 6);
  ServerMetricsOptions one = tiny_options();
  one.ranks = 1;
  EXPECT_THAT(ServerMetrics(one).expose(), Not(HasSubstr("quire:rank_")));
}

TEST(ServerMetrics, ReportsTheProcess) {
  const std::string text = ServerMetrics(tiny_options()).expose();
  EXPECT_GE(value_of(text, "process_cpu_seconds_total"), 0);
#ifdef __linux__
  EXPECT_GT(value_of(text, "process_resident_memory_bytes"), 1e5);
  EXPECT_GT(value_of(text, "process_virtual_memory_bytes"), value_of(text, "process_resident_memory_bytes"));
  EXPECT_GT(value_of(text, "process_start_time_seconds"), 1.6e9);
  EXPECT_GE(value_of(text, "process_open_fds"), 3);
  EXPECT_GE(value_of(text, "process_max_fds"), value_of(text, "process_open_fds"));
#endif
}

// The Python tests read the file with prometheus_client's own parser and compare the docs and the dashboard with it.
TEST(ServerMetrics, WritesItsTextWhereAsked) {
  ServerMetricsOptions options = tiny_options();
  options.model_name = "odd \"name\" \\ \xC3\xA9\n";
  ServerMetrics metrics(options);
  play(metrics);
  using enum ServerMetrics::Total;
  for (const auto total : {kKvEventBatches, kKvEventBatchesDropped, kTraceSpans, kTraceSpansDropped}) {
    metrics.watch(total, [] { return int64_t{3}; });
  }
  const std::string text = metrics.expose();
  EXPECT_EQ(value_of(text, "quire:trace_spans_dropped_total"), 3);
  EXPECT_EQ(text.back(), '\n');
  if (const char* path = std::getenv("QUIRE_EXPOSITION")) {
    std::ofstream file(path, std::ios::binary);
    file << text;
    ASSERT_TRUE(file.flush().good()) << path;
  }
}

class StatLoggerTest : public ::testing::Test {
 protected:
  using Clock = StatLogger::Clock;
  std::optional<std::string> line_at(int seconds) { return logger.line(start + std::chrono::seconds(seconds)); }

  const Clock::time_point start{};
  StatLogger logger{start, std::chrono::seconds(10), "CPU"};
};

TEST_F(StatLoggerTest, WritesVllmsLineOnceAnInterval) {
  StepStats step;
  step.running = 3;
  step.waiting = 1;
  step.kv_usage = 0.125;
  step.prefix_requests = 1;
  step.prefix_queries = 200;
  step.prefix_hits = 150;
  step.prompt_tokens = 200;
  step.cached_tokens = 150;
  step.generation_tokens = 25;
  logger.on_step(step);
  EXPECT_EQ(line_at(9), std::nullopt);
  EXPECT_EQ(line_at(10),
            "Engine 000: Avg prompt throughput: 5.0 tokens/s, Avg generation throughput: 2.5 tokens/s, "
            "Running: 3 reqs, Waiting: 1 reqs, CPU KV cache usage: 12.5%, Prefix cache hit rate: 75.0%");
  EXPECT_EQ(line_at(11), std::nullopt);
}

TEST_F(StatLoggerTest, NamesDeferralsAndPreemptionsWhenThereAreAny) {
  StepStats step;
  step.waiting_deferred = 2;
  step.preemptions = 4;
  step.generation_tokens = 1;
  logger.on_step(step);
  EXPECT_THAT(*line_at(10), HasSubstr("Waiting: 0 reqs, Deferred: 2 reqs, Preemptions: 4, CPU KV cache usage"));
}

TEST_F(StatLoggerTest, SaysWhatBecameOfDrafts) {
  StepStats step;
  step.generation_tokens = 5;
  step.drafts = 2;
  step.draft_tokens = 4;
  step.accepted_tokens = 3;
  step.accepted_per_position = {2, 1};
  logger.on_step(step);
  EXPECT_THAT(*line_at(10), HasSubstr("hit rate: 0.0%, SpecDecoding metrics: Mean acceptance length: 2.50, Accepted "
                                      "throughput: 0.30 tokens/s, Drafted throughput: 0.40 tokens/s, Per-position "
                                      "acceptance rate: 1.000, 0.500, Avg Draft acceptance rate: 75.0%"));
  EXPECT_THAT(*line_at(20), Not(HasSubstr("SpecDecoding"))) << "nothing was drafted since";
}

TEST_F(StatLoggerTest, FallsSilentAfterAnIdleInterval) {
  EXPECT_EQ(line_at(10), std::nullopt);
  StepStats step;
  step.generation_tokens = 1;
  logger.on_step(step);
  EXPECT_NE(line_at(20), std::nullopt);
  logger.on_queue(0, 0, 0, 0);
  EXPECT_THAT(line_at(30).value_or(""), HasSubstr("generation throughput: 0.0 tokens/s"));
  EXPECT_EQ(line_at(40), std::nullopt);
}

TEST_F(StatLoggerTest, ForgetsTheHitsOfOldRequests) {
  StepStats hit;
  hit.prefix_requests = 1;
  hit.prefix_queries = hit.prefix_hits = 10;
  hit.generation_tokens = 1;
  for (int i = 0; i < 500; ++i) logger.on_step(hit);
  StepStats miss = hit;
  miss.prefix_hits = 0;
  for (int i = 0; i < 750; ++i) logger.on_step(miss);
  EXPECT_THAT(*line_at(10), HasSubstr("hit rate: 25.0%"));  // 250 of the last 1000
  StepStats emptied = miss;
  emptied.prefix_reset = true;
  logger.on_step(emptied);
  logger.on_step(hit);
  EXPECT_THAT(*line_at(20), HasSubstr("hit rate: 50.0%"));
}

}  // namespace
}  // namespace quire::metrics
