// SPDX-License-Identifier: Apache-2.0
// Any bytes as a tiktoken file and as a tekken.json give an error, or a tokenizer that reproduces every text.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/tiktoken.h"
#include "text/tokenizer.h"

namespace {

using namespace quire::text;

void use(const quire::Result<TokenizerPtr>& loaded) {
  if (!loaded.ok()) return;
  const std::string text = "It's 12 o'clock,  \n\t <s>[INST]<|im_end|> \xe4\xb8\xad\xf0\x9f\x98\x80";
  const auto ids = (*loaded)->encode(text, {.add_special_tokens = false});
  QUIRE_CHECK((*loaded)->vocab_size() > 0, "a tokenizer has tokens");
  (void)(*loaded)->decode(ids, false);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  (void)looks_like_tiktoken(input);
  quire::json::Value config{quire::json::Object{}};
  config.set("tokenizer_class", "QWenTokenizer");
  use(load_tiktoken(input, config, "fuzz"));
  use(load_tekken(input, "fuzz"));
  return 0;
}
