// SPDX-License-Identifier: Apache-2.0
// The memory plan's numbers, its errors, and where the available memory is read from.
#include "kv/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <utility>

#include "base/test_folder.h"

namespace quire::kv {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;

// A page of 16 tokens is 64 KiB: 2 layers * 16 * 4 heads * (128 + 128) * 2 bytes.
MemoryInputs inputs() {
  MemoryInputs in;
  in.layout.groups = {{CacheKind::kFull, 16, 0, 2, 32 * kKiB}};
  in.layout.slots = 2;
  in.layout.slot_bytes = 32 * kKiB;
  in.weights_bytes = 100 * kMiB;
  in.scratch_bytes = 20 * kMiB;
  in.available_bytes = kGiB;
  in.max_model_len = 1024;  // 64 pages, 4 MiB
  in.max_num_seqs = 8;
  return in;
}

MemoryPlan planned(const MemoryInputs& in) {
  const auto plan = plan_memory(in);
  EXPECT_TRUE(plan.ok()) << plan.error().message;
  return plan.ok() ? *plan : MemoryPlan{};
}

Error refused(const MemoryInputs& in) {
  const auto plan = plan_memory(in);
  EXPECT_FALSE(plan.ok());
  return plan.ok() ? Error{} : plan.error();
}

TEST(MemoryPlan, TakesAllThatTheSequencesCanUseWhenItFits) {
  const MemoryInputs in = inputs();
  ASSERT_EQ(in.layout.page_bytes(), 64 * kKiB);
  const MemoryPlan plan = planned(in);
  EXPECT_EQ(plan.num_blocks, 8 * 64 + 1);
  EXPECT_EQ(plan.kv_bytes, (8 * 64 + 1) * 64 * kKiB);
  EXPECT_EQ(plan.num_tokens(), 8 * 1024);
  EXPECT_DOUBLE_EQ(plan.full_length_requests(), 8.0);
  EXPECT_EQ(plan.left_bytes, kGiB - 120 * kMiB - plan.kv_bytes);
}

TEST(MemoryPlan, TakesAllThatIsLeftOfADevicesMemoryAndNamesTheDevice) {
  MemoryInputs in = inputs();
  in.max_num_seqs = 1000;
  in.device = "NVIDIA H200";
  const MemoryPlan plan = planned(in);
  EXPECT_EQ(plan.kv_bytes, kGiB - 120 * kMiB);
  EXPECT_EQ(plan.left_bytes, 0);
  EXPECT_THAT(plan.line(), HasSubstr("Memory of NVIDIA H200: weights 100 MiB"));
  in.max_num_seqs = 8;  // no more than the sequences can use
  EXPECT_EQ(planned(in).num_blocks, 8 * 64 + 1);
}

TEST(MemoryPlan, TakesAtMostHalfOfTheAvailableMemory) {
  MemoryInputs in = inputs();
  in.max_num_seqs = 1000;
  EXPECT_EQ(planned(in).kv_bytes, 512 * kMiB);
}

TEST(MemoryPlan, TakesAtMostWhatWeightsAndScratchLeave) {
  MemoryInputs in = inputs();
  in.max_num_seqs = 1000;
  in.weights_bytes = 900 * kMiB;
  const MemoryPlan plan = planned(in);
  EXPECT_EQ(plan.kv_bytes, (1024 - 920) * kMiB);
  EXPECT_EQ(plan.left_bytes, 0);
}

TEST(MemoryPlan, TheFlagsOverrideTheBudget) {
  MemoryInputs in = inputs();
  in.kv_cache_memory_bytes = 800 * kMiB + 5;
  EXPECT_EQ(planned(in).num_blocks, 800 * 16);
  in.num_gpu_blocks_override = 100;
  EXPECT_EQ(planned(in).num_blocks, 100);
}

TEST(MemoryPlan, UnknownMemoryIsNotChecked) {
  MemoryInputs in = inputs();
  in.available_bytes = 0;
  const MemoryPlan plan = planned(in);
  EXPECT_EQ(plan.num_blocks, 8 * 64 + 1);
  EXPECT_EQ(plan.left_bytes, std::nullopt);
  EXPECT_THAT(plan.line(), HasSubstr("left unknown"));
}

TEST(MemoryPlan, ALengthThatDoesNotFitIsAnErrorWithTheNumbers) {
  MemoryInputs in = inputs();
  in.max_model_len = 131072;  // 8192 pages and the null page: 512.06 MiB, of 512 MiB
  const Error error = refused(in);
  EXPECT_EQ(error.code, ErrorCode::kExhausted);
  EXPECT_THAT(error.message, HasSubstr("--max-model-len 131072 needs 512 MiB (8193 pages of 64.0 KiB"));
  EXPECT_THAT(error.message, HasSubstr("room for 8192 pages (512 MiB, of 1.00 GiB available)"));
  EXPECT_THAT(error.message,
              HasSubstr("lower --max-model-len to 131056 or raise --kv-cache-memory-bytes to 536936448."));
  in.max_model_len = 131056;  // the advice holds
  EXPECT_EQ(planned(in).num_blocks, 8192);
  in.max_model_len = 131072;
  in.kv_cache_memory_bytes = 536936448;
  EXPECT_EQ(planned(in).num_blocks, 8193);
}

TEST(MemoryPlan, AnOverrideThatCanNotServeOneRequestIsRefused) {
  MemoryInputs in = inputs();
  in.num_gpu_blocks_override = 64;
  EXPECT_THAT(refused(in).message,
              HasSubstr("lower --max-model-len to 1008 or raise --num-gpu-blocks-override to 65."));
  in.num_gpu_blocks_override = 65;
  EXPECT_EQ(planned(in).num_blocks, 65);
  in.num_gpu_blocks_override = 1;
  EXPECT_THAT(refused(in).message, HasSubstr("--num-gpu-blocks-override"));
}

TEST(MemoryPlan, AutomaticLengthIsTheLongestThatFits) {
  MemoryInputs in = inputs();
  in.max_model_len = 1 << 20;
  in.max_model_len_auto = true;
  const MemoryPlan plan = planned(in);
  EXPECT_EQ(plan.max_model_len, (8192 - 1) * 16);
  EXPECT_DOUBLE_EQ(plan.full_length_requests(), 1.0);
  in.max_model_len = 100;  // the model's own length stays when it fits
  EXPECT_EQ(planned(in).max_model_len, 100);
}

TEST(MemoryPlan, MoreThanThereIsCanNotBeAskedFor) {
  MemoryInputs in = inputs();
  in.kv_cache_memory_bytes = 2 * kGiB;
  const Error error = refused(in);
  EXPECT_EQ(error.code, ErrorCode::kExhausted);
  EXPECT_THAT(error.message, HasSubstr("lower --kv-cache-memory-bytes"));
  in = inputs();
  in.weights_bytes = 2 * kGiB;
  EXPECT_THAT(refused(in).message, HasSubstr("the weights need 2.00 GiB"));
}

TEST(MemoryPlan, ExtremeInputsGiveErrorsAndNotOverflow) {
  MemoryInputs in = inputs();
  in.layout.groups.front().block_size = 65536;
  in.layout.slots = 256;
  in.layout.slot_bytes = 128 * kMiB;  // pages of 32 GiB
  in.available_bytes = 0;
  in.max_model_len = int64_t{1} << 31;
  in.max_num_seqs = 1 << 20;
  EXPECT_EQ(refused(in).code, ErrorCode::kExhausted);
  in.max_model_len = 0;
  EXPECT_THAT(refused(in).message, HasSubstr("--max-model-len"));
  in = inputs();
  in.max_num_seqs = 0;
  EXPECT_THAT(refused(in).message, HasSubstr("--max-num-seqs"));
}

TEST(MemoryPlan, SaysItInOneLine) {
  EXPECT_EQ(planned(inputs()).line(),
            "Memory: weights 100 MiB, KV cache 32.1 MiB (513 pages of 16 tokens, float16, 64.0 KiB each), scratch 20.0 "
            "MiB, left 872 MiB; 8.00 requests of 1024 tokens fit at once.");
}

// Qwen3.5-0.8B as docs/kv-cache.md works it out: three groups of states and one of attention, pages of 6.75 MiB.
MemoryInputs hybrid_inputs() {
  MemoryInputs in;
  in.layout.groups.assign(3, {CacheKind::kState, 16, 0, 6, 1'122'304});
  in.layout.groups.push_back({CacheKind::kFull, 576, 0, 6, 1'179'648});
  in.layout.slots = 6;
  in.layout.slot_bytes = 1'179'648;
  in.dtype = KvDType::kBFloat16;
  in.policy = {2048, true};
  in.available_bytes = 16 * kGiB;
  in.max_model_len = 32768;
  in.max_num_seqs = 4;
  return in;
}

TEST(MemoryPlan, SeveralEnginesShareWeightsAndDivideTheRest) {
  MemoryInputs in = inputs();
  in.engines = 2;
  in.max_num_seqs = 1000;
  MemoryPlan plan = planned(in);
  EXPECT_EQ(plan.kv_bytes, kGiB / 2 / 2);  // half of the memory for both
  EXPECT_EQ(plan.total_bytes(), 100 * kMiB + 2 * (20 * kMiB + plan.kv_bytes));
  EXPECT_EQ(plan.left_bytes, kGiB - plan.total_bytes());
  EXPECT_THAT(plan.line(), HasSubstr("weights 100 MiB, once for 2 engines, KV cache 2 x 256 MiB (4096 pages"));
  EXPECT_THAT(plan.line(), HasSubstr("scratch 2 x 20.0 MiB"));
  in.kv_cache_memory_bytes = 64 * kMiB;
  EXPECT_EQ(planned(in).kv_bytes, 32 * kMiB);
  in.num_gpu_blocks_override = 100;  // of each
  EXPECT_EQ(planned(in).num_blocks, 100);
  in.num_gpu_blocks_override = 8000;  // 2 x 500 MiB
  EXPECT_THAT(refused(in).message, HasSubstr("2 x 8000 pages"));
  in = inputs();
  in.engines = 2;
  in.kv_cache_memory_bytes = 5 * kMiB;  // half of it is not enough for a request
  EXPECT_THAT(refused(in).message, HasSubstr("raise --kv-cache-memory-bytes to " + std::to_string(2 * 65 * 64 * kKiB)));
  in.engines = 60;
  EXPECT_THAT(refused(in).message, HasSubstr("1.17 GiB of scratch"));
}

TEST(MemoryPlan, CountsThePagesOfAllGroups) {
  const MemoryPlan plan = planned(hybrid_inputs());
  // 57 pages of attention, a state and a checkpoint in each of three groups, four times, and the null page.
  EXPECT_EQ(plan.num_blocks, 4 * (57 + 6) + 1);
  EXPECT_EQ(plan.layout.num_pages, plan.num_blocks);
  EXPECT_EQ(plan.kv_bytes, plan.num_blocks * int64_t{7'077'888});
  EXPECT_DOUBLE_EQ(plan.full_length_requests(), 4.0);
  EXPECT_EQ(plan.num_tokens(), 4 * 32768);
  EXPECT_EQ(
      plan.line(),
      "Memory: weights 0 B, KV cache 1.67 GiB (253 pages of 576 tokens, bfloat16, 6.75 MiB each; groups: 3 of "
      "states (18 layers, 1.07 MiB each, hits every 16 tokens), 1 of full attention (6 layers, 576 "
      "tokens per page); 6 slots of 1.12 MiB per page, 3.6% padding), scratch 0 B, left 14.3 GiB; 4.00 requests of "
      "32768 tokens fit at once.");
}

TEST(MemoryPlan, WithoutPrefixCachingNoCheckpointIsCounted) {
  MemoryInputs in = hybrid_inputs();
  in.policy.prefix_caching = false;
  EXPECT_EQ(planned(in).num_blocks, 4 * (57 + 3) + 1);
}

TEST(MemoryPlan, AWindowCountsItsWindowAndAStep) {
  MemoryInputs in = inputs();
  in.layout.groups.push_back({CacheKind::kWindow, 16, 100, 2, 32 * kKiB});
  in.policy = {32, true};
  // 64 full pages; 32 + 99 positions touch at most 10 of 16.
  EXPECT_EQ(planned(in).num_blocks, 8 * (64 + 10) + 1);
  in.max_model_len = 64;  // shorter than the window: the same as full
  EXPECT_EQ(planned(in).num_blocks, 8 * (4 + 4) + 1);
}

TEST(MemoryPlan, TheAdviceHoldsForGroupsToo) {
  MemoryInputs in = hybrid_inputs();
  in.num_gpu_blocks_override = 50;
  EXPECT_THAT(refused(in).message, HasSubstr("(64 pages of 6.75 MiB, including the null page), but there is room for "
                                             "50 pages; lower --max-model-len to 24768 or raise "
                                             "--num-gpu-blocks-override to 64."));
  in.max_model_len = 24768;  // 43 x 576, and six states: 49
  EXPECT_EQ(planned(in).num_blocks, 50);
  in.max_model_len = 24769;
  refused(in);
  in.max_model_len_auto = true;
  EXPECT_EQ(planned(in).max_model_len, 24768);
  in.num_gpu_blocks_override = 4;  // not even one token
  EXPECT_THAT(refused(in).message, HasSubstr("raise --num-gpu-blocks-override to"));
  EXPECT_THAT(refused(in).message, ::testing::Not(HasSubstr("lower")));
}

TEST(ParseBytes, ReadsVllmSuffixesAndTheUsualUnits) {
  const std::initializer_list<std::pair<const char*, int64_t>> cases = {
      {"0", 0},
      {"123", 123},
      {"7B", 7},
      {"1k", 1000},
      {"1.5g", 1'500'000'000},
      {"2m", 2'000'000},
      {"0.25t", 250'000'000'000},
      {"1K", 1024},
      {"512M", 512 * kMiB},
      {"4G", 4 * kGiB},
      {"1T", 1024 * kGiB},
      {"4GiB", 4 * kGiB},
      {"1.5GiB", kGiB + 512 * kMiB},
      {"2MB", 2'000'000},
      {"3kB", 3000},
      {"0.5KiB", 512},
  };
  for (const auto& [text, bytes] : cases) {
    const auto parsed = parse_bytes(text, "--flag");
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(ParseBytes, RefusesTheRestWithTheFlagsName) {
  for (const char* text : {"", " ", "-1", "+1", "G", ".5g", "1.g", "1.5", "1.5G", "1.5B", "1 G", "1X", "1GiBs", "1gib",
                           "99999999999999999999", "9999999999T", "0x10", "1e9", "nan"}) {
    const auto parsed = parse_bytes(text, "--kv-cache-memory-bytes");
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_THAT(parsed.error().message, HasSubstr("--kv-cache-memory-bytes: '" + std::string(text) + "'"));
  }
}

TEST(FormatBytes, IsForPeople) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(87 * kMiB + 512 * kKiB), "87.5 MiB");
  EXPECT_EQ(format_bytes(512 * kGiB), "512 GiB");
  EXPECT_EQ(format_bytes(5000 * kGiB), "4.88 TiB");
}

// A folder that stands for "/", with the files the kernel would show.
class FakeRoot {
 public:
  FakeRoot() { write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:    8388608 kB\n"); }
  void write(const std::string& path, const std::string& text) { root_.write(path, text); }
  MemoryInfo info() const {
    const auto info = available_memory(root_.path());
    EXPECT_TRUE(info.ok());
    return info.ok() ? *info : MemoryInfo{};
  }
  const std::filesystem::path& path() const { return root_.path(); }

 private:
  const TempFolder root_;
};

TEST(AvailableMemory, IsTheMachinesWithoutControlGroups) {
  FakeRoot root;
  EXPECT_EQ(root.info().total, 16 * kGiB);
  EXPECT_EQ(root.info().available, 8 * kGiB);
}

TEST(AvailableMemory, IsBoundByEachGroupAbove) {
  FakeRoot root;
  root.write("proc/self/cgroup", "0::/outer/inner\n");
  root.write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  root.write("sys/fs/cgroup/outer/memory.max", std::to_string(4 * kGiB) + "\n");
  root.write("sys/fs/cgroup/outer/memory.current", std::to_string(3 * kGiB) + "\n");
  root.write("sys/fs/cgroup/outer/memory.stat", "anon 5\ninactive_file " + std::to_string(kGiB) + "\n");
  EXPECT_EQ(root.info().total, 4 * kGiB);
  EXPECT_EQ(root.info().available, 2 * kGiB);  // the file cache can go
}

TEST(AvailableMemory, ReadsTheOlderGroupsToo) {
  FakeRoot root;
  root.write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n");
  // In a container the path is the host's; the mount itself is the container's group.
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(2 * kGiB) + "\n");
  root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(kGiB) + "\n");
  EXPECT_EQ(root.info().total, 2 * kGiB);
  EXPECT_EQ(root.info().available, kGiB);
}

TEST(AvailableMemory, TheTighterOfTwoGroupsBinds) {
  FakeRoot root;
  root.write("proc/self/cgroup", "0::/outer/inner\n");
  root.write("sys/fs/cgroup/outer/inner/memory.max", std::to_string(2 * kGiB) + "\n");
  root.write("sys/fs/cgroup/outer/inner/memory.current", "0\n");
  root.write("sys/fs/cgroup/outer/memory.max", std::to_string(4 * kGiB) + "\n");
  root.write("sys/fs/cgroup/outer/memory.current", std::to_string(3 * kGiB) + "\n");
  EXPECT_EQ(root.info().total, 2 * kGiB);
  EXPECT_EQ(root.info().available, kGiB);  // of the outer group less is left
}

TEST(AvailableMemory, AMissingFileIsAnErrorThatNamesIt) {
  const auto info = available_memory("/nonexistent");
  ASSERT_FALSE(info.ok());
  EXPECT_THAT(info.error().message, HasSubstr("/nonexistent/proc/meminfo"));
}

#if defined(__linux__)
TEST(AvailableMemory, OfThisMachineIsPlausible) {
  const auto info = available_memory();
  ASSERT_TRUE(info.ok()) << info.error().message;
  EXPECT_GT(info->total, 16 * kMiB);
  EXPECT_GT(info->available, 0);
  EXPECT_LE(info->available, info->total);
}
#endif

}  // namespace
}  // namespace quire::kv
