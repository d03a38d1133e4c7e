// SPDX-License-Identifier: Apache-2.0
// The files of src/api/page as the build embeds them.
#pragma once

#include <string_view>

namespace quire::api {

extern const std::string_view kHtml, kCss, kJs;

}  // namespace quire::api
