// SPDX-License-Identifier: Apache-2.0
// Each receipt becomes a request again, and each of its tokens is compared as it comes.
#include "llm/receipt_check.h"

#include <algorithm>
#include <map>

namespace quire::llm {
namespace {

constexpr const char* kChanged = "the receipt was changed: its digest is not that of its contents";

std::string count(size_t n, const char* what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

// The adapter of a receipt, among those that were loaded with the model.
Result<model::AdapterPtr> adapter_of(const Llm& llm, const Origin& origin) {
  if (origin.adapter.empty()) return model::AdapterPtr();
  for (const model::AdapterPtr& adapter : llm.own_adapters()) {
    if (adapter->digest == origin.adapter) return adapter;
  }
  return invalid_argument(
      {"it was made with an adapter that was not given here (digest ", origin.adapter, "); pass --lora FOLDER"});
}

// The request of a receipt. It runs as long as the answer was: that is enough to see that it ends there.
Result<engine::Request> request_of(const Llm& llm, const Receipt& receipt) {
  sampling::SamplingParams params = receipt.params;
  const auto length = static_cast<int64_t>(receipt.tokens.size());
  const int64_t enough = std::max(length, params.min_tokens);
  params.max_tokens = std::min(params.max_tokens.value_or(enough), enough);
  params.seed = 0;
  params.row_digests = receipt.version;
  QUIRE_ASSIGN(const CheckedParams checked, llm.check(std::move(params)));
  QUIRE_ASSIGN(engine::ConstraintPtr constraint, llm.constrain(receipt.constraint, checked));
  QUIRE_ASSIGN(model::AdapterPtr adapter, adapter_of(llm, receipt.origin));
  QUIRE_ASSIGN(engine::Request request,
               llm.prepare(receipt.prompt, checked, 0, "", std::move(constraint), std::move(adapter)));
  request.params.seed = receipt.params.seed;  // any 64 bits, also those that check() takes for none
  request.params.eos_token_ids = receipt.params.eos_token_ids;
  return request;
}

// A receipt whose answer is being made again.
struct Running {
  size_t index = 0;
  size_t seen = 0;              // tokens that were compared
  std::string text = {};        // of them
  std::string difference = {};  // the first one
};

void compare(const Receipt& receipt, const Delta& delta, Running& running) {
  const size_t total = receipt.tokens.size();
  for (size_t i = 0; i < delta.tokens.size() && running.difference.empty(); ++i, ++running.seen) {
    const size_t at = running.seen;
    const std::string where = "token " + std::to_string(at) + " of " + std::to_string(total);
    if (at >= total) {
      running.difference = "differs after its last token: the answer goes on";
    } else if (delta.row_digests[i] != receipt.rows[at]) {
      running.difference = "differs at " + where + ": its logits have other bits";
    } else if (delta.tokens[i] != receipt.tokens[at]) {
      running.difference = "differs at " + where + ": from the same logits, token " + std::to_string(delta.tokens[i]) +
                           " was chosen instead of " + std::to_string(receipt.tokens[at]);
    }
  }
  if (!running.difference.empty() || delta.finish == engine::FinishReason::kNone) return;
  if (running.seen < total) {
    running.difference = "differs after token " + std::to_string(running.seen) + " of " + std::to_string(total) +
                         ": the answer ends there";
  } else if (engine::name(delta.finish) != receipt.finish) {
    running.difference = std::string("differs at its end: the reason is ") + engine::name(delta.finish) +
                         " instead of " + receipt.finish;
  }
}

// Whether an answer that ended by its length has the length that its settings allow.
bool has_its_length(const Receipt& receipt) {
  if (receipt.finish != "length") return true;
  const auto length = static_cast<int64_t>(receipt.tokens.size());
  const auto prompt = static_cast<int64_t>(receipt.prompt.size());
  return length == receipt.params.max_tokens || prompt + length == receipt.origin.max_model_len;
}

// What is wrong with the receipt before anything is run, and what the run found.
Verdict judge(const ReadReceipt& read, const Origin& here, const std::string& difference,
              const std::string& note = "") {
  std::string text;
  const auto add = [&](const std::string& reason) { text += (text.empty() ? "" : "; ") + reason; };
  if (!read.intact) add(kChanged);
  if (read.receipt.origin.weights != here.weights) add("the weights differ");
  if (!has_its_length(read.receipt)) add("the answer does not have the length of its settings");
  if (!difference.empty()) add(difference);
  if (!text.empty()) return {Verdict::Kind::kDiffers, text};
  return {Verdict::Kind::kSame,
          "same bits: " + count(read.receipt.tokens.size(), "token") + (note.empty() ? "" : "; ") + note};
}

}  // namespace

Verdict unchecked(const ReadReceipt& read, const std::string& why) {
  if (read.intact) return {Verdict::Kind::kUnchecked, "it cannot be run: " + why};
  return {Verdict::Kind::kDiffers, std::string(kChanged) + "; it cannot be run: " + why};
}

Verdict compare_receipts(const ReadReceipt& read, const Receipt& made) {
  Delta delta;
  delta.tokens = made.tokens;
  delta.row_digests = made.rows;
  delta.finish = made.finish == "stop" ? engine::FinishReason::kStop : engine::FinishReason::kLength;
  Running running;
  compare(read.receipt, delta, running);
  return judge(read, made.origin, running.difference);
}

void check_receipts(Llm& llm, std::span<const ReadReceipt> receipts, int64_t concurrency,
                    const std::function<void(size_t, const Verdict&)>& on_verdict, const std::function<bool()>& stop,
                    const TextCheck& check_text) {
  const Origin& here = llm.origin();
  std::map<engine::RequestId, Running> running;
  const auto start = [&](size_t index) {
    const ReadReceipt& read = receipts[index];
    if (const std::string why = read.receipt.origin.difference(here); !why.empty()) {
      return on_verdict(index, unchecked(read, why));
    }
    auto request = request_of(llm, read.receipt);
    if (!request.ok()) return on_verdict(index, unchecked(read, request.error().message));
    running[llm.submit(std::move(*request), read.receipt.kept_special)] = {.index = index};
  };
  for (size_t next = 0; next < receipts.size() || !running.empty();) {
    if (stop && stop()) return;
    while (next < receipts.size() && static_cast<int64_t>(running.size()) < concurrency) start(next++);
    if (running.empty()) continue;
    for (const Delta& delta : llm.step()) {
      const auto it = running.find(delta.id);
      if (it == running.end()) continue;
      const ReadReceipt& read = receipts[it->second.index];
      if (delta.error) {
        it->second.difference = "the engine failed: " + delta.error->message;
      } else {
        compare(read.receipt, delta, it->second);
        it->second.text += delta.text;
      }
      if (it->second.difference.empty() && delta.finish == engine::FinishReason::kNone) continue;
      llm.abort(delta.id);
      TextFindings found{it->second.difference, ""};
      if (found.difference.empty() && check_text) found = check_text(it->second.index, it->second.text);
      on_verdict(it->second.index, judge(read, here, found.difference, found.note));
      running.erase(it);
    }
  }
}

}  // namespace quire::llm
