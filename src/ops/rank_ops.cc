// SPDX-License-Identifier: Apache-2.0
// The argument checks of own_ids.
#include "ops/rank_ops.h"

namespace quire {

void check(const OwnIdsArgs& args) {
  QUIRE_CHECK(args.width > 0 && args.rank >= 0 && (args.out != nullptr || args.ids.empty()));
}

}  // namespace quire
