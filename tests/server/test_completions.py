"""POST /v1/completions: prompts, choices, texts, ends and counts, streamed and whole."""

import json

import httpx
import pytest

from tests.server.fakes import EOS, FakeEngine, cycle, reply, reply_ids, usage
from tests.server.sse import complete, events, joined, stream


@pytest.fixture(params=["off", "goose", "ptd"])
def method(request: pytest.FixtureRequest) -> dict:
    """Every method gives the same answer; only the blocks differ."""
    return {"speculation": {"method": request.param}}


async def test_shape_of_a_whole_answer(client: httpx.AsyncClient) -> None:
    answer = await complete(client, prompt="hi", max_tokens=3)
    assert answer.pop("id").startswith("cmpl-")
    assert isinstance(answer.pop("created"), int)
    assert answer.pop("system_fingerprint").startswith("treeline-")
    assert answer == {
        "object": "text_completion",
        "model": "fake/model",
        "choices": [{"index": 0, "text": "abc", "logprobs": None, "finish_reason": "length"}],
        "usage": usage(2, 3, cached=1),
    }


async def test_default_max_tokens_is_16(client: httpx.AsyncClient) -> None:
    answer = await complete(client, prompt="hi")
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["text"] == "abcdefghijklmnop"


async def test_golden_stream(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.script, engine.waits_for_readers = reply("Hello"), True
    response = await client.post(
        "/v1/completions",
        json={
            "model": "fake/model",
            "prompt": "abc",
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    )
    chunks = events(response.text)
    head = f'"id":"{chunks[0]["id"]}","object":"text_completion","created":{chunks[0]["created"]}'
    head += ',"model":"fake/model"'
    mark = f'"system_fingerprint":"{chunks[-1]["system_fingerprint"]}"'
    counts = '{"prompt_tokens":3,"completion_tokens":6,"total_tokens":9,'
    counts += '"prompt_tokens_details":{"cached_tokens":1}}'
    assert response.text == (
        f'data: {{{head},"choices":[{{"index":0,"text":"Hell","logprobs":null,'
        '"finish_reason":null}],"usage":null}\n\n'
        f'data: {{{head},"choices":[{{"index":0,"text":"o","logprobs":null,'
        '"finish_reason":"stop"}],"usage":null}\n\n'
        f'data: {{{head},"choices":[],{mark},"usage":{counts}}}\n\n'
        "data: [DONE]\n\n"
    )


async def test_stream_headers(client: httpx.AsyncClient) -> None:
    body = {"model": "fake/model", "prompt": "a", "stream": True}
    response = await client.post("/v1/completions", json=body)
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"]


@pytest.mark.parametrize(
    "prompt", ["x", "你是谁？", [1], [0], [0, 0], [[0]], [[0], [1, 2]], ["a", "b"]]
)
async def test_prompt_forms(client: httpx.AsyncClient, engine: FakeEngine, prompt: object) -> None:
    answer = await complete(client, prompt=prompt, max_tokens=2)
    many = isinstance(prompt, list) and not isinstance(prompt[0], int)
    assert len(answer["choices"]) == (len(prompt) if many else 1)
    prompts = [request.prompt_token_ids for request in engine.requests]
    single = [prompt] if not many else prompt
    assert prompts == [tuple(p.encode() if isinstance(p, str) else p) for p in single]


async def test_indices_are_prompt_major(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.script = lambda prompt, _: prompt[0]
    answer = await complete(client, prompt=["x", "y"], n=2, max_tokens=2)
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert [c["text"] for c in answer["choices"]] == ["xx", "xx", "yy", "yy"]
    assert answer["usage"] == usage(2, 8, cached=0)


async def test_every_index_ends_once(client: httpx.AsyncClient) -> None:
    chunks = await stream(client, prompt=["x", "y"], n=2, max_tokens=9)
    ends = [c["index"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert sorted(ends) == [0, 1, 2, 3]
    assert all(len(joined(chunks, index)) == 9 for index in range(4))
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1


async def test_finish_reason_is_per_choice(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.script = lambda prompt, index: EOS if index >= len(prompt) else prompt[index]
    answer = await complete(client, prompt=["a", "bcdef"], max_tokens=3)
    assert [c["finish_reason"] for c in answer["choices"]] == ["stop", "length"]
    assert [c["text"] for c in answer["choices"]] == ["a", "bcd"]


async def test_usage_of_stream_equals_whole(client: httpx.AsyncClient, method: dict) -> None:
    body = {"prompt": ["one", "three"], "n": 2, "max_tokens": 7, **method}
    answer = await complete(client, **body)
    chunks = await stream(client, stream_options={"include_usage": True}, **body)
    assert chunks[-1]["usage"] == answer["usage"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert "usage" not in (await stream(client, **body))[-1]


@pytest.mark.parametrize("max_tokens", range(1, 13))
async def test_the_cap_is_exact(client: httpx.AsyncClient, method: dict, max_tokens: int) -> None:
    answer = await complete(client, prompt="p", max_tokens=max_tokens, **method)
    assert answer["usage"]["completion_tokens"] == max_tokens
    assert len(answer["choices"][0]["text"]) == max_tokens
    assert answer["choices"][0]["finish_reason"] == "length"


class TestText:
    """Bytes become text only as whole characters, and no text is ever retracted."""

    @pytest.mark.parametrize(
        "text", ["你是谁？", "🙂Ж€", " leading", "a\u2028b\r\nc\0", "  two  spaces "]
    )
    async def test_stream_equals_whole(
        self, client: httpx.AsyncClient, engine: FakeEngine, method: dict, text: str
    ) -> None:
        engine.script = reply(text)
        answer = await complete(client, prompt="p", max_tokens=64, **method)
        chunks = await stream(client, prompt="p", max_tokens=64, **method)
        assert answer["choices"][0]["text"] == joined(chunks) == text

    async def test_a_block_that_ends_inside_a_character(
        self, client: httpx.AsyncClient, engine: FakeEngine
    ) -> None:
        engine.script = reply_ids(ord("a"), ord("b"), ord("c"), 259, 260, ord("d"))
        engine.waits_for_readers = True
        chunks = await stream(client, prompt="p")
        assert [c["choices"][0]["text"] for c in chunks] == ["abc", "🙂d"]

    async def test_the_cap_inside_a_character(
        self, client: httpx.AsyncClient, engine: FakeEngine, method: dict
    ) -> None:
        engine.script = reply("🙂")
        answer = await complete(client, prompt="p", max_tokens=2, **method)
        chunks = await stream(client, prompt="p", max_tokens=2, **method)
        assert answer["choices"][0]["text"] == joined(chunks) == "\ufffd"
        assert answer["usage"]["completion_tokens"] == 2


class TestStops:
    """The text never holds a stop string or anything behind it; held text is released."""

    @pytest.mark.parametrize(
        ("output", "stop", "text", "reason"),
        [
            ("ABCDEFGHIJK", "DEFGHIJ", "ABC", "DEFGHIJ"),
            ("Paris", ["Pari"], "", "Pari"),
            ("The quick brown fox", ["own fox"], "The quick br", "own fox"),
            ("hi<|im_end|>more", ["<|im_end|>"], "hi", "<|im_end|>"),
            ("x Observe", ["Observation:"], "x Observe", None),
            ("so 🙂 end", ["🙂"], "so ", "🙂"),
            ("aab", ["ab", "zzz"], "a", "ab"),
        ],
    )
    async def test_cut(
        self,
        client: httpx.AsyncClient,
        engine: FakeEngine,
        method: dict,
        output: str,
        stop: object,
        text: str,
        reason: str | None,
    ) -> None:
        engine.script = reply(output)
        answer = await complete(client, prompt="p", stop=stop, max_tokens=64, **method)
        chunks = await stream(client, prompt="p", stop=stop, max_tokens=64, **method)
        choice = answer["choices"][0]
        assert choice["text"] == joined(chunks) == text
        assert choice["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "stop"
        assert choice.get("stop_reason") == reason
        committed = len(output.encode()) + 1 if reason is None else len((text + reason).encode())
        assert answer["usage"]["completion_tokens"] == committed

    async def test_held_text_is_not_shown_early(
        self, client: httpx.AsyncClient, engine: FakeEngine
    ) -> None:
        engine.script, engine.waits_for_readers = reply("12345678"), True
        chunks = await stream(client, prompt="p", stop="456x")
        assert [c["choices"][0]["text"] for c in chunks] == ["123", "45678", ""]

    async def test_stop_wins_on_the_last_token(
        self, client: httpx.AsyncClient, engine: FakeEngine, method: dict
    ) -> None:
        engine.script = cycle("abcd")
        for max_tokens, reason in ((3, "stop"), (2, "length")):
            answer = await complete(client, prompt="p", stop="bc", max_tokens=max_tokens, **method)
            assert answer["choices"][0]["finish_reason"] == reason

    async def test_stop_token_id(
        self, client: httpx.AsyncClient, engine: FakeEngine, method: dict
    ) -> None:
        engine.script = reply_ids(10, 11, 12, 20, 21, 22)
        answer = await complete(client, prompt="p", stop_token_ids=[12], max_tokens=5, **method)
        choice = answer["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("\n\x0b", "stop")
        assert choice["stop_reason"] == 12
        assert answer["usage"]["completion_tokens"] == 3

    async def test_eos_at_once(self, client: httpx.AsyncClient, engine: FakeEngine) -> None:
        engine.script = reply("")
        answer = await complete(client, prompt="p")
        assert answer["choices"][0]["text"] == ""
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] == 1

    async def test_ignore_eos(
        self, client: httpx.AsyncClient, engine: FakeEngine, method: dict
    ) -> None:
        engine.script = reply_ids(ord("a"), EOS, ord("b"), ord("c"))
        answer = await complete(client, prompt="p", ignore_eos=True, max_tokens=4, **method)
        assert answer["choices"][0]["text"] == "abc"
        assert answer["choices"][0]["finish_reason"] == "length"

    async def test_empty_list_equals_none(self, client: httpx.AsyncClient) -> None:
        answer = await complete(client, prompt="p", stop=[], max_tokens=2)
        assert answer["choices"][0]["text"] == "ab"


async def test_sampling_reaches_the_engine(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    wishes = {
        "temperature": 0.5,
        "top_p": 0,
        "top_k": 7,
        "min_p": 0.25,
        "presence_penalty": -1,
        "frequency_penalty": 2,
        "repetition_penalty": 1.5,
        "min_tokens": 3,
        "seed": -5,
    }
    extra = {"logit_bias": {"5": -100, "0": 1.5}, "stop": ["x", "y"], "stop_token_ids": [9]}
    await complete(client, prompt="p", max_tokens=4, ignore_eos=True, **wishes, **extra)
    sampling = engine.requests[0].sampling
    assert {name: getattr(sampling, name) for name in wishes} == wishes
    assert sampling.logit_bias == ((5, -100.0), (0, 1.5))
    assert sampling.stop == ("x", "y")
    assert sampling.stop_token_ids == (9,)
    assert sampling.ignore_eos


@pytest.mark.parametrize("top_k", [-1, 0])
async def test_top_k_off(client: httpx.AsyncClient, engine: FakeEngine, top_k: int) -> None:
    await complete(client, prompt="p", top_k=top_k)
    assert engine.requests[0].sampling.top_k == 0


async def test_null_equals_absent(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    names = ["max_tokens", "temperature", "top_p", "n", "stop", "seed", "logit_bias", "stream"]
    names += ["stream_options", "user", "suffix", "presence_penalty", "speculation", "echo"]
    await complete(client, prompt="p", **dict.fromkeys(names))
    await complete(client, prompt="p", speculation={"method": None, "width": None})
    first, second = (request.sampling for request in engine.requests)
    assert first.max_tokens == second.max_tokens == 16
    assert engine.requests[0].speculation == engine.requests[1].speculation


class TestSeeds:
    """Seeded choices repeat and differ from each other; unseeded ones get fresh entropy."""

    async def test_seeded(self, client: httpx.AsyncClient, engine: FakeEngine) -> None:
        for n in (1, 3):
            await complete(client, prompt=["p", "q"], n=n, seed=42)
        one, three = engine.requests[:2], engine.requests[2:]
        assert [r.sampling.seed for r in one] == [42, 42]
        seeds = [r.sampling.seed for r in three]
        assert seeds[:3] == seeds[3:]
        assert seeds[0] == 42
        assert len(set(seeds)) == 3

    async def test_unseeded(self, client: httpx.AsyncClient, engine: FakeEngine) -> None:
        await complete(client, prompt=["p", "q"], n=3)
        assert len({r.sampling.seed for r in engine.requests}) == 6


class TestSpeculation:
    """The extension: chosen per request, bounded by the configuration, reported truthfully."""

    async def test_plan(self, client: httpx.AsyncClient, engine: FakeEngine) -> None:
        wish = {"method": "ptd", "width": 2, "depth": 3, "budget": 9}
        await complete(client, prompt="p", speculation=wish)
        plan = engine.requests[0].speculation
        assert (plan.method, plan.width, plan.depth, plan.budget) == ("ptd", 2, 3, 9)

    async def test_stats(self, client: httpx.AsyncClient) -> None:
        wish = {"method": "goose", "stats": True}
        body = {"prompt": "p", "n": 2, "max_tokens": 8, "speculation": wish}
        answer = await complete(client, **body)
        expected = {
            "method": "goose",
            "steps": 4,
            "drafts": 4,
            "draft_tokens": 12,
            "accepted_tokens": 12,
            "tau": 4.0,
            "hit_rate": 1.0,
            "accept_length": 4.0,
            "accepted_per_depth": [4, 4, 4],
            "exact": False,
        }
        assert answer["speculation"] == expected
        chunks = await stream(client, **body)
        assert chunks[-1]["speculation"] == expected
        assert all("speculation" not in chunk for chunk in chunks[:-1])
        chunks = await stream(client, **body, stream_options={"include_usage": True})
        assert chunks[-1]["speculation"] == expected
        assert chunks[-1]["choices"] == []

    async def test_no_stats_unless_asked(self, client: httpx.AsyncClient) -> None:
        assert "speculation" not in await complete(client, prompt="p")


async def test_clients_cannot_collide_by_request_id(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    body = {"model": "fake/model", "prompt": "p"}
    for _ in range(2):
        response = await client.post("/v1/completions", json=body, headers={"x-request-id": "a"})
        assert response.headers["x-request-id"] == "a"
    assert len({request.request_id for request in engine.requests}) == 2


async def test_hostile_request_ids_are_tamed(client: httpx.AsyncClient) -> None:
    response = await client.get("/health", headers={"x-request-id": b"\xe9\t<b>" + b"x" * 10_000})
    assert response.headers["x-request-id"] == "b" + "x" * 127
    assert json.loads(response.text)["status"] == "ok"
