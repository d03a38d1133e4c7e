// SPDX-License-Identifier: Apache-2.0
// The models of quire serve: which there are, and how each is loaded and shown.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "api/host.h"
#include "cli/serve_flags.h"

namespace quire::cli {

// One of several models.
struct ServedModel {
  std::string name;            // in requests
  std::string argument;        // as on the command line, without NAME=
  std::filesystem::path path;  // "": it is not on this machine yet, and is pulled when it is first used
};

// Whether the flags ask for models that are loaded on demand: several MODELs, or --models-dir.
bool has_several_models(const ServeFlags& flags);
// The models of the flags, in the order of /v1/models. The Error names the argument that means no model, or a name that
// two models have.
Result<std::vector<ServedModel>> list_served_models(const ServeFlags& flags);

// "NAME=MODEL" as both parts; the name is "" if the argument has none.
struct NamedArgument {
  std::string name, model;
};
NamedArgument split_argument(const std::string& argument);

// The path of a MODEL argument. A model that is not on this machine, and whose name could be one on a hub, is pulled,
// with a progress bar on standard error. The pull ends with an Error once `cancelled` is true.
Result<std::filesystem::path> resolve_or_pull(const std::string& argument,
                                              const std::atomic<bool>* cancelled = nullptr);

// The series of the engines of one model; those of the other engines share the first one's registry, or `with`'s.
using EngineMetrics = std::vector<std::unique_ptr<metrics::ServerMetrics>>;
EngineMetrics make_engine_metrics(metrics::ServerMetricsOptions series, size_t engines,
                                  const metrics::ServerMetrics* with = nullptr);
// One for each engine, with its metrics.
std::vector<llm::AsyncOptions> async_options(const llm::AsyncOptions& options, const EngineMetrics& metrics);

// The labels of cache_config_info.
metrics::ServerMetrics::CacheConfig cache_config(const llm::Llm& llm, const llm::Options& options);
// What the API shows of a loaded model, by its names.
Result<api::ServiceOptions> service_options(const ServeFlags& flags, const llm::Llm& llm, const llm::Options& options,
                                            std::vector<std::string> names, const std::string& argument);

// What AsyncLlm calls with each request's times; empty without --otlp-traces-endpoint.
llm::TraceSink trace_sink(const ServeFlags& flags, const std::string& model);
// Passes the KV events of a model's engines to their publishers, under this topic; nothing without --kv-events-config.
void publish_events(const ServeFlags& flags, const llm::Llm& llm, const std::string& topic,
                    std::vector<llm::AsyncOptions>& engines);
// The series of what is sent to other programs.
void watch_telemetry(const ServeFlags& flags, metrics::ServerMetrics& metrics);
// Adds the adapters of --lora-modules to the host. Those of a model that is loaded are read at once.
Status add_lora_modules(const ServeFlags& flags, api::Host& host);

// A host of several models, with their metrics. REQUIRES: the flags outlive it.
class SeveralModels {
 public:
  static Result<std::unique_ptr<SeveralModels>> make(const ServeFlags& flags,
                                                     const metrics::HistogramBuckets& custom_buckets);
  api::Host& host() { return *host_; }
  metrics::ServerMetrics& metrics() { return *metrics_[0][0]; }

 private:
  explicit SeveralModels(const ServeFlags& flags) : flags_(flags) {}
  Result<llm::Options> options_of(size_t model, const std::atomic<bool>& cancelled);
  Result<api::LoadedModel> load(size_t model, int64_t memory_bytes, const std::atomic<bool>& cancelled);

  const ServeFlags& flags_;
  std::vector<ServedModel> models_;     // the pool's thread sets their paths
  std::vector<EngineMetrics> metrics_;  // by model
  std::unique_ptr<api::Host> host_;     // the last member: it uses the others
};

}  // namespace quire::cli
