// SPDX-License-Identifier: Apache-2.0
// Parses the address of a hub's page, as a browser shows it, for `quire pull`.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace quire::cli {

struct HubAddress {
  std::string name;      // "owner/name" or "name", optionally with ":QUANT"
  std::string revision;  // "" if the address has none
  std::string path;      // of a file (blob, resolve) or folder (tree) in the repository; "" for all files
  bool is_folder = false;
};

// Whether the argument is an address and not a name: it has a scheme, or begins with the name of the public hub.
bool is_hub_address(std::string_view text);

// Accepts https://huggingface.co/owner/name and hf.co/owner/name, optionally followed by /tree/REVISION[/FOLDER],
// /blob/REVISION/FILE or /resolve/REVISION/FILE. The host must be the public hub, which also stands for `endpoint`, or
// the host of `endpoint`: any other host would get the user's token.
Result<HubAddress> parse_hub_address(std::string_view text, std::string_view endpoint);

}  // namespace quire::cli
