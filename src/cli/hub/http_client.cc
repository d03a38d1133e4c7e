// SPDX-License-Identifier: Apache-2.0
// HTTP with libcurl's easy interface.
#include "cli/hub/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/env.h"
#include "base/strings.h"

namespace quire::cli {
namespace {

constexpr int kMaxRedirects = 8;
constexpr long kConnectSeconds = 15;
constexpr size_t kMaxHeaders = 200;

using Url = std::unique_ptr<CURLU, decltype(&curl_url_cleanup)>;

std::string url_part(CURLU* url, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, flags) != CURLUE_OK || text == nullptr) return "";
  std::string out(text);
  curl_free(text);
  return out;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

bool is_redirect(long status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

// A header's value must not be able to add further headers.
bool is_header_safe(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](unsigned char c) { return c >= 0x20 && c != 0x7f; });
}

void init_curl_once() {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
}

// A list of header lines for libcurl.
class HeaderList {
 public:
  ~HeaderList() { curl_slist_free_all(list_); }
  HeaderList() = default;
  HeaderList(const HeaderList&) = delete;
  HeaderList& operator=(const HeaderList&) = delete;
  void add(const std::string& line) {
    curl_slist* longer = curl_slist_append(list_, line.c_str());
    QUIRE_CHECK(longer != nullptr, "out of memory");
    list_ = longer;
  }
  curl_slist* get() const { return list_; }

 private:
  curl_slist* list_ = nullptr;
};

// Called by curl at least once a second; a result other than 0 ends the transfer.
int is_cancelled(void* flag, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return *static_cast<const std::atomic<bool>*>(flag) ? 1 : 0;
}

}  // namespace

// The state that the callbacks of one get() share.
struct HttpClient::Exchange {
  HttpReply reply;
  const BodySink* sink = nullptr;
  std::optional<Error> stopped;  // the sink's error
};

const std::string* HttpReply::header(const std::string& lower_name) const {
  const auto found = headers.find(lower_name);
  return found == headers.end() ? nullptr : &found->second;
}

HttpClient::HttpClient(int stall_seconds, const std::atomic<bool>* cancelled)
    : curl_(nullptr), stall_seconds_(stall_seconds), cancelled_(cancelled) {
  init_curl_once();
  curl_ = curl_easy_init();
  QUIRE_CHECK(curl_ != nullptr, "libcurl returned no handle");
}

HttpClient::~HttpClient() {
  curl_easy_cleanup(static_cast<CURL*>(curl_));
}

size_t HttpClient::on_header(char* data, size_t size, size_t count, void* exchange) {
  auto& reply = static_cast<Exchange*>(exchange)->reply;
  const std::string_view line = trimmed({data, size * count});
  if (line.starts_with("HTTP/")) {
    // A new reply begins (after a redirect or "100 Continue").
    reply.status = 0;
    const size_t space = line.find(' ');
    if (space != std::string_view::npos)
      reply.status = std::strtol(std::string(line.substr(space)).c_str(), nullptr, 10);
    std::erase_if(reply.headers, [](const auto& header) { return !header.first.starts_with("x-"); });
    return size * count;
  }
  const size_t colon = line.find(':');
  if (colon != std::string_view::npos && reply.headers.size() < kMaxHeaders) {
    reply.headers[ascii_lower(std::string(trimmed(line.substr(0, colon))))] =
        std::string(trimmed(line.substr(colon + 1)));
  }
  return size * count;
}

size_t HttpClient::on_body(char* data, size_t size, size_t count, void* exchange) {
  auto& state = *static_cast<Exchange*>(exchange);
  const size_t bytes = size * count;
  if (is_redirect(state.reply.status)) return bytes;
  const Status taken = (*state.sink)(state.reply, {data, bytes});
  if (taken.ok()) return bytes;
  state.stopped = taken.error();
  return bytes == 0 ? 1 : 0;  // any value other than `bytes` makes libcurl stop
}

Status HttpClient::perform(Exchange& exchange, const HttpRequest& request, const std::string& url, bool send_token) {
  CURL* curl = static_cast<CURL*>(curl_);
  curl_easy_reset(curl);
  HeaderList headers;
  if (send_token) headers.add("Authorization: Bearer " + request.token);
  if (request.range_from > 0) {
    headers.add("Range: bytes=" + std::to_string(request.range_from) + "-");
    if (!request.if_range.empty()) headers.add("If-Range: " + request.if_range);
  }
  char why[CURL_ERROR_SIZE] = "";
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);  // get() follows redirects, so that it decides who gets the token
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "quire/0.1.0");
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(stall_seconds_));
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 256L << 10);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &HttpClient::on_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &exchange);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &HttpClient::on_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &exchange);
  if (cancelled_ != nullptr) {
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &is_cancelled);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, cancelled_);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  }
  // The curl program reads these variables, but the library does not.
  if (const auto bundle = env("CURL_CA_BUNDLE")) curl_easy_setopt(curl, CURLOPT_CAINFO, bundle->c_str());
  const CURLcode code = curl_easy_perform(curl);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, nullptr);
  if (exchange.stopped) return *exchange.stopped;
  if (code == CURLE_OK) return {};
  if (code == CURLE_ABORTED_BY_CALLBACK) return Error{ErrorCode::kCancelled, "the download was cancelled"};
  const std::string reason = why[0] != '\0' ? why : curl_easy_strerror(code);
  return unavailable({"no response from ", url_origin(url), ": ", reason});
}

Result<HttpReply> HttpClient::get(const HttpRequest& request, const BodySink& sink) {
  if (!is_header_safe(request.token)) return invalid_argument("the token contains a control character");
  const std::string first = url_origin(request.url);
  if (first.empty()) return invalid_argument({"'", request.url, "' is not an http or https address"});
  // An ETag that could split a header is dropped, and then the range is not requested either.
  HttpRequest checked = request;
  if (!is_header_safe(checked.if_range)) {
    checked.if_range.clear();
    checked.range_from = 0;
  }
  Exchange exchange;
  exchange.sink = &sink;
  std::string url = request.url;
  bool send_token = !request.token.empty();
  for (int hop = 0; hop <= kMaxRedirects; ++hop) {
    QUIRE_TRY(perform(exchange, checked, url, send_token));
    if (!is_redirect(exchange.reply.status)) return std::move(exchange.reply);
    const std::string* location = exchange.reply.header("location");
    if (location == nullptr) return corrupt({url_origin(url), " redirects without a location"});
    const std::string next = url_join(url, *location);
    const std::string origin = url_origin(next);
    if (origin.empty()) return corrupt({url_origin(url), " redirects to an address that is not http or https"});
    if (first.starts_with("https:") && !origin.starts_with("https:")) {
      return corrupt({url_origin(url), " redirects from https to plain http (", origin, "), which is not allowed"});
    }
    send_token =
        send_token && origin == first;  // after leaving the host, it is not sent again even if a redirect leads back
    url = next;
  }
  return corrupt({first, " redirects more than ", kMaxRedirects, " times"});
}

std::string url_origin(const std::string& url) {
  Url parsed(curl_url(), &curl_url_cleanup);
  if (curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) return "";
  const std::string scheme = ascii_lower(url_part(parsed.get(), CURLUPART_SCHEME));
  const std::string host = ascii_lower(url_part(parsed.get(), CURLUPART_HOST));
  const std::string port = url_part(parsed.get(), CURLUPART_PORT, CURLU_DEFAULT_PORT);
  if ((scheme != "http" && scheme != "https") || host.empty()) return "";
  return scheme + "://" + host + ":" + port;
}

std::string url_join(const std::string& base, const std::string& location) {
  Url parsed(curl_url(), &curl_url_cleanup);
  if (curl_url_set(parsed.get(), CURLUPART_URL, base.c_str(), 0) != CURLUE_OK) return "";
  // libcurl resolves a relative URL against the URL that was set before.
  if (curl_url_set(parsed.get(), CURLUPART_URL, location.c_str(), CURLU_URLENCODE) != CURLUE_OK) return "";
  return url_part(parsed.get(), CURLUPART_URL);
}

std::string url_encode(std::string_view text, std::string_view keep) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  for (const unsigned char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '.' || c == '_' || c == '~' || keep.find(static_cast<char>(c)) != std::string_view::npos;
    if (plain) {
      out += static_cast<char>(c);
    } else {
      out += '%';
      out += kDigits[c >> 4];
      out += kDigits[c & 15];
    }
  }
  return out;
}

}  // namespace quire::cli
