// SPDX-License-Identifier: Apache-2.0
// The generated Unicode tables; included by the two files that read them.
#pragma once

#include <cstdint>

namespace quire::text::tables {

#include "text/unicode_tables.inc"

}  // namespace quire::text::tables
