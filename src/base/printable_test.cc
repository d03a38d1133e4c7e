// SPDX-License-Identifier: Apache-2.0
// What a terminal must not get is written out.
#include "base/printable.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(Printable, WritesOutControlCharactersAndBytesThatAreNoText) {
  EXPECT_EQ(printable(""), "");
  EXPECT_EQ(printable("plain, größe 🙂\n\tnext"), "plain, größe 🙂\n\tnext");
  EXPECT_EQ(printable("\x1b[31mred\r\x07"), "\\x1b[31mred\\x0d\\x07");
  EXPECT_EQ(printable(std::string_view("a\0b\x7f", 4)), "a\\x00b\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\xc2\\x9b31m");  // the escape sequences of C1
  EXPECT_EQ(printable("a\xff\xe2\x82"), "a\\xff\\xe2\\x82");
}

}  // namespace
}  // namespace quire
