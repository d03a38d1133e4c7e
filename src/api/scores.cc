// SPDX-License-Identifier: Apache-2.0
// /score and /rerank: how well documents answer queries, by a cross-encoder, by the cosine of embeddings, or by late
// interaction of the vectors of tokens.
#include <algorithm>
#include <numeric>

#include "api/pooling.h"
#include "model/pooling/pooler.h"

namespace quire::api {
namespace {

using llm::ScoreKind;

// Queries and documents, matched 1:1, 1:N or N:N.
struct Side {
  const char* field = "";
  bool list = false;
  std::vector<std::string> texts;

  size_t size() const { return texts.size(); }
};
struct Pairs {
  Side queries, documents;

  size_t size() const { return documents.size(); }
  size_t query_of(size_t document) const { return queries.size() == 1 ? 0 : document; }
};

// The places of the prompts that PairPrompts makes: queries, then documents, or the pairs by their documents.
PromptPlace places_of(const Pairs& pairs, ScoreKind kind) {
  const auto of = [](const Side& side) {
    return [field = side.field, list = side.list](size_t i) {
      return list ? std::string(field) + "[" + std::to_string(i) + "]" : std::string(field);
    };
  };
  const size_t queries = kind == ScoreKind::kCross ? 0 : pairs.queries.size();
  return [queries, query = of(pairs.queries), document = of(pairs.documents)](size_t i) {
    return i < queries ? query(i) : document(i - queries);
  };
}

// A text, a list of texts, or objects with a text.
ApiResult<Side> read_side(const Body& body, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const json::Value* value = body.get(name);
    if (value == nullptr) continue;
    const auto text_of = [](const json::Value& v) -> const json::Value* { return v.is_object() ? v.find("text") : &v; };
    Side out{name, value->is_array(), {}};
    for (const json::Value& one : out.list ? value->as_array() : json::Array{*value}) {
      const json::Value* text = text_of(one);
      if (text == nullptr || !text->is_string()) return bad_field(name, "must be a text or a list of texts.");
      out.texts.push_back(text->as_string());
    }
    if (out.texts.empty()) return bad_field(name, "must not be empty.");
    if (out.size() > kMaxInputs) {
      return bad_field(name, {"has more than ", kMaxInputs, " texts; send several requests."});
    }
    return out;
  }
  return bad_field(*names.begin(), "is missing.");
}

class Scores : public PoolingAnswer {
 public:
  Scores(Service& service, ReplyPtr reply, GenerationOptions options, llm::PoolTask task,
         const llm::PoolSettings& settings, ScoreKind kind, Pairs pairs)
      : PoolingAnswer(service, std::move(reply), std::move(options), task, settings),
        kind_(kind),
        pairs_(std::move(pairs)) {}

 protected:
  // The score of each document.
  std::vector<float> scores() const {
    std::vector<float> out;
    if (kind_ == ScoreKind::kCross) {
      for (size_t i = 0; i < pairs_.size(); ++i) out.push_back(rows(i).at(0).at(0));
      return out;
    }
    // The queries come first among the prompts.
    std::vector<std::vector<std::vector<float>>> queries;
    for (size_t q = 0; q < pairs_.queries.size(); ++q) queries.push_back(rows(q));
    for (size_t d = 0; d < pairs_.size(); ++d) {
      const auto& query = queries[pairs_.query_of(d)];
      const auto document = rows(pairs_.queries.size() + d);
      out.push_back(kind_ == ScoreKind::kLate ? model::late_score(query, document)
                                              : model::cosine(query.at(0), document.at(0)));
    }
    return out;
  }

  void finish() override {
    const std::vector<float> found = scores();
    JsonWriter w;
    write_head(w, "list");
    w.key("data").open_array();
    for (size_t i = 0; i < found.size(); ++i) {
      w.open_object().member_int("index", static_cast<int64_t>(i)).member("object", "score").key("score");
      w.number32(found[i]).close_object();
    }
    w.close_array().key("usage");
    write_pooling_usage(w);
    send_json(*reply_, w.close_object().take());
  }

  const ScoreKind kind_;
  const Pairs pairs_;
};

class Ranking final : public Scores {
 public:
  Ranking(Service& service, ReplyPtr reply, GenerationOptions options, llm::PoolTask task,
          const llm::PoolSettings& settings, ScoreKind kind, Pairs pairs, int64_t top_n)
      : Scores(service, std::move(reply), std::move(options), task, settings, kind, std::move(pairs)), top_n_(top_n) {}

 private:
  void finish() override {
    const std::vector<float> found = scores();
    std::vector<size_t> order(found.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return found[a] > found[b]; });
    if (top_n_ > 0 && static_cast<size_t>(top_n_) < order.size()) order.resize(static_cast<size_t>(top_n_));
    JsonWriter w;
    w.open_object().member("id", options_.id).member("model", options_.model);
    const int64_t tokens = prompt_tokens();
    w.key("usage").open_object().member_int("prompt_tokens", tokens).member_int("total_tokens", tokens).close_object();
    w.key("results").open_array();
    for (const size_t i : order) {
      w.open_object().member_int("index", static_cast<int64_t>(i)).key("document").open_object();
      w.member("text", pairs_.documents.texts[i]).member_null("multi_modal").close_object();
      w.key("relevance_score").number32(found[i]).close_object();
    }
    send_json(*reply_, w.close_array().close_object().take());
  }

  const int64_t top_n_;
};

// Reads the limits on tokens, and makes the prompts of all pairs.
class PairPrompts {
 public:
  static ApiResult<PairPrompts> make(const Service& service, const Body& body) {
    PairPrompts out(service);
    QUIRE_ASSIGN(out.truncation_, read_truncation(body, service.model()));
    out.limits_.first = body.integer("max_tokens_per_query").value_or(0);
    out.limits_.second = body.integer("max_tokens_per_doc").value_or(0);
    out.limits_.total = out.truncation_.most.value_or(0);
    out.instruction_ = body.string("instruction");
    return out;
  }

  ApiResult<std::vector<llm::PoolPrompt>> all(const Pairs& pairs, ScoreKind kind) const {
    std::vector<llm::PoolPrompt> out;
    const size_t queries = pairs.queries.size();
    const size_t count = kind == ScoreKind::kCross ? pairs.size() : queries + pairs.size();
    for (size_t i = 0; i < count; ++i) {
      ApiStatus added = kind == ScoreKind::kCross
                            ? add_pair(pairs.queries.texts[pairs.query_of(i)], pairs.documents.texts[i], out)
                        : i < queries ? add_text(pairs.queries.texts[i], limits_.first, out)
                                      : add_text(pairs.documents.texts[i - queries], limits_.second, out);
      if (!added.ok()) return at_place(added.error(), places_of(pairs, kind)(i));
    }
    return out;
  }

 private:
  explicit PairPrompts(const Service& service) : service_(&service) {}

  ApiStatus add_text(const std::string& text, int64_t most, std::vector<llm::PoolPrompt>& out) const {
    llm::Truncation truncation = truncation_;
    if (most > 0) truncation.most = std::min(truncation.most.value_or(most), most);
    QUIRE_ASSIGN(std::vector<int32_t> ids, text_tokens(*service_, text, true, truncation));
    out.push_back({std::move(ids)});
    return Ok{};
  }

  ApiStatus add_pair(const std::string& query, const std::string& document, std::vector<llm::PoolPrompt>& out) const {
    QUIRE_TRY(check_text_length(*service_, query.size() + document.size()));
    QUIRE_ASSIGN(llm::PoolPrompt prompt, service_->model().pair_tokens(query, document, limits_, instruction_));
    out.push_back(std::move(prompt));
    return Ok{};
  }

  const Service* service_;
  llm::Truncation truncation_;
  llm::PairLimits limits_;
  std::string instruction_;
};

struct ScoreStart {
  ScoreKind kind = ScoreKind::kCross;
  llm::PoolTask task = llm::PoolTask::kClassify;
  llm::PoolSettings settings;
  std::vector<llm::PoolPrompt> prompts;
};

ApiResult<ScoreStart> prepare_scores(const Service& service, const Body& body, const Pairs& pairs) {
  ScoreStart out;
  QUIRE_ASSIGN(out.kind, service.model().score_kind());
  if (out.kind == ScoreKind::kCosine) out.task = llm::PoolTask::kEmbed;
  if (out.kind == ScoreKind::kLate) out.task = llm::PoolTask::kTokenEmbed;
  if (out.kind == ScoreKind::kCross && body.has("use_activation")) {
    out.settings.activate = body.boolean("use_activation", true);
  }
  QUIRE_ASSIGN(const PairPrompts reader, PairPrompts::make(service, body));
  QUIRE_ASSIGN(out.prompts, reader.all(pairs, out.kind));
  return out;
}

ApiStatus start_score(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  QUIRE_ASSIGN(const Body body, Body::parse(request.body, score_schema()));
  QUIRE_TRY(service.check_model(body));
  QUIRE_ASSIGN(GenerationOptions options, read_pooling_options(request, body, service, "score-"));
  Pairs pairs;
  QUIRE_ASSIGN(pairs.queries, read_side(body, {"queries", "data_1", "text_1"}));
  QUIRE_ASSIGN(pairs.documents, read_side(body, {"documents", "items", "data_2", "text_2"}));
  if (pairs.queries.size() != 1 && pairs.queries.size() != pairs.documents.size()) {
    return bad_field("queries", {"must be one or as many as documents: there are ", pairs.queries.size(),
                                 " queries and ", pairs.documents.size(), " documents."});
  }
  QUIRE_ASSIGN(ScoreStart start, prepare_scores(service, body, pairs));
  const PromptPlace place = places_of(pairs, start.kind);
  return std::make_shared<Scores>(service, reply, std::move(options), start.task, start.settings, start.kind,
                                  std::move(pairs))
      ->begin(request, body, std::move(start.prompts), place);
}

ApiStatus start_rerank(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  QUIRE_ASSIGN(const Body body, Body::parse(request.body, rerank_schema()));
  QUIRE_TRY(service.check_model(body));
  QUIRE_ASSIGN(GenerationOptions options, read_pooling_options(request, body, service, "score-"));
  Pairs pairs;
  QUIRE_ASSIGN(pairs.queries, read_side(body, {"query"}));
  QUIRE_ASSIGN(pairs.documents, read_side(body, {"documents"}));
  if (pairs.queries.size() != 1) return bad_field("query", "must be one text.");
  QUIRE_ASSIGN(ScoreStart start, prepare_scores(service, body, pairs));
  const PromptPlace place = places_of(pairs, start.kind);
  const int64_t top_n = body.integer("top_n").value_or(0);
  return std::make_shared<Ranking>(service, reply, std::move(options), start.task, start.settings, start.kind,
                                   std::move(pairs), top_n)
      ->begin(request, body, std::move(start.prompts), place);
}

}  // namespace

void serve_score(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  if (auto started = start_score(service, request, reply); !started.ok()) send_error(*reply, started.error());
}

void serve_rerank(Service& service, const HttpRequest& request, const ReplyPtr& reply) {
  if (auto started = start_rerank(service, request, reply); !started.ok()) send_error(*reply, started.error());
}

}  // namespace quire::api
