// SPDX-License-Identifier: Apache-2.0
// Collects the deltas of a request until its owner fetches them.
#include "capi/stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace quire::capi {
namespace {

template <typename T>
void append(std::vector<T>& to, std::vector<T>& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

// The memory of requests is the caller's own, and a library prints no statistics.
llm::AsyncOptions async_options() {
  llm::AsyncOptions options;
  options.max_request_bytes = std::numeric_limits<int64_t>::max() / 4;
  options.log_stats_every_s = 0;
  return options;
}

template <typename Ready>
bool wait_until(std::condition_variable& filled, std::unique_lock<std::mutex>& lock,
                std::optional<Stream::Clock::time_point> deadline, const Ready& ready) {
  if (deadline) return filled.wait_until(lock, *deadline, ready);
  filled.wait(lock, ready);
  return true;
}

}  // namespace

Signal::~Signal() {
  if (read_ >= 0) ::close(read_);
  if (write_ >= 0) ::close(write_);
}

int Signal::descriptor() {
  const std::lock_guard lock(mutex_);
  if (read_ >= 0) return read_;
  int ends[2];
  if (::pipe(ends) != 0) return -1;
  for (const int end : ends) {
    ::fcntl(end, F_SETFL, O_NONBLOCK);
    ::fcntl(end, F_SETFD, FD_CLOEXEC);
  }
  read_ = ends[0];
  write_ = ends[1];
  return read_;
}

void Signal::raise() {
  const int end = write_;
  if (end >= 0) [[maybe_unused]]
    const ssize_t written = ::write(end, "", 1);  // a full pipe has woken the loop already
}

Model::Model(std::unique_ptr<llm::Llm> llm) : async(std::move(llm), async_options()) {}

Status Model::check_process() const {
  if (!is_forked()) return {};
  return Error{ErrorCode::kUnavailable,
               "the model was loaded before fork(), and its threads are in the other process only; load it in this "
               "process, or start processes without fork (in Python: the start method spawn)"};
}

Stream::Stream(std::shared_ptr<Model> model, const ReadRequest& request)
    : model_(std::move(model)), prompt_(request.request.prompt), pool_(request.pool) {
  inbox_->open = request.request.params.n;
  inbox_->finished.resize(static_cast<size_t>(inbox_->open));
}

Stream::~Stream() {
  abort();
}

void Stream::Inbox::add(llm::Delta delta) {
  const std::lock_guard lock(mutex);
  if (delta.error) {
    error = std::move(delta.error);
    open = 0;
  } else if (!finished[static_cast<size_t>(delta.child)]) {
    if (delta.finish != engine::FinishReason::kNone) {
      finished[static_cast<size_t>(delta.child)] = true;
      --open;
    }
    if (delta.child != 0) delta.prompt_logprobs.clear();  // each answer has the same
    const auto [place, is_new] = waiting.try_emplace(delta.child);
    llm::Delta& to = place->second;
    if (is_new) {
      to = std::move(delta);
    } else {
      to.text += delta.text;
      append(to.tokens, delta.tokens);
      append(to.logprobs, delta.logprobs);
      append(to.prompt_logprobs, delta.prompt_logprobs);
      to.finish = delta.finish;
      to.stop_reason = std::move(delta.stop_reason);
      to.cached_tokens = std::max(to.cached_tokens, delta.cached_tokens);
    }
  }
  filled.notify_all();
}

Result<std::unique_ptr<Stream>> Stream::start(const std::shared_ptr<Model>& model, ReadRequest request) {
  QUIRE_TRY(model->check_process());
  std::unique_ptr<Stream> stream(new Stream(model, request));
  std::vector<engine::Request> requests;
  requests.push_back(std::move(request.request));
  const auto sink = [inbox = stream->inbox_, signal = model->signal](llm::Delta delta) {
    inbox->add(std::move(delta));
    signal->raise();
  };
  QUIRE_ASSIGN(const std::vector<engine::RequestId> ids, model->async.submit(std::move(requests), sink));
  stream->id_ = ids[0];
  return stream;
}

Stream::Event Stream::next(std::optional<Clock::time_point> deadline, llm::Delta& delta) {
  std::unique_lock lock(inbox_->mutex);
  Inbox& inbox = *inbox_;
  if (!wait_until(inbox.filled, lock, deadline, [&] { return !inbox.waiting.empty() || inbox.open == 0; })) {
    return Event::kTimeout;
  }
  if (inbox.error) {
    delta = {};
    delta.error = inbox.error;
    return Event::kFailed;
  }
  if (inbox.waiting.empty()) return Event::kEnd;
  delta = std::move(inbox.waiting.begin()->second);
  inbox.waiting.erase(inbox.waiting.begin());
  return Event::kDelta;
}

Stream::Event Stream::wait(std::optional<Clock::time_point> deadline) {
  std::unique_lock lock(inbox_->mutex);
  return wait_until(inbox_->filled, lock, deadline, [&] { return inbox_->open == 0; }) ? Event::kEnd : Event::kTimeout;
}

Stream::Pooled Stream::pooled(const llm::Delta& delta) const {
  Pooled out;
  if (!pool_) return out;
  for (const auto& row : model_->llm().finish_pooling(pool_->task, delta.pooled, prompt_, pool_->settings)) {
    out.columns = row.size();
    out.values.insert(out.values.end(), row.begin(), row.end());
    ++out.rows;
  }
  if (!model_->llm().pools_to_rows(pool_->task)) out.rows = 0;
  return out;
}

void Stream::abort() {
  {
    const std::lock_guard lock(inbox_->mutex);
    if (inbox_->open == 0) return;
  }
  if (id_) model_->async.abort(*id_);
  for (size_t child = 0; child < inbox_->finished.size(); ++child) {
    llm::Delta last;
    last.child = static_cast<int32_t>(child);
    last.finish = engine::FinishReason::kAbort;
    inbox_->add(std::move(last));
  }
  model_->signal->raise();
}

}  // namespace quire::capi
