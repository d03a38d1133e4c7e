// SPDX-License-Identifier: Apache-2.0
// quire_logits writes the logits of every position of token ids as raw floats [positions, vocab], for accuracy
// comparisons.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <map>
#include <optional>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/flags.h"
#include "llm/load.h"

namespace {

using namespace quire;

int fail(const std::string& message) {
  std::fprintf(stderr, "quire_logits: %s\n", message.c_str());
  return 1;
}

// A list of ids is one prompt; a list of lists is several prompts, which run together.
Result<std::vector<std::vector<int32_t>>> read_prompts(const std::string& file) {
  QUIRE_ASSIGN(const std::string text, read_file(file));
  QUIRE_ASSIGN(json::Value all, json::parse(text));
  if (!all.is_array() || all.as_array().empty()) return invalid_argument("'" + file + "' must hold a JSON list");
  if (!all.as_array()[0].is_array()) all = json::Array{std::move(all)};
  std::vector<std::vector<int32_t>> prompts;
  for (const json::Value& list : all.as_array()) {
    if (!list.is_array()) return invalid_argument("'" + file + "' must hold one list of ids, or lists of ids alone");
    prompts.emplace_back();
    for (const json::Value& id : list.as_array()) {
      if (!id.is_int()) return invalid_argument("'" + file + "' must hold integers");
      prompts.back().push_back(static_cast<int32_t>(id.as_int()));
    }
  }
  return prompts;
}

// Rows are written in the order of prompts and positions. Those of the first prompt arrive in that order, so that one
// long prompt needs no memory; those of the others are kept until then.
class Rows {
 public:
  explicit Rows(const std::string& file) : out_(file, std::ios::binary) {}
  void take(engine::RequestId id, int64_t position, std::span<const float> row) {
    if (!first_) first_ = id;
    if (id == *first_) {
      write(row);
    } else {
      waiting_[{id, position}].assign(row.begin(), row.end());
    }
  }
  bool finish() {
    for (const auto& [place, row] : waiting_) write(row);
    out_.flush();
    return out_.good();
  }

 private:
  void write(std::span<const float> row) {
    out_.write(reinterpret_cast<const char*>(row.data()), static_cast<std::streamsize>(row.size_bytes()));
  }
  std::ofstream out_;
  std::optional<engine::RequestId> first_;
  std::map<std::pair<engine::RequestId, int64_t>, std::vector<float>> waiting_;
};

Status generate(engine::Engine& engine, std::vector<std::vector<int32_t>> prompts, int64_t max_tokens) {
  for (std::vector<int32_t>& prompt : prompts) {
    engine::Request request;
    request.prompt = std::move(prompt);
    request.params.temperature = 0;
    request.params.ignore_eos = true;
    request.params.max_tokens = max_tokens;
    request.params.prompt_logprobs = 0;  // so that every row is computed
    QUIRE_TRY(engine.add(std::move(request)));
  }
  while (engine.has_work()) {
    for (const engine::Output& output : engine.step()) {
      if (output.error) return *output.error;
    }
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Writes the logits of every position of a prompt and of its greedy answer."};
  llm::Options options;
  std::string model, tokens_file, out_file, drafts_file;
  int64_t chunk = 0, max_tokens = 1;
  app.add_option("--model", model)->required();
  app.add_option("--tokens", tokens_file, "JSON list of token ids, or of several such lists")->required();
  app.add_option("--out", out_file, "raw float32 rows, prompt after prompt")->required();
  app.add_option("--chunk", chunk, "tokens in a step");
  app.add_option("--max-tokens", max_tokens,
                 "greedy tokens after each prompt; the last of them is not fed, so a prompt of P has P + N - 1 rows");
  app.add_option("--drafts", drafts_file,
                 "raw float32 rows: with --speculative-config and a model that drafts, the first logits of each draft");
  cli::add_model_flags(app, options);
  CLI11_PARSE(app, argc, argv);
  init_logging("warning");
  options.model = model;
  if (chunk > 0) options.max_num_batched_tokens = chunk;

  auto prompts = read_prompts(tokens_file);
  if (!prompts.ok()) return fail(prompts.error().message);
  if (options.max_num_seqs == 0) options.max_num_seqs = static_cast<int64_t>(prompts->size());
  auto files = llm::open_files(options);
  if (!files.ok()) return fail(files.error().message);
  auto backend = llm::make_backend(options);
  if (!backend.ok()) return fail(backend.error().message);
  auto loaded = llm::load_engine(options, *files, std::move(*backend), {});
  if (!loaded.ok()) return fail(loaded.error().message);
  Rows rows(out_file);
  loaded->engine->set_logits_tap([&](engine::RequestId id, int32_t, int64_t position, std::span<const float> row) {
    rows.take(id, position, row);
  });
  std::map<std::pair<engine::RequestId, int64_t>, std::vector<float>> drafts;
  if (!drafts_file.empty()) {
    if (!loaded->engine->options().speculation.with_model()) return fail("--drafts needs a model that drafts");
    loaded->engine->set_draft_tap([&](engine::RequestId id, int32_t, int64_t position, std::span<const float> row) {
      drafts.try_emplace({id, position}, row.begin(), row.end());
    });
  }
  auto status = generate(*loaded->engine, std::move(*prompts), max_tokens);
  if (!status.ok()) return fail(status.error().message);
  Rows drafted(drafts_file.empty() ? "/dev/null" : drafts_file);
  for (const auto& [place, row] : drafts) drafted.take(place.first, place.second, row);
  if (!drafted.finish()) return fail("cannot write '" + drafts_file + "'");
  return rows.finish() ? 0 : fail("cannot write '" + out_file + "'");
}
