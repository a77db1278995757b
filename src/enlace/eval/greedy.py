"""The likeliest turns after many prompts, several at once: many times sooner than one by one, and the same."""

from __future__ import annotations

from collections.abc import Sequence

from enlace.console import progress
from enlace.data.chat import Message, encode_prompt
from enlace.export.trained import Trained
from enlace.model.generate import Sampling, generate_batch

BATCH_TOKENS = 2**14  # read and written at once, which bounds the memory


def likeliest_turns(
    trained: Trained, prompts: Sequence[Sequence[Message]], max_new_tokens: int, description: str
) -> list[str]:
    """What the model says after each of `prompts`, token by token the likeliest, in the order given.

    Args:
        description: of the progress, for a person.
    """
    sampling = Sampling(max_new_tokens, temperature=0, top_p=1, seed=0)
    ids = [encode_prompt(trained.tokenizer, prompt) for prompt in prompts]
    said = [""] * len(ids)
    with progress() as bar:
        for batch in bar.track(_batches([len(prompt) + max_new_tokens for prompt in ids]), description=description):
            answers = generate_batch(
                trained.model, [ids[place] for place in batch], sampling, trained.stop_ids, trained.context_length
            )
            for place, answer in zip(batch, answers, strict=True):
                said[place] = trained.tokenizer.decode(answer)
    return said


def _batches(lengths: Sequence[int]) -> list[list[int]]:
    """Places, those of like length together, for little padding."""
    batches: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not batches or (len(batches[-1]) + 1) * lengths[place] > BATCH_TOKENS:
            batches.append([])
        batches[-1].append(place)
    return batches
