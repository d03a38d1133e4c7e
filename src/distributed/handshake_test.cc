// SPDX-License-Identifier: Apache-2.0
// The handshake of ranks names what differs, on every rank.
#include "distributed/handshake.h"

#include <gtest/gtest.h>

#include <thread>

namespace quire::distributed {
namespace {

// What the ranks say if rank `r` has facts[r].
std::vector<std::string> verdicts(const std::vector<std::vector<Fact>>& facts) {
  std::vector<std::string> out(facts.size());
  const std::vector<std::unique_ptr<Group>> groups = make_thread_group(static_cast<int>(facts.size()));
  std::vector<std::thread> threads;
  for (size_t r = 0; r < facts.size(); ++r) {
    threads.emplace_back([&, r] {
      const Status status = shake_hands(*groups[r], facts[r]);
      out[r] = status.ok() ? "" : status.error().message;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return out;
}

std::vector<Fact> usual_facts() {
  return {{"the program", "0123"}, {"the model", "abc"}, {"--dtype", ""}, {"--hf-overrides", std::string(5000, 'x')}};
}

TEST(Handshake, AcceptsEqualRanks) {
  for (const std::string& verdict : verdicts({usual_facts(), usual_facts(), usual_facts()})) EXPECT_EQ(verdict, "");
}

TEST(Handshake, EveryRankNamesTheFirstThatDiffers) {
  std::vector<Fact> other = usual_facts();
  other[2].value = "float16";
  for (const std::string& verdict : verdicts({usual_facts(), usual_facts(), other, other})) {
    EXPECT_TRUE(verdict.starts_with("rank 2 (")) << verdict;
    EXPECT_TRUE(verdict.ends_with("--dtype is float16 there and not set on rank 0")) << verdict;
    EXPECT_NE(verdict.find(", pid "), std::string::npos) << verdict;
  }
}

TEST(Handshake, NoticesEveryFact) {
  for (size_t i = 0; i < usual_facts().size(); ++i) {
    std::vector<Fact> other = usual_facts();
    if (!other[i].value.empty()) other[i].value.back() = '!';
    if (usual_facts()[i].value.empty()) other[i].value = "!";
    for (const std::string& verdict : verdicts({usual_facts(), other})) {
      EXPECT_NE(verdict.find(other[i].name + " is "), std::string::npos) << verdict;
    }
  }
}

TEST(Handshake, NoticesOtherNamesAndMissingFacts) {
  std::vector<Fact> fewer = usual_facts();
  fewer.pop_back();
  std::vector<Fact> renamed = usual_facts();
  renamed[1].name = "another";
  for (const std::vector<Fact>& other : {fewer, renamed, std::vector<Fact>{}}) {
    for (const std::string& verdict : verdicts({usual_facts(), other})) {
      EXPECT_NE(verdict.find("install the same quire on every host"), std::string::npos) << verdict;
    }
  }
}

TEST(Handshake, ComparesMoreThanFitsByDigest) {
  std::vector<Fact> many, other;
  for (int i = 0; i < 1000; ++i) many.push_back({"flag " + std::to_string(i), std::string(60, 'a')});
  other = many;
  other.back().value = "b";
  for (const std::string& verdict : verdicts({many, many})) EXPECT_EQ(verdict, "");
  for (const std::string& verdict : verdicts({many, other})) EXPECT_NE(verdict, "");
}

}  // namespace
}  // namespace quire::distributed
