// SPDX-License-Identifier: Apache-2.0
// Reads certificates and keys into an OpenSSL context; an error says in one sentence what is wrong with them.
#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"

namespace quire::http {

struct TlsFiles {
  std::string certfile;
  std::string keyfile;   // empty: in certfile
  std::string ca_certs;  // optional
  int cert_reqs = 0;     // 0 none, 1 optional, 2 required
  std::string ciphers;   // optional
};

using TlsContext = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;
// TLS 1.2 and 1.3, HTTP/1.1 by ALPN.
Result<TlsContext> load_tls(const TlsFiles& files);

// A number that changes when one of the files does.
uint64_t tls_fingerprint(const TlsFiles& files);

}  // namespace quire::http
