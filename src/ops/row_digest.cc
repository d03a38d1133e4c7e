// SPDX-License-Identifier: Apache-2.0
// The check of digest_rows.
#include "ops/row_digest.h"

#include "base/check.h"

namespace quire {

void check(const DigestRowsArgs& args) {
  QUIRE_CHECK(args.x.dtype == DType::kF32 && args.rows.size() == args.out.size());
  for (const int32_t row : args.rows) QUIRE_CHECK(row >= 0 && row < args.x.rows);
}

}  // namespace quire
