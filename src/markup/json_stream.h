// SPDX-License-Identifier: Apache-2.0
// Readers of JSON that comes byte by byte: one forwards a value as it is written, the other reads a string.
#pragma once

#include <cstdint>
#include <string>

namespace quire::markup {

// Decodes the inside of a JSON string, byte by byte. Lone surrogates become U+FFFD.
class JsonStringReader {
 public:
  // Reads the next byte after the opening quote. Appends decoded text to `out`; returns true at the closing quote.
  bool read(char c, std::string& out);
  void reset() { *this = {}; }

 private:
  void finish_unicode(std::string& out);

  bool escaped_ = false;
  int digits_ = 0;  // of a \u escape that are still to come
  uint32_t unit_ = 0;
  uint32_t high_ = 0;  // a high surrogate that waits for its other half
};

// Forwards one JSON value. Objects and arrays are forwarded exactly as they are written, only never ending inside an
// escape. A string is decoded: models sometimes write arguments as a string that contains JSON. null is nothing.
class JsonForwarder {
 public:
  enum class Status : uint8_t {
    kMore,        // the value goes on
    kDone,        // this byte was its last
    kDoneBefore,  // the value ended before this byte, or this byte cannot belong to JSON: the byte is not consumed
  };
  // Reads the next byte. The first one is not a blank.
  Status read(char c, std::string& out);
  // Whether any text was forwarded.
  bool wrote() const { return wrote_; }
  void reset() { *this = {}; }

 private:
  enum class Kind : uint8_t { kNone, kContainer, kString, kScalar };
  Status read_container(char c, std::string& out);
  Status read_scalar(char c, std::string& out);

  Kind kind_ = Kind::kNone;
  int64_t depth_ = 0;
  bool in_string_ = false;
  std::string escape_;  // an escape that is not complete
  std::string scalar_;
  JsonStringReader string_;
  bool wrote_ = false;
};

}  // namespace quire::markup
