// SPDX-License-Identifier: Apache-2.0
// LoRA adapters: against PEFT on every kind of model, and the same bits in any mixture, with loads and unloads.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/file.h"
#include "base/json.h"
#include "base/test_folder.h"
#include "model/layers/lora.h"
#include "models/golden.h"
#include "models/harness.h"
#include "weights/dummy.h"
#include "weights/test_files.h"

namespace quire::testing {
namespace {

using weights::testing::SafetensorsTensor;

// A folder with an adapter of random weights.
class AdapterFolder {
 public:
  // `tensors`: names and shapes.
  AdapterFolder(const json::Value& config, const json::Object& tensors, uint64_t seed) {
    const weights::DummySource source(seed, DType::kF32, 1);
    std::vector<SafetensorsTensor> list;
    for (const auto& [name, dims] : tensors) {
      std::vector<int64_t> shape;
      for (const json::Value& dim : dims.as_array()) shape.push_back(dim.as_int());
      list.push_back({name, "F32", shape, weights::testing::bytes_of(*source.make(name, shape).value())});
    }
    folder_.write("adapter_config.json", json::dump(config));
    folder_.write("adapter_model.safetensors", weights::testing::safetensors_file(list));
  }
  AdapterFolder(const json::Value& config, const std::vector<SafetensorsTensor>& tensors,
                const char* file = "adapter_model.safetensors") {
    folder_.write("adapter_config.json", json::dump(config));
    folder_.write(file, weights::testing::safetensors_file(tensors));
  }
  const std::filesystem::path& path() const { return folder_.path(); }
  // Loads it: each call gives an adapter of its own.
  model::AdapterPtr load(const engine::Engine& engine) const {
    const auto files = weights::open_adapter(path());
    if (!files.ok()) ADD_FAILURE() << files.error().message;
    if (!files.ok()) return nullptr;
    auto adapter = engine.model().make_adapter(*files);
    if (!adapter.ok()) ADD_FAILURE() << adapter.error().message;
    return adapter.ok() ? *adapter : nullptr;
  }

 private:
  TempFolder folder_;
};

json::Value golden(const std::string& name) {
  return json::parse(read_file(goldens_folder() / "lora" / (name + ".json")).value()).value();
}

std::vector<std::string> lora_goldens() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(goldens_folder() / "lora")) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

llm::Options lora_options(const json::Value& expected) {
  llm::Options options = dummy_options(expected.find("case")->as_string());
  options.max_model_len = std::to_string(expected.find("max_model_len")->as_int());
  options.enable_lora = true;
  return options;
}

// Runs a golden's prompts with its adapter, and without.
void expect_pefts_logits(const std::string& name, const std::string& device) {
  const json::Value expected = golden(name);
  llm::Options options = lora_options(expected);
  options.device = device;
  const auto engine = make_engine(options);
  ASSERT_NE(engine, nullptr);
  const AdapterFolder folder(*expected.find("adapter_config"), expected.find("tensors")->as_object(), 0);
  const model::AdapterPtr adapter = folder.load(*engine);
  ASSERT_NE(adapter, nullptr);
  std::vector<engine::Request> requests;
  for (const json::Value& prompt : expected.find("prompts")->as_array()) {
    std::vector<int32_t> tokens;
    for (const json::Value& id : prompt.find("tokens")->as_array()) tokens.push_back(static_cast<int32_t>(id.as_int()));
    requests.push_back(greedy_request(tokens, 1));
    requests.push_back(requests.back());  // without the adapter: it must make a difference
    requests[requests.size() - 2].adapter = adapter;
  }
  const std::vector<Trace> traces = run(*engine, requests);
  for (size_t i = 0; i < requests.size(); i += 2) {
    const json::Value& prompt = expected.find("prompts")->as_array()[i / 2];
    const double allowed = logit_tolerance(prompt);
    const json::Value& row = prompt.find("rows")->as_array()[0];
    const std::vector<float> want = floats_from_base64(row.find("logits")->as_string());
    const std::vector<float>& got = traces[i].logits.at(row.find("position")->as_int());
    const std::vector<float>& base = traces[i + 1].logits.at(row.find("position")->as_int());
    ASSERT_EQ(got.size(), want.size());
    double difference = 0;
    for (size_t v = 0; v < want.size(); ++v) {
      ASSERT_NEAR(double{got[v]}, double{want[v]}, allowed) << "prompt " << i / 2 << " token " << v;
      difference = std::max(difference, std::abs(double{got[v]} - double{base[v]}));
    }
    EXPECT_GT(difference, 100 * allowed);
  }
}

class LoraGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(LoraGolden, HasPeftsLogits) {
  expect_pefts_logits(GetParam(), test_device());
}

INSTANTIATE_TEST_SUITE_P(Adapters, LoraGolden, ::testing::ValuesIn(lora_goldens()),
                         [](const auto& info) { return test_name(info.param); });

std::vector<int32_t> random_tokens(std::mt19937& rng, size_t count) {
  std::vector<int32_t> out(count);
  for (int32_t& token : out) token = static_cast<int32_t>(rng() % 500);
  return out;
}

std::vector<engine::Request> random_requests(std::mt19937& rng, int count) {
  const std::vector<int32_t> shared = random_tokens(rng, 60);
  std::vector<engine::Request> out;
  for (int i = 0; i < count; ++i) {
    std::vector<int32_t> prompt = random_tokens(rng, 1 + rng() % 60);
    if (rng() % 2 == 0) prompt.insert(prompt.begin(), shared.begin(), shared.end());
    engine::Request request = greedy_request(std::move(prompt), 1 + static_cast<int64_t>(rng() % 10));
    request.params.temperature = rng() % 2 == 0 ? 0.0 : 0.9;
    request.params.seed = static_cast<int64_t>(rng());
    out.push_back(std::move(request));
  }
  return out;
}

class LoraSameBits : public ::testing::TestWithParam<std::string> {};

// Requests with three adapters and with none: each has the bits that it has alone, also while adapters are loaded again
// and the old ones are let go; and those without one have the bits of an engine without adapters.
TEST_P(LoraSameBits, InAnyMixture) {
  std::mt19937 rng(5);
  const json::Value expected = golden(GetParam());
  llm::Options options = lora_options(expected);
  options.max_model_len = "160";
  options.max_lora_rank = 12;
  std::vector<std::unique_ptr<AdapterFolder>> folders;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    folders.push_back(std::make_unique<AdapterFolder>(*expected.find("adapter_config"),
                                                      expected.find("tensors")->as_object(), seed));
  }
  std::vector<engine::Request> requests = random_requests(rng, 12);
  std::vector<int> choice;  // -1: no adapter
  for (size_t i = 0; i < requests.size(); ++i) choice.push_back(static_cast<int>(i % 4) - 1);

  llm::Options plain = options;
  plain.enable_lora = false;
  plain.threads = 1;
  const auto without = make_engine(plain);
  options.threads = 1;
  const auto with = make_engine(options);
  ASSERT_TRUE(without != nullptr && with != nullptr);
  std::vector<Trace> truth;
  for (size_t i = 0; i < requests.size(); ++i) {
    engine::Request request = requests[i];
    if (choice[i] >= 0) request.adapter = folders[static_cast<size_t>(choice[i])]->load(*with);
    truth.push_back(run(choice[i] < 0 ? *without : *with, {request})[0]);
  }
  struct Circumstances {
    int64_t max_loras, batched_tokens, threads, blocks;
    bool prefix_caching;
    int stagger;
    int64_t ranks = 1, stages = 1;
  };
  for (const Circumstances& c : {Circumstances{3, 2048, 2, 2000, false, 0}, Circumstances{1, 64, 3, 2000, true, 1},
                                 Circumstances{2, 19, 2, 60, true, 2}, Circumstances{4, 100, 1, 2000, true, 0},
                                 Circumstances{2, 40, 2, 2000, true, 1, 2}, Circumstances{2, 90, 2, 2000, true, 1, 1, 2},
                                 Circumstances{3, 40, 2, 60, true, 2, 2, 2}}) {
    if (c.ranks * c.stages > 1 && test_device() != "cpu") continue;
    llm::Options own = options;
    own.max_loras = c.max_loras;
    own.max_num_batched_tokens = c.batched_tokens;
    own.threads = c.threads;
    own.num_gpu_blocks_override = c.blocks;
    own.enable_prefix_caching = c.prefix_caching;
    own.tensor_parallel_size = c.ranks;
    own.pipeline_parallel_size = c.stages;
    while (!fits(own)) own.num_gpu_blocks_override = *own.num_gpu_blocks_override * 5 / 4 + 1;
    const auto engine = make_engine(own);
    ASSERT_NE(engine, nullptr);
    for (int round = 0; round < 2; ++round) {
      std::vector<engine::Request> mixed = requests;
      std::vector<model::AdapterPtr> loaded;
      for (const auto& folder : folders) loaded.push_back(folder->load(*engine));
      for (size_t i = 0; i < mixed.size(); ++i) {
        if (choice[i] < 0) continue;
        model::AdapterPtr& adapter = loaded[static_cast<size_t>(choice[i])];
        mixed[i].adapter = adapter;
        if (rng() % 2 == 0) adapter = folders[static_cast<size_t>(choice[i])]->load(*engine);  // the old one is unloaded
      }
      loaded.clear();
      const std::vector<Trace> traces = run(*engine, mixed, {}, c.stagger);
      for (size_t i = 0; i < mixed.size(); ++i) {
        EXPECT_EQ(difference(truth[i], traces[i]), "")
            << "request " << i << " with adapter " << choice[i] << ", max_loras " << c.max_loras << ", ranks "
            << c.ranks << " x " << c.stages << ", round " << round;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Adapters, LoraSameBits,
                         ::testing::Values("llama-patterns", "phi3", "glm4-moe", "qwen3-next", "deepseek-v2"),
                         [](const auto& info) { return test_name(info.param); });

// Every rank of a GPU arranges its own part of an adapter.
TEST(LoraRanks, OnGpusHaveTheBitsOfOne) {
  for (const char* name : {"llama-patterns", "phi3", "glm4-moe"}) {
    const json::Value expected = golden(name);
    llm::Options options = lora_options(expected);
    options.device = device_of_gpu_ranks();
    options.max_model_len = "160";
    options.max_lora_rank = 12;
    options.max_loras = 2;
    options.max_num_batched_tokens = 40;
    std::vector<std::unique_ptr<AdapterFolder>> folders;
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      folders.push_back(std::make_unique<AdapterFolder>(*expected.find("adapter_config"),
                                                        expected.find("tensors")->as_object(), seed));
    }
    std::mt19937 rng(5);
    const std::vector<engine::Request> requests = random_requests(rng, 4);
    std::vector<Trace> truth;
    for (const auto& [tensor, stages] : {std::pair(1, 1), std::pair(2, 1), std::pair(1, 2)}) {
      options.tensor_parallel_size = tensor;
      options.pipeline_parallel_size = stages;
      const auto engine = make_engine(options);
      ASSERT_NE(engine, nullptr) << name;
      std::vector<engine::Request> mixed = requests;
      for (size_t i = 1; i < mixed.size(); ++i) mixed[i].adapter = folders[i % folders.size()]->load(*engine);
      const std::vector<Trace> traces = run(*engine, mixed, {}, 1);
      if (truth.empty()) truth = traces;
      for (size_t i = 0; i < mixed.size(); ++i) {
        EXPECT_EQ(difference(truth[i], traces[i]), "") << name << ", request " << i << ", " << tensor << " x " << stages;
      }
    }
  }
}

// A step is recorded on all ranks or on none, whichever of them have the modules of its adapters.
TEST(LoraRanks, AgreeOnWhichStepsAreTheSame) {
  const auto adapter_of = [](const std::string& module, int64_t rank) {
    const std::string config = R"({"peft_type": "LORA", "lora_alpha": 8, "target_modules": "all", "r": )";
    const auto tensor = [&](const std::string& matrix, int64_t rows, int64_t columns) {
      const std::string bytes(static_cast<size_t>(rows * columns) * sizeof(float), '\0');
      return SafetensorsTensor{"base_model.model." + module + "." + matrix + ".weight", "F32", {rows, columns}, bytes};
    };
    return AdapterFolder(json::parse(config + std::to_string(rank) + "}").value(), {tensor("lora_A", rank, 8), tensor("lora_B", 8, rank)});
  };
  const std::string modules[] = {"model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj"};
  const AdapterFolder first = adapter_of(modules[0], 4), second = adapter_of(modules[1], 4),
                      third = adapter_of(modules[1], 20), fourth = adapter_of(modules[0], 4);
  const auto backend = make_cpu_backend({.threads = 1, .isa = {}}).value();
  std::vector<std::vector<int64_t>> keys(2);
  for (size_t stage = 0; stage < 2; ++stage) {
    model::LoraSites sites({2, 32, {}}, DType::kF32);
    const int64_t site = sites.add_sites(1);
    sites.add(modules[stage], false, {site, 0, 8, {}, 8, 8});
    sites.leave(modules[1 - stage]);
    model::LoraState state(sites, true);
    ASSERT_TRUE(state.allocate(*backend).ok());
    for (const AdapterFolder* folder : {&first, &second, &third, &fourth, &first}) {
      const auto files = weights::open_adapter(folder->path());
      ASSERT_TRUE(files.ok()) << files.error().message;
      const auto adapter = sites.make(*files, "");
      ASSERT_TRUE(adapter.ok()) << adapter.error().message;
      model::StepBatch batch;
      batch.context_lens = {1};
      batch.cu_seqlens_q = {0, 1};
      batch.adapters = {adapter->get()};
      batch.adapter_of = {0};
      state.begin(batch, *backend, {});
      keys[stage].push_back(state.graph_key());
    }
  }
  EXPECT_EQ(keys[0], keys[1]);
  EXPECT_EQ(keys[0][2], keys[0][4]) << "nothing new came after the third adapter";
  EXPECT_LT(keys[0][0], keys[0][2]);
}

// Adapters of single experts, as older versions of PEFT have them, and MLX's stacks of them say the same as one of all
// experts of a layer.
TEST(Lora, TakesExpertsOneByOneOrTogether) {
  const json::Value expected = golden("glm4-moe");
  const auto engine = make_engine(lora_options(expected));
  ASSERT_NE(engine, nullptr);
  json::Value config = *expected.find("adapter_config");
  const json::Object& tensors = expected.find("tensors")->as_object();
  const AdapterFolder together(config, tensors, 0);
  const weights::DummySource source(0, DType::kF32, 1);
  const auto experts = static_cast<size_t>(engine->model().config().moe.experts);
  std::vector<SafetensorsTensor> apart, mlx;
  std::map<std::string, SafetensorsTensor> stacks;  // MLX's
  const auto add = [&](const std::string& name, size_t rows, size_t columns, const auto& get) {
    std::string bytes;
    for (size_t i = 0; i < rows * columns; ++i) weights::testing::append<float>(bytes, get(i / columns, i % columns));
    apart.push_back({name, "F32", {static_cast<int64_t>(rows), static_cast<int64_t>(columns)}, bytes});
  };
  constexpr size_t kPrefix = std::string_view("base_model.model.").size();
  for (const auto& [name, dims] : tensors) {
    const std::vector<int64_t> shape = {dims.as_array()[0].as_int(), dims.as_array()[1].as_int()};
    const weights::TensorRef& tensor = *source.make(name, shape).value();
    const auto value = [&](size_t row, size_t column) {
      return reinterpret_cast<const float*>(tensor.data.data())[row * static_cast<size_t>(shape[1]) + column];
    };
    const size_t at = name.find(".experts.");
    if (at == std::string::npos) {
      apart.push_back({name, "F32", shape, weights::testing::bytes_of(tensor)});
      std::string turned;
      for (int64_t i = 0; i < shape[0] * shape[1]; ++i) {
        weights::testing::append<float>(turned, value(static_cast<size_t>(i % shape[0]), static_cast<size_t>(i / shape[0])));
      }
      const std::string end = name.ends_with("lora_A.weight") ? ".lora_a" : ".lora_b";
      mlx.push_back({name.substr(kPrefix, name.find(".lora_") - kPrefix) + end, "F32", {shape[1], shape[0]}, turned});
      continue;
    }
    const bool first = name.find("base_layer") != std::string::npos, is_a = name.ends_with("lora_A.weight");
    const auto rows = static_cast<size_t>(shape[0]), columns = static_cast<size_t>(shape[1]);
    for (size_t e = 0; e < experts; ++e) {
      for (const std::string& part : first ? std::vector<std::string>{"gate_proj", "up_proj"}
                                          : std::vector<std::string>{"down_proj"}) {
        const std::string own = name.substr(0, at) + ".experts." + std::to_string(e) + "." + part;
        const size_t half = first ? rows / 2 : rows, from = part == "up_proj" ? half : 0;
        if (is_a) {
          const size_t rank = rows / experts;
          add(own + ".lora_A.weight", rank, columns, [&](size_t r, size_t c) { return value(e * rank + r, c); });
        } else {
          add(own + ".lora_B.weight", half, columns / experts,
              [&](size_t r, size_t c) { return value(from + r, c * experts + e); });
        }
        const SafetensorsTensor& one = apart.back();
        const std::string stack = name.substr(kPrefix, at - kPrefix) + ".switch_mlp." + part + (is_a ? ".lora_a" : ".lora_b");
        SafetensorsTensor& all = stacks.try_emplace(stack, SafetensorsTensor{stack, "F32", {0, one.shape[0], one.shape[1]}, ""})
                                     .first->second;
        ++all.shape[0];
        all.data += one.data;
      }
    }
  }
  const json::Value patterns = config.find("rank_pattern")->as_object().at(0).second;  // of gate_up_proj
  const json::Value alphas = config.find("alpha_pattern")->as_object().at(0).second;
  config.set("target_parameters", nullptr);
  config.set("rank_pattern", json::Object{{"gate_proj|gate_up_proj", patterns}, {"up_proj", patterns}});
  config.set("alpha_pattern", json::Object{{"gate_proj|gate_up_proj", alphas}, {"up_proj", alphas}});
  const AdapterFolder separate(config, apart);
  std::mt19937 rng(2);
  engine::Request request = greedy_request(random_tokens(rng, 40), 4);
  request.adapter = together.load(*engine);
  const Trace one = run(*engine, {request})[0];
  request.adapter = separate.load(*engine);
  EXPECT_EQ(difference(one, run(*engine, {request})[0]), "");
  // Both at once are more than a slot holds.
  config.set("target_parameters", expected.find("adapter_config")->find("target_parameters")->as_array());
  for (const auto& [name, dims] : tensors) {
    if (name.find(".experts.") == std::string::npos) continue;
    const std::vector<int64_t> shape = {dims.as_array()[0].as_int(), dims.as_array()[1].as_int()};
    apart.push_back({name, "F32", shape, weights::testing::bytes_of(*source.make(name, shape).value())});
  }
  const AdapterFolder twice(config, apart);
  const auto files = weights::open_adapter(twice.path());
  ASSERT_TRUE(files.ok()) << files.error().message;
  const auto both = engine->model().make_adapter(*files);
  ASSERT_FALSE(both.ok());
  EXPECT_NE(both.error().message.find("are the same matrix under two names"), std::string::npos) << both.error().message;
  for (const auto& [name, tensor] : stacks) mlx.push_back(tensor);
  const double scale = alphas.as_double() / patterns.as_double();  // MLX has one for all modules
  ASSERT_EQ(config.find("lora_alpha")->as_double() / config.find("r")->as_double(), scale);
  const json::Value mlx_config = json::Object{{"lora_parameters", json::Object{{"scale", scale}}}};
  request.adapter = AdapterFolder(mlx_config, mlx, "adapters.safetensors").load(*engine);
  EXPECT_EQ(difference(one, run(*engine, {request})[0]), "");
}

// The kernels of a GPU for adapters of experts.
TEST(Lora, HasPeftsLogitsOfExpertsOnTheEmulator) {
  if (test_device() != "cpu") GTEST_SKIP() << "the goldens above show it";
  for (const char* name : {"glm4-moe", "glm4-moe-shared"}) expect_pefts_logits(name, "emulator");
}

// GPU kernels give the same bits in mixtures, too.
TEST(Lora, HasTheSameBitsOnTheEmulator) {
  const std::pair<const char*, const char*> cases[] = {{"llama-all", "float32"}, {"llama-all", "bfloat16"},
                                                       {"glm4-moe", "float32"}, {"glm4-moe", "bfloat16"}};
  for (const auto& [name, dtype] : cases) {
    const json::Value expected = golden(name);
    llm::Options options = lora_options(expected);
    options.device = test_device() == "cpu" ? "emulator" : test_device();
    options.dtype = dtype;
    options.max_model_len = "64";
    options.max_loras = 2;
    llm::Options plain = options;
    plain.enable_lora = false;
    const AdapterFolder one(*expected.find("adapter_config"), expected.find("tensors")->as_object(), 1);
    const AdapterFolder two(*expected.find("adapter_config"), expected.find("tensors")->as_object(), 2);
    const auto engine = make_engine(options), without = make_engine(plain);
    ASSERT_TRUE(engine != nullptr && without != nullptr);
    std::mt19937 rng(3);
    std::vector<engine::Request> requests;
    for (int i = 0; i < 3; ++i) requests.push_back(greedy_request(random_tokens(rng, 5 + rng() % 9), 3));
    requests[1].adapter = one.load(*engine);
    requests[2].adapter = two.load(*engine);
    const std::vector<Trace> together = run(*engine, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(difference(run(i == 0 ? *without : *engine, {requests[i]})[0], together[i]), "")
          << name << " " << dtype << " " << i;
    }
  }
}

// A feed-forward part runs on some of a large step's rows at a time, and the head on those whose logits are wanted.
TEST(Lora, HasTheSameBitsInLargeSteps) {
  const json::Value expected = golden("llama-patterns");
  const AdapterFolder one(*expected.find("adapter_config"), expected.find("tensors")->as_object(), 1);
  const AdapterFolder two(*expected.find("adapter_config"), expected.find("tensors")->as_object(), 2);
  std::mt19937 rng(4);
  std::vector<engine::Request> requests;
  for (const size_t length : {700, 90, 300, 650}) requests.push_back(greedy_request(random_tokens(rng, length), 2));
  requests[3].params.prompt_logprobs = 1;
  std::vector<std::vector<Trace>> all;
  for (const int64_t tokens : {2048, 61}) {
    llm::Options options = lora_options(expected);
    options.max_loras = 2;
    options.max_lora_rank = 12;
    options.max_num_batched_tokens = tokens;
    const auto engine = make_engine(options);
    ASSERT_NE(engine, nullptr);
    requests[0].adapter = one.load(*engine);
    requests[2].adapter = requests[3].adapter = two.load(*engine);
    all.push_back(run(*engine, requests));
  }
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(difference(all[0][i], all[1][i]), "") << i;
}

TEST(Lora, SharesNoPrefixWithOthers) {
  const json::Value expected = golden("llama-all");
  const auto engine = make_engine(lora_options(expected));
  ASSERT_NE(engine, nullptr);
  const AdapterFolder folder(*expected.find("adapter_config"), expected.find("tensors")->as_object(), 1);
  std::mt19937 rng(1);
  engine::Request request = greedy_request(random_tokens(rng, 100), 2);
  const auto hits = [&](const model::AdapterPtr& adapter, const std::string& salt) {
    const int64_t before = engine->stats().prefix.hit_tokens;
    request.adapter = adapter;
    request.cache_salt = salt;
    run(*engine, {request});
    return engine->stats().prefix.hit_tokens - before;
  };
  const model::AdapterPtr adapter = folder.load(*engine);
  EXPECT_EQ(hits(nullptr, ""), 0);
  EXPECT_GT(hits(nullptr, ""), 0);
  EXPECT_EQ(hits(adapter, ""), 0);
  EXPECT_GT(hits(adapter, ""), 0);
  EXPECT_EQ(hits(folder.load(*engine), ""), 0) << "the same file, loaded again";
  EXPECT_EQ(hits(adapter, "salt"), 0);
  EXPECT_EQ(hits(nullptr, "\x01" + std::to_string(adapter->id) + "\n"), 0) << "a salt that looks like an adapter";
}

TEST(Lora, GivesTheSameAnswersWithSpeculation) {
  const json::Value expected = golden("llama-all");
  llm::Options options = lora_options(expected);
  options.max_loras = 2;
  const AdapterFolder folder(*expected.find("adapter_config"), expected.find("tensors")->as_object(), 1);
  std::vector<engine::Request> requests;
  for (int i = 0; i < 3; ++i) {
    std::vector<int32_t> prompt;
    for (int j = 0; j < 30; ++j) prompt.push_back(7 + j % (3 + i));
    requests.push_back(greedy_request(prompt, 30));
  }
  std::vector<std::vector<Trace>> all;
  for (const char* config : {"", R"({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1})"}) {
    options.speculative_config = config;
    const auto engine = make_engine(options);
    ASSERT_NE(engine, nullptr);
    requests[1].adapter = requests[2].adapter = folder.load(*engine);
    all.push_back(run(*engine, requests));
    EXPECT_EQ(engine->stats().speculation.draft_tokens > 0, *config != '\0');
  }
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(all[0][i].tokens, all[1][i].tokens) << i;
}

TEST(Lora, RefusesAdaptersThatDoNotFit) {
  const json::Value expected = golden("llama-all");
  llm::Options options = lora_options(expected);
  options.max_lora_rank = 4;
  const auto small = make_engine(options);
  options.max_lora_rank = 8;
  const auto engine = make_engine(options);
  options.enable_lora = false;
  const auto plain = make_engine(options);
  ASSERT_TRUE(small != nullptr && engine != nullptr && plain != nullptr);
  const auto refusal = [&](const engine::Engine& with, const json::Object& tensors) -> std::string {
    const AdapterFolder folder(*expected.find("adapter_config"), tensors, 0);
    const auto files = weights::open_adapter(folder.path());
    if (!files.ok()) return "not opened: " + files.error().message;
    const auto made = with.model().make_adapter(*files);
    return made.ok() ? "" : made.error().message;
  };
  const json::Object& tensors = expected.find("tensors")->as_object();
  EXPECT_EQ(refusal(*engine, tensors), "");
  EXPECT_NE(refusal(*small, tensors).find("start quire with --max-lora-rank 8"), std::string::npos);
  EXPECT_NE(refusal(*plain, tensors).find("--enable-lora"), std::string::npos);
  const auto module = [](const std::string& name, int64_t in, int64_t out) {
    const std::string prefix = "base_model.model.model.layers." + name;
    return json::Object{{prefix + ".lora_A.weight", json::Array{int64_t{8}, in}},
                        {prefix + ".lora_B.weight", json::Array{out, int64_t{8}}}};
  };
  EXPECT_NE(refusal(*engine, module("0.self_attn.q_proj", 63, 64)).find("has 63 inputs and 64 outputs"),
            std::string::npos);
  EXPECT_NE(refusal(*engine, module("0.self_attn.q_proj", 64, 65)).find("another model"), std::string::npos);
  EXPECT_NE(refusal(*engine, module("99.self_attn.q_proj", 64, 64)).find("'model.layers.99.self_attn.q_proj'"),
            std::string::npos);
  const std::string experts = refusal(*engine, module("0.mlp.experts.3.gate_proj", 64, 64));
  EXPECT_NE(experts.find("'model.layers.0.mlp.experts.3.gate_proj' is not one that quire adapts"), std::string::npos)
      << experts;
  EXPECT_NE(experts.find("mlp.down_proj, mlp.gate_proj"), std::string::npos) << experts;

  // The first stage of a pipeline refuses what does not fit the layers of the last.
  if (test_device() != "cpu") return;
  options.enable_lora = true;
  options.pipeline_parallel_size = 2;
  const auto stages = make_engine(options);
  ASSERT_NE(stages, nullptr);
  EXPECT_EQ(refusal(*stages, tensors), "");
  EXPECT_EQ(refusal(*stages, module("2.self_attn.q_proj", 64, 64)), "");
  EXPECT_NE(refusal(*stages, module("2.self_attn.q_proj", 64, 65)).find("another model"), std::string::npos);
  EXPECT_NE(refusal(*stages, module("99.self_attn.q_proj", 64, 64)).find("is not one that quire adapts"),
            std::string::npos);
}

// Only the named modules take memory and adapters, and what an adapter computes does not change.
TEST(Lora, TakesOnlyTheTargetModules) {
  const json::Value expected = golden("llama-all");
  llm::Options options = lora_options(expected);
  options.max_lora_rank = 8;
  options.max_model_len = "64";
  const auto all = make_engine(options);
  options.lora_target_modules = {"qkv_proj", "mlp.down_proj"};
  const auto some = make_engine(options);
  ASSERT_TRUE(all != nullptr && some != nullptr);
  json::Object within;
  for (const auto& [name, shape] : expected.find("tensors")->as_object()) {
    for (const char* part : {".q_proj.", ".v_proj.", ".mlp.down_proj."}) {
      if (name.find(part) != std::string::npos) within.emplace_back(name, shape);
    }
  }
  const AdapterFolder fitting(*expected.find("adapter_config"), within, 1);
  std::mt19937 rng(6);
  engine::Request request = greedy_request(random_tokens(rng, 9), 3);
  request.adapter = fitting.load(*all);
  const Trace truth = run(*all, {request})[0];
  const size_t whole = request.adapter->image.size();
  request.adapter = fitting.load(*some);
  EXPECT_EQ(request.adapter->image.size(), whole);
  EXPECT_EQ(difference(truth, run(*some, {request})[0]), "");
  EXPECT_LT(some->model().scratch_bytes({}), all->model().scratch_bytes({}));

  const AdapterFolder larger(*expected.find("adapter_config"), expected.find("tensors")->as_object(), 1);
  const auto refused = some->model().make_adapter(*weights::open_adapter(larger.path()));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("is not among --lora-target-modules, which are qkv_proj, mlp.down_proj"),
            std::string::npos)
      << refused.error().message;
  if (test_device() != "cpu") return;
  options.lora_target_modules = {"embed_tokens", "mlp"};  // the second stage has no embedding
  options.pipeline_parallel_size = 2;
  EXPECT_NE(make_engine(options), nullptr);
}

TEST(Lora, LeavesExpertsWithoutMemory) {
  const json::Value expected = golden("glm4-moe");
  llm::Options options = lora_options(expected);
  options.max_model_len = "64";
  const auto all = make_engine(options);
  options.lora_target_modules = {"self_attn"};
  const auto attention = make_engine(options);
  options.lora_target_modules = {"experts"};
  const auto experts = make_engine(options);
  ASSERT_TRUE(all != nullptr && attention != nullptr && experts != nullptr);
  const auto bytes = [](const engine::Engine& engine) { return engine.model().scratch_bytes({}); };
  EXPECT_LT(bytes(*attention), bytes(*experts));
  EXPECT_LT(bytes(*experts), bytes(*all));
}

// With room for one adapter, requests with others wait, but not for ever, and those without one pass them.
TEST(Lora, LetsRequestsWaitForAPlace) {
  const json::Value expected = golden("llama-all");
  llm::Options options = lora_options(expected);
  options.max_num_seqs = 4;
  const auto engine = make_engine(options);
  ASSERT_NE(engine, nullptr);
  const AdapterFolder folder(*expected.find("adapter_config"), expected.find("tensors")->as_object(), 1);
  const model::AdapterPtr often = folder.load(*engine), rare = folder.load(*engine);
  std::mt19937 rng(1);
  const auto add = [&](const model::AdapterPtr& adapter) {
    engine::Request request = greedy_request(random_tokens(rng, 4), 5);
    request.adapter = adapter;
    return engine->add(std::move(request)).value();
  };
  for (int i = 0; i < 3; ++i) add(often);
  engine->step();
  const engine::RequestId waits = add(rare), passes = add(nullptr);
  EXPECT_EQ(engine->stats().waiting_adapters, std::vector<uint64_t>{rare->id});
  std::map<engine::RequestId, int> ended;
  int steps = 0;
  while (!ended.contains(waits) && steps < 500) {
    if (steps++ % 2 == 0) add(often);  // more than enough to keep the place for ever
    for (const engine::Output& output : engine->step()) {
      if (output.finish != engine::FinishReason::kNone) ended[output.id] = steps;
    }
  }
  ASSERT_TRUE(ended.contains(waits));
  ASSERT_TRUE(ended.contains(passes));
  EXPECT_LT(ended[passes], ended[waits]);
  while (engine->has_work()) engine->step();
  EXPECT_TRUE(engine->stats().running_adapters.empty());
}

}  // namespace
}  // namespace quire::testing
