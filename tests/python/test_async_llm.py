# SPDX-License-Identifier: Apache-2.0
"""AsyncLLM: async generators, many at once, abort, and errors."""

import asyncio
import contextlib
import gc
import os
import sys
import weakref

import pytest

PROMPT = "The capital of France is"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def async_llm(model_path):
    from quire import AsyncLLM
    return AsyncLLM(model_path, max_model_len=1024, max_num_seqs=16)


def greedy(**more):
    from quire import SamplingParams
    return SamplingParams(**({"temperature": 0, "max_tokens": 12} | more))


async def last(generator):
    output = None
    async for output in generator:
        pass
    return output


def test_the_answer_is_that_of_llm(llm, async_llm):
    async def main():
        return await last(async_llm.generate(PROMPT, greedy(), "first")), await last(async_llm.chat(QUESTION, greedy()))
    generated, chatted = asyncio.run(main())
    assert generated.request_id == "first" and generated.finished
    assert generated.outputs == llm.generate(PROMPT, greedy())[0].outputs
    assert chatted.outputs == llm.chat(QUESTION, greedy())[0].outputs


def test_many_requests_run_at_once_while_the_loop_is_free(llm, async_llm):
    from quire import RequestOutputKind
    params = greedy(output_kind=RequestOutputKind.DELTA, ignore_eos=True)
    async def one(number):
        text = ""
        async for output in async_llm.generate(f"{number} and", params):
            text += output.outputs[0].text
        return text
    async def main():
        ticks = 0
        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)
        ticking = asyncio.create_task(tick())
        texts = await asyncio.gather(*(one(number) for number in range(20)))
        ticking.cancel()
        return texts, ticks
    texts, ticks = asyncio.run(main())
    assert texts == [output.outputs[0].text for output in llm.generate([f"{n} and" for n in range(20)], greedy(ignore_eos=True))]
    assert ticks > 20


def test_abort_ends_a_request(async_llm):
    async def main():
        output = None
        async for output in async_llm.generate(PROMPT, greedy(max_tokens=None, ignore_eos=True), "long"):
            await async_llm.abort("long")
        await async_llm.abort("nobody")
        return output
    output = asyncio.run(main())
    assert output.outputs[0].finish_reason == "abort" and output.finished


def test_abort_ends_a_request_whose_prompt_is_being_prepared(async_llm):
    """The abort was lost, and after a shutdown the generator waited without end."""
    async def main(end):
        tasks = [asyncio.create_task(last(async_llm.generate(f"{number} x" * 300, greedy(max_tokens=None, ignore_eos=True),
                                                             str(number)))) for number in range(3)]
        for _ in range(100):
            await asyncio.sleep(0)
            if len(async_llm._running) == 3:
                break
        await end()
        return [(await asyncio.wait_for(task, 30)).outputs[0].finish_reason for task in tasks]
    async def shut_down():
        async_llm.shutdown()
    assert asyncio.run(main(lambda: async_llm.abort(["0", "1", "2", "nobody"]))) == ["abort"] * 3
    assert asyncio.run(main(shut_down)) == ["abort"] * 3


def test_an_engine_that_is_dropped_is_freed_while_the_loop_runs(model_path):
    """The event loop kept it, and with it the model."""
    from quire import AsyncLLM
    async def main():
        for _ in range(3):  # the next one may have the same file descriptor
            llm = AsyncLLM(model_path, max_model_len=64)
            assert (await asyncio.wait_for(last(llm.generate(PROMPT, greedy(max_tokens=2))), 60)).finished
            freed = weakref.ref(llm)
            threads = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 0
            del llm
            gc.collect()
            assert freed() is None
            await asyncio.sleep(0.1)
            assert threads == 0 or len(os.listdir("/proc/self/task")) < threads
    asyncio.run(main())


def test_a_forked_process_leaves_the_loop_of_its_parent_alone(async_llm):
    async def main():
        generator = async_llm.generate(PROMPT, greedy(max_tokens=40, ignore_eos=True))
        await anext(generator)
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                async_llm.shutdown()
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        return await asyncio.wait_for(last(generator), 60)
    assert asyncio.run(main()).outputs[0].finish_reason == "length"


def test_the_tokenizer_comes_with_and_without_await(async_llm):
    async def main():
        return (await async_llm.get_tokenizer()).encode("a b").tolist()
    assert asyncio.run(main()) == async_llm.get_tokenizer().encode("a b").tolist()


def test_beam_search_finds_what_that_of_llm_finds(llm, async_llm):
    from quire import BeamSearchParams
    params = BeamSearchParams(beam_width=3, max_tokens=5)
    ids = llm.get_tokenizer().apply_chat_template([{"role": "user", "content": "Say only: yes"}])
    kept = BeamSearchParams(beam_width=2, max_tokens=24, include_stop_str_in_output=True)
    async def main():
        return await asyncio.gather(last(async_llm.beam_search(PROMPT, "beams", params)),
                                    last(async_llm.beam_search(ids, params=kept)))
    plain, ended = asyncio.run(main())
    assert (plain.request_id, plain.prompt, ended.prompt, plain.finished) == ("beams", PROMPT, None, True)
    for output, expected in ((plain, llm.beam_search(PROMPT, params)), (ended, llm.beam_search([ids], kept))):
        length = len(output.prompt_token_ids)
        assert [output.prompt_token_ids + answer.token_ids for answer in output.outputs] == [
            one.tokens for one in expected[0].sequences]
        for index, (answer, one) in enumerate(zip(output.outputs, expected[0].sequences)):
            assert (answer.index, answer.cumulative_logprob, answer.logprobs, answer.finish_reason, answer.stop_reason) == (
                index, one.cum_logprob, one.logprobs, one.finish_reason, one.stop_reason)
            ends = one.tokens[-1] == one.stop_reason
            assert answer.text == llm.get_tokenizer().decode(one.tokens[length:len(one.tokens) - ends], False)
    assert any(answer.finish_reason == "stop" for answer in ended.outputs)


def test_beam_search_can_be_aborted_and_says_what_is_wrong(async_llm):
    from quire import BeamSearchParams
    async def main():
        search = asyncio.create_task(last(async_llm.beam_search(PROMPT, "long", BeamSearchParams(
            beam_width=4, max_tokens=900, ignore_eos=True))))
        await asyncio.sleep(0.3)
        await async_llm.abort("long")
        output = await asyncio.wait_for(search, 30)
        assert output.finished and {answer.finish_reason for answer in output.outputs} <= {"abort", "stop"}
        with pytest.raises(ValueError, match="logprobs"):
            await last(async_llm.beam_search(PROMPT, params=BeamSearchParams(beam_width=50, max_tokens=1)))
        with pytest.raises(ValueError, match="no tokens"):
            await last(async_llm.beam_search("", params=BeamSearchParams(beam_width=2, max_tokens=1)))
        with pytest.raises(TypeError, match="needs params"):
            await last(async_llm.beam_search(PROMPT, "x"))
        cancelled = asyncio.create_task(last(async_llm.beam_search(PROMPT, params=BeamSearchParams(
            beam_width=4, max_tokens=900, ignore_eos=True))))
        await asyncio.sleep(0.2)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        for _ in range(5):
            await asyncio.sleep(0)
        assert not async_llm._running
        assert (await last(async_llm.generate(PROMPT, greedy()))).finished
    asyncio.run(main())


def test_the_prefix_cache_can_be_reset(async_llm):
    async def run():
        for _ in range(100):  # what other tests have aborted may take a step to end
            if await async_llm.reset_prefix_cache():
                return True
            await asyncio.sleep(0.05)
    assert asyncio.run(run())


def test_leaving_or_cancelling_aborts(async_llm):
    endless = greedy(max_tokens=None, ignore_eos=True)
    async def leave():
        generator = async_llm.generate(PROMPT, endless, "left")
        async for _ in generator:
            break
        await generator.aclose()
        task = asyncio.create_task(last(async_llm.generate(PROMPT, endless, "cancelled")))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not async_llm._running
        return await last(async_llm.generate(PROMPT, greedy()))
    assert asyncio.run(leave()).finished


def test_errors_are_raised_in_the_generator(async_llm):
    async def main():
        with pytest.raises(ValueError, match="temperature"):
            await last(async_llm.generate(PROMPT, greedy(temperature=-1)))
        with pytest.raises(ValueError, match="empty"):
            await last(async_llm.generate("", greedy()))
        running = async_llm.generate(PROMPT, greedy(max_tokens=None, ignore_eos=True), "same")
        await anext(running)
        with pytest.raises(ValueError, match="same"):
            await last(async_llm.generate(PROMPT, greedy(), "same"))
        await running.aclose()
    asyncio.run(main())


def test_shutdown_ends_what_runs(model_path):
    from quire import AsyncLLM
    llm = AsyncLLM(model_path, max_model_len=512)
    async def main():
        generator = llm.generate(PROMPT, greedy(max_tokens=None, ignore_eos=True))
        await anext(generator)
        llm.shutdown()
        return await last(generator)
    assert asyncio.run(main()).outputs[0].finish_reason == "abort"
