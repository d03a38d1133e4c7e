// SPDX-License-Identifier: Apache-2.0
// Checks the server's address, certificates and other options, before minutes are spent on loading a model.
#pragma once

#include "base/result.h"
#include "http/server.h"

namespace quire::cli {

// Checks the options, and binds the address as the server will and releases it. If another program takes it before the
// server does, the start of the server reports it. What cannot be checked here counts as free.
Status check_address(const http::ServerOptions& options);

}  // namespace quire::cli
