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

// One entry of "siblings": path, size, and its digest of either kind.
Result<HubFile> parse_file(const json::Value& entry, const std::string& name) {
  HubFile file;
  const json::Value* path = entry.find("rfilename");
  if (path == nullptr || !path->is_string()) {
    return corrupt("the hub's listing of " + name + " has a file without a name (rfilename)");
  }
  file.path = path->as_string();
  if (!is_safe_path(file.path)) {
    return corrupt("the hub's listing of " + name + " has a file outside of its folder ('" + file.path +
                   "'): nothing was downloaded");
  }
  const json::Value* lfs = entry.find("lfs");
  const bool is_large = lfs != nullptr && lfs->is_object();
  const json::Value* size = is_large && lfs->find("size") != nullptr ? lfs->find("size") : entry.find("size");
  if (size != nullptr && size->is_int() && size->as_int() >= 0) {
    file.size = static_cast<uint64_t>(size->as_int());
    file.size_known = true;
  }
  const json::Value* hex = is_large ? lfs->find("sha256") : entry.find("blobId");
  if (is_large && hex == nullptr) hex = lfs->find("oid");
  if (hex != nullptr && hex->is_string()) file.digest = digest_from_hex(hex->as_string());
  return file;
}

}  // namespace

Result<HubClient> HubClient::open(std::string endpoint, std::string token, HttpClient& http) {
  while (!endpoint.empty() && endpoint.back() == '/') endpoint.pop_back();
  if (url_origin(endpoint).empty()) {
    return invalid_argument("HF_ENDPOINT is '" + endpoint + "', which is not an http or https address");
  }
  return HubClient(std::move(endpoint), std::move(token), http);
}

Result<HubRepository> HubClient::list(const std::string& name, const std::string& revision) {
  HttpRequest request;
  request.url =
      endpoint_ + "/api/models/" + url_encode(name, "/") + "/revision/" + url_encode(revision) + "?blobs=true";
  request.token = token_;
  std::string body;
  const auto sink = [&](const HttpReply& reply, std::string_view piece) -> Status {
    if (reply.status != 200) return {};
    if (body.size() + piece.size() > kMaxListingBytes) {
      return corrupt("the hub's listing of " + name + " is larger than " + std::to_string(kMaxListingBytes) + " bytes");
    }
    body += piece;
    return {};
  };
  QUIRE_ASSIGN(const HttpReply reply, http_->get(request, sink));
  if (reply.status != 200) return describe_status(reply, name + " at revision '" + revision + "'");
  return parse_listing(body, name, revision);
}

std::string HubClient::file_url(const HubRepository& repository, std::string_view path) const {
  return endpoint_ + "/" + url_encode(repository.name, "/") + "/resolve/" + url_encode(repository.commit) + "/" +
         url_encode(path, "/");
}

Error HubClient::describe_status(const HttpReply& reply, const std::string& what) const {
  const std::string* error_code = reply.header("x-error-code");
  const std::string status = std::to_string(reply.status);
  if (error_code != nullptr && *error_code == "GatedRepo") {
    return invalid_argument(what + " is gated (" + status + "): accept its licence on " + endpoint_ +
                            " and give a token with HF_TOKEN or --token");
  }
  if (reply.status == 401) {
    // A hub sends the same status for a repository that does not exist, so as not to reveal which repositories do.
    const std::string hint = token_.empty() ? "it does not exist, or it needs a token (HF_TOKEN or --token)"
                                            : "the token was not accepted, or it does not exist";
    return invalid_argument("the hub denies access to " + what + " (401): " + hint);
  }
  if (reply.status == 403) {
    return invalid_argument("the hub denies access to " + what +
                            " (403): it needs a token that may read it, and its licence "
                            "accepted on " +
                            endpoint_);
  }
  if (reply.status == 404) return not_found("the hub has no " + what + " (404): check the name at " + endpoint_);
  if (reply.status == 429) return unavailable("too many requests to the hub for " + what + " (429)");
  if (reply.status >= 500) return unavailable("the hub failed to serve " + what + " (" + status + ")");
  return corrupt("the hub returned the unexpected status " + status + " for " + what);
}

bool is_model_name(std::string_view name) {
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos) return is_name_part(name);
  return is_name_part(name.substr(0, slash)) && is_name_part(name.substr(slash + 1));
}

Result<HubRepository> parse_listing(std::string_view json_text, const std::string& name, const std::string& revision) {
  auto parsed = json::parse(json_text, {.max_depth = 64, .max_bytes = kMaxListingBytes, .max_values = 4'000'000});
  if (!parsed.ok()) return corrupt("the hub's listing of " + name + " is not valid JSON: " + parsed.error().message);
  HubRepository repository;
  repository.name = name;
  const json::Value* commit = parsed->find("sha");
  repository.commit =
      commit != nullptr && commit->is_string() && !commit->as_string().empty() ? commit->as_string() : revision;
  const json::Value* siblings = parsed->find("siblings");
  if (siblings == nullptr || !siblings->is_array()) {
    return corrupt("the hub's listing of " + name + " has no list of files (siblings)");
  }
  std::set<std::string> seen;
  for (const auto& entry : siblings->as_array()) {
    QUIRE_ASSIGN(HubFile file, parse_file(entry, name));
    if (seen.insert(file.path).second) repository.files.push_back(std::move(file));
  }
  return repository;
}

}  // namespace quire::cli
