#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small agent with two tools: asks a model, runs the tools that it calls, and gives it the results, until it answers.

    scripts/get-coder-model                        # once: a model that can call tools (1.1 GB)
    quire serve Qwen2.5-Coder-1.5B-Instruct &
    pip install openai
    python3 examples/agent.py "What is the weather in Oslo, and what is 17.5 * 3?"
"""

import argparse
import ast
import json
import operator
import os

import openai

QUESTION = "What is the weather in Oslo? And how much is 17.5 * 3?"
SYSTEM = "Use the tools for weather and arithmetic. When you have all results, answer the user in one sentence."
WEATHER = {"oslo": "snow, -3 degrees", "rome": "sunny, 24 degrees", "london": "rain, 11 degrees"}
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
             ast.USub: operator.neg}


def get_weather(city: str) -> str:
    """The weather in a city, from a table: this is an example."""
    return WEATHER.get(city.split(",")[0].strip().lower(), f"no weather report for {city}")


def calculate(expression: str) -> str:
    """The value of an expression of numbers, + - * / and parentheses."""
    def value(node):
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.operand))
        raise ValueError("only numbers, + - * / and parentheses are understood")
    return str(value(ast.parse(expression, mode="eval").body))


FUNCTIONS = {"get_weather": get_weather, "calculate": calculate}
TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Get the current weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Name of the city"}},
                       "required": ["city"], "additionalProperties": False}}},
    {"type": "function", "function": {
        "name": "calculate", "description": "Compute the value of an arithmetic expression.",
        "parameters": {"type": "object",
                       "properties": {"expression": {"type": "string", "description": "For example 2 * (3 + 4)"}},
                       "required": ["expression"], "additionalProperties": False}}},
]


def run_tool(name: str, arguments: str) -> str:
    """The result of a call, or what went wrong: the model is told both."""
    try:
        return FUNCTIONS[name](**json.loads(arguments))
    except Exception as error:  # a model may send anything
        return f"error: {error!r}"


def ask(client: openai.OpenAI, model: str, messages: list[dict], **options) -> dict:
    """One answer of the model, printed while it arrives, as a message of the assistant."""
    content, calls = "", {}
    for chunk in client.chat.completions.create(model=model, messages=messages, tools=TOOLS, stream=True, **options):
        if not chunk.choices:
            continue
        delta = chunk.choices[0].delta
        if delta.content:
            print(delta.content, end="", flush=True)
            content += delta.content
        for piece in delta.tool_calls or []:
            call = calls.setdefault(piece.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
            call["id"] += piece.id or ""
            call["function"]["name"] += piece.function.name or ""
            call["function"]["arguments"] += piece.function.arguments or ""
    if content:
        print()
    message = {"role": "assistant", "content": content or None}
    return message | ({"tool_calls": list(calls.values())} if calls else {})


def run(client: openai.OpenAI, model: str, question: str, most_rounds: int = 6, **options) -> list[dict]:
    """The whole conversation, which ends with the answer."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    for _ in range(most_rounds):
        messages.append(ask(client, model, messages, **options))
        calls = messages[-1].get("tool_calls", [])
        if not calls:
            break
        for call in calls:
            function = call["function"]
            result = run_tool(function["name"], function["arguments"])
            print(f"[{function['name']}({function['arguments']}) -> {result}]")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return messages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", nargs="?", default=QUESTION)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1", help="the server's address")
    parser.add_argument("--model", default="", help="default: the served one")
    options = parser.parse_args()
    with openai.OpenAI(base_url=options.url, api_key=os.environ.get("OPENAI_API_KEY", "none")) as client:
        run(client, options.model, options.question, temperature=0)


if __name__ == "__main__":
    main()
