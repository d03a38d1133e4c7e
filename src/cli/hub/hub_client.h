// SPDX-License-Identifier: Apache-2.0
// What quire asks of a Hugging Face-compatible hub: a repository's files, and where each can be had.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/hub/file_choice.h"
#include "cli/hub/http_client.h"

namespace quire::cli {

// The hub that users mean when they set no HF_ENDPOINT.
inline constexpr std::string_view kDefaultEndpoint = "https://huggingface.co";

struct HubRepository {
  std::string name;
  std::string commit;  // what the revision was when it was listed: every file is taken from this one
  std::vector<HubFile> files;
};

// One hub and one identity on it. Holds no state but its settings and a connection; not thread-safe.
class HubClient {
 public:
  // `endpoint` without a trailing slash or with; `token` may be empty.
  static Result<HubClient> open(std::string endpoint, std::string token, HttpClient& http);

  // One try: the caller repeats on kUnavailable.
  Result<HubRepository> list(const std::string& name, const std::string& revision);
  std::string file_url(const HubRepository& repository, std::string_view path) const;
  const std::string& token() const { return token_; }
  const std::string& endpoint() const { return endpoint_; }

  // The sentence for a status that is no success. `what` is the repository or "file of repository".
  Error describe_status(const HttpReply& reply, const std::string& what) const;

 private:
  HubClient(std::string endpoint, std::string token, HttpClient& http)
      : endpoint_(std::move(endpoint)), token_(std::move(token)), http_(&http) {}
  std::string endpoint_;
  std::string token_;
  HttpClient* http_;
};

// "name" or "owner/name" of letters, digits, '.', '_' and '-', no part beginning with a dot: so a name is also safe as
// a folder of the cache.
bool is_model_name(std::string_view name);

// Reads the reply of the hub's listing. Every path in it has passed is_safe_path, or it is an Error.
Result<HubRepository> parse_listing(std::string_view json_text, const std::string& name, const std::string& revision);

}  // namespace quire::cli
