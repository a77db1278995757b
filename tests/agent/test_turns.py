from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from enlace.agent.turns import FairQueue, QueueFull


async def _hold(queue: FairQueue, client: str, done: list[str], go: asyncio.Event | None = None) -> None:
    async with queue.turn(client):
        if go:
            await go.wait()
        done.append(client)


def _run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 10))  # type: ignore[arg-type]


async def _started(tasks: list[asyncio.Task[None]]) -> None:
    for _ in range(2 * len(tasks) + 2):
        await asyncio.sleep(0)


def test_one_at_a_time_and_each_client_in_turn() -> None:
    """Ana's many questions do not keep Luis waiting for all of them."""

    async def test() -> None:
        queue, done, go = FairQueue(10), [], asyncio.Event()
        tasks = [asyncio.create_task(_hold(queue, "primera", done, go))]
        for client in ("ana", "ana", "ana", "luis", "eva", "luis"):
            tasks.append(asyncio.create_task(_hold(queue, client, done)))
        await _started(tasks)
        assert done == [] and queue.ahead == 7
        go.set()
        await asyncio.gather(*tasks)
        assert done == ["primera", "ana", "luis", "eva", "ana", "luis", "ana"]
        assert queue.ahead == 0

    _run(test)


def test_no_more_wait_than_may() -> None:
    async def test() -> None:
        queue, done, go = FairQueue(1), [], asyncio.Event()
        tasks = [asyncio.create_task(_hold(queue, "ana", done, go)) for _ in range(2)]
        await _started(tasks)
        with pytest.raises(QueueFull, match="demasiadas preguntas esperando"):
            await _hold(queue, "luis", done)
        go.set()
        await asyncio.gather(*tasks)
        await _hold(queue, "luis", done)
        assert done == ["ana", "ana", "luis"]

    _run(test)


def test_one_client_cannot_fill_the_queue() -> None:
    """Ana's many questions do not keep Luis out either: the newest of them gives way."""

    async def test() -> None:
        queue, done, go = FairQueue(3), [], asyncio.Event()
        tasks = [asyncio.create_task(_hold(queue, "primera", done, go))]
        tasks += [asyncio.create_task(_hold(queue, "ana", done)) for _ in range(3)]
        await _started(tasks)
        with pytest.raises(QueueFull):
            await _hold(queue, "ana", done)
        tasks.append(asyncio.create_task(_hold(queue, "luis", done)))
        await _started(tasks)
        with pytest.raises(QueueFull):
            await tasks[3]
        with pytest.raises(QueueFull):
            await _hold(queue, "luis", done)
        go.set()
        await asyncio.gather(*tasks[:3], tasks[4])
        assert done == ["primera", "ana", "luis", "ana"] and queue.ahead == 0

    _run(test)


def test_whoever_gave_way_and_leaves_lets_nobody_in() -> None:
    async def test() -> None:
        queue, done, go = FairQueue(2), [], asyncio.Event()
        tasks = [asyncio.create_task(_hold(queue, "primera", done, go))]
        tasks += [asyncio.create_task(_hold(queue, "ana", done)) for _ in range(2)]
        await _started(tasks)
        tasks.append(asyncio.create_task(_hold(queue, "luis", done)))
        await asyncio.sleep(0)
        tasks[2].cancel()
        await _started(tasks)
        assert done == [], "one at a time"
        go.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert done == ["primera", "ana", "luis"]

    _run(test)


@pytest.mark.parametrize("moment", ["waiting", "as the turn comes", "holding"])
def test_whoever_leaves_gives_up_their_turn_alone(moment: str) -> None:
    async def test() -> None:
        queue, done, go, never = FairQueue(10), [], asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(_hold(queue, "primera", done, go))
        leaving = asyncio.create_task(_hold(queue, "se va", done, never))
        last = asyncio.create_task(_hold(queue, "última", done))
        await _started([first, leaving, last])
        if moment == "waiting":
            leaving.cancel()
            await _started([leaving])
            assert queue.ahead == 2
            go.set()
        elif moment == "as the turn comes":
            go.set()
            await first
            leaving.cancel()
        else:
            go.set()
            await _started([first, leaving, last])
            leaving.cancel()
        await last
        assert done == ["primera", "última"] and queue.ahead == 0
        with pytest.raises(asyncio.CancelledError):
            await leaving

    _run(test)


def test_a_turn_that_fails_is_passed_on() -> None:
    async def test() -> None:
        queue = FairQueue(0)
        with pytest.raises(ValueError):
            async with queue.turn("ana"):
                raise ValueError
        async with queue.turn("ana"):
            assert queue.ahead == 1

    _run(test)
