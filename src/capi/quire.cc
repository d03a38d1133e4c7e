// SPDX-License-Identifier: Apache-2.0
// The functions of quire.h. No exception leaves them.
#include "capi/quire.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <future>
#include <initializer_list>
#include <new>
#include <utility>

#include "base/env.h"
#include "base/log.h"
#include "capi/load.h"
#include "capi/request.h"
#include "capi/stream.h"
#include "cli/command.h"
#include "cli/program.h"
#include "model/pooling/pooler.h"

using quire::Error;
using quire::ErrorCode;
using quire::Result;
using quire::Status;
using quire::capi::Model;
using quire::capi::Stream;

struct quire_llm {
  std::shared_ptr<Model> model;
};

struct quire_stream {
  std::unique_ptr<Stream> stream;
  quire::llm::Delta delta;  // what the last quire_delta points into, with the two that follow
  std::vector<quire_logprob> entries[2];
  std::vector<size_t> ends[2];
  Stream::Pooled pooled;  // what quire_pooled points into
};

namespace {

using Deadline = std::optional<Stream::Clock::time_point>;

static_assert(QUIRE_INTERNAL == static_cast<int>(ErrorCode::kInternal) + 1);
static_assert(QUIRE_CORRUPT == static_cast<int>(ErrorCode::kCorrupt) + 1);

// A copy that free() frees; null if there is no memory.
char* copy_text(std::string_view text) {
  char* out = static_cast<char*>(std::malloc(text.size() + 1));
  if (out == nullptr) return nullptr;
  std::memcpy(out, text.data(), text.size());
  out[text.size()] = 0;
  return out;
}

void tell(quire_error* to, const Error& error) {
  if (to == nullptr) return;
  quire_error_clear(to);
  to->code = static_cast<quire_code>(static_cast<int>(error.code) + 1);
  to->message = copy_text(error.message);
}

// The value of a Result-returning function; `otherwise` if it failed or threw, which `error` then describes.
template <typename T, typename Function>
T guarded(T otherwise, quire_error* error, const Function& function) {
  try {
    Result<T> result = function();
    if (result.ok()) return std::move(result).value();
    tell(error, result.error());
  } catch (const std::bad_alloc&) {
    tell(error, quire::exhausted("there is not enough memory"));
  } catch (const std::exception& thrown) {
    tell(error, {ErrorCode::kInternal, thrown.what()});
  }
  return otherwise;
}

// The logger is set up with the first model. QUIRE_LOG_LEVEL has the words of --log-level.
void start_log() {
  [[maybe_unused]] static const bool once = [] {
    const std::string level = quire::env("QUIRE_LOG_LEVEL").value_or("warning");
    const bool known = level == "debug" || level == "info" || level == "error";
    quire::init_logging(known ? level.c_str() : "warning");
    return true;
  }();
}

Deadline deadline_in(double seconds) {
  constexpr double kLongest = 1e8;  // three years, which fit the clock
  if (!(seconds >= 0)) return std::nullopt;
  return Stream::Clock::now() + std::chrono::duration_cast<Stream::Clock::duration>(
                                    std::chrono::duration<double>(std::min(seconds, kLongest)));
}

// An Error if a pointer that a call needs is null.
Status check_given(std::initializer_list<std::pair<const char*, const void*>> pointers) {
  for (const auto& [name, pointer] : pointers) {
    if (pointer == nullptr) return quire::invalid_argument({name, " is a null pointer"});
  }
  return {};
}

// Loads on a thread, while this one asks whether to go on.
Result<std::unique_ptr<quire::llm::Llm>> load_while_asking(const quire::llm::Options& options, int (*cancelled)(void*),
                                                           void* context) {
  constexpr std::chrono::milliseconds kBetween{100};
  std::atomic<bool> stop{false};
  auto loading = std::async(std::launch::async, [&] { return quire::llm::Llm::load(options, {}, &stop); });
  while (loading.wait_for(kBetween) != std::future_status::ready) {
    if (!stop && cancelled(context) != 0) stop = true;
  }
  auto loaded = loading.get();
  if (stop) return Error{ErrorCode::kCancelled, "loading the model was cancelled"};
  return loaded;
}

quire_logprobs flatten(const std::vector<std::vector<quire::sampling::TokenLogprob>>& rows,
                       std::vector<quire_logprob>& entries, std::vector<size_t>& ends) {
  entries.clear();
  ends.clear();
  for (const auto& row : rows) {
    for (const auto& entry : row) entries.push_back({entry.token, entry.rank, entry.logprob});
    ends.push_back(entries.size());
  }
  return {entries.data(), ends.data(), ends.size()};
}

quire_delta show(quire_stream& stream) {
  const quire::llm::Delta& from = stream.delta;
  quire_delta out{};
  out.index = from.child;
  out.text = from.text.c_str();
  out.text_bytes = from.text.size();
  out.tokens = from.tokens.data();
  out.num_tokens = from.tokens.size();
  out.logprobs = flatten(from.logprobs, stream.entries[0], stream.ends[0]);
  out.prompt_logprobs = flatten(from.prompt_logprobs, stream.entries[1], stream.ends[1]);
  if (from.finish != quire::engine::FinishReason::kNone) out.finish_reason = quire::engine::name(from.finish);
  if (const auto* text = std::get_if<std::string>(&from.stop_reason)) {
    out.stop_string = text->c_str();
    out.stop_string_bytes = text->size();
  }
  const auto* token = std::get_if<int32_t>(&from.stop_reason);
  out.stop_token = token != nullptr ? *token : -1;
  out.cached_tokens = from.cached_tokens;
  return out;
}

quire::json::Value ids_json(const std::vector<int32_t>& ids) {
  quire::json::Array out;
  for (const int32_t id : ids) out.emplace_back(int64_t{id});
  return out;
}

// The rows as JSON; null if the request did not ask for them.
quire::json::Value rows_json(const Model& model, bool wanted,
                             const std::vector<std::vector<quire::sampling::TokenLogprob>>& rows, bool of_prompt) {
  if (!wanted) return nullptr;
  quire::json::Array out;
  if (of_prompt) out.emplace_back(nullptr);  // the first token has none
  for (const auto& row : rows) out.push_back(quire::cli::logprobs_json(row, model.llm().tokenizer().get()));
  return out;
}

// The vectors of a request that pools, as JSON.
Result<char*> pool(const std::shared_ptr<Model>& model, quire::capi::ReadRequest request) {
  QUIRE_ASSIGN(const std::unique_ptr<Stream> stream, Stream::start(model, std::move(request)));
  quire::llm::Delta delta;
  const Stream::Event event = stream->next(std::nullopt, delta);
  if (event == Stream::Event::kFailed) return *delta.error;
  const Stream::Pooled pooled = stream->pooled(delta);
  const auto row_json = [&](size_t row) {
    quire::json::Array out;
    for (size_t i = 0; i < pooled.columns; ++i) {
      out.emplace_back(static_cast<double>(pooled.values[row * pooled.columns + i]));
    }
    return out;
  };
  quire::json::Array rows;
  for (size_t row = 0; row < pooled.rows; ++row) rows.emplace_back(row_json(row));
  quire::json::Value out{quire::json::Object{}};
  out.set("prompt_token_ids", ids_json(stream->prompt()));
  out.set("data", pooled.rows == 0 ? row_json(0) : std::move(rows));
  out.set("num_cached_tokens", delta.cached_tokens);
  return copy_text(quire::json::dump(out));
}

Result<char*> generate(const std::shared_ptr<Model>& model, const char* request) {
  QUIRE_ASSIGN(quire::capi::ReadRequest ready, quire::capi::read_request(model->llm(), request, {}));
  if (ready.pool) return pool(model, std::move(ready));
  const bool logprobs = ready.request.params.logprobs.has_value();
  const bool prompt_logprobs = ready.request.params.prompt_logprobs.has_value();
  QUIRE_ASSIGN(const std::unique_ptr<Stream> stream, Stream::start(model, std::move(ready)));
  stream->wait(std::nullopt);
  quire::json::Array outputs;
  quire::json::Value prompt_rows;
  int64_t cached = 0;
  quire::llm::Delta delta;
  for (;;) {
    const Stream::Event event = stream->next(std::nullopt, delta);
    if (event == Stream::Event::kFailed) return *delta.error;
    if (event == Stream::Event::kEnd) break;
    quire::json::Value one{quire::json::Object{}};
    one.set("index", int64_t{delta.child});
    one.set("text", delta.text);
    one.set("token_ids", ids_json(delta.tokens));
    one.set("finish_reason", quire::engine::name(delta.finish));
    one.set("stop_reason", quire::cli::stop_reason_json(delta.stop_reason));
    one.set("logprobs", rows_json(*model, logprobs, delta.logprobs, false));
    if (delta.child == 0) prompt_rows = rows_json(*model, prompt_logprobs, delta.prompt_logprobs, true);
    cached = std::max(cached, delta.cached_tokens);
    outputs.push_back(std::move(one));
  }
  quire::json::Value out{quire::json::Object{}};
  out.set("prompt_token_ids", ids_json(stream->prompt()));
  out.set("outputs", std::move(outputs));
  out.set("num_cached_tokens", cached);
  out.set("prompt_logprobs", std::move(prompt_rows));
  return copy_text(quire::json::dump(out));
}

}  // namespace

void quire_error_clear(quire_error* error) {
  if (error == nullptr) return;
  std::free(error->message);
  *error = {QUIRE_OK, nullptr};
}

const char* quire_version(void) {
  return QUIRE_VERSION;
}

quire_llm* quire_load(const char* options, quire_error* error) {
  return quire_load_cancellable(options, nullptr, nullptr, error);
}

quire_llm* quire_load_cancellable(const char* options, int (*cancelled)(void* context), void* context,
                                  quire_error* error) {
  return guarded<quire_llm*>(nullptr, error, [&]() -> Result<quire_llm*> {
    start_log();
    QUIRE_ASSIGN(const quire::llm::Options read, quire::capi::read_options(options != nullptr ? options : "{}"));
    QUIRE_ASSIGN(std::unique_ptr<quire::llm::Llm> llm,
                 cancelled == nullptr ? quire::llm::Llm::load(read) : load_while_asking(read, cancelled, context));
    return new quire_llm{std::make_shared<Model>(std::move(llm))};
  });
}

char* quire_options(void) {
  return guarded<char*>(nullptr, nullptr,
                        []() -> Result<char*> { return copy_text(quire::json::dump(quire::capi::options_json())); });
}

void quire_free(quire_llm* llm) {
  if (llm == nullptr || llm->model->is_forked()) return;
  delete llm;
}

char* quire_info(const quire_llm* llm) {
  return guarded<char*>(nullptr, nullptr, [&]() -> Result<char*> {
    QUIRE_TRY(check_given({{"llm", llm}}));
    const quire::llm::Llm& model = llm->model->llm();
    quire::json::Value out{quire::json::Object{}};
    out.set("name", model.name());
    out.set("max_model_len", model.max_model_len());
    out.set("vocab_size", model.engine().model().config().vocab_size);
    quire::json::Array eos;
    for (const int32_t id : model.eos_token_ids()) eos.emplace_back(int64_t{id});
    out.set("eos_token_ids", std::move(eos));
    out.set("default_sampling_params", quire::capi::default_params_json(model));
    out.set("pooling", quire::capi::pooling_json(model));
    return copy_text(quire::json::dump(out));
  });
}

char* quire_generate(quire_llm* llm, const char* request, quire_error* error) {
  return guarded<char*>(nullptr, error, [&]() -> Result<char*> {
    QUIRE_TRY(check_given({{"llm", llm}, {"request", request}}));
    return generate(llm->model, request);
  });
}

void quire_free_text(char* text) {
  std::free(text);
}

quire_stream* quire_submit(quire_llm* llm, const char* request, const int32_t* tokens, size_t num_tokens,
                           quire_error* error) {
  return guarded<quire_stream*>(nullptr, error, [&]() -> Result<quire_stream*> {
    QUIRE_TRY(check_given({{"llm", llm}, {"request", request}}));
    const std::span<const int32_t> prompt(tokens, tokens != nullptr ? num_tokens : 0);
    if (tokens != nullptr && num_tokens == 0) return quire::invalid_argument("the prompt has no tokens");
    QUIRE_ASSIGN(quire::capi::ReadRequest ready, quire::capi::read_request(llm->model->llm(), request, prompt));
    auto out = std::make_unique<quire_stream>();
    QUIRE_ASSIGN(out->stream, Stream::start(llm->model, std::move(ready)));
    return out.release();
  });
}

const int32_t* quire_prompt(const quire_stream* stream, size_t* num_tokens) {
  if (stream == nullptr || num_tokens == nullptr) return nullptr;
  *num_tokens = stream->stream->prompt().size();
  return stream->stream->prompt().data();
}

quire_event quire_next(quire_stream* stream, double seconds, quire_delta* delta, quire_error* error) {
  return guarded<quire_event>(QUIRE_FAILED, error, [&]() -> Result<quire_event> {
    QUIRE_TRY(check_given({{"stream", stream}, {"delta", delta}}));
    QUIRE_TRY(stream->stream->model().check_process());
    switch (stream->stream->next(deadline_in(seconds), stream->delta)) {
      case Stream::Event::kFailed:
        return *stream->delta.error;
      case Stream::Event::kEnd:
        return QUIRE_END;
      case Stream::Event::kTimeout:
        return QUIRE_TIMEOUT;
      case Stream::Event::kDelta:
        break;
    }
    if (stream->stream->pools()) stream->pooled = stream->stream->pooled(stream->delta);
    *delta = show(*stream);
    return QUIRE_DELTA;
  });
}

const float* quire_pooled(const quire_stream* stream, size_t* rows, size_t* columns) {
  if (stream == nullptr || rows == nullptr || columns == nullptr) return nullptr;
  *rows = stream->pooled.rows;
  *columns = stream->pooled.columns;
  return stream->pooled.values.empty() ? nullptr : stream->pooled.values.data();
}

float quire_similarity(const float* query, size_t query_rows, const float* document, size_t document_rows,
                       size_t columns, int late) {
  return guarded<float>(NAN, nullptr, [&]() -> Result<float> {
    if (late == 0) return quire::model::cosine({query, columns}, {document, columns});
    const auto rows_of = [&](const float* from, size_t rows) {
      std::vector<std::vector<float>> out;
      for (size_t row = 0; row < rows; ++row) out.emplace_back(from + row * columns, from + (row + 1) * columns);
      return out;
    };
    return quire::model::late_score(rows_of(query, query_rows), rows_of(document, document_rows));
  });
}

quire_event quire_wait(quire_stream* stream, double seconds) {
  if (stream == nullptr || stream->stream->model().is_forked()) return QUIRE_END;  // quire_next has the error
  return stream->stream->wait(deadline_in(seconds)) == Stream::Event::kEnd ? QUIRE_END : QUIRE_TIMEOUT;
}

void quire_abort(quire_stream* stream) {
  if (stream == nullptr || stream->stream->model().is_forked()) return;
  guarded<bool>(false, nullptr, [&]() -> Result<bool> {
    stream->stream->abort();
    return true;
  });
}

void quire_close(quire_stream* stream) {
  if (stream == nullptr || stream->stream->model().is_forked()) return;
  delete stream;
}

int quire_event_fd(quire_llm* llm) {
  if (llm == nullptr || llm->model->is_forked()) return -1;
  return llm->model->signal->descriptor();
}

int quire_reset_prefix_cache(quire_llm* llm) {
  if (llm == nullptr || llm->model->is_forked()) return 0;
  return guarded<int>(0, nullptr,
                      [&]() -> Result<int> { return llm->model->async.reset_prefix_cache().get() ? 1 : 0; });
}

int32_t* quire_tokenize(const quire_llm* llm, const char* request, size_t* num_tokens, quire_error* error) {
  return guarded<int32_t*>(nullptr, error, [&]() -> Result<int32_t*> {
    QUIRE_TRY(check_given({{"llm", llm}, {"request", request}, {"num_tokens", num_tokens}}));
    QUIRE_ASSIGN(const std::vector<int32_t> ids, quire::capi::read_prompt(llm->model->llm(), request));
    auto* out = static_cast<int32_t*>(std::malloc(std::max<size_t>(ids.size(), 1) * sizeof(int32_t)));
    if (out == nullptr) throw std::bad_alloc();
    std::copy(ids.begin(), ids.end(), out);
    *num_tokens = ids.size();
    return out;
  });
}

void quire_free_tokens(int32_t* tokens) {
  std::free(tokens);
}

char* quire_detokenize(const quire_llm* llm, const int32_t* tokens, size_t num_tokens, int skip_special_tokens,
                       size_t* num_bytes, quire_error* error) {
  return guarded<char*>(nullptr, error, [&]() -> Result<char*> {
    QUIRE_TRY(check_given({{"llm", llm}}));
    if (num_tokens > 0) QUIRE_TRY(check_given({{"tokens", tokens}}));
    const auto& tokenizer = llm->model->llm().tokenizer();
    if (tokenizer == nullptr) return quire::unsupported("this model has no tokenizer; give one as tokenizer");
    const int64_t vocab_size = llm->model->llm().engine().model().config().vocab_size;
    for (size_t i = 0; i < num_tokens; ++i) {
      if (tokens[i] >= 0 && tokens[i] < vocab_size) continue;
      return quire::invalid_argument({"token id ", tokens[i], " is out of the vocabulary (0 to ", vocab_size - 1, ")"});
    }
    const std::string text = tokenizer->decode({tokens, num_tokens}, skip_special_tokens != 0);
    if (num_bytes != nullptr) *num_bytes = text.size();
    return copy_text(text);
  });
}

int quire_main(int argc, char** argv) {
  return quire::cli::run_program(argc, argv);
}
