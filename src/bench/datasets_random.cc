// SPDX-License-Identifier: Apache-2.0
// Synthetic prompts: random ids, repeated prefixes, and traces in which equal prefix hashes become equal tokens.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <set>

#include "base/file.h"
#include "base/philox.h"
#include "bench/datasets.h"

namespace quire::bench {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 24;  // in one prompt or output

Status check_length(const char* flag, int64_t value, int64_t least) {
  if (value >= least && value <= kMaxTokens) return {};
  return invalid_argument({flag, " is ", value, "; it must be ", least, " to ", kMaxTokens});
}

// Text of exactly `wanted` tokens if possible: decodes, encodes again, and truncates or fills up, at most ten times.
// `fill` supplies the missing ids.
template <typename F>
std::string settle_text(const text::Tokenizer& tokenizer, std::vector<int32_t>& ids, size_t wanted, F&& fill) {
  for (int left = 10;; --left) {
    std::string text = tokenizer.decode(ids, false);
    ids = tokenizer.encode(text, {.add_special_tokens = false, .parse_special = true});
    if (ids.size() == wanted || left == 0) return text;
    if (ids.size() > wanted) {
      ids.resize(wanted);
    } else {
      fill(wanted - ids.size(), ids);
    }
  }
}

void note_mismatch(int64_t mismatch, Samples& out) {
  if (mismatch == 0) return;
  out.notes.push_back("after decoding and encoding again the prompts have " + std::to_string(std::abs(mismatch)) +
                      (mismatch > 0 ? " tokens more" : " tokens fewer") + " than requested in total");
}

// "2023-11-16 18:17:03.9799600" or a plain number, in seconds.
std::optional<double> parse_time(const std::string& text) {
  std::tm time{};
  char* end = nullptr;
  if (const char* rest = ::strptime(text.c_str(), "%Y-%m-%d %H:%M:%S", &time)) {
    double fraction = 0;
    if (*rest == '.') fraction = std::strtod(rest, nullptr);
    return static_cast<double>(::timegm(&time)) + fraction;
  }
  const double number = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0' || !std::isfinite(number)) return std::nullopt;
  return number;
}

struct TraceRow {
  double time = 0;
  int64_t input = 0;
  int64_t output = 0;
  std::vector<int64_t> hashes;
};

struct Trace {
  std::vector<TraceRow> rows;
  bool has_times = true;
  bool whole_times = true;  // all timestamps are whole numbers
};

Result<Trace> read_csv_trace(const DatasetOptions& o) {
  QUIRE_ASSIGN(const Csv csv, read_csv(o.path));
  const int time = csv.column({o.timed_trace_label_timestamp.c_str(), "TIMESTAMP", "Timestamp", "arrived_at"});
  const int input =
      csv.column({o.timed_trace_label_input_length.c_str(), "ContextTokens", "num_prefill_tokens", "Request tokens"});
  const int output = csv.column(
      {o.timed_trace_label_output_length.c_str(), "GeneratedTokens", "num_decode_tokens", "Response tokens"});
  if (input < 0 || output < 0) {
    return invalid_argument({"'", o.path,
                             "' has no columns with input and output lengths; name them with "
                             "--timed-trace-label-input-length and --timed-trace-label-output-length"});
  }
  Trace out;
  out.has_times = time >= 0;
  out.whole_times = false;  // CSV has dates or seconds; only JSON traces have milliseconds
  for (const auto& row : csv.rows) {
    if (static_cast<int64_t>(out.rows.size()) == o.num_prompts) break;
    TraceRow next;
    next.input = std::atoll(row[static_cast<size_t>(input)].c_str());
    next.output = std::atoll(row[static_cast<size_t>(output)].c_str());
    if (time >= 0) {
      const auto at = parse_time(row[static_cast<size_t>(time)]);
      if (!at) return invalid_argument({"'", o.path, "': '", row[static_cast<size_t>(time)], "' is not a timestamp"});
      next.time = *at;
    }
    out.rows.push_back(std::move(next));
  }
  return out;
}

Result<Trace> read_json_trace(const DatasetOptions& o) {
  QUIRE_ASSIGN(const std::string text, read_file(o.path, size_t{4} << 30));
  Trace out;
  int64_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    if (static_cast<int64_t>(out.rows.size()) == o.num_prompts) break;
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto wrong = [&](const std::string& what) {
      return invalid_argument({"'", o.path, "', line ", number, ": ", what});
    };
    const auto value = json::parse(line);
    if (!value.ok()) return wrong(value.error().message);
    TraceRow row;
    const auto count = [&](const std::string& label, int64_t& place) -> Status {
      auto got = json::get_int(*value, label, 0, kMaxTokens);
      if (!got.ok()) return wrong(got.error().message);
      place = *got;
      return {};
    };
    QUIRE_TRY(count(o.timed_trace_label_input_length, row.input));
    QUIRE_TRY(count(o.timed_trace_label_output_length, row.output));
    if (const json::Value* time = value->find(o.timed_trace_label_timestamp); time != nullptr && time->is_number()) {
      row.time = time->as_double();
      out.whole_times = out.whole_times && time->is_int();
    } else {
      out.has_times = false;
    }
    if (const json::Value* hashes = value->find(o.timed_trace_label_hash_ids);
        hashes != nullptr && hashes->is_array()) {
      for (const json::Value& hash : hashes->as_array()) {
        if (!hash.is_int()) return wrong("`" + o.timed_trace_label_hash_ids + "` must be a list of whole numbers");
        row.hashes.push_back(hash.as_int());
      }
    }
    out.rows.push_back(std::move(row));
  }
  return out;
}

// The block size that fits the lengths if only the last block of each row may be shorter. 0: none fits all rows.
int64_t find_chunk(const std::vector<TraceRow>& rows) {
  for (int64_t chunk = 8; chunk <= 8192; chunk *= 2) {
    bool fits = true, any = false;
    for (const TraceRow& row : rows) {
      if (row.hashes.empty()) continue;
      any = true;
      const int64_t blocks = static_cast<int64_t>(row.hashes.size());
      fits = fits && row.input <= blocks * chunk && row.input > (blocks - 1) * chunk;
    }
    if (any && fits) return chunk;
  }
  return 0;
}

}  // namespace

std::vector<int32_t> plain_ids(const DatasetOptions& options, const text::Tokenizer& tokenizer) {
  std::set<int32_t> named;
  if (options.special_tokens) {
    for (const std::string& token : *options.special_tokens) {
      if (const auto id = tokenizer.id_of(token)) named.insert(*id);
    }
  }
  std::vector<int32_t> out;
  const int64_t size = base_vocab_size(tokenizer);
  for (int32_t id = 0; id < size; ++id) {
    const bool special = options.special_tokens ? named.count(id) > 0 : tokenizer.is_special(id);
    if (!special && tokenizer.piece(id)) out.push_back(id);
  }
  return out;
}

int64_t base_vocab_size(const text::Tokenizer& tokenizer) {
  int32_t size = tokenizer.vocab_size();
  while (size > 0 && (!tokenizer.piece(size - 1) || tokenizer.is_added(size - 1))) --size;
  return size;
}

Result<Samples> random_samples(const DatasetOptions& o, const text::Tokenizer& tokenizer) {
  QUIRE_TRY(check_length("--random-input-len", o.random_input_len, 0));
  QUIRE_TRY(check_length("--random-output-len", o.random_output_len, 1));
  QUIRE_TRY(check_length("--random-prefix-len", o.random_prefix_len, 0));
  for (const double ratio : {o.random_range_ratio_input, o.random_range_ratio_output}) {
    if (!(ratio >= 0 && ratio < 1)) return invalid_argument("--random-range-ratio must be at least 0 and below 1");
  }
  const int64_t special = static_cast<int64_t>(tokenizer.encode("").size());
  const int64_t input = std::max<int64_t>(0, o.random_input_len - special);
  const auto low = [](int64_t n, double ratio) {
    return static_cast<int64_t>(std::floor(static_cast<double>(n) * (1 - ratio)));
  };
  const auto high = [](int64_t n, double ratio) {
    return static_cast<int64_t>(std::ceil(static_cast<double>(n) * (1 + ratio)));
  };
  const int64_t shortest = low(input, o.random_range_ratio_input);
  if (o.random_prefix_len + shortest < 1) {
    return invalid_argument({"--random-input-len is too small: with ", special,
                             " special tokens and the range ratio a prompt could be empty"});
  }
  const std::vector<int32_t> allowed = plain_ids(o, tokenizer);
  const int64_t vocab = base_vocab_size(tokenizer);
  if (allowed.empty()) return invalid_argument("the tokenizer has no tokens other than special ones");
  // The result depends on the order of these draws, which is vLLM's.
  NumpyGenerator generator(static_cast<uint64_t>(o.seed));
  const auto inputs = generator.integers(shortest, high(input, o.random_range_ratio_input) + 1, o.num_prompts);
  const auto outputs = generator.integers(std::max<int64_t>(1, low(o.random_output_len, o.random_range_ratio_output)),
                                          high(o.random_output_len, o.random_range_ratio_output) + 1, o.num_prompts);
  const auto offsets = generator.integers(0, vocab, o.num_prompts);
  std::vector<int32_t> prefix;
  for (const int64_t i : generator.integers(0, static_cast<int64_t>(allowed.size()), o.random_prefix_len)) {
    prefix.push_back(allowed[static_cast<size_t>(i)]);
  }
  Samples out;
  int64_t mismatch = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<int32_t> ids = prefix;
    for (int64_t j = 0; j < inputs[i]; ++j) {
      const auto place = static_cast<uint64_t>(offsets[i] + static_cast<int64_t>(i) + j) % allowed.size();
      ids.push_back(allowed[place]);
    }
    const size_t wanted = ids.size();
    std::string text = settle_text(tokenizer, ids, wanted, [&](size_t missing, std::vector<int32_t>& list) {
      for (const int64_t id : generator.integers(0, vocab, static_cast<int64_t>(missing))) {
        list.push_back(static_cast<int32_t>(id));
      }
    });
    mismatch += static_cast<int64_t>(ids.size()) - static_cast<int64_t>(wanted);
    out.list.push_back({std::move(text), static_cast<int64_t>(ids.size()), outputs[i], 0});
  }
  note_mismatch(mismatch, out);
  return out;
}

Result<Samples> prefix_repetition_samples(const DatasetOptions& o, const text::Tokenizer& tokenizer,
                                          Generators& generators) {
  QUIRE_TRY(check_length("--prefix-repetition-prefix-len", o.prefix_repetition_prefix_len, 0));
  QUIRE_TRY(check_length("--prefix-repetition-suffix-len", o.prefix_repetition_suffix_len, 0));
  QUIRE_TRY(check_length("--prefix-repetition-output-len", o.prefix_repetition_output_len, 1));
  QUIRE_TRY(check_length("--prefix-repetition-num-prefixes", o.prefix_repetition_num_prefixes, 1));
  if (o.prefix_repetition_prefix_len + o.prefix_repetition_suffix_len < 1) {
    return invalid_argument("--prefix-repetition-prefix-len and --prefix-repetition-suffix-len must not both be 0");
  }
  const int64_t each = o.num_prompts / o.prefix_repetition_num_prefixes;
  if (each == 0) {
    return invalid_argument(
        {"--num-prompts must be at least --prefix-repetition-num-prefixes (", o.prefix_repetition_num_prefixes, ")"});
  }
  generators.random = PythonRandom(o.seed);
  generators.numpy = NumpyLegacy(o.seed);
  const int64_t vocab = base_vocab_size(tokenizer);
  Samples out;
  int64_t mismatch = 0;
  const auto fill = [&](size_t missing, std::vector<int32_t>& list) {
    for (size_t i = 0; i < missing; ++i) list.push_back(static_cast<int32_t>(generators.numpy.randint(0, vocab)));
  };
  const auto draw = [&](int64_t count) {
    std::vector<int32_t> ids;
    fill(static_cast<size_t>(count), ids);
    settle_text(tokenizer, ids, static_cast<size_t>(count), fill);
    mismatch += static_cast<int64_t>(ids.size()) - count;
    return ids;
  };
  for (int64_t p = 0; p < o.prefix_repetition_num_prefixes; ++p) {
    const std::vector<int32_t> prefix = draw(o.prefix_repetition_prefix_len);
    for (int64_t i = 0; i < each; ++i) {
      std::vector<int32_t> ids = prefix;
      const std::vector<int32_t> suffix = draw(o.prefix_repetition_suffix_len);
      ids.insert(ids.end(), suffix.begin(), suffix.end());
      out.list.push_back(
          {tokenizer.decode(ids, false), static_cast<int64_t>(ids.size()), o.prefix_repetition_output_len, 0});
    }
  }
  note_mismatch(mismatch, out);
  if (!o.disable_shuffle) generators.random.shuffle(out.list);
  return out;
}

Result<Samples> trace_samples(const DatasetOptions& o, const text::Tokenizer& tokenizer) {
  const bool csv = o.path.size() >= 4 && o.path.substr(o.path.size() - 4) == ".csv";
  QUIRE_ASSIGN(const Trace trace, csv ? read_csv_trace(o) : read_json_trace(o));
  if (trace.rows.empty()) return invalid_argument({"'", o.path, "' has no rows"});
  Samples out;
  const bool hashed =
      std::any_of(trace.rows.begin(), trace.rows.end(), [](const TraceRow& r) { return !r.hashes.empty(); });
  int64_t chunk = o.timed_trace_chunk_hash_size.value_or(0);
  if (hashed && chunk <= 0) {
    chunk = find_chunk(trace.rows);
    if (chunk == 0) {
      return invalid_argument(
          {"'", o.path,
           "': no block size fits the lengths and hashes of the rows; give --timed-trace-chunk-hash-size"});
    }
    out.notes.push_back("each prefix hash stands for " + std::to_string(chunk) + " tokens (inferred from the lengths)");
  }
  // Mooncake's traces, with blocks of 512, have milliseconds; others have seconds.
  const double scale = o.timed_trace_sec_multiplier.value_or(hashed && chunk == 512 && trace.whole_times ? 0.001 : 1.0);
  if (!(scale >= 0) || !std::isfinite(scale))
    return invalid_argument("--timed-trace-sec-multiplier must not be negative");
  if (!o.timed_trace_sec_multiplier && scale != 1.0) {
    out.notes.push_back("timestamps are interpreted as milliseconds (--timed-trace-sec-multiplier 0.001)");
  }
  if (!trace.has_times) out.notes.push_back("the trace has no timestamps: all requests arrive at once");
  const std::vector<int32_t> allowed = plain_ids(o, tokenizer);
  if (allowed.empty()) return invalid_argument("the tokenizer has no tokens other than special ones");
  const auto seed = static_cast<uint64_t>(o.seed);
  // Token i of a block depends only on (seed, hash, i), so equal hashes are equal tokens in every request and run.
  const auto token = [&](uint64_t kind, uint64_t stream, int64_t i) {
    return allowed[Philox::generate(seed * 2 + kind, static_cast<uint64_t>(i), stream)[0] % allowed.size()];
  };
  double first = trace.rows[0].time;
  for (const TraceRow& row : trace.rows) first = std::min(first, row.time);
  for (size_t r = 0; r < trace.rows.size(); ++r) {
    const TraceRow& row = trace.rows[r];
    int64_t input = std::max<int64_t>(row.input, 1), output = std::max<int64_t>(row.output, 1);
    if (o.timed_trace_max_input_len > 0) input = std::min(input, o.timed_trace_max_input_len);
    if (o.timed_trace_max_output_len > 0) output = std::min(output, o.timed_trace_max_output_len);
    if (input > kMaxTokens || output > kMaxTokens)
      return invalid_argument({"'", o.path, "' has a length above 16777216"});
    std::vector<int32_t> ids;
    ids.reserve(static_cast<size_t>(input));
    for (int64_t i = 0; i < input; ++i) {
      const size_t block = chunk > 0 ? static_cast<size_t>(i / chunk) : row.hashes.size();
      ids.push_back(block < row.hashes.size() ? token(0, static_cast<uint64_t>(row.hashes[block]), i % chunk)
                                              : token(1, r, i));
    }
    Sample sample;
    sample.prompt_len = input;
    sample.output_len = output;
    sample.arrival = trace.has_times ? (row.time - first) * scale : 0;
    if (o.chat_endpoint) {
      sample.prompt = tokenizer.decode(ids, false);
    } else {
      sample.prompt = std::move(ids);
    }
    out.list.push_back(std::move(sample));
  }
  std::stable_sort(out.list.begin(), out.list.end(),
                   [](const Sample& a, const Sample& b) { return a.arrival < b.arrival; });
  return out;
}

}  // namespace quire::bench
