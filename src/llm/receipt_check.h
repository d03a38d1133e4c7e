// SPDX-License-Identifier: Apache-2.0
// Re-runs what receipts describe, and says whether the bits are the same.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "llm/llm.h"
#include "llm/receipt.h"

namespace quire::llm {

struct Verdict {
  enum class Kind : uint8_t { kSame, kDiffers, kUnchecked };
  Kind kind = Kind::kSame;
  std::string text;  // one sentence, without a full stop
};

// Re-runs the receipts on this model, `concurrency` of them at a time, and calls `on_verdict` for each, by its index,
// as soon as it is known. Ends early, without the verdicts of the rest, once `stop` returns true.
void check_receipts(Llm& llm, std::span<const ReadReceipt> receipts, int64_t concurrency,
                    const std::function<void(size_t, const Verdict&)>& on_verdict,
                    const std::function<bool()>& stop = {});

}  // namespace quire::llm
