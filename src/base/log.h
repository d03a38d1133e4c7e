// SPDX-License-Identifier: Apache-2.0
// The program's logger: spdlog to standard error. A message whose level is off costs nothing.
#pragma once

#include <fmt/format.h>
#include <spdlog/spdlog.h>

// fmt 9 would compile its formatting of numbers again in each file that logs, which takes two seconds; its library has
// it, under the name that gcc gives to it.
#if FMT_VERSION >= 90000 && FMT_VERSION < 100000 && !defined(FMT_HEADER_ONLY) && !defined(__clang__)
FMT_BEGIN_NAMESPACE
namespace detail {
extern template void vformat_to<char>(buffer<char>&, basic_string_view<char>, basic_format_args<buffer_context<char>>,
                                      locale_ref);
}  // namespace detail
FMT_END_NAMESPACE
#endif

namespace quire {

// Sets pattern and level, once at start. `level` is debug, info, warning or error (as --log-level takes them).
void init_logging(const char* level);

}  // namespace quire
