// SPDX-License-Identifier: Apache-2.0
// Sampling on a GPU: a few launches over the rows of logits, whose results are read back while the next step runs.
#include <algorithm>
#include <cstring>

#include "backend/gpu/gpu_backend.h"
#include "kernels/params/sampling.h"

namespace quire::gpu {
namespace {

static_assert(sizeof(SampledRow) == sizeof(SampleResult) && sizeof(SampledTop) == sizeof(SampleTopResult));
static_assert(kMaxSampleLogprobs == kSampleTop);
static_assert(kSampleNan == static_cast<int>(kSampleFaultNan) &&
              kSampleInfinite == static_cast<int>(kSampleFaultInfinite) &&
              kSampleEmpty == static_cast<int>(kSampleFaultEmpty));

size_t aligned(size_t bytes) {
  constexpr size_t kAlign = 256;
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

SampleRowData data_of(const SampleRow& row) {
  SampleRowData out = {};
  out.greedy = row.temperature == 0;
  if (out.greedy == 0) {  // a greedy row's data stay the same from token to token
    out.seed_low = static_cast<uint>(row.seed);
    out.seed_high = static_cast<uint>(row.seed >> 32);
    out.position_low = static_cast<uint>(static_cast<uint64_t>(row.position));
    out.position_high = static_cast<uint>(static_cast<uint64_t>(row.position) >> 32);
  }
  out.temperature = row.temperature == 0 ? 1.0f : row.temperature;
  out.log_min_p = row.log_min_p;
  out.top_p = row.top_p;
  out.top_k = row.top_k;
  out.repetition = row.repetition;
  out.frequency = row.frequency;
  out.presence = row.presence;
  out.mask = row.mask;
  out.first_edit = row.first_edit;
  out.num_edits = row.num_edits;
  out.logprobs = row.logprobs;
  return out;
}

Status take(Result<std::unique_ptr<Memory>> made, std::unique_ptr<Memory>& to) {
  if (!made.ok()) return made.error();
  to = std::move(made).value();
  return {};
}

}  // namespace

Status GpuBackend::prepare_sampling(int64_t rows, int64_t rows_of_a_call, int64_t vocab) {
  QUIRE_CHECK(rows > 0 && rows_of_a_call > 0 && vocab > 0);
  const int64_t chunks = (vocab + kSampleChunk - 1) / kSampleChunk;
  if (rows <= sample_rows_ && rows_of_a_call <= sample_rows_of_a_call_ && chunks == sample_chunks_) return {};
  sample_chunks_ = chunks;
  if (sample_chunks_ > kSampleMaxChunks) {
    return unsupported("the vocabulary has " + std::to_string(vocab) + " tokens; on a GPU it may have " +
                       std::to_string(int64_t{kSampleMaxChunks} * kSampleChunk));
  }
  const auto bytes = [](int64_t count, size_t each) { return static_cast<size_t>(count) * each; };
  const int64_t partials = rows_of_a_call * sample_chunks_;
  QUIRE_TRY(take(device_->allocate(bytes(partials, sizeof(SamplePartial))), sample_partials_));
  QUIRE_TRY(take(device_->allocate(bytes(partials, sizeof(SampleBins))), sample_bins_));
  QUIRE_TRY(take(device_->allocate(bytes(partials, kSampleChunk * sizeof(float))), sample_values_));
  QUIRE_TRY(take(device_->allocate(bytes(partials, sizeof(SampleListed))), sample_listed_));
  QUIRE_TRY(take(device_->allocate(bytes(rows_of_a_call, sizeof(SampleSearch))), sample_searches_));
  QUIRE_TRY(take(device_->allocate(bytes(rows_of_a_call, sizeof(SampleCut))), sample_cuts_));
  QUIRE_TRY(take(device_->allocate(bytes(partials, sizeof(SampleLogprobPartial))), sample_logprobs_));
  for (SampleArea& area : sample_areas_) {
    QUIRE_TRY(take(device_->allocate(bytes(rows, sizeof(SampleResult))), area.results));
    QUIRE_TRY(take(device_->allocate_host(bytes(rows, sizeof(SampleResult))), area.host_results));
    QUIRE_TRY(take(device_->allocate(bytes(rows, kSampleTop * sizeof(SampleTopResult))), area.top));
    QUIRE_TRY(take(device_->allocate_host(bytes(rows, kSampleTop * sizeof(SampleTopResult))), area.host_top));
  }
  sample_rows_ = rows;
  sample_rows_of_a_call_ = rows_of_a_call;
  return {};
}

// An area is filled again when the work that used it is done; as a rule that was waited for long ago.
GpuBackend::SampleArea& GpuBackend::open_sample_area() {
  SampleArea& area = sample_areas_[sample_area_];
  if (area.open) return area;
  if (area.mark != 0) require(device_->wait(area.mark));
  area.open = true;
  area.tops = false;
  area.used = 0;
  return area;
}

GpuBackend::Given GpuBackend::give(SampleArea& area, size_t bytes) {
  bytes = aligned(std::max<size_t>(bytes, 1));
  if (area.given == nullptr || area.used + bytes > area.given->bytes()) {
    // Launches before may still read the old block: its memory goes when they are done.
    const size_t size = std::max(aligned(2 * bytes), size_t{256} << 10);
    auto host = require(device_->allocate_host(size));
    auto memory = require(device_->allocate(size));
    if (area.given != nullptr) require(device_->synchronise());
    area.host_given = std::move(host);
    area.given = std::move(memory);
    area.used = area.known = 0;
  }
  const Given at{static_cast<std::byte*>(area.host_given->address()) + area.used,
                 static_cast<std::byte*>(area.given->address()) + area.used};
  area.used += bytes;
  return at;
}

bool GpuBackend::best_is_known(const SampleArgs& args) const {
  const Tensor& known = joined_.logits;
  return args.logits.data == known.data && args.logits.rows == known.rows && args.logits.cols == known.cols &&
         args.edits.empty() && std::all_of(args.rows.begin(), args.rows.end(), [](const SampleRow& row) {
           return row.temperature == 0 && row.mask < 0;
         });
}

void GpuBackend::sample(const SampleArgs& args) {
  const auto rows = static_cast<int64_t>(args.rows.size());
  const Tensor& logits = args.logits;
  QUIRE_CHECK(rows > 0 && logits.rows == rows && rows <= sample_rows_of_a_call_ && logits.dtype == DType::kF32);
  QUIRE_CHECK(args.place >= 0 && args.place + rows <= sample_rows_ && !recording_);
  SampleArea& area = open_sample_area();

  // Settings, edits and masks, in one piece.
  const size_t row_bytes = aligned(args.rows.size() * sizeof(SampleRowData));
  const size_t edit_bytes = aligned(args.edits.size() * sizeof(SampleEdit));
  const size_t bytes = row_bytes + edit_bytes + args.masks.size_bytes();
  given_.assign(bytes, std::byte{0});
  auto* row_data = reinterpret_cast<SampleRowData*>(given_.data());
  bool cuts = false, logprobs = false;
  for (size_t i = 0; i < args.rows.size(); ++i) {
    const SampleRow& row = args.rows[i];
    QUIRE_CHECK(row.logprobs <= kMaxSampleLogprobs && row.mask >= -1);
    row_data[i] = data_of(row);
    cuts |= row.temperature != 0 && (row.top_k > 0 || row.top_p < 1 || row.log_min_p <= 0);
    logprobs |= row.logprobs >= 0;
  }
  auto* edits = reinterpret_cast<SampleEdit*>(given_.data() + row_bytes);
  for (size_t i = 0; i < args.edits.size(); ++i) {
    const TokenEdit& edit = args.edits[i];
    QUIRE_CHECK(edit.token >= 0 && edit.token < logits.cols);
    const uint flags = (edit.forbidden ? 1u : 0u) | (edit.seen ? 2u : 0u);
    edits[i] = {edit.token, flags | static_cast<uint>(edit.count) << 2, edit.bias};
  }
  if (!args.masks.empty())
    std::memcpy(given_.data() + row_bytes + edit_bytes, args.masks.data(), args.masks.size_bytes());
  const Given given = give(area, bytes);
  // What the area's last step was given as well is there already.
  const size_t end = area.used;
  if (area.known < end || std::memcmp(given.host, given_.data(), bytes) != 0) {
    std::memcpy(given.host, given_.data(), bytes);
    device_->upload(given.device, given.host, bytes);
    area.known = end;
  }
  const void* settings = given.device;
  const void* edit_list = given.device + row_bytes;
  const void* masks = given.device + row_bytes + edit_bytes;

  SampleParams p = {};
  p.stride = logits.stride;
  p.vocab = static_cast<int>(logits.cols);
  p.chunks = static_cast<int>((logits.cols + kSampleChunk - 1) / kSampleChunk);
  p.words = static_cast<int>((logits.cols + 31) / 32);
  p.aligned = logits.stride % 4 == 0 && reinterpret_cast<uintptr_t>(logits.data) % 16 == 0;
  QUIRE_CHECK(p.chunks <= sample_chunks_);
  const Grid over_rows{static_cast<uint32_t>(rows)};
  const Grid over_chunks{static_cast<uint32_t>(p.chunks), static_cast<uint32_t>(rows)};
  auto* results = static_cast<SampleResult*>(area.results->address()) + args.place;
  auto* top = static_cast<SampleTopResult*>(area.top->address()) + args.place * kSampleTop;
  void* partials = sample_partials_->address();
  void* bins = sample_bins_->address();
  void* lists = sample_logprobs_->address();
  void* saved = args.edits.empty() ? nullptr : sample_saved_.grow(*device_, args.edits.size() * sizeof(float));

  const bool known = best_is_known(args);
  if (logprobs) {
    launch("sample_logprob_chunks", p, {lists, logits.data, settings}, over_chunks, kSampleThreads);
  }
  if (!args.edits.empty()) {
    launch("sample_edits", p, {logits.data, saved, settings, edit_list}, over_rows, kSampleThreads);
  }
  if (known) {
    partials = joined_.bests->address();
  } else {
    launch("sample_chunks", p, {partials, logits.data, settings, masks}, over_chunks, kSampleThreads);
  }
  if (cuts) {
    void* values = sample_values_->address();
    void* listed = sample_listed_->address();
    void* searches = sample_searches_->address();
    void* found = sample_cuts_->address();
    launch("sample_binning", p, {bins, logits.data, settings, masks, partials}, over_chunks, kSampleThreads);
    launch("sample_list", p, {values, listed, searches, logits.data, settings, masks, partials, bins}, over_chunks,
           kSampleThreads);
    launch("sample_cuts", p, {found, logits.data, settings, masks, partials, values, listed, searches}, over_rows,
           kSampleRowThreads);
    launch("sample_draws", p, {partials, logits.data, settings, masks, searches, found}, over_chunks, kSampleThreads);
  }
  // Results stay on the device for the next step, and go to the host without a copy of their own.
  auto* told = static_cast<SampleResult*>(area.host_results->address()) + args.place;
  SampleParams of_partials = p;
  if (known) of_partials.chunks = static_cast<int>(device_->info().compute_units);
  launch("sample_rows", of_partials, {results, told, settings, partials}, over_rows, 32);
  if (!logprobs) return;
  area.tops = true;
  if (!args.edits.empty()) {
    p.restore = 1;
    launch("sample_edits", p, {logits.data, saved, settings, edit_list}, over_rows, kSampleThreads);
  }
  launch("sample_logprob_rows", p, {results, top, logits.data, settings, lists}, over_rows, kSampleRowThreads);
}

uint64_t GpuBackend::finish_samples(int64_t rows) {
  QUIRE_CHECK(rows > 0 && rows <= sample_rows_);
  SampleArea& area = sample_areas_[sample_area_];
  QUIRE_CHECK(area.open, "no row was sampled");
  const auto count = static_cast<size_t>(rows);
  if (area.tops) {  // there were logprobs, which come later
    device_->download(area.host_results->address(), area.results->address(), count * sizeof(SampleResult));
    device_->download(area.host_top->address(), area.top->address(), count * kSampleTop * sizeof(SampleTopResult));
  }
  area.mark = device_->mark();
  area.rows = rows;
  area.open = false;
  const auto finished = static_cast<uint64_t>(sample_area_);
  sample_area_ = 1 - sample_area_;
  return finished;
}

SampledRows GpuBackend::sampled(uint64_t finished) {
  SampleArea& area = sample_areas_[finished];
  QUIRE_CHECK(!area.open && area.rows > 0);
  require(device_->wait(area.mark));
  const auto count = static_cast<size_t>(area.rows);
  const auto* top = static_cast<const SampledTop*>(area.host_top->address());
  return {{static_cast<const SampledRow*>(area.host_results->address()), count},
          {top, area.tops ? count * kSampleTop : 0}};
}

// The rows wait for the step: what is best depends on it.
void GpuBackend::take_sampled(const TakeSampledArgs& args) {
  QUIRE_CHECK(args.tokens.size() == args.rows.size() && !args.tokens.empty() && !recording_ && !taking_);
  QUIRE_CHECK(sample_areas_[1 - sample_area_].rows > 0, "no step has sampled yet");
  taking_ = args;
}

void GpuBackend::fill_tokens() {
  const TakeSampledArgs args = *taking_;
  taking_.reset();
  const TakeSampledParams p{static_cast<int>(args.tokens.size())};
  const uint32_t groups = (static_cast<uint32_t>(args.tokens.size()) + 255) / 256;
  launch("take_sampled", p, {args.tokens.data(), args.rows.data(), sample_areas_[1 - sample_area_].results->address()},
         {groups}, 256);
}

// Arrays and tokens in one launch, for a joined step: both are wanted at once. For no other step: its kernels read the
// arrays before they wait for the launch before them, since a copy has brought those in before the first of them began.
bool GpuBackend::stage_with_tokens() {
  constexpr size_t kMostBytes = 16 << 10;
  const Stage& area = stages_[stage_];
  const size_t bytes = staged_ - uploaded_;
  if (!taking_ || uploaded_ != 0 || bytes > kMostBytes) return false;
  const TakeSampledArgs args = *taking_;
  taking_.reset();
  uploaded_ = staged_;
  launch("hopper_stage_step", StageStepParams{static_cast<int>(bytes / 16), static_cast<int>(args.tokens.size())},
         {area.device->address(), area.host->address(), args.tokens.data(), args.rows.data(),
          sample_areas_[1 - sample_area_].results->address()},
         {1}, kStageStepThreads);
  return true;
}

}  // namespace quire::gpu
