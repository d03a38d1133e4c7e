// SPDX-License-Identifier: Apache-2.0
// Generation: one HTTP request in the engine, with its prompts and choices, and what is sent to its client.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "api/answer_reader.h"
#include "api/json_writer.h"
#include "api/service.h"

namespace quire::api {

// What one or several steps added to a choice.
struct Piece {
  llm::Delta delta;
  std::vector<AnswerEvent> events;  // with GenerationOptions::format; delta.text is then not used
};

// One answer: choice i of prompt p has the index p * n + i.
struct Choice {
  size_t index = 0;
  size_t prompt = 0;
  std::string text;                    // only of an answer that is sent whole; a stream does not keep it
  std::optional<AnswerReader> reader;  // with GenerationOptions::format
  std::vector<int32_t> tokens;
  LogprobRows logprobs;
  std::vector<float> pooled;          // with GenerationOptions::pools
  std::vector<uint64_t> row_digests;  // with a receipt; tokens are then kept in a stream, too
  uint64_t seed = 0;
  int64_t num_tokens = 0;
  engine::FinishReason finish = engine::FinishReason::kNone;
  std::variant<std::monostate, int32_t, std::string> stop_reason;
  bool begun = false;  // the first piece of the stream has been sent
  Piece held = {};     // the part of a stream that waits for more tokens (stream_interval)
};

struct PromptState {
  std::vector<int32_t> ids;
  LogprobRows logprobs;
  int64_t cached_tokens = 0;
  sampling::SamplingParams params;
};

struct GenerationOptions {
  std::string id;                       // "chatcmpl-..."
  std::string id_key;                   // the id without its prefix
  std::string caller;                   // the name of the API key; "": none
  std::string model;                    // the name that answers show: the model's, or that of the adapter
  model::AdapterPtr adapter = nullptr;  // null: none
  llm::TraceContext trace;
  std::optional<int64_t> engine = {};  // X-data-parallel-rank
  int64_t n = 1;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  int64_t stream_interval = 1;
  bool return_token_ids = false;
  bool tokens_as_ids = false;
  bool return_receipt = false;
  bool drop_answer = false;                    // max_tokens 0: only the prompt was asked for, so nothing is counted
  bool pools = false;                          // the answer is vectors, not text: it has no receipt
  llm::ConstraintSpec constraint;              // what receipts say of it
  std::shared_ptr<const AnswerFormat> format;  // how answers are parted; null: they are plain text
};

// Base class of the endpoints' answers; a derived class only writes JSON. start() submits the requests. From then on
// the output thread calls piece() for each new part of a stream and finish() once at the end, and the object lives as
// long as the engine works for it. When the client goes away, all requests are aborted.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(Service& service, ReplyPtr reply, GenerationOptions options);
  virtual ~Generation();

  // Submits the requests, one per prompt. After an error nothing has been started or sent, and the caller's key has
  // paid nothing.
  ApiStatus start(std::vector<engine::Request> requests);

 protected:
  // A new part of a stream. Called on the output thread, with the lock held.
  virtual void piece(Choice& choice, Piece& piece) = 0;
  // All choices have ended: sends the whole answer, or the end of the stream.
  virtual void finish() = 0;
  // The engine failed, or the server stops, before the answer was complete.
  virtual void fail(const ApiError& error);

  void begin_events();                       // sends the head of the stream, once
  void send_event(const std::string& json);  // data: json
  void send_event(const char* event, const std::string& json);
  void write_raw(std::string text);

  int64_t prompt_tokens() const;
  int64_t completion_tokens() const { return completion_tokens_; }
  int64_t cached_tokens() const;
  int64_t reasoning_tokens() const;
  bool counts_reasoning() const { return options_.format != nullptr && options_.format->dialect.reasoning != nullptr; }
  // {"prompt_tokens":..., "total_tokens":..., ...}
  void write_usage(JsonWriter& w, int64_t completion_tokens) const;
  void write_stop_reason(JsonWriter& w, const Choice& choice) const;
  void write_fingerprint(JsonWriter& w) const;  // "system_fingerprint"; null if there is none
  // "receipt", if the request asked for it. REQUIRES: the choice has ended.
  void write_receipt(JsonWriter& w, const Choice& choice) const;

  Service& service_;
  const ReplyPtr reply_;
  const GenerationOptions options_;
  const int64_t created_;
  std::vector<PromptState> prompts_;
  std::map<size_t, Choice> choices_;  // by index; the first delta of a choice creates it, so all exist at the end

 private:
  void take(llm::Delta delta);
  void take_streamed(Choice& choice, Piece piece);
  bool keeps_receipts() const {
    return !options_.pools && (options_.return_receipt || service_.options().recorder != nullptr);
  }
  llm::Receipt receipt_of(const Choice& choice) const;
  void record() const;
  void log_end(const Choice& last) const;
  void give_up();
  void break_off();  // the server stops and waits no longer: ends the answer with an error that says so

  std::mutex mutex_;  // guards what the output thread and start() share
  std::vector<engine::RequestId> ids_;
  std::unique_ptr<KeyLedger::Lease> lease_;  // on the caller's key; null if the key has no account
  size_t open_ = 0;                          // choices that have not ended
  int64_t completion_tokens_ = 0;
  bool begun_ = false;
  bool over_ = false;
  const std::chrono::steady_clock::time_point arrival_;
  std::chrono::steady_clock::time_point first_;
};

// The answer's id without its prefix: the field request_id, or else the request's id.
std::string answer_key(const HttpRequest& request, const Body& body);
void write_ids(JsonWriter& w, const std::vector<int32_t>& ids);
void write_prompt_logprobs(JsonWriter& w, const LogprobRows& rows, const text::Tokenizer* tokenizer);

// The text of tokens in logprobs. A token that ends inside a character shows ""; the one that completes the character
// shows it.
class TokenTexts {
 public:
  TokenTexts(const text::Tokenizer* tokenizer, bool as_ids) : tokenizer_(tokenizer), as_ids_(as_ids) {}
  std::string text(int32_t id) const;  // the text of this token, if it came next
  std::string show(int32_t id) const;  // the same, or token_id:N
  void advance(int32_t id);            // this token came next

 private:
  const text::Tokenizer* tokenizer_;
  bool as_ids_;
  std::string pending_;  // the bytes of a character that is not complete
};

// A list with one object per row: the sampled token with its logprob and bytes, and in top_logprobs the likeliest ones.
void write_token_logprobs(JsonWriter& w, const LogprobRows& rows, TokenTexts& texts, const text::Tokenizer* tokenizer);

// -9999 instead of -inf, which JSON does not have, as in vLLM.
double json_logprob(float logprob);

}  // namespace quire::api
