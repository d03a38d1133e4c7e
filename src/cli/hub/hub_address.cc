// SPDX-License-Identifier: Apache-2.0
// Parses addresses of pages.
#include "cli/hub/hub_address.h"

#include <algorithm>
#include <vector>

#include "base/strings.h"
#include "cli/hub/file_choice.h"

namespace quire::cli {
namespace {

constexpr std::string_view kPublicHosts[] = {"huggingface.co", "www.huggingface.co", "hf.co"};
constexpr size_t kLongest = 2048;

bool is_public(std::string_view host) {
  return std::find(std::begin(kPublicHosts), std::end(kPublicHosts), host) != std::end(kPublicHosts);
}

std::string_view without_scheme(std::string_view text) {
  const size_t at = text.find("://");
  return at == std::string_view::npos ? text : text.substr(at + 3);
}

std::string host_of(std::string_view text) {
  const std::string_view rest = without_scheme(text);
  return ascii_lower(rest.substr(0, rest.find_first_of("/?#")));
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// "refs%2Fpr%2F1" -> "refs/pr/1".
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
    if (low < 0) {
      out += text[i];
      continue;
    }
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

std::vector<std::string> parts_of(std::string_view path) {
  std::vector<std::string> out;
  while (!path.empty()) {
    const size_t slash = std::min(path.find('/'), path.size());
    if (slash > 0) out.push_back(percent_decoded(path.substr(0, slash)));
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return out;
}

bool is_kind(const std::string& word) {
  return word == "tree" || word == "blob" || word == "resolve" || word == "raw";
}

}  // namespace

bool is_hub_address(std::string_view text) {
  return text.starts_with("https://") || text.starts_with("http://") ||
         (is_public(host_of(text)) && text.find('/') != std::string_view::npos);
}

Result<HubAddress> parse_hub_address(std::string_view text, std::string_view endpoint) {
  const std::string shown(text.substr(0, kLongest));
  if (text.size() > kLongest) return invalid_argument({"the address '", shown.substr(0, 60), "...' is too long"});
  const std::string host = host_of(text);
  if (!is_public(host) && host != host_of(endpoint)) {
    return invalid_argument({"'", shown,
                             "' is not on the configured hub; set HF_ENDPOINT to that hub, such as https://", host,
                             ", or give owner/name"});
  }
  std::string_view path = without_scheme(text);
  path.remove_prefix(std::min(path.find('/'), path.size()));
  path = path.substr(0, path.find_first_of("?#"));
  const std::vector<std::string> parts = parts_of(path);
  const Error wrong =
      invalid_argument({"'", shown, "' is not the page of a model, which looks like https://", host, "/owner/name"});
  if (parts.empty()) return wrong;
  if (parts[0] == "datasets" || parts[0] == "spaces" || parts[0] == "collections") {
    return invalid_argument({"'", shown, "' is a page of ", parts[0], "; quire pulls models"});
  }
  HubAddress out;
  out.name = parts[0];
  size_t at = 1;
  if (at < parts.size() && !is_kind(parts[at])) out.name += "/" + parts[at++];
  if (at == parts.size()) return out;
  if (!is_kind(parts[at])) return out;  // /discussions, /commits/main and so on mean the repository
  out.is_folder = parts[at++] == "tree";
  if (at == parts.size()) return wrong;
  out.revision = parts[at++];
  for (; at < parts.size(); ++at) out.path += (out.path.empty() ? "" : "/") + parts[at];
  if (!out.path.empty() && !is_safe_path(out.path)) return wrong;
  return out;
}

}  // namespace quire::cli
