// SPDX-License-Identifier: Apache-2.0
// Frames answers (heads, lengths, chunks) and tracks the state of each.
#include "http/exchange.h"

#include <charconv>
#include <cstdio>
#include <ctime>
#include <utility>

#include "api/error.h"
#include "base/json.h"

namespace quire::http {

namespace {

constexpr size_t kSegmentBytes = size_t{64} << 10;  // small pieces are gathered into segments of about this size

// The value of the Date header. Each thread formats it once per second.
std::string_view date_now() {
  thread_local std::time_t made = -1;
  thread_local char text[40];
  thread_local size_t size = 0;
  const std::time_t now = std::time(nullptr);
  if (now != made) {
    std::tm parts{};
    gmtime_r(&now, &parts);
    // Not strftime's %a and %b: those follow the locale.
    static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                              "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    size = static_cast<size_t>(std::snprintf(text, sizeof(text), "%s, %02d %s %04d %02d:%02d:%02d GMT",
                                             kDays[parts.tm_wday], parts.tm_mday, kMonths[parts.tm_mon],
                                             parts.tm_year + 1900, parts.tm_hour, parts.tm_min, parts.tm_sec));
    made = now;
  }
  return {text, size};
}

// Appends a header's name or value without the characters that could end the line.
void append_clean(std::string& out, std::string_view text) {
  for (const char c : text) {
    if (c != '\r' && c != '\n' && c != '\0') out += c;
  }
}

void append_header(std::string& out, std::string_view name, std::string_view value) {
  append_clean(out, name);
  out += ": ";
  append_clean(out, value);
  out += "\r\n";
}

bool has_body(int status) {
  return status >= 200 && status != 204 && status != 304;
}

class ReplyHandle final : public api::Reply {
 public:
  explicit ReplyHandle(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  ~ReplyHandle() override { exchange_->abandon(); }
  void send(int status, std::string_view content_type, std::string body, api::Headers extra) override {
    exchange_->send(status, content_type, std::move(body), extra);
  }
  void begin(int status, std::string_view content_type, api::Headers extra) override {
    exchange_->begin(status, content_type, extra);
  }
  bool write(std::string piece) override { return exchange_->write(piece); }
  void end() override { exchange_->end(); }
  void on_gone(std::function<void()> callback) override { exchange_->on_gone(std::move(callback)); }
  void on_stop(std::function<void()> callback) override { exchange_->on_stop(std::move(callback)); }
  void note(std::string_view key, std::string_view value) override { exchange_->note(key, value); }

 private:
  const std::shared_ptr<Exchange> exchange_;
};

}  // namespace

api::ReplyPtr make_reply(std::shared_ptr<Exchange> exchange) {
  return std::make_shared<ReplyHandle>(std::move(exchange));
}

Exchange::Exchange(ReplyTerms terms, std::shared_ptr<Outlet> outlet)
    : terms_(std::move(terms)), outlet_(std::move(outlet)) {
  if (terms_.in_flight) ++*terms_.in_flight;
}

std::string Exchange::head(int status, std::string_view content_type, const api::Headers& extra, int64_t length) const {
  std::string out;
  out.reserve(256);
  out += "HTTP/1.1 " + std::to_string(status) + " " + reason_phrase(status) + "\r\n";
  append_header(out, "Date", date_now());
  out += "Server: quire\r\n";
  if (!content_type.empty()) append_header(out, "Content-Type", content_type);
  if (length >= 0) {
    if (has_body(status)) append_header(out, "Content-Length", std::to_string(length));
  } else if (!terms_.http10) {
    out += "Transfer-Encoding: chunked\r\n";
  }
  if (!terms_.keep_alive) {
    out += "Connection: close\r\n";
  } else if (terms_.http10) {
    out += "Connection: keep-alive\r\n";
  }
  for (const auto& [name, value] : terms_.headers) append_header(out, name, value);
  for (const auto& [name, value] : extra) append_header(out, name, value);
  out += "\r\n";
  return out;
}

void Exchange::queue(std::string_view bytes) {
  if (pending_.empty() || pending_.back().size() + bytes.size() > kSegmentBytes) pending_.emplace_back();
  pending_.back() += bytes;
  pending_bytes_ += bytes.size();
  summary_.bytes += static_cast<int64_t>(bytes.size());
}

void Exchange::finish(State state) {
  if (unfinished() && terms_.in_flight) --*terms_.in_flight;
  state_ = state;
  outlet_.reset();
}

void Exchange::send(int status, std::string_view content_type, std::string body, const api::Headers& extra) {
  std::function<void()> gone, stop;  // destroyed after the lock is released: they may own anything
  const std::lock_guard lock(mutex_);
  if (state_ != State::kOpen) return;
  gone.swap(gone_callback_);
  stop.swap(stop_callback_);
  send_whole(status, content_type, std::move(body), extra);
}

// REQUIRES: the caller holds the lock and has taken the callbacks.
void Exchange::send_whole(int status, std::string_view content_type, std::string body, const api::Headers& extra) {
  summary_.status = status;
  summary_.answered = true;
  summary_.first_byte = Clock::now();
  queue(head(status, content_type, extra, static_cast<int64_t>(body.size())));
  if (!terms_.head_only && has_body(status)) {
    if (body.size() < kSegmentBytes / 4) {
      queue(body);
    } else {
      pending_bytes_ += body.size();
      summary_.bytes += static_cast<int64_t>(body.size());
      pending_.push_back(std::move(body));
    }
  }
  outlet_->wake();
  finish(State::kDone);
}

void Exchange::begin(int status, std::string_view content_type, const api::Headers& extra) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kOpen) return;
  if (terms_.http10) terms_.keep_alive = false;  // the end of the connection marks the end of the answer
  chunked_ = !terms_.http10;
  summary_.status = status;
  queue(head(status, content_type, extra, -1));
  state_ = State::kBegun;
  outlet_->wake();
}

bool Exchange::write(std::string_view piece) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kBegun) return false;
  if (!summary_.answered) {
    summary_.answered = true;
    summary_.first_byte = Clock::now();
  }
  if (piece.empty() || terms_.head_only) return true;
  const size_t held = pending_bytes_ + unsent_;
  if (held > 0 && held + piece.size() > terms_.max_buffer) {
    state_ = State::kBroken;
    summary_.notes += " slow_reader=1";
    outlet_->wake();
    return false;
  }
  const bool idle = pending_.empty();
  if (chunked_) {
    char size[20];
    const auto end = std::to_chars(size, size + sizeof(size), piece.size(), 16).ptr;
    queue({size, static_cast<size_t>(end - size)});
    pending_.back() += "\r\n";
    pending_.back() += piece;
    pending_.back() += "\r\n";
    pending_bytes_ += piece.size() + 4;
    summary_.bytes += static_cast<int64_t>(piece.size() + 4);
  } else {
    queue(piece);
  }
  if (idle) outlet_->wake();  // otherwise the connection has been woken already and has not taken the bytes yet
  return true;
}

void Exchange::end() {
  std::function<void()> gone, stop;
  const std::lock_guard lock(mutex_);
  if (state_ != State::kBegun) return;
  if (chunked_ && !terms_.head_only) queue("0\r\n\r\n");
  gone.swap(gone_callback_);
  stop.swap(stop_callback_);
  outlet_->wake();
  finish(State::kDone);
}

void Exchange::on_gone(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kDone) return;
    if (state_ != State::kGone) {
      gone_callback_.swap(callback);
      return;
    }
  }
  callback();
}

void Exchange::on_stop(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!broken_off_) {
      if (unfinished()) stop_callback_.swap(callback);
      return;
    }
  }
  callback();
}

void Exchange::break_off(std::string body) {
  std::function<void()> gone, stop;
  {
    const std::lock_guard lock(mutex_);
    if (!unfinished() || broken_off_) return;
    broken_off_ = true;
    stop.swap(stop_callback_);
    summary_.notes += " broken_off=1";
  }
  if (stop) stop();
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kOpen) return;
    gone.swap(gone_callback_);
    terms_.keep_alive = false;
    send_whole(503, "application/json", std::move(body), {});
  }
  if (gone) gone();
}

void Exchange::note(std::string_view key, std::string_view value) {
  const std::lock_guard lock(mutex_);
  summary_.notes += ' ';
  summary_.notes += key;
  summary_.notes += '=';
  bool plain = !value.empty();
  for (const char c : value) plain = plain && c > ' ' && c < 0x7f && c != '"' && c != '=';
  if (plain) {
    summary_.notes += value;
  } else {
    json::append_quoted(summary_.notes, value);
  }
}

void Exchange::abandon() {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kBegun) {
      state_ = State::kBroken;
      summary_.notes += " abandoned=1";
      outlet_->wake();
    }
    if (state_ != State::kOpen) return;
  }
  // Nobody else has a Reply, so only gone() can happen in between; then send() does nothing.
  send(500, "application/json", error_body(500, "The request was dropped without an answer."), {});
}

Exchange::Progress Exchange::take(std::deque<std::string>& out, size_t unsent) {
  const std::lock_guard lock(mutex_);
  unsent_ = unsent + pending_bytes_;
  if (out.empty()) {
    out.swap(pending_);
  } else {
    for (std::string& segment : pending_) out.push_back(std::move(segment));
    pending_.clear();
  }
  pending_bytes_ = 0;
  return {.begun = state_ != State::kOpen,
          .complete = state_ == State::kDone,
          .broken = state_ == State::kBroken,
          .keep_alive = terms_.keep_alive};
}

bool Exchange::broken() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::kBroken;
}

bool Exchange::complete() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::kDone;
}

void Exchange::gone() {
  std::function<void()> callback, stop;
  std::shared_ptr<Outlet> outlet;
  {
    const std::lock_guard lock(mutex_);
    if (!unfinished()) return;
    callback.swap(gone_callback_);
    stop.swap(stop_callback_);
    outlet = outlet_;
    summary_.gone = true;
    pending_.clear();
    pending_bytes_ = 0;
    finish(State::kGone);
  }
  if (callback) callback();
}

void Exchange::close_after() {
  const std::lock_guard lock(mutex_);
  terms_.keep_alive = false;
}

Exchange::Summary Exchange::summary() const {
  const std::lock_guard lock(mutex_);
  return summary_;
}

const char* reason_phrase(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 301:
      return "Moved Permanently";
    case 302:
      return "Found";
    case 304:
      return "Not Modified";
    case 307:
      return "Temporary Redirect";
    case 308:
      return "Permanent Redirect";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 406:
      return "Not Acceptable";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 411:
      return "Length Required";
    case 413:
      return "Request Entity Too Large";
    case 414:
      return "Request-URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Entity";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return status < 400 ? "OK" : "Error";
  }
}

std::string error_body(int status, std::string_view message, bool anthropic) {
  const api::ApiError error{status, reason_phrase(status), std::string(message), ""};
  return anthropic ? error.anthropic_body() : error.body();
}

}  // namespace quire::http
