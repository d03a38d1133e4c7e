// SPDX-License-Identifier: Apache-2.0
// Reasoning gates: where the reasoning ends, what the inner constraint is fed, and budgets.
#include "llm/constraint.h"

#include <gtest/gtest.h>

#include "llm/grammars.h"
#include "text/tokenizer.h"

namespace quire::llm {
namespace {

// A byte-level vocabulary: ids 0 to 255 are bytes, then "</think>" and "<tool_call>" as added tokens, and longer
// pieces.
text::TokenizerPtr tokenizer() {
  static const text::TokenizerPtr made = [] {
    text::GgufVocab vocab;
    vocab.model = "llama";
    for (int byte = 0; byte < 256; ++byte) {
      char name[8];
      std::snprintf(name, sizeof name, "<0x%02X>", byte);
      vocab.tokens.push_back(name);
      vocab.token_types.push_back(6);
    }
    for (const char* piece : {"</think>", "<tool_call>"}) {
      vocab.tokens.push_back(piece);
      vocab.token_types.push_back(4);
    }
    for (const char* piece : {"k>{", "</th", "ink>", "x<tool"}) {
      vocab.tokens.push_back(piece);
      vocab.token_types.push_back(1);
    }
    vocab.scores.assign(vocab.tokens.size(), 0.0f);
    auto loaded = text::load_gguf_vocab(std::move(vocab));
    EXPECT_TRUE(loaded.ok()) << loaded.error().message;
    return *loaded;
  }();
  return made;
}
enum : int32_t { kEndThink = 256, kToolCall, kTail, kHead, kInk, kTool };

// Records what it is fed, and refuses bytes with a '!'.
struct Record {
  std::vector<int32_t> tokens;
  std::string bytes;
  int64_t taken_back = 0;
};
class Recorder final : public TextConstraint {
 public:
  explicit Recorder(std::shared_ptr<Record> record) : record_(std::move(record)) {}
  Result<bool> fill_mask(std::span<uint32_t> mask) override {
    mask[0] = 1;
    return true;
  }
  Status accept(int32_t token) override {
    record_->tokens.push_back(token);
    return {};
  }
  bool accept_bytes(std::string_view bytes) override {
    if (bytes.find('!') != std::string_view::npos) return false;
    record_->bytes += bytes;
    return true;
  }
  void rollback(int64_t count) override { record_->taken_back += count; }

 private:
  std::shared_ptr<Record> record_;
};

class ReasoningGate : public ::testing::Test {
 protected:
  std::unique_ptr<engine::Constraint> gate(std::optional<int64_t> budget = {}, bool with_inner = true) {
    ReasoningRules rules;
    rules.starts_inside = true;
    rules.ends = {"</think>"};
    rules.implicit_ends = {"<tool_call>"};
    rules.token_budget = budget;
    TextConstraintMaker inner;
    if (with_inner) inner = [record = record_] { return std::make_unique<Recorder>(record); };
    return make_reasoning_gate(rules, {tokenizer(), {'.', kEndThink}}, inner)->make();
  }
  void feed(engine::Constraint& gate, const std::vector<int32_t>& tokens) {
    for (const int32_t token : tokens) ASSERT_TRUE(gate.accept(token).ok());
  }
  // Whether every token is allowed; else the only one that is.
  std::optional<int32_t> only(engine::Constraint& gate) {
    std::vector<uint32_t> mask(9);
    const auto masked = gate.fill_mask(mask);
    EXPECT_TRUE(masked.ok());
    if (!*masked) return std::nullopt;
    for (int32_t id = 0; id < 9 * 32; ++id) {
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) return id;
    }
    return -1;
  }

  const std::shared_ptr<Record> record_ = std::make_shared<Record>();
};

TEST_F(ReasoningGate, TheConstraintBeginsAfterTheEndMarker) {
  const auto gate = this->gate();
  feed(*gate, {'a', 'b', kHead, 'x'});
  EXPECT_EQ(only(*gate), std::nullopt);
  feed(*gate, {kEndThink});
  EXPECT_EQ(only(*gate), 0);
  feed(*gate, {'{', '}'});
  EXPECT_EQ(record_->tokens, (std::vector<int32_t>{'{', '}'}));
  EXPECT_EQ(record_->bytes, "");
}

// Masks along drafts: what was fed is taken back, at every point of the reasoning and of what follows.
TEST_F(ReasoningGate, TakesBackTokens) {
  const auto gate = this->gate(6);
  feed(*gate, {'a', 'b'});
  feed(*gate, {'c', kEndThink, '{', '}'});
  gate->rollback(4);
  EXPECT_EQ(record_->taken_back, 3) << "the constraint saw the end of the reasoning and the braces";
  EXPECT_EQ(only(*gate), std::nullopt);
  feed(*gate, {'x', 'x', 'x', 'x'});
  EXPECT_EQ(only(*gate), '.') << "the budget counts only what was not taken back";
  feed(*gate, {'.'});
  EXPECT_EQ(only(*gate), kEndThink);
  gate->rollback(1);
  EXPECT_EQ(only(*gate), '.');
  feed(*gate, {'.', kEndThink});
  EXPECT_EQ(only(*gate), 0);
  gate->rollback(0);
  gate->rollback(3);
  EXPECT_EQ(only(*gate), std::nullopt);
  EXPECT_EQ(record_->taken_back, 3) << "a forced end is not fed to it";
}

TEST_F(ReasoningGate, AMarkerMayBeSpeltAndEndInsideAToken) {
  const auto gate = this->gate();
  feed(*gate, {'<', '/', 't', 'h', 'i', 'n', kTail});
  EXPECT_EQ(record_->bytes, "{");
  feed(*gate, {'}'});
  EXPECT_EQ(record_->tokens, (std::vector<int32_t>{'}'}));
  const auto other = this->gate();
  feed(*other, {kHead, kInk});
  EXPECT_EQ(only(*other), 0);
}

TEST_F(ReasoningGate, AnImplicitEndBelongsToTheConstraint) {
  feed(*gate(), {'a', kToolCall, 'b'});
  EXPECT_EQ(record_->tokens, (std::vector<int32_t>{kToolCall, 'b'}));
  record_->tokens.clear();
  feed(*gate(), {kTool, '_', 'c', 'a', 'l', 'l', '>', 'b'});
  EXPECT_EQ(record_->bytes, "<tool_call>");
  EXPECT_EQ(record_->tokens, (std::vector<int32_t>{'b'}));
}

TEST_F(ReasoningGate, ABudgetForcesTheEnd) {
  const auto gate = this->gate(2);
  feed(*gate, {'a'});
  EXPECT_EQ(only(*gate), std::nullopt);
  feed(*gate, {'b'});
  EXPECT_EQ(only(*gate), '.');
  feed(*gate, {'.'});
  EXPECT_EQ(only(*gate), kEndThink);
  feed(*gate, {kEndThink});
  EXPECT_EQ(only(*gate), 0);
  feed(*gate, {'{'});
  EXPECT_EQ(record_->tokens, (std::vector<int32_t>{'{'}));
}

TEST_F(ReasoningGate, ABudgetOfZeroForcesItAtOnce) {
  const auto gate = this->gate(0, false);
  EXPECT_EQ(only(*gate), '.');
  feed(*gate, {'.', kEndThink});
  EXPECT_EQ(only(*gate), std::nullopt);
}

TEST_F(ReasoningGate, ABudgetThatIsNotUsedUpChangesNothing) {
  const auto gate = this->gate(3, false);
  feed(*gate, {'a', 'b', kEndThink});
  EXPECT_EQ(only(*gate), std::nullopt);
  feed(*gate, {'a', 'b', 'c', 'd'});
  EXPECT_EQ(only(*gate), std::nullopt);
}

TEST(Grammars, ErrorsOfMasksNameTheField) {
  // A constraint that turned out to be too expensive while the answer was made gave an error without its field.
  Grammars grammars(tokenizer(), 262);
  grammar::Spec spec;
  spec.json = json::Object{{"type", "integer"}, {"multipleOf", 999983}};
  sampling::SamplingParams params;
  params.eos_token_ids = {0};
  const auto made = grammars.make(spec, params, "structured_outputs.json");
  ASSERT_TRUE(made.ok());
  std::vector<uint32_t> mask((262 + 31) / 32);
  const auto filled = (*made)()->fill_mask(mask);
  ASSERT_FALSE(filled.ok());
  EXPECT_EQ(filled.error().field, "structured_outputs.json");
  EXPECT_EQ(filled.error().message.find("structured_outputs.json: The "), 0u) << filled.error().message;
}

}  // namespace
}  // namespace quire::llm
