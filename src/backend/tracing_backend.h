// SPDX-License-Identifier: Apache-2.0
// TracingBackend: a backend whose ops leave spans in the trace.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace quire {

// Forwards everything to `inner`, each op inside a span named after it and its shape. Put around a backend only while a
// trace is recorded, so that nobody pays for it otherwise.
std::unique_ptr<Backend> make_tracing_backend(std::unique_ptr<Backend> inner);

}  // namespace quire
