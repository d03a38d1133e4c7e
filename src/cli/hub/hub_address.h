// SPDX-License-Identifier: Apache-2.0
// A hub's page address, as a browser shows it, taken apart into what `quire pull` needs.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace quire::cli {

struct HubAddress {
  std::string name;      // "owner/name", or "name" alone, perhaps with ":QUANT"
  std::string revision;  // "" when the address has none
  std::string path;      // of a file (blob, resolve) or a folder (tree) in the repository; "" for all of it
  bool is_folder = false;
};

// Whether the argument is an address rather than a name: it has a scheme, or begins with the name of the public hub.
bool is_hub_address(std::string_view text);

// Understands https://huggingface.co/owner/name and hf.co/owner/name with /tree/REVISION[/FOLDER],
// /blob/REVISION/FILE or /resolve/REVISION/FILE behind it. The host must be the public hub, which stands for
// `endpoint` too, or the host of `endpoint`: another one would get the user's token.
Result<HubAddress> parse_hub_address(std::string_view text, std::string_view endpoint);

}  // namespace quire::cli
