// SPDX-License-Identifier: Apache-2.0
// Checksums with OpenSSL's EVP interface.
#include "cli/hub/digest.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

namespace quire::cli {
namespace {

using Context = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

std::string to_hex(const unsigned char* bytes, unsigned int size) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (unsigned int i = 0; i < size; ++i) {
    out += kDigits[bytes[i] >> 4];
    out += kDigits[bytes[i] & 15];
  }
  return out;
}

Failure read_error(const std::filesystem::path& path) {
  return unavailable({"cannot read '", path.string(), "': ", std::strerror(errno)});
}

// Feeds the whole file to the digest. The caller keeps the descriptor.
Status digest_descriptor(int fd, const std::filesystem::path& path, EVP_MD_CTX* context,
                         const std::function<void(size_t)>& on_bytes) {
  std::vector<char> buffer(size_t{1} << 20);
  for (;;) {
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return read_error(path);
    if (n == 0) return {};
    EVP_DigestUpdate(context, buffer.data(), static_cast<size_t>(n));
    if (on_bytes) on_bytes(static_cast<size_t>(n));
  }
}

}  // namespace

std::string digest_from_hex(std::string_view hex) {
  const auto is_hex = [](unsigned char c) { return std::isxdigit(c) != 0; };
  if (!std::all_of(hex.begin(), hex.end(), is_hex)) return "";
  std::string digits(hex);
  std::transform(digits.begin(), digits.end(), digits.begin(), [](unsigned char c) { return std::tolower(c); });
  if (digits.size() == 64) return std::string(kSha256) + digits;
  if (digits.size() == 40) return std::string(kGitSha1) + digits;
  return "";
}

Result<std::string> file_digest(const std::filesystem::path& path, std::string_view like,
                                const std::function<void(size_t)>& on_bytes) {
  const bool is_sha256 = like.starts_with(kSha256);
  QUIRE_CHECK(is_sha256 || like.starts_with(kGitSha1), "unknown kind of digest");
  Context context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  QUIRE_CHECK(context != nullptr);
  if (EVP_DigestInit_ex(context.get(), is_sha256 ? EVP_sha256() : EVP_sha1(), nullptr) != 1) {
    return unsupported({"this machine's OpenSSL does not support ", std::string(is_sha256 ? "sha256" : "sha1")});
  }
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return read_error(path);
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    const Error error = read_error(path);
    ::close(fd);
    return error;
  }
  if (!is_sha256) {
    // git hashes a header before the content: the kind, the size in decimal, and a zero byte.
    const std::string header = "blob " + std::to_string(info.st_size);
    EVP_DigestUpdate(context.get(), header.c_str(), header.size() + 1);
  }
  const Status fed = digest_descriptor(fd, path, context.get(), on_bytes);
  ::close(fd);
  if (!fed.ok()) return fed.failure();
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_DigestFinal_ex(context.get(), bytes, &size);
  return std::string(is_sha256 ? kSha256 : kGitSha1) + to_hex(bytes, size);
}

}  // namespace quire::cli
