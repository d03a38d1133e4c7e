// SPDX-License-Identifier: Apache-2.0
// Adapters in a decoder: which modules have a place for one (LoraSites), and the adapters of the step that runs
// (LoraState).
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "model/adapter.h"
#include "model/adapter_wire.h"
#include "model/step_batch.h"
#include "weights/adapter.h"

namespace quire::model {

// The places in a model where an adapter may add something, by the names of modules. A site is a Linear, or the
// embedding. Immutable after load; any thread may use it.
class LoraSites {
 public:
  // The rows of one module that are columns of a site's output.
  struct Target {
    int64_t site = 0, column = 0, rows = 0;
    std::vector<int32_t> map = {};   // column i takes row map[i] of the module; empty: row i
    int64_t module_rows = 0, k = 0;  // of the module
    bool embedding = false;
    float factor = 1;  // of what the module adds
    // kv_b of latent attention, which is absorbed: two sites for each head, first those that add to the queries in the
    // latent space, then those that add to values. 0 heads: not such a module.
    int64_t heads = 0, nope = 0, v = 0;
    int64_t first_head = 0;  // in the module, of which this rank has `heads`
    // All experts of a layer: `site` is that of gate and up of the first one, followed by those of the others and then
    // by those of down. 0: not such a module. `map` is that of the columns of gate and up.
    int64_t experts = 0, hidden = 0, inner = 0, gate_up = 0;  // gate_up: columns
    int64_t first_expert = 0, own_experts = 0;                // those of this rank, which have the sites
  };
  LoraSites(const AdapterLimits& limits, DType dtype) : limits_(limits), dtype_(dtype) {}

  int64_t add_sites(int64_t count) { return (num_sites_ += count) - count; }
  void add(const std::string& module, bool gguf_name, Target target);
  // A module that another rank has.
  void leave(const std::string& module) { left_.insert(module); }
  // Once all modules are added: closes those that AdapterLimits::targets does not name, so that they take no memory.
  void keep_targets();
  // An Error if one of the targets names no module of any rank.
  Status check_targets() const;
  // Whether experts can have adapters.
  bool adapts_experts() const;
  // The modules that have a place here, and those of another rank: an adapter is refused here if it does not fit there.
  std::vector<AdaptedModule> modules() const;
  void learn(const AdaptedModule& module);

  const AdapterLimits& limits() const { return limits_; }
  DType dtype() const { return dtype_; }
  int64_t size() const { return num_sites_; }
  // The bytes of a slot in which every adapter within the limits fits, and the most sums of a row between its two
  // products.
  int64_t slot_bytes() const;
  int64_t most_sums(const Backend& backend) const;
  // Arranges an adapter for a slot. An Error names the module that does not fit the model, or the limit.
  Result<AdapterPtr> make(const weights::AdapterFiles& files, const std::string& architecture) const;

 private:
  using Names = std::multimap<std::string, Target>;
  Status check(const weights::AdapterModule& module, const Target& target) const;
  // Checks a module that other ranks adapt.
  Status check_foreign(const weights::AdapterModule& module, const Target& target, const Names& names) const;
  Failure unknown_module(const std::string& module, const Names& names) const;
  // Every place in the model once, by its site.
  std::map<int64_t, std::vector<Target>> targets_by_site() const;

  AdapterLimits limits_;
  DType dtype_;
  int64_t num_sites_ = 0;
  Names names_, gguf_names_;
  std::set<std::string> left_, closed_;
  std::map<std::string, Target> foreign_, foreign_gguf_;  // without sites
};

// Slots with adapters, and which rows of the running step have which. Owned by the model and used on its thread.
class LoraState {
 public:
  // `several`: this is a share of a model.
  LoraState(const LoraSites& sites, bool several)
      : slot_bytes_(sites.slot_bytes()), dtype_(sites.dtype()), several_(several) {
    slots_.resize(static_cast<size_t>(sites.limits().slots));
    ranks_.resize(static_cast<size_t>(sites.size()));
  }

  size_t memory_bytes() const { return slots_.size() * static_cast<size_t>(slot_bytes_); }
  Status allocate(Backend& backend);
  // Puts the step's adapters into slots and lists its rows. `t`: room for the result of the first product.
  void begin(const StepBatch& batch, Backend& backend, const Tensor& t);
  // Which rows have which adapter. The caller stages the arrays before ops run, and sets the spans of `staged`.
  struct List {
    std::vector<int32_t> rows, slots;
    std::vector<LoraRun> runs;
    LoraRows staged;
  };
  std::array<List*, 2> lists() { return {&step_rows_, &wanted_rows_}; }
  // What recorded steps depend on: 0 if no row has an adapter. All ranks of a model have the same one, although each
  // has other sites: a step is recorded on all of them or on none.
  int64_t graph_key() const { return active_ ? version_ : 0; }

  // Whether any row of the step has an adapter.
  bool active() const { return active_; }
  // From now on, row 0 of what ops take is this row of the step, or of the wanted rows.
  void select_step_rows(int64_t first) { current_ = &step_rows_.staged, current_->first = first; }
  void select_wanted_rows(int64_t first) { current_ = &wanted_rows_.staged, current_->first = first; }
  // Whether a row of the step may have an adapter for this site.
  bool has(int64_t site) const { return active_ && ranks_[static_cast<size_t>(site)] > 0; }
  // The step's adapters for a linear's site; nothing unless has(site).
  std::optional<LoraArgs> args_of(int64_t site, const Tensor& x, const Tensor& out) const;
  // Adds what the rows' adapters add to a linear's output.
  void add(Backend& backend, int64_t site, const Tensor& x, const Tensor& out,
           LoraProducts products = LoraProducts::kBoth) const;
  // For MoeExpertsArgs::lora, if there are adapters for any of these sites; otherwise nothing.
  std::optional<MoeLora> of_experts(int64_t first_site, int64_t experts) const;
  // The same for the embedding of `vocab` tokens.
  void add_embedding(Backend& backend, int64_t site, std::span<const int32_t> tokens, int64_t vocab,
                     const Tensor& out) const;

 private:
  struct Slot {
    uint64_t id = 0;  // of its adapter; 0: none
    uint64_t used = 0;
  };
  int32_t slot_of(const Adapter& adapter, Backend& backend);
  void note_sites(const Adapter& adapter);
  LoraMemory memory() const { return {static_cast<const std::byte*>(memory_->data()), slot_bytes_, dtype_}; }

  int64_t slot_bytes_;
  DType dtype_;
  bool several_;
  std::unique_ptr<Buffer> memory_;
  std::vector<Slot> slots_;
  // By site, the largest rank that an adapter had so far, padded. Sites with 0 need no ops.
  std::vector<int32_t> ranks_;
  std::set<Sha256::Value> shapes_;  // of the adapters so far
  int64_t version_ = 1;             // counts up with ranks_ and, on several ranks, with shapes_
  uint64_t steps_ = 0;
  bool active_ = false;
  List step_rows_, wanted_rows_;
  LoraRows* current_ = &step_rows_.staged;
  Tensor t_;
};

}  // namespace quire::model
