// SPDX-License-Identifier: Apache-2.0
// The harness of the model tests.
#include "models/harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "backend/cpu/isa_level.h"
#include "backend/gpu/device.h"
#include "base/env.h"
#include "base/file.h"
#include "base/json.h"
#include "base/test_folder.h"
#include "base/trace.h"

namespace quire::testing {

std::string test_device() {
  return env("QUIRE_TEST_DEVICE").value_or("cpu");
}

llm::Options dummy_options(const std::string& golden_case) {
  llm::Options options;
  options.model = goldens_folder() / golden_case / "config.json";
  options.load_format = "dummy";
  options.device = test_device();
  options.dtype = "float32";
  options.max_num_seqs = 16;
  options.num_gpu_blocks_override = 2000;
  return options;
}

std::string device_of_gpu_ranks() {
  if (test_device() != "cuda") return "emulator";
  const auto gpus = env("QUIRE_TEST_GPUS");
  if (!gpus) setenv("QUIRE_GPU_EXCHANGE", "host", 0);
  return "cuda:" + gpus.value_or("0,0,0,0");
}

namespace {

Result<std::unique_ptr<engine::Engine>> try_engine(const llm::Options& options) {
  // Creating a context takes a third of a second, which hundreds of engines should not each pay.
  static const auto kept = options.device == "cuda" ? gpu::open_cuda(0) : Result<std::unique_ptr<gpu::Device>>(nullptr);
  QUIRE_ASSIGN(const model::ModelFiles files, llm::open_files(options));
  QUIRE_ASSIGN(std::unique_ptr<Backend> backend, llm::make_backend(options));
  QUIRE_ASSIGN(llm::LoadedEngine loaded, llm::load_engine(options, files, std::move(backend), {}));
  return std::move(loaded.engine);
}

}  // namespace

std::unique_ptr<engine::Engine> make_engine(const llm::Options& options) {
  auto engine = try_engine(options);
  if (engine.ok()) {
    (*engine)->set_clock([] { return 0.0; });  // how busy the machine is decides nothing
    return std::move(engine).value();
  }
  ADD_FAILURE() << engine.error().message;
  return nullptr;
}

bool fits(const llm::Options& options) {
  const auto engine = try_engine(options);
  return engine.ok() || engine.error().code != ErrorCode::kExhausted;
}

std::vector<Trace> run(engine::Engine& engine, const std::vector<engine::Request>& requests,
                       const std::vector<size_t>& order, int stagger) {
  std::vector<size_t> sequence = order;
  if (sequence.empty()) {
    sequence.resize(requests.size());
    std::iota(sequence.begin(), sequence.end(), size_t{0});
  }
  std::vector<Trace> traces(requests.size());
  std::map<engine::RequestId, size_t> places;
  engine.set_logits_tap([&](engine::RequestId id, int32_t, int64_t position, std::span<const float> row) {
    traces[places.at(id)].logits[position].assign(row.begin(), row.end());
  });
  const auto step = [&] {
    for (const engine::Output& output : engine.step()) {
      if (output.error) ADD_FAILURE() << output.error->message;
      auto& tokens = traces[places.at(output.id)].tokens;
      tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
    }
  };
  for (const size_t i : sequence) {
    auto id = engine.add(requests[i]);
    if (!id.ok()) {
      ADD_FAILURE() << id.error().message;
      continue;
    }
    places[*id] = i;
    for (int s = 0; s < stagger; ++s) step();
  }
  while (engine.has_work()) step();
  engine.set_logits_tap({});
  return traces;
}

engine::Request greedy_request(std::vector<int32_t> prompt, int64_t max_tokens) {
  engine::Request request;
  request.prompt = std::move(prompt);
  request.params.temperature = 0;
  request.params.ignore_eos = true;
  request.params.max_tokens = max_tokens;
  return request;
}

std::string difference(const Trace& a, const Trace& b) {
  if (a.tokens != b.tokens) return "the tokens differ";
  for (const auto& [position, row] : a.logits) {
    const auto other = b.logits.find(position);
    if (other == b.logits.end()) return "no logits at position " + std::to_string(position);
    if (row.size() != other->second.size() ||
        std::memcmp(row.data(), other->second.data(), row.size() * sizeof(float)) != 0) {
      return "the logits differ at position " + std::to_string(position);
    }
  }
  return {};
}

std::vector<SpanTimes> spans_of(const std::function<void()>& work) {
  const TempFolder folder;
  const std::filesystem::path file = folder.path() / "trace.json";
  EXPECT_TRUE(trace::start(file).ok());
  work();
  EXPECT_TRUE(trace::finish().ok());
  const json::Value written = json::parse(read_file(file).value()).value();
  std::vector<SpanTimes> out;
  for (const json::Value& span : written.find("traceEvents")->as_array()) {
    if (span.find("ph")->as_string() != "X") continue;
    const double begin = span.find("ts")->as_double();
    out.push_back({span.find("name")->as_string(), begin, begin + span.find("dur")->as_double()});
  }
  std::ranges::stable_sort(out, {}, &SpanTimes::begin);
  return out;
}

std::vector<std::string> isa_names() {
  if (test_device() != "cpu") return {""};
  std::vector<std::string> names;
  for (const cpu::Isa isa : cpu::available_isas()) names.emplace_back(cpu::name(isa));
  return names;
}

}  // namespace quire::testing
