// SPDX-License-Identifier: Apache-2.0
// A small Prometheus registry: counters, gauges, histograms and summaries with labels, in text format 0.0.4.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace quire::metrics {

// Formats a number as Python's prometheus_client does: the shortest digits that read back the same, "1.0", "1e+06".
void append_number(std::string& out, double value);

// The four kinds of series. All methods may be called from any thread, take no lock and do not throw. Values are
// doubles, as in Prometheus: counts are exact up to 2^53.

class Counter {
 public:
  static constexpr const char* kType = "counter";
  // Ignores negative amounts and NaN: to Prometheus, a counter that falls looks like a restart.
  void add(double amount = 1) {
    if (amount > 0) value_.fetch_add(amount, std::memory_order_relaxed);
  }
  double value() const { return value_.load(std::memory_order_relaxed); }
  // For totals that are counted elsewhere (CPU seconds, by the kernel).
  void set_total(double total) { value_.store(total, std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class Gauge {
 public:
  static constexpr const char* kType = "gauge";
  void set(double value) { value_.store(value, std::memory_order_relaxed); }
  void add(double amount) { value_.fetch_add(amount, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

// Counts values by upper bound. REQUIRES: the bounds ascend and are finite; the bucket "+Inf" is added. A scrape during
// observe() may see the sum with or without that value, but never counts that disagree with each other.
class Histogram {
 public:
  static constexpr const char* kType = "histogram";
  explicit Histogram(std::vector<double> bounds);
  void observe(double value);  // ignores NaN
  const std::vector<double>& bounds() const { return bounds_; }
  uint64_t in_bucket(size_t index) const { return counts_[index].load(std::memory_order_relaxed); }
  uint64_t count() const;
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  const std::vector<double> bounds_;
  std::vector<std::atomic<uint64_t>> counts_;  // one more than bounds_; not cumulative: in_bucket() readers add them up
  std::atomic<double> sum_{0};
};

// A count and a sum, without quantiles.
class Summary {
 public:
  static constexpr const char* kType = "summary";
  void observe(double value) {
    count_.fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
  }
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> count_{0};
  std::atomic<double> sum_{0};
};

class FamilyBase {
 public:
  virtual ~FamilyBase() = default;
  virtual void append(std::string& out) const = 0;
};

// All series with one name: one for each combination of label values that was asked for. Owned by the Registry. with()
// takes a lock and may be called from any thread; where speed matters, keep the reference that it returns, which stays
// valid. A caller that passes label values from outside must bound their number.
template <typename T>
class Family : public FamilyBase {
 public:
  // The names as they are exposed. `created` adds the series <created_name> with the time when each series was made.
  Family(std::string name, std::string created_name, std::string help, std::vector<std::string> labels, bool created,
         std::function<std::unique_ptr<T>()> make);
  // The series with these label values, in the order of the label names; created if it does not exist.
  T& with(const std::vector<std::string>& values = {});
  // The same, and drops every other series: for labels that say what is the case now. A reference that with() or this
  // returned before is valid no longer.
  T& only(const std::vector<std::string>& values);
  void append(std::string& out) const override;

 private:
  struct Series {
    std::unique_ptr<T> value;
    std::vector<std::string> heads;  // each line of this series up to its value
  };
  const std::string name_, created_name_;
  const std::vector<std::string> labels_;
  const bool created_;
  const std::function<std::unique_ptr<T>()> make_;
  const std::string head_, created_head_;  // the HELP and TYPE lines
  mutable std::mutex mutex_;               // guards the members below, not the values
  std::vector<std::unique_ptr<Series>> series_;
  std::unordered_map<std::string, size_t> index_;
  std::string created_lines_;
};

// All families, in the order in which they were added; a family that exists is returned and not added again. One thread
// adds families at start; any thread may use expose() and the series. The text is byte for byte what
// prometheus_client's generate_latest writes: labels sorted by name, a counter "x" as x_total, and (unless
// created_series is false) the gauges x_created.
class Registry {
 public:
  explicit Registry(bool created_series = true) : created_series_(created_series) {}

  // Pass the name of a counter without "_total".
  Family<Counter>& counter(std::string_view name, std::string help, std::vector<std::string> labels = {});
  Family<Gauge>& gauge(std::string_view name, std::string help, std::vector<std::string> labels = {});
  Family<Histogram>& histogram(std::string_view name, std::string help, std::vector<double> bounds,
                               std::vector<std::string> labels = {});
  Family<Summary>& summary(std::string_view name, std::string help, std::vector<std::string> labels = {});
  // A counter without an x_created series, as the process_* counters have none.
  Family<Counter>& plain_counter(std::string_view name, std::string help);

  void expose(std::string& out) const;

 private:
  // The family of that name, made by `make` if there is none. REQUIRES: one that exists is of the same kind.
  template <typename T>
  Family<T>& find_or_add(const std::string& name, const std::function<std::unique_ptr<Family<T>>()>& make);

  const bool created_series_;
  std::unordered_map<std::string, FamilyBase*> by_name_;
  std::vector<std::unique_ptr<FamilyBase>> families_;
};

}  // namespace quire::metrics
