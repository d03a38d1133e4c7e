// SPDX-License-Identifier: Apache-2.0
// Each receipt becomes a request for a completion of token ids.
#include "cli/replay_url.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "bench/client.h"

namespace quire::cli {
namespace {

using llm::Receipt;
using llm::Verdict;

constexpr double kTimeoutSeconds = 3600;  // an answer may be long, and the server busy

// A grammar as the field structured_outputs.
json::Value structured_outputs(const grammar::Spec& spec) {
  json::Value out{json::Object{}};
  using Kind = grammar::Spec::Kind;
  if (spec.kind == Kind::kJson) {
    out.set("json", spec.json);
  } else if (spec.kind == Kind::kStructuralTag) {
    out.set("structural_tag", spec.json);
  } else if (spec.kind == Kind::kChoice) {
    json::Array choices;
    for (const std::string& choice : spec.choice) choices.emplace_back(choice);
    out.set("choice", std::move(choices));
  } else {
    out.set(spec.kind == Kind::kRegex ? "regex" : "grammar", spec.text);
  }
  out.set("disable_any_whitespace", !spec.any_whitespace);
  out.set("disable_additional_properties", !spec.additional_properties);
  out.set("any_order", spec.any_order);
  if (spec.whitespace_pattern) out.set("whitespace_pattern", *spec.whitespace_pattern);
  return out;
}

// The names of the settings are those of the request's fields.
Result<std::string> body_of(const Receipt& receipt, const std::string& model) {
  const json::Value whole = receipt.to_json();
  json::Value body = *whole.find("sampling");
  std::erase_if(body.as_object(),
                [](const json::Member& m) { return m.first == "eos_token_ids" || m.second.is_null(); });
  json::Value biases{json::Object{}};
  for (const auto& [token, bias] : receipt.params.logit_bias) {
    biases.set(std::to_string(token), static_cast<double>(bias));
  }
  body.set("logit_bias", std::move(biases));
  if (*receipt.params.seed == -1) return unsupported("its seed is -1, with which a server draws one");
  body.set("seed", *receipt.params.seed);
  body.set("model", model.empty() ? receipt.origin.model : model);
  body.set("prompt", *whole.find("prompt_token_ids"));
  body.set("return_receipt", true);
  if (!receipt.kept_special.empty()) return unsupported("its stop strings see special tokens");
  if (receipt.constraint.reasoning.starts_inside) return unsupported("its reasoning has rules");
  if (receipt.constraint.grammar) body.set("structured_outputs", structured_outputs(*receipt.constraint.grammar));
  return json::dump(body);
}

Result<Receipt> receipt_in(const bench::HttpReply& reply) {
  const auto parsed = json::parse(reply.body);
  const json::Value* choices = parsed.ok() ? parsed->find("choices") : nullptr;
  if (reply.status != 200 || choices == nullptr || !choices->is_array() || choices->as_array().empty()) {
    return unavailable({"the server answered ", reply.status, ": ", reply.body.substr(0, 300)});
  }
  const json::Value* receipt = choices->as_array()[0].find("receipt");
  if (receipt == nullptr) return unsupported("the server gives no receipts");
  QUIRE_ASSIGN(llm::ReadReceipt read, llm::read_receipt(*receipt));
  return std::move(read.receipt);
}

Verdict ask(bench::LoadClient& client, const ReplayTarget& target, const llm::ReadReceipt& read) {
  const auto refuse = [&](const std::string& why) { return llm::unchecked(read, why); };
  const auto body = body_of(read.receipt, target.model);
  if (!body.ok()) return refuse(body.error().message + "; replay it without --url");
  bench::HeaderList headers = {{"Content-Type", "application/json"}};
  if (!target.api_key.empty()) headers.emplace_back("Authorization", "Bearer " + target.api_key);
  const auto reply = client.fetch("POST", "/v1/completions", *body, headers, kTimeoutSeconds);
  if (!reply.ok()) return refuse(reply.error().message);
  const auto made = receipt_in(*reply);
  if (!made.ok()) return refuse(made.error().message);
  if (made->version != read.receipt.version) {
    return refuse("the server's receipts have another version than this one; replay it without --url");
  }
  if (const std::string why = read.receipt.origin.difference(made->origin); !why.empty()) return refuse(why);
  return llm::compare_receipts(read, *made);
}

}  // namespace

Status replay_at(const ReplayTarget& target, std::span<const llm::ReadReceipt> receipts,
                 const std::function<void(size_t, const llm::Verdict&)>& on_verdict,
                 const std::function<bool()>& stop) {
  QUIRE_ASSIGN(const bench::Url url, bench::parse_url(target.url));
  if (target.concurrency > kMaxReplayRequests) {
    return invalid_argument({"--concurrency must be at most ", kMaxReplayRequests, " with --url"});
  }
  const auto threads = static_cast<size_t>(target.concurrency);
  std::vector<std::unique_ptr<bench::LoadClient>> clients;
  for (size_t i = 0; i < std::min(threads, receipts.size()); ++i) {
    QUIRE_ASSIGN(auto client, bench::LoadClient::make({url, target.insecure, 1}));
    clients.push_back(std::move(client));
  }
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::vector<std::thread> workers;
  for (const auto& client : clients) {
    workers.emplace_back([&, one = client.get()] {
      for (size_t i = next++; i < receipts.size() && !stop(); i = next++) {
        const Verdict verdict = ask(*one, target, receipts[i]);
        const std::lock_guard lock(mutex);
        on_verdict(i, verdict);
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  return {};
}

}  // namespace quire::cli
