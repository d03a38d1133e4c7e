// SPDX-License-Identifier: Apache-2.0
// The Prometheus registry. The text of each series is prepared, so that a scrape only formats numbers.
#include "metrics/registry.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"

namespace quire::metrics {
namespace {

// Whole numbers below this are printed without an exponent.
constexpr double kExponentFrom = 1e6;

void append_whole(std::string& out, int64_t value) {
  char buffer[24];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  out.append(buffer, static_cast<size_t>(end - buffer));
}

void append_exponent(std::string& out, int exponent) {
  out += exponent < 0 ? "e-" : "e+";
  const int size = std::abs(exponent);
  if (size < 10) out += '0';
  append_whole(out, size);
}

// d.ddde+xx
void append_scientific(std::string& out, std::string_view digits, int exponent) {
  out += digits[0];
  if (digits.size() > 1) {
    out += '.';
    out += digits.substr(1);
  }
  append_exponent(out, exponent);
}

// ddd.ddd, with a digit on both sides of the point
void append_fixed(std::string& out, std::string_view digits, int exponent) {
  if (exponent < 0) {
    out += "0.";
    out.append(static_cast<size_t>(-exponent - 1), '0');
    out += digits;
    return;
  }
  const size_t whole = static_cast<size_t>(exponent) + 1;
  out += digits.substr(0, whole);
  if (digits.size() < whole) out.append(whole - digits.size(), '0');
  out += '.';
  if (digits.size() > whole) {
    out += digits.substr(whole);
  } else {
    out += '0';
  }
}

void append_escaped(std::string& out, std::string_view text, bool quotes) {
  std::string valid;
  utf8::append_valid(valid, text);  // one byte that is not UTF-8 would make Prometheus drop the whole scrape
  for (const char c : valid) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '"' && quotes) {
      out += "\\\"";
    } else {
      out += c;
    }
  }
}

std::string family_head(const std::string& name, const std::string& help, const char* type) {
  std::string head = "# HELP " + name + " ";
  append_escaped(head, help, false);
  return head + "\n# TYPE " + name + " " + type + "\n";
}

using Labels = std::vector<std::pair<std::string, std::string>>;

// name{a="1",b="2"}, followed by the space before the value.
std::string line_head(const std::string& name, Labels labels) {
  std::string head = name;
  std::sort(labels.begin(), labels.end());
  for (size_t i = 0; i < labels.size(); ++i) {
    head += (i == 0 ? "{" : ",") + labels[i].first + "=\"";
    append_escaped(head, labels[i].second, true);
    head += '"';
  }
  return head + (labels.empty() ? " " : "} ");
}

template <typename T>
std::vector<std::string> line_heads(const T&, const std::string& name, const Labels& labels) {
  return {line_head(name, labels)};
}

std::vector<std::string> line_heads(const Summary&, const std::string& name, const Labels& labels) {
  return {line_head(name + "_count", labels), line_head(name + "_sum", labels)};
}

std::vector<std::string> line_heads(const Histogram& histogram, const std::string& name, const Labels& labels) {
  std::vector<std::string> heads;
  const auto add_bucket = [&](std::string bound) {
    Labels with_bound = labels;
    with_bound.emplace_back("le", std::move(bound));
    heads.push_back(line_head(name + "_bucket", std::move(with_bound)));
  };
  for (const double bound : histogram.bounds()) {
    std::string text;
    append_number(text, bound);
    add_bucket(std::move(text));
  }
  add_bucket("+Inf");
  heads.push_back(line_head(name + "_count", labels));
  heads.push_back(line_head(name + "_sum", labels));
  return heads;
}

void append_line(std::string& out, const std::string& head, double value) {
  out += head;
  append_number(out, value);
  out += '\n';
}

template <typename T>
void append_lines(std::string& out, const std::vector<std::string>& heads, const T& series) {
  append_line(out, heads[0], series.value());
}

void append_lines(std::string& out, const std::vector<std::string>& heads, const Summary& summary) {
  append_line(out, heads[0], static_cast<double>(summary.count()));
  append_line(out, heads[1], summary.sum());
}

void append_lines(std::string& out, const std::vector<std::string>& heads, const Histogram& histogram) {
  uint64_t count = 0;
  const size_t buckets = histogram.bounds().size() + 1;
  for (size_t i = 0; i < buckets; ++i) {
    count += histogram.in_bucket(i);
    append_line(out, heads[i], static_cast<double>(count));
  }
  append_line(out, heads[buckets], static_cast<double>(count));
  append_line(out, heads[buckets + 1], histogram.sum());
}

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

void append_number(std::string& out, double value) {
  if (std::isnan(value)) {
    out += "NaN";
    return;
  }
  if (std::isinf(value)) {
    out += value > 0 ? "+Inf" : "-Inf";
    return;
  }
  if (value >= 0 && value < kExponentFrom && value == std::floor(value) && !std::signbit(value)) {
    append_whole(out, static_cast<int64_t>(value));
    out += ".0";
    return;
  }
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, std::fabs(value), std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  const size_t sign = text[e + 1] == '+' ? 2 : 1;  // from_chars accepts a minus but no plus
  std::from_chars(text.data() + e + sign, text.data() + text.size(), exponent);
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  if (std::signbit(value)) out += '-';
  // Python uses an exponent from 16 digits on. For positive numbers from 1e6 on, prometheus_client switches to Go's
  // format, which Prometheus itself uses.
  if (exponent < -4 || exponent >= 16 || (value > 0 && exponent >= 6)) {
    append_scientific(out, digits, exponent);
  } else {
    append_fixed(out, digits, exponent);
  }
}

Histogram::Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {
  QUIRE_CHECK(std::adjacent_find(bounds_.begin(), bounds_.end(), std::greater_equal<>()) == bounds_.end(),
              "a histogram's bounds must ascend");
  QUIRE_CHECK(std::all_of(bounds_.begin(), bounds_.end(), [](double bound) { return std::isfinite(bound); }),
              "a histogram's bounds must be finite");
}

void Histogram::observe(double value) {
  if (std::isnan(value)) return;
  const auto bucket =
      std::lower_bound(bounds_.begin(), bounds_.end(), value);  // "le": a value equal to the bound is included
  counts_[static_cast<size_t>(bucket - bounds_.begin())].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

uint64_t Histogram::count() const {
  uint64_t count = 0;
  for (const auto& bucket : counts_) count += bucket.load(std::memory_order_relaxed);
  return count;
}

template <typename T>
Family<T>::Family(std::string name, std::string created_name, std::string help, std::vector<std::string> labels,
                  bool created, std::function<std::unique_ptr<T>()> make)
    : name_(std::move(name)),
      created_name_(std::move(created_name)),
      labels_(std::move(labels)),
      created_(created),
      make_(std::move(make)),
      head_(family_head(name_, help, T::kType)),
      created_head_(family_head(created_name_, help, Gauge::kType)) {}

template <typename T>
T& Family<T>::only(const std::vector<std::string>& values) {
  {
    const std::lock_guard lock(mutex_);
    series_.clear();
    index_.clear();
    created_lines_.clear();
  }
  return with(values);
}

template <typename T>
T& Family<T>::with(const std::vector<std::string>& values) {
  QUIRE_CHECK(values.size() == labels_.size(), name_.c_str());
  std::string key;
  for (const std::string& value : values) {
    key += std::to_string(value.size()) + ':';  // lengths keep ("a", "bc") and ("ab", "c") apart
    key += value;
  }
  const std::lock_guard lock(mutex_);
  const auto [place, is_new] = index_.try_emplace(std::move(key), series_.size());
  if (is_new) {
    Labels labels;
    for (size_t i = 0; i < values.size(); ++i) labels.emplace_back(labels_[i], values[i]);
    auto series = std::make_unique<Series>();
    series->value = make_();
    series->heads = line_heads(*series->value, name_, labels);
    series_.push_back(std::move(series));
    if (created_) append_line(created_lines_, line_head(created_name_, labels), unix_time());
  }
  return *series_[place->second]->value;
}

template <typename T>
void Family<T>::append(std::string& out) const {
  const std::lock_guard lock(mutex_);
  out += head_;
  for (const auto& series : series_) append_lines(out, series->heads, *series->value);
  if (created_lines_.empty()) return;
  out += created_head_;
  out += created_lines_;
}

template class Family<Counter>;
template class Family<Gauge>;
template class Family<Histogram>;
template class Family<Summary>;

template <typename T>
Family<T>& Registry::find_or_add(const std::string& name, const std::function<std::unique_ptr<Family<T>>()>& make) {
  FamilyBase*& found = by_name_[name];
  if (found == nullptr) {
    families_.push_back(make());
    found = families_.back().get();
  }
  auto* family = dynamic_cast<Family<T>*>(found);
  QUIRE_CHECK(family != nullptr, name.c_str());
  return *family;
}

Family<Counter>& Registry::counter(std::string_view name, std::string help, std::vector<std::string> labels) {
  const std::string base(name);
  return find_or_add<Counter>(base, [&] {
    return std::make_unique<Family<Counter>>(base + "_total", base + "_created", std::move(help), std::move(labels),
                                             created_series_, [] { return std::make_unique<Counter>(); });
  });
}

Family<Counter>& Registry::plain_counter(std::string_view name, std::string help) {
  const std::string base(name);
  return find_or_add<Counter>(base, [&] {
    return std::make_unique<Family<Counter>>(base + "_total", base + "_created", std::move(help),
                                             std::vector<std::string>(), false,
                                             [] { return std::make_unique<Counter>(); });
  });
}

Family<Gauge>& Registry::gauge(std::string_view name, std::string help, std::vector<std::string> labels) {
  const std::string base(name);
  return find_or_add<Gauge>(base, [&] {
    return std::make_unique<Family<Gauge>>(base, base + "_created", std::move(help), std::move(labels), false,
                                           [] { return std::make_unique<Gauge>(); });
  });
}

Family<Histogram>& Registry::histogram(std::string_view name, std::string help, std::vector<double> bounds,
                                       std::vector<std::string> labels) {
  const std::string base(name);
  return find_or_add<Histogram>(base, [&] {
    return std::make_unique<Family<Histogram>>(
        base, base + "_created", std::move(help), std::move(labels), created_series_,
        [bounds = std::move(bounds)] { return std::make_unique<Histogram>(bounds); });
  });
}

Family<Summary>& Registry::summary(std::string_view name, std::string help, std::vector<std::string> labels) {
  const std::string base(name);
  return find_or_add<Summary>(base, [&] {
    return std::make_unique<Family<Summary>>(base, base + "_created", std::move(help), std::move(labels),
                                             created_series_, [] { return std::make_unique<Summary>(); });
  });
}

void Registry::expose(std::string& out) const {
  for (const auto& family : families_) family->append(out);
}

}  // namespace quire::metrics
