// SPDX-License-Identifier: Apache-2.0
// The flat Metal text holds every kernel of the host build, with the same parameters, buffers and threadgroup memory.
#include <gtest/gtest.h>

#include "backend/emulator/emulator.h"
#include "kernels/embedded.h"
#include "tests/kernels/msl_kernels.h"

namespace quire::kernels {
namespace {

TEST(MslKernels, EveryKernelOfTheHostBuildIsInTheMetalText) {
  ASSERT_FALSE(emulator::all_kernels().empty());
  for (const emulator::KernelRecord* host : emulator::all_kernels()) {
    SCOPED_TRACE(host->name);
    const emulator::KernelRecord* msl = find_msl_kernel(host->name);
    ASSERT_NE(msl, nullptr);
    EXPECT_NE(msl->entry, host->entry);
    EXPECT_EQ(msl->params_bytes, host->params_bytes);
    EXPECT_EQ(msl->threadgroup_bytes, host->threadgroup_bytes);
    EXPECT_EQ(msl->buffers, host->buffers);
    EXPECT_EQ(msl->max_threads, host->max_threads);
  }
}

// What the program embeds needs no file of ours, and no word that Metal does not have.
TEST(MslKernels, EmbeddedTextsAreWhole) {
  ASSERT_FALSE(metal_texts().empty());
  for (const EmbeddedText& text : metal_texts()) {
    SCOPED_TRACE(text.name);
    EXPECT_TRUE(text.text.starts_with("#include <metal_stdlib>\n"));
    for (const char* word : {"#include \"", "KERNEL", "DEVICE", "TGROUP", "QUIRE_", "static_assert", "#line", "# 1 "}) {
      EXPECT_EQ(text.text.find(word), std::string_view::npos) << word;
    }
    EXPECT_NE(text.text.find("[[kernel, max_total_threads_per_threadgroup("), std::string_view::npos);
    EXPECT_NE(text.text.find("#pragma METAL fp contract(off)"), std::string_view::npos);
  }
}

}  // namespace
}  // namespace quire::kernels
