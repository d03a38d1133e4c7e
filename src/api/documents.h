// SPDX-License-Identifier: Apache-2.0
// The page at /docs: the routes and their fields, made from the tables, without anything from elsewhere.
#pragma once

#include <string>
#include <string_view>

namespace quire::api {

std::string docs_page(std::string_view version, std::string_view model);

}  // namespace quire::api
