// SPDX-License-Identifier: Apache-2.0
// Answers a question with the C++ API: generate_cpp MODEL.gguf "Why is the sky blue?"
#include <cstdio>

#include "llm/llm.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: generate_cpp MODEL QUESTION\n");
    return 2;
  }
  quire::llm::Options options;
  options.model = argv[1];
  auto llm = quire::llm::Llm::load(options);
  if (!llm.ok()) {
    std::fprintf(stderr, "%s\n", llm.error().message.c_str());
    return 1;
  }
  quire::text::ChatRequest chat;
  chat.messages = quire::json::Array{quire::json::Object{{"role", "user"}, {"content", argv[2]}}};
  quire::llm::GenerateRequest request;
  request.prompt = std::move(chat);
  request.params = (*llm)->default_params();
  request.params.temperature = 0;
  request.params.max_tokens = 64;
  if (auto id = (*llm)->submit(std::move(request)); !id.ok()) {
    std::fprintf(stderr, "%s\n", id.error().message.c_str());
    return 1;
  }
  while ((*llm)->has_work()) {
    for (const quire::llm::Delta& delta : (*llm)->step()) std::fputs(delta.text.c_str(), stdout);
    std::fflush(stdout);
  }
  std::puts("");
}
