// SPDX-License-Identifier: Apache-2.0
// The client of a hub, Hugging Face-compatible or ModelScope: lists the files of a repository and makes their URLs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/hub/file_choice.h"
#include "cli/hub/http_client.h"

namespace quire::cli {

// The hub that is used without HF_ENDPOINT.
inline constexpr std::string_view kDefaultEndpoint = "https://huggingface.co";

struct HubRepository {
  std::string name;
  std::string commit;  // the revision when it was listed; all files are downloaded from it
  std::vector<HubFile> files;
};

// Whether the endpoint is ModelScope's, whose listing and addresses differ and whose main branch is called master.
bool is_modelscope(std::string_view endpoint);

// One hub and one identity on it. Its only state is its settings and a connection; not thread-safe.
class HubClient {
 public:
  // `endpoint` may have a trailing slash; `token` may be empty.
  static Result<HubClient> open(std::string endpoint, std::string token, HttpClient& http);

  // One attempt: the caller retries on kUnavailable.
  Result<HubRepository> list(const std::string& name, const std::string& revision);
  std::string listing_url(const std::string& name, const std::string& revision) const;
  std::string file_url(const HubRepository& repository, std::string_view path) const;
  const std::string& token() const { return token_; }
  const std::string& endpoint() const { return endpoint_; }

  // The sentence for an error status. `what` is the repository or "file of repository".
  Failure describe_status(const HttpReply& reply, const std::string& what) const;

 private:
  HubClient(std::string endpoint, std::string token, HttpClient& http)
      : endpoint_(std::move(endpoint)), token_(std::move(token)), http_(&http) {}
  std::string endpoint_;
  std::string token_;
  HttpClient* http_;
};

// Whether it is "name" or "owner/name" of letters, digits, '.', '_' and '-', with no part that begins with a dot, so
// that the name is also safe as a folder of the cache.
bool is_model_name(std::string_view name);

// Parses the hub's listing. An Error unless every path in it passes is_safe_path.
Result<HubRepository> parse_listing(std::string_view json_text, const std::string& name, const std::string& revision);
// The same for ModelScope's listing.
Result<HubRepository> parse_modelscope_listing(std::string_view json_text, const std::string& name,
                                               const std::string& revision);

}  // namespace quire::cli
