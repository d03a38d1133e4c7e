// SPDX-License-Identifier: Apache-2.0
// Recognises common wrong files by their first bytes.
#include "weights/file_sniff.h"

#include <algorithm>
#include <cctype>

#include "base/utf8.h"

namespace quire::weights {
namespace {

constexpr size_t kHead = 512;
constexpr size_t kLongestName = 400;

bool starts_with_ignoring_case(std::string_view text, std::string_view prefix) {
  if (text.size() < prefix.size()) return false;
  return std::equal(prefix.begin(), prefix.end(), text.begin(),
                    [](char p, char t) { return p == static_cast<char>(std::tolower(static_cast<unsigned char>(t))); });
}

}  // namespace

std::optional<std::string> recognise_wrong_file(std::span<const std::byte> head) {
  std::string_view text(reinterpret_cast<const char*>(head.data()), std::min(head.size(), kHead));
  if (text.empty()) return "is empty: the download failed; fetch it again";
  if (text.starts_with("version https://git-lfs.github.com/spec/")) {
    return "is a Git LFS pointer, not the file it points to: run 'git lfs pull' or download the real file";
  }
  if (text.starts_with(std::string_view("PK\x03\x04", 4))) {
    return "is a zip archive or a PyTorch checkpoint: unpack it, or convert it to safetensors";
  }
  if (text.starts_with(std::string_view("\x1f\x8b", 2))) return "is a gzip archive: unpack it first";
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin != std::string_view::npos) text.remove_prefix(begin);
  if (starts_with_ignoring_case(text, "<!doctype html") || starts_with_ignoring_case(text, "<html") ||
      starts_with_ignoring_case(text, "<?xml")) {
    return "is a web page saved under a model's name: the download got an error page or needs a login; fetch it again";
  }
  if (text.starts_with("{\"error\"") || text.starts_with("Invalid username or password") ||
      text.starts_with("Entry not found") || text.starts_with("Access to model")) {
    return "is a server's error message saved under a model's name: '" + std::string(text.substr(0, 60)) +
           "'; fetch it again";
  }
  return std::nullopt;
}

std::string in_quotes(std::string_view name) {
  std::string out = "'";
  for (size_t pos = 0; pos < name.size();) {
    if (pos >= kLongestName) {
      out += "...' (" + std::to_string(name.size()) + " bytes)";
      return out;
    }
    const utf8::Decoded c = utf8::decode(name, pos);
    if (!c.valid || c.code_point < 0x20 || (c.code_point >= 0x7f && c.code_point < 0xa0)) {
      static constexpr char kHex[] = "0123456789abcdef";
      for (size_t i = pos; i < pos + c.size; ++i) {
        const auto byte = static_cast<unsigned char>(name[i]);
        out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
      }
    } else {
      out.append(name.substr(pos, c.size));
    }
    pos += c.size;
  }
  return out + "'";
}

Failure corrupt_file(std::string_view file, const std::string& what) {
  return corrupt({in_quotes(file), ": ", what});
}

}  // namespace quire::weights
