// SPDX-License-Identifier: Apache-2.0
// /live and /live/page: the thread that looks at the models, and the JSON of what it saw.
#include "api/live.h"

#include <algorithm>
#include <charconv>

#include "api/generation.h"
#include "api/host.h"
#include "api/json_writer.h"
#include "base/strings.h"
#include "kv/offload.h"

namespace quire::api {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(100);
constexpr auto kPing = std::chrono::seconds(5);  // a comment after this much silence, so that lost clients are noticed
constexpr size_t kMaxQuestions = 256;            // that wait at once

const char* name(kv::PageState state) {
  constexpr const char* kNames[] = {"free", "cached", "used", "shared"};
  return kNames[static_cast<size_t>(state)];
}

const char* name(kv::CacheKind kind) {
  constexpr const char* kNames[] = {"none", "full", "window", "state"};
  return kNames[static_cast<size_t>(kind)];
}

void write_seconds(JsonWriter& w, const char* name, const std::optional<double>& value) {
  w.key(name).value_or_null(value.has_value(), [&] { w.number(*value); });
}

void write_sequence(JsonWriter& w, const engine::LiveSequence& one) {  // its id is that of all engines
  w.open_object().member("id", one.label.empty() ? std::to_string(one.id) : one.label);
  w.member_int("key", static_cast<int64_t>(one.id)).member_int("index", one.child);
  w.member("state", engine::name(one.state)).member_int("prompt", one.prompt).member_int("tokens", one.tokens);
  w.member_int("computed", one.computed).member_int("cached", one.cached).member_int("pages", one.pages);
  w.member_int("preemptions", one.preemptions).close_object();
}

// The cells as runs: code, length, code, length... A code is state + 4 * group + 1024 * owner.
void write_cells(JsonWriter& w, const std::vector<kv::PageCell>& cells) {
  w.key("cells").open_array();
  for (size_t at = 0; at < cells.size();) {
    size_t end = at + 1;
    while (end < cells.size() && cells[end] == cells[at]) ++end;
    w.integer(static_cast<int64_t>(cells[at].state) + 4 * cells[at].group + 1024 * int64_t{cells[at].owner});
    w.integer(static_cast<int64_t>(end - at));
    at = end;
  }
  w.close_array();
}

// The pages of the tiers as runs of neighbours: code, first id, length... A code is 1 on disk + 2 in host memory +
// 4 * group.
void write_tiers(JsonWriter& w, const kv::TierMap& tiers) {
  const auto code = [](const kv::TierMap::Cell& cell) {
    return (cell.on_disk ? 1 : 0) + (cell.on_host ? 2 : 0) + 4 * cell.group;
  };
  w.key("tiers").open_array();
  for (size_t at = 0; at < tiers.cells.size();) {
    size_t end = at + 1;
    while (end < tiers.cells.size() && code(tiers.cells[end]) == code(tiers.cells[at]) &&
           tiers.cells[end].id == tiers.cells[end - 1].id + 1) {
      ++end;
    }
    w.integer(code(tiers.cells[at])).integer(tiers.cells[at].id).integer(static_cast<int64_t>(end - at));
    at = end;
  }
  w.close_array();
}

// The pages of several engines lie one behind the other: each engine's numbers begin with a cell.
struct PageNumbers {
  explicit PageNumbers(const llm::ParallelLlm& llm)
      : engines(static_cast<int32_t>(llm.num_engines())),
        max_cells(std::max(engine::LiveView::kMaxCells / engines, 1)),
        pages(llm.llm().engine().options().num_blocks - 1) {
    const int32_t per_cell = kv::cell_pages(pages, max_cells);
    stride = (pages + per_cell - 1) / per_cell * per_cell;
  }
  int32_t last() const { return (engines - 1) * stride + pages; }

  int32_t engines, max_cells, pages, stride = 0;
};

void write_map(JsonWriter& w, const kv::PageMap& map, const kv::TierMap& tiers, std::span<const kv::CacheGroup> groups,
               const kv::OffloadStats& offload, const PageNumbers& numbers) {
  w.key("pages").open_object().member_int("total", map.num_pages).member_int("per_cell", map.pages_per_cell);
  w.member_int("last", numbers.last()).member_int("engines", numbers.engines);
  w.member_int("on_disk", offload.disk.files).member_int("on_host", offload.host_pages);
  w.member_int("free", map.free).key("groups").open_array();
  for (size_t g = 0; g < groups.size(); ++g) {
    w.open_object().member("kind", name(groups[g].kind)).member_int("block_size", groups[g].block_size);
    w.member_int("window", groups[g].window).member_int("layers", groups[g].layers);
    w.member_int("used", map.groups[g].used).member_int("shared", map.groups[g].shared);
    w.member_int("cached", map.groups[g].cached).close_object();
  }
  w.close_array();
  write_cells(w, map.cells);
  write_tiers(w, tiers);
  w.close_object();
}

void write_tokens(JsonWriter& w, const text::Tokenizer* tokenizer, std::span<const int32_t> tokens) {
  w.key("tokens").open_array();
  TokenTexts texts(tokenizer, false);
  for (const int32_t id : tokens) {
    w.open_object().member_int("id", id).member("text", texts.show(id)).close_object();
    texts.advance(id);
  }
  w.close_array();
}

// The latest times and the counts of all engines.
struct Recent {
  std::vector<float> to_first, between;
  int64_t prompted = 0, generated = 0;

  void add(const metrics::RecentTimes& one) {
    const auto append = [](std::vector<float>& to, std::span<const float> more) {
      to.insert(to.end(), more.begin(), more.end());
    };
    append(to_first, one.to_first.kept());
    append(between, one.between.kept());
    prompted += one.prompted;
    generated += one.generated;
  }
};

void write_stats(JsonWriter& w, const engine::EngineStats& stats, const Recent& recent) {
  constexpr auto kMedian = [](std::span<const float> values) { return metrics::Ring<1>::median(values); };
  w.member_int("steps", stats.steps).member_int("running", stats.running).member_int("waiting", stats.waiting);
  w.member_int("preemptions", stats.preemptions).member_int("prefix_queried", stats.prefix.queried_tokens);
  w.member_int("prefix_hit", stats.prefix.hit_tokens).member_int("computed", stats.tokens_computed);
  w.member_int("prompted", recent.prompted).member_int("generated", recent.generated);
  write_seconds(w, "ttft_p50_s", kMedian(recent.to_first));
  write_seconds(w, "itl_p50_s", kMedian(recent.between));
}

// What was seen of one engine, or of all together.
struct Seen {
  engine::LiveView view;
  engine::EngineStats stats;
  kv::OffloadStats offload;
  Live::Clock::duration took{};  // the longest
};

Seen together(std::vector<Seen> seen) {
  for (size_t e = 0; e < seen.size(); ++e) {
    for (engine::LiveSequence& one : seen[e].view.sequences) one.id = llm::ParallelLlm::id_of(seen.size(), e, one.id);
  }
  Seen sum = std::move(seen[0]);
  for (size_t e = 1; e < seen.size(); ++e) {
    sum.view.append(std::move(seen[e].view));
    llm::ParallelLlm::add(sum.stats, seen[e].stats);
    sum.offload.host_pages += seen[e].offload.host_pages;
    sum.took = std::max(sum.took, seen[e].took);
  }
  return sum;
}

// The model that a request names; without a name, the first that is loaded.
ApiResult<size_t> model_of(Host& host, const HttpRequest& request) {
  const std::string name = request.query_value("model");
  if (!name.empty()) {
    if (const auto found = host.find(name)) return *found;
    return host.unknown_model(name);
  }
  std::optional<size_t> first;
  host.each_loaded([&](size_t model, Service&) { first = first.value_or(model); });
  return first.value_or(0);
}

}  // namespace

Live::Clock::duration Live::pause_after(Clock::duration look) {
  const auto share = std::chrono::duration<double>(look) * (1 / kMaxShare);
  return std::max<Clock::duration>(kInterval, std::chrono::duration_cast<Clock::duration>(share));
}

bool Live::start_thread() {
  if (stopping_) return false;
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  return true;
}

void Live::watch(size_t model, ReplyPtr reply) {
  if (num_watchers_ >= kMaxWatchers) {
    return send_error(*reply, {503, "Service Unavailable",
                               "The live view has " + std::to_string(kMaxWatchers) +
                                   " watchers, which is the most that it serves at once; close one of them.",
                               ""});
  }
  reply->begin(200, "text/event-stream; charset=utf-8", {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}});
  const auto gone = std::make_shared<std::atomic<bool>>(false);
  reply->on_gone([gone] { *gone = true; });
  reply->on_stop([reply = std::weak_ptr(reply)] {
    if (const auto alive = reply.lock()) alive->end();
  });
  {
    const std::lock_guard lock(mutex_);
    if (!start_thread()) return reply->end();
    ++num_watchers_;
    new_watchers_.push_back({model, std::move(reply), gone, true});
  }
  changed_.notify_one();
}

void Live::look_up(size_t model, int32_t page, bool tier, std::string caller, ReplyPtr reply) {
  bool taken = false;
  {
    const std::lock_guard lock(mutex_);
    taken = questions_.size() < kMaxQuestions && start_thread();
    if (taken) questions_.push_back({model, page, tier, std::move(caller), reply});
  }
  if (!taken) {
    return send_error(*reply, {503, "Service Unavailable",
                               "Too many questions about pages wait, or the server stops; ask again later.", ""});
  }
  changed_.notify_one();
}

void Live::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Live::run() {
  for (;;) {
    std::vector<Watcher> watchers;
    std::vector<Question> questions;
    {
      std::unique_lock lock(mutex_);
      const auto woken = [&] { return stopping_ || !new_watchers_.empty() || !questions_.empty(); };
      if (watched_.empty()) {
        changed_.wait(lock, woken);
      } else {
        Clock::time_point due = Clock::time_point::max();
        for (const auto& [model, watched] : watched_) due = std::min(due, watched.due);
        changed_.wait_until(lock, due, woken);
      }
      watchers.swap(new_watchers_);
      questions.swap(questions_);
      if (stopping_) {
        for (Watcher& watcher : watchers) watcher.reply->end();
        break;
      }
    }
    for (Watcher& watcher : watchers) watched_[watcher.model].watchers.push_back(std::move(watcher));
    for (const Question& question : questions) answer(question);
    for (auto it = watched_.begin(); it != watched_.end();) {
      tick(it->first, it->second);
      it = it->second.watchers.empty() ? watched_.erase(it) : std::next(it);
    }
  }
  for (auto& [model, watched] : watched_) {
    for (Watcher& watcher : watched.watchers) watcher.reply->end();
  }
  watched_.clear();
}

// Looks at a model if that is due, and writes what has changed to those who watch it.
void Live::tick(size_t model, Watched& watched) {
  num_watchers_ -= std::erase_if(watched.watchers, [](const Watcher& watcher) { return watcher.gone->load(); });
  if (watched.watchers.empty()) return;
  bool changed = false;
  if (Clock::now() >= watched.due) {
    std::string state = state_of(model, watched.took);
    watched.due = Clock::now() + pause_after(watched.took);
    changed = state != watched.last;
    watched.last = std::move(state);
  }
  const auto now = Clock::now();
  const bool ping = !changed && now - watched.sent >= kPing;
  if (changed || ping) watched.sent = now;
  // The times come first, so that an unchanged state is recognised without them.
  const auto in_seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  JsonWriter times;
  times.open_object().key("t").number(in_seconds(now - started_)).key("look_s").number(in_seconds(watched.took));
  const std::string event = "data: " + times.take() + "," + watched.last.substr(1) + "\n\n";
  for (Watcher& watcher : watched.watchers) {
    const bool wants = changed || watcher.fresh;
    watcher.fresh = false;
    if (!wants && !ping) continue;
    if (!watcher.reply->write(wants ? event : ":\n\n")) *watcher.gone = true;
  }
}

std::string Live::state_of(size_t model, Clock::duration& took) {
  JsonWriter w;
  w.open_object().member("model", host_.models()[model].names[0]);
  const auto lease = host_.pool().look(model);
  if (lease) {
    llm::ParallelLlm& llm = static_cast<Service&>(lease->resident()).llm();
    const PageNumbers numbers(llm);
    const size_t engines = llm.num_engines();
    std::vector<Seen> seen(engines);
    std::vector<std::future<bool>> looks;
    for (size_t e = 0; e < engines; ++e) {
      looks.push_back(llm.engine(e).look([&one = seen[e], &numbers](const engine::Engine& engine) {
        const auto begin = Clock::now();
        one.view = engine.live(numbers.max_cells);
        one.stats = engine.stats();
        if (engine.offload() != nullptr) one.offload = engine.offload()->stats();
        one.took = Clock::now() - begin;
      }));
    }
    bool all = true;
    for (std::future<bool>& look : looks) all = look.get() && all;
    if (all) {
      Recent recent;
      for (size_t e = 0; e < engines; ++e) recent.add(llm.engine(e).recent());
      const Seen sum = together(std::move(seen));
      took = sum.took;
      w.member("state", "ready");
      write_stats(w, sum.stats, recent);
      write_map(w, sum.view.map, sum.view.tiers, llm.llm().engine().cache_layout().groups, sum.offload, numbers);
      w.key("requests").open_array();
      for (const engine::LiveSequence& one : sum.view.sequences) write_sequence(w, one);
      return w.close_array().member_int("unlisted", sum.view.unlisted).close_object().take();
    }
  }
  return w.member("state", "unloaded").close_object().take();
}

void Live::answer(const Question& question) {
  const std::string missing = "the model is not loaded, so it has no pages.";
  const auto lease = host_.pool().look(question.model);
  if (!lease) return send_error(*question.reply, not_found_error(missing, "model"));
  Service& service = static_cast<Service&>(lease->resident());
  if (question.tier) return answer_tier(question, service);
  std::optional<engine::LivePage> page;
  const PageNumbers numbers(service.llm());
  const bool known = question.page >= 1 && question.page <= numbers.last();
  const int32_t engine_of = known ? (question.page - 1) / numbers.stride : 0;
  const int32_t own = known ? (question.page - 1) % numbers.stride + 1 : 0;
  auto done = service.llm().engine(static_cast<size_t>(engine_of)).look([&](const engine::Engine& engine) {
    page = engine.live_page(own);
  });
  if (!done.get()) return send_error(*question.reply, not_found_error(missing, "model"));
  if (!page) {
    return send_error(*question.reply,
                      not_found_error("there is no page " + std::to_string(question.page) + ".", "id"));
  }
  const kv::CacheGroup& group = service.model().engine().cache_layout().groups[static_cast<size_t>(page->view.group)];
  const bool may_read = host_.options().keys.empty()
                            ? host_.options().page_shows_tokens
                            : std::ranges::any_of(page->holders, [&](const engine::LiveSequence& one) {
                                return one.caller == question.caller;
                              });
  JsonWriter w;
  w.open_object().member_int("id", question.page).member("state", name(page->view.state));
  w.member_int("group", page->view.group).member("kind", name(group.kind));
  w.member_int("begin", page->view.begin).member_int("end", page->view.end).member_bool("readable", may_read);
  w.key("requests").open_array();
  for (const engine::LiveSequence& one : page->holders) write_sequence(w, one);
  w.close_array();
  write_tokens(w, service.model().tokenizer().get(), may_read ? page->view.tokens : std::vector<int32_t>());
  question.reply->send(200, "application/json", w.close_object().take(), {{"Cache-Control", "no-store"}});
}

// What a page in a tier holds. Nobody holds it, so with keys nobody sees its tokens.
void Live::answer_tier(const Question& question, Service& service) {
  std::optional<kv::TierPage> page;  // of the first engine, as the map shows them
  auto done = service.llm().engine(0).look([&](const engine::Engine& engine) {
    if (engine.offload() != nullptr) page = engine.offload()->page(question.page);
  });
  if (!done.get() || !page) {
    return send_error(
        *question.reply,
        not_found_error("no tier has a page " + std::to_string(question.page) + " that is known by now.", "tier"));
  }
  const kv::CacheGroup& group = service.model().engine().cache_layout().groups[static_cast<size_t>(page->key.group)];
  const bool may_read = host_.options().keys.empty() && host_.options().page_shows_tokens;
  JsonWriter w;
  w.open_object().member_int("tier", page->id).member_bool("on_disk", page->on_disk);
  w.member_bool("on_host", page->on_host).member_int("group", page->key.group).member("kind", name(group.kind));
  w.member_int("begin", page->begin).member_int("end", page->end).member_bool("readable", may_read);
  write_tokens(w, service.model().tokenizer().get(), may_read ? page->tokens : std::vector<int32_t>());
  question.reply->send(200, "application/json", w.close_object().take(), {{"Cache-Control", "no-store"}});
}

void serve_live(Host& host, const HttpRequest& request, const ReplyPtr& reply) {
  if (!host.options().page) return refuse_route(request, *reply);
  ApiResult<size_t> model = model_of(host, request);
  if (!model.ok()) return refuse(request, *reply, model.error());
  host.live().watch(*model, reply);
}

void serve_live_page(Host& host, const HttpRequest& request, const ReplyPtr& reply) {
  if (!host.options().page) return refuse_route(request, *reply);
  ApiResult<size_t> model = model_of(host, request);
  if (!model.ok()) return refuse(request, *reply, model.error());
  const bool tier = !request.query_value("tier").empty();
  const std::string field = tier ? "tier" : "id", text = request.query_value(field);
  int32_t page = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), page);
  if (error != std::errc() || end != text.data() + text.size()) {
    return refuse(request, *reply, bad_field(field, {"must be the number of a page, as in ?", field, "=1."}));
  }
  host.live().look_up(*model, page, tier, request.caller, reply);
}

}  // namespace quire::api
