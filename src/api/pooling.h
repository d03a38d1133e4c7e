// SPDX-License-Identifier: Apache-2.0
// What the endpoints of embeddings and scores share: their inputs, and answers that are made of pooled vectors.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/request_fields.h"

namespace quire::api {

// The most texts (or pairs) of one request, and their tokens together.
constexpr size_t kMaxInputs = 8192;
constexpr size_t kMaxInputTokens = size_t{1} << 22;

ApiResult<llm::Truncation> read_truncation(const Body& body, const llm::Llm& model);
// The tokens of a text, cut before its special tokens are added.
ApiResult<std::vector<int32_t>> text_tokens(const Service& service, const std::string& text, bool special,
                                            const llm::Truncation& truncation);
// `input` (texts, token ids or conversations) or `messages` of a request.
ApiResult<std::vector<llm::PoolPrompt>> read_inputs(const Service& service, const HttpRequest& request,
                                                    const Body& body);

// Which part of the request a prompt is, for errors: "input[3]".
using PromptPlace = std::function<std::string(size_t)>;
// The same for prompts of read_inputs. It may be called as long as the body lives.
PromptPlace input_place(const Body& body);

// A request under way whose prompts are pooled. A derived class writes the answer from rows().
class PoolingAnswer : public Generation {
 public:
  PoolingAnswer(Service& service, ReplyPtr reply, GenerationOptions options, llm::PoolTask task,
                const llm::PoolSettings& settings)
      : Generation(service, std::move(reply), std::move(options)), task_(task), settings_(settings) {}

  // Checks and submits the prompts.
  ApiStatus begin(const HttpRequest& request, const Body& body, std::vector<llm::PoolPrompt> prompts,
                  const PromptPlace& place);

 protected:
  void piece(Choice&, Piece&) final {}
  size_t size() const { return prompts_.size(); }
  // The vectors of one prompt: one, or one per token.
  std::vector<std::vector<float>> rows(size_t prompt) const;
  // {"prompt_tokens", "total_tokens", "completion_tokens"}
  void write_pooling_usage(JsonWriter& w) const;
  void write_head(JsonWriter& w, const char* object) const;  // id, object, created, model

  const llm::PoolTask task_;
  const llm::PoolSettings settings_;
};

// How the answer's id begins, and what pooling requests have in common.
ApiResult<GenerationOptions> read_pooling_options(const HttpRequest& request, const Body& body, const Service& service,
                                                  const char* prefix);
ApiResult<llm::PoolSettings> read_pool_settings(const llm::Llm& model, const Body& body);
// `task`, or what the model usually does.
ApiResult<llm::PoolTask> read_task(const llm::Llm& model, const Body& body);

// How vectors are written.
struct VectorFormat {
  enum class Kind : uint8_t { kFloat, kBase64, kBytes, kBytesOnly };
  Kind kind = Kind::kFloat;
  std::string dtype = "float32";
  std::string endianness = "native";

  std::string bytes(std::span<const float> values) const;
};
ApiResult<VectorFormat> read_vector_format(const Body& body);
std::string base64(std::string_view bytes);
void write_floats(JsonWriter& w, std::span<const float> values);
// One vector as the format says: a list of numbers, or base64. REQUIRES: kFloat or kBase64.
void write_vector(JsonWriter& w, std::span<const float> values, const VectorFormat& format);

}  // namespace quire::api
