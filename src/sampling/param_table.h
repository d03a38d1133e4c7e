// SPDX-License-Identifier: Apache-2.0
// The table of sampling parameters: request fields, generation_config.json, flags, range checks and the rows of a
// backend that samples are made from it.
#pragma once

#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ops/sample_settings.h"
#include "sampling/params.h"

namespace quire::sampling {

using Strings = SharedList<std::string>;
using TokenIds = SharedList<int32_t>;
using LogitBias = SharedList<std::pair<int32_t, float>>;

// Where a parameter can be given besides its request field.
enum ParamSource : uint8_t { kInFile = 1, kHasFlag = 2 };  // generation_config.json; quire run and chat

// What is true of a parameter beyond its type.
struct ParamRules {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;                   // min itself is out of range
  const char* range = nullptr;              // the range in words, where min and max do not describe it
  const char* default_text = nullptr;       // nullptr: the default of the member
  const char* flag_doc = nullptr;           // nullptr: doc
  float SampleSettings::*device = nullptr;  // where a backend that samples finds its value; nullptr: see device_rows.cc
};

// One parameter. The type of its member is also the type of its field and of its flag.
struct ParamInfo {
  using Member =
      std::variant<double SamplingParams::*, int64_t SamplingParams::*, std::optional<int64_t> SamplingParams::*,
                   bool SamplingParams::*, Strings SamplingParams::*, TokenIds SamplingParams::*,
                   std::optional<TokenIds> SamplingParams::*, LogitBias SamplingParams::*>;
  const char* name;  // of the request field; top_k has the flag --top-k
  Member member;
  int sources;
  const char* doc;  // of the request field; nullptr: each endpoint has a field of its own
  ParamRules rules = {};
};

std::span<const ParamInfo> param_table();

// Checks the value of a number against its range; parameters of other types have none.
Status check_range(const ParamInfo& info, const SamplingParams& params);
// "the model's, else 1", "false"; "" if there is none.
// REQUIRES: info is a row of param_table().
const char* default_text(const ParamInfo& info);

}  // namespace quire::sampling
