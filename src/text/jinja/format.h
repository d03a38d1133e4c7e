// SPDX-License-Identifier: Apache-2.0
// Python's two ways to format: "%s" % values and "{}".format(values).
#pragma once

#include <string_view>

#include "text/jinja/value.h"

namespace quire::text::jinja {

// format % values, where values is a tuple, a dict or one value.
Value format_percent(Interpreter& interpreter, const Value& format, const Value& values);
// str.format and str.format_map.
Value format_braces(Interpreter& interpreter, const Value& format, const Args& args, const DictObject* names);

}  // namespace quire::text::jinja
