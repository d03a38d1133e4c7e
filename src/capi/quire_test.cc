// SPDX-License-Identifier: Apache-2.0
// The C API on a tiny model with random weights, which takes token ids only.
#include "capi/quire.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"

namespace {

std::string options(const std::string& more = "") {
  return R"({"model": ")" QUIRE_SOURCE_DIR
         R"(/tests/goldens/llama/config.json", "load_format": "dummy", "threads": 1)" +
         more + "}";
}

// What a call left in its error, which is then cleared.
struct Told {
  quire_error error{};
  ~Told() { quire_error_clear(&error); }
  std::string message() const { return error.message != nullptr ? error.message : ""; }
};

class CApi : public testing::Test {
 protected:
  void SetUp() override {
    llm_ = quire_load(options().c_str(), &told_.error);
    ASSERT_NE(llm_, nullptr) << told_.message();
  }
  void TearDown() override { quire_free(llm_); }

  std::string refused(const std::string& request) {
    Told told;
    EXPECT_EQ(quire_generate(llm_, request.c_str(), &told.error), nullptr) << request;
    EXPECT_EQ(told.error.code, QUIRE_INVALID_ARGUMENT);
    return told.message();
  }
  quire_stream* submit(const std::string& request) {
    quire_stream* stream = quire_submit(llm_, request.c_str(), nullptr, 0, &told_.error);
    EXPECT_NE(stream, nullptr) << told_.message();
    return stream;
  }

  quire_llm* llm_ = nullptr;
  Told told_;
};

TEST_F(CApi, GeneratesAWholeAnswer) {
  char* text = quire_generate(llm_, R"({"prompt_token_ids": [1, 2, 3], "n": 2, "seed": 1, "max_tokens": 4,
                                        "ignore_eos": true, "logprobs": 2, "prompt_logprobs": 1})",
                              &told_.error);
  ASSERT_NE(text, nullptr) << told_.message();
  const auto answer = quire::json::parse(text);
  quire_free_text(text);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->find("prompt_token_ids")->as_array().size(), 3u);
  EXPECT_EQ(answer->find("prompt_logprobs")->as_array().size(), 3u);
  const auto& outputs = answer->find("outputs")->as_array();
  ASSERT_EQ(outputs.size(), 2u);
  for (const auto& output : outputs) {
    EXPECT_EQ(output.find("token_ids")->as_array().size(), 4u);
    EXPECT_EQ(output.find("logprobs")->as_array().size(), 4u);
    EXPECT_EQ(output.find("finish_reason")->as_string(), "length");
    EXPECT_TRUE(output.find("stop_reason")->is_null());
  }
}

TEST_F(CApi, StreamsWhatItGenerates) {
  const std::vector<int32_t> prompt = {1, 2, 3};
  const char* request = R"({"temperature": 0, "max_tokens": 6, "ignore_eos": true, "logprobs": 1})";
  quire_stream* stream = quire_submit(llm_, request, prompt.data(), prompt.size(), &told_.error);
  ASSERT_NE(stream, nullptr) << told_.message();
  size_t count = 0;
  const int32_t* ids = quire_prompt(stream, &count);
  EXPECT_EQ(std::vector<int32_t>(ids, ids + count), prompt);
  std::vector<int32_t> tokens;
  quire_delta delta;
  bool finished = false;
  while (quire_next(stream, -1, &delta, &told_.error) == QUIRE_DELTA) {
    tokens.insert(tokens.end(), delta.tokens, delta.tokens + delta.num_tokens);
    EXPECT_EQ(delta.logprobs.rows, delta.num_tokens);
    EXPECT_EQ(delta.logprobs.entries[0].token, delta.tokens[0]);
    finished = delta.finish_reason != nullptr;
  }
  EXPECT_TRUE(finished);
  EXPECT_EQ(tokens.size(), 6u);
  EXPECT_EQ(quire_next(stream, -1, &delta, &told_.error), QUIRE_END);  // and again
  quire_close(stream);

  stream = quire_submit(llm_, request, prompt.data(), prompt.size(), &told_.error);
  EXPECT_EQ(quire_wait(stream, -1), QUIRE_END);
  ASSERT_EQ(quire_next(stream, 0, &delta, &told_.error), QUIRE_DELTA);
  EXPECT_EQ(std::vector<int32_t>(delta.tokens, delta.tokens + delta.num_tokens), tokens);  // in one piece
  EXPECT_EQ(quire_next(stream, 0, &delta, &told_.error), QUIRE_END);
  quire_close(stream);
}

TEST_F(CApi, AbortEndsEachAnswer) {
  quire_stream* stream = submit(R"({"prompt_token_ids": [1], "n": 3, "max_tokens": null, "ignore_eos": true})");
  std::thread([&] { quire_abort(stream); }).join();
  EXPECT_EQ(quire_wait(stream, -1), QUIRE_END);
  quire_delta delta;
  int aborted = 0;
  while (quire_next(stream, -1, &delta, &told_.error) == QUIRE_DELTA) {
    aborted += delta.finish_reason != nullptr && std::string(delta.finish_reason) == "abort" ? 1 : 0;
  }
  EXPECT_EQ(aborted, 3);
  quire_close(stream);
}

TEST_F(CApi, AModelLivesAsLongAsItsStreams) {
  quire_stream* stream = submit(R"({"prompt_token_ids": [1], "max_tokens": 3, "ignore_eos": true})");
  quire_free(llm_);
  llm_ = nullptr;
  EXPECT_EQ(quire_wait(stream, -1), QUIRE_END);
  quire_close(stream);
}

TEST_F(CApi, TheDescriptorWakesAnEventLoop) {
  const int descriptor = quire_event_fd(llm_);
  ASSERT_GE(descriptor, 0);
  EXPECT_EQ(quire_event_fd(llm_), descriptor);
  pollfd waited{descriptor, POLLIN, 0};
  EXPECT_EQ(::poll(&waited, 1, 0), 0);
  quire_stream* stream = submit(R"({"prompt_token_ids": [1], "max_tokens": 2, "ignore_eos": true})");
  EXPECT_EQ(::poll(&waited, 1, -1), 1);
  quire_close(stream);
}

TEST_F(CApi, SaysWhatIsWrongWithARequest) {
  EXPECT_NE(refused("{").find("not valid JSON"), std::string::npos);
  EXPECT_NE(refused("{}").find("one of prompt"), std::string::npos);
  EXPECT_NE(refused(R"({"prompt_token_ids": [1], "promt": 1})").find("did you mean"), std::string::npos);
  EXPECT_NE(refused(R"({"prompt_token_ids": [1], "messages": [{}]})").find("one of prompt"), std::string::npos);
  EXPECT_NE(refused(R"({"prompt_token_ids": [99999999]})").find("vocabulary"), std::string::npos);
  EXPECT_NE(refused(R"({"prompt_token_ids": [1], "top_p": 0})").find("top_p"), std::string::npos);
  EXPECT_NE(refused(R"({"prompt_token_ids": [1], "lora_name": "a"})").find("lora_path"), std::string::npos);
  char* text = quire_generate(llm_, R"({"prompt_token_ids": [1], "max_tokens": 1, "task": null})", &told_.error);
  EXPECT_NE(text, nullptr) << told_.message();  // null means that it is not given
  quire_free_text(text);
  EXPECT_EQ(quire_generate(llm_, "{", nullptr), nullptr);  // the error need not be given
}

TEST_F(CApi, ANullPointerIsAnErrorAndNoCrash) {
  const auto says = [&](const auto& call) {
    Told told;
    EXPECT_FALSE(call(&told.error));
    EXPECT_EQ(told.error.code, QUIRE_INVALID_ARGUMENT);
    return told.message();
  };
  EXPECT_EQ(says([](quire_error* e) { return quire_generate(nullptr, "{}", e) != nullptr; }), "llm is a null pointer");
  EXPECT_EQ(says([&](quire_error* e) { return quire_generate(llm_, nullptr, e) != nullptr; }),
            "request is a null pointer");
  EXPECT_EQ(says([&](quire_error* e) { return quire_submit(llm_, nullptr, nullptr, 0, e) != nullptr; }),
            "request is a null pointer");
  EXPECT_EQ(says([&](quire_error* e) { return quire_tokenize(llm_, "{}", nullptr, e) != nullptr; }),
            "num_tokens is a null pointer");
  EXPECT_EQ(says([&](quire_error* e) { return quire_detokenize(llm_, nullptr, 3, 0, nullptr, e) != nullptr; }),
            "tokens is a null pointer");
  EXPECT_EQ(says([](quire_error* e) { return quire_next(nullptr, 0, nullptr, e) != QUIRE_FAILED; }),
            "stream is a null pointer");
  quire_stream* stream = submit(R"({"prompt_token_ids": [1], "max_tokens": 1})");
  EXPECT_EQ(says([&](quire_error* e) { return quire_next(stream, 0, nullptr, e) != QUIRE_FAILED; }),
            "delta is a null pointer");
  EXPECT_EQ(quire_prompt(stream, nullptr), nullptr);
  EXPECT_EQ(quire_pooled(stream, nullptr, nullptr), nullptr);
  quire_close(stream);
  quire_close(nullptr);
  quire_abort(nullptr);
  quire_free(nullptr);
  quire_error_clear(nullptr);
  EXPECT_EQ(quire_wait(nullptr, -1), QUIRE_END);
  EXPECT_EQ(quire_event_fd(nullptr), -1);
  EXPECT_EQ(quire_info(nullptr), nullptr);
  EXPECT_EQ(quire_reset_prefix_cache(nullptr), 0);
}

// In a child, each of these calls waited without end for threads that only the parent has.
TEST_F(CApi, AChildProcessIsToldThatTheModelIsItsParents) {
  quire_stream* stream = submit(R"({"prompt_token_ids": [1], "max_tokens": 4, "ignore_eos": true})");
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    quire_delta delta;
    Told told;
    int wrong = quire_submit(llm_, R"({"prompt_token_ids": [1]})", nullptr, 0, &told.error) != nullptr;
    wrong += told.error.code != QUIRE_UNAVAILABLE || told.message().find("fork") == std::string::npos;
    wrong += quire_generate(llm_, R"({"prompt_token_ids": [1]})", nullptr) != nullptr;
    wrong += quire_wait(stream, -1) != QUIRE_END;
    wrong += quire_next(stream, -1, &delta, nullptr) != QUIRE_FAILED;
    wrong += quire_event_fd(llm_) != -1;
    wrong += quire_reset_prefix_cache(llm_);
    quire_abort(stream);
    quire_close(stream);
    quire_free(llm_);
    ::_exit(wrong);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(quire_wait(stream, -1), QUIRE_END);  // the parent's go on
  quire_delta delta;
  EXPECT_EQ(quire_next(stream, 0, &delta, &told_.error), QUIRE_DELTA) << told_.message();
  EXPECT_EQ(delta.num_tokens, 4u);
  quire_close(stream);
}

// The same tiny model, which makes embeddings of its hidden states.
class CApiPooling : public testing::Test {
 protected:
  void SetUp() override {
    llm_ = quire_load(options(R"(, "runner": "pooling")").c_str(), &told_.error);
    ASSERT_NE(llm_, nullptr) << told_.message();
  }
  void TearDown() override { quire_free(llm_); }

  // The numbers of a request, and how many rows they are.
  std::pair<std::vector<float>, size_t> pooled(const std::string& request) {
    quire_stream* stream = quire_submit(llm_, request.c_str(), nullptr, 0, &told_.error);
    EXPECT_NE(stream, nullptr) << told_.message();
    if (stream == nullptr) return {};
    size_t rows = 1, columns = 1;
    EXPECT_EQ(quire_pooled(stream, &rows, &columns), nullptr);  // not yet
    quire_delta delta;
    EXPECT_EQ(quire_next(stream, -1, &delta, &told_.error), QUIRE_DELTA) << told_.message();
    EXPECT_STREQ(delta.finish_reason, "stop");
    const float* from = quire_pooled(stream, &rows, &columns);
    EXPECT_NE(from, nullptr);
    std::pair<std::vector<float>, size_t> out{{from, from + std::max<size_t>(rows, 1) * columns}, rows};
    EXPECT_EQ(quire_next(stream, -1, &delta, &told_.error), QUIRE_END);
    quire_close(stream);
    return out;
  }
  std::string refused(const std::string& request) {
    Told told;
    EXPECT_EQ(quire_generate(llm_, request.c_str(), &told.error), nullptr) << request;
    EXPECT_EQ(told.error.code, QUIRE_INVALID_ARGUMENT) << request;
    return told.message();
  }

  quire_llm* llm_ = nullptr;
  Told told_;
};

TEST_F(CApiPooling, MakesOneVectorOrOnePerToken) {
  const auto [vector, no_rows] = pooled(R"({"prompt_token_ids": [1, 2, 3], "task": "embed"})");
  EXPECT_EQ(no_rows, 0u);
  double square = 0;
  for (const float value : vector) square += static_cast<double>(value) * static_cast<double>(value);
  EXPECT_NEAR(square, 1, 1e-5);
  const auto [tokens, rows] = pooled(R"({"prompt_token_ids": [1, 2, 3], "task": "token_embed"})");
  EXPECT_EQ(rows, 3u);
  ASSERT_EQ(tokens.size(), 3 * vector.size());
  // The embedding of a decoder is that of its last token.
  EXPECT_EQ(std::vector<float>(tokens.end() - static_cast<std::ptrdiff_t>(vector.size()), tokens.end()), vector);
  EXPECT_FLOAT_EQ(quire_similarity(vector.data(), 1, vector.data(), 1, vector.size(), 0), 1.0f);
  EXPECT_NEAR(quire_similarity(tokens.data(), rows, tokens.data(), rows, vector.size(), 1), 3.0f, 1e-4);

  char* text = quire_generate(llm_, R"({"prompt_token_ids": [1, 2, 3], "task": "embed"})", &told_.error);
  ASSERT_NE(text, nullptr) << told_.message();
  const auto answer = quire::json::parse(text);
  quire_free_text(text);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->find("data")->as_array().size(), vector.size());
  EXPECT_EQ(static_cast<float>(answer->find("data")->as_array()[1].as_double()), vector[1]);
}

TEST_F(CApiPooling, SaysWhatItMakesAndWhatIsWrong) {
  char* text = quire_info(llm_);
  const auto info = quire::json::parse(text);
  quire_free_text(text);
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->find("pooling")->find("tasks")->as_array()[0].as_string(), "embed");
  EXPECT_EQ(info->find("pooling")->find("score")->as_string(), "cosine");
  EXPECT_NE(refused(R"({"prompt_token_ids": [1]})").find("give a task"), std::string::npos);
  EXPECT_NE(refused(R"({"prompt_token_ids": [1], "task": "classify"})").find("its tasks are"), std::string::npos);
  EXPECT_NE(refused(R"({"prompt_token_ids": [1], "task": "sing"})").find("task"), std::string::npos);
  EXPECT_NE(refused(R"({"prompt_token_ids": [1], "task": "embed", "top_p": 1})").find("no field"), std::string::npos);
  EXPECT_NE(refused(R"({"prompt_token_ids": [1], "task": "embed", "text_pair": "x"})").find("text_pair"),
            std::string::npos);
  EXPECT_NE(refused(R"({"task": "embed"})").find("one of prompt"), std::string::npos);
}

TEST(CApiLoad, SaysWhatIsWrongWithTheOptions) {
  const auto failure = [](const std::string& text) {
    Told told;
    EXPECT_EQ(quire_load(text.c_str(), &told.error), nullptr) << text;
    EXPECT_NE(told.error.code, QUIRE_OK);
    return told.message();
  };
  EXPECT_NE(failure("{").find("not valid JSON"), std::string::npos);
  EXPECT_NE(failure("[]").find("JSON object"), std::string::npos);
  EXPECT_NE(failure(options(R"(, "max_model_length": 8)")).find("did you mean 'max_model_len'"), std::string::npos);
  EXPECT_NE(failure(options(R"(, "no_enable_prefix_caching": true)")).find("is no option"), std::string::npos);
  EXPECT_NE(failure(options(R"(, "worker_cls": "x.Y")")).find("runs no Python; leave it out"), std::string::npos);
  EXPECT_NE(failure(options(R"(, "trust_remote_code": 1)")).find("must be true or false"), std::string::npos);
  EXPECT_NE(failure(options(R"(, "swap_space": true)")).find("must be a number"), std::string::npos);
  EXPECT_NE(failure(options(R"(, "task": "sing")")).find("choose auto, generate"), std::string::npos);
  EXPECT_NE(failure(options(R"(, "enable_prefix_caching": 1)")).find("must be true or false"), std::string::npos);
  EXPECT_NE(failure(options(R"(, "dtype": ["float32"])")).find("must not be a list"), std::string::npos);
  EXPECT_NE(failure(options(R"(, "block_size": "many")")).find("many"), std::string::npos);
  EXPECT_NE(failure(R"({"model": 5})").find("must be a string"), std::string::npos);
}

// `additional_config is not supported` was said of an empty one.
TEST(CApiLoad, TakesOptionsThatAskForNothing) {
  for (
      const char* more :
      {R"("additional_config": {}, "structured_outputs_config": {}, "limit_mm_per_prompt": {}, "logits_processors": [])",
       R"("allowed_local_media_path": "", "data_parallel_size": 1, "model_impl": "auto", "language_model_only": true)",
       R"("max_model_len": 64.0, "kv_cache_memory_bytes": 1e9)",
       R"("distributed_executor_backend": "mp", "served_model_name": "x", "disable_cascade_attn": true)"}) {
    Told told;
    quire_llm* llm = quire_load(options(std::string(", ") + more).c_str(), &told.error);
    EXPECT_NE(llm, nullptr) << told.message();
    quire_free(llm);
  }
  for (const char* more : {R"("additional_config": {"a": 1})", R"("data_parallel_size": 2)", R"("nnodes": 2)",
                           R"("disable_sliding_window": true)", R"("reasoning_parser": "qwen3")"}) {
    Told told;
    EXPECT_EQ(quire_load(options(std::string(", ") + more).c_str(), &told.error), nullptr) << more;
    EXPECT_NE(told.message().find("is not supported: "), std::string::npos) << told.message();
  }
}

TEST(CApiLoad, ListsItsOptions) {
  char* text = quire_options();
  ASSERT_NE(text, nullptr);
  const auto all = quire::json::parse(text);
  quire_free_text(text);
  ASSERT_TRUE(all.ok());
  for (const char* name : {"model", "max_model_len", "enable_prefix_caching", "task", "trust_remote_code"}) {
    ASSERT_NE(all->find(name), nullptr) << name;
    EXPECT_FALSE(all->find(name)->as_string().empty()) << name;
  }
  for (const auto& [name, help] : all->as_object()) EXPECT_EQ(name.find('-'), std::string::npos) << name;
  EXPECT_EQ(all->find("revision")->as_string().rfind("Not supported: ", 0), 0u);
}

TEST(CApiLoad, CanBeCancelled) {
  struct Asked {
    int times = 0, answer = 0;
  };
  const auto ask = [](void* context) {
    ++static_cast<Asked*>(context)->times;
    return static_cast<Asked*>(context)->answer;
  };
  Told told;
  Asked asked;
  quire_llm* llm = quire_load_cancellable(options().c_str(), ask, &asked, &told.error);
  EXPECT_NE(llm, nullptr) << told.message();
  quire_free(llm);
  // Thousands of layers take a second or more, so that the question comes before the end.
  asked.answer = 1;
  const std::string large = options(R"(, "hf_overrides": {"num_hidden_layers": 4000})");
  EXPECT_EQ(quire_load_cancellable(large.c_str(), ask, &asked, &told.error), nullptr);
  EXPECT_EQ(told.error.code, QUIRE_CANCELLED) << told.message();
  EXPECT_EQ(asked.times, 1);
}

}  // namespace
