// SPDX-License-Identifier: Apache-2.0
// Parents of spans from traceparent headers, and which spans are made. The Python tests decode whole spans.
#include "telemetry/span.h"

#include <gtest/gtest.h>

namespace quire::telemetry {
namespace {

const std::string kTrace = "0af7651916cd43dd8448eb211c80319c", kSpan = "b7ad6b7169203331";

std::string header(const std::string& version = "00", const std::string& flags = "01") {
  return version + "-" + kTrace + "-" + kSpan + "-" + flags;
}

TEST(TraceParent, IsReadAsW3cSays) {
  const auto parent = parse_traceparent(header());
  ASSERT_TRUE(parent.has_value());
  EXPECT_EQ(parent->trace_id, "\x0a\xf7\x65\x19\x16\xcd\x43\xdd\x84\x48\xeb\x21\x1c\x80\x31\x9c");
  EXPECT_EQ(parent->span_id, "\xb7\xad\x6b\x71\x69\x20\x33\x31");
  EXPECT_TRUE(parent->sampled);
  EXPECT_FALSE(parse_traceparent(header("00", "00"))->sampled);
  EXPECT_TRUE(parse_traceparent(header("00", "ff"))->sampled);
  EXPECT_TRUE(parse_traceparent(header("01") + "-more").has_value()) << "a later version may add to it";
}

TEST(TraceParent, OtherHeadersAreIgnored) {
  std::vector<std::string> wrong = {"",
                                    "00",
                                    header("ff"),
                                    header("0g"),
                                    header() + "-more",
                                    header("01") + "more",
                                    header("00", "0"),
                                    header("00", "zz"),
                                    std::string(55, '-'),
                                    std::string(55, '0')};
  wrong.push_back("00-" + std::string(32, '0') + "-" + kSpan + "-01");
  wrong.push_back("00-" + kTrace + "-" + std::string(16, '0') + "-01");
  std::string upper = header();
  for (char& c : upper) c = static_cast<char>(std::toupper(c));
  wrong.push_back(upper);
  for (const std::string& text : wrong) EXPECT_FALSE(parse_traceparent(text).has_value()) << text;
}

TEST(Span, ATraceThatIsNotRecordedHasNone) {
  llm::RequestTrace trace;
  const auto new_id = [](size_t size) { return std::string(size, 'i'); };
  EXPECT_TRUE(encode_span(trace, "m", new_id).has_value());
  trace.context.traceparent = header("00", "00");
  EXPECT_FALSE(encode_span(trace, "m", new_id).has_value());
  trace.context.traceparent = header();
  EXPECT_TRUE(encode_span(trace, "m", new_id).has_value());
}

TEST(Span, NamesFromClientsBecomeValidText) {
  llm::RequestTrace trace;
  trace.id = "odd\xff";
  trace.context = {header(), "a=\xff"};
  const std::string span = *encode_span(trace, "m", [](size_t size) { return std::string(size, 'i'); });
  EXPECT_NE(span.find("odd\xEF\xBF\xBD"), std::string::npos);
  EXPECT_EQ(span.find("a="), std::string::npos);
}

}  // namespace
}  // namespace quire::telemetry
