// SPDX-License-Identifier: Apache-2.0
// quire verify and quire replay: re-run the answers of replies or of a recorded file, and compare their receipts.
#include <atomic>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>

#include "backend/cpu/isa_level.h"
#include "base/file.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/replay_url.h"
#include "cli/shown_reply.h"
#include "llm/receipt_check.h"

namespace quire::cli {
namespace {

constexpr int kExitUnchecked = 2;  // something could not be checked

struct CheckFlags {
  std::vector<std::string> files;
  std::string model;
  llm::Options options;
  int64_t concurrency = 1;
  ReplayTarget target = {};  // of quire replay --url; without a URL, the model is loaded here
};

// A receipt and where it was found.
struct Found {
  std::string place;  // "reply.json, choice 0"
  llm::ReadReceipt read;
  std::optional<ShownReply> reply = {};  // none: a line of --record-requests
};

// The streams whose events are being read, by the answer's id and the index of the choice.
using Streams = std::map<std::string, ShownReply>;

const json::Value* string_at(const json::Value& object, const char* name) {
  const json::Value* value = object.find(name);
  return value != nullptr && value->is_string() ? value : nullptr;
}

void append_string(const json::Value& object, const char* name, std::string& to) {
  if (const json::Value* text = string_at(object, name)) to += text->as_string();
}

// The calls of a message; those of a piece of a stream have an index, and go on where the last piece ended.
void append_calls(const json::Value& message, std::vector<ShownCall>& to) {
  const json::Value* calls = message.find("tool_calls");
  if (calls == nullptr || !calls->is_array()) return;
  for (const json::Value& call : calls->as_array()) {
    const json::Value* index = call.find("index");
    const bool goes_on = index != nullptr && index->is_int() && index->as_int() + 1 == static_cast<int64_t>(to.size());
    if (!goes_on) to.emplace_back();
    const json::Value* function = call.find("function");
    if (function == nullptr) continue;
    append_string(*function, "name", to.back().name);
    append_string(*function, "arguments", to.back().arguments);
  }
}

// Adds what the choice shows. A stream of chat begins with the role.
void append_choice(const json::Value& choice, bool begins, ShownReply& to) {
  const json::Value* message = choice.find("message");
  const json::Value* delta = choice.find("delta");
  if (const json::Value* shown = message != nullptr ? message : delta) {
    if (begins && message == nullptr && shown->find("role") == nullptr) to.partial = true;
    to.chat = true;
    append_string(*shown, "content", to.text);
    append_string(*shown, "reasoning", to.reasoning);
    append_calls(*shown, to.calls);
  } else {
    append_string(choice, "text", to.text);
  }
  append_string(choice, "finish_reason", to.finish);
}

Status add_receipt(const json::Value& value, const std::string& place, std::vector<Found>& out) {
  auto read = llm::read_receipt(value);
  if (!read.ok()) return Error{read.error().code, place + ": " + read.error().message};
  out.push_back({place, std::move(*read)});
  return {};
}

// Adds the receipts of a reply, of an event of a stream, or of a line of --record-requests; or of a list of these.
Status add_receipts(const json::Value& value, const std::string& place, Streams& streams, std::vector<Found>& out) {
  if (value.is_array()) {
    size_t number = 0;
    for (const json::Value& one : value.as_array()) {
      QUIRE_TRY(add_receipts(one, place + "[" + std::to_string(number++) + "]", streams, out));
    }
    return {};
  }
  if (value.find("logits") != nullptr) return add_receipt(value, place, out);
  if (const json::Value* receipts = value.find("receipts"); receipts != nullptr && receipts->is_array()) {
    size_t index = 0;
    for (const json::Value& receipt : receipts->as_array()) {
      QUIRE_TRY(add_receipt(receipt, place + ", choice " + std::to_string(index++), out));
    }
  }
  const json::Value* choices = value.find("choices");
  if (choices == nullptr || !choices->is_array()) return {};
  const json::Value* id = string_at(value, "id");
  for (const json::Value& choice : choices->as_array()) {
    const json::Value* receipt = choice.find("receipt");
    const json::Value* index = choice.find("index");
    const int64_t number = index != nullptr && index->is_int() ? index->as_int() : 0;
    const std::string key = (id == nullptr ? "" : id->as_string()) + "\n" + std::to_string(number);
    const auto [stream, begins] = streams.try_emplace(key);
    append_choice(choice, begins, stream->second);
    if (receipt == nullptr) continue;
    QUIRE_TRY(add_receipt(*receipt, place + ", choice " + std::to_string(number), out));
    out.back().reply = std::move(stream->second);
    streams.erase(stream);
  }
  return {};
}

// A line of a file with one JSON value per line, or of a stream of events; nothing if it has no value.
Result<json::Value> read_line(std::string_view line) {
  if (line.starts_with("data:")) line.remove_prefix(5);
  const size_t first = line.find_first_not_of(" \t\r");
  if (first == std::string_view::npos || line[first] == ':' || line.substr(first).starts_with("[DONE]")) {
    return json::Value();
  }
  return json::parse(line.substr(first));
}

Status read_lines(std::istream& input, const std::string& name, std::vector<Found>& out) {
  std::string line, whole;
  Streams streams;
  for (size_t number = 1; std::getline(input, line); ++number) {
    auto value = read_line(line);
    if (!value.ok() && out.empty() && number == 1) {  // one value that is written on several lines
      whole = line + "\n" + std::string(std::istreambuf_iterator<char>(input), {});
      auto parsed = json::parse(whole);
      if (!parsed.ok()) return in_file(name, parsed.error());
      return add_receipts(*parsed, name, streams, out);
    }
    const std::string place = name + ", line " + std::to_string(number);
    if (!value.ok()) return corrupt({"'", name, "', line ", number, ": ", value.error().message});
    QUIRE_TRY(add_receipts(*value, number == 1 && input.peek() == EOF ? name : place, streams, out));
  }
  return {};
}

Result<std::vector<Found>> read_files(const std::vector<std::string>& names) {
  std::vector<Found> all;
  for (const std::string& name : names) {
    std::vector<Found> found;
    if (name == "-") {
      QUIRE_TRY(read_lines(std::cin, "standard input", found));
    } else {
      std::ifstream file(name);
      if (!file || file.peek() == EOF) {
        return not_found({"'", name, "' cannot be read or is empty; give a file with replies"});
      }
      QUIRE_TRY(read_lines(file, name, found));
    }
    if (found.empty()) {
      return invalid_argument({"'", name, "' has no receipt; send requests with \"return_receipt\": true, or record ",
                               "them with quire serve --record-requests FILE"});
    }
    std::move(found.begin(), found.end(), std::back_inserter(all));
  }
  return all;
}

// The ISA level for receipts of `wanted`; among levels with the same bits, the best that this machine has.
std::string isa_for(const std::string& wanted) {
  std::string plain;
  for (const cpu::Isa isa : cpu::available_isas()) {
    const std::string name = cpu::name(isa);
    if (name == wanted) return wanted;
    if (name == "avx2" || name == "avx512" || plain.empty()) plain = name;
  }
  return wanted == "avx2" || wanted == "avx512" ? plain : wanted;
}

// The options with which the receipts were made, except for flags that were given.
llm::Options options_for(const CLI::App& command, const CheckFlags& flags, const llm::Origin& origin) {
  llm::Options options = flags.options;
  const auto set = [&](const char* flag, std::string& to, const std::string& value) {
    if (command.get_option(flag)->count() == 0) to = value;
  };
  set("--device", options.device, origin.backend);
  if (origin.backend == "cpu") set("--cpu-isa", options.cpu_isa, isa_for(origin.isa));
  set("--dtype", options.dtype, origin.dtype);
  set("--kv-cache-dtype", options.kv_cache_dtype, origin.kv_cache_dtype);
  set("--max-model-len", options.max_model_len, std::to_string(origin.max_model_len));
  options.model = flags.model.empty() ? origin.model : flags.model;
  return options;
}

// One run of quire verify or quire replay.
class Check {
 public:
  Check(const CLI::App& command, const CheckFlags& flags, bool is_replay)
      : command_(command), flags_(flags), is_replay_(is_replay) {}

  int run(std::vector<Found> found) {
    catch_interrupts();
    found_ = std::move(found);
    if (!flags_.target.url.empty()) {
      std::vector<Found*> all;
      for (Found& one : found_) all.push_back(&one);
      check_there(all);
    } else {
      for (const auto& [key, group] : groups()) check_here(group);
    }
    if (interrupted_) return kExitInterrupted;
    if (is_replay_) {
      std::printf("%zu receipts, %lld at a time: %lld have the same bits, %lld differ, %lld could not be checked\n",
                  found_.size(), static_cast<long long>(flags_.concurrency), static_cast<long long>(same_),
                  static_cast<long long>(differ_), static_cast<long long>(unchecked_));
    }
    return differ_ > 0 ? kExitFailure : unchecked_ > 0 ? kExitUnchecked : 0;
  }

 private:
  // Receipts by what needs a model of its own.
  std::map<std::string, std::vector<Found*>> groups() {
    std::map<std::string, std::vector<Found*>> out;
    for (Found& one : found_) {
      const llm::Origin& o = one.read.receipt.origin;
      std::string key;
      for (const std::string& part : {o.model, o.backend, o.isa, o.dtype, o.kv_cache_dtype}) key += part + "\n";
      out[key + std::to_string(o.max_model_len)].push_back(&one);
    }
    return out;
  }

  void show(const Found& found, const llm::Verdict& verdict) {
    using Kind = llm::Verdict::Kind;
    ++(verdict.kind == Kind::kSame ? same_ : verdict.kind == Kind::kDiffers ? differ_ : unchecked_);
    if (is_replay_ && verdict.kind == Kind::kSame) return;
    std::printf("%s: %s\n", found.place.c_str(), verdict.text.c_str());
    std::fflush(stdout);
  }

  bool stop() {
    if (take_interrupt()) interrupted_ = true;
    return interrupted_;
  }

  static std::vector<llm::ReadReceipt> receipts_of(const std::vector<Found*>& group) {
    std::vector<llm::ReadReceipt> receipts;
    for (Found* found : group) receipts.push_back(std::move(found->read));
    return receipts;
  }

  // Loads the model of the group and re-runs its receipts.
  void check_here(const std::vector<Found*>& group) {
    if (stop()) return;
    auto loaded = load_llm(options_for(command_, flags_, group[0]->read.receipt.origin));
    if (!loaded.ok()) {
      const std::string hint = flags_.model.empty() ? "; --model names the model" : "";
      std::fprintf(stderr, "quire: %s%s\n", loaded.error().message.c_str(), hint.c_str());
      for (const Found* one : group) show(*one, llm::unchecked(one->read, "the model could not be loaded"));
      return;
    }
    const std::vector<llm::ReadReceipt> receipts = receipts_of(group);
    llm::check_receipts(
        **loaded, receipts, flags_.concurrency,
        [&](size_t index, const llm::Verdict& verdict) { show(*group[index], verdict); }, [&] { return stop(); },
        [&](size_t index, const std::string& text) -> llm::TextFindings {
          const std::optional<ShownReply>& reply = group[index]->reply;
          if (!reply) return {};
          const llm::Receipt& receipt = receipts[index].receipt;
          if (std::string why = finish_difference(*reply, receipt); !why.empty()) return {std::move(why), ""};
          return check_shown(*reply, receipt, text, **loaded);
        });
  }

  // Sends all receipts to the server at --url.
  void check_there(const std::vector<Found*>& all) {
    ReplayTarget target = flags_.target;
    target.model = flags_.model;
    target.concurrency = flags_.concurrency;
    const std::vector<llm::ReadReceipt> receipts = receipts_of(all);
    const auto done = replay_at(
        target, receipts,
        [&](size_t index, llm::Verdict verdict) {
          const std::optional<ShownReply>& reply = all[index]->reply;
          if (reply && verdict.kind == llm::Verdict::Kind::kSame) {
            const std::string why = finish_difference(*reply, receipts[index].receipt);
            if (why.empty()) {
              verdict.text += "; the text of the reply was not checked";
            } else {
              verdict = {llm::Verdict::Kind::kDiffers, why};
            }
          }
          show(*all[index], verdict);
        },
        [&] { return stop(); });
    if (done.ok()) return;
    report(done.error());
    unchecked_ += static_cast<int64_t>(all.size());
  }

  const CLI::App& command_;
  const CheckFlags& flags_;
  const bool is_replay_;
  std::vector<Found> found_;
  std::atomic<bool> interrupted_ = false;
  int64_t same_ = 0, differ_ = 0, unchecked_ = 0;
};

int check(const CLI::App& command, const CheckFlags& flags, bool is_replay) {
  auto found = read_files(flags.files);
  if (found.ok()) return Check(command, flags, is_replay).run(std::move(*found));
  report(found.error());
  return kExitUnchecked;
}

CLI::App* add_check(CLI::App& app, int& exit_code, const char* name, const char* doc, const char* file,
                    const char* file_doc, const std::shared_ptr<CheckFlags>& flags, bool is_replay) {
  CLI::App* command = app.add_subcommand(name, doc);
  command->add_option(file, flags->files, file_doc)->required()->type_name(kFile);
  command->add_option("--model", flags->model, "The model, if the name in the receipt does not mean it here")
      ->envname("QUIRE_MODEL")
      ->type_name(kModelValue);
  add_model_flags(*command, flags->options);
  add_lora_flag(*command, flags->options);
  command->footer(
      "Flags that are left out have the values of the receipts. The exit code is 0 if all bits are the same, 1 if some "
      "differ, and 2 if something could not be checked.");
  command->callback([command, flags, is_replay, &exit_code] { exit_code = check(*command, *flags, is_replay); });
  return command;
}

}  // namespace

void add_verify(CLI::App& app, int& exit_code) {
  add_check(app, exit_code, "verify", "Re-run answers alone and check their receipts", "REPLY",
            "Files with replies that have receipts: JSON, one JSON value per line, or a stream of events; -: standard "
            "input",
            std::make_shared<CheckFlags>(), false);
}

void add_replay(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<CheckFlags>();
  flags->concurrency = 8;
  CLI::App* command =
      add_check(app, exit_code, "replay", "Re-run recorded answers, many at a time, and check their receipts", "TRACE",
                "Files of quire serve --record-requests, or replies as for quire verify", flags, true);
  command->add_option("--concurrency", flags->concurrency, "Answers that are under way at the same time")
      ->envname(env_name("--concurrency"))
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  command
      ->add_option("--url", flags->target.url,
                   "Send the requests to the server at this address, such as "
                   "http://127.0.0.1:8000, instead of loading the model here")
      ->envname(env_name("--url"));
  command->add_option("--api-key", flags->target.api_key, "Key for that server")->envname(env_name("--api-key"));
  add_switch(*command, "--insecure", flags->target.insecure, "Accept any TLS certificate of that server");
}

}  // namespace quire::cli
