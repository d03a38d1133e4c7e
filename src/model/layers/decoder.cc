// SPDX-License-Identifier: Apache-2.0
// The frame of the forward pass: embedding, layers, and the head on the rows whose logits are wanted.
#include "model/layers/decoder.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "model/layers/feed_forward.h"
#include "model/layers/mixer.h"

namespace quire::model {
namespace {

constexpr int64_t kEncoderPage = 16;  // positions; the CPU's kernels read 16 at a time

// MLA scales by the size of a query head before absorption, nope_dim + rope_dim.
float scale_of(const DecoderConfig& config) {
  if (config.attention_scale != 0) return config.attention_scale;
  const bool latent = config.mla.kv_rank > 0;
  const int64_t dim = latent ? config.mla.nope_dim + config.mla.rope_dim : config.head_dim;
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
}

// Adds the time until it is destroyed, on a CPU: a GPU's exchanges are queued.
class GatherClock {
 public:
  // `sent`: the bytes that this rank hands to others.
  GatherClock(GatherTimes* times, const Backend& backend, int64_t sent)
      : times_(backend.host_memory() ? times : nullptr) {
    if (times != nullptr) times->sent_bytes += sent;
  }
  ~GatherClock() {
    if (times_ == nullptr) return;
    const auto spent = std::chrono::steady_clock::now() - begin_;
    times_->nanoseconds += std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count();
    ++times_->gathers;
  }
  GatherClock(const GatherClock&) = delete;
  GatherClock& operator=(const GatherClock&) = delete;

 private:
  GatherTimes* times_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// The memory of embed_ahead().
struct AheadScratch {
  Tensor hidden, normed, both;
};
AheadScratch take_ahead(ScratchAllocator& scratch, int64_t tokens, const DecoderConfig& config, DType activation) {
  const int64_t states = config.ahead.eagle ? static_cast<int64_t>(config.ahead.taps.size()) : 1;
  AheadScratch out;
  out.hidden = scratch.take(tokens, states * config.hidden, DType::kF32);
  out.normed = scratch.take(tokens, states * config.hidden, activation);
  if (!config.ahead.eagle) out.both = scratch.take(tokens, 2 * config.hidden, activation);
  return out;
}

}  // namespace

DecoderModel::DecoderModel(DecoderConfig config, DecoderWeights weights, DecoderAdapters adapters, Pooler pooler,
                           int64_t max_model_len, Backend& backend, const Ranks& ranks, const DecoderModel* target)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      adapters_(std::move(adapters)),
      pooler_(std::move(pooler)),
      max_model_len_(max_model_len),
      activation_(weights_.activation),
      ones_(std::vector<float>(static_cast<size_t>(std::max(config_.hidden, kMaxHeadDim)), 1.0f)),
      rope_(rope_frequencies(config_.rope, max_model_len), max_model_len),
      local_rope_(rope_frequencies(config_.local_rope, max_model_len), max_model_len),
      attention_scale_(scale_of(config_)),
      backend_(backend),
      ranks_(ranks),
      target_(target) {
  QUIRE_CHECK((ranks_.stage != nullptr || !config_.share.split()) &&
              (ranks_.all != nullptr || config_.share.stages == 1));
  choose_states(backend_, activation_, config_);
  if (adapters_.sites != nullptr)
    lora_ = std::make_unique<LoraState>(*adapters_.sites, config_.share.ranks * config_.share.stages > 1);
  // A layer ahead has its target's head, but no adapters.
  for_each_weight(weights_, [&](auto& weight) {
    if constexpr (requires { weight.set_lora(lora_.get()); }) weight.set_lora(lora_.get());
  });
}

// The matrices are shared; the vectors, which are small, are copied.
Result<std::unique_ptr<Model>> DecoderModel::make_twin(Backend& backend, const Model* target,
                                                       const Ranks& ranks) const {
  if (!backend_.host_memory() || !backend.host_memory()) return std::unique_ptr<Model>();
  const auto* trunk = dynamic_cast<const DecoderModel*>(target);
  QUIRE_CHECK((trunk != nullptr) == (target_ != nullptr), "the twin of a layer ahead has the twin of its target");
  DecoderWeights weights = weights_;
  QUIRE_TRY(weights.place(backend));
  auto twin = std::make_unique<DecoderModel>(config_, std::move(weights), adapters_, pooler_, max_model_len_, backend,
                                             ranks, trunk);
  twin->kept_layers_ = kept_layers_;
  twin->hands_over_ = hands_over_;
  return std::unique_ptr<Model>(std::move(twin));
}

Result<AdapterPtr> DecoderModel::make_adapter(const weights::AdapterFiles& files) const {
  if (adapters_.sites == nullptr) return Model::make_adapter(files);
  return adapters_.sites->make(files, adapters_.architecture);
}

Status DecoderModel::meet_adapters(distributed::Group& ranks) {
  if (adapters_.sites == nullptr) return {};
  auto sites = std::make_shared<LoraSites>(*adapters_.sites);
  std::vector<std::byte> own;
  write_modules(adapters_.sites->modules(), own);
  for (int r = 0; r < ranks.size(); ++r) {
    uint64_t size = own.size();
    ranks.broadcast(std::as_writable_bytes(std::span(&size, 1)), r);
    std::vector<std::byte> modules = own;
    modules.resize(size);
    ranks.broadcast(modules, r);
    QUIRE_ASSIGN(const std::vector<AdaptedModule> read, read_modules(modules));
    for (const AdaptedModule& module : read) sites->learn(module);
  }
  QUIRE_TRY(sites->check_targets());
  adapters_.sites = std::move(sites);
  return {};
}

// A layer ahead shares the embedding and the head of its target, unless that is on several ranks; an EAGLE-3 layer has
// a head of its own.
size_t DecoderModel::weights_bytes() const {
  size_t bytes = weights_.bytes() + pooler_.bytes();
  if (target_ == nullptr || target_->config_.share.split()) return bytes;
  if (weights_.embedding == target_->weights_.embedding) bytes -= weights_.embedding->bytes();
  return config_.ahead.eagle || !target_->config_.share.last() ? bytes : bytes - weights_.head.bytes();
}

DecoderModel::Scratch DecoderModel::lay_out_scratch(char* base, const BatchLimits& limits) const {
  ScratchAllocator all(base);
  Scratch out;
  out.hidden = all.take(limits.max_tokens, config_.hidden, DType::kF32);
  out.normed = all.take(limits.max_tokens, config_.hidden, activation_);
  out.wanted = out.normed;  // never used at the same time, unless there are several parts of a step
  if (config_.share.stages > 1 && config_.share.last()) {
    out.wanted = all.take(limits.max_tokens, config_.hidden, activation_);
  }
  if (config_.share.split()) out.own_tokens = all.take(limits.max_tokens, 1, DType::kF32);
  if (config_.norms == NormPlacement::kParallel) {
    out.parallel = all.take(limits.max_tokens, config_.hidden, activation_);
  }
  if (lora_ != nullptr) out.lora = all.take(limits.max_tokens, adapters_.sites->most_sums(backend_), DType::kF32);
  const int64_t per_layer_columns = config_.share.model_layers * config_.per_layer_input.dim;
  if (per_layer_columns > 0) out.per_layer = all.take(limits.max_tokens, per_layer_columns, activation_);
  if (const int64_t kept = num_kept(); kept > 0) {
    out.kept = config_.share.leads() ? all.take(limits.max_tokens, kept * config_.hidden, DType::kF32)
                                     : all.take(kept * limits.max_tokens, config_.hidden, DType::kF32);
  }
  if (config_.ahead.eagle) out.both = all.take(limits.max_tokens, 2 * config_.hidden, activation_);
  if (limits.pools) out.pooled = all.take(limits.max_tokens, config_.hidden, DType::kF32);
  out.shared = base == nullptr ? nullptr : base + all.used();
  ScratchAllocator head(out.shared), gathered(out.shared);
  if (config_.has_head && (config_.share.last() || config_.share.leads())) {
    out.logits = head.take(limits.max_logit_rows, config_.vocab_size, DType::kF32);
  }
  if (config_.has_head && config_.share.last()) {
    if (config_.share.split()) out.own_logits = head.take(limits.max_logit_rows, weights_.head.out_dim(), DType::kF32);
  }
  if (config_.ahead.eagle) out.draft_logits = head.take(limits.max_logit_rows, weights_.head.out_dim(), DType::kF32);
  out.wanted_hidden = gathered.take(limits.max_tokens, config_.hidden, DType::kF32);
  size_t most = std::max(head.used(), gathered.used());
  for (const LayerConfig& layer : config_.per_layer) {
    ScratchAllocator mixer(nullptr), feed_forward(nullptr), per_layer(nullptr);
    if (layer.mixer != Mixer::kNone) mixer_kind(layer.mixer).reserve(*this, layer, limits.max_tokens, mixer);
    reserve_feed_forward(*this, layer, limits.max_tokens, feed_forward);
    if (per_layer_columns > 0) per_layer.take(limits.max_tokens, per_layer_columns, activation_);
    most = std::max({most, mixer.used(), feed_forward.used(), per_layer.used()});
  }
  if (config_.ahead.is_layer) {
    ScratchAllocator ahead(nullptr);
    take_ahead(ahead, limits.max_tokens, config_, activation_);
    most = std::max(most, ahead.used());
  }
  out.bytes = all.used() + most;
  return out;
}

size_t DecoderModel::scratch_bytes(const BatchLimits& limits) const {
  const KvLayer pages = encoder_pages(limits);
  return lay_out_scratch(nullptr, limits).bytes + static_cast<size_t>(pages.page_stride * pages.num_pages) +
         (lora_ == nullptr ? 0 : lora_->memory_bytes());
}

// Each sequence begins with a page of its own, so the last page of each may be partly empty.
KvLayer DecoderModel::encoder_pages(const BatchLimits& limits) const {
  KvLayer out;
  if (!config_.encoder.on) return out;
  for (const LayerConfig& layer : config_.per_layer) {
    QUIRE_CHECK(config_.kv_heads_of(layer) == config_.kv_heads && config_.head_dim_of(layer) == config_.head_dim);
  }
  const auto types = backend_.kv_dtypes();
  const bool same = std::find(types.begin(), types.end(), activation_) != types.end();
  const int64_t seqs = limits.max_seqs > 0 ? std::min(limits.max_seqs, limits.max_tokens) : limits.max_tokens;
  out.dtype = same ? activation_ : types.front();
  out.block_size = kEncoderPage;
  out.num_kv_heads = config_.kv_heads;
  out.head_dim = config_.head_dim;
  out.num_pages = limits.max_tokens / kEncoderPage + seqs;
  out.page_stride = static_cast<int64_t>(
      backend_.kv_page_bytes({out.dtype, out.block_size, out.num_kv_heads, out.head_dim, 0, false}));
  return out;
}

WorkspaceLimits DecoderModel::workspace_limits(const BatchLimits& limits) const {
  WorkspaceLimits out;
  out.tokens = limits.max_tokens;
  out.logit_rows = limits.max_logit_rows;
  out.vocab = config_.vocab_size;
  out.activation = activation_;
  out.steps_beside = ranks_.beside;
  for (const kv::LayerCache& layer : cache_layers(config_)) {
    if (layer.kind == kv::CacheKind::kState || layer.head_dim == 0) continue;
    out.heads = config_.heads;
    out.head_dim = std::max({out.head_dim, layer.head_dim, layer.v_head_dim});
    out.v_in_k = out.v_in_k || layer.v_in_k;
  }
  weights_.per_layer_projection.measure(out);
  weights_.ahead.projection.measure(out);
  for_each_weight(weights_.layers, [&](const auto& weight) {
    if constexpr (requires { weight.measure(out); }) weight.measure(out);
  });
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    const Mixer mixer = config_.per_layer[i].mixer;
    if (mixer != Mixer::kNone && mixer_kind(mixer).state_columns != nullptr) {
      out.state_columns = std::max(out.state_columns, mixer_kind(mixer).state_columns(config_));
    }
    if (weights_.layers[i].moe.gate_up.matrices.empty()) continue;
    out.experts = config_.moe.experts;
    out.chosen = config_.moe.k;
    out.expert_columns = config_.moe.intermediate + config_.hidden;
    if (lora_ == nullptr || !adapters_.sites->adapts_experts()) continue;
    const AdapterLimits& adapters = adapters_.sites->limits();
    out.expert_columns += (config_.moe.gated ? 2 : 1) * config_.moe.intermediate;
    out.expert_rank = lora_padded(2 * adapters.max_rank);
    out.expert_slots = adapters.slots;
  }
  return out;
}

Status DecoderModel::prepare(const BatchLimits& limits) {
  QUIRE_ASSIGN(memory_, backend_.allocate(lay_out_scratch(nullptr, limits).bytes));
  if (lora_ != nullptr) QUIRE_TRY(lora_->allocate(backend_));
  scratch_ = lay_out_scratch(static_cast<char*>(memory_->data()), limits);
  QUIRE_TRY(ones_.place(backend_));
  if (!backend_.host_memory()) {  // a table that grows would change its address
    for (RopeTable* table : {&rope_, &local_rope_}) QUIRE_TRY(table->place(backend_));
  }
  query_scales_.reserve(static_cast<size_t>(limits.max_tokens));
  if (config_.encoder.on) {
    encoder_pages_ = encoder_pages(limits);
    QUIRE_ASSIGN(encoder_memory_,
                 backend_.allocate(static_cast<size_t>(encoder_pages_.page_stride * encoder_pages_.num_pages)));
    encoder_pages_.pages = encoder_memory_->data();
  }
  limits_ = limits;
  return {};
}

void DecoderModel::norm(const Tensor& x, const Norm& norm, int64_t group, const Tensor& out) {
  if (config_.norm_kind == NormKind::kRms) {
    backend_.rms_norm({x, norm.weight.data(), group, config_.norm_eps, out});
  } else {
    backend_.layer_norm({x, norm.weight.data(), norm.bias.data(), group, config_.norm_eps, out});
  }
}

// Where the K and V of this step's sequences are: one after the other, from page 0 on.
void DecoderModel::lay_out_encoder_pages(const StepBatch& batch) {
  encoder_group_.clear();
  int64_t longest = 0;
  for (const int32_t length : batch.context_lens) longest = std::max<int64_t>(longest, length);
  const int64_t width = backend_.table_width((longest + kEncoderPage - 1) / kEncoderPage, kEncoderPage);
  encoder_group_.max_blocks = static_cast<int32_t>(width);
  int32_t page = 0;
  for (size_t s = 0; s < batch.context_lens.size(); ++s) {
    const int32_t length = batch.context_lens[s];
    QUIRE_CHECK(batch.cu_seqlens_q[s + 1] - batch.cu_seqlens_q[s] == length, "an encoder computes a sequence at once");
    for (int64_t p = 0; p < length; ++p) encoder_group_.slot_mapping.push_back(page * kEncoderPage + p);
    for (int64_t p = 0; p < length; p += kEncoderPage) encoder_group_.block_tables.push_back(page++);
    encoder_group_.block_tables.resize((s + 1) * static_cast<size_t>(width), 0);
  }
  QUIRE_CHECK(page <= encoder_pages_.num_pages);
}

// Copies the arrays of the step that ops read into the backend's memory.
void DecoderModel::stage(const StepBatch& batch) {
  ranks_.beside ? backend_.begin_step_beside() : backend_.begin_step();
  const bool encoder = config_.encoder.on;
  if (encoder) lay_out_encoder_pages(batch);
  const size_t pages =
      encoder_group_.slot_mapping.size() * sizeof(int64_t) + encoder_group_.block_tables.size() * sizeof(int32_t);
  backend_.reserve_stage(batch.bytes() + pages, batch.num_arrays() + (encoder ? 4 : 0));
  const auto staged = [&]<typename T>(const std::vector<T>& values) {
    const void* at = values.empty() ? nullptr : backend_.stage(std::as_bytes(std::span(values)));
    return std::span<const T>(static_cast<const T*>(at), values.size());
  };
  step_.tokens = staged(batch.tokens);
  step_.positions = staged(batch.positions);
  step_.cu_seqlens_q = staged(batch.cu_seqlens_q);
  step_.context_lens = staged(batch.context_lens);
  if (config_.encoder.token_types > 0) {
    token_types_ = batch.token_types;
    token_types_.resize(batch.tokens.size(), 0);
    step_.token_types = staged(token_types_);
  }
  QUIRE_CHECK(!encoder || batch.groups.empty());
  step_.groups.resize(encoder ? 1 : batch.groups.size());
  for (size_t g = 0; g < step_.groups.size(); ++g) {
    const GroupBatch& from = encoder ? encoder_group_ : batch.groups[g];
    StagedGroup& to = step_.groups[g];
    to.slot_mapping = staged(from.slot_mapping);
    to.block_tables = staged(from.block_tables);
    to.max_blocks = from.max_blocks;
    to.state_source = staged(from.state_source);
    to.state_destination = staged(from.state_destination);
    to.state_rows = staged(from.state_rows);
  }
  if (num_wanted_ == batch.num_tokens()) {  // then the rows are not gathered
    for (size_t i = 0; i < batch.wanted.size(); ++i) QUIRE_CHECK(batch.wanted[i] == static_cast<int32_t>(i));
  }
  step_.wanted = staged(batch.wanted);
  query_scales_.clear();
  if (const auto beta = static_cast<double>(config_.attention_temperature); beta != 0) {
    for (const int32_t position : batch.positions) {
      const auto length = static_cast<double>(config_.attention_temperature_length);
      const double steps = std::floor(static_cast<double>(position) / length);
      query_scales_.push_back(static_cast<float>(1.0 + beta * std::log1p(steps)));
    }
  }
  if (config_.ahead.is_layer && config_.ahead.zero_first) {
    for (const int32_t position : batch.positions) query_scales_.push_back(position == 0 ? 0.0f : 1.0f);
  }
  step_.query_scales = staged(query_scales_);
  step_.hidden_rows = staged(batch.hidden_rows);
  if (adapted()) {
    for (LoraState::List* list : lora_->lists()) {
      list->staged.rows = staged(list->rows);
      list->staged.slots = staged(list->slots);
      list->staged.runs = staged(list->runs);
    }
  }
  // These come last, so that the other arrays of a recorded step keep their addresses. The tokens are filled in, and
  // wanted rows moved, before the step runs.
  const std::span<const int32_t> rows = staged(batch.sampled_from_row);
  const std::span<const int32_t> drafts = staged(batch.drafts);
  if (rows.empty()) return;
  // Rank 0 samples, and tells the others.
  if (config_.share.leads()) backend_.take_sampled({step_.tokens, rows});
  QUIRE_CHECK(drafts.empty() || (ranks_.all == nullptr && num_wanted_ < batch.num_tokens()));
  if (!drafts.empty()) backend_.skip_accepted({step_.wanted, step_.tokens, drafts});
  if (ranks_.all == nullptr) return;
  ranks_.all->broadcast(const_cast<int32_t*>(step_.tokens.data()), step_.tokens.size_bytes(), 0);
}

void DecoderModel::forward(const StepBatch& batch, const KvCache& kv) {
  const int64_t tokens = batch.num_tokens();
  QUIRE_CHECK(tokens > 0 && tokens <= limits_.max_tokens);
  QUIRE_CHECK(batch.position_axes == 1 && batch.embedding_rows.empty() && batch.causal.empty(),
              "a plain decoder takes token ids and one position axis");
  step_hidden_ = scratch_.hidden.first_rows(tokens);
  step_normed_ = scratch_.normed.first_rows(tokens);
  num_pooled_ = batch.num_pooled;
  num_wanted_ = static_cast<int64_t>(batch.wanted.size()) - num_pooled_;
  wanted_before_ = batch.wanted_before;
  QUIRE_CHECK(num_pooled_ == 0 || limits_.pools);

  int64_t end = 0;
  for (const int32_t length : batch.context_lens) end = std::max<int64_t>(end, length);
  rope_.grow_to(end);
  local_rope_.grow_to(end);

  QUIRE_CHECK(batch.adapters.empty() || lora_ != nullptr, "the model was loaded without adapters");
  if (lora_ != nullptr) lora_->begin(batch, backend_, scratch_.lora);
  // Not if rows are gathered: they are stored where the logits go.
  head_in_step_ = !config_.ahead.eagle && config_.share.last() && !config_.share.split() && num_wanted_ == tokens &&
                  tokens <= limits_.max_logit_rows && backend_.joins_head(tokens) &&
                  joins_norm({step_hidden_, &weights_.final_norm, false}, weights_.head);
  stage(batch);
  QUIRE_CHECK(batch.hidden_rows.size() == (target_ == nullptr ? 0 : batch.tokens.size()));
  own_hidden_ = batch.own_hidden;
  // A layer ahead reads the rows of two models, which are two different steps.
  const void* const rows_of = own_hidden_ ? static_cast<const void*>(&own_hidden_) : this;
  // Steps with pooled rows differ from others with as many wanted ones.
  const int64_t wanted = num_wanted_ + (num_pooled_ << 32);
  GraphKey shape{rows_of, tokens, batch.num_seqs(), wanted};
  for (size_t s = 0; s < batch.context_lens.size(); ++s) {
    shape.most_each = std::max<int64_t>(shape.most_each, batch.cu_seqlens_q[s + 1] - batch.cu_seqlens_q[s]);
  }
  if (lora_ != nullptr) shape.adapters = lora_->graph_key();
  for (const GroupBatch& group : batch.groups) {
    shape.max_blocks = std::max<int64_t>(shape.max_blocks, group.max_blocks);
    shape.keeps_states = shape.keeps_states || !group.state_rows.empty();
  }
  if (config_.encoder.on) shape.max_blocks = encoder_group_.max_blocks;
  // What is sent in a step follows from its number of tokens.
  if (backend_.replay_step(shape)) {
    if (ranks_.times != nullptr) ranks_.times->sent_bytes += sent_bytes_[tokens];
    return;
  }
  const int64_t before = ranks_.times != nullptr ? ranks_.times->sent_bytes.load() : 0;
  run_layers(kv);
  backend_.end_step();
  if (ranks_.times != nullptr) sent_bytes_[tokens] = ranks_.times->sent_bytes - before;
}

void DecoderModel::run_layer(const LayerContext& layer) {
  const DecoderLayer& weights = layer.weights;
  const bool parallel = config_.norms == NormPlacement::kParallel;
  const bool after_add = config_.norms == NormPlacement::kAfterAdd;
  if (layer.config.mixer != Mixer::kNone) {
    const Tensor out = parallel ? scratch_.parallel.first_rows(step_hidden_.rows) : step_normed_;
    const bool may_add = (weights.post_attention_norm.empty() || after_add) && !parallel;
    const LayerInput input = config_.ahead.eagle ? LayerInput{scratch_.both.first_rows(step_hidden_.rows)}
                                                 : LayerInput{step_hidden_, &weights.attention_norm, parallel};
    const bool added = mixer_kind(layer.config.mixer).run(*this, layer, input, {out, may_add});
    run_added(added, out, weights.post_attention_norm);
  }
  if (layer.config.feed_forward != FeedForward::kNone) {
    // Parallel to the mixer, the feed-forward part reads the same normed rows.
    const LayerInput input = parallel ? LayerInput{step_normed_} : LayerInput{step_hidden_, &weights.mlp_norm};
    const bool may_add = weights.post_mlp_norm.empty() || after_add;
    const bool added = run_feed_forward(*this, layer, input, {step_normed_, may_add});
    run_added(added, step_normed_, weights.post_mlp_norm);
  }
  if (config_.per_layer_input.dim > 0) add_per_layer_input(layer);
  if (config_.layer_scalars) {
    add_now();
    backend_.scale({step_hidden_, weights.scalar, {}, step_hidden_});
  }
}

// Adds the output of a mixer or feed-forward part to the residual stream, unless that was done, with its norm before or
// after the addition.
void DecoderModel::run_added(bool added, const Tensor& out, const Norm& post_norm) {
  const bool after_add = config_.norms == NormPlacement::kAfterAdd;
  static const Norm kNone;
  if (!added) add_to_residual(out, after_add ? kNone : post_norm);
  if (after_add) {
    add_now();
    norm(step_hidden_, post_norm, config_.hidden, step_hidden_);
  }
}

void DecoderModel::keep_hidden_before(std::vector<int64_t> layers) {
  QUIRE_CHECK(std::ranges::is_sorted(layers));
  if (config_.share.rank == 0) kept_layers_ = std::move(layers);  // all ranks of a stage have the same rows
}

// Of how many layers this rank keeps the rows. Rank 0 gets those of all stages.
int64_t DecoderModel::num_kept() const {
  const int64_t first = config_.share.first_layer, end = first + config_.layers;
  return config_.share.leads()
             ? std::ssize(kept_layers_)
             : std::ranges::count_if(kept_layers_, [&](int64_t layer) { return layer >= first && layer < end; });
}

void DecoderModel::keep_hidden_of(int64_t layer) {
  const bool leads = config_.share.leads();
  int64_t place = 0;
  for (const int64_t kept : kept_layers_) {
    if (kept == layer) {
      add_now();
      const Tensor to =
          leads ? scratch_.kept.first_rows(step_hidden_.rows).columns(place * config_.hidden, config_.hidden)
                : scratch_.kept.some_rows(place * limits_.max_tokens, step_hidden_.rows);
      backend_.scale({step_hidden_, 1.0f, {}, to});
    }
    if (leads || kept >= config_.share.first_layer) ++place;
  }
}

// Rank 0 has the layer ahead, which reads rows of other stages: their first ranks send what they keep, in the order of
// the layers, and the last one the rows at the end.
void DecoderModel::hand_over_hidden() {
  const Share& share = config_.share;
  if (!whole_steps() || share.rank != 0) return;
  const int64_t rows = step_hidden_.rows, bytes = rows * row_bytes(DType::kF32, config_.hidden);
  if (!share.leads()) {
    const bool end = hands_over_ && share.last();
    const int64_t kept = num_kept();
    if (kept == 0 && !end) return;
    const GatherClock clock(ranks_.times, backend_, (kept + (end ? 1 : 0)) * bytes);
    for (int64_t k = 0; k < kept; ++k) ranks_.all->send(scratch_.kept.some_rows(k * limits_.max_tokens, rows), 0);
    if (end) ranks_.all->send(step_hidden_, 0);
    return;
  }
  const GatherClock clock(ranks_.times, backend_, 0);
  int64_t stage = 0;
  for (size_t k = 0; k < kept_layers_.size(); ++k) {
    while (stage + 1 < share.stages && kept_layers_[k] >= stage_begin(share.model_layers, stage + 1, share.stages)) {
      ++stage;
    }
    if (stage == 0) continue;
    const Tensor received = scratch_.wanted_hidden.first_rows(rows);
    ranks_.all->receive(received, static_cast<int>(stage * share.ranks));
    const Tensor kept = scratch_.kept.first_rows(rows);
    backend_.scale({received, 1.0f, {}, kept.columns(static_cast<int64_t>(k) * config_.hidden, config_.hidden)});
  }
  if (hands_over_) ranks_.all->receive(step_hidden_, static_cast<int>((share.stages - 1) * share.ranks));
}

void DecoderModel::run_layers(const KvCache& kv) {
  const Share& share = config_.share;
  target_ == nullptr ? embed() : config_.ahead.eagle ? embed_eagle() : embed_ahead();
  const int next = static_cast<int>((share.stage + 1) * share.ranks + share.rank);
  const int64_t stream_bytes = step_hidden_.rows * row_bytes(DType::kF32, config_.hidden);
  if (!share.first()) {
    const GatherClock clock(ranks_.times, backend_, 0);
    ranks_.all->receive(step_hidden_, next - static_cast<int>(2 * share.ranks));
  }
  for (int64_t i = 0; i < config_.layers; ++i) {
    const auto at = static_cast<size_t>(i);
    keep_hidden_of(share.first_layer + i);
    run_layer({kv, i, config_.per_layer[at], weights_.layers[at]});
  }
  add_now();
  if (!share.last()) {
    const GatherClock clock(ranks_.times, backend_, stream_bytes);
    ranks_.all->send(step_hidden_, next);
  }
  hand_over_hidden();
  if (!share.last()) return;
  if (num_pooled_ > 0) {
    const Tensor rows = scratch_.pooled.first_rows(num_pooled_);
    backend_.gather({step_hidden_, step_.wanted.subspan(static_cast<size_t>(num_wanted_)), rows});
    if (!weights_.final_norm.empty()) norm(rows, weights_.final_norm, config_.hidden, rows);
    // The last norm includes the scale of logits.
    if (config_.logits_scale != 1) backend_.scale({rows, 1 / config_.logits_scale, {}, rows});
  }
  if (num_wanted_ == 0) return;
  // Rows are gathered before the norm, so that the norm runs on no more rows than the head.
  Tensor rows = step_hidden_;
  if (num_wanted_ < rows.rows) {
    rows = scratch_.wanted_hidden.first_rows(num_wanted_);
    backend_.gather({step_hidden_, step_.wanted.first(static_cast<size_t>(num_wanted_)), rows});
  }
  if (head_in_step_) {
    return project_in(weights_.head, {rows, &weights_.final_norm, false}, scratch_.logits.first_rows(num_wanted_));
  }
  norm(rows, weights_.final_norm, config_.hidden, scratch_.wanted.some_rows(wanted_before_, num_wanted_));
}

Tensor DecoderModel::normed(const LayerInput& input) {
  const bool plain = input.norm == nullptr || input.norm->empty();
  if (put_off_.x.rows > 0 && !plain && input.x.data == step_hidden_.data) {
    AddNormArgs both = put_off_;
    both.weight = input.norm->weight.data();
    both.out = step_normed_;
    if (backend_.joins_add_norm(both)) {
      put_off_ = {};
      backend_.add_norm(both);
      return step_normed_;
    }
  }
  add_now();
  if (plain) return activations(input.x);
  norm(input.x, *input.norm, config_.hidden, step_normed_);
  return step_normed_;
}

Tensor DecoderModel::activations(const Tensor& x) {
  if (x.dtype == activation_) return x;
  backend_.scale({x, 1.0f, {}, step_normed_});
  return step_normed_;
}

bool DecoderModel::joins_norm(const LayerInput& input, const Linear& linear) const {
  return input.norm != nullptr && !input.norm->empty() && !input.keep_normed && config_.norm_kind == NormKind::kRms &&
         linear.single() && backend_.joins_linear(input.x.rows) && !linear.adapted();
}

void DecoderModel::project_in(const Linear& linear, const LayerInput& input, const Tensor& out) {
  if (!joins_norm(input, linear)) return linear.run(backend_, normed(input), out);
  const FusedNorm form{input.norm->weight.data(), config_.norm_eps};
  linear.run(backend_, input.x, out, {&form});
}

// Adds residual_scale * y to the residual stream in the same op, where the backend can; else y goes to the output.
// Each rank computes its part of the columns.
bool DecoderModel::project_out(const Linear& linear, const Tensor& x, const LayerOutput& output) {
  const int64_t first = config_.share.rank * linear.out_dim();
  const Tensor added = step_hidden_.columns(first, linear.out_dim());
  const Linear::Joined with_residual{nullptr, added, config_.residual_scale};
  const bool joined = output.may_add && linear.single() && backend_.joins_residual(x.rows) &&
                      (!linear.adapted() || linear.joins_adapters(backend_, x, added, with_residual));
  const Tensor& to = joined ? step_hidden_ : output.out;
  QUIRE_CHECK(put_off_.x.rows == 0, "the part's input was normed");
  const Tensor mine = joined ? added : to.columns(first, linear.out_dim());
  linear.run(backend_, x, mine, joined ? with_residual : Linear::Joined{});
  gather(mine, to);
  return joined;
}

void DecoderModel::gather(const Tensor& mine, const Tensor& all, int root) {
  if (!config_.share.split()) return;
  const GatherClock clock(ranks_.times, backend_,
                          mine.rows * row_bytes(mine.dtype, mine.cols) * (config_.share.ranks - 1));
  ranks_.stage->gather_columns(mine, all, root);
}

Tensor DecoderModel::gathered(const Tensor& mine, const Tensor& room, int64_t columns) {
  if (!config_.share.split()) return mine;
  const Tensor all{room.data, room.dtype, mine.rows, columns, columns};
  gather(mine, all);
  return all;
}

void DecoderModel::gather_rows(const Tensor& x, std::span<const int32_t> ids, int64_t width) {
  int64_t own = x.rows;  // on a GPU all rows are sent
  if (backend_.host_memory()) {
    own = std::ranges::count_if(ids, [&](int32_t id) { return id / width == config_.share.rank; });
  }
  const GatherClock clock(ranks_.times, backend_, own * row_bytes(x.dtype, x.cols) * (config_.share.ranks - 1));
  ranks_.stage->gather_rows(x, ids, width);
}

void DecoderModel::scatter_rows(const Tensor& x, std::span<const int32_t> ids, int64_t width, const Tensor& mine) {
  const int64_t bytes = x.rows * row_bytes(x.dtype, x.cols);
  const GatherClock clock(ranks_.times, backend_, bytes - bytes / config_.share.ranks);
  ranks_.stage->scatter_rows(x, ids, width, mine);
}

void DecoderModel::add_adapters_by_head(int64_t first_site, int64_t heads, const Tensor& x, int64_t k,
                                        const Tensor& out, int64_t n) {
  if (!adapted()) return;
  const int64_t x_head = x.cols / heads, out_head = out.cols / heads;
  for (int64_t h = 0; h < heads; ++h) {
    lora_->add(backend_, first_site + h, x.columns(h * x_head, k), out.columns(h * out_head, n));
  }
}

void DecoderModel::rotate(const Tensor& x, int64_t head_dim, int64_t offset, RopeUse use) {
  if (use != RopeUse::kNone) rotate_into(x, head_dim, offset, use, {}, 0);
}

void DecoderModel::rotate_into(const Tensor& x, int64_t head_dim, int64_t offset, RopeUse use, const Tensor& into,
                               int64_t into_head_dim) {
  QUIRE_CHECK(use != RopeUse::kNone);
  const RopeConfig& config = rope_config(use);
  const RopeTable& table = rope_table(use);
  backend_.rope({x, head_dim, config.rot_dim, config.interleaved, table.cosines(), table.sines(), step_.positions,
                 offset, into, into_head_dim});
}

AttentionArgs DecoderModel::attention_args(const LayerContext& layer, const Tensor& q, const Tensor& out) const {
  const StagedGroup& pages = group(layer);
  AttentionArgs args;
  args.q = q;
  args.kv = this->pages(layer);
  args.num_heads = config_.heads;
  args.scale = attention_scale_;
  args.causal = !config_.encoder.on;
  args.distance_bias = weights_.distance_bias.data();
  args.max_distance = config_.encoder.max_distance;
  args.window = layer.config.window;
  args.soft_cap = config_.attention_soft_cap;
  args.cu_seqlens_q = step_.cu_seqlens_q;
  args.context_lens = step_.context_lens;
  args.block_tables = pages.block_tables;
  args.max_blocks = pages.max_blocks;
  args.out = out;
  return args;
}

// hidden += residual_scale * norm(x), now or together with the norm that follows; x is overwritten then.
void DecoderModel::add_to_residual(const Tensor& x, const Norm& post_norm) {
  add_now();
  const float* weight = post_norm.empty() ? nullptr : post_norm.weight.data();
  const AddNormArgs args{x, weight, config_.residual_scale, step_hidden_, nullptr, config_.norm_eps, {}};
  if (config_.norm_kind == NormKind::kRms && backend_.joins_add_norm(args)) {
    put_off_ = args;
    // Products with a norm of their own read the stream as it is, and so do parts without a norm.
    if (backend_.joins_linear(x.rows) || config_.ahead.eagle || config_.norms == NormPlacement::kParallel) add_now();
    return;
  }
  if (!post_norm.empty()) norm(x, post_norm, config_.hidden, x);
  backend_.residual_add({x, step_hidden_, config_.residual_scale, step_hidden_});
}

void DecoderModel::add_now() {
  if (put_off_.x.rows == 0) return;
  const AddNormArgs args = std::exchange(put_off_, {});
  if (args.post_weight != nullptr) return backend_.add_norm(args);
  backend_.residual_add({args.x, args.residual, args.scale, args.residual});
}

void DecoderModel::add_encoder_tables() {
  ScratchAllocator allocator = scratch();
  const Tensor looked_up = allocator.take(step_hidden_.rows, config_.hidden, DType::kF32);
  const auto add = [&](const Packed& table, std::span<const int32_t> rows) {
    if (table == nullptr) return;
    backend_.embedding({table.get(), rows, 1.0f, looked_up});
    backend_.residual_add({looked_up, step_hidden_, 1.0f, step_hidden_});
  };
  add(weights_.token_types, step_.token_types);
  add(weights_.positions, step_.positions);
  if (!weights_.embedding_norm.empty()) norm(step_hidden_, weights_.embedding_norm, config_.hidden, step_hidden_);
}

// Each rank has the rows of some tokens.
void DecoderModel::look_up_tokens() {
  const Share& share = config_.share;
  std::span<const int32_t> rows = step_.tokens;
  const int64_t width = share.width(config_.vocab_size);
  if (share.split()) {
    auto* own = static_cast<int32_t*>(scratch_.own_tokens.data);
    backend_.own_ids({rows, width, share.rank, 0, own});
    rows = {own, rows.size()};
  }
  backend_.embedding({weights_.embedding.get(), rows, config_.embedding_scale, step_hidden_});
  if (share.split()) gather_rows(step_hidden_, step_.tokens, width);
}

// Gemma 4 looks each token up in a second table, which has a part for each layer, and adds a projection of the first
// embedding: (norm(projection) + lookup) / sqrt(2).
void DecoderModel::embed() {
  if (weights_.embedding == nullptr || (!config_.share.first() && config_.per_layer_input.dim == 0)) return;
  look_up_tokens();
  if (adapted()) {
    lora_->add_embedding(backend_, adapters_.embedding_site, step_.tokens, config_.vocab_size, step_hidden_);
  }
  if (config_.encoder.on) add_encoder_tables();
  const int64_t dim = config_.per_layer_input.dim;
  if (dim == 0) return;
  const Tensor inputs = scratch_.per_layer.first_rows(step_hidden_.rows);
  ScratchAllocator allocator = scratch();
  const Tensor looked_up = allocator.take(step_hidden_.rows, inputs.cols, activation_);
  weights_.per_layer_projection.run(backend_, activations(step_hidden_), inputs);
  const auto inverse_root = [](int64_t n) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(n))); };
  backend_.scale({inputs, inverse_root(config_.hidden), {}, inputs});
  norm(inputs, weights_.per_layer_norm, dim, inputs);
  backend_.embedding({weights_.per_layer_embedding.get(), step_.tokens,
                      static_cast<float>(std::sqrt(static_cast<double>(dim))), looked_up});
  backend_.residual_add({looked_up, inputs, 1.0f, inputs});
  backend_.scale({inputs, inverse_root(2), {}, inputs});
}

// The hidden states are those after the final norm of the model that they come from.
void DecoderModel::embed_ahead() {
  const DecoderModel& source = own_hidden_ ? *this : *target_;
  const int64_t width = config_.hidden;
  ScratchAllocator allocator = scratch();
  const AheadScratch rows = take_ahead(allocator, step_hidden_.rows, config_, activation_);
  backend_.gather({source.scratch_.hidden, step_.hidden_rows, rows.hidden});
  norm(rows.hidden, source.weights_.final_norm, width, rows.normed);
  norm(rows.normed, weights_.ahead.hidden_norm, width, rows.both.columns(width, width));
  backend_.embedding({weights_.embedding.get(), step_.tokens, config_.embedding_scale, step_hidden_});
  if (config_.ahead.zero_first) backend_.scale({step_hidden_, 1.0f, step_.query_scales, step_hidden_});
  norm(step_hidden_, weights_.ahead.embedding_norm, width, rows.both.columns(0, width));
  weights_.ahead.projection.run(backend_, rows.both, step_hidden_);
}

// The residual stream begins with a projection of the target's hidden states or, for later drafts, with what the layer
// itself had at its end. The mixer sees the embedding and that state, each after a norm.
void DecoderModel::embed_eagle() {
  const int64_t width = config_.hidden;
  ScratchAllocator allocator = scratch();
  const AheadScratch rows = take_ahead(allocator, step_hidden_.rows, config_, activation_);
  Tensor hidden = rows.hidden;
  if (own_hidden_) {
    hidden = hidden.columns(0, width);
    backend_.gather({scratch_.hidden, step_.hidden_rows, hidden});
    backend_.scale({hidden, 1.0f, {}, step_hidden_});
  } else {
    backend_.gather({target_->scratch_.kept, step_.hidden_rows, hidden});
    if (activation_ != DType::kF32) {
      backend_.scale({hidden, 1.0f, {}, rows.normed});
      hidden = rows.normed;
    }
    weights_.ahead.projection.run(backend_, hidden, step_hidden_);
  }
  const Tensor embedded = rows.hidden.columns(0, width);
  const Tensor both = scratch_.both.first_rows(step_hidden_.rows);
  backend_.embedding({weights_.embedding.get(), step_.tokens, config_.embedding_scale, embedded});
  norm(embedded, weights_.layers.front().attention_norm, width, both.columns(0, width));
  norm(step_hidden_, weights_.ahead.hidden_norm, width, both.columns(width, width));
}

void DecoderModel::add_per_layer_input(const LayerContext& layer) {
  const PerLayerInputWeights& weights = layer.weights.per_layer_input;
  const int64_t dim = config_.per_layer_input.dim;
  add_now();
  ScratchAllocator allocator = scratch();
  const Tensor gate = allocator.take(step_hidden_.rows, dim, activation_);
  const Tensor input =
      scratch_.per_layer.first_rows(step_hidden_.rows).columns((config_.share.first_layer + layer.index) * dim, dim);
  weights.gate.run(backend_, activations(step_hidden_), gate);
  backend_.glu({gate, input, config_.activation, gate});
  weights.projection.run(backend_, gate, step_normed_);
  add_to_residual(step_normed_, weights.norm);
}

Tensor DecoderModel::run_head(int64_t first_wanted, int64_t count) {
  QUIRE_CHECK(first_wanted >= 0 && count > 0 && first_wanted + count <= wanted_before_ + num_wanted_ &&
              count <= limits_.max_logit_rows);
  const Tensor logits =
      head_in_step_ ? scratch_.logits.some_rows(first_wanted, count) : scratch_.logits.first_rows(count);
  const int last = static_cast<int>((config_.share.stages - 1) * config_.share.ranks);
  if (!config_.share.last()) {
    const GatherClock clock(ranks_.times, backend_, 0);
    ranks_.all->receive(logits, last);
    return logits;
  }
  if (lora_ != nullptr) lora_->select_wanted_rows(first_wanted);
  const Tensor rows = scratch_.wanted.some_rows(first_wanted, count);
  if (config_.ahead.eagle) {  // its head knows some of the tokens
    const Tensor draft_logits = scratch_.draft_logits.first_rows(count);
    weights_.head.run(backend_, rows, draft_logits);
    backend_.gather_columns({draft_logits, weights_.ahead.head_rows.span(), logits});
  } else if (config_.share.split()) {
    const Tensor own = scratch_.own_logits.first_rows(count);
    weights_.head.run(backend_, rows, own);
    gather(own, logits, 0);
    if (config_.share.rank != 0) return logits;
  } else if (!head_in_step_) {
    weights_.head.run(backend_, rows, logits);
  }
  if (config_.logits_soft_cap > 0) backend_.soft_cap({logits, config_.logits_soft_cap, logits});
  if (!config_.share.first()) {
    const GatherClock clock(ranks_.times, backend_, logits.rows * row_bytes(logits.dtype, logits.cols));
    ranks_.all->send(logits, 0);
  }
  return logits;
}

std::span<const float> DecoderModel::hidden(int64_t first, int64_t count) {
  QUIRE_CHECK(first >= 0 && count > 0 && first + count <= num_pooled_);
  return backend_.read(scratch_.pooled.some_rows(first, count));
}

std::span<const float> DecoderModel::logits(int64_t first_wanted, int64_t count) {
  return backend_.read(run_head(first_wanted, count));
}

}  // namespace quire::model
