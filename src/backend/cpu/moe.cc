// SPDX-License-Identifier: Apache-2.0
// Mixture of experts: the router's choice, and experts run as few regions over (expert, panels) pieces.
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "backend/cpu/cpu_backend.h"
#include "base/math.h"

namespace quire::cpu {
namespace {

// Choices that run at once; this bounds the memory between the two products of an expert.
constexpr int64_t kMostChoices = 8192;
// Up to this many tokens every thread prepares the rows of an expert for itself, which is cheaper than more regions.
constexpr int64_t kFewTokens = 4;
// Panels per piece, if an expert has more than a few rows: they should stay in caches from row to row.
constexpr int64_t kMostPanels = 8;
constexpr int64_t kFewRows = 4;
// Rows of experts that go through both products together, so that the results between them stay in caches.
constexpr int64_t kGroupRows = 256;

// NaN is above all numbers, as in torch.
bool above(float a, float b) {
  return a > b || (std::isnan(a) && !std::isnan(b));
}

// Keeps the `most` best offers, the best first; the earlier one wins a tie.
class Best {
 public:
  Best(float* values, int32_t* ids, int64_t most) : values_(values), ids_(ids), most_(most) {}
  void offer(float value, int32_t id) {
    if (count_ == most_ && !above(value, values_[count_ - 1])) return;
    int64_t at = count_ < most_ ? count_++ : count_ - 1;
    for (; at > 0 && above(value, values_[at - 1]); --at) {
      values_[at] = values_[at - 1];
      ids_[at] = ids_[at - 1];
    }
    values_[at] = value;
    ids_[at] = id;
  }

 private:
  float* values_;
  int32_t* ids_;
  int64_t most_;
  int64_t count_ = 0;
};

// The memory for routing one row, in a thread's scratch.
struct RouteScratch {
  float* scores;        // [experts]
  float* choice;        // [experts]
  float* values;        // [max(k, groups_kept)]
  float* groups;        // [groups]
  int32_t* group_ids;   // [groups_kept]
  uint8_t* group_kept;  // [groups]

  static size_t bytes(const MoeRouteArgs& a) {
    return static_cast<size_t>(4 * (2 * a.logits.cols + std::max(a.k, a.groups_kept) + 2 * a.groups) + a.groups);
  }
  RouteScratch(void* memory, const MoeRouteArgs& a) {
    scores = static_cast<float*>(memory);
    choice = scores + a.logits.cols;
    values = choice + a.logits.cols;
    groups = values + std::max(a.k, a.groups_kept);
    group_ids = reinterpret_cast<int32_t*>(groups + a.groups);
    group_kept = reinterpret_cast<uint8_t*>(group_ids + a.groups);
  }
};

void keep_groups(const MoeRouteArgs& a, const RouteScratch& s) {
  const int64_t size = a.logits.cols / a.groups;
  for (int64_t g = 0; g < a.groups; ++g) {
    const float* c = s.choice + g * size;
    float first = c[0];
    float second = -std::numeric_limits<float>::infinity();
    for (int64_t i = 1; i < size; ++i) {
      if (above(c[i], first)) {
        second = first;
        first = c[i];
      } else if (above(c[i], second)) {
        second = c[i];
      }
    }
    s.groups[g] = a.group_score == MoeGroupScore::kMax ? first : first + second;
    s.group_kept[g] = 0;
  }
  Best best(s.values, s.group_ids, a.groups_kept);
  for (int64_t g = 0; g < a.groups; ++g) best.offer(s.groups[g], static_cast<int32_t>(g));
  for (int64_t i = 0; i < a.groups_kept; ++i) s.group_kept[s.group_ids[i]] = 1;
}

// The ids of one row, by rank.
void choose(const MoeRouteArgs& a, const float* scores, const RouteScratch& s, int32_t* ids) {
  const int64_t experts = a.logits.cols;
  const float* choice = scores;
  if (a.choice_bias != nullptr) {
    for (int64_t e = 0; e < experts; ++e) s.choice[e] = scores[e] + a.choice_bias[e];
    choice = s.choice;
  }
  Best best(s.values, ids, a.k);
  if (a.groups_kept == a.groups) {
    for (int64_t e = 0; e < experts; ++e) best.offer(choice[e], static_cast<int32_t>(e));
    return;
  }
  if (choice != s.choice) std::memcpy(s.choice, choice, static_cast<size_t>(experts) * sizeof(float));
  keep_groups(a, s);
  const int64_t size = experts / a.groups;
  for (int64_t e = 0; e < experts; ++e) {
    if (s.group_kept[e / size] != 0) best.offer(s.choice[e], static_cast<int32_t>(e));
  }
}

void sparse_mixer(const CpuKernels& kernels, const MoeRouteArgs& a, const float* logits, const RouteScratch& s,
                  int32_t* ids, float* weights) {
  const int64_t experts = a.logits.cols;
  Best best(s.values, ids, 2);
  for (int64_t e = 0; e < experts; ++e) best.offer(logits[e], static_cast<int32_t>(e));
  for (int rank = 0; rank < 2; ++rank) {
    const float top = logits[ids[rank]];
    for (int64_t e = 0; e < experts; ++e) {
      const float size = std::fabs(logits[e]);
      const bool far = (top - logits[e]) / (size < top ? top : size) > 2.0f * a.jitter;
      const bool taken = rank == 1 && e == ids[0];
      s.scores[e] = far || taken ? -std::numeric_limits<float>::infinity() : logits[e];
    }
    kernels.moe_softmax(s.scores, experts, s.scores);
    weights[rank] = s.scores[ids[rank]];
  }
}

void route_row(const CpuKernels& kernels, const MoeRouteArgs& a, int64_t row, const RouteScratch& s) {
  float* logits = a.logits.row_f32(row);
  int32_t* ids = a.ids + row * a.k;
  float* weights = a.weights + row * a.k;
  const int64_t experts = a.logits.cols;
  switch (a.score) {
    case MoeScore::kSoftmax:
    case MoeScore::kSigmoid: {
      if (a.score == MoeScore::kSoftmax) {
        kernels.moe_softmax(logits, experts, s.scores);
      } else {
        const Tensor x{logits, DType::kF32, 1, experts, experts};
        kernels.activation({x, Activation::kSigmoid, {s.scores, DType::kF32, 1, experts, experts}}, 0, 1);
      }
      choose(a, s.scores, s, ids);
      for (int64_t r = 0; r < a.k; ++r) weights[r] = s.scores[ids[r]];
      break;
    }
    case MoeScore::kSoftmaxOfChosen: {
      choose(a, logits, s, ids);
      for (int64_t r = 0; r < a.k; ++r) weights[r] = logits[ids[r]];
      kernels.moe_softmax(weights, a.k, weights);
      break;
    }
    case MoeScore::kSparseMixer: {
      sparse_mixer(kernels, a, logits, s, ids, weights);
      break;
    }
  }
  if (a.normalise) {
    float sum = 0;
    for (int64_t r = 0; r < a.k; ++r) sum += weights[r];
    sum += a.sum_epsilon;
    for (int64_t r = 0; r < a.k; ++r) weights[r] /= sum;
  }
  for (int64_t r = 0; r < a.k; ++r) {
    weights[r] *= a.scale;
    if (a.expert_scale != nullptr) weights[r] *= a.expert_scale[ids[r]];
  }
}

// The rows of an expert as its product takes them.
struct ExpertRows {
  Tensor x;
  PreparedRows prepared;
};

Tensor rows_from(const Tensor& t, int64_t begin, int64_t rows) {
  return {t.row_f32(begin), t.dtype, rows, t.cols, t.stride};
}

}  // namespace

void MoePlan::sort(const int32_t* ids, int64_t tokens, int64_t k, int64_t num_experts) {
  const int64_t choices = tokens * k;
  next_.assign(static_cast<size_t>(num_experts), 0);
  for (int64_t i = 0; i < choices; ++i) {
    QUIRE_CHECK(ids[i] >= -1 && ids[i] < num_experts);
    if (ids[i] >= 0) ++next_[static_cast<size_t>(ids[i])];
  }
  experts_.clear();
  int64_t begin = 0;
  for (int64_t e = 0; e < num_experts; ++e) {
    const int64_t rows = std::exchange(next_[static_cast<size_t>(e)], begin);
    if (rows > 0) experts_.push_back({static_cast<int32_t>(e), begin, rows, {}});
    begin += rows;
  }
  tokens_.resize(static_cast<size_t>(begin));
  rows_.assign(static_cast<size_t>(choices), -1);
  for (int64_t i = 0; i < choices; ++i) {
    if (ids[i] < 0) continue;
    const int64_t row = next_[static_cast<size_t>(ids[i])]++;
    tokens_[static_cast<size_t>(row)] = static_cast<int32_t>(i / k);
    rows_[static_cast<size_t>(i)] = static_cast<int32_t>(row);
  }
}

void MoePlan::add_pieces(const Expert& e, int64_t row_block, int64_t panels, int64_t grain) {
  for (int64_t row = 0; row < e.rows; row += row_block) {
    for (int64_t panel = 0; panel < panels; panel += grain) {
      pieces_.push_back({&e, row, std::min(e.rows, row + row_block), panel, std::min(panels, panel + grain)});
    }
  }
}

void CpuBackend::moe_route(const MoeRouteArgs& args) {
  check(args);
  if (args.logits.rows == 0) return;
  const int64_t grain = std::max<int64_t>(1, kElementsPerPiece / 4 / args.logits.cols);
  pool_.for_each_piece(args.logits.rows, grain, [&](int64_t begin, int64_t end, int thread) {
    const RouteScratch scratch(thread_scratch_[static_cast<size_t>(thread)].grow(RouteScratch::bytes(args)), args);
    for (int64_t row = begin; row < end; ++row) route_row(kernels_, args, row, scratch);
  });
}

void CpuBackend::moe_experts(const MoeExpertsArgs& args) {
  check(args);
  run_experts(args, {});
}

void CpuBackend::moe_choices(const MoeChoicesArgs& args) {
  check(args);
  check_f32(args.out);
  run_experts(args.experts, args.out);
}

// With `choices`, the outputs go there and are not summed.
void CpuBackend::run_experts(const MoeExpertsArgs& args, const Tensor& choices) {
  check_f32(args.x);
  if (args.x.rows == 0) return;
  const int64_t chunk = std::max<int64_t>(1, kMostChoices / args.k);
  for (int64_t token = 0; token < args.x.rows; token += chunk) {
    MoeExpertsArgs part = args;
    const int64_t tokens = std::min(chunk, args.x.rows - token);
    part.x = rows_from(args.x, token, tokens);
    part.out = rows_from(args.out, token, tokens);
    part.ids += token * args.k;
    part.weights += token * args.k;
    MoeLora lora;
    if (args.lora != nullptr) {
      lora = *args.lora;
      lora.rows.first += token;
      part.lora = &lora;
    }
    moe_.sort(part.ids, tokens, args.k, std::ssize(args.gate_up));
    QUIRE_CHECK(choices.data != nullptr || moe_.rows() == tokens * args.k);
    if (moe_.rows() == 0) continue;
    const Tensor y = moe_chunk(part);
    choices.data != nullptr ? moe_store(y, rows_from(choices, token * args.k, tokens * args.k)) : moe_add(part, y);
  }
}

// The outputs of the chosen experts, in the order of the plan.
Tensor CpuBackend::moe_chunk(const MoeExpertsArgs& args) {
  const int64_t inner = matrix(args.down[static_cast<size_t>(moe_.experts()[0].id)]).k();
  const int64_t wide = args.gated ? 2 * inner : inner;
  for (const MoePlan::Expert& e : moe_.experts()) {
    const PackedView& gate_up = matrix(args.gate_up[static_cast<size_t>(e.id)]).view();
    const PackedView& down = matrix(args.down[static_cast<size_t>(e.id)]).view();
    QUIRE_CHECK(gate_up.n == wide && gate_up.k == args.x.cols && down.n == args.out.cols && down.k == inner);
  }
  const int64_t rows = moe_.rows();
  const Tensor y = moe_floats(moe_outputs_, rows, args.out.cols);
  if (args.lora != nullptr) {
    const LoraRows& adapted = args.lora->rows;
    moe_slots_.assign(static_cast<size_t>(args.x.rows), -1);
    for (int64_t i = 0; i < adapted.num_adapted; ++i) {
      const int64_t row = adapted.rows[static_cast<size_t>(i)] - adapted.first;
      if (row < 0 || row >= args.x.rows) continue;
      moe_slots_[static_cast<size_t>(row)] = adapted.slots[static_cast<size_t>(i)];
    }
  }
  if (args.x.rows <= kFewTokens && args.lora == nullptr) {
    moe_few_tokens(args, moe_floats(moe_hidden_, rows, wide), y);
  } else {
    const std::span<MoePlan::Expert> all = moe_.experts();
    for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
      const int64_t first = all[begin].begin;
      for (end = begin + 1; end < all.size() && all[end].begin + all[end].rows - first <= kGroupRows;) ++end;
      const int64_t count = all[end - 1].begin + all[end - 1].rows - first;
      moe_many_tokens(args, all.subspan(begin, end - begin), moe_floats(moe_gathered_, count, args.x.cols),
                      moe_floats(moe_hidden_, count, wide), rows_from(y, first, count));
    }
  }
  return y;
}

void CpuBackend::moe_store(const Tensor& y, const Tensor& choices) {
  for_rows(choices.rows, choices.cols, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int32_t row = *moe_.rows_of(i, 1);
      const auto bytes = static_cast<size_t>(choices.cols) * sizeof(float);
      if (row >= 0) std::memcpy(choices.row_f32(i), y.row_f32(row), bytes);
    }
  });
}

void CpuBackend::moe_add(const MoeExpertsArgs& args, const Tensor& y) {
  for_rows(args.x.rows, args.k * args.out.cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      kernels_.moe_sum(y, moe_.rows_of(t, args.k), args.weights + t * args.k, args.k, args.out.row_f32(t));
    }
  });
}

void CpuBackend::own_ids(const OwnIdsArgs& args) {
  check(args);
  for (size_t i = 0; i < args.ids.size(); ++i) {
    const int64_t id = args.ids[i], owner = id / args.width;
    args.out[i] = owner == args.rank ? static_cast<int32_t>(id - owner * args.width) : args.other;
  }
}

void CpuBackend::moe_sum(const MoeSumArgs& args) {
  check(args);
  check_f32(args.choices, args.out);
  for_rows(args.out.rows, args.k * args.out.cols, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> rows(static_cast<size_t>(args.k));
    for (int64_t t = begin; t < end; ++t) {
      std::iota(rows.begin(), rows.end(), static_cast<int32_t>(t * args.k));
      kernels_.moe_sum(args.choices, rows.data(), args.weights + t * args.k, args.k, args.out.row_f32(t));
    }
  });
}

Tensor CpuBackend::moe_floats(Scratch& memory, int64_t rows, int64_t cols) {
  return {memory.grow(static_cast<size_t>(rows * cols) * sizeof(float)), DType::kF32, rows, cols, cols};
}

// Reads the columns of `hidden` and writes `inner` columns; may work in place.
void CpuBackend::moe_activate(const MoeExpertsArgs& args, const Tensor& hidden, const Tensor& out, int64_t row_begin,
                              int64_t row_end) {
  if (args.gated) {
    const int64_t inner = hidden.cols / 2;
    kernels_.glu({hidden.columns(0, inner), hidden.columns(inner, inner), args.activation, out, args.limit}, row_begin,
                 row_end);
  } else {
    kernels_.activation({hidden, args.activation, out}, row_begin, row_end);
  }
}

void CpuBackend::moe_piece(const CpuMatrix& weight, const float* bias, const Tensor& x, const PreparedRows& prepared,
                           const Tensor& out, const MoePlan::Piece& p, const uint8_t* soon, int thread) {
  PackedView w = weight.view();
  w.soon = soon;
  const LinearArgs args{x, &weight, bias, out};
  if (weight.prepares_rows()) {
    kernels_.linear.product(prepared, w, args, p.row_begin, p.row_end, p.panel_begin, p.panel_end,
                            thread_scratch(thread, w.k));
  } else if (is_quantised(w.dtype)) {
    kernels_.linear.dequantised(w, args, p.row_begin, p.row_end, p.panel_begin, p.panel_end,
                                thread_scratch(thread, w.k));
  } else {
    kernels_.linear.plain(w, args, p.row_begin, p.row_end, p.panel_begin, p.panel_end);
  }
}

void CpuBackend::moe_add_pieces(std::span<const MoePlan::Expert> experts,
                                std::span<const PackedMatrix* const> weights) {
  const auto row_block = [&](const MoePlan::Expert& e) {
    const CpuMatrix& weight = matrix(weights[static_cast<size_t>(e.id)]);
    const int64_t bytes = weight.prepares_rows() ? kernels_.linear.prepared_bytes(weight.view(), e.rows) / e.rows
                                                 : weight.k() * static_cast<int64_t>(sizeof(float));
    const int64_t most = std::max<int64_t>(64, kRowBlockBytes / bytes / kRowTile * kRowTile);
    const int64_t blocks = ceil_div(e.rows, most);
    return round_up(ceil_div(e.rows, blocks), kRowTile);
  };
  int64_t panels = 0;
  for (const MoePlan::Expert& e : experts) {
    panels += matrix(weights[static_cast<size_t>(e.id)]).view().panels() * ((e.rows + row_block(e) - 1) / row_block(e));
  }
  const int64_t fair = panels / (4 * pool_.threads());
  moe_.clear_pieces();
  for (const MoePlan::Expert& e : experts) {
    const int64_t most = e.rows <= kFewRows ? fair : std::min(fair, kMostPanels);
    moe_.add_pieces(e, row_block(e), matrix(weights[static_cast<size_t>(e.id)]).view().panels(), whole_sets(most));
  }
}

// Where the thread that has piece i of `weights` probably goes on: at the piece that comes when every thread has taken
// one more, perhaps of the product that follows.
const uint8_t* CpuBackend::moe_soon(size_t i, std::span<const PackedMatrix* const> weights,
                                    std::span<const MoePlan::Expert> following,
                                    std::span<const PackedMatrix* const> following_weights) const {
  const std::span<const MoePlan::Piece> pieces = moe_.pieces();
  const size_t next = i + static_cast<size_t>(pool_.threads());
  if (next < pieces.size()) {
    const MoePlan::Piece& p = pieces[next];
    return matrix(weights[static_cast<size_t>(p.expert->id)]).view().panel(p.panel_begin);
  }
  if (next - pieces.size() >= following.size()) return nullptr;
  return matrix(following_weights[static_cast<size_t>(following[next - pieces.size()].id)]).view().panel(0);
}

// Two regions. A thread prepares the rows of an expert in its own memory when it takes a first piece of it.
void CpuBackend::moe_few_tokens(const MoeExpertsArgs& args, const Tensor& hidden, const Tensor& y) {
  const auto region = [&](std::span<const PackedMatrix* const> weights, std::span<const float* const> biases,
                          std::span<const MoePlan::Expert> following, const Tensor& out, const auto& fill) {
    moe_add_pieces(moe_.experts(), weights);
    const auto pieces = moe_.pieces();
    pool_.run([&](int thread) {
      const MoePlan::Expert* ready = nullptr;
      ExpertRows rows;
      pool_.take_pieces(static_cast<int64_t>(pieces.size()), 1, [&](int64_t i, int64_t) {
        const MoePlan::Piece& p = pieces[static_cast<size_t>(i)];
        const MoePlan::Expert& e = *p.expert;
        const auto id = static_cast<size_t>(e.id);
        const CpuMatrix& weight = matrix(weights[id]);
        if (ready != p.expert) {
          const PackedView& w = weight.view();
          const int64_t floats = round_up(e.rows * w.k * static_cast<int64_t>(sizeof(float)), 64);
          const int64_t bytes = weight.prepares_rows() ? kernels_.linear.prepared_bytes(w, e.rows) : 0;
          auto* memory = static_cast<std::byte*>(
              thread_rows_[static_cast<size_t>(thread)].grow(static_cast<size_t>(floats + bytes)));
          rows.x = fill(e, Tensor{memory, DType::kF32, e.rows, w.k, w.k});
          rows.prepared = {memory + floats, e.rows};
          if (weight.prepares_rows()) kernels_.linear.prepare(rows.x, w, 0, e.rows, rows.prepared);
          ready = p.expert;
        }
        moe_piece(weight, biases.empty() ? nullptr : biases[id], rows.x, rows.prepared, rows_from(out, e.begin, e.rows),
                  p, moe_soon(static_cast<size_t>(i), weights, following, args.down), thread);
      });
    });
  };
  region(args.gate_up, args.gate_up_bias, moe_.experts(), hidden, [&](const MoePlan::Expert& e, const Tensor& to) {
    if (e.rows == 1) return rows_from(args.x, moe_.tokens()[static_cast<size_t>(e.begin)], 1);
    moe_gather(args.x, e, to, 0, e.rows);
    return to;
  });
  region(args.down, args.down_bias, {}, y, [&](const MoePlan::Expert& e, const Tensor& to) {
    moe_activate(args, rows_from(hidden, e.begin, e.rows), to, 0, e.rows);
    return to;
  });
}

void CpuBackend::moe_gather(const Tensor& x, const MoePlan::Expert& e, const Tensor& to, int64_t row_begin,
                            int64_t row_end) {
  for (int64_t r = row_begin; r < row_end; ++r) {
    std::memcpy(to.row_f32(r), x.row_f32(moe_.tokens()[static_cast<size_t>(e.begin + r)]),
                static_cast<size_t>(x.cols) * sizeof(float));
  }
}

// Four regions: the rows of some experts are prepared, multiplied, activated and prepared again, multiplied.
// `gathered`, `hidden` and `y` are those rows.
void CpuBackend::moe_many_tokens(const MoeExpertsArgs& args, std::span<MoePlan::Expert> experts, const Tensor& gathered,
                                 const Tensor& hidden, const Tensor& y) {
  const int64_t first = experts[0].begin;
  const auto each_piece = [&](const auto& fn) {
    const auto pieces = moe_.pieces();
    pool_.for_each_piece(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end; ++i) fn(static_cast<size_t>(i), thread);
    });
  };
  const auto regions = [&](std::span<const PackedMatrix* const> weights, std::span<const float* const> biases,
                           std::span<const MoePlan::Expert> following, const Tensor& in, const Tensor& out,
                           const auto& fill) {
    moe_prepared(experts, weights);
    each_piece([&](size_t i, int) {
      const MoePlan::Piece& p = moe_.pieces()[i];
      const MoePlan::Expert& e = *p.expert;
      const CpuMatrix& weight = matrix(weights[static_cast<size_t>(e.id)]);
      const Tensor x = rows_from(in, e.begin - first, e.rows);
      fill(e, x, p.row_begin, p.row_end);
      if (weight.prepares_rows()) kernels_.linear.prepare(x, weight.view(), p.row_begin, p.row_end, e.prepared);
    });
    moe_add_pieces(experts, weights);
    each_piece([&](size_t i, int thread) {
      const MoePlan::Piece& p = moe_.pieces()[i];
      const MoePlan::Expert& e = *p.expert;
      const auto id = static_cast<size_t>(e.id);
      moe_piece(matrix(weights[id]), biases.empty() ? nullptr : biases[id], rows_from(in, e.begin - first, e.rows),
                e.prepared, rows_from(out, e.begin - first, e.rows), p, moe_soon(i, weights, following, args.down),
                thread);
    });
  };
  regions(args.gate_up, args.gate_up_bias, experts, gathered, hidden,
          [&](const MoePlan::Expert& e, const Tensor& x, int64_t begin, int64_t end) {
            moe_gather(args.x, e, x, begin, end);
          });
  if (args.lora != nullptr) moe_adapt(args, experts, args.lora->gate_up_site, gathered, hidden);
  const int64_t inner = args.gated ? hidden.cols / 2 : hidden.cols;
  regions(args.down, args.down_bias, {}, hidden.columns(0, inner), y,
          [&](const MoePlan::Expert& e, const Tensor& x, int64_t begin, int64_t end) {
            moe_activate(args, rows_from(hidden, e.begin - first, e.rows), x, begin, end);
          });
  if (args.lora != nullptr) moe_adapt(args, experts, args.lora->down_site, hidden.columns(0, inner), y);
}

void CpuBackend::moe_adapt(const MoeExpertsArgs& args, std::span<const MoePlan::Expert> experts, int64_t first_site,
                           const Tensor& x, const Tensor& out) {
  const LoraMemory& memory = args.lora->memory;
  const int64_t first = experts[0].begin;
  int64_t most_rank = 0;
  lora_blocks_.clear();
  for (const MoePlan::Expert& e : experts) {
    const size_t before = lora_blocks_.size();  // blocks of other experts
    for (int64_t r = e.begin; r < e.begin + e.rows; ++r) {
      const int32_t slot = moe_slots_[static_cast<size_t>(moe_.tokens()[static_cast<size_t>(r)])];
      if (slot < 0) continue;
      const std::byte* at = memory.data + slot * memory.slot_bytes;
      auto block = std::find_if(lora_blocks_.begin() + static_cast<ptrdiff_t>(before), lora_blocks_.end(),
                                [&](const LoraBlock& b) { return b.slot == at && b.count < kLoraRows; });
      if (block == lora_blocks_.end()) {
        LoraSite site;
        std::memcpy(&site, at + (first_site + e.id) * static_cast<int64_t>(sizeof site), sizeof site);
        if (site.rank == 0) continue;
        most_rank = std::max<int64_t>(most_rank, site.rank);
        block = lora_blocks_.insert(block, {at, site});
      }
      block->rows[block->count++] = r - first;
    }
  }
  if (lora_blocks_.empty()) return;
  const Tensor t = moe_floats(moe_adapted_, x.rows, lora_padded(most_rank));
  run_lora({x, {}, memory, {}, 0, t, out});
}

// Gives the experts memory for what their rows become before these weights, and makes a piece of each tile of rows.
void CpuBackend::moe_prepared(std::span<MoePlan::Expert> experts, std::span<const PackedMatrix* const> weights) {
  int64_t bytes = 0;
  moe_.clear_pieces();
  for (MoePlan::Expert& e : experts) {
    const CpuMatrix& weight = matrix(weights[static_cast<size_t>(e.id)]);
    if (weight.prepares_rows()) bytes += round_up(kernels_.linear.prepared_bytes(weight.view(), e.rows), 64);
    moe_.add_pieces(e, kRowTile, 1, 1);
  }
  if (bytes == 0) return;
  auto* memory = static_cast<std::byte*>(rows_.grow(static_cast<size_t>(bytes)));
  for (MoePlan::Expert& e : experts) {
    const CpuMatrix& weight = matrix(weights[static_cast<size_t>(e.id)]);
    if (!weight.prepares_rows()) continue;
    e.prepared = {memory, e.rows};
    memory += round_up(kernels_.linear.prepared_bytes(weight.view(), e.rows), 64);
  }
}

}  // namespace quire::cpu
