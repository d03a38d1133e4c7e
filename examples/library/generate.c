/* SPDX-License-Identifier: Apache-2.0 */
/* Streams an answer with the C API: generate_c '{"model": "x.gguf"}' '{"prompt": "The sky is", "max_tokens": 32}' */
#include <quire.h>
#include <stdio.h>

static int fail(quire_error* error) {
  fprintf(stderr, "%s\n", error->message);
  quire_error_clear(error);
  return 1;
}

int main(int argc, char** argv) {
  quire_error error = {0};
  quire_delta delta;
  quire_event event;
  if (argc != 3) {
    fprintf(stderr, "usage: generate_c OPTIONS REQUEST (both JSON; quire.h describes them)\n");
    return 2;
  }
  quire_llm* llm = quire_load(argv[1], &error);
  if (llm == NULL) return fail(&error);
  quire_stream* stream = quire_submit(llm, argv[2], NULL, 0, &error);
  if (stream == NULL) {
    quire_free(llm);
    return fail(&error);
  }
  while ((event = quire_next(stream, -1, &delta, &error)) == QUIRE_DELTA) {
    fwrite(delta.text, 1, delta.text_bytes, stdout);
    fflush(stdout);
  }
  puts("");
  quire_close(stream);
  quire_free(llm);
  return event == QUIRE_FAILED ? fail(&error) : 0;
}
