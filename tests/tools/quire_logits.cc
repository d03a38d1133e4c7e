// SPDX-License-Identifier: Apache-2.0
// quire_logits: teacher-forced logits of a list of token ids, as raw floats [tokens, vocab]; for accuracy comparisons.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/flags.h"
#include "llm/load.h"

namespace {

int fail(const std::string& message) {
  std::fprintf(stderr, "quire_logits: %s\n", message.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace quire;
  CLI::App app{"Writes the logits of every position of a list of token ids."};
  llm::Options options;
  std::string model, tokens_file, out_file;
  int64_t chunk = 0;
  app.add_option("--model", model)->required();
  app.add_option("--tokens", tokens_file, "JSON list of token ids")->required();
  app.add_option("--out", out_file, "raw float32 rows")->required();
  app.add_option("--chunk", chunk, "tokens in a step");
  cli::add_model_flags(app, options);
  CLI11_PARSE(app, argc, argv);
  init_logging("warning");
  options.model = model;
  if (chunk > 0) options.max_num_batched_tokens = chunk;
  options.max_num_seqs = 1;

  auto text = read_file(tokens_file);
  if (!text.ok()) return fail(text.error().message);
  auto ids = json::parse(*text);
  if (!ids.ok() || !ids->is_array()) return fail("--tokens must be a JSON list");
  engine::Request request;
  for (const json::Value& id : ids->as_array()) request.prompt.push_back(static_cast<int32_t>(id.as_int()));
  request.params.temperature = 0;
  request.params.max_tokens = 1;
  request.params.prompt_logprobs = 0;

  auto files = llm::open_files(options);
  if (!files.ok()) return fail(files.error().message);
  auto backend = llm::make_backend(options);
  if (!backend.ok()) return fail(backend.error().message);
  auto loaded = llm::load_engine(options, *files, std::move(*backend), {});
  if (!loaded.ok()) return fail(loaded.error().message);
  engine::Engine& engine = *loaded->engine;
  std::ofstream out(out_file, std::ios::binary);
  engine.set_logits_tap([&](engine::RequestId, int32_t, int64_t, std::span<const float> row) {
    out.write(reinterpret_cast<const char*>(row.data()), static_cast<std::streamsize>(row.size_bytes()));
  });
  auto id = engine.add(std::move(request));
  if (!id.ok()) return fail(id.error().message);
  while (engine.has_work()) {
    for (const engine::Output& output : engine.step()) {
      if (output.error) return fail(output.error->message);
    }
  }
  out.flush();
  return out ? 0 : fail("cannot write '" + out_file + "'");
}
