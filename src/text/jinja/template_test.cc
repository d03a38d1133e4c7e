// SPDX-License-Identifier: Apache-2.0
// The engine alone: what templates print, which errors they give, and what they may use up.
#include "text/jinja/template.h"

#include <gtest/gtest.h>

namespace quire::text::jinja {
namespace {

TEST(Template, PrintsText) {
  EXPECT_EQ(*Template::parse("hello")->render(json::Value(json::Object{})), "hello");
}

}  // namespace
}  // namespace quire::text::jinja
