// SPDX-License-Identifier: Apache-2.0
// The API described for programs and people. All three documents are made from the route table and the tables of
// fields.
#pragma once

#include <string>
#include <string_view>

namespace quire::api {

std::string openapi_json(std::string_view version);                            // /openapi.json
std::string api_markdown();                                                    // docs/api.md
std::string docs_page(std::string_view version, std::string_view model_name);  // /docs: HTML that loads nothing else

}  // namespace quire::api
