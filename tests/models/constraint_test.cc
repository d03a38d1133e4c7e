// SPDX-License-Identifier: Apache-2.0
// Constraints in the engine, with sampling on the host and in the backend's memory: masks, logprobs, errors, ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "models/fake_constraint.h"
#include "models/harness.h"

namespace quire::testing {
namespace {

constexpr int32_t kEnd = 3;

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<std::vector<sampling::TokenLogprob>> logprobs;
  engine::FinishReason finish = engine::FinishReason::kNone;
  std::string error;
};

std::vector<Answer> answers(engine::Engine& engine, const std::vector<engine::Request>& requests) {
  std::vector<Answer> out(requests.size());
  std::map<engine::RequestId, size_t> who;
  for (size_t i = 0; i < requests.size(); ++i) who[engine.add(requests[i]).value()] = i;
  while (engine.has_work()) {
    for (engine::Output& output : engine.step()) {
      Answer& answer = out[who.at(output.id)];
      answer.tokens.insert(answer.tokens.end(), output.tokens.begin(), output.tokens.end());
      std::move(output.logprobs.begin(), output.logprobs.end(), std::back_inserter(answer.logprobs));
      answer.finish = output.finish;
      if (output.error) answer.error = output.error->message;
    }
  }
  return out;
}

engine::Request request_of(int32_t first, engine::ConstraintPtr constraint, int64_t max_tokens = 12) {
  engine::Request request = greedy_request({first, 4, 5, 6}, max_tokens);
  request.params.ignore_eos = false;
  request.params.eos_token_ids = {kEnd};
  request.constraint = std::move(constraint);
  return request;
}

// Counts down: the i-th token is 100 + i, and after `length` of them only the end is allowed.
engine::ConstraintPtr counter(size_t length) {
  return fake_constraint([length](std::span<const int32_t> output, int32_t token) {
    return token == (output.size() < length ? 100 + static_cast<int32_t>(output.size()) : kEnd);
  });
}

class Constrained : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<engine::Engine> engine(int64_t max_logprobs = 20) const {
    llm::Options options = dummy_options("llama");
    options.device = GetParam();
    options.max_logprobs = max_logprobs;
    return make_engine(options);
  }
};

TEST_P(Constrained, AnswersFollowTheMasksAndEnd) {
  const auto engine = this->engine();
  ASSERT_NE(engine, nullptr);
  std::vector<engine::Request> requests;
  for (int32_t i = 0; i < 5; ++i)
    requests.push_back(request_of(i, i == 2 ? nullptr : counter(static_cast<size_t>(i) + 2)));
  const std::vector<Answer> all = answers(*engine, requests);
  for (size_t i = 0; i < all.size(); ++i) {
    if (i == 2) continue;
    ASSERT_EQ(all[i].tokens.size(), i + 3) << all[i].error;
    for (size_t t = 0; t < i + 2; ++t) EXPECT_EQ(all[i].tokens[t], 100 + static_cast<int32_t>(t));
    EXPECT_EQ(all[i].tokens.back(), kEnd);
    EXPECT_EQ(all[i].finish, engine::FinishReason::kStop);
  }
  // The request without a constraint is what it is alone.
  EXPECT_EQ(answers(*engine, {requests[2]})[0].tokens, all[2].tokens);
}

TEST_P(Constrained, MinTokensYieldsWhereOnlyTheEndIsAllowed) {
  const auto engine = this->engine();
  ASSERT_NE(engine, nullptr);
  engine::Request forced = request_of(1, counter(3));
  forced.params.min_tokens = 10;
  // Here the end is one of two choices, so min_tokens holds.
  engine::Request free =
      request_of(1, fake_constraint([](auto, int32_t token) { return token == kEnd || token == 50; }));
  free.params.min_tokens = 6;
  free.params.logit_bias = {{kEnd, 90.0f}};
  const std::vector<Answer> all = answers(*engine, {forced, free});
  EXPECT_EQ(all[0].tokens, (std::vector<int32_t>{100, 101, 102, kEnd})) << all[0].error;
  EXPECT_EQ(all[1].tokens, (std::vector<int32_t>{50, 50, 50, 50, 50, 50, kEnd})) << all[1].error;
}

TEST_P(Constrained, IgnoreEosGoesOnWithWhatTheMaskAllows) {
  const auto engine = this->engine();
  ASSERT_NE(engine, nullptr);
  engine::Request request = request_of(1, counter(2), 5);
  request.params.ignore_eos = true;
  const Answer answer = answers(*engine, {request})[0];
  EXPECT_EQ(answer.tokens, (std::vector<int32_t>{100, 101, kEnd, kEnd, kEnd})) << answer.error;
  EXPECT_EQ(answer.finish, engine::FinishReason::kLength);
}

TEST_P(Constrained, AllowedTokenIdsAndMaskBothHold) {
  const auto engine = this->engine();
  ASSERT_NE(engine, nullptr);
  engine::Request request = request_of(1, fake_constraint([](auto, int32_t token) { return token % 2 == 0; }), 6);
  request.params.allowed_token_ids = SharedList<int32_t>{7, 9, 11, 12};
  request.params.logprobs = 3;
  engine::Request nothing = request;
  nothing.params.allowed_token_ids = SharedList<int32_t>{7, 9};
  const std::vector<Answer> all = answers(*engine, {request, nothing});
  EXPECT_EQ(all[0].tokens, std::vector<int32_t>(6, 12)) << all[0].error;
  // Raw logprobs are those under the mask, before allowed_token_ids.
  for (const auto& row : all[0].logprobs) {
    for (const sampling::TokenLogprob& entry : row) EXPECT_EQ(entry.token % 2, 0);
  }
  EXPECT_EQ(all[1].finish, engine::FinishReason::kError);
  EXPECT_NE(all[1].error.find("no token is left"), std::string::npos) << all[1].error;
}

TEST_P(Constrained, LogprobsAreThoseUnderTheMask) {
  const auto engine = this->engine(-1);
  ASSERT_NE(engine, nullptr);
  const auto even = fake_constraint([](auto, int32_t token) { return token == 20 || token == 22 || token == 24; });
  for (const int64_t wanted : {5, 40, -1}) {  // more than the backend makes, too
    engine::Request request = request_of(1, even, 3);
    request.params.temperature = 1;
    request.params.seed = 5;
    request.params.logprobs = wanted;
    const Answer answer = answers(*engine, {request})[0];
    ASSERT_EQ(answer.logprobs.size(), 3u) << answer.error;
    for (const auto& row : answer.logprobs) {
      double sum = 0;
      for (size_t i = 1; i < row.size(); ++i) {
        if (i <= 3) {
          sum += std::exp(static_cast<double>(row[i].logprob));
          EXPECT_TRUE(row[i].token >= 20 && row[i].token <= 24);
        } else {
          EXPECT_TRUE(std::isinf(row[i].logprob)) << "a forbidden token";
        }
      }
      EXPECT_NEAR(sum, 1, 1e-5) << wanted;
      EXPECT_LE(row[0].rank, 3);
    }
  }
}

TEST_P(Constrained, AnErrorEndsItsOwnSequenceOnly) {
  class Failing final : public engine::Constraint {
   public:
    explicit Failing(bool in_accept) : in_accept_(in_accept) {}
    Result<bool> fill_mask(std::span<uint32_t>) override {
      if (seen_ == 3 && !in_accept_) return exhausted("the mask took too long");
      return false;
    }
    Status accept(int32_t) override {
      if (++seen_ == 3 && in_accept_) return Error{ErrorCode::kInternal, "the token is refused"};
      return {};
    }
    void rollback(int64_t count) override { seen_ -= static_cast<int>(count); }

   private:
    const bool in_accept_;
    int seen_ = 0;
  };
  class Source final : public engine::ConstraintSource {
   public:
    explicit Source(bool in_accept) : in_accept_(in_accept) {}
    std::unique_ptr<engine::Constraint> make() const override { return std::make_unique<Failing>(in_accept_); }

   private:
    const bool in_accept_;
  };
  const auto engine = this->engine();
  ASSERT_NE(engine, nullptr);
  std::vector<engine::Request> requests = {request_of(1, counter(5)), request_of(2, std::make_shared<Source>(false)),
                                           request_of(3, nullptr), request_of(4, std::make_shared<Source>(true)),
                                           request_of(5, counter(6))};
  for (engine::Request& request : requests) request.params.ignore_eos = true;
  const std::vector<Answer> all = answers(*engine, requests);
  EXPECT_EQ(all[1].finish, engine::FinishReason::kError);
  EXPECT_NE(all[1].error.find("the mask took too long"), std::string::npos);
  EXPECT_EQ(all[3].finish, engine::FinishReason::kError);
  EXPECT_NE(all[3].error.find("the token is refused"), std::string::npos);
  EXPECT_EQ(all[1].tokens.size(), 3u);
  for (const size_t i : {0, 2, 4}) {
    EXPECT_EQ(all[i].finish, engine::FinishReason::kLength) << all[i].error;
    EXPECT_EQ(answers(*engine, {requests[i]})[0].tokens, all[i].tokens);
  }
  EXPECT_TRUE(engine->reset_prefix_cache()) << "a page was not given back";
}

std::vector<std::string> devices() {
  return test_device() == "cpu" ? std::vector<std::string>{"cpu", "emulator"} : std::vector{test_device()};
}
INSTANTIATE_TEST_SUITE_P(Devices, Constrained, ::testing::ValuesIn(devices()));

}  // namespace
}  // namespace quire::testing
