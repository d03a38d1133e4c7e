// SPDX-License-Identifier: Apache-2.0
// Runs tasks in turn without and with drafts, compares the answers, and measures what the rows of a step cost.
#include "bench/speculation.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <utility>

#include "bench/report.h"

namespace quire::bench {
namespace {

struct DraftTask {
  const char* name;
  std::string prompt;
};

// Most of the answer is in the prompt; the answer is the end of the prompt; there is little to look up.
std::vector<DraftTask> builtin_tasks() {
  const std::string program = R"(class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance
        self.history = []

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("the amount must be positive")
        self.balance += amount
        self.history.append(("deposit", amount))

    def withdraw(self, amount):
        if amount <= 0:
            raise ValueError("the amount must be positive")
        if amount > self.balance:
            raise ValueError("the balance is too low")
        self.balance -= amount
        self.history.append(("withdraw", amount))

    def report(self):
        for kind, amount in self.history:
            print(kind, amount)
        print("balance", self.balance)
)";
  std::string records;
  for (int i = 1; i < 13; ++i) {
    char line[96];
    std::snprintf(line, sizeof line, "{\"id\": %d, \"name\": \"item-%d\", \"price\": %d.5, \"stock\": %d}\n", i,
                  i * 37 % 101, i * 13 % 97, i * 7 % 50);
    records += line;
  }
  return {{"edit of a program",
           "Rename the method `report` to `summary` and print the whole program again:\n```python\n" + program + "```"},
          {"records repeated", "Repeat these lines exactly, without any other text:\n" + records},
          {"prose", "Tell a story about a lighthouse keeper who finds a letter in a bottle."}};
}

Result<llm::TokenPrompt> draft_prompt(const llm::Llm& llm, const std::string& text) {
  if (llm.tokenizer() == nullptr) {
    llm::TokenPrompt out;
    for (int64_t i = 0; i < 128; ++i) {
      out.push_back(static_cast<int32_t>(i % 32 * 7919 % llm.engine().model().config().vocab_size));
    }
    return out;
  }
  if (llm.chat_template() == nullptr) return llm.tokens_of(llm::TextPrompt{text});
  json::Value message{json::Object{}};
  message.set("role", "user");
  message.set("content", text);
  text::ChatRequest chat;
  chat.messages = json::Value(json::Array{std::move(message)});
  return llm.tokens_of(chat);
}

// The tokens of one round, with the bits of their logprobs, and how long it took.
struct DraftRound {
  std::vector<std::vector<uint32_t>> answers;  // token, bits of its logprob, and so on
  double seconds = 0;
  int64_t num_tokens() const {
    int64_t total = 0;
    for (const auto& answer : answers) total += static_cast<int64_t>(answer.size() / 2);
    return total;
  }
};

llm::GenerateRequest draft_request(const llm::Llm& llm, const llm::TokenPrompt& prompt,
                                   const SpeculationBench& options) {
  llm::GenerateRequest request;
  request.prompt = prompt;
  request.params = llm.default_params();
  request.params.temperature = 0;
  request.params.max_tokens = options.output_len;
  request.params.ignore_eos = llm.tokenizer() == nullptr;
  return request;
}

Result<DraftRound> run_draft_round(llm::Llm& llm, const llm::TokenPrompt& prompt, const SpeculationBench& options) {
  DraftRound out;
  std::map<engine::RequestId, std::vector<uint32_t>> answers;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < options.batch_size; ++i) {
    llm::GenerateRequest request = draft_request(llm, prompt, options);
    request.params.logprobs = 0;
    QUIRE_ASSIGN(const engine::RequestId id, llm.submit(std::move(request)));
    answers[id];
  }
  while (llm.has_work()) {
    for (const llm::Delta& delta : llm.step()) {
      if (delta.error) return *delta.error;
      std::vector<uint32_t>& answer = answers.at(delta.id);
      for (size_t i = 0; i < delta.tokens.size(); ++i) {
        uint32_t bits = 0;
        std::memcpy(&bits, &delta.logprobs.at(i).at(0).logprob, sizeof bits);
        answer.insert(answer.end(), {static_cast<uint32_t>(delta.tokens[i]), bits});
      }
    }
  }
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (auto& [id, answer] : answers) out.answers.push_back(std::move(answer));
  return out;
}

engine::SpeculationStats stats_between(const engine::SpeculationStats& a, engine::SpeculationStats b) {
  b.drafts -= a.drafts;
  b.draft_tokens -= a.draft_tokens;
  b.accepted_tokens -= a.accepted_tokens;
  for (size_t i = 0; i < b.accepted_per_position.size(); ++i) {
    b.accepted_per_position[i] -= a.accepted_per_position[i];
  }
  return b;
}

// Proposes what the answer was the last time.
class Repeater final : public engine::Proposer {
 public:
  Repeater(const std::vector<int32_t>& answer, size_t prompt_size, int64_t most)
      : answer_(answer), prompt_size_(prompt_size), most_(most) {}
  void propose(std::span<const int32_t> tokens, int64_t most, std::vector<int32_t>& drafts) override {
    const size_t at = tokens.size() - prompt_size_;
    if (at >= answer_.size()) return;
    const auto count = static_cast<size_t>(std::min(most, most_));
    const auto next = std::span(answer_).subspan(at, std::min(count, answer_.size() - at));
    drafts.assign(next.begin(), next.end());
  }

 private:
  const std::vector<int32_t>& answer_;
  const size_t prompt_size_;
  const int64_t most_;
};

// Replaces each draft of the model by the token that the answer has there, or by another one.
void assume_acceptance(llm::Llm& llm, size_t prompt_size, const std::vector<uint32_t>& answer, double probability) {
  const auto vocab = static_cast<uint32_t>(llm.engine().model().config().vocab_size);
  llm.engine().set_draft_edit(
      [=, rng = std::mt19937(1)](const engine::Sequence& sequence, std::vector<int32_t>& drafts) mutable {
        for (size_t i = 0; i < drafts.size(); ++i) {
          const size_t at = 2 * (sequence.tokens.size() - prompt_size + i);
          if (at >= answer.size()) return;
          const bool right = static_cast<double>(rng()) < probability * 0x1p32;
          drafts[i] = static_cast<int32_t>(right ? answer[at] : (answer[at] + 1) % vocab);
        }
      });
}

// The steps with 1, 2, 4, ... rows, whose drafts are the answer that is known.
Result<std::vector<RowCost>> measure_rows(llm::Llm& llm, const llm::TokenPrompt& prompt,
                                          const SpeculationBench& options, const std::vector<uint32_t>& answer,
                                          const OfflineProgress& progress) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < answer.size(); i += 2) tokens.push_back(static_cast<int32_t>(answer[i]));
  engine::Engine& engine = llm.engine();
  const int64_t most = engine.options().speculation.num_tokens;
  std::vector<int64_t> counts;
  for (int64_t rows = 1; rows <= std::min<int64_t>(8, most + 1); rows *= 2) counts.push_back(rows);
  std::map<int64_t, std::vector<double>> seconds;
  for (int64_t round = 0; round < options.rounds; ++round) {
    for (const int64_t rows : counts) {
      if (progress) progress("rows of a step, round", round, options.rounds);
      engine.set_drafting(rows > 1);
      engine.set_proposer(
          [&, rows](const engine::Sequence&) { return std::make_unique<Repeater>(tokens, prompt.size(), rows - 1); });
      QUIRE_TRY(llm.submit(draft_request(llm, prompt, options)));
      bool decoding = false;
      while (llm.has_work()) {
        const int64_t before = engine.stats().speculation.draft_tokens;
        const auto start = std::chrono::steady_clock::now();
        const std::vector<llm::Delta> deltas = llm.step();
        const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        const int64_t drafts = engine.stats().speculation.draft_tokens - before;
        if (decoding && drafts == rows - 1) seconds[rows].push_back(took);
        decoding = decoding || !deltas.empty();
      }
    }
  }
  std::vector<RowCost> out;
  for (const auto& [rows, list] : seconds) out.push_back({rows, percentile(list, 10)});
  return out;
}

}  // namespace

double SpeculationTask::rate_without() const {
  return static_cast<double>(output_tokens) / percentile(without_s, 50);
}
double SpeculationTask::rate_with() const {
  return static_cast<double>(output_tokens) / percentile(with_s, 50);
}
double SpeculationTask::tokens_per_step() const {
  const double all = static_cast<double>(output_tokens) * static_cast<double>(with_s.size());
  return all / (all - static_cast<double>(stats.accepted_tokens));
}

bool SpeculationFigures::same() const {
  return std::ranges::all_of(tasks, &SpeculationTask::same);
}

Result<SpeculationFigures> speculation(llm::Llm& llm, const SpeculationBench& options,
                                       const OfflineProgress& progress) {
  for (const auto& [flag, number] : {std::pair{"--num-iters", options.rounds},
                                     {"--batch-size", options.batch_size},
                                     {"--output-len", options.output_len}}) {
    if (number >= 1 && number <= 1'000'000) continue;
    return invalid_argument({flag, " is ", number, "; it must be from 1 to 1000000"});
  }
  std::vector<DraftTask> tasks = builtin_tasks();
  if (!options.prompt.empty()) tasks = {{"prompt", options.prompt}};
  if (llm.tokenizer() == nullptr) tasks = {{"tokens repeated", ""}};
  if (options.acceptance < 0 || options.acceptance > 1) {
    return invalid_argument({"--acceptance is ", std::to_string(options.acceptance), "; it must be from 0 to 1"});
  }
  if (options.acceptance > 0 && !llm.engine().options().speculation.with_model()) {
    return invalid_argument(
        "--acceptance needs a draft model, an MTP layer or an EAGLE-3 layer in --speculative-config");
  }
  SpeculationFigures out;
  out.batch_size = options.batch_size;
  for (const DraftTask& task : tasks) {
    SpeculationTask& figures = out.tasks.emplace_back();
    figures.name = task.name;
    QUIRE_ASSIGN(const llm::TokenPrompt prompt, draft_prompt(llm, task.prompt));
    llm.engine().set_drafting(false);
    // The first round is not measured: it puts the prompt into the prefix cache.
    QUIRE_ASSIGN(const DraftRound truth, run_draft_round(llm, prompt, options));
    figures.output_tokens = truth.num_tokens();
    if (options.acceptance > 0) assume_acceptance(llm, prompt.size(), truth.answers.front(), options.acceptance);
    const engine::SpeculationStats before = llm.engine().stats().speculation;
    for (int64_t round = 0; round < options.rounds; ++round) {
      if (progress) progress(task.name, round, options.rounds);
      for (const bool drafts : {false, true}) {
        llm.engine().set_drafting(drafts);
        QUIRE_ASSIGN(const DraftRound measured, run_draft_round(llm, prompt, options));
        (drafts ? figures.with_s : figures.without_s).push_back(measured.seconds);
        figures.same = figures.same && measured.answers == truth.answers;
      }
    }
    figures.stats = stats_between(before, llm.engine().stats().speculation);
    if (&task == &tasks.back()) {
      QUIRE_ASSIGN(out.rows, measure_rows(llm, prompt, options, truth.answers.front(), progress));
    }
  }
  out.facts = facts_of(llm);
  return out;
}

std::string SpeculationFigures::to_text() const {
  std::string out = facts.model + " on " + facts.machine + ", " + std::to_string(batch_size) +
                    (batch_size == 1 ? " request at a time\n" : " requests at a time\n");
  char text[256];
  std::snprintf(text, sizeof text, "\n%-20s %14s %14s %7s %12s %10s\n", "task", "tok/s without", "tok/s with", "gain",
                "tokens/step", "accepted");
  out += text;
  for (const SpeculationTask& task : tasks) {
    const auto drafted = static_cast<double>(std::max<int64_t>(task.stats.draft_tokens, 1));
    std::snprintf(text, sizeof text, "%-20s %14.1f %14.1f %6.2fx %12.2f %9.0f%%\n", task.name.c_str(),
                  task.rate_without(), task.rate_with(), task.gain(), task.tokens_per_step(),
                  100 * static_cast<double>(task.stats.accepted_tokens) / drafted);
    out += text;
  }
  out += "\nDrafts accepted by position:\n";
  for (const SpeculationTask& task : tasks) {
    std::snprintf(text, sizeof text, "%-20s", task.name.c_str());
    out += text;
    for (const int64_t accepted : task.stats.accepted_per_position) {
      const auto drafts = static_cast<double>(std::max<int64_t>(task.stats.drafts, 1));
      std::snprintf(text, sizeof text, " %3.0f%%", 100 * static_cast<double>(accepted) / drafts);
      out += text;
    }
    out += "\n";
  }
  out += "\nA step of one sequence:\n";
  for (const RowCost& cost : rows) {
    std::snprintf(text, sizeof text, "%lld %s %.3f ms, %.2fx\n", static_cast<long long>(cost.rows),
                  cost.rows == 1 ? "row: " : "rows:", 1e3 * cost.seconds, cost.seconds / rows.front().seconds);
    out += text;
  }
  out += same() ? "\nAll answers have the same tokens and the same bits in every logprob."
                : "\nThe answers with and without drafts DIFFER.";
  return out;
}

json::Value SpeculationFigures::to_json() const {
  json::Value out{json::Object{}};
  out.set("model", facts.model);
  out.set("machine", facts.machine);
  out.set("batch_size", batch_size);
  json::Array list;
  for (const SpeculationTask& task : tasks) {
    json::Value item{json::Object{}};
    item.set("task", task.name);
    item.set("output_tokens", task.output_tokens);
    item.set("tokens_per_second_without", task.rate_without());
    item.set("tokens_per_second_with", task.rate_with());
    item.set("gain", task.gain());
    item.set("tokens_per_step", task.tokens_per_step());
    item.set("num_drafts", task.stats.drafts);
    item.set("num_draft_tokens", task.stats.draft_tokens);
    item.set("num_accepted_tokens", task.stats.accepted_tokens);
    json::Array positions;
    for (const int64_t accepted : task.stats.accepted_per_position) positions.emplace_back(accepted);
    item.set("num_accepted_tokens_per_pos", std::move(positions));
    item.set("identical", task.same);
    list.push_back(std::move(item));
  }
  out.set("tasks", std::move(list));
  json::Array costs;
  for (const RowCost& cost : rows) {
    json::Value item{json::Object{}};
    item.set("rows", cost.rows);
    item.set("step_ms", 1e3 * cost.seconds);
    costs.push_back(std::move(item));
  }
  out.set("rows", std::move(costs));
  out.set("identical", same());
  return out;
}

}  // namespace quire::bench
