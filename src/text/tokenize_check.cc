// SPDX-License-Identifier: Apache-2.0
// A test tool: encodes and decodes in bulk, so that Python tests can compare whole corpora with the reference.
//
// usage: quire_tokenize_check FILE < requests.jsonl
// FILE is a tokenizer.json, a .model, a folder or a .gguf. Each line of standard input is one request:
//   {"text": "...", "special": bool, "parse": bool}  ->  {"ids": [...]}
//   {"text": ..., "origins": [[begin, end, origin]], "template": "..."}  ->  the same, where these bytes of the text
//   came from a request and the markers are those of the template
//   {"bytes": "hex", ...}                            ->  the same for raw bytes
//   {"ids": [...], "skip": bool}                     ->  {"text": "...", "stream": true when push and flush gave the
//   same}
//   {"bench": "...", "seconds": s}                   ->  {"bytes_per_second": ...}
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "text/detokenizer.h"
#include "text/gguf_vocab.h"
#include "text/tokenizer.h"
#include "weights/gguf.h"

namespace quire::text {
namespace {

Result<TokenizerPtr> load(const std::string& path) {
  if (std::filesystem::is_directory(path)) return load_tokenizer(path);
  const auto ends_with = [&](std::string_view tail) {
    return path.size() >= tail.size() && path.compare(path.size() - tail.size(), tail.size(), tail) == 0;
  };
  if (ends_with(".gguf")) {
    QUIRE_ASSIGN(const auto source, weights::GgufSource::open(path));
    return load_gguf_tokenizer(source->metadata());
  }
  QUIRE_ASSIGN(const std::string bytes, read_file(path));
  if (ends_with(".json")) return load_tokenizer_json(bytes, path);
  return load_sentencepiece_model(bytes, path);
}

std::string from_hex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

json::Value encode(const Tokenizer& tokenizer, const json::Value& request, const std::string& text) {
  EncodeOptions options;
  if (const json::Value* flag = request.find("special")) options.add_special_tokens = flag->as_bool();
  if (const json::Value* flag = request.find("parse")) options.parse_special = flag->as_bool();
  std::vector<OriginRange> origins;
  std::vector<int32_t> markers;
  if (const json::Value* ranges = request.find("origins")) {
    for (const json::Value& range : ranges->as_array()) {
      const json::Array& parts = range.as_array();
      origins.push_back({static_cast<size_t>(parts[0].as_int()), static_cast<size_t>(parts[1].as_int()),
                         static_cast<Origin>(parts[2].as_int())});
    }
    options.origins = origins;
  }
  if (const json::Value* source = request.find("template")) {
    markers = tokenizer.control_markers(source->as_string());
    options.markers = markers;
  }
  json::Array ids;
  for (const int32_t id : tokenizer.encode(text, options)) ids.emplace_back(static_cast<int64_t>(id));
  json::Value answer{json::Object{}};
  answer.set("ids", std::move(ids));
  return answer;
}

json::Value decode(const TokenizerPtr& tokenizer, const json::Value& request) {
  const json::Value* flag = request.find("skip");
  const bool skip = flag == nullptr || flag->as_bool();
  std::vector<int32_t> ids;
  for (const json::Value& id : request.find("ids")->as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
  const std::string text = tokenizer->decode(ids, skip);
  Detokenizer stream(tokenizer, skip);
  std::string joined;
  for (const int32_t id : ids) joined += stream.push(id);
  joined += stream.flush();
  json::Value answer{json::Object{}};
  answer.set("text", text);
  answer.set("stream", joined == text);
  return answer;
}

json::Value bench(const Tokenizer& tokenizer, const json::Value& request) {
  using Clock = std::chrono::steady_clock;
  const std::string& text = request.find("bench")->as_string();
  const double seconds = request.find("seconds")->as_double();
  const auto start = Clock::now();
  double elapsed = 0;
  size_t runs = 0;
  size_t tokens = 0;
  do {
    tokens += tokenizer.encode(text).size();
    ++runs;
    elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  } while (elapsed < seconds);
  json::Value answer{json::Object{}};
  answer.set("bytes_per_second", static_cast<double>(text.size() * runs) / elapsed);
  answer.set("tokens", static_cast<int64_t>(tokens / runs));
  return answer;
}

int run(const char* path) {
  const auto start = std::chrono::steady_clock::now();
  auto loaded = load(path);
  if (!loaded.ok()) {
    std::fprintf(stderr, "%s\n", loaded.error().message.c_str());
    return 1;
  }
  std::fprintf(stderr, "loaded in %.3f s\n",
               std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  const TokenizerPtr tokenizer = loaded.value();
  std::string line;
  while (std::getline(std::cin, line)) {
    auto request = json::parse(line);
    if (!request.ok()) {
      std::fprintf(stderr, "%s\n", request.error().message.c_str());
      return 1;
    }
    json::Value answer;
    if (const json::Value* text = request->find("text")) {
      answer = encode(*tokenizer, *request, text->as_string());
    } else if (const json::Value* bytes = request->find("bytes")) {
      answer = encode(*tokenizer, *request, from_hex(bytes->as_string()));
    } else if (request->find("ids") != nullptr) {
      answer = decode(tokenizer, *request);
    } else {
      answer = bench(*tokenizer, *request);
    }
    std::cout << json::dump(answer) << '\n' << std::flush;
  }
  return 0;
}

}  // namespace
}  // namespace quire::text

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: quire_tokenize_check TOKENIZER < requests.jsonl\n");
    return 2;
  }
  return quire::text::run(argv[1]);
}
