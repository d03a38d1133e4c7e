// SPDX-License-Identifier: Apache-2.0
// The texts of the markers of a dialect.
#include <string>
#include <vector>

#include "markup/formats.h"
#include "markup/markup.h"

namespace quire::markup {
namespace {

void add(std::vector<std::string>& out, std::string_view text) {
  if (!text.empty()) out.emplace_back(text);
}

void add_all(std::vector<std::string>& out, const Texts& texts) {
  for (const std::string_view text : texts) add(out, text);
}

}  // namespace

std::vector<std::string> marker_texts(const Dialect& dialect) {
  std::vector<std::string> out;
  bool harmony = false;
  if (const ToolFormat* f = dialect.tools; f != nullptr) {
    for (const Texts* texts : {&f->begins, &f->ends, &f->skips, &f->keyed.header_ends}) add_all(out, *texts);
    const TaggedCalls& tagged = f->tagged;
    for (const std::string_view text :
         {f->open, f->close, f->string_delimiter, f->keyed.sep, tagged.header_end, tagged.param_open,
          tagged.param_header_end, tagged.value_open, tagged.value_close, f->write_section_begin, f->write_section_end,
          f->write_begin, f->write_end, f->write_separator}) {
      add(out, text);
    }
    harmony = f->encoding == Encoding::kHarmony;
  }
  if (const ReasoningFormat* f = dialect.reasoning; f != nullptr) {
    for (const Texts* texts : {&f->starts, &f->ends, &f->wrappers}) add_all(out, *texts);
    harmony = harmony || f->harmony;
  }
  if (harmony) {
    for (const char* text :
         {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"}) {
      add(out, text);
    }
  }
  return out;
}

}  // namespace quire::markup
