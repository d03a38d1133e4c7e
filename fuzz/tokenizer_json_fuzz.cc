// SPDX-License-Identifier: Apache-2.0
// Any bytes as a tokenizer.json give an error, or a tokenizer that encodes and decodes.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire::text;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto loaded = load_tokenizer_json(input);
  if (!loaded.ok()) return 0;
  const TokenizerPtr& tokenizer = loaded.value();
  // A fixed text that exercises most steps, and the end of the file itself.
  const std::string text =
      "It's 12 o'clock,  \n\tz\xc3\xa9ro <s> \xe4\xb8\xad\xe2\x96\x81\xf0\x9f\x98\x80 e\xcc\x81 \xff" +
      std::string(input.substr(size > 32 ? size - 32 : 0));
  for (const bool parse : {true, false}) {
    const auto ids = tokenizer->encode(text, {.add_special_tokens = true, .parse_special = parse});
    const std::string decoded = tokenizer->decode(ids, parse);
    Detokenizer stream(tokenizer, parse);
    std::string joined;
    for (const int32_t id : ids) joined += stream.push(id);
    joined += stream.flush();
    QUIRE_CHECK(joined == decoded, "the stream must equal decode()");
    QUIRE_CHECK(quire::utf8::is_valid(decoded), "decoded text must be UTF-8");
  }
  return 0;
}
