// SPDX-License-Identifier: Apache-2.0
// CallReader: reads the calls of one region of markup, byte by byte. One implementation for each encoding.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "markup/convert.h"
#include "markup/formats.h"

namespace quire::markup {

// Where the readers put calls. Implemented by the parser.
class CallSink {
 public:
  virtual ~CallSink() = default;
  // A call begins. The calls of a reader do not overlap.
  virtual void begin(std::string_view name, std::string_view id) = 0;
  // The next piece of the arguments of the open call.
  virtual void arguments(std::string_view text) = 0;
  virtual void end() = 0;
  // The schema of the parameters of that tool, or none.
  virtual Schema parameters(std::string_view tool) const = 0;
  // Whether the request has a tool of that name.
  virtual bool has_tool(std::string_view name) const = 0;
};

// What a reader makes of a byte.
enum class ReadStatus : uint8_t {
  kMore,    // the region goes on
  kDone,    // the region is over; `unread` was not part of it
  kFailed,  // the region is not a call, and none began: all of it but `unread` is content
};

// Reads one region: what follows the marker that began it. One thread at a time.
class CallReader {
 public:
  explicit CallReader(CallSink& sink) : sink_(sink) {}
  virtual ~CallReader() = default;
  CallReader(const CallReader&) = delete;
  CallReader& operator=(const CallReader&) = delete;

  // Reads the next byte. REQUIRES: it returned kMore for the byte before.
  virtual ReadStatus read(char c) = 0;
  // The text is over: ends the open call, if there is one.
  virtual void finish() = 0;
  // Whether a call has begun in this region: from then on it cannot fail.
  bool begun() const { return begun_; }
  // With kDone and kFailed: bytes at the end of what was read that do not belong to the region.
  const std::string& unread() const { return unread_; }

 protected:
  void begin(std::string_view name, std::string_view id = {}) {
    begun_ = true;
    open_ = true;
    sink_.begin(name, id);
  }
  void end() {
    open_ = false;
    sink_.end();
  }
  // The byte belongs to something else: content after a call, or proof that there was no call.
  ReadStatus reject(std::string unread) {
    unread_ = std::move(unread);
    return begun_ ? ReadStatus::kDone : ReadStatus::kFailed;
  }

  CallSink& sink_;
  bool begun_ = false;
  bool open_ = false;  // a call has begun and not ended
  std::string unread_;
};

// Makes the reader of a region. `marker` is what began it: one of the format's begins, its open, or empty if the answer
// began with a bare call.
std::unique_ptr<CallReader> make_reader(const ToolFormat& format, std::string_view marker, CallSink& sink);

// One for each encoding; make_reader() chooses.
// `guessed`: nothing but its content says that this is a call, so that it must have a known name and arguments.
std::unique_ptr<CallReader> make_json_reader(const ToolFormat& format, CallSink& sink, bool guessed = false);
std::unique_ptr<CallReader> make_keyed_reader(const ToolFormat& format, bool in_call, CallSink& sink);
std::unique_ptr<CallReader> make_tagged_reader(const ToolFormat& format, bool in_call, CallSink& sink);
std::unique_ptr<CallReader> make_python_reader(const ToolFormat& format, bool bare, CallSink& sink);
std::unique_ptr<CallReader> make_gemma_reader(const ToolFormat& format, CallSink& sink);

// Longer names and headers are not calls.
constexpr size_t kMaxHeader = 1024;

}  // namespace quire::markup
