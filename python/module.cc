// SPDX-License-Identifier: Apache-2.0
// The module quire._quire: the C API as Python objects. python/quire builds vLLM's shapes on top of it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <quire.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>

namespace nb = nanobind;

namespace {

using Tokens = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

using Vectors = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;

constexpr double kPatience = 0.1;  // seconds between two looks at the signals that Python has received

// The error of a call, which becomes a Python exception.
struct Failure {
  quire_error error{};
  ~Failure() { quire_error_clear(&error); }

  [[noreturn]] void raise() const {
    const auto type = [&]() -> PyObject* {
      switch (error.code) {
        case QUIRE_INVALID_ARGUMENT:
        case QUIRE_UNSUPPORTED:
          return PyExc_ValueError;
        case QUIRE_NOT_FOUND:
          return PyExc_FileNotFoundError;
        case QUIRE_EXHAUSTED:
          return PyExc_MemoryError;
        default:
          return PyExc_RuntimeError;
      }
    }();
    PyErr_SetString(type, error.message != nullptr ? error.message : "there is not enough memory");
    throw nb::python_error();
  }
};

void check_signals() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

std::string take_text(char* text, size_t bytes) {
  if (text == nullptr) throw std::bad_alloc();
  std::string out(text, bytes);
  quire_free_text(text);
  return out;
}

// A list for each token, of (token, rank, logprob) tuples; None if there is no row.
nb::object rows_of(const quire_logprobs& rows) {
  if (rows.rows == 0) return nb::none();
  nb::list out;
  size_t at = 0;
  for (size_t row = 0; row < rows.rows; ++row) {
    nb::list entries;
    for (; at < rows.ends[row]; ++at) {
      const quire_logprob& entry = rows.entries[at];
      entries.append(nb::make_tuple(entry.token, entry.rank, static_cast<double>(entry.logprob)));
    }
    out.append(entries);
  }
  return out;
}

nb::list list_of(const int32_t* tokens, size_t count) {
  nb::list out;
  for (size_t i = 0; i < count; ++i) out.append(tokens[i]);
  return out;
}

// (index, text, token_ids, logprobs, prompt_logprobs, finish_reason, stop_reason, num_cached_tokens)
nb::tuple tuple_of(const quire_delta& delta) {
  const nb::object finish = delta.finish_reason != nullptr ? nb::object(nb::str(delta.finish_reason)) : nb::none();
  nb::object stop = nb::none();
  if (delta.stop_string != nullptr) stop = nb::str(delta.stop_string, delta.stop_string_bytes);
  if (delta.stop_token >= 0) stop = nb::int_(delta.stop_token);
  return nb::make_tuple(delta.index, nb::str(delta.text, delta.text_bytes), list_of(delta.tokens, delta.num_tokens),
                        rows_of(delta.logprobs), rows_of(delta.prompt_logprobs), finish, stop, delta.cached_tokens);
}

// One request. Used by one Python thread at a time, except for abort.
class Stream {
 public:
  explicit Stream(quire_stream* stream) : stream_(stream) {}

  nb::list prompt() const {
    size_t count = 0;
    const int32_t* tokens = quire_prompt(stream_.get(), &count);
    return list_of(tokens, count);
  }

  // The next piece; None after the last one.
  nb::object next() {
    for (;;) {
      const nb::object piece = take(kPatience);
      if (!piece.is(nb::handle(Py_False))) return piece;
      check_signals();
    }
  }
  // The same without waiting: False if there is nothing yet.
  nb::object poll() { return take(0); }

  // The numbers of a request with a task, behind its piece: a vector, or a row for each token; None if it was aborted.
  nb::object pooled() const {
    size_t rows = 0, columns = 0;
    const float* from = quire_pooled(stream_.get(), &rows, &columns);
    if (from == nullptr) return nb::none();
    const size_t count = rows == 0 ? columns : rows * columns;
    auto* values = new float[count];
    std::copy(from, from + count, values);
    const nb::capsule owner(values, [](void* data) noexcept { delete[] static_cast<float*>(data); });
    const size_t shape[2] = {rows == 0 ? columns : rows, columns};
    return nb::cast(nb::ndarray<nb::numpy, float>(values, rows == 0 ? 1 : 2, shape, owner));
  }

  // Until all answers are complete.
  void wait() {
    for (;;) {
      quire_event event = QUIRE_TIMEOUT;
      {
        const nb::gil_scoped_release released;
        event = quire_wait(stream_.get(), kPatience);
      }
      if (event == QUIRE_END) return;
      check_signals();
    }
  }

  void abort() {
    const nb::gil_scoped_release released;
    quire_abort(stream_.get());
  }

 private:
  struct Close {
    void operator()(quire_stream* stream) const { quire_close(stream); }
  };

  nb::object take(double seconds) {
    Failure failure;
    quire_delta delta{};
    quire_event event = QUIRE_END;
    {
      const nb::gil_scoped_release released;
      event = quire_next(stream_.get(), seconds, &delta, &failure.error);
    }
    if (event == QUIRE_FAILED) failure.raise();
    if (event == QUIRE_END) return nb::none();
    if (event == QUIRE_TIMEOUT) return nb::bool_(false);
    return tuple_of(delta);
  }

  std::unique_ptr<quire_stream, Close> stream_;
};

// A loaded model. Any Python thread.
class Model {
 public:
  explicit Model(const std::string& options) {
    Failure failure;
    bool interrupted = false;
    {
      const nb::gil_scoped_release released;
      llm_.reset(quire_load_cancellable(options.c_str(), &Model::has_signal, &interrupted, &failure.error));
    }
    if (interrupted) throw nb::python_error();
    if (llm_ == nullptr) failure.raise();
  }

  std::string info() const {
    char* text = quire_info(llm_.get());
    return take_text(text, text == nullptr ? 0 : std::strlen(text));
  }
  int event_fd() { return quire_event_fd(llm_.get()); }

  Stream start(const std::string& request, const std::optional<Tokens>& tokens) {
    Failure failure;
    quire_stream* stream = nullptr;
    {
      const nb::gil_scoped_release released;
      stream = quire_submit(llm_.get(), request.c_str(), tokens ? tokens->data() : nullptr, tokens ? tokens->size() : 0,
                            &failure.error);
    }
    if (stream == nullptr) failure.raise();
    return Stream(stream);
  }

  nb::object tokenize(const std::string& request) const {
    Failure failure;
    size_t count = 0;
    int32_t* tokens = nullptr;
    {
      const nb::gil_scoped_release released;
      tokens = quire_tokenize(llm_.get(), request.c_str(), &count, &failure.error);
    }
    if (tokens == nullptr) failure.raise();
    const nb::capsule owner(tokens, [](void* data) noexcept { quire_free_tokens(static_cast<int32_t*>(data)); });
    return nb::cast(nb::ndarray<nb::numpy, int32_t, nb::ndim<1>>(tokens, {count}, owner));
  }

  bool reset_prefix_cache() const {
    const nb::gil_scoped_release released;
    return quire_reset_prefix_cache(llm_.get()) != 0;
  }

  std::string detokenize(const Tokens& tokens, bool skip_special_tokens) const {
    Failure failure;
    char* text = nullptr;
    size_t bytes = 0;
    {
      const nb::gil_scoped_release released;
      text = quire_detokenize(llm_.get(), tokens.data(), tokens.size(), skip_special_tokens ? 1 : 0, &bytes,
                              &failure.error);
    }
    if (text == nullptr) failure.raise();
    return take_text(text, bytes);
  }

 private:
  // Whether a signal's handler raised an exception, such as KeyboardInterrupt, which then is Python's current error.
  static int has_signal(void* interrupted) {
    const nb::gil_scoped_acquire held;
    if (PyErr_CheckSignals() == 0) return 0;
    *static_cast<bool*>(interrupted) = true;
    return 1;
  }

  struct Free {
    void operator()(quire_llm* llm) const { quire_free(llm); }
  };
  std::unique_ptr<quire_llm, Free> llm_;
};

// How close a document is to a query: by their vectors, or by those of their tokens.
double similarity(const Vectors& query, const Vectors& document) {
  const bool late = query.ndim() == 2;
  if (query.ndim() != document.ndim() || query.ndim() < 1 || query.ndim() > 2 ||
      query.shape(query.ndim() - 1) != document.shape(document.ndim() - 1)) {
    throw nb::value_error("the query and the document must have vectors of one size");
  }
  const nb::gil_scoped_release released;
  return static_cast<double>(quire_similarity(query.data(), query.shape(0), document.data(), document.shape(0),
                                              query.shape(query.ndim() - 1), late ? 1 : 0));
}

}  // namespace

NB_MODULE(_quire, module) {
  nb::set_leak_warnings(false);  // a stream that is still referenced when Python ends is no leak
  module.def("version", [] { return std::string(quire_version()); });
  module.def("options", [] {
    char* text = quire_options();
    return take_text(text, text == nullptr ? 0 : std::strlen(text));
  });
  module.def("similarity", &similarity, nb::arg("query"), nb::arg("document"));
  nb::class_<Stream>(module, "Stream")
      .def("prompt", &Stream::prompt)
      .def("next", &Stream::next)
      .def("poll", &Stream::poll)
      .def("pooled", &Stream::pooled)
      .def("wait", &Stream::wait)
      .def("abort", &Stream::abort);
  nb::class_<Model>(module, "Model")
      .def(nb::init<const std::string&>(), nb::arg("options"))
      .def("info", &Model::info)
      .def("event_fd", &Model::event_fd)
      .def("reset_prefix_cache", &Model::reset_prefix_cache)
      .def("start", &Model::start, nb::arg("request"), nb::arg("tokens").none() = nb::none())
      .def("tokenize", &Model::tokenize, nb::arg("request"))
      .def("detokenize", &Model::detokenize, nb::arg("tokens"), nb::arg("skip_special_tokens"));
}
