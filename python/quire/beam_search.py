# SPDX-License-Identifier: Apache-2.0
"""Beam search: the answers with the greatest probability as a whole, with vLLM's names and scores."""

from __future__ import annotations

import dataclasses
from typing import Any

from .outputs import Logprob, LoRARequest, RequestOutput
from .sampling_params import BeamSearchParams


@dataclasses.dataclass
class BeamSearchSequence:
    """One answer. tokens and text begin with the prompt's."""

    tokens: list[int]
    logprobs: list[dict[int, Logprob]]
    """For each token of the answer the candidates that it was chosen from."""
    lora_request: LoRARequest | None = None
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    """stop or length."""
    stop_reason: int | str | None = None
    """The end token, if one ended it."""


@dataclasses.dataclass
class BeamSearchOutput:
    """The answers to one prompt, the best one first."""

    sequences: list[BeamSearchSequence]


class Beams:
    """The search for one prompt. Candidates with equal scores stay in their order, so that nothing is left to chance."""

    def __init__(self, fields: dict[str, Any], prompt: list[int], params: BeamSearchParams, max_model_len: int,
                 eos: list[int], lora_request: LoRARequest | None):
        self.prompt = prompt
        self.lora_request = lora_request
        self._more = fields
        self._params = params
        self._eos = frozenset(eos)
        # At least one step, in which a prompt that is too long is an error.
        self._steps = max(1, min(params.max_tokens, max_model_len - len(prompt)))
        self._going = [BeamSearchSequence(prompt, [], lora_request)]
        self._ended: list[BeamSearchSequence] = []

    def requests(self) -> list[dict[str, Any]]:
        """The requests of the next step, one for each beam; none after the last step."""
        return [{**self._more, "prompt_token_ids": beam.tokens} for beam in self._going] if self._steps > 0 else []

    def add(self, outputs: list[RequestOutput]) -> None:
        """Takes what the requests gave."""
        self._steps -= 1
        longer: list[BeamSearchSequence] = []
        for beam, output in zip(self._going, outputs):
            rows = output.outputs[0].logprobs
            if not rows:  # aborted
                continue
            for token, candidate in rows[0].items():
                ends = token in self._eos and not self._params.ignore_eos
                keeps = not ends or self._params.include_stop_str_in_output
                new = BeamSearchSequence(beam.tokens + [token] if keeps else beam.tokens, beam.logprobs + [rows[0]],
                                         self.lora_request, beam.cum_logprob + candidate.logprob)
                if ends:
                    new.finish_reason, new.stop_reason = "stop", token
                    self._ended.append(new)
                else:
                    longer.append(new)
        self._going = self._best(longer)

    def result(self) -> list[BeamSearchSequence]:
        for beam in self._going:
            beam.finish_reason = "length"
        return self._best(self._ended + self._going)

    def _best(self, beams: list[BeamSearchSequence]) -> list[BeamSearchSequence]:
        return sorted(beams, key=self._score, reverse=True)[:self._params.beam_width]

    def _score(self, beam: BeamSearchSequence) -> float:
        length = len(beam.tokens) - (beam.tokens[-1] in self._eos)  # an end token does not count
        return beam.cum_logprob / float(max(length, 1) ** self._params.length_penalty)
