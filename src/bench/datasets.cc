// SPDX-License-Identifier: Apache-2.0
// Datasets that are read from files: ShareGPT, custom JSONL, sonnet, BurstGPT.
#include "bench/datasets.h"

#include <algorithm>
#include <cmath>

#include "base/file.h"

namespace quire::bench {
namespace {

constexpr size_t kMaxFile = size_t{4} << 30;

Failure in_file(const std::string& path, const Error& error) {
  return Error{error.code, "'" + path + "': " + error.message};
}

int64_t length(const text::Tokenizer& tokenizer, std::string_view text) {
  return static_cast<int64_t>(tokenizer.encode(text).size());
}

std::string piece_of(const text::Tokenizer& tokenizer, std::optional<int32_t> id) {
  return id ? std::string(tokenizer.piece(*id).value_or("")) : std::string();
}

// One user message in the model's chat template.
Result<std::string> templated(const llm::TextSide& side, const DatasetOptions& options, const std::string& text) {
  text::ChatRequest chat;
  json::Value message{json::Object{}};
  message.set("role", "user");
  message.set("content", text);
  chat.messages = json::Array{std::move(message)};
  chat.kwargs = options.chat_template_kwargs;
  chat.bos_token = piece_of(*side.tokenizer, side.tokenizer->special_ids().bos);
  chat.eos_token = piece_of(*side.tokenizer, side.tokenizer->special_ids().eos);
  QUIRE_ASSIGN(text::ChatPrompt prompt, side.chat_template->render(chat));
  return std::move(prompt.text);
}

// Repeats randomly drawn samples until there are enough, as vLLM does.
Status oversample(const DatasetOptions& options, Generators& generators, std::vector<Sample>& list) {
  if (list.empty()) return invalid_argument({"'", options.path, "' has no usable entry"});
  if (options.no_oversample) return {};
  if (static_cast<int64_t>(list.size()) < options.num_prompts) generators.random = PythonRandom(options.seed);
  const std::vector<Sample> taken = list;
  while (static_cast<int64_t>(list.size()) < options.num_prompts) list.push_back(generators.random.choice(taken));
  return {};
}

Result<Samples> sharegpt(const DatasetOptions& options, const llm::TextSide& side, Generators& generators) {
  if (side.tokenizer == nullptr && !options.sharegpt_output_len) {
    return invalid_argument("sharegpt without a tokenizer needs --sharegpt-output-len: the answers cannot be counted");
  }
  QUIRE_ASSIGN(const std::string text, read_file(options.path, kMaxFile));
  auto data = json::parse(text, {.max_bytes = kMaxFile});
  if (!data.ok()) return in_file(options.path, data.error());
  if (!data->is_array()) return invalid_argument({"'", options.path, "' must be a list of conversations"});
  std::vector<const json::Array*> conversations;
  for (const json::Value& entry : data->as_array()) {
    const json::Value* turns = entry.find("conversations");
    if (turns != nullptr && turns->is_array() && turns->as_array().size() >= 2) {
      conversations.push_back(&turns->as_array());
    }
  }
  generators.random = PythonRandom(options.seed);
  if (!options.disable_shuffle) generators.random.shuffle(conversations);
  Samples out;
  for (const json::Array* turns : conversations) {
    if (static_cast<int64_t>(out.list.size()) >= options.num_prompts) break;
    const json::Value* ask = (*turns)[0].find("value");
    const json::Value* answer = (*turns)[1].find("value");
    if (ask == nullptr || answer == nullptr || !ask->is_string() || !answer->is_string()) continue;
    Sample sample;
    sample.prompt = ask->as_string();
    if (side.tokenizer != nullptr) {
      sample.prompt_len = length(*side.tokenizer, ask->as_string());
      sample.output_len =
          options.sharegpt_output_len ? *options.sharegpt_output_len : length(*side.tokenizer, answer->as_string());
      const bool short_answer = !options.sharegpt_output_len && sample.output_len < 4;
      if (sample.prompt_len < 4 || short_answer || sample.prompt_len > 1024 ||
          sample.prompt_len + sample.output_len > 2048) {
        continue;
      }
    } else {
      sample.output_len = *options.sharegpt_output_len;
    }
    out.list.push_back(std::move(sample));
  }
  QUIRE_TRY(oversample(options, generators, out.list));
  return out;
}

std::vector<std::string_view> lines_of(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end);
    while (!keep_ends && !line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
    out.push_back(line);
  }
  return out;
}

Result<Samples> custom(const DatasetOptions& options, const llm::TextSide& side, Generators& generators) {
  const bool with_template = !options.skip_chat_template && !options.chat_endpoint;
  if (with_template && side.tokenizer == nullptr) {
    return invalid_argument("the custom dataset needs a tokenizer, or --skip-chat-template");
  }
  if (with_template && !side.chat_template) {
    return invalid_argument("the model has no chat template; give --skip-chat-template to send prompts as they are");
  }
  QUIRE_ASSIGN(const std::string text, read_file(options.path, kMaxFile));
  struct Row {
    std::string prompt;
    int64_t output_tokens = 0;
  };
  std::vector<Row> rows;
  int64_t number = 0;
  for (const std::string_view line : lines_of(text, false)) {
    ++number;
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    const auto wrong = [&](const std::string& what) {
      return invalid_argument({"'", options.path, "', line ", number, ": ", what});
    };
    auto value = json::parse(line);
    if (!value.ok()) return wrong(value.error().message);
    const json::Value* prompt = value->find("prompt");
    if (prompt == nullptr || !prompt->is_string()) return wrong("needs a string field `prompt`");
    Row row{prompt->as_string(), options.custom_output_len};
    if (options.custom_output_len == -1) {
      const json::Value* tokens = value->find("output_tokens");
      if (tokens == nullptr || !tokens->is_int() || tokens->as_int() < 1) {
        return wrong("--custom-output-len is -1, so the row needs `output_tokens`, a whole number of 1 or more");
      }
      row.output_tokens = tokens->as_int();
    }
    rows.push_back(std::move(row));
  }
  generators.random = PythonRandom(options.seed);
  if (!options.disable_shuffle) generators.random.shuffle(rows);
  Samples out;
  for (Row& row : rows) {
    if (static_cast<int64_t>(out.list.size()) >= options.num_prompts) break;
    Sample sample;
    if (with_template) {
      QUIRE_ASSIGN(row.prompt, templated(side, options, row.prompt));
    }
    if (side.tokenizer != nullptr) sample.prompt_len = length(*side.tokenizer, row.prompt);
    sample.prompt = std::move(row.prompt);
    sample.output_len = row.output_tokens;
    out.list.push_back(std::move(sample));
  }
  QUIRE_TRY(oversample(options, generators, out.list));
  return out;
}

Result<Samples> sonnet(const DatasetOptions& options, const llm::TextSide& side, Generators& generators) {
  QUIRE_ASSIGN(const std::string text, read_file(options.path, kMaxFile));
  const std::vector<std::string_view> lines = lines_of(text, true);
  if (lines.empty()) return invalid_argument({"'", options.path, "' is empty; it must have the lines of a poem"});
  const text::Tokenizer& tokenizer = *side.tokenizer;
  const auto formatted = [&](const std::string& prompt) -> Result<std::string> {
    if (!side.chat_template) return prompt;
    return templated(side, options, prompt);
  };
  double total = 0;
  for (const std::string_view line : lines) total += static_cast<double>(length(tokenizer, line));
  const double average = total / static_cast<double>(lines.size());
  const std::string base = "Pick as many lines as you can from these poem lines:\n";
  QUIRE_ASSIGN(const std::string base_formatted, formatted(base));
  const int64_t offset = length(tokenizer, base_formatted);
  if (options.sonnet_input_len <= offset) {
    return invalid_argument({"--sonnet-input-len is ", options.sonnet_input_len, "; it must be above the ", offset,
                             " tokens of the instruction"});
  }
  const auto lines_for = [&](int64_t tokens) {
    return std::max(0.0, std::nearbyint(static_cast<double>(tokens - offset) / average));
  };
  const size_t prefix_lines = std::min(lines.size(), static_cast<size_t>(lines_for(options.sonnet_prefix_len)));
  const size_t all_lines = static_cast<size_t>(lines_for(options.sonnet_input_len));
  if (all_lines < prefix_lines) return invalid_argument("--sonnet-prefix-len is above --sonnet-input-len");
  std::string head = base;
  for (size_t i = 0; i < prefix_lines; ++i) head += lines[i];
  Samples out;
  int64_t tries = 0;
  while (static_cast<int64_t>(out.list.size()) < options.num_prompts) {
    if (++tries > 1000 + 100 * options.num_prompts) {
      return invalid_argument("no prompt of poem lines fits into --sonnet-input-len tokens; raise it");
    }
    std::string prompt = head;
    for (size_t i = prefix_lines; i < all_lines; ++i) prompt += lines[generators.random.choices_index(lines.size())];
    QUIRE_ASSIGN(std::string whole, formatted(prompt));
    Sample sample;
    sample.prompt_len = length(tokenizer, whole);
    if (sample.prompt_len > options.sonnet_input_len) continue;
    sample.prompt = options.chat_endpoint ? std::move(prompt) : std::move(whole);
    sample.output_len = options.sonnet_output_len;
    out.list.push_back(std::move(sample));
  }
  return out;
}

Result<Samples> burstgpt(const DatasetOptions& options, const llm::TextSide& side) {
  QUIRE_ASSIGN(const Csv csv, read_csv(options.path));
  const int model = csv.column({"Model"});
  const int request = csv.column({"Request tokens"});
  const int response = csv.column({"Response tokens"});
  if (model < 0 || request < 0 || response < 0) {
    return invalid_argument({"'", options.path, "' must have the columns Model, Request tokens and Response tokens"});
  }
  std::vector<std::pair<int64_t, int64_t>> rows;
  for (const auto& row : csv.rows) {
    const int64_t in = std::atoll(row[static_cast<size_t>(request)].c_str());
    const int64_t out = std::atoll(row[static_cast<size_t>(response)].c_str());
    if (row[static_cast<size_t>(model)] == "GPT-4" && out > 0 && in >= 0 && in < (1 << 24)) rows.emplace_back(in, out);
  }
  if (rows.empty()) return invalid_argument({"'", options.path, "' has no GPT-4 row with a response"});
  NumpyLegacy own(options.seed);  // pandas' sample(random_state=seed)
  const int64_t available = static_cast<int64_t>(rows.size());
  std::vector<int64_t> chosen;
  if (options.num_prompts <= available) {
    chosen = own.choice_without_replacement(available, options.num_prompts);
  } else {
    for (int64_t i = 0; i < options.num_prompts; ++i) chosen.push_back(own.randint(0, available));
  }
  Samples out;
  const int64_t vocab = base_vocab_size(*side.tokenizer);
  for (size_t i = 0; i < chosen.size(); ++i) {
    const auto& [in, answer] = rows[static_cast<size_t>(chosen[i])];
    std::vector<int32_t> ids;
    for (int64_t j = 0; j < in; ++j) ids.push_back(static_cast<int32_t>((static_cast<int64_t>(i) + j) % vocab));
    out.list.push_back({side.tokenizer->decode(ids, false), in, answer, 0});
  }
  return out;
}

}  // namespace

int Csv::column(std::initializer_list<const char*> any_of) const {
  for (const char* wanted : any_of) {
    const auto it = std::find(names.begin(), names.end(), wanted);
    if (it != names.end()) return static_cast<int>(it - names.begin());
  }
  return -1;
}

Result<Csv> read_csv(const std::string& path) {
  QUIRE_ASSIGN(const std::string text, read_file(path, kMaxFile));
  const auto cells = [](std::string_view line) {
    std::vector<std::string> out;
    for (size_t at = 0; at <= line.size();) {
      const size_t end = std::min(line.find(',', at), line.size());
      out.emplace_back(line.substr(at, end - at));
      at = end + 1;
    }
    return out;
  };
  Csv out;
  int64_t number = 0;
  for (const std::string_view line : lines_of(text, false)) {
    ++number;
    if (line.empty()) continue;
    if (out.names.empty()) {
      out.names = cells(line);
      continue;
    }
    out.rows.push_back(cells(line));
    if (out.rows.back().size() < out.names.size()) {
      return invalid_argument(
          {"'", path, "', line ", number, ": has fewer than the ", out.names.size(), " columns of the first line"});
    }
  }
  if (out.names.empty()) return invalid_argument({"'", path, "' is empty"});
  return out;
}

Result<Samples> make_samples(const DatasetOptions& options, const llm::TextSide& side, Generators& generators) {
  if (options.num_prompts < 1 || options.num_prompts > 100'000'000) {
    return invalid_argument({"--num-prompts is ", options.num_prompts, "; it must be 1 to 100000000"});
  }
  const bool from_file = options.name != "random" && options.name != "prefix_repetition";
  if (from_file && options.path.empty()) {
    return invalid_argument({"--dataset-name ", options.name, " needs --dataset-path"});
  }
  if (options.name == "sharegpt") return sharegpt(options, side, generators);
  if (options.name == "custom") return custom(options, side, generators);
  if (side.tokenizer == nullptr) {
    return invalid_argument(
        {"--dataset-name ", options.name, " needs a tokenizer: give --tokenizer or --model a local one"});
  }
  if (options.name == "sonnet") return sonnet(options, side, generators);
  if (options.name == "burstgpt") return burstgpt(options, side);
  if (options.name == "random") return random_samples(options, *side.tokenizer);
  if (options.name == "prefix_repetition") return prefix_repetition_samples(options, *side.tokenizer, generators);
  if (options.name == "timed_trace") return trace_samples(options, *side.tokenizer);
  return invalid_argument({"--dataset-name is '", options.name,
                           "'; choose sharegpt, random, sonnet, custom, prefix_repetition, burstgpt or timed_trace"});
}

}  // namespace quire::bench
