// SPDX-License-Identifier: Apache-2.0
// /v1/load_lora_adapter and /v1/unload_lora_adapter, and the table that they change.
#include "api/adapters.h"

#include <atomic>
#include <ctime>

#include "api/host.h"
#include "base/log.h"
#include "base/utf8.h"

namespace quire::api {
namespace {

ApiFailure wrong_input(std::string message, std::string param) {
  return ApiError{400, "InvalidUserInput", std::move(message), std::move(param)};
}

ApiStatus check_allowed(const ServiceOptions& options) {
  if (options.runtime_lora_updating) return Ok{};
  return not_found_error(
      "Adapters cannot be changed while this server runs: start it with --enable-lora and the environment variable "
      "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1.");
}

// The failures of files are the caller's: a bad adapter is a 400 and a missing one a 404.
ApiFailure adapter_error(const Error& error) {
  ApiError out = to_api_error(error);
  if (error.code == ErrorCode::kCorrupt || error.code == ErrorCode::kUnsupported) {
    out = {400, "BadRequestError", error.message, "lora_path"};
  }
  out.param = "lora_path";
  return out;
}

ApiResult<std::string> load_adapter(Service& service, const HttpRequest& request) {
  QUIRE_ASSIGN(const Body body, Body::parse(request.body, load_lora_adapter_schema()));
  QUIRE_TRY(check_allowed(service.options()));
  const std::string name = body.string("lora_name");
  if (service.names_a_model(name)) {
    return wrong_input("The name `" + name + "` is that of a base model; choose another one.", "lora_name");
  }
  const bool replace = body.boolean("load_inplace", false);
  const Error taken = invalid_argument(
      {"The LoRA adapter '", name, "' has already been loaded; set load_inplace to true to replace it."});
  const auto before = service.adapters().find(name);
  if (!replace && before) return wrong_input(taken.message, "lora_name");
  if (before && before->model != service.options().model_index) {
    return wrong_input("The LoRA adapter '" + name + "' belongs to another model of this server; unload it first.",
                       "lora_name");
  }
  const llm::NamedAdapter named = AdapterTable::make(name, body.string("lora_path"));
  auto adapter = service.model().adapters().read(named.path);
  if (!adapter.ok()) return adapter_error(adapter.error());
  service.model().adapters().put(named, std::move(*adapter));
  std::optional<AdapterTable::Entry> replaced;
  const AdapterTable::Entry entry{named, service.options().model_index, static_cast<int64_t>(std::time(nullptr))};
  if (!service.adapters().add(entry, replace, replaced)) {
    service.model().adapters().drop(named);
    return wrong_input(taken.message, "lora_name");
  }
  if (replaced) service.model().adapters().drop(replaced->named);
  log_info("Loaded the adapter {} from {}", name, named.path.string());
  return "Success: LoRA adapter '" + name + "' added successfully.";
}

ApiResult<std::string> unload_adapter(Host& host, const HttpRequest& request) {
  QUIRE_ASSIGN(const Body body, Body::parse(request.body, unload_lora_adapter_schema()));
  QUIRE_TRY(check_allowed(host.options()));
  const std::string name = body.string("lora_name");
  const auto removed = host.shared().adapters.remove(name);
  if (!removed)
    return not_found_error("The LoRA adapter '" + utf8::beginning(name, 200) + "' cannot be found.", "lora_name");
  host.each_loaded([&](size_t model, Service& service) {
    if (model == removed->model) service.model().adapters().drop(removed->named);
  });
  log_info("Unloaded the adapter {}", name);
  return "Success: LoRA adapter '" + name + "' removed successfully.";
}

void send_text(const HttpRequest& request, Reply& reply, ApiResult<std::string> text) {
  if (!text.ok()) return refuse(request, reply, text.error());
  reply.send(200, "text/plain; charset=utf-8", std::move(*text));
}

}  // namespace

llm::NamedAdapter AdapterTable::make(std::string name, std::filesystem::path path) {
  static std::atomic<uint64_t> registrations = 0;
  return {std::move(name), std::move(path), ++registrations};
}

bool AdapterTable::add(Entry entry, bool replace, std::optional<Entry>& replaced) {
  const std::lock_guard lock(mutex_);
  const std::string name = entry.named.name;
  const auto it = entries_.find(name);
  if (it != entries_.end() && !replace) return false;
  if (it != entries_.end()) replaced = it->second;
  entries_.insert_or_assign(name, std::move(entry));
  return true;
}

std::optional<AdapterTable::Entry> AdapterTable::remove(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(name);
  if (it == entries_.end()) return std::nullopt;
  Entry entry = std::move(it->second);
  entries_.erase(it);
  return entry;
}

std::optional<AdapterTable::Entry> AdapterTable::find(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(name);
  return it == entries_.end() ? std::nullopt : std::optional(it->second);
}

std::vector<AdapterTable::Entry> AdapterTable::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<Entry> out;
  for (const auto& [name, entry] : entries_) out.push_back(entry);
  return out;
}

void serve_load_lora_adapter(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  send_text(request, *reply, load_adapter(service, request));
}

void serve_unload_lora_adapter(Host& host, const HttpRequest& request, const ReplyPtr& reply) {
  send_text(request, *reply, unload_adapter(host, request));
}

}  // namespace quire::api
