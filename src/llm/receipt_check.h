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

// What is wrong with the reply that a receipt came in, and what could not be checked there; "": nothing.
struct TextFindings {
  std::string difference;
  std::string note;
};
// Called with the index of a receipt and the text of its tokens.
using TextCheck = std::function<TextFindings(size_t, const std::string&)>;

// Re-runs the receipts on this model, `concurrency` of them at a time, and calls `on_verdict` for each, by its index,
// as soon as it is known. Ends early, without the verdicts of the rest, once `stop` returns true. `check_text` is asked
// about receipts whose bits are the same.
void check_receipts(Llm& llm, std::span<const ReadReceipt> receipts, int64_t concurrency,
                    const std::function<void(size_t, const Verdict&)>& on_verdict,
                    const std::function<bool()>& stop = {}, const TextCheck& check_text = {});

// Compares the receipt with one that a server made for the same request.
Verdict compare_receipts(const ReadReceipt& read, const Receipt& made);
// The verdict on a receipt that cannot be run, for this reason. A receipt that was changed fails all the same.
Verdict unchecked(const ReadReceipt& read, const std::string& why);

}  // namespace quire::llm
