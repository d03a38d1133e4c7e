# SPDX-License-Identifier: Apache-2.0
"""AsyncLLM: async generators, many at once, abort, and errors."""

import asyncio

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
