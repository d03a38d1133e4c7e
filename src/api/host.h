// SPDX-License-Identifier: Apache-2.0
// Host: the server's side of the API. Finds the model of each request, waits until it is loaded, and hands it on.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/live.h"
#include "api/model_pool.h"
#include "api/service.h"

namespace quire::api {

// One model that the server has, loaded or not.
struct HostedModel {
  std::vector<std::string> names;             // at least one; answers show the first one
  std::vector<std::string> aliases;           // also accepted as `model`: the path, the file's name
  std::string root;                           // the model's own name, without its folders
  metrics::ServerMetrics* metrics = nullptr;  // of the first engine; outlives the host
};

struct LoadedModel {
  std::unique_ptr<llm::ParallelLlm> llm;
  ServiceOptions options;
  metrics::ServerMetrics::CacheConfig cache_config;  // the labels of cache_config_info
};

// How the models of a host are loaded; see PoolLoader.
struct HostLoader {
  std::function<Result<int64_t>(size_t model, const std::atomic<bool>& cancelled)> least_memory;
  std::function<Result<LoadedModel>(size_t model, int64_t memory_bytes, const std::atomic<bool>& cancelled)> load;
};

// The server has one. Any thread may call handle(), which returns at once: a request that must wait for its model waits
// in the pool, and long work goes to the worker pool.
// REQUIRES: it outlives every Reply that it was given (stop the HTTP server first).
class Host {
 public:
  // A server with one model, which is loaded already and stays so. A request need not name it.
  Host(std::unique_ptr<llm::ParallelLlm> llm, metrics::ServerMetrics& metrics, ServiceOptions options);
  // A server with models that are loaded when a request names them.
  Host(std::vector<HostedModel> models, ServiceOptions options, const PoolOptions& pool, HostLoader loader);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  void handle(HttpRequest request, ReplyPtr reply);
  Handler handler() {
    return [this](HttpRequest request, ReplyPtr reply) { handle(std::move(request), std::move(reply)); };
  }

  const ServiceOptions& options() const { return options_; }
  const std::vector<HostedModel>& models() const { return models_; }
  metrics::ServerMetrics& metrics() { return *models_[0].metrics; }
  Shared& shared() { return shared_; }
  ModelPool& pool() { return *pool_; }
  Live& live() { return live_; }
  bool has_several() const { return static_cast<bool>(loader_.load); }  // models that are loaded on demand
  const std::string& openapi() const { return openapi_; }
  const std::string& docs() const { return docs_; }
  // Calls `use` with each model that is loaded, without counting as use of it.
  void each_loaded(const std::function<void(size_t model, Service& service)>& use);
  // The longest sequence of a model; nothing before it was loaded for the first time.
  std::optional<int64_t> max_model_len(size_t model) const;

  std::optional<size_t> find(const std::string& name) const;  // the model with this name or alias
  ApiFailure unknown_model(const std::string& name) const;    // a 404 that lists the names

 private:
  // The model of a request to this route, by its body or its query.
  ApiResult<size_t> model_of(const Route& route, const HttpRequest& request) const;
  void dispatch(const Route& route, HttpRequest request, ReplyPtr reply);
  void start(const Route& route, size_t model, HttpRequest request, ReplyPtr reply);
  Result<PoolLoader::Loaded> load(size_t model, int64_t memory_bytes, const std::atomic<bool>& cancelled);

  const ServiceOptions options_;
  const std::vector<HostedModel> models_;
  const HostLoader loader_;
  const std::string openapi_, docs_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::vector<std::atomic<int64_t>> max_model_len_;  // 0: not known yet
  Shared shared_;
  std::unique_ptr<ModelPool> pool_;
  Live live_{*this};
};

}  // namespace quire::api
