// SPDX-License-Identifier: Apache-2.0
// Generation: one HTTP request's way through the engine: its prompts, its choices, and what is told to the client.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api/json_writer.h"
#include "api/service.h"

namespace quire::api {

using LogprobRows = std::vector<std::vector<sampling::TokenLogprob>>;

// One answer: choice i of prompt p has the index p * n + i.
struct Choice {
  size_t index = 0;
  size_t prompt = 0;
  std::string text;  // whole answers only; a stream does not keep it
  std::vector<int32_t> tokens;
  LogprobRows logprobs;
  int64_t num_tokens = 0;
  engine::FinishReason finish = engine::FinishReason::kNone;
  std::variant<std::monostate, int32_t, std::string> stop_reason;
  bool begun = false;    // a stream's first piece went out
  llm::Delta held = {};  // of a stream: what waits for more tokens (stream_interval)
};

struct PromptState {
  std::vector<int32_t> ids;
  LogprobRows logprobs;
  int64_t cached_tokens = 0;
};

struct GenerationOptions {
  std::string id;      // "chatcmpl-..."
  std::string id_key;  // what stood behind the prefix
  std::string caller;  // the name of the API key; "": none
  int64_t n = 1;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  int64_t stream_interval = 1;
  bool return_token_ids = false;
  bool tokens_as_ids = false;
};

// Base of the endpoints' answers. start() submits; from then on the output thread calls piece() for each new part of a
// stream and finish() once at the end, and the object lives as long as the engine works for it. When the client goes
// away all of it is aborted. A derived class only writes JSON.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(Service& service, ReplyPtr reply, GenerationOptions options);
  virtual ~Generation();

  // The requests' prompts become those of the choices, in order. An error: nothing was started or sent.
  ApiStatus start(std::vector<engine::Request> requests);

 protected:
  // Streams: a part of a choice's answer. Called with the lock held, on the output thread.
  virtual void piece(Choice& choice, llm::Delta& delta) = 0;
  // All choices have ended: sends the whole answer, or a stream's end.
  virtual void finish() = 0;
  // The engine failed under way.
  virtual void fail(const ApiError& error);

  void begin_events();                       // the stream's head, once
  void send_event(const std::string& json);  // data: json
  void send_event(const char* event, const std::string& json);
  void write_raw(std::string text);

  int64_t prompt_tokens() const;
  int64_t completion_tokens() const { return completion_tokens_; }
  int64_t cached_tokens() const;
  // {"prompt_tokens":..., "total_tokens":..., ...}
  void write_usage(JsonWriter& w, int64_t completion_tokens) const;
  void write_stop_reason(JsonWriter& w, const Choice& choice) const;
  void write_fingerprint(JsonWriter& w) const;  // "system_fingerprint"; null when there is none

  Service& service_;
  const ReplyPtr reply_;
  const GenerationOptions options_;
  const int64_t created_;
  std::vector<PromptState> prompts_;
  std::map<size_t, Choice> choices_;  // by index; each is made with its first delta, so all are there at the end

 private:
  void take(llm::Delta delta);
  void give_up();
  void break_off();  // the server stops and waits no longer: ends the answer with an error that says so
  void end(const ApiError* error);

  std::mutex mutex_;  // guards what the output thread and start() share
  std::vector<engine::RequestId> ids_;
  std::unique_ptr<KeyLedger::Lease> lease_;  // of the caller's key
  size_t open_ = 0;
  int64_t completion_tokens_ = 0;
  bool begun_ = false;
  bool over_ = false;
  const std::chrono::steady_clock::time_point arrival_;
  std::chrono::steady_clock::time_point first_;
};

// "chatcmpl-" + the request's own id, its header's, or a drawn one.
std::string answer_key(const HttpRequest& request, const Body& body);
void write_ids(JsonWriter& w, const std::vector<int32_t>& ids);
void write_prompt_logprobs(JsonWriter& w, const LogprobRows& rows, const text::Tokenizer* tokenizer);

// The text of tokens in logprobs: a token that ends inside a character shows "", the one that completes it shows the
// character.
class TokenTexts {
 public:
  TokenTexts(const text::Tokenizer* tokenizer, bool as_ids) : tokenizer_(tokenizer), as_ids_(as_ids) {}
  std::string show(int32_t id) const;  // as it stands at this place
  void advance(int32_t id);            // this one was taken

 private:
  const text::Tokenizer* tokenizer_;
  bool as_ids_;
  std::string pending_;  // bytes of a character that is not complete
};

// A list with an object for each row: the sampled token with its logprob and bytes, and under it the likeliest ones.
void write_token_logprobs(JsonWriter& w, const LogprobRows& rows, TokenTexts& texts, const text::Tokenizer* tokenizer);

// -inf, which JSON has not, as vLLM writes it.
double json_logprob(float logprob);

}  // namespace quire::api
