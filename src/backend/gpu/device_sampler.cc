// SPDX-License-Identifier: Apache-2.0
// A few launches over the rows of logits per call of sample().
#include "backend/gpu/device_sampler.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/gpu/device_failure.h"
#include "backend/gpu/grid_math.h"
#include "base/check.h"
#include "kernels/params/sampling.h"
#include "ops/row_digest.h"

namespace quire::gpu {
namespace {

static_assert(sizeof(SampledRow) == sizeof(SampleResult) && sizeof(SampledTop) == sizeof(SampleTopResult));
static_assert(kMaxSampleLogprobs == kSampleTop);
static_assert(kSampleNan == static_cast<int>(kSampleFaultNan) &&
              kSampleInfinite == static_cast<int>(kSampleFaultInfinite) &&
              kSampleEmpty == static_cast<int>(kSampleFaultEmpty));

SampleRowData data_of(const SampleRow& row) {
  SampleRowData out = {};
  out.greedy = row.temperature == 0;
  if (out.greedy == 0) {  // a greedy row's data stay the same from token to token
    out.seed_low = static_cast<uint>(row.seed);
    out.seed_high = static_cast<uint>(row.seed >> 32);
    out.position_low = static_cast<uint>(static_cast<uint64_t>(row.position));
    out.position_high = static_cast<uint>(static_cast<uint64_t>(row.position) >> 32);
  }
  out.settings = row;
  if (out.greedy != 0) out.settings.temperature = 1;
  out.mask = row.mask;
  out.logprob_mask = row.logprob_mask;
  out.first_edit = row.first_edit;
  out.num_edits = row.num_edits;
  out.logprobs = row.logprobs;
  out.digest = row.digest ? 1 : 0;
  return out;
}

bool truncates(const SampleRow& row) {
  return row.temperature != 0 && (row.top_k > 0 || row.top_p < 1 || row.log_min_p <= 0);
}

Status take(Result<std::unique_ptr<Memory>> made, std::unique_ptr<Memory>& to) {
  if (!made.ok()) return made.failure();
  to = std::move(made).value();
  return {};
}

}  // namespace

Status DeviceSampler::prepare(int64_t rows, int64_t rows_of_a_call, int64_t vocab) {
  QUIRE_CHECK(rows > 0 && rows_of_a_call > 0 && vocab > 0);
  const int64_t chunks = (vocab + kSampleChunk - 1) / kSampleChunk;
  if (rows <= rows_ && rows_of_a_call <= rows_of_a_call_ && chunks == chunks_) return {};
  chunks_ = chunks;
  if (chunks_ > kSampleMaxChunks) {
    return unsupported(
        {"the vocabulary has ", vocab, " tokens; on a GPU it may have ", int64_t{kSampleMaxChunks} * kSampleChunk});
  }
  const auto allocate = [&](std::unique_ptr<Memory>& to, int64_t count, size_t each) {
    return take(device_.allocate(static_cast<size_t>(count) * each), to);
  };
  const auto allocate_host = [&](std::unique_ptr<Memory>& to, int64_t count, size_t each) {
    return take(device_.allocate_host(static_cast<size_t>(count) * each), to);
  };
  const int64_t partials = rows_of_a_call * chunks_;
  QUIRE_TRY(allocate(partials_, partials, sizeof(SamplePartial)));
  QUIRE_TRY(allocate(bins_, partials, sizeof(SampleBins)));
  QUIRE_TRY(allocate(values_, partials, kSampleChunk * sizeof(float)));
  QUIRE_TRY(allocate(candidates_, partials, sizeof(SampleListed)));
  QUIRE_TRY(allocate(searches_, rows_of_a_call, sizeof(SampleSearch)));
  QUIRE_TRY(allocate(thresholds_, rows_of_a_call, sizeof(SampleCut)));
  QUIRE_TRY(allocate(logprobs_, partials, sizeof(SampleLogprobPartial)));
  for (Area& area : areas_) {
    QUIRE_TRY(allocate(area.results, rows, sizeof(SampleResult)));
    QUIRE_TRY(allocate_host(area.host_results, rows, sizeof(SampleResult)));
    QUIRE_TRY(allocate(area.top, rows, kSampleTop * sizeof(SampleTopResult)));
    QUIRE_TRY(allocate_host(area.host_top, rows, kSampleTop * sizeof(SampleTopResult)));
    QUIRE_TRY(allocate_host(area.host_digests, rows, kSampleDigestParts * sizeof(SampleDigestSums)));
  }
  rows_ = rows;
  rows_of_a_call_ = rows_of_a_call;
  return {};
}

size_t DeviceSampler::device_bytes() const {
  size_t total = 0;
  for (const auto* memory : {&partials_, &bins_, &values_, &candidates_, &searches_, &thresholds_, &logprobs_}) {
    total += (*memory)->bytes();
  }
  for (const Area& area : areas_) total += area.results->bytes() + area.top->bytes();
  return total;
}

// An area is filled again when the work that used it is done, which the host has usually waited for long before.
DeviceSampler::Area& DeviceSampler::open_area() {
  Area& area = areas_[next_];
  if (area.open) return area;
  if (area.mark != 0) require(device_.wait(area.mark));
  area.open = true;
  area.has_top = false;
  area.digested.clear();
  area.inputs_used = 0;
  return area;
}

DeviceSampler::Inputs DeviceSampler::allocate_inputs(Area& area, size_t bytes) {
  bytes = aligned(std::max<size_t>(bytes, 1));
  if (area.inputs == nullptr || area.inputs_used + bytes > area.inputs->bytes()) {
    // Earlier launches may still read the old block, so it is freed when they are done.
    const size_t size = std::max(aligned(2 * (area.inputs_used + bytes)), size_t{256} << 10);
    auto host = require(device_.allocate_host(size));
    auto memory = require(device_.allocate(size));
    if (area.inputs != nullptr) require(device_.synchronise());
    area.host_inputs = std::move(host);
    area.inputs = std::move(memory);
    area.inputs_used = area.inputs_known = 0;
  }
  const Inputs at{static_cast<std::byte*>(area.host_inputs->address()) + area.inputs_used,
                  static_cast<std::byte*>(area.inputs->address()) + area.inputs_used};
  area.inputs_used += bytes;
  return at;
}

// Settings, edits and masks, in one piece. What the area's last step had at the same place is on the device already.
DeviceSampler::RowInputs DeviceSampler::upload_inputs(Area& area, const SampleArgs& args) {
  const size_t row_bytes = aligned(args.rows.size() * sizeof(SampleRowData));
  const size_t edit_bytes = aligned(args.edits.size() * sizeof(SampleEdit));
  const size_t head_bytes = row_bytes + edit_bytes;
  const size_t bytes = head_bytes + args.masks.size_bytes();
  packed_.assign(head_bytes, std::byte{0});
  auto* rows = reinterpret_cast<SampleRowData*>(packed_.data());
  for (size_t i = 0; i < args.rows.size(); ++i) {
    QUIRE_CHECK(args.rows[i].logprobs <= kMaxSampleLogprobs && args.rows[i].mask >= -1 &&
                args.rows[i].logprob_mask >= -1);
    rows[i] = data_of(args.rows[i]);
  }
  auto* edits = reinterpret_cast<SampleEdit*>(packed_.data() + row_bytes);
  for (size_t i = 0; i < args.edits.size(); ++i) {
    const TokenEdit& edit = args.edits[i];
    QUIRE_CHECK(edit.token >= 0 && edit.token < args.logits.cols);
    const uint flags = (edit.forbidden ? 1u : 0u) | (edit.seen ? 2u : 0u);
    edits[i] = {edit.token, flags | static_cast<uint>(edit.count) << 2, edit.bias};
  }
  const Inputs inputs = allocate_inputs(area, bytes);
  const bool known =
      area.inputs_known >= area.inputs_used && std::memcmp(inputs.host, packed_.data(), head_bytes) == 0 &&
      (args.masks.empty() || std::memcmp(inputs.host + head_bytes, args.masks.data(), args.masks.size_bytes()) == 0);
  if (!known) {
    std::memcpy(inputs.host, packed_.data(), head_bytes);
    if (!args.masks.empty()) std::memcpy(inputs.host + head_bytes, args.masks.data(), args.masks.size_bytes());
    device_.upload(inputs.device, inputs.host, bytes);
    area.inputs_known = area.inputs_used;
  }
  return {inputs.device, inputs.device + row_bytes, inputs.device + row_bytes + edit_bytes};
}

void DeviceSampler::sample(const SampleArgs& args, const KnownLargest& largest) {
  const auto rows = static_cast<int64_t>(args.rows.size());
  const Tensor& logits = args.logits;
  QUIRE_CHECK(rows > 0 && logits.rows == rows && rows <= rows_of_a_call_ && logits.dtype == DType::kF32);
  QUIRE_CHECK(args.place >= 0 && args.place + rows <= rows_);
  Area& area = open_area();
  const RowInputs in = upload_inputs(area, args);
  const bool edited = !args.edits.empty();
  const bool logprobs =
      std::any_of(args.rows.begin(), args.rows.end(), [](const auto& row) { return row.logprobs >= 0; });

  SampleParams p = {};
  p.stride = logits.stride;
  p.vocab = static_cast<int>(logits.cols);
  p.chunks = static_cast<int>((logits.cols + kSampleChunk - 1) / kSampleChunk);
  p.words = static_cast<int>((logits.cols + 31) / 32);
  p.aligned = logits.stride % 4 == 0 && reinterpret_cast<uintptr_t>(logits.data) % 16 == 0;
  QUIRE_CHECK(p.chunks <= chunks_);
  const Grid over_rows{static_cast<uint32_t>(rows)};
  const Grid over_chunks{static_cast<uint32_t>(p.chunks), static_cast<uint32_t>(rows)};
  auto* results = static_cast<SampleResult*>(area.results->address()) + args.place;
  auto* top = static_cast<SampleTopResult*>(area.top->address()) + args.place * kSampleTop;
  void* saved = edited ? saved_.grow(args.edits.size() * sizeof(float)) : nullptr;
  const auto edit = [&] {
    launcher_.launch(KernelId::kSampleEdits, p, {logits.data, saved, in.settings, in.edits}, over_rows, kSampleThreads);
  };

  launch_digest(area, args, in);
  if (logprobs) {
    launcher_.launch(KernelId::kSampleLogprobChunks, p, {logprobs_->address(), logits.data, in.settings, in.masks},
                     over_chunks, kSampleThreads);
  }
  if (edited) edit();
  void* partials = largest.partials;
  if (partials == nullptr) {
    partials = partials_->address();
    launcher_.launch(KernelId::kSampleChunks, p, {partials, logits.data, in.settings, in.masks}, over_chunks,
                     kSampleThreads);
  }
  if (std::any_of(args.rows.begin(), args.rows.end(), truncates)) {
    launch_top_k_top_p(p, logits, in, partials, over_rows, over_chunks);
  }
  // Results stay on the device for the next step; the kernel writes them to the host's memory as well.
  auto* host_results = static_cast<SampleResult*>(area.host_results->address()) + args.place;
  SampleParams of_partials = p;
  if (largest.partials != nullptr) of_partials.chunks = largest.threadgroups;
  launcher_.launch(KernelId::kSampleRows, of_partials, {results, host_results, in.settings, partials}, over_rows, 32);
  if (!logprobs) return;
  area.has_top = true;
  if (edited) {
    p.restore = 1;
    edit();
  }
  launcher_.launch(KernelId::kSampleLogprobRows, p,
                   {results, top, logits.data, in.settings, logprobs_->address(), in.masks}, over_rows,
                   kSampleRowThreads);
}

// The digests of the rows that want them. The kernel writes them to the host's memory.
void DeviceSampler::launch_digest(Area& area, const SampleArgs& args, const RowInputs& in) {
  if (std::none_of(args.rows.begin(), args.rows.end(), [](const SampleRow& row) { return row.digest; })) return;
  const Tensor& logits = args.logits;
  SampleDigestParams p = {};
  p.stride = logits.stride;
  p.vocab = static_cast<int>(logits.cols);
  p.chunks = static_cast<int>(row_digest_chunks(logits.cols));
  p.simdgroups = std::min<int>(p.chunks, kSampleDigestSimdgroups);
  p.parts = std::min<int>((p.chunks + p.simdgroups - 1) / p.simdgroups, kSampleDigestParts);
  const auto place = static_cast<size_t>(args.place);
  area.digested.resize(std::max(area.digested.size(), place + args.rows.size()), false);
  for (size_t i = 0; i < args.rows.size(); ++i) area.digested[place + i] = args.rows[i].digest;
  area.digest_parts = p.parts;
  area.digest_columns = logits.cols;
  auto* sums = static_cast<SampleDigestSums*>(area.host_digests->address()) + args.place * kSampleDigestParts;
  launcher_.launch(KernelId::kSampleDigest, p, {sums, logits.data, in.settings},
                   {static_cast<uint32_t>(p.parts), static_cast<uint32_t>(args.rows.size())},
                   static_cast<uint32_t>(32 * p.simdgroups));
}

// Adds the sums of a finished area. REQUIRES: its work is done.
void DeviceSampler::add_digests(Area& area) {
  area.digests.assign(area.digested.empty() ? 0 : static_cast<size_t>(area.rows), 0);
  const auto* sums = static_cast<const SampleDigestSums*>(area.host_digests->address());
  for (size_t row = 0; row < std::min(area.digests.size(), area.digested.size()); ++row) {
    if (!area.digested[row]) continue;
    RowDigestSums sum;
    for (int part = 0; part < area.digest_parts; ++part) {
      sum.high += sums[row * kSampleDigestParts + static_cast<size_t>(part)].high;
      sum.low += sums[row * kSampleDigestParts + static_cast<size_t>(part)].low;
    }
    area.digests[row] = row_digest_of(sum, area.digest_columns);
  }
}

// The smallest logit that top-k, top-p and min-p leave in each row, and a draw among the tokens above it.
void DeviceSampler::launch_top_k_top_p(const SampleParams& p, const Tensor& logits, const RowInputs& in, void* partials,
                                       Grid rows, Grid chunks) {
  void* bins = bins_->address();
  void* values = values_->address();
  void* candidates = candidates_->address();
  void* searches = searches_->address();
  void* thresholds = thresholds_->address();
  launcher_.launch(KernelId::kSampleBinning, p, {bins, logits.data, in.settings, in.masks, partials}, chunks,
                   kSampleThreads);
  launcher_.launch(KernelId::kSampleList, p,
                   {values, candidates, searches, logits.data, in.settings, in.masks, partials, bins}, chunks,
                   kSampleThreads);
  launcher_.launch(KernelId::kSampleCuts, p,
                   {thresholds, logits.data, in.settings, in.masks, partials, values, candidates, searches}, rows,
                   kSampleRowThreads);
  launcher_.launch(KernelId::kSampleDraws, p, {partials, logits.data, in.settings, in.masks, searches, thresholds},
                   chunks, kSampleThreads);
}

uint64_t DeviceSampler::finish(int64_t rows) {
  QUIRE_CHECK(rows > 0 && rows <= rows_);
  Area& area = areas_[next_];
  QUIRE_CHECK(area.open, "no row was sampled");
  const auto count = static_cast<size_t>(rows);
  if (area.has_top) {  // the last kernel has added logprobs to the results
    device_.download(area.host_results->address(), area.results->address(), count * sizeof(SampleResult));
    device_.download(area.host_top->address(), area.top->address(), count * kSampleTop * sizeof(SampleTopResult));
  }
  area.mark = device_.mark();
  area.rows = rows;
  area.open = false;
  const auto finished = static_cast<uint64_t>(next_);
  next_ = 1 - next_;
  return finished;
}

SampledRows DeviceSampler::sampled(uint64_t finished) {
  Area& area = areas_[finished];
  QUIRE_CHECK(!area.open && area.rows > 0);
  require(device_.wait(area.mark));
  const auto count = static_cast<size_t>(area.rows);
  const auto* top = static_cast<const SampledTop*>(area.host_top->address());
  add_digests(area);
  return {{static_cast<const SampledRow*>(area.host_results->address()), count},
          {top, area.has_top ? count * kSampleTop : 0},
          area.digests};
}

void DeviceSampler::set_pending_tokens(const TakeSampledArgs& args) {
  QUIRE_CHECK(args.tokens.size() == args.rows.size() && !args.tokens.empty() && !pending_tokens_);
  QUIRE_CHECK(areas_[1 - next_].rows > 0, "no step has sampled yet");
  pending_tokens_ = args;
}

TakeSampledArgs DeviceSampler::take_pending_tokens() {
  const TakeSampledArgs args = *pending_tokens_;
  pending_tokens_.reset();
  return args;
}

void DeviceSampler::set_pending_rows(const SkipAcceptedArgs& args) {
  QUIRE_CHECK(args.tokens.size() == args.drafts.size() && !args.wanted.empty() && pending_tokens_ && !pending_rows_);
  pending_rows_ = args;
}

// A launch first fills in what waits, so nothing may wait any more when the first of these is made.
void DeviceSampler::fill_pending() {
  const auto tokens = std::exchange(pending_tokens_, std::nullopt);
  const auto rows = std::exchange(pending_rows_, std::nullopt);
  if (tokens) {
    const TakeSampledParams p{static_cast<int>(tokens->tokens.size())};
    launcher_.launch(KernelId::kTakeSampled, p, {tokens->tokens.data(), tokens->rows.data(), last_results()},
                     {grid_div(p.count, 256)}, 256);
  }
  if (rows) {
    const SkipAcceptedParams p{static_cast<int>(rows->wanted.size()), static_cast<int>(rows->tokens.size())};
    launcher_.launch(KernelId::kSkipAccepted, p, {rows->wanted.data(), rows->tokens.data(), rows->drafts.data()},
                     {grid_div(p.count, 256)}, 256);
  }
}

}  // namespace quire::gpu
