// SPDX-License-Identifier: Apache-2.0
// The comparison with transformers' logits and tokens.
#include "models/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "base/file.h"
#include "base/json.h"

namespace quire::testing {
std::vector<float> floats_from_base64(const std::string& text) {
  const auto value = [](char c) -> int {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
  };
  std::string bytes;
  uint32_t bits = 0;
  int have = 0;
  for (const char c : text) {
    if (value(c) < 0) continue;
    bits = (bits << 6) | static_cast<uint32_t>(value(c));
    have += 6;
    if (have >= 8) bytes += static_cast<char>((bits >> (have -= 8)) & 0xff);
  }
  std::vector<float> out(bytes.size() / 4);
  std::memcpy(out.data(), bytes.data(), out.size() * 4);
  return out;
}

namespace {

std::vector<int32_t> ids(const json::Value& list) {
  std::vector<int32_t> out;
  for (const json::Value& id : list.as_array()) out.push_back(static_cast<int32_t>(id.as_int()));
  return out;
}

}  // namespace

// float32 sums in another order than the reference's: each of about ten roundings per layer moves a logit by up to eps
// times its size, and errors grow with the layers. The reference's own distance to float64 shows how much this model
// amplifies them.
double logit_tolerance(const json::Value& prompt) {
  const double noise = prompt.find("reference_noise")->as_double();
  const double size = prompt.find("max_abs_logit")->as_double();
  return 8 * noise + 32 * 1.1920929e-7 * size;
}

void expect_golden(const std::string& name, const std::string& device, int64_t max_tokens, size_t longest_prompt) {
  const auto file = goldens_folder() / name / "expected.json";
  const json::Value expected = json::parse(read_file(file).value()).value();
  llm::Options options = dummy_options(name);
  if (!device.empty()) options.device = device;
  options.max_model_len = std::to_string(expected.find("max_model_len")->as_int());
  const auto engine = make_engine(options);
  ASSERT_NE(engine, nullptr);

  std::vector<engine::Request> requests;
  std::vector<const json::Value*> prompts;
  for (const json::Value& prompt : expected.find("prompts")->as_array()) {
    if (prompt.find("tokens")->as_array().size() > longest_prompt) continue;
    prompts.push_back(&prompt);
    engine::Request request = greedy_request(ids(*prompt.find("tokens")), max_tokens);
    request.params.prompt_logprobs = 0;  // so that every row is computed
    requests.push_back(std::move(request));
  }
  const std::vector<Trace> traces = run(*engine, requests);

  double worst = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const json::Value& prompt = *prompts[i];
    const double allowed = logit_tolerance(prompt);
    for (const json::Value& row : prompt.find("rows")->as_array()) {
      const std::vector<float> want = floats_from_base64(row.find("logits")->as_string());
      const int64_t position = row.find("position")->as_int();
      if (position >= static_cast<int64_t>(requests[i].prompt.size()) + max_tokens - 1) continue;
      const auto found = traces[i].logits.find(position);
      ASSERT_NE(found, traces[i].logits.end());
      ASSERT_EQ(found->second.size(), want.size());
      for (size_t v = 0; v < want.size(); ++v) {
        const double off = std::abs(static_cast<double>(found->second[v]) - static_cast<double>(want[v]));
        worst = std::max(worst, off / allowed);
        ASSERT_LE(off, allowed) << name << " prompt " << i << " position " << found->first << " token " << v;
      }
    }
    const std::vector<int32_t> greedy = ids(*prompt.find("greedy"));
    const std::vector<float> gaps = floats_from_base64(prompt.find("gaps")->as_string());
    for (size_t t = 0; t < std::min(greedy.size(), static_cast<size_t>(max_tokens)); ++t) {
      if (traces[i].tokens[t] == greedy[t]) continue;
      ASSERT_LT(gaps[t], 2 * allowed) << name << " prompt " << i << " output token " << t;
      break;  // a tie, by the reference's own measure: from here on the texts differ
    }
  }
  ::testing::Test::RecordProperty("worst_share_of_tolerance", std::to_string(worst));
}

namespace {

void expect_drafts(const std::string& name, const std::filesystem::path& folder, const std::string& config) {
  const json::Value expected = json::parse(read_file(folder / "ahead.json").value()).value();
  llm::Options options = dummy_options(name);
  options.device = "cpu";
  options.max_model_len = std::to_string(expected.find("max_model_len")->as_int());
  options.speculative_config = config;
  const auto engine = make_engine(options);
  ASSERT_NE(engine, nullptr);
  std::map<engine::RequestId, std::map<int64_t, std::vector<float>>> drafted;  // the first row of each position
  engine->set_draft_tap([&](engine::RequestId id, int32_t, int64_t position, std::span<const float> row) {
    drafted[id].try_emplace(position, row.begin(), row.end());
  });
  std::map<engine::RequestId, const json::Value*> prompts;
  for (const json::Value& prompt : expected.find("prompts")->as_array()) {
    const auto id = engine->add(greedy_request(ids(*prompt.find("tokens")), 8));
    ASSERT_TRUE(id.ok());
    prompts[*id] = &prompt;
  }
  while (engine->has_work()) engine->step();
  for (const auto& [id, prompt] : prompts) {
    const auto length = static_cast<int64_t>(prompt->find("tokens")->as_array().size());
    const std::vector<int32_t> drafts = ids(*prompt->find("drafts"));
    const double allowed = logit_tolerance(*prompt);
    for (size_t i = 0; i < drafts.size(); ++i) {
      const std::vector<float> want = floats_from_base64(prompt->find("rows")->as_array()[i].as_string());
      const std::vector<float>& got = drafted[id][length + static_cast<int64_t>(i)];
      ASSERT_GE(got.size(), want.size());  // an EAGLE-3 layer knows the first tokens
      for (size_t v = want.size(); v < got.size(); ++v) ASSERT_LT(got[v], -1e29f);
      for (size_t v = 0; v < want.size(); ++v) {
        const double off = std::abs(static_cast<double>(got[v]) - static_cast<double>(want[v]));
        ASSERT_LE(off, allowed) << name << " prompt of " << length << " draft " << i << " token " << v;
      }
      if (std::ranges::max_element(got) - got.begin() != drafts[i]) break;  // a tie: the next draft follows another
    }
  }
}

}  // namespace

void expect_golden_drafts(const std::string& name) {
  expect_drafts(name, goldens_folder() / name, R"({"method": "mtp", "num_speculative_tokens": 3})");
}

void expect_golden_eagle(const std::string& name, const std::string& folder) {
  const std::filesystem::path path = goldens_folder() / name / folder;
  expect_drafts(name, path, R"({"method": "eagle3", "num_speculative_tokens": 3, "model": ")" +
                                (path / "config.json").string() + "\"}");
}

std::vector<std::string> golden_cases() {
  std::vector<std::string> cases;
  for (const auto& entry : std::filesystem::directory_iterator(goldens_folder())) {
    if (std::filesystem::exists(entry.path() / "config.json")) cases.push_back(entry.path().filename().string());
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

std::string test_name(const std::string& golden_case) {
  std::string name = golden_case;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
}

}  // namespace quire::testing
