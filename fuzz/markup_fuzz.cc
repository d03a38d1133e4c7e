// SPDX-License-Identifier: Apache-2.0
// Any text in any markup is read without a failure, and the same in pieces as in one. The first four bytes choose the
// tool parser, the reasoning parser, the options and the length of the pieces; the rest is the answer.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "markup/formats.h"
#include "markup/testing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire::markup;
  if (size < 4) return 0;
  const auto tools = tool_formats();
  const auto reasonings = reasoning_formats();
  Dialect dialect;
  dialect.tools = &tools[data[0] % tools.size()];
  const size_t reasoning = data[1] % (reasonings.size() + 1);
  if (reasoning < reasonings.size()) dialect.reasoning = &reasonings[reasoning];
  ParseOptions options = testing::options_of((data[2] & 1) != 0 ? ToolChoice::kNone : ToolChoice::kAuto);
  options.parallel = (data[2] & 2) == 0;
  options.starts_in_reasoning = (data[2] & 4) != 0;
  const bool truncated = (data[2] & 8) != 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 4, size - 4);

  const testing::Answer whole = testing::parse_whole(dialect, options, text, truncated);
  std::vector<size_t> cuts;
  for (size_t cut = 0; cut < text.size(); cut += 1 + data[3] % 16) cuts.push_back(cut);
  const testing::Answer streamed = testing::parse_in_pieces(dialect, options, text, cuts, truncated);
  QUIRE_CHECK(whole == streamed, "an answer in pieces is read as the whole one");
  for (const testing::Call& call : whole.calls) QUIRE_CHECK(call.ended, "every call ends");
  QUIRE_CHECK(options.parallel || whole.calls.size() <= 1, "one call at most without parallel calls");
  return 0;
}
