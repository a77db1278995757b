from __future__ import annotations

import pytest

from enlace.data.chat import Message
from enlace.eval.grounded import Question, answer_costs
from enlace.eval.scoring import Span, nats, nats_after
from enlace.export.trained import Trained


@pytest.mark.parametrize("answers", [[[5]], [[9, 8, 7, 200, 5, 5], [300], [9, 8], [0, 3, 17, 4, 1]]])
def test_answers_after_one_prompt_cost_what_each_costs_as_a_whole_sequence(
    trained: Trained, answers: list[list[int]]
) -> None:
    prompt = [0, 40, 7, 100, 12, 260, 31]
    spans = [Span((*prompt, *answer), len(prompt)) for answer in answers]
    assert nats_after(trained.model, prompt, answers) == pytest.approx(nats(trained.model, spans), rel=1e-5)


def test_an_answer_beyond_the_context_is_scored_as_far_as_it_fits(trained: Trained) -> None:
    question = Question((Message("user", "perro " * 12),), "sí", "x")
    [[cost, short]] = answer_costs(trained, [(question, ["gato " * 200, "gato"])])
    assert short.tokens < cost.tokens < trained.context_length
    assert cost.nats > short.nats
