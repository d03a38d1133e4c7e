# SPDX-License-Identifier: Apache-2.0
"""A real model that calls tools (scripts/get-coder-model) in conversations of the usual clients. Skipped without it."""

import importlib.util
import json
import os
import pathlib
import sys

import anthropic
import openai
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAME = "Qwen2.5-Coder-1.5B-Instruct"
FILE = pathlib.Path(os.environ.get("QUIRE_HOME", pathlib.Path.home() / ".cache/quire")) / "models" / NAME / f"{NAME}.Q4_K_M.gguf"
pytestmark = pytest.mark.skipif(not FILE.exists(), reason="no model (run scripts/get-coder-model)")
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
ASK = "What is the weather in Oslo right now?"
WEATHER = "snow, -3 degrees"
# A model this small calls again and again unless it is told when to stop.
SYSTEM = "Use the tools for weather and arithmetic. When you have all results, answer the user in one sentence."


@pytest.fixture(scope="module")
def real(start):
    one = start(str(FILE), "--max-model-len", "4096", "--served-model-name", NAME)
    yield one
    one.stop()


@pytest.fixture(scope="module")
def client(real):
    with openai.OpenAI(base_url=real.url + "/v1", api_key="none", max_retries=0, timeout=600) as one:
        yield one


def test_a_conversation_with_tools_streamed(client, capsys):
    """call, result, answer: with the example's own code."""
    spec = importlib.util.spec_from_file_location("agent", ROOT / "examples" / "agent.py")
    agent = importlib.util.module_from_spec(spec)
    sys.modules["agent"] = agent
    spec.loader.exec_module(agent)
    messages = agent.run(client, NAME, ASK, temperature=0, max_tokens=200)
    called = [call["function"] for message in messages for call in message.get("tool_calls", [])]
    assert [call["name"] for call in called] == ["get_weather"] and json.loads(called[0]["arguments"]) == {"city": "Oslo"}
    assert messages[-1]["role"] == "assistant" and "-3" in messages[-1]["content"]
    assert "<tool_call>" not in capsys.readouterr().out


def test_required_and_named_calls_follow_the_schema(client):
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        answer = client.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": "Tell me a joke about Rome."}], tools=[tool], tool_choice=choice,
            parallel_tool_calls=False, temperature=0, max_tokens=100).choices[0]
        (call,) = answer.message.tool_calls
        assert call.function.name == "get_weather" and set(json.loads(call.function.arguments)) == {"city"}
        assert answer.finish_reason == ("tool_calls" if choice == "required" else "stop")


def test_responses_with_tools(client):
    tools = [{"type": "function", "name": "get_weather", "description": "Get the weather.", "parameters": CITY, "strict": True}]
    options = {"model": NAME, "tools": tools, "temperature": 0, "max_output_tokens": 200}
    options["instructions"] = SYSTEM
    items = [{"role": "user", "content": ASK}]
    first = client.responses.create(input=items, **options)
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert json.loads(call.arguments)["city"].startswith("Oslo")
    items += [item.to_dict() for item in first.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": WEATHER})
    assert "-3" in client.responses.create(input=items, **options).output_text


def test_anthropic_tool_use(real):
    tools = [{"name": "get_weather", "description": "Get the weather.", "input_schema": CITY}]
    with anthropic.Anthropic(base_url=real.url, api_key="none", max_retries=0, timeout=600) as client:
        options = {"model": NAME, "tools": tools, "max_tokens": 200, "system": SYSTEM, "extra_body": {"temperature": 0}}
        turns = [{"role": "user", "content": ASK}]
        with client.messages.stream(messages=turns, **options) as stream:
            first = stream.get_final_message()
        (use,) = [block for block in first.content if block.type == "tool_use"]
        assert first.stop_reason == "tool_use" and use.input["city"].startswith("Oslo")
        turns += [{"role": "assistant", "content": first.content},
                  {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": WEATHER}]}]
        last = client.messages.create(messages=turns, **options)
        assert last.stop_reason == "end_turn" and "-3" in last.content[0].text


def test_a_framework_runs_a_task_with_two_tools(real):
    """pydantic-ai, unchanged; it is not among the tests' packages, so this runs where it is installed."""
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    model = OpenAIChatModel(NAME, provider=OpenAIProvider(base_url=real.url + "/v1", api_key="none"))
    agent = pydantic_ai.Agent(model, system_prompt=SYSTEM, model_settings={"temperature": 0, "max_tokens": 300})
    used = []

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Get the current weather in a city."""
        used.append("get_weather")
        return WEATHER

    @agent.tool_plain
    def add(a: float, b: float) -> float:
        """Add two numbers."""
        used.append("add")
        return a + b

    result = agent.run_sync("What is the weather in Oslo, and how much is 20.5 plus 21.5?")
    assert {"get_weather", "add"} <= set(used), used
    assert "42" in result.output and "snow" in result.output, result.output
