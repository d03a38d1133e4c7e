// SPDX-License-Identifier: Apache-2.0
// The key file's errors, and the buckets of a key against a clock that the test turns.
#include "api/keys.h"

#include <gtest/gtest.h>

namespace quire::api {
namespace {

using std::chrono::seconds;

// Whether the key may send this request, which the engine then accepts.
bool accepted(KeyLedger& ledger, const std::string& name, int64_t sequences, int64_t prompt_tokens,
              KeyLedger::Clock::time_point now = KeyLedger::Clock::now()) {
  auto lease = ledger.begin(name, sequences, prompt_tokens, now);
  if (lease.ok() && *lease != nullptr) (*lease)->commit();
  return lease.ok();
}

TEST(KeyFile, ReadsNamesKeysAndLimits) {
  const auto keys = parse_key_file(R"({"keys": [{"name": "ada", "key": "sk-1", "requests_per_minute": 60,
      "tokens_per_minute": 1000, "max_sequences": 4}, {"name": "bob@x.org", "key": "sk-2"}]})",
                                   "keys.json");
  ASSERT_TRUE(keys.ok()) << keys.error().message;
  ASSERT_EQ(keys->size(), 2u);
  EXPECT_EQ((*keys)[0].limits.tokens_per_minute, 1000);
  EXPECT_EQ((*keys)[1].name, "bob@x.org");
  EXPECT_EQ((*keys)[1].limits.max_sequences, 0);
}

TEST(KeyFile, SaysWhatIsWrongWithoutShowingAKey) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "not valid JSON"},
      {"{}", "must have the form"},
      {R"({"keys": []})", "must have the form"},
      {R"({"keys": [{"name": "ada", "key": "secret"}, {"name": "ada", "key": "other"}]})",
       "keys[1] has the name 'ada'"},
      {R"({"keys": [{"name": "ada", "key": "secret"}, {"name": "bob", "key": "secret"}]})", "keys[1] has the key of"},
      {R"({"keys": [{"name": "ada", "key": "secret", "rpm": 3}]})", "keys[0].rpm is not known"},
      {R"({"keys": [{"name": "ada", "key": "secret", "max_sequences": 0}]})", "at least 1"},
      {R"({"keys": [{"name": "a b", "key": "secret"}]})", "keys[0].name"},
      {R"({"keys": [{"name": "ada", "key": "se cret"}]})", "keys[0].key"},
      {R"({"keys": [{"name": "ada"}]})", "keys[0].key"},
      {R"({"keys": ["secret"]})", "keys[0] must be an object"},
  };
  for (const auto& [text, words] : cases) {
    const auto keys = parse_key_file(text, "keys.json");
    ASSERT_FALSE(keys.ok()) << text;
    EXPECT_NE(keys.error().message.find(words), std::string::npos) << keys.error().message;
    EXPECT_NE(keys.error().message.find("keys.json"), std::string::npos) << keys.error().message;
    EXPECT_EQ(keys.error().message.find("secret"), std::string::npos) << keys.error().message;
  }
}

TEST(KeyLedger, CountsRequestsPerMinute) {
  KeyLedger ledger({{"ada", "k", {.requests_per_minute = 2}}});
  const auto now = KeyLedger::Clock::now();
  EXPECT_TRUE(accepted(ledger, "ada", 1, 5, now));
  EXPECT_TRUE(accepted(ledger, "ada", 1, 5, now));
  const auto third = ledger.begin("ada", 1, 5, now + seconds(1));
  ASSERT_FALSE(third.ok());
  EXPECT_EQ(third.error().status, 429);
  EXPECT_EQ(third.error().retry_after_s, 29);
  EXPECT_NE(third.error().message.find("2 requests a minute"), std::string::npos) << third.error().message;
  EXPECT_TRUE(accepted(ledger, "ada", 1, 5, now + seconds(30)));
}

TEST(KeyLedger, GivesBackWhatARefusedRequestHasPaid) {
  KeyLedger ledger({{"ada", "k", {.requests_per_minute = 1, .tokens_per_minute = 5, .max_sequences = 1}}});
  const auto now = KeyLedger::Clock::now();
  EXPECT_TRUE(ledger.begin("ada", 1, 5, now).ok()) << "the lease ends without commit()";
  EXPECT_TRUE(accepted(ledger, "ada", 1, 5, now));
  EXPECT_EQ(ledger.begin("ada", 1, 5, now).error().status, 429);
}

TEST(KeyLedger, CountsTokensOfPromptsAndAnswers) {
  KeyLedger ledger({{"ada", "k", {.tokens_per_minute = 600}}});
  const auto now = KeyLedger::Clock::now();
  {
    auto lease = ledger.begin("ada", 1, 100, now);
    ASSERT_TRUE(lease.ok());
    (*lease)->commit();
    (*lease)->add_tokens(700);  // 200 more than the bucket had
  }
  const auto next = ledger.begin("ada", 1, 50, now);
  ASSERT_FALSE(next.ok());
  EXPECT_EQ(next.error().status, 429);
  EXPECT_EQ(next.error().retry_after_s, 25);
  EXPECT_TRUE(ledger.begin("ada", 1, 50, now + seconds(25)).ok());
  const auto never = ledger.begin("ada", 1, 601, now + seconds(100));
  ASSERT_FALSE(never.ok());
  EXPECT_EQ(never.error().status, 400) << "it could never be sent";
}

TEST(KeyLedger, CountsSequencesUnderWay) {
  KeyLedger ledger({{"ada", "k", {.max_sequences = 4}}, {"bob", "l", {}}});
  auto lease = ledger.begin("ada", 3, 5);
  ASSERT_TRUE(lease.ok());
  EXPECT_EQ(ledger.begin("ada", 2, 5).error().status, 429);
  EXPECT_EQ(ledger.begin("ada", 5, 5).error().status, 400);
  EXPECT_TRUE(ledger.begin("bob", 100, 5).ok()) << "the limits of one are not those of another";
  EXPECT_TRUE(ledger.begin("", 100, 5).ok()) << "who has no key has no account";
  (*lease).reset();
  EXPECT_TRUE(ledger.begin("ada", 4, 5).ok());
}

}  // namespace
}  // namespace quire::api
