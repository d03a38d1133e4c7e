// SPDX-License-Identifier: Apache-2.0
// Collects deltas into choices or streams them, and writes the JSON that all endpoints share.
#include "api/generation.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <iterator>
#include <utility>

#include "api/json_writer.h"
#include "base/log.h"
#include "base/utf8.h"

namespace quire::api {
namespace {

std::string milliseconds(std::chrono::steady_clock::duration d) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", std::chrono::duration<double, std::milli>(d).count());
  return text;
}

// A text of a client or a model as a part of a line of the log, which nobody may end early to write lines of their own.
std::string one_line(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += '?';
    } else {
      out += c;
    }
  }
  return out;
}

// Appends a later piece of the same choice.
void append(Piece& piece, Piece next) {
  llm::Delta& to = piece.delta;
  llm::Delta& from = next.delta;
  for (AnswerEvent& event : next.events) append_event(piece.events, std::move(event));
  to.text += from.text;
  to.tokens.insert(to.tokens.end(), from.tokens.begin(), from.tokens.end());
  std::move(from.logprobs.begin(), from.logprobs.end(), std::back_inserter(to.logprobs));
  to.finish = from.finish;
  to.stop_reason = std::move(from.stop_reason);
}

}  // namespace

Generation::Generation(Service& service, ReplyPtr reply, GenerationOptions options)
    : service_(service),
      reply_(std::move(reply)),
      options_(std::move(options)),
      created_(static_cast<int64_t>(std::time(nullptr))),
      arrival_(std::chrono::steady_clock::now()) {
  ++service_.load();
}

Generation::~Generation() {
  --service_.load();
}

ApiStatus Generation::start(std::vector<engine::Request> requests) {
  const auto self = shared_from_this();
  if (keeps_receipts()) service_.model().origin();  // the first time this takes a while: not on the output thread
  {
    const std::lock_guard lock(mutex_);  // take() waits until the ids are known
    prompts_.resize(requests.size());
    for (size_t p = 0; p < requests.size(); ++p) {
      requests[p].adapter = options_.adapter;
      if (options_.adapter != nullptr) requests[p].adapter_name = options_.model;
      requests[p].params.row_digests = keeps_receipts() ? sampling::kNewestDigests : sampling::RowDigests::kNone;
      prompts_[p].ids = requests[p].prompt;
      prompts_[p].params = requests[p].params;
    }
    open_ = requests.size() * static_cast<size_t>(options_.n);
    if (service_.options().log_requests) {
      log_info("Received request {}: {} prompts, {} tokens, n={}, max_tokens={}, temperature={}, seed={}",
               one_line(options_.id), prompts_.size(), prompt_tokens(), options_.n,
               requests[0].params.max_tokens.value_or(-1), requests[0].params.temperature,
               requests[0].params.seed ? std::to_string(*requests[0].params.seed) : "none");
    }
    QUIRE_ASSIGN(lease_, service_.keys().begin(options_.caller, static_cast<int64_t>(open_), prompt_tokens(),
                                               KeyLedger::Clock::now(), &service_.metrics()));
    QUIRE_ASSIGN(
        ids_, service_.llm().submit(
                  std::move(requests), [self](llm::Delta delta) { self->take(std::move(delta)); },
                  {.caller = options_.caller,
                   .label = options_.id,
                   .keeps_answer = !options_.stream || keeps_receipts(),
                   .kept_special = options_.format != nullptr ? options_.format->kept_special : SharedList<int32_t>{},
                   .trace = options_.trace,
                   .engine = options_.engine}));
    if (lease_ != nullptr) lease_->commit();
  }
  // Weak: a reply that outlives the answer must not keep it alive.
  reply_->on_gone([weak = weak_from_this()] {
    if (const auto alive = weak.lock()) alive->give_up();
  });
  reply_->on_stop([weak = weak_from_this()] {
    if (const auto alive = weak.lock()) alive->break_off();
  });
  return Ok{};
}

void Generation::give_up() {
  const std::lock_guard lock(mutex_);
  if (over_) return;
  over_ = true;
  for (const engine::RequestId id : ids_) service_.llm().abort(id);
}

void Generation::break_off() {
  const std::lock_guard lock(mutex_);
  if (over_) return;
  over_ = true;
  for (const engine::RequestId id : ids_) service_.llm().abort(id);
  fail({503, "Service Unavailable",
        "The server is stopping and could not finish this answer; send the request again, to another server or later.",
        ""});
}

void Generation::take(llm::Delta delta) {
  const std::lock_guard lock(mutex_);
  if (over_) return;
  if (delta.error) {
    over_ = true;
    for (const engine::RequestId id : ids_) service_.llm().abort(id);
    lease_.reset();
    fail(to_api_error(*delta.error).get());
    return;
  }
  const size_t prompt = static_cast<size_t>(std::lower_bound(ids_.begin(), ids_.end(), delta.id) - ids_.begin());
  const size_t index = prompt * static_cast<size_t>(options_.n) + static_cast<size_t>(delta.child);
  Choice& choice = choices_[index];
  choice.index = index;
  choice.prompt = prompt;
  prompts_[prompt].cached_tokens = std::max(prompts_[prompt].cached_tokens, delta.cached_tokens);
  if (delta.child == 0) {
    std::move(delta.prompt_logprobs.begin(), delta.prompt_logprobs.end(),
              std::back_inserter(prompts_[prompt].logprobs));
  }
  if (first_ == std::chrono::steady_clock::time_point{} && !delta.tokens.empty()) {
    first_ = std::chrono::steady_clock::now();
  }
  choice.num_tokens += static_cast<int64_t>(delta.tokens.size());
  const int64_t counted = options_.drop_answer ? 0 : static_cast<int64_t>(delta.tokens.size());
  completion_tokens_ += counted;
  if (lease_ != nullptr) lease_->add_tokens(counted);
  const bool ended = delta.finish != engine::FinishReason::kNone;
  choice.seed = delta.seed;
  choice.row_digests.insert(choice.row_digests.end(), delta.row_digests.begin(), delta.row_digests.end());
  if (!options_.stream || keeps_receipts()) {
    choice.tokens.insert(choice.tokens.end(), delta.tokens.begin(), delta.tokens.end());
  }
  Piece piece;
  if (!options_.stream && (options_.format == nullptr || service_.options().log_outputs)) choice.text += delta.text;
  if (options_.format != nullptr) {
    if (!choice.reader) choice.reader.emplace(options_.format);
    choice.reader->read(delta, piece.events);
  }
  if (options_.stream) {
    piece.delta = std::move(delta);
    take_streamed(choice, std::move(piece));
  } else {
    std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(choice.logprobs));
    choice.finish = delta.finish;
    choice.stop_reason = std::move(delta.stop_reason);
    choice.pooled = std::move(delta.pooled);
  }
  if (ended && --open_ == 0) {
    over_ = true;
    lease_.reset();  // before the answer leaves: the caller's next request must meet an account that is up to date
    log_end(choice);
    if (service_.options().recorder != nullptr && !options_.pools) record();
    finish();
  }
}

void Generation::take_streamed(Choice& choice, Piece next) {
  const bool ended = next.delta.finish != engine::FinishReason::kNone;
  const int64_t held = static_cast<int64_t>(choice.held.delta.tokens.size() + next.delta.tokens.size());
  const bool waits = options_.stream_interval > 1 && choice.begun && !ended && held < options_.stream_interval;
  append(choice.held, std::move(next));
  if (waits || (choice.held.delta.tokens.empty() && !ended)) return;
  Piece merged = std::exchange(choice.held, {});
  choice.finish = merged.delta.finish;
  choice.stop_reason = merged.delta.stop_reason;
  piece(choice, merged);
  choice.begun = true;
}

void Generation::log_end(const Choice& last) const {
  reply_->note("prompt_tokens", std::to_string(prompt_tokens()));
  reply_->note("cached_tokens", std::to_string(cached_tokens()));
  reply_->note("completion_tokens", std::to_string(completion_tokens()));
  if (!options_.pools) reply_->note("first_token_ms", milliseconds(first_ - arrival_));
  reply_->note("finish", engine::name(last.finish));
  if (!service_.options().log_outputs || options_.stream) return;
  for (const auto& [place, one] : choices_) {
    const auto most = service_.options().max_log_len;
    log_info("Generated for {} [{}]: {}", one_line(options_.id), one.index,
             one_line(most < 0 ? one.text : utf8::beginning(one.text, static_cast<size_t>(most))));
  }
}

void Generation::fail(const ApiError& error) {
  if (!begun_) return send_error(*reply_, error);
  send_event(error.body());
  write_raw("data: [DONE]\n\n");
  reply_->end();
}

void Generation::begin_events() {
  if (begun_) return;
  begun_ = true;
  reply_->begin(200, "text/event-stream; charset=utf-8", {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}});
}

void Generation::write_raw(std::string text) {
  begin_events();
  reply_->write(std::move(text));
}

namespace {

// Appends JSON of an event. The line ends of Unicode (U+0085, U+2028, U+2029), which can only be inside of strings, are
// escaped: many clients split a stream at them, although its format does not.
void append_line(std::string& out, std::string_view json) {
  static constexpr std::pair<std::string_view, std::string_view> kEnds[] = {
      {"\xC2\x85", "\\u0085"}, {"\xE2\x80\xA8", "\\u2028"}, {"\xE2\x80\xA9", "\\u2029"}};
  while (!json.empty()) {
    const size_t at = std::min(json.find_first_of("\xC2\xE2"), json.size());
    out += json.substr(0, at);
    json.remove_prefix(at);
    const auto* found = std::ranges::find_if(kEnds, [&](const auto& one) { return json.starts_with(one.first); });
    const size_t length = found != std::end(kEnds) ? found->first.size() : std::min<size_t>(json.size(), 1);
    out += found != std::end(kEnds) ? found->second : json.substr(0, length);
    json.remove_prefix(length);
  }
}

}  // namespace

void Generation::send_event(const std::string& json) {
  std::string text;
  text.reserve(json.size() + 8);
  text += "data: ";
  append_line(text, json);
  text += "\n\n";
  write_raw(std::move(text));
}

void Generation::send_event(const char* event, const std::string& json) {
  std::string text = std::string("event: ") + event + "\ndata: ";
  append_line(text, json);
  text += "\n\n";
  write_raw(std::move(text));
}

int64_t Generation::prompt_tokens() const {
  int64_t sum = 0;
  for (const PromptState& prompt : prompts_) sum += static_cast<int64_t>(prompt.ids.size());
  return sum;
}

int64_t Generation::cached_tokens() const {
  int64_t sum = 0;
  for (const PromptState& prompt : prompts_) sum += prompt.cached_tokens;
  return sum;
}

int64_t Generation::reasoning_tokens() const {
  int64_t sum = 0;
  for (const auto& [index, choice] : choices_) {
    if (choice.reader) sum += choice.reader->reasoning_tokens();
  }
  return sum;
}

void Generation::write_usage(JsonWriter& w, int64_t completion_tokens) const {
  const int64_t prompt = prompt_tokens();
  w.open_object().member_int("prompt_tokens", prompt).member_int("total_tokens", prompt + completion_tokens);
  w.member_int("completion_tokens", completion_tokens);
  w.key("prompt_tokens_details").value_or_null(service_.options().enable_prompt_tokens_details, [&] {
    w.open_object().member_int("cached_tokens", cached_tokens()).close_object();
  });
  if (counts_reasoning()) {
    w.key("completion_tokens_details").open_object().member_int("reasoning_tokens", reasoning_tokens()).close_object();
  }
  w.close_object();
}

void Generation::write_stop_reason(JsonWriter& w, const Choice& choice) const {
  w.key("stop_reason");
  if (const auto* token = std::get_if<int32_t>(&choice.stop_reason)) {
    w.integer(*token);
  } else if (const auto* text = std::get_if<std::string>(&choice.stop_reason)) {
    w.string(*text);
  } else {
    w.null();
  }
}

void Generation::write_fingerprint(JsonWriter& w) const {
  const std::string& fingerprint = service_.options().fingerprint;
  w.key("system_fingerprint").value_or_null(!fingerprint.empty(), [&] { w.string(fingerprint); });
}

llm::Receipt Generation::receipt_of(const Choice& choice) const {
  const PromptState& prompt = prompts_[choice.prompt];
  llm::Receipt receipt;
  receipt.origin = service_.model().origin();
  receipt.origin.quire = service_.options().version;
  receipt.origin.model = service_.options().served_names[0];
  if (options_.adapter != nullptr) receipt.origin.adapter = options_.adapter->digest;
  receipt.params = prompt.params;
  receipt.params.seed = static_cast<int64_t>(choice.seed);
  receipt.constraint = options_.constraint;
  if (options_.format != nullptr && !prompt.params.stop.empty()) receipt.kept_special = options_.format->kept_special;
  receipt.prompt = prompt.ids;
  receipt.tokens = choice.tokens;
  receipt.rows = choice.row_digests;
  receipt.finish = engine::name(choice.finish);
  return receipt;
}

void Generation::write_receipt(JsonWriter& w, const Choice& choice) const {
  if (options_.return_receipt) w.key("receipt").value(receipt_of(choice).to_json());
}

void Generation::record() const {
  JsonWriter w;
  w.open_object().member("id", options_.id).member_int("created", created_).key("receipts").open_array();
  for (const auto& [index, choice] : choices_) w.value(receipt_of(choice).to_json());
  w.close_array().close_object();
  service_.options().recorder->add(w.take());
}

std::string answer_key(const HttpRequest& request, const Body& body) {
  return utf8::beginning(body.string("request_id", request.id), 128);
}

void write_ids(JsonWriter& w, const std::vector<int32_t>& ids) {
  w.open_array();
  for (const int32_t id : ids) w.integer(id);
  w.close_array();
}

double json_logprob(float logprob) {
  return std::isfinite(logprob) ? static_cast<double>(logprob) : -9999.0;
}

void write_prompt_logprobs(JsonWriter& w, const LogprobRows& rows, const text::Tokenizer* tokenizer) {
  w.open_array().null();  // the first token has no logprob: nothing precedes it
  for (const auto& row : rows) {
    w.open_object();
    for (size_t i = 0; i < row.size(); ++i) {
      const sampling::TokenLogprob& entry = row[i];
      if (i > 0 && entry.token == row[0].token) continue;  // the prompt's own token is row[0]
      w.key(std::to_string(entry.token)).open_object().key("logprob").number(json_logprob(entry.logprob));
      w.member_int("rank", entry.rank).key("decoded_token").value_or_null(tokenizer != nullptr, [&] {
        w.string(TokenTexts(tokenizer, false).show(entry.token));
      });
      w.close_object();
    }
    w.close_object();
  }
  w.close_array();
}

void write_token_logprobs(JsonWriter& w, const LogprobRows& rows, TokenTexts& texts, const text::Tokenizer* tokenizer) {
  const auto open_entry = [&](const sampling::TokenLogprob& entry) {
    w.open_object().member("token", texts.show(entry.token)).key("logprob").number(json_logprob(entry.logprob));
    w.key("bytes").value_or_null(tokenizer != nullptr, [&] {
      w.open_array();
      for (const char byte : tokenizer->token_bytes(entry.token)) w.integer(static_cast<unsigned char>(byte));
      w.close_array();
    });
  };
  w.open_array();
  for (const auto& row : rows) {
    if (row.empty()) continue;
    open_entry(row[0]);  // the sampled token, then the likeliest ones
    w.key("top_logprobs").open_array();
    for (size_t i = 1; i < row.size(); ++i) {
      open_entry(row[i]);
      w.close_object();
    }
    w.close_array().close_object();
    texts.advance(row[0].token);
  }
  w.close_array();
}

std::string TokenTexts::text(int32_t id) const {
  if (tokenizer_ == nullptr) return {};
  const std::string bytes = pending_ + tokenizer_->token_bytes(id);
  const size_t open = utf8::incomplete_suffix(bytes);
  std::string out;
  utf8::append_valid(out, std::string_view(bytes).substr(0, bytes.size() - open));
  return out;
}

std::string TokenTexts::show(int32_t id) const {
  return as_ids_ || tokenizer_ == nullptr ? "token_id:" + std::to_string(id) : text(id);
}

void TokenTexts::advance(int32_t id) {
  if (tokenizer_ == nullptr) return;
  pending_ += tokenizer_->token_bytes(id);
  pending_.erase(0, pending_.size() - utf8::incomplete_suffix(pending_));
}

}  // namespace quire::api
