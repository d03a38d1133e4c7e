// SPDX-License-Identifier: Apache-2.0
// A client of raw sockets for the tests: it sends what it is told, however wrong, and reads answers byte by byte.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace quire::http {

struct Answer {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

// One connection, blocking, one thread. Reads give up after half a minute, so that a broken server fails a test instead
// of hanging it.
class Client {
 public:
  explicit Client(uint16_t port, int receive_buffer = 0) {
    socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
    if (receive_buffer > 0) setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    connect(port);
  }
  explicit Client(const std::string& uds) {
    socket_ = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, uds.c_str(), sizeof(address.sun_path) - 1);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  struct Unconnected {};
  explicit Client(Unconnected) { socket_ = ::socket(AF_INET, SOCK_STREAM, 0); }
  Client(Client&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)),
        connected_(other.connected_),
        ssl_(std::exchange(other.ssl_, nullptr)),
        buffer_(std::move(other.buffer_)) {}
  Client& operator=(Client&&) = delete;
  ~Client() { close(); }

  void connect(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  bool connected() const { return connected_; }

  // Speaks TLS from here on; false when the handshake fails.
  bool start_tls(SSL_CTX* context) {
    ssl_ = SSL_new(context);
    SSL_set_fd(ssl_, socket_);
    return SSL_connect(ssl_) == 1;
  }
  SSL* ssl() { return ssl_; }

  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto count = ssl_ != nullptr ? SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size()))
                                         : ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(count));
    }
    return true;
  }
  void shutdown_send() { ::shutdown(socket_, SHUT_WR); }
  void close() {
    if (ssl_ != nullptr) SSL_free(std::exchange(ssl_, nullptr));
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  // Closes with a reset instead of a farewell.
  void abort() {
    const linger hard{1, 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    close();
  }

  // Reads until `mark` has come; everything up to its end. Nothing when the connection ended first.
  std::optional<std::string> read_until(std::string_view mark) {
    size_t at = 0;
    while ((at = buffer_.find(mark)) == std::string::npos) {
      if (!fill()) return std::nullopt;
    }
    return take(at + mark.size());
  }
  std::optional<std::string> read_exactly(size_t count) {
    while (buffer_.size() < count) {
      if (!fill()) return std::nullopt;
    }
    return take(count);
  }
  std::string read_to_end() {
    while (fill()) {
    }
    return take(buffer_.size());
  }
  bool at_end() { return buffer_.empty() && !fill(); }

  // One whole answer; status 0 when the connection ended before its end.
  Answer read_answer(bool head_only = false) {
    Answer answer = read_head();
    if (answer.status == 0 || head_only) return answer;
    std::optional<std::string> body;
    if (answer.headers.contains("content-length")) {
      body = read_exactly(static_cast<size_t>(std::atoll(answer.headers["content-length"].c_str())));
    } else if (answer.headers.contains("transfer-encoding")) {
      body = read_chunks();
    } else if (answer.status != 204) {
      body = read_to_end();
    }
    if (!body) return {};
    answer.body = *body;
    return answer;
  }
  Answer read_head() {
    Answer answer;
    const auto head = read_until("\r\n\r\n");
    if (!head || !head->starts_with("HTTP/1.1 ")) return answer;
    answer.status = std::atoi(head->c_str() + 9);
    for (size_t line = head->find("\r\n") + 2; line + 2 < head->size(); line = head->find("\r\n", line) + 2) {
      const size_t colon = head->find(": ", line);
      std::string name = head->substr(line, colon - line);
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      const std::string value = head->substr(colon + 2, head->find("\r\n", colon) - colon - 2);
      std::string& slot = answer.headers[name];
      slot += (slot.empty() ? "" : ", ") + value;
    }
    return answer;
  }
  std::optional<std::string> read_chunks() {
    std::string body;
    for (;;) {
      const auto size_line = read_until("\r\n");
      if (!size_line) return std::nullopt;
      const size_t size = std::strtoull(size_line->c_str(), nullptr, 16);
      const auto data = read_exactly(size + 2);
      if (!data || !data->ends_with("\r\n")) return std::nullopt;
      if (size == 0) return body;
      body += data->substr(0, size);
    }
  }
  Answer ask(std::string_view request) {
    send(request);
    return read_answer();
  }

 private:
  bool fill() {
    pollfd entry{socket_, POLLIN, 0};
    if ((ssl_ == nullptr || SSL_pending(ssl_) == 0) && poll(&entry, 1, 30'000) != 1) return false;
    char data[16384];
    const auto count = ssl_ != nullptr ? SSL_read(ssl_, data, sizeof(data)) : ::recv(socket_, data, sizeof(data), 0);
    if (count <= 0) return false;
    buffer_.append(data, static_cast<size_t>(count));
    return true;
  }
  std::string take(size_t count) {
    std::string out = buffer_.substr(0, count);
    buffer_.erase(0, count);
    return out;
  }

  int socket_ = -1;
  bool connected_ = false;
  SSL* ssl_ = nullptr;
  std::string buffer_;
};

// A new key and a certificate for `name` signed by itself, as PEM files.
inline void write_certificate(const std::string& certfile, const std::string& keyfile, const std::string& name) {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> cert(X509_new(), X509_free);
  X509_set_version(cert.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(cert.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(cert.get()), -60);
  X509_gmtime_adj(X509_getm_notAfter(cert.get()), 3600);
  X509_set_pubkey(cert.get(), key.get());
  X509_NAME* subject = X509_get_subject_name(cert.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1,
                             0);
  X509_set_issuer_name(cert.get(), subject);
  X509_sign(cert.get(), key.get(), EVP_sha256());
  const std::unique_ptr<FILE, decltype(&std::fclose)> cert_out(std::fopen(certfile.c_str(), "wb"), std::fclose);
  PEM_write_X509(cert_out.get(), cert.get());
  const std::unique_ptr<FILE, decltype(&std::fclose)> key_out(std::fopen(keyfile.c_str(), "wb"), std::fclose);
  PEM_write_PrivateKey(key_out.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
}

}  // namespace quire::http
