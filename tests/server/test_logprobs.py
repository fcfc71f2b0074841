"""Log-probabilities, echo and offsets of /v1/completions, streamed and whole."""

from typing import Any

import httpx
import pytest

from tests.server.conftest import build, client_of
from tests.server.fakes import BOS, EOS, FakeEngine, FakeTokenizer, cycle, reply, reply_ids, usage
from tests.server.sse import complete, joined, stream
from tests.server.test_validation import check_error

ARRAYS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def concatenated(chunks: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The logprobs of a stream's chunks as one object."""
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    return {name: [item for part in parts for item in part[name]] for name in ARRAYS}


async def test_shape(client: httpx.AsyncClient) -> None:
    answer = await complete(client, prompt="p", max_tokens=2, logprobs=2)
    assert answer["choices"][0]["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"a": -0.5, "b": -1.5}, {"b": -0.5, "c": -1.5}],
        "text_offset": [0, 1],
    }


async def test_zero_means_the_token_itself(client: httpx.AsyncClient) -> None:
    answer = await complete(client, prompt="p", max_tokens=1, logprobs=0)
    assert answer["choices"][0]["logprobs"]["top_logprobs"] == [{"a": -0.5}]


async def test_minus_infinity_is_not_json(client: httpx.AsyncClient) -> None:
    answer = await complete(client, prompt="p", max_tokens=1, logprobs=5)
    assert list(answer["choices"][0]["logprobs"]["top_logprobs"][0].values())[-1] == -9999.0


@pytest.mark.parametrize("is_echo", [True, False])
@pytest.mark.parametrize("logprobs", [None, 1])
@pytest.mark.parametrize("is_stream", [True, False])
async def test_all_combinations(
    client: httpx.AsyncClient, is_echo: bool, logprobs: int | None, is_stream: bool
) -> None:
    prompt = "Who won in 2020?"
    body = {"prompt": prompt, "echo": is_echo, "logprobs": logprobs, "max_tokens": 9}
    whole = (await complete(client, **body))["choices"][0]
    expected = (prompt if is_echo else "") + "abcdefghi"
    assert whole["text"] == expected
    if is_stream:
        chunks = await stream(client, **body)
        assert joined(chunks) == expected
        if logprobs is not None:
            assert concatenated(chunks) == whole["logprobs"]
    if logprobs is not None:
        assert {len(whole["logprobs"][name]) for name in ARRAYS} == {len(expected)}
        assert whole["logprobs"]["text_offset"] == list(range(len(expected)))
        assert (whole["logprobs"]["token_logprobs"][0] is None) == is_echo
        assert (whole["logprobs"]["top_logprobs"][0] is None) == is_echo


async def test_scoring(client: httpx.AsyncClient) -> None:
    answer = await complete(client, prompt="A B", echo=True, max_tokens=0, logprobs=1)
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("A B", "length")
    assert choice["logprobs"] == {
        "tokens": ["A", " ", "B"],
        "token_logprobs": [None, -0.5, -0.5],
        "top_logprobs": [None, {" ": -0.5}, {"B": -0.5}],
        "text_offset": [0, 1, 2],
    }
    assert answer["usage"] == usage(3, 0, cached=1)


async def test_scoring_a_prompt_that_fills_the_context(client: httpx.AsyncClient) -> None:
    answer = await complete(client, prompt="x" * 256, echo=True, max_tokens=0, logprobs=0)
    assert len(answer["choices"][0]["logprobs"]["tokens"]) == 256


async def test_scoring_of_lists_and_ids(client: httpx.AsyncClient) -> None:
    body = {"echo": True, "max_tokens": 0, "logprobs": 1}
    answer = await complete(client, prompt=[[104, 105], [33]], **body)
    assert [c["text"] for c in answer["choices"]] == ["hi", "!"]
    assert [c["logprobs"]["tokens"] for c in answer["choices"]] == [["h", "i"], ["!"]]
    chunks = await stream(client, prompt="hi", **body)
    assert joined(chunks) == "hi"


async def test_without_tokens_or_echo(client: httpx.AsyncClient) -> None:
    answer = await complete(client, prompt="p", max_tokens=0)
    assert answer["choices"][0]["text"] == ""
    assert answer["choices"][0]["finish_reason"] == "length"


class TestOffsets:
    """Code points from the start of the returned text; parts of one character share theirs."""

    @pytest.mark.parametrize("text", ["おはよう", "é", "a🙂b", "plain"])
    @pytest.mark.parametrize("is_echo", [True, False])
    async def test_multibyte(
        self, client: httpx.AsyncClient, engine: FakeEngine, text: str, is_echo: bool
    ) -> None:
        engine.script = reply(text)
        size = len(text.encode())
        body = {"prompt": text, "logprobs": 1, "echo": is_echo, "max_tokens": size}
        answer = await complete(client, **body)
        choice = answer["choices"][0]
        full, offsets = choice["text"], choice["logprobs"]["text_offset"]
        assert full == (text + text if is_echo else text)
        assert offsets == sorted(offsets)
        expected = [at for at, letter in enumerate(full) for _ in letter.encode()]
        assert offsets == expected
        assert concatenated(await stream(client, **body)) == choice["logprobs"]

    async def test_names_of_parts(self, client: httpx.AsyncClient, engine: FakeEngine) -> None:
        engine.script = reply_ids(259, 260)
        answer = await complete(client, prompt="p", logprobs=0, max_tokens=2)
        logprobs = answer["choices"][0]["logprobs"]
        assert logprobs["tokens"] == ["bytes:\\xf0\\x9f", "bytes:\\x99\\x82"]
        assert logprobs["text_offset"] == [0, 0]

    async def test_the_end_token_has_an_entry_without_width(
        self, client: httpx.AsyncClient, engine: FakeEngine
    ) -> None:
        engine.script = reply("ab")
        answer = await complete(client, prompt="p", logprobs=0)
        choice = answer["choices"][0]
        assert choice["text"] == "ab"
        assert choice["logprobs"]["tokens"] == ["a", "b", "<eos>"]
        assert choice["logprobs"]["text_offset"] == [0, 1, 2]
        assert answer["usage"]["completion_tokens"] == 3

    async def test_an_added_bos_has_no_width(self) -> None:
        engine = FakeEngine(cycle("z"))
        async with client_of(build(engine, tokenizer=FakeTokenizer(adds_bos=True))) as http:
            body = {"prompt": "ab", "echo": True, "logprobs": 0, "max_tokens": 1}
            choice = (await complete(http, **body))["choices"][0]
            assert choice["text"] == "abz"
            assert choice["logprobs"]["tokens"] == ["<bos>", "a", "b", "z"]
            assert choice["logprobs"]["text_offset"] == [0, 0, 1, 2]
            assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5, -0.5]
            choice = (await complete(http, **body, add_special_tokens=False))["choices"][0]
            assert choice["logprobs"]["tokens"] == ["a", "b", "z"]


async def test_names_are_unique(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.script = reply_ids(268, 269)  # ids without a token, as in padded vocabularies
    answer = await complete(client, prompt="p", logprobs=5, max_tokens=1)
    names = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    assert "" not in names
    assert len(names) == 5
    answer = await complete(
        client, prompt="p", logprobs=1, max_tokens=1, return_tokens_as_token_ids=True
    )
    assert answer["choices"][0]["logprobs"]["tokens"] == ["token_id:268"]


async def test_each_choice_has_its_own(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.script = lambda prompt, _: prompt[0]
    answer = await complete(client, prompt=["x", "y"], n=2, logprobs=1, max_tokens=2)
    tokens = [choice["logprobs"]["tokens"] for choice in answer["choices"]]
    assert tokens == [["x", "x"], ["x", "x"], ["y", "y"], ["y", "y"]]


async def test_entries_equal_completion_tokens(client: httpx.AsyncClient) -> None:
    for max_tokens in range(1, 13):
        answer = await complete(client, prompt="p", logprobs=0, max_tokens=max_tokens)
        assert len(answer["choices"][0]["logprobs"]["tokens"]) == max_tokens
        assert answer["usage"]["completion_tokens"] == max_tokens


class TestBestOf:
    """More candidates than choices: the likeliest per token go out, all are paid for."""

    async def test_ranking(
        self, client: httpx.AsyncClient, engine: FakeEngine, monkeypatch: Any
    ) -> None:
        calls = iter([-0.9, -0.1, -0.5])
        scores: dict[int, float] = {}
        from tests.server import fakes

        original = fakes.fake_logprob

        def scored(token: int, num_top: int) -> Any:
            known = original(token, num_top)
            if token not in scores:
                scores[token] = next(calls)
            return type(known)(token, scores[token], known.top)

        monkeypatch.setattr(fakes, "fake_logprob", scored)
        engine.script = lambda prompt, index: ord("q")
        texts = iter("xyz")
        chosen: dict[int, int] = {}

        def script(prompt: Any, index: int) -> int:
            turn = len(chosen)
            chosen[turn] = ord(next(texts))
            return chosen[turn]

        engine.script = script
        answer = await complete(client, prompt="p", n=2, best_of=3, max_tokens=1)
        assert [c["text"] for c in answer["choices"]] == ["y", "z"]
        assert [c["index"] for c in answer["choices"]] == [0, 1]
        assert all(c["logprobs"] is None for c in answer["choices"])
        assert answer["usage"] == usage(1, 3, cached=0)

    async def test_equal_to_n_changes_nothing(self, client: httpx.AsyncClient) -> None:
        chunks = await stream(client, prompt="p", n=2, best_of=2, max_tokens=3)
        assert joined(chunks, 1) == "abc"

    @pytest.mark.parametrize(
        "wish", [{"best_of": 1, "n": 2}, {"best_of": 2, "stream": True}, {"best_of": 21}]
    )
    async def test_refused(self, client: httpx.AsyncClient, wish: dict[str, Any]) -> None:
        body = {"model": "fake/model", "prompt": "p", **wish}
        error = check_error(await client.post("/v1/completions", json=body), 400)
        assert error["param"] == "best_of"


@pytest.mark.parametrize("wish", [-1, 6, True, "1", 1.0])
async def test_refused_logprobs(client: httpx.AsyncClient, wish: object) -> None:
    body = {"model": "fake/model", "prompt": "p", "logprobs": wish}
    error = check_error(await client.post("/v1/completions", json=body), 400)
    assert error["param"] == "logprobs"


async def test_cut_text_keeps_its_entries(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.script = reply_ids(ord("a"), ord("b"), ord("c"), EOS)
    answer = await complete(client, prompt="p", stop="bc", logprobs=0)
    assert answer["choices"][0]["text"] == "a"
    assert answer["choices"][0]["logprobs"]["tokens"] == ["a", "b", "c"]
    assert answer["usage"]["completion_tokens"] == 3


async def test_ids_prompt_echoes_control_tokens(client: httpx.AsyncClient) -> None:
    answer = await complete(client, prompt=[BOS, 97], echo=True, max_tokens=1, logprobs=0)
    choice = answer["choices"][0]
    assert choice["text"] == "<bos>aa"
    assert choice["logprobs"]["text_offset"] == [0, 5, 6]
