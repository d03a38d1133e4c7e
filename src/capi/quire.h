// SPDX-License-Identifier: Apache-2.0
// The C API of quire, for programs in C and for bindings of other languages: load, generate, stream, abort, free.
#ifndef QUIRE_H_
#define QUIRE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Strings are UTF-8. Any function may be called on any thread, but a stream is used by one thread at a time (except
 * for quire_abort). A pointer that is marked "may be null" need not be given; for another one, a null pointer is an
 * error (or nothing happens, where a function returns none).
 *
 * After fork(), a model and its streams belong to the parent, which has their threads. The child can load models of its
 * own. There, requests of the parent's models fail with QUIRE_UNAVAILABLE, and freeing these does nothing. */

typedef enum quire_code {
  QUIRE_OK = 0,
  QUIRE_INVALID_ARGUMENT = 1, /* an option or a field is wrong: the caller can fix it */
  QUIRE_NOT_FOUND = 2,        /* no such file or model */
  QUIRE_CORRUPT = 3,          /* a file contradicts itself or is truncated */
  QUIRE_UNSUPPORTED = 4,      /* well formed, but not supported by quire */
  QUIRE_EXHAUSTED = 5,        /* memory or pages ran out */
  QUIRE_UNAVAILABLE = 6,      /* a device did not answer, or the model is another process's */
  QUIRE_CANCELLED = 7,
  QUIRE_INTERNAL = 8
} quire_code;

/* Why a call failed: a kind, and one sentence that says what was wrong and what to do. Filled in by a call that fails
 * and left alone by one that succeeds. Start with {0}; quire_error_clear frees the message. */
typedef struct quire_error {
  quire_code code;
  char* message;
} quire_error;
void quire_error_clear(quire_error* error);

typedef struct quire_llm quire_llm;       /* a loaded model */
typedef struct quire_stream quire_stream; /* one request under way */

const char* quire_version(void);

/* Loads a model. `options` is a JSON object: "model" (a folder, a .gguf, a cached name; without it, the default model)
 * and the options of `quire run --help` with underscores: {"model": "x.gguf", "max_model_len": 4096}; may be null.
 * Null on failure. The error may be null. */
quire_llm* quire_load(const char* options, quire_error* error);
/* The same, but some ten times a second this thread calls `cancelled` (may be null) with the context: once it returns
 * something other than 0, loading ends with QUIRE_CANCELLED. */
quire_llm* quire_load_cancellable(const char* options, int (*cancelled)(void* context), void* context,
                                  quire_error* error);
/* The options that these take: a JSON object with a description for each name. Free it with quire_free_text. */
char* quire_options(void);
/* Requests that still run are aborted when their streams are closed too. May be null. */
void quire_free(quire_llm* llm);
/* A JSON object: name, max_model_len, vocab_size, eos_token_ids (those that end an answer), default_sampling_params,
 * and pooling: an object with tasks (what the model makes besides text, the usual one first), score ("cross", "cosine",
 * "late" or null), embedding_size, labels. Free it with quire_free_text. */
char* quire_info(const quire_llm* llm);

/* A request is a JSON object. It has one of
 *   "prompt": a text, "prompt_token_ids": a list, or "messages": a conversation, as in /v1/chat/completions
 * and optionally vLLM's sampling parameters ("temperature", "max_tokens", "stop", "seed", "n", "logprobs",
 * "structured_outputs" and so on; docs/api.md describes them), "truncate_prompt_tokens" with "truncation_side", and for
 * messages "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message". An unknown name is an
 * error. What is left out has the model's default. */

/* With a model for embeddings or scores, a request has "task" instead of sampling parameters: "embed", "classify",
 * "token_embed", "token_classify" or "embed&token_classify" (see docs/embeddings.md). It may also have "text_pair" (a
 * second text for a cross-encoder, beside "prompt"), "dimensions", "use_activation", "truncate_prompt_tokens",
 * "truncation_side", "instruction", "max_tokens_per_query" and "max_tokens_per_doc", as in the HTTP API. It gives one
 * delta, after which quire_pooled has the numbers. */

/* The whole answer as a JSON object: prompt_token_ids, outputs (index, text, token_ids, finish_reason, stop_reason,
 * logprobs), num_cached_tokens, prompt_logprobs. With a task: prompt_token_ids, data (numbers, or a list of them for
 * each token), num_cached_tokens. Null on failure. Free it with quire_free_text. */
char* quire_generate(quire_llm* llm, const char* request, quire_error* error);
void quire_free_text(char* text);

typedef struct quire_logprob {
  int32_t token;
  int32_t rank; /* 1 is the likeliest */
  float logprob;
} quire_logprob;

/* Log probabilities: row i has the entries from ends[i - 1] (0 for the first row) to ends[i]. In each row the token
 * itself comes first, then the likeliest in order, which may include it again. */
typedef struct quire_logprobs {
  const quire_logprob* entries;
  const size_t* ends;
  size_t rows;
} quire_logprobs;

/* What was added to one of the n answers since it was last returned. Its pointers are valid until the next call with
 * the same stream. */
typedef struct quire_delta {
  int32_t index; /* of the answer, from 0 */
  const char* text;
  size_t text_bytes; /* without the closing 0 */
  const int32_t* tokens;
  size_t num_tokens;
  quire_logprobs logprobs;        /* a row for each token, if asked for */
  quire_logprobs prompt_logprobs; /* rows of the next prompt tokens, beginning with the second; with index 0 only */
  const char* finish_reason;      /* "stop", "length" or "abort" in the last delta of an answer, else null */
  const char* stop_string;        /* the stop string that ended the answer, else null */
  int32_t stop_token;             /* the entry of stop_token_ids that ended the answer, else -1 */
  int64_t cached_tokens;          /* prompt tokens that were found in the prefix cache */
  size_t stop_string_bytes;       /* without the closing 0; a stop string may have zeros, like a text */
} quire_delta;

/* Starts a request. If `tokens` is not null, they are the prompt, and the request has none. Null on failure. */
quire_stream* quire_submit(quire_llm* llm, const char* request, const int32_t* tokens, size_t num_tokens,
                           quire_error* error);
/* The token ids of the prompt, which the stream owns. */
const int32_t* quire_prompt(const quire_stream* stream, size_t* num_tokens);

typedef enum quire_event {
  QUIRE_FAILED = -1, /* the request ended with an error */
  QUIRE_END = 0,     /* every answer has been returned to its end */
  QUIRE_DELTA = 1,
  QUIRE_TIMEOUT = 2 /* nothing new within the time */
} quire_event;

/* Waits for the next piece of an answer, at most `seconds` (negative: without end). Pieces that have collected are
 * returned as one. */
quire_event quire_next(quire_stream* stream, double seconds, quire_delta* delta, quire_error* error);
/* The numbers of a request with a task, after its delta: `columns` of them, or `rows` times `columns` if there is a
 * vector for each token (else `rows` is 0). Null before the delta, and after an abort. Valid until quire_close. */
const float* quire_pooled(const quire_stream* stream, size_t* rows, size_t* columns);
/* How close a document is to a query, with the same bits as the server's /score: the cosine of two vectors or, if
 * `late` is not 0, late interaction: for each row of the query its largest scalar product with a row of the document,
 * summed. */
float quire_similarity(const float* query, size_t query_rows, const float* document, size_t document_rows,
                       size_t columns, int late);
/* Waits until all answers are complete, so that quire_next then returns each in one piece: QUIRE_END or QUIRE_TIMEOUT.
 */
quire_event quire_wait(quire_stream* stream, double seconds);
/* Ends the request: its answers finish with "abort". Any thread. */
void quire_abort(quire_stream* stream);
/* Aborts the request if it still runs, and frees the stream. May be null. */
void quire_close(quire_stream* stream);

/* For event loops: a file descriptor that becomes readable when a stream of this model has something new. Read it
 * empty, then call quire_next with 0 seconds. Owned by the model; -1 if the system has no descriptor left. */
int quire_event_fd(quire_llm* llm);

/* Forgets the pages of earlier prompts, so that the next ones are computed anew: 1, or 0 if a page is in use, in which
 * case nothing is forgotten. */
int quire_reset_prefix_cache(quire_llm* llm);

/* The token ids of a request's prompt or messages, with a count. Null on failure. Free them with quire_free_tokens. */
int32_t* quire_tokenize(const quire_llm* llm, const char* request, size_t* num_tokens, quire_error* error);
void quire_free_tokens(int32_t* tokens);
/* The text of token ids, which must be of the vocabulary, with its length (num_bytes may be null), as a text may have
 * zeros. Null on failure. Free it with quire_free_text. */
char* quire_detokenize(const quire_llm* llm, const int32_t* tokens, size_t num_tokens, int skip_special_tokens,
                       size_t* num_bytes, quire_error* error);

/* The program: what `quire ARGUMENTS` does. argv[0] is the program's name. Returns the exit code. */
int quire_main(int argc, char** argv);

#ifdef __cplusplus
}
#endif

#endif /* QUIRE_H_ */
