// SPDX-License-Identifier: Apache-2.0
// Whether the server's address is free, asked before minutes are spent on loading a model.
#pragma once

#include "base/result.h"
#include "http/server.h"

namespace quire::cli {

// Binds the address as the server will and lets it go again. Somebody else may still take it before the server does;
// then the server's own start reports it. What cannot be judged here counts as free.
Status check_address(const http::ServerOptions& options);

}  // namespace quire::cli
