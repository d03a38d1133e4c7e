// SPDX-License-Identifier: Apache-2.0
// The exporter without a collector: threads that add spans never wait, and every span is counted.
#include "telemetry/trace_exporter.h"

#include <gtest/gtest.h>

namespace quire::telemetry {
namespace {

TEST(TraceExporter, CountsWhatNobodyTakes) {
  TraceOptions options;
  options.url = "http://127.0.0.1:9/v1/traces";
  options.max_queue = 20;
  options.max_batch = 5;
  options.delay_s = 0.001;
  TraceExporter exporter(options);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&exporter] {
      for (int k = 0; k < 100; ++k) exporter.add({}, "model");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(exporter.num_exported(), 0);
  EXPECT_GE(exporter.num_dropped(), 400 - 20 - 5) << "at most the queue and one batch under way are kept";
}

}  // namespace
}  // namespace quire::telemetry
