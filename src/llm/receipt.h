// SPDX-License-Identifier: Apache-2.0
// Receipt: everything that decided the bits of one answer, and the digests of these bits, so that it can be re-run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "base/shared_list.h"
#include "llm/constraint.h"
#include "sampling/params.h"

namespace quire::llm {

// What an answer was made with, besides its request.
struct Origin {
  std::string quire;           // the version of the program; not compared
  std::string model;           // the name that the server gave it; not compared
  std::string weights;         // weights::weights_digest()
  std::string backend;         // "cpu", "cuda", ...
  std::string isa;             // Backend::isa()
  std::string dtype;           // --dtype
  std::string kv_cache_dtype;  // never auto
  int64_t max_model_len = 0;   // some models scale RoPE by it
  std::string adapter;  // the digest of the request's adapter; "": none. Not compared here: a request has its own

  // What must be the same for the same bits, in one sentence that says what to do; "" if all of it is. Leaves out the
  // weights.
  std::string difference(const Origin& here) const;
};

// The receipt of one sequence. A plain value.
struct Receipt {
  sampling::RowDigests version = sampling::kNewestDigests;  // of the format: it says how `rows` were made
  Origin origin;
  sampling::SamplingParams params;  // checked, with the sequence's own seed; n is 1
  ConstraintSpec constraint;
  SharedList<int32_t> kept_special;  // special tokens that stop strings see, too
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;
  std::vector<uint64_t> rows;  // the digests of the logits of each token
  std::string finish;          // stop or length

  // With "digest", which is over all the rest.
  json::Value to_json() const;
};

struct ReadReceipt {
  Receipt receipt;
  bool intact = true;  // its digest is that of its contents
};
// The Error names the member that is missing or wrong.
Result<ReadReceipt> read_receipt(const json::Value& value);

}  // namespace quire::llm
