// SPDX-License-Identifier: Apache-2.0
// quire list, rm and ps: the models on this machine, and those of a running server.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>

#include "base/strings.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/hub/http_client.h"
#include "cli/hub/model_cache.h"
#include "cli/hub/pull_record.h"
#include "kv/memory_plan.h"
#include "llm/load.h"

namespace quire::cli {
namespace {

namespace fs = std::filesystem;

// Prints rows in columns that are as wide as their longest word; the first row is the head.
void print_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - row[i].size() + 2, ' ');
    }
    while (line.ends_with(' ')) line.pop_back();
    std::printf("%s\n", line.c_str());
  }
}

// The type that most bytes of the weights have, and the family; the sentence of the Error if the files are no model.
struct Description {
  std::string type = "?", family = "?", error;
};

Description describe_model(const fs::path& path) {
  Description out;
  llm::Options options;
  options.model = path;
  const auto files = llm::open_files(options);
  if (!files.ok()) {
    out.error = files.error().message;
    return out;
  }
  out.family = files->config.family;
  out.type = gguf_quant(path.filename().string());
  if (!out.type.empty()) return out;
  std::map<std::string, size_t> bytes;
  for (const std::string& tensor_name : files->source->names()) {
    const weights::TensorRef* tensor = files->source->find(tensor_name);
    if (tensor != nullptr) bytes[name(tensor->dtype)] += tensor->data.size();
  }
  const auto most =
      std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  out.type = most == bytes.end() ? "?" : most->first;
  return out;
}

struct ListFlags {
  std::string models_dir;
  bool json = false;
};

int list_models(const ListFlags& flags) {
  json::Array all;
  const auto add = [&](const LoadableModel& model, const char* where, bool complete) {
    json::Value row{json::Object{}};
    row.set("name", model.name);
    row.set("path", model.path.string());
    row.set("where", where);
    row.set("bytes", static_cast<int64_t>(model.bytes));
    row.set("complete", complete);
    const Description found = complete ? describe_model(model.path) : Description();
    row.set("type", found.type);
    row.set("family", found.family);
    if (!found.error.empty()) row.set("error", found.error);
    all.push_back(std::move(row));
  };
  for (const LoadableModel& model : list_loadable_models(models_folder())) add(model, "cache", true);
  for (const CachedModel& model : list_cached_models()) {
    if (!model.complete) add({model.name, model.folder, model.bytes}, "cache", false);
  }
  if (!flags.models_dir.empty()) {
    std::error_code failed;
    if (!fs::is_directory(flags.models_dir, failed)) {
      return report(not_found({"--models-dir '", flags.models_dir, "' is not a folder"}));
    }
    for (const LoadableModel& model : list_loadable_models(flags.models_dir)) add(model, "models-dir", true);
  }
  if (flags.json) {
    json::Value out{json::Object{}};
    out.set("models", std::move(all));
    std::printf("%s\n", json::dump(out, 2).c_str());
    return 0;
  }
  if (all.empty()) {
    std::printf("No models are on this machine; get one with: quire pull OWNER/NAME\n");
    return 0;
  }
  std::vector<std::vector<std::string>> rows = {{"NAME", "SIZE", "TYPE", "FAMILY", "WHERE"}};
  for (const json::Value& row : all) {
    std::string where = row.find("where")->as_string();
    if (!row.find("complete")->as_bool()) where += " (partly downloaded)";
    if (const json::Value* error = row.find("error")) where += " (" + error->as_string() + ")";
    rows.push_back({row.find("name")->as_string(), human_bytes(static_cast<uint64_t>(row.find("bytes")->as_int())),
                    row.find("type")->as_string(), row.find("family")->as_string(), where});
  }
  print_table(rows);
  return 0;
}

struct RemoveFlags {
  std::string model;
  bool yes = false;
};

bool confirmed(const std::string& question) {
  std::printf("%s [y/N] ", question.c_str());
  std::fflush(stdout);
  std::string line;
  std::getline(std::cin, line);
  line = ascii_lower(line);
  return line == "y" || line == "yes";
}

int remove_model(const RemoveFlags& flags) {
  auto found = find_in_cache(flags.model);
  if (!found.ok()) return report(found.error());
  const std::string what = found->name + " (" + human_bytes(found->bytes) + ", " + found->path.string() + ")";
  if (!flags.yes) {
    if (::isatty(STDIN_FILENO) == 0) return report(invalid_argument({"quire rm would delete ", what, "; give --yes"}));
    if (!confirmed("Delete " + what + "?")) {
      std::printf("Nothing was deleted.\n");
      return kExitFailure;
    }
  }
  if (const Status removed = remove_from_cache(*found); !removed.ok()) return report(removed.error());
  std::printf("Deleted %s\n", what.c_str());
  return 0;
}

struct PsFlags {
  std::string base_url = "http://127.0.0.1:8000";
  std::string api_key;
  bool json = false;
};

Result<json::Value> ask_server(const PsFlags& flags) {
  constexpr int kStallSeconds = 10;
  constexpr size_t kMaxAnswer = size_t{64} << 20;
  std::string base = flags.base_url;
  while (base.ends_with('/')) base.pop_back();
  if (url_origin(base).empty()) {
    return invalid_argument(
        {"--base-url is '", flags.base_url, "'; it must be an http or https address, such as http://127.0.0.1:8000"});
  }
  HttpClient client(kStallSeconds);
  std::string body;
  const auto sink = [&](const HttpReply&, std::string_view piece) -> Status {
    if (body.size() + piece.size() > kMaxAnswer) return corrupt({"the answer of ", base, " is too long"});
    body += piece;
    return {};
  };
  HttpRequest request;
  request.url = base + "/ps";
  request.token = flags.api_key;
  const auto got = client.get(request, sink);
  if (!got.ok()) return Error{got.error().code, got.error().message + "; give the server's address with --base-url"};
  const HttpReply& reply = got.value();
  if (reply.status == 401 || reply.status == 403) {
    return invalid_argument({"the server at ", base, " wants a key: give it with --api-key or QUIRE_API_KEY"});
  }
  auto answer = json::parse(body);
  const json::Value* models = answer.ok() ? answer->find("models") : nullptr;
  if (reply.status != 200 || models == nullptr || !models->is_array()) {
    return unavailable(
        {base, " is no quire server that answers /ps (status ", reply.status, "); give its address with --base-url"});
  }
  return std::move(*answer);
}

int show_server(const PsFlags& flags) {
  auto answer = ask_server(flags);
  if (!answer.ok()) return report(answer.error());
  if (flags.json) {
    std::printf("%s\n", json::dump(*answer, 2).c_str());
    return 0;
  }
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "STATE", "REQUESTS", "WAITING", "PAGES USED", "MEMORY", "IDLE"}};
  const auto text = [](const json::Value& row, const char* key) {
    const json::Value* value = row.find(key);
    return value == nullptr || value->is_null() ? std::string("-")
           : value->is_string()                 ? value->as_string()
                                                : json::dump(*value);
  };
  for (const json::Value& row : answer->find("models")->as_array()) {
    const json::Value* memory = row.find("memory_bytes");
    const json::Value* idle = row.find("idle_s");
    const bool has_pages = row.find("pages") != nullptr;
    rows.push_back(
        {text(row, "name"), text(row, "state"), text(row, "requests"), text(row, "waiting"),
         has_pages ? text(row, "pages_used") + "/" + text(row, "pages") : "-",
         memory != nullptr && memory->is_int() && memory->as_int() > 0 ? kv::format_bytes(memory->as_int()) : "-",
         idle != nullptr && idle->is_number()
             ? std::to_string(static_cast<int64_t>(std::clamp(idle->as_double(), 0.0, 1e15))) + " s"
             : "-"});
  }
  print_table(rows);
  return 0;
}

}  // namespace

void add_list(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ListFlags>();
  CLI::App* command = app.add_subcommand("list", "List the models on this machine, with size, type and family");
  command->add_option("--models-dir", flags->models_dir, "Also list the models of this folder")
      ->type_name(kFolder)
      ->envname(env_name("--models-dir"));
  add_switch(*command, "--json", flags->json, "Print a JSON object");
  command->callback([flags, &exit_code] { exit_code = list_models(*flags); });
}

void add_rm(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<RemoveFlags>();
  CLI::App* command = app.add_subcommand("rm", "Delete a model from the cache");
  command->add_option("MODEL", flags->model, "A cached name, with :QUANT for one of several GGUF files")
      ->type_name(kModelValue)
      ->required();
  add_switch(*command, "--yes", flags->yes, "Do not ask");
  command->callback([flags, &exit_code] { exit_code = remove_model(*flags); });
}

void add_ps(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<PsFlags>();
  CLI::App* command = app.add_subcommand("ps", "Show the models of a running server: states, requests, pages, memory");
  command->add_option("--base-url", flags->base_url, "Address of the server")
      ->envname(env_name("--base-url"))
      ->capture_default_str();
  command->add_option("--api-key", flags->api_key, "Key of the server")->envname(env_name("--api-key"));
  add_switch(*command, "--json", flags->json, "Print a JSON object");
  command->callback([flags, &exit_code] { exit_code = show_server(*flags); });
}

}  // namespace quire::cli
