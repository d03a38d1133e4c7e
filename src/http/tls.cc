// SPDX-License-Identifier: Apache-2.0
// An OpenSSL context from PEM files.
#include "http/tls.h"

#include <openssl/err.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

namespace quire::http {

namespace {

// The reason of OpenSSL's last error. Clears its error queue.
std::string openssl_reason() {
  const unsigned long code = ERR_peek_last_error();
  const char* reason = ERR_reason_error_string(code);
  ERR_clear_error();
  return reason != nullptr ? reason : "unknown error";
}

Status check_readable(const std::string& path, const char* flag) {
  FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    return invalid_argument({flag, " '", path, "' cannot be read: ", std::strerror(errno), "."});
  }
  std::fclose(file);
  return {};
}

int no_passphrase(char*, int, int, void*) {
  return 0;
}

int choose_http11(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* in,
                  unsigned int in_size, void*) {
  constexpr std::string_view kHttp11 = "http/1.1";
  for (unsigned int at = 0; at < in_size && at + 1 + in[at] <= in_size; at += 1 + in[at]) {
    if (std::string_view(reinterpret_cast<const char*>(in + at + 1), in[at]) != kHttp11) continue;
    *out = in + at + 1;
    *out_size = in[at];
    return SSL_TLSEXT_ERR_OK;
  }
  return SSL_TLSEXT_ERR_NOACK;  // the client will use HTTP/1.1 anyway, or close the connection
}

}  // namespace

Result<TlsContext> load_tls(const TlsFiles& files) {
  const std::string& keyfile = files.keyfile.empty() ? files.certfile : files.keyfile;
  QUIRE_TRY(check_readable(files.certfile, "--ssl-certfile"));
  QUIRE_TRY(check_readable(keyfile, "--ssl-keyfile"));
  ERR_clear_error();
  TlsContext context(SSL_CTX_new(TLS_server_method()), &SSL_CTX_free);
  if (!context) return Error{ErrorCode::kInternal, "OpenSSL cannot make a TLS context: " + openssl_reason() + "."};
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_default_passwd_cb(context.get(), no_passphrase);
  SSL_CTX_set_alpn_select_cb(context.get(), choose_http11, nullptr);
  if (SSL_CTX_use_certificate_chain_file(context.get(), files.certfile.c_str()) != 1) {
    return invalid_argument(
        {"--ssl-certfile '", files.certfile, "' is not a PEM certificate: ", openssl_reason(), "."});
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), keyfile.c_str(), SSL_FILETYPE_PEM) != 1) {
    const std::string reason = openssl_reason();
    if (reason.find("mismatch") != std::string::npos) {
      return invalid_argument(
          {"--ssl-keyfile '", keyfile, "' is not the key of --ssl-certfile '", files.certfile, "'."});
    }
    return invalid_argument({"--ssl-keyfile '", keyfile, "' is not a PEM key without a passphrase: ", reason, "."});
  }
  if (SSL_CTX_check_private_key(context.get()) != 1) {
    ERR_clear_error();
    return invalid_argument({"--ssl-keyfile '", keyfile, "' is not the key of --ssl-certfile '", files.certfile, "'."});
  }
  if (!files.ciphers.empty() && SSL_CTX_set_cipher_list(context.get(), files.ciphers.c_str()) != 1) {
    ERR_clear_error();
    return invalid_argument({"--ssl-ciphers '", files.ciphers, "' names no cipher that OpenSSL knows."});
  }
  if (files.cert_reqs < 0 || files.cert_reqs > 2) {
    return invalid_argument("--ssl-cert-reqs must be 0 (none), 1 (optional) or 2 (required).");
  }
  if (!files.ca_certs.empty()) {
    QUIRE_TRY(check_readable(files.ca_certs, "--ssl-ca-certs"));
    if (SSL_CTX_load_verify_locations(context.get(), files.ca_certs.c_str(), nullptr) != 1) {
      return invalid_argument(
          {"--ssl-ca-certs '", files.ca_certs, "' holds no PEM certificate: ", openssl_reason(), "."});
    }
    SSL_CTX_set_client_CA_list(context.get(), SSL_load_client_CA_file(files.ca_certs.c_str()));
  } else if (files.cert_reqs != 0) {
    return invalid_argument("--ssl-cert-reqs asks for clients' certificates: name their signers with --ssl-ca-certs.");
  }
  // A session of another context must not be resumed; OpenSSL requires a name if it verifies clients.
  static constexpr unsigned char kSessionName[] = "quire";
  SSL_CTX_set_session_id_context(context.get(), kSessionName, sizeof(kSessionName) - 1);
  constexpr int kVerify[] = {SSL_VERIFY_NONE, SSL_VERIFY_PEER, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT};
  SSL_CTX_set_verify(context.get(), kVerify[files.cert_reqs], nullptr);
  ERR_clear_error();
  return context;
}

uint64_t tls_fingerprint(const TlsFiles& files) {
  uint64_t sum = 0;
  const auto mix = [&sum](uint64_t value) { sum = (sum ^ value) * 0x9E3779B97F4A7C15ull + 1; };
  for (const std::string* path : {&files.certfile, &files.keyfile, &files.ca_certs}) {
    struct stat info {};
    if (path->empty() || stat(path->c_str(), &info) != 0) {
      mix(0);
      continue;
    }
    mix(static_cast<uint64_t>(info.st_mtime));
#ifdef __linux__
    mix(static_cast<uint64_t>(info.st_mtim.tv_nsec));
#endif
    mix(static_cast<uint64_t>(info.st_size));
    mix(static_cast<uint64_t>(info.st_ino));
  }
  return sum;
}

}  // namespace quire::http
