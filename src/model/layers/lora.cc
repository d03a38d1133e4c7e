// SPDX-License-Identifier: Apache-2.0
// Arranging adapters for a model, and running them.
#include "model/layers/lora.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <tuple>

#include "backend/lora_image.h"
#include "base/math.h"
#include "base/sha256.h"
#include "base/strings.h"
#include "weights/file_sniff.h"

namespace quire::model {
namespace {

std::atomic<uint64_t> g_adapter_loads = 0;

// Of "model.layers.3.mlp.up_proj": "mlp.up_proj".
std::string kind_of(const std::string& module) {
  size_t at = module.size();
  for (size_t i = 0; i + 1 < module.size(); ++i) {
    if (module[i] == '.' && module[i + 1] >= '0' && module[i + 1] <= '9') at = module.find('.', i + 1);
  }
  return at >= module.size() ? module : module.substr(at + 1);
}

// Whether one of the targets is a run of whole parts of the name: "q_proj" and "self_attn" are of
// "model.layers.3.self_attn.q_proj". The names that vLLM has for matrices side by side stand for all of these.
bool is_named(const std::string& module, std::span<const std::string> targets) {
  const std::string parts = "." + module + ".";
  const auto has = [&](const std::string& target) { return parts.find("." + target + ".") != std::string::npos; };
  return std::ranges::any_of(targets, [&](const std::string& target) {
    return has(target) || (target == "qkv_proj" && (has("q_proj") || has("k_proj") || has("v_proj"))) ||
           (target == "gate_up_proj" && (has("gate_proj") || has("up_proj")));
  });
}

Sha256::Value shape_of(const weights::AdapterFiles& files) {
  Sha256 digest;
  for (const weights::AdapterModule& module : files.modules) {
    digest.add(module.name + "\n");
    for (const int64_t size : {module.rank, module.in, module.out}) digest.add(std::to_string(size) + "\n");
  }
  return digest.finish();
}

Status check_range(const std::vector<float>& values, const std::string& module, DType dtype) {
  constexpr float kLargestHalf = 65504;
  if (dtype != DType::kF16) return {};
  const bool fits = std::ranges::all_of(values, [](float v) { return std::abs(v) <= kLargestHalf; });
  if (fits) return {};
  return invalid_argument(
      {"module ", weights::in_quotes(module), " has values that float16 cannot hold; use --lora-dtype bfloat16"});
}

}  // namespace

void LoraSites::add(const std::string& module, bool gguf_name, Target target) {
  (gguf_name ? gguf_names_ : names_).emplace(module, std::move(target));
}

void LoraSites::keep_targets() {
  if (limits_.targets.empty()) return;
  // The rows of a matrix may have a name in each format, and one of them is enough.
  const auto key = [](const Target& target) { return std::tuple(target.site, target.column, target.experts > 0); };
  std::set<std::tuple<int64_t, int64_t, bool>> wanted;
  for (const Names* names : {&names_, &gguf_names_}) {
    for (const auto& [name, target] : *names) {
      if (is_named(name, limits_.targets)) wanted.insert(key(target));
    }
  }
  for (Names* names : {&names_, &gguf_names_}) {
    std::erase_if(*names, [&](const auto& entry) {
      const bool closed = !wanted.contains(key(entry.second));
      if (closed) closed_.insert(entry.first);
      return closed;
    });
  }
  std::erase_if(left_, [&](const std::string& name) {
    const bool closed = !is_named(name, limits_.targets);
    if (closed) closed_.insert(name);
    return closed;
  });
}

Status LoraSites::check_targets() const {
  for (const std::string& target : limits_.targets) {
    const auto named = [&](const auto& entry) { return is_named(entry.first, {&target, 1}); };
    const bool found = std::ranges::any_of(names_, named) || std::ranges::any_of(gguf_names_, named) ||
                       std::ranges::any_of(foreign_, named) || std::ranges::any_of(foreign_gguf_, named);
    if (found) continue;
    std::set<std::string> kinds;
    for (const auto& name : closed_) kinds.insert(kind_of(name));
    for (const auto& entry : names_) kinds.insert(kind_of(entry.first));
    return invalid_argument({"--lora-target-modules has ", weights::in_quotes(target),
                             ", which names no module of the model; it has ",
                             joined(std::vector<std::string>(kinds.begin(), kinds.end()))});
  }
  return {};
}

bool LoraSites::adapts_experts() const {
  // The modules of single experts have the part "experts" in their names, too, in both formats.
  const std::string part = "experts";
  const auto of_experts = [&](const auto& entry) {
    return entry.second.experts > 0 || is_named(entry.first, {&part, 1});
  };
  return std::ranges::any_of(names_, of_experts) || std::ranges::any_of(gguf_names_, of_experts);
}

std::map<int64_t, std::vector<LoraSites::Target>> LoraSites::targets_by_site() const {
  std::map<int64_t, std::vector<Target>> out;
  for (const Names* names : {&names_, &gguf_names_}) {
    for (const auto& entry : *names) {
      const Target& target = entry.second;
      std::vector<Target>& all = out[target.site];
      const bool known = std::ranges::any_of(
          all, [&](const Target& other) { return other.column == target.column && other.experts == target.experts; });
      if (!known) all.push_back(target);
    }
  }
  return out;
}

int64_t LoraSites::slot_bytes() const {
  int64_t total = LoraImage::header_bytes(num_sites_);
  std::map<int64_t, int64_t> expert_sites;  // ranges
  for (const auto& [site, targets] : targets_by_site()) {
    if (const Target& latent = targets.front(); latent.heads > 0) {
      const LoraPart queries{0, latent.k, limits_.max_rank, {}, {}}, values{0, latent.v, limits_.max_rank, {}, {}};
      total += latent.heads * (LoraImage::site_bytes(dtype_, latent.nope, limits_.max_rank, {&queries, 1}) +
                               LoraImage::site_bytes(dtype_, latent.k, limits_.max_rank, {&values, 1}));
      continue;
    }
    const auto fused = std::ranges::find_if(targets, [](const Target& target) { return target.experts > 0; });
    if (fused != targets.end()) {  // a first product may have twice the rank: it is two modules in one
      const LoraPart both{0, fused->gate_up, 2 * limits_.max_rank, {}, {}};
      const LoraPart down{0, fused->hidden, limits_.max_rank, {}, {}};
      total += fused->own_experts * (LoraImage::site_bytes(dtype_, fused->hidden, 2 * limits_.max_rank, {&both, 1}) +
                                     LoraImage::site_bytes(dtype_, fused->inner, limits_.max_rank, {&down, 1}));
      expert_sites.insert({fused->site, fused->site + 2 * fused->own_experts});
      continue;
    }
    const auto among = expert_sites.upper_bound(site);
    if (among != expert_sites.begin() && site < std::prev(among)->second) continue;  // counted above
    std::vector<LoraPart> parts;
    for (const Target& target : targets) parts.push_back({target.column, target.rows, limits_.max_rank, {}, {}});
    total += LoraImage::site_bytes(dtype_, targets.front().k, limits_.max_rank * std::ssize(targets), parts);
  }
  return round_up(total, int64_t{64});
}

int64_t LoraSites::most_sums(const Backend& backend) const {
  int64_t most = 0;
  for (const auto& [site, targets] : targets_by_site()) {
    const Target& first = targets.front();
    // A site per head of kv_b reads the latent vector, or a head of the queries.
    const int64_t k = first.embedding ? 1 : std::max({first.k, first.nope, first.hidden, first.inner});
    most = std::max(most, lora_padded(limits_.max_rank * std::ssize(targets)) * backend.lora_spans(k));
  }
  return most;
}

Status LoraSites::check(const weights::AdapterModule& module, const Target& target) const {
  const std::string name = weights::in_quotes(module.name);
  if (module.rank > limits_.max_rank) {
    return invalid_argument({"module ", name, " has rank ", module.rank, ", but --max-lora-rank is ", limits_.max_rank,
                             "; start quire with --max-lora-rank ", module.rank});
  }
  if (module.embedding != target.embedding) {
    return corrupt({"module ", name, " is ", (module.embedding ? "not " : ""), "an embedding in the model"});
  }
  if (module.in != target.k || module.out != target.module_rows) {
    return invalid_argument({"module ", name, " has ", module.in, " inputs and ", module.out,
                             " outputs in the adapter, but ", target.k, " and ", target.module_rows,
                             " in the model; the adapter was made for another model"});
  }
  return {};
}

Failure LoraSites::unknown_module(const std::string& module, const Names& names) const {
  if (closed_.contains(module)) {
    return invalid_argument({"module ", weights::in_quotes(module), " is not among --lora-target-modules, which are ",
                             joined(limits_.targets),
                             "; start quire with a name for it in the list, or without the flag"});
  }
  std::set<std::string> kinds;
  for (const auto& [name, target] : names) kinds.insert(kind_of(name));
  std::string known;
  for (const std::string& kind : kinds) known += (known.empty() ? "" : ", ") + kind;
  return unsupported(
      {"module ", weights::in_quotes(module), " is not one that quire adapts in this model; it adapts ", known});
}

std::vector<AdaptedModule> LoraSites::modules() const {
  std::vector<AdaptedModule> out;
  for (const Names* names : {&names_, &gguf_names_}) {
    for (const auto& [name, t] : *names) {
      out.push_back(
          {name, names == &gguf_names_, t.embedding, t.module_rows, t.k, t.experts, t.hidden, t.inner, t.gate_up});
    }
  }
  return out;
}

void LoraSites::learn(const AdaptedModule& module) {
  if ((module.gguf ? gguf_names_ : names_).contains(module.name)) return;
  Target target;
  target.module_rows = module.rows;
  target.k = module.k;
  target.embedding = module.embedding;
  target.experts = module.experts;
  target.hidden = module.hidden;
  target.inner = module.inner;
  target.gate_up = module.gate_up;
  (module.gguf ? foreign_gguf_ : foreign_).emplace(module.name, std::move(target));
}

namespace {

// Keys and values of head h are rows of B, and a query is multiplied with the keys' rows before the latent vectors are:
// q (B_k A) = (q B_k) A.
void add_latent(const LoraSites::Target& target, const weights::AdapterModule& module, const std::vector<float>& a,
                const std::vector<float>& b, LoraImage& image) {
  const auto rank = static_cast<size_t>(module.rank), k = static_cast<size_t>(target.k);
  const auto nope = static_cast<size_t>(target.nope), v = static_cast<size_t>(target.v);
  const auto scale = static_cast<float>(module.scale);
  std::vector<float> turned_a(k * rank), keys(rank * nope);
  for (size_t j = 0; j < rank; ++j) {
    for (size_t i = 0; i < k; ++i) turned_a[i * rank + j] = a[j * k + i];
  }
  for (int64_t h = 0; h < target.heads; ++h) {
    const float* rows = b.data() + static_cast<size_t>(target.first_head + h) * (nope + v) * rank;
    for (size_t i = 0; i < nope; ++i) {
      for (size_t j = 0; j < rank; ++j) keys[j * nope + i] = rows[i * rank + j];
    }
    const LoraPart queries{0, target.k, module.rank, keys, turned_a, {}, scale};
    image.add(target.site + h, target.nope, {&queries, 1});
    const LoraPart values{0, target.v, module.rank, a, {rows + nope * rank, v * rank}, {}, scale};
    image.add(target.site + target.heads + h, target.k, {&values, 1});
  }
}

// A and B of all experts, apart: expert e has `rank` rows of A, and B's columns are sorted by rank first.
Status add_experts(const LoraSites::Target& target, const weights::AdapterModule& module, int64_t max_rank,
                   const std::vector<float>& a, const std::vector<float>& b, LoraImage& image) {
  const std::string name = weights::in_quotes(module.name);
  const bool first = module.in == target.hidden && module.out == target.gate_up;
  if (!first && (module.in != target.inner || module.out != target.hidden)) {
    return invalid_argument({"module ", name, " has ", module.in, " inputs and ", module.out,
                             " outputs per expert, which fits neither product of the model's experts"});
  }
  const int64_t rank = first ? module.gate_up_rank : module.down_rank;
  if (rank * target.experts != module.rank) {
    return corrupt({"module ", name, " has ", module.rank, " rows in A, but rank ", rank, " of ", target.experts,
                    " experts needs ", rank * target.experts});
  }
  if (rank > (first ? 2 : 1) * max_rank) {
    return invalid_argument({"module ", name, " has rank ", rank, ", but --max-lora-rank is ", max_rank,
                             "; start quire with --max-lora-rank ", std::to_string(first ? (rank + 1) / 2 : rank)});
  }
  const auto r = static_cast<size_t>(rank), in = static_cast<size_t>(module.in), out = static_cast<size_t>(module.out);
  const auto experts = static_cast<size_t>(target.experts);
  std::vector<float> own_b(out * r);
  for (int64_t own = 0; own < target.own_experts; ++own) {
    const auto e = static_cast<size_t>(target.first_expert + own);
    for (size_t o = 0; o < out; ++o) {
      for (size_t j = 0; j < r; ++j) own_b[o * r + j] = b[(o * r + j) * experts + e];
    }
    LoraPart part{0, module.out, rank, {a.data() + e * r * in, r * in}, own_b};
    if (first) part.map = target.map;
    part.scale = static_cast<float>(first ? module.gate_up_scale : module.down_scale);
    image.add(target.site + own + (first ? 0 : target.own_experts), module.in, {&part, 1});
  }
  return {};
}

// Which columns of which sites an adapter has, with the module that has them.
class TakenColumns {
 public:
  // Takes columns of `count` sites; an Error if another module has one of them.
  Status take(int64_t site, int64_t count, int64_t column, int64_t rows, const std::string& module) {
    for (int64_t s = site; s < site + count; ++s) {
      for (const Range& range : by_site_[s]) {
        if (column >= range.end || range.begin >= column + rows) continue;
        return corrupt({"modules ", weights::in_quotes(range.module), " and ", weights::in_quotes(module),
                        " are the same matrix under two names"});
      }
      by_site_[s].push_back({column, column + rows, module});
    }
    return {};
  }
  // The same for all that the module is in the model.
  Status take(const LoraSites::Target& target, const weights::AdapterModule& module) {
    if (module.of_experts) {
      const bool first = module.in == target.hidden && module.out == target.gate_up;
      return take(target.site + (first ? 0 : target.own_experts), target.own_experts, 0, module.out, module.name);
    }
    if (target.heads > 0) return take(target.site, 2 * target.heads, 0, target.module_rows, module.name);
    return take(target.site, 1, target.column, target.rows, module.name);
  }

 private:
  struct Range {
    int64_t begin, end;
    std::string module;
  };
  std::map<int64_t, std::vector<Range>> by_site_;
};

}  // namespace

Status LoraSites::check_foreign(const weights::AdapterModule& module, const Target& target, const Names& names) const {
  if ((target.experts > 0) != module.of_experts) return unknown_module(module.name, names);
  if (!module.of_experts) QUIRE_TRY(check(module, target));
  QUIRE_ASSIGN(const std::vector<float> a, module.a_values());
  QUIRE_ASSIGN(const std::vector<float> b, module.b_values());
  for (const auto* matrix : {&a, &b}) QUIRE_TRY(check_range(*matrix, module.name, dtype_));
  if (!module.of_experts) return {};
  LoraImage none(num_sites_, dtype_);
  return add_experts(target, module, limits_.max_rank, a, b, none);  // of which this rank has none
}

Result<AdapterPtr> LoraSites::make(const weights::AdapterFiles& files, const std::string& architecture) const {
  if (files.gguf && gguf_names_.empty()) {
    return unsupported(
        "a GGUF adapter needs a GGUF model, and this model is a safetensors folder; use the PEFT folder from which the "
        "adapter was converted");
  }
  if (!files.architecture.empty() && !architecture.empty() && files.architecture != architecture) {
    return invalid_argument({"the adapter was made for the architecture ", weights::in_quotes(files.architecture),
                             ", but the model is ", weights::in_quotes(architecture)});
  }
  const Names& names = files.gguf ? gguf_names_ : names_;
  LoraImage image(num_sites_, dtype_);
  auto out = std::make_shared<Adapter>();
  std::map<int64_t, std::vector<LoraPart>> sites;
  std::map<int64_t, int64_t> inputs;
  std::vector<std::vector<float>> values;  // what the parts refer to
  values.reserve(2 * files.modules.size());
  TakenColumns taken;
  const auto& foreign = files.gguf ? foreign_gguf_ : foreign_;
  for (const weights::AdapterModule& module : files.modules) {
    if (const auto other = foreign.find(module.name); other != foreign.end()) {
      QUIRE_TRY(check_foreign(module, other->second, names));
      if (!module.of_experts) out->rank = std::max(out->rank, module.rank);
      continue;
    }
    if (left_.contains(module.name)) continue;
    const auto [begin, end] = names.equal_range(module.name);
    if (begin == end || (begin->second.experts > 0) != module.of_experts) return unknown_module(module.name, names);
    for (auto it = begin; it != end; ++it) {
      if (!module.of_experts) QUIRE_TRY(check(module, it->second));
      QUIRE_TRY(taken.take(it->second, module));
    }
    QUIRE_ASSIGN(std::vector<float> a, module.a_values());
    QUIRE_ASSIGN(std::vector<float> b, module.b_values());
    for (const auto* matrix : {&a, &b}) QUIRE_TRY(check_range(*matrix, module.name, dtype_));
    values.push_back(std::move(a));
    values.push_back(std::move(b));
    if (module.of_experts) {
      QUIRE_TRY(add_experts(begin->second, module, limits_.max_rank, values[values.size() - 2], values.back(), image));
      continue;
    }
    out->rank = std::max(out->rank, module.rank);
    if (begin->second.heads > 0) {
      add_latent(begin->second, module, values[values.size() - 2], values.back(), image);
      continue;
    }
    for (auto it = begin; it != end; ++it) {
      const Target& target = it->second;
      LoraPart part{target.column,
                    target.rows,
                    module.rank,
                    {},
                    values.back(),
                    target.map,
                    static_cast<float>(module.scale * static_cast<double>(target.factor))};
      if (it == begin) part.a = values[values.size() - 2];
      sites[target.site].push_back(part);
      inputs[target.site] = target.k;
    }
  }
  for (const auto& [site, parts] : sites) image.add(site, inputs[site], parts);
  out->image = image.take();
  if (std::ssize(out->image) > slot_bytes()) {
    return corrupt({"the adapter needs ", std::ssize(out->image), " bytes, but a slot for adapters of rank ",
                    limits_.max_rank, " has ", slot_bytes()});
  }
  out->id = ++g_adapter_loads;
  out->path = files.path;
  out->digest = files.digest();
  out->shape = shape_of(files);
  return AdapterPtr(std::move(out));
}

Status LoraState::allocate(Backend& backend) {
  QUIRE_ASSIGN(memory_, backend.allocate(memory_bytes()));
  return {};
}

void LoraState::note_sites(const Adapter& adapter) {
  bool grown = false;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    LoraSite site;
    std::memcpy(&site, adapter.image.data() + i * sizeof site, sizeof site);
    const auto rank = static_cast<int32_t>(lora_padded(site.rank));
    if (rank <= ranks_[i]) continue;
    ranks_[i] = rank;
    grown = true;
  }
  const bool fresh = several_ && shapes_.insert(adapter.shape).second;
  if (grown || fresh) ++version_;  // adapters of one shape have the same ranks at all sites
}

// The slot that holds the adapter; if none does, it takes the one that was used least recently.
// REQUIRES: a step has no more adapters than there are slots.
int32_t LoraState::slot_of(const Adapter& adapter, Backend& backend) {
  Slot* found = &slots_.front();
  for (Slot& slot : slots_) {
    if (slot.id == adapter.id) {
      found = &slot;
      break;
    }
    if (slot.used < found->used) found = &slot;
  }
  const auto index = found - slots_.data();
  if (found->id != adapter.id) {
    QUIRE_CHECK(found->used < steps_, "a step has at most as many adapters as there are slots");
    QUIRE_CHECK(std::ssize(adapter.image) <= slot_bytes_);
    backend.write(static_cast<std::byte*>(memory_->data()) + index * slot_bytes_, adapter.image);
    found->id = adapter.id;
    note_sites(adapter);
  }
  found->used = steps_;
  return static_cast<int32_t>(index);
}

void LoraState::begin(const StepBatch& batch, Backend& backend, const Tensor& t) {
  ++steps_;
  active_ = !batch.adapters.empty();
  t_ = t;
  if (!active_) return;
  // Adapters that are in slots already come first: a new one must not take such a slot.
  std::vector<int32_t> slots(batch.adapters.size(), -1);
  for (const bool resident : {true, false}) {
    for (size_t i = 0; i < slots.size(); ++i) {
      const Adapter& adapter = *batch.adapters[i];
      const bool here = std::ranges::any_of(slots_, [&](const Slot& slot) { return slot.id == adapter.id; });
      if (slots[i] < 0 && here == resident) slots[i] = slot_of(adapter, backend);
    }
  }
  std::vector<int32_t> by_row;
  for (size_t s = 0; s < batch.context_lens.size(); ++s) {
    const int32_t adapter = batch.adapter_of[s];
    const auto count = static_cast<size_t>(batch.cu_seqlens_q[s + 1] - batch.cu_seqlens_q[s]);
    by_row.insert(by_row.end(), count, adapter < 0 ? -1 : slots[static_cast<size_t>(adapter)]);
  }
  const auto sort = [&](const std::vector<int32_t>& slot_of_row, List& list) {
    list.rows.resize(slot_of_row.size());
    std::iota(list.rows.begin(), list.rows.end(), 0);
    std::ranges::stable_sort(list.rows, {}, [&](int32_t row) {
      return static_cast<uint32_t>(slot_of_row[static_cast<size_t>(row)]);  // -1 comes last
    });
    list.slots.clear();
    for (const int32_t row : list.rows) list.slots.push_back(slot_of_row[static_cast<size_t>(row)]);
    list.runs = list_lora_runs(list.slots, std::ssize(slots_));
    list.staged.num_adapted = std::ranges::count_if(list.slots, [](int32_t slot) { return slot >= 0; });
  };
  sort(by_row, step_rows_);
  std::vector<int32_t> by_wanted;
  for (const int32_t row : batch.wanted) by_wanted.push_back(by_row[static_cast<size_t>(row)]);
  sort(by_wanted, wanted_rows_);
  select_step_rows(0);
}

std::optional<LoraArgs> LoraState::args_of(int64_t site, const Tensor& x, const Tensor& out) const {
  if (!has(site)) return std::nullopt;
  return LoraArgs{x, {}, memory(), *current_, site, t_.first_rows(x.rows), out, ranks_[static_cast<size_t>(site)]};
}

void LoraState::add(Backend& backend, int64_t site, const Tensor& x, const Tensor& out, LoraProducts products) const {
  std::optional<LoraArgs> args = args_of(site, x, out);
  if (!args) return;
  args->products = products;
  backend.lora(*args);
}

std::optional<MoeLora> LoraState::of_experts(int64_t first_site, int64_t experts) const {
  if (!active_ || experts == 0) return std::nullopt;
  const auto first = ranks_.begin() + first_site;
  const int32_t gate_up = *std::max_element(first, first + experts);
  const int32_t down = *std::max_element(first + experts, first + 2 * experts);
  if (gate_up == 0 && down == 0) return std::nullopt;
  return MoeLora{memory(), *current_, first_site, first_site + experts, gate_up, down, std::ssize(slots_)};
}

void LoraState::add_embedding(Backend& backend, int64_t site, std::span<const int32_t> tokens, int64_t vocab,
                              const Tensor& out) const {
  const int64_t rank = ranks_[static_cast<size_t>(site)];
  if (!active_ || rank == 0) return;
  const Tensor vocabulary{nullptr, DType::kF32, 0, vocab, vocab};
  backend.lora({vocabulary, tokens, memory(), *current_, site, t_.first_rows(out.rows), out, rank});
}

}  // namespace quire::model
