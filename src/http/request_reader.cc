// SPDX-License-Identifier: Apache-2.0
// Beast's request parser, and the checks that it leaves to its user.
#include "http/request_reader.h"

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"

namespace quire::http {

namespace {

namespace beast = boost::beast;
namespace bhttp = boost::beast::http;
using Parser = bhttp::request_parser<bhttp::string_body>;

// A chunk's size line and the trailers must fit in this.
constexpr size_t kMaxChunkLine = size_t{16} << 10;

std::string_view view(beast::string_view text) {
  return {text.data(), text.size()};
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Resolves %XX; false when an escape is malformed or a control character comes out.
bool decode_path(std::string_view text, std::string& out) {
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (i + 2 >= text.size()) return false;
      const int high = hex_value(text[i + 1]);
      const int low = hex_value(text[i + 2]);
      if (high < 0 || low < 0) return false;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
    out += c;
  }
  return utf8::is_valid(out);
}

}  // namespace

std::optional<Target> parse_target(std::string_view text, std::string_view root_path) {
  if (text == "*") return Target{"*", ""};
  // The absolute form, as a proxy sends it: the authority is not needed.
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!text.starts_with(scheme)) continue;
    const size_t slash = text.find_first_of("/?", scheme.size());
    text = slash == std::string_view::npos ? "/" : text.substr(slash);
    break;
  }
  Target target;
  const size_t question = text.find('?');
  if (question != std::string_view::npos) target.query = text.substr(question + 1);
  text = text.substr(0, text.find_first_of("?#"));
  if (text.empty() && question == 0) text = "/";
  if (!text.starts_with('/') || !decode_path(text, target.path)) return std::nullopt;
  while (root_path.ends_with('/')) root_path.remove_suffix(1);
  if (!root_path.empty() && target.path.starts_with(root_path)) {
    const std::string_view rest = std::string_view(target.path).substr(root_path.size());
    if (rest.empty()) {
      target.path = "/";
    } else if (rest.front() == '/') {
      target.path = std::string(rest);
    }
  }
  return target;
}

struct RequestReader::Impl {
  explicit Impl(const ReadLimits& reader_limits) : limits(&reader_limits) {
    parser.emplace();
    // Only a backstop: Beast counts the request line and the fields separately, feed() counts everything.
    parser->header_limit(static_cast<uint32_t>(limits->max_header_bytes));
    // Not the real limit yet: with it Beast would refuse a long body before we have seen the head.
    parser->body_limit(std::numeric_limits<uint64_t>::max());
  }

  Event bad(int status, std::string message) {
    bad_status = status;
    bad_message = std::move(message);
    return Event::kBad;
  }
  Event bad(const beast::error_code& error);
  Event check_head();

  const ReadLimits* limits;
  std::optional<Parser> parser;
  size_t header_bytes = 0;
  bool started = false;
  api::HttpRequest request;
  std::string method;
  bool head_only = false;
  bool expects_continue = false;
  int bad_status = 0;
  std::string bad_message;
};

RequestReader::Event RequestReader::Impl::bad(const beast::error_code& error) {
  if (error == bhttp::error::header_limit) {
    return bad(431, "The request's head is longer than " + std::to_string(limits->max_header_bytes) + " bytes.");
  }
  if (error == bhttp::error::body_limit) {
    return bad(413, "The request's body is longer than " + std::to_string(limits->max_body_bytes) + " bytes.");
  }
  return bad(400, "The bytes are not an HTTP request: " + error.message() + ".");
}

// Checks what RFC 9110 and 9112 require of a head and Beast does not check.
RequestReader::Event RequestReader::Impl::check_head() {
  const auto& message = parser->get();
  auto target = parse_target(view(message.target()), limits->root_path);
  if (!target) return bad(400, "The request's path is malformed.");
  request.path = std::move(target->path);
  request.query = std::move(target->query);
  method = std::string(view(message.method_string()));
  head_only = method == "HEAD";
  request.method = head_only ? "GET" : method;
  size_t hosts = 0;
  for (const auto& field : message) {
    request.headers.emplace_back(std::string(view(field.name_string())), std::string(view(field.value())));
    hosts += field.name() == bhttp::field::host ? 1 : 0;
  }
  if (request.headers.size() > limits->max_headers) {
    return bad(431, "The request has more than " + std::to_string(limits->max_headers) + " headers.");
  }
  // If a proxy and this server disagree on where a request ends, an attacker can smuggle a request into another
  // client's connection (RFC 9112, section 11.2). So only the plain forms are accepted.
  if (message.find(bhttp::field::transfer_encoding) != message.end()) {
    const std::string_view encoding = view(message[bhttp::field::transfer_encoding]);
    if (!parser->chunked() || !beast::iequals(beast::string_view(encoding.data(), encoding.size()), "chunked") ||
        message.version() == 10) {
      return bad(400, "Transfer-Encoding may only be \"chunked\", and not with HTTP/1.0.");
    }
  }
  if (hosts > 1 || (hosts == 0 && message.version() == 11)) {
    return bad(400, "The request must have one Host header.");
  }
  if (parser->content_length().value_or(0) > limits->max_body_bytes) return bad(bhttp::error::body_limit);
  parser->body_limit(limits->max_body_bytes);  // for chunks
  if (const std::string* expect = request.header("Expect")) {
    if (!beast::iequals(*expect, "100-continue"))
      return bad(417, "The only supported value of the Expect header is 100-continue.");
    expects_continue = message.version() == 11;
  }
  return Event::kHead;
}

RequestReader::RequestReader(const ReadLimits& limits) : impl_(std::make_unique<Impl>(limits)) {}
RequestReader::~RequestReader() = default;
RequestReader::RequestReader(RequestReader&&) noexcept = default;
RequestReader& RequestReader::operator=(RequestReader&&) noexcept = default;

RequestReader::Event RequestReader::feed(std::string_view bytes, size_t& consumed) {
  consumed = 0;
  Parser& parser = *impl_->parser;
  if (!impl_->started) {
    // Some clients end a body with a line break that they do not count; RFC 9112 lets a server skip it.
    while (consumed < bytes.size() && (bytes[consumed] == '\r' || bytes[consumed] == '\n')) ++consumed;
    if (consumed == bytes.size()) return Event::kNeedMore;
    impl_->started = true;
  }
  const auto put = [&](beast::error_code& error) {
    const size_t size = parser.put({bytes.data() + consumed, bytes.size() - consumed}, error);
    consumed += size;
    return size;
  };
  beast::error_code error;
  if (!parser.is_header_done()) {
    impl_->header_bytes += put(error);
    const bool waiting = error == bhttp::error::need_more;
    const size_t seen = impl_->header_bytes + (waiting ? bytes.size() - consumed : 0);
    if (seen > impl_->limits->max_header_bytes) return impl_->bad(bhttp::error::header_limit);
    if (waiting) return Event::kNeedMore;
    if (error) return impl_->bad(error);
    if (!parser.is_header_done()) return Event::kNeedMore;
    parser.eager(true);
    return impl_->check_head();
  }
  while (!parser.is_done()) {
    if (consumed == bytes.size()) return Event::kNeedMore;
    put(error);
    if (error == bhttp::error::need_more) {
      if (bytes.size() - consumed > kMaxChunkLine) return impl_->bad(400, "A chunk's size line is too long.");
      return Event::kNeedMore;
    }
    if (error) return impl_->bad(error);
  }
  impl_->request.body = std::move(parser.get().body());
  return Event::kDone;
}

bool RequestReader::started() const {
  return impl_->started;
}
api::HttpRequest& RequestReader::request() {
  return impl_->request;
}
std::string_view RequestReader::method() const {
  return impl_->method;
}
bool RequestReader::head_only() const {
  return impl_->head_only;
}
bool RequestReader::http10() const {
  return impl_->parser->is_header_done() && impl_->parser->get().version() == 10;
}
bool RequestReader::keep_alive() const {
  return impl_->parser->is_header_done() && impl_->parser->keep_alive();
}
bool RequestReader::expects_continue() const {
  return impl_->expects_continue;
}
bool RequestReader::complete() const {
  return impl_->parser->is_done();
}
int RequestReader::bad_status() const {
  return impl_->bad_status;
}
const std::string& RequestReader::bad_message() const {
  return impl_->bad_message;
}

}  // namespace quire::http
