// SPDX-License-Identifier: Apache-2.0
// The hub's listing of files, and its errors.
#include "cli/hub/hub_client.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <set>
#include <utility>

#include "base/json.h"
#include "cli/hub/digest.h"

namespace quire::cli {
namespace {

constexpr size_t kMaxListingBytes = size_t{64} << 20;

bool is_name_part(std::string_view part) {
  if (part.empty() || part.size() > 96 || part.front() == '.' || part.front() == '-') return false;
  return std::all_of(part.begin(), part.end(), [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  });
}

// A file of a listing; `key` has its path.
Result<HubFile> parse_path(const json::Value& entry, const char* key, const std::string& name) {
  HubFile file;
  const json::Value* path = entry.find(key);
  if (path == nullptr || !path->is_string()) {
    return corrupt({"the hub's listing of ", name, " has a file without a name (", key, ")"});
  }
  file.path = path->as_string();
  if (!is_safe_path(file.path)) {
    return corrupt({"the hub's listing of ", name, " has a file outside of its folder ('", file.path,
                    "'): nothing was downloaded"});
  }
  return file;
}

// The branch that quire calls main by default.
std::string modelscope_revision(const std::string& revision) {
  return revision == "main" ? "master" : revision;
}

void set_size(const json::Value* size, HubFile& file) {
  if (size == nullptr || !size->is_int() || size->as_int() < 0) return;
  file.size = static_cast<uint64_t>(size->as_int());
  file.size_known = true;
}

// One entry of "siblings": path, size, and its digest of either kind.
Result<HubFile> parse_file(const json::Value& entry, const std::string& name) {
  QUIRE_ASSIGN(HubFile file, parse_path(entry, "rfilename", name));
  const json::Value* lfs = entry.find("lfs");
  const bool is_large = lfs != nullptr && lfs->is_object();
  set_size(is_large && lfs->find("size") != nullptr ? lfs->find("size") : entry.find("size"), file);
  const json::Value* hex = is_large ? lfs->find("sha256") : entry.find("blobId");
  if (is_large && hex == nullptr) hex = lfs->find("oid");
  if (hex != nullptr && hex->is_string()) file.digest = digest_from_hex(hex->as_string());
  return file;
}

}  // namespace

Result<HubClient> HubClient::open(std::string endpoint, std::string token, HttpClient& http) {
  while (!endpoint.empty() && endpoint.back() == '/') endpoint.pop_back();
  if (url_origin(endpoint).empty()) {
    return invalid_argument({"HF_ENDPOINT is '", endpoint, "', which is not an http or https address"});
  }
  return HubClient(std::move(endpoint), std::move(token), http);
}

Result<HubRepository> HubClient::list(const std::string& name, const std::string& revision) {
  HttpRequest request;
  request.url = listing_url(name, revision);
  request.token = token_;
  std::string body;
  const auto sink = [&](const HttpReply& reply, std::string_view piece) -> Status {
    if (reply.status != 200) return {};
    if (body.size() + piece.size() > kMaxListingBytes) {
      return corrupt({"the hub's listing of ", name, " is larger than ", kMaxListingBytes, " bytes"});
    }
    body += piece;
    return {};
  };
  QUIRE_ASSIGN(const HttpReply reply, http_->get(request, sink));
  if (reply.status != 200) return describe_status(reply, name + " at revision '" + revision + "'");
  if (is_modelscope(endpoint_)) return parse_modelscope_listing(body, name, modelscope_revision(revision));
  return parse_listing(body, name, revision);
}

std::string HubClient::listing_url(const std::string& name, const std::string& revision) const {
  const std::string model = url_encode(name, "/");
  if (!is_modelscope(endpoint_)) {
    return endpoint_ + "/api/models/" + model + "/revision/" + url_encode(revision) + "?blobs=true";
  }
  return endpoint_ + "/api/v1/models/" + model + "/repo/files?Revision=" + url_encode(modelscope_revision(revision)) +
         "&Recursive=true";
}

std::string HubClient::file_url(const HubRepository& repository, std::string_view path) const {
  const std::string pages = is_modelscope(endpoint_) ? "/models/" : "/";
  return endpoint_ + pages + url_encode(repository.name, "/") + "/resolve/" + url_encode(repository.commit) + "/" +
         url_encode(path, "/");
}

Failure HubClient::describe_status(const HttpReply& reply, const std::string& what) const {
  const std::string* error_code = reply.header("x-error-code");
  const std::string status = std::to_string(reply.status);
  if (error_code != nullptr && *error_code == "GatedRepo") {
    return invalid_argument({what, " is gated (", status, "): accept its licence on ", endpoint_,
                             " and give a token with HF_TOKEN or --token"});
  }
  if (reply.status == 401) {
    // A hub sends the same status for a repository that does not exist, so as not to reveal which repositories do.
    const std::string hint = token_.empty() ? "it does not exist, or it needs a token (HF_TOKEN or --token)"
                                            : "the token was not accepted, or it does not exist";
    return invalid_argument({"the hub denies access to ", what, " (401): ", hint});
  }
  if (reply.status == 403) {
    return invalid_argument({"the hub denies access to ", what,
                             " (403): it needs a token that may read it, and its licence "
                             "accepted on ",
                             endpoint_});
  }
  if (reply.status == 404) return not_found({"the hub has no ", what, " (404): check the name at ", endpoint_});
  if (reply.status == 429) return unavailable({"too many requests to the hub for ", what, " (429)"});
  if (reply.status >= 500) return unavailable({"the hub failed to serve ", what, " (", status, ")"});
  return corrupt({"the hub returned the unexpected status ", status, " for ", what});
}

bool is_model_name(std::string_view name) {
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos) return is_name_part(name);
  return is_name_part(name.substr(0, slash)) && is_name_part(name.substr(slash + 1));
}

Result<HubRepository> parse_listing(std::string_view json_text, const std::string& name, const std::string& revision) {
  auto parsed = json::parse(json_text, {.max_depth = 64, .max_bytes = kMaxListingBytes, .max_values = 4'000'000});
  if (!parsed.ok()) return corrupt({"the hub's listing of ", name, " is ", parsed.error().message});
  HubRepository repository;
  repository.name = name;
  const json::Value* commit = parsed->find("sha");
  repository.commit =
      commit != nullptr && commit->is_string() && !commit->as_string().empty() ? commit->as_string() : revision;
  const json::Value* siblings = parsed->find("siblings");
  if (siblings == nullptr || !siblings->is_array()) {
    return corrupt({"the hub's listing of ", name, " has no list of files (siblings)"});
  }
  std::set<std::string> seen;
  for (const auto& entry : siblings->as_array()) {
    QUIRE_ASSIGN(HubFile file, parse_file(entry, name));
    if (seen.insert(file.path).second) repository.files.push_back(std::move(file));
  }
  return repository;
}

bool is_modelscope(std::string_view endpoint) {
  std::string host = url_origin(std::string(endpoint));  // "https://www.modelscope.cn:443"
  host = host.substr(0, host.rfind(':'));
  for (const std::string_view domain : {"modelscope.cn", "modelscope.ai"}) {
    if (!host.ends_with(domain)) continue;
    const char before = host[host.size() - domain.size() - 1];
    if (before == '/' || before == '.') return true;
  }
  return false;
}

// {"Code": 200, "Data": {"Files": [{"Path", "Size", "Sha256", "Type": "blob" or "tree"}, ...]}, "Success": true}
Result<HubRepository> parse_modelscope_listing(std::string_view json_text, const std::string& name,
                                               const std::string& revision) {
  auto parsed = json::parse(json_text, {.max_depth = 64, .max_bytes = kMaxListingBytes, .max_values = 4'000'000});
  if (!parsed.ok()) return corrupt({"the hub's listing of ", name, " is ", parsed.error().message});
  const json::Value* success = parsed->find("Success");
  if (success != nullptr && success->is_bool() && !success->as_bool()) {
    const json::Value* message = parsed->find("Message");
    return not_found({"the hub has no ", name, " at revision '", revision, "': ",
                      (message != nullptr && message->is_string() ? message->as_string() : "it gives no reason")});
  }
  const json::Value* data = parsed->find("Data");
  const json::Value* files = data != nullptr ? data->find("Files") : nullptr;
  if (files == nullptr || !files->is_array()) {
    return corrupt({"the hub's listing of ", name, " has no list of files (Data.Files)"});
  }
  HubRepository repository{name, revision, {}};
  std::set<std::string> seen;
  for (const json::Value& entry : files->as_array()) {
    const json::Value* type = entry.find("Type");
    if (type != nullptr && type->is_string() && type->as_string() == "tree") continue;
    QUIRE_ASSIGN(HubFile file, parse_path(entry, "Path", name));
    set_size(entry.find("Size"), file);
    const json::Value* hex = entry.find("Sha256");
    if (hex != nullptr && hex->is_string()) file.digest = digest_from_hex(hex->as_string());
    if (seen.insert(file.path).second) repository.files.push_back(std::move(file));
  }
  return repository;
}

}  // namespace quire::cli
