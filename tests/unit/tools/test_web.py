"""The built-in web tools, against fake services that use the real protocols."""

from __future__ import annotations

import asyncio
import dataclasses
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import belljar
from belljar.contract.errors import ToolFailed
from belljar.egress import rules
from belljar.settings import LlmSettings, ModelSettings, Settings, ToolSettings, WebSettings
from belljar.tools.web import access
from belljar.tools.web.access import Web
from belljar.tools.web.cache import Cache
from belljar.tools.web.fetch import Forbidden
from tests.unit.egress.address_table import NOT_PUBLIC
from tests.unit.tools.outside import PAGE, Outside, outside_world


@pytest.fixture
def outside() -> Iterator[Outside]:
    with outside_world() as world:
        yield world


def models_of(outside: Outside) -> LlmSettings:
    good = ModelSettings(url=f"{outside.url}/llm", authorization="secret-model-key", retries=1)
    return LlmSettings(
        use_model="gpt-4o",
        base_model="qwen-32b",
        models={
            "gpt-4o": good,
            "qwen-32b": dataclasses.replace(good, url=f"{outside.url}/v1/chat/completions"),
            "broken": good,
            "keyless": dataclasses.replace(good, authorization="wrong"),
        },
    )


def ask(outside: Outside, question: Callable[[Web], Awaitable[Any]], **changed: Any) -> Any:
    """Open the tools, make one call, close them."""

    async def main() -> Any:
        web = Web(WebSettings(**{**outside.settings(), **changed}), models_of(outside))
        await web.open()
        try:
            return await question(web)
        finally:
            await web.close()

    return asyncio.run(main())


def failure(outside: Outside, question: Callable[[Web], Awaitable[Any]], **changed: Any) -> str:
    with pytest.raises(ToolFailed) as caught:
        ask(outside, question, **changed)
    return caught.value.message


def test_a_search_returns_the_engines_answer_without_account_data(outside: Outside) -> None:
    found = ask(outside, lambda web: web.search("bells", 2))
    assert [each["title"] for each in found["organic"]] == ["bells 0", "bells 1"]
    assert set(found) == {"organic"}
    assert outside.bodies["/serper"] == {"q": "bells", "num": 2, "gl": "us", "hl": "en"}


def test_another_search_engine_answers_in_the_same_shape(outside: Outside) -> None:
    found = ask(outside, lambda web: web.search("bells", 5), search_provider="searxng")
    assert found["organic"][0] == {"title": "one", "link": "https://example.org/", "snippet": "first", "position": 1}
    assert found["relatedSearches"] == [{"query": "bells"}]


def test_a_failed_search_is_retried(outside: Outside) -> None:
    outside.failing["/serper"] = 3
    assert ask(outside, lambda web: web.search("bells", 1))["organic"]
    assert outside.requests["/serper"] == 4


def test_a_search_fails_after_its_retries(outside: Outside) -> None:
    outside.failing["/serper"] = 99
    assert (
        failure(outside, lambda web: web.search("bells", 1)) == "the search engine failed: it answered with status 500"
    )
    assert outside.requests["/serper"] == 4


def test_a_wrong_key_is_not_retried(outside: Outside) -> None:
    assert "status 403" in failure(outside, lambda web: web.search("bells"), serper_api_key="wrong")
    assert outside.requests["/serper"] == 1


def test_equal_searches_are_cached(outside: Outside) -> None:
    async def twice(web: Web) -> Any:
        await asyncio.gather(*(web.search("bells") for _ in range(10)))
        await web.search("bells")
        return await web.search("other")

    ask(outside, twice)
    assert outside.requests["/serper"] == 2


def test_the_cache_size_is_limited(outside: Outside) -> None:
    async def many(web: Web) -> Any:
        for each in range(20):
            await web.search(f"bells {each}", 10)
        return web._cache._bytes, len(web._cache._kept)

    size, count = ask(outside, many, cache_bytes=5000)
    assert size <= 5000
    assert 0 < count < 20


@pytest.mark.parametrize(
    ("count", "letters"), [pytest.param(300, 60_000, id="long_questions"), pytest.param(20_000, 1, id="short_answers")]
)
def test_keys_and_values_count_toward_the_cache_size(count: int, letters: int) -> None:
    bytes_max = 300_000
    cache = Cache(bytes_max, 60.0)

    async def answer() -> str:
        return "x"

    async def fill() -> int:
        await cache.get(("llm", "first"), answer)
        tracemalloc.start()
        try:
            for each in range(count):
                assert await cache.get(("llm", f"{'q' * letters} {each}"), answer) == "x"
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    assert asyncio.run(fill()) < 2 * bytes_max
    assert cache.hits == 0


def test_long_queries_have_separate_cache_entries(outside: Outside) -> None:
    async def fetch(web: Web) -> None:
        for each in ("one", "two", "one"):
            await web.fetch_web(f"{outside.url}/page?{'x' * 60_000}{each}")

    ask(outside, fetch)
    assert outside.requests["/page"] == 2


@pytest.mark.parametrize(
    ("question", "read"),
    [
        pytest.param(lambda web, _: web.search("cut", 1), lambda found: found["organic"][0]["snippet"], id="search"),
        pytest.param(lambda web, _: web.models.ask("cut"), str, id="model"),
        pytest.param(lambda web, url: web.fetch_web(f"{url}/missing?cut"), str, id="scraped"),
    ],
)
def test_a_lone_surrogate_is_replaced(outside: Outside, question: Any, read: Callable[[Any], str]) -> None:
    assert read(ask(outside, lambda web: question(web, outside.url))) == "half of a bell: ?"


def test_a_lone_surrogate_is_replaced_for_every_engine(outside: Outside) -> None:
    found = ask(outside, lambda web: web.search("cut", 1), search_provider="searxng")
    assert found["organic"][0]["snippet"] == "half of a bell: ?"


def test_a_page_that_names_no_character_set_is_read(outside: Outside) -> None:
    assert ask(outside, lambda web: web.fetch_web(f"{outside.url}/misnamed")) == "<p>Glöckchen</p>"


@pytest.mark.parametrize("path", ["page", "packed"])
def test_a_page_is_fetched(outside: Outside, path: str) -> None:
    assert ask(outside, lambda web: web.fetch_web(f"{outside.url}/{path}")) == PAGE


def test_a_page_is_read_in_its_own_character_set(outside: Outside) -> None:
    assert ask(outside, lambda web: web.fetch_web(f"{outside.url}/latin")) == "<p>Glöckchen</p>"


def test_a_lone_surrogate_of_a_page_is_replaced(outside: Outside) -> None:
    assert ask(outside, lambda web: web.fetch_web(f"{outside.url}/halved")) == "half of a bell: \ufffd"


@pytest.mark.parametrize(
    "label",
    ["punycode", "idna", "utf-7", "rot13", "hex", "zlib", "raw_unicode_escape", "unicode_escape", "mbcs", "x" * 99],
)
def test_codecs_other_than_web_encodings_are_not_used(outside: Outside, label: str) -> None:
    assert ask(outside, lambda web: web.fetch_web(f"{outside.url}/labelled?times=1&label={label}")) == "<p>bell-jar</p>"


@pytest.mark.parametrize("label", ["punycode", "utf-8", "cp1253", "gb18030"])
def test_decoding_does_not_block_the_server(outside: Outside, label: str) -> None:
    """Other calls continue while a large page is decoded."""
    page, longest = ask(
        outside, lambda web: watched(web.fetch_web(f"{outside.url}/labelled?times=42000&label={label}"))
    )
    assert len(page) == 42_000 * len("<p>bell-jar</p>")
    assert longest < 2.0


async def watched(call: Awaitable[Any]) -> tuple[Any, float]:
    """The result of a call, and the longest time that it blocked the event loop."""
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.005)
            longest = max(longest, time.monotonic() - before)

    ticking = asyncio.create_task(tick())
    try:
        return await call, longest
    finally:
        ticking.cancel()


def test_a_page_that_cannot_be_parsed_in_time_fails_alone(outside: Outside) -> None:
    async def both(web: Web) -> Any:
        slow = asyncio.gather(*(web.web_parse(f"{outside.url}/quadratic?{each}", "?") for each in range(6)))
        pages = [await web.fetch_web(f"{outside.url}/page?{each}") for each in range(3)]
        done_before = slow.done()
        return pages, done_before, await slow

    pages, done_before, failed = ask(outside, both, read_seconds=3.0)
    assert pages == [PAGE] * 3
    assert not done_before
    assert {each["content"] for each in failed} == {"failed: it could not be read within 3 s"}


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        pytest.param('{"content": 1}', 1, id="bare"),
        pytest.param('```json\n{"content": 1}\n```', 1, id="fenced"),
        pytest.param(' \n```\n {"content": 1} \n```\n ', 1, id="fenced_without_a_language"),
        pytest.param('```json{"content": 1}```', 1, id="fenced_in_one_line"),
        pytest.param("```", "```", id="one_fence"),
        pytest.param("`````", "`````", id="overlapping_fences"),
        pytest.param("``````", "``````", id="nothing_between"),
        pytest.param("```json\nno\n``` more", "```json\nno\n``` more", id="text_after_it"),
    ],
)
def test_a_models_answer_is_extracted_from_its_fence(answer: str, read: Any) -> None:
    assert access._read_summary(answer)["content"] == read


@pytest.mark.parametrize(
    "piece", [" ", "```", "```json ", "\n```\n", "[", '{"content":', "\u2003"], ids=lambda each: ascii(each)
)
def test_a_models_answer_is_parsed_in_linear_time(piece: str) -> None:
    began = time.monotonic()
    for answer in (piece * 100_000, "```" + piece * 100_000, "```" + piece * 100_000 + "x"):
        assert access._read_summary(answer)["score"] == 1
    assert time.monotonic() - began < 5


def test_an_unreachable_page_is_requested_from_the_scraping_service(outside: Outside) -> None:
    url = f"{outside.url}/missing"
    assert ask(outside, lambda web: web.fetch_web(url)) == f"scraped {url}"
    assert "status 404" in failure(outside, lambda web: web.fetch_web(url), serper_api_key="")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        pytest.param("endless", "larger than the limit of 1,000,000 bytes", id="endless"),
        pytest.param("bomb", "larger than the limit of 1,000,000 bytes", id="bomb"),
        pytest.param("slow", "no answer within 0.5 s", id="slow"),
        pytest.param("loop", "more than 5 redirects", id="redirects_without_end"),
    ],
)
def test_pages_are_limited_in_size_and_time(outside: Outside, path: str, message: str) -> None:
    bounds = {"serper_api_key": "", "fetch_bytes": 1_000_000, "fetch_seconds": 5.0 if path != "slow" else 0.5}
    began = time.monotonic()
    assert message in failure(outside, lambda web: web.fetch_web(f"{outside.url}/{path}"), **bounds)
    assert time.monotonic() - began < 15


def resolving_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Make every name resolve to these addresses."""
    found = [(0, 0, 0, "", (address, 0)) for address in addresses]

    async def resolve(*_: object, **__: object) -> list[Any]:
        return found

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_a_host_with_a_private_address_is_refused(
    outside: Outside, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving_to(monkeypatch, "93.184.215.14", address)
    with pytest.raises(Forbidden, match="not public"):
        ask(outside, lambda web: web.fetch_web("http://somewhere.test/"))


def test_a_public_address_of_this_machine_is_refused(outside: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    resolving_to(monkeypatch, "93.184.215.14")
    monkeypatch.setattr(rules, "is_own", lambda address: address == "93.184.215.14")
    with pytest.raises(Forbidden, match="not public"):
        ask(outside, lambda web: web.fetch_web("http://somewhere.test/"))


@pytest.mark.parametrize("port", [22, 25, 6379, 8080])
def test_a_port_other_than_the_webs_is_refused(outside: Outside, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    resolving_to(monkeypatch, "93.184.215.14")
    with pytest.raises(Forbidden, match=f"port {port} is not allowed here, only 80, 443"):
        ask(outside, lambda web: web.fetch_web(f"http://somewhere.test:{port}/"))


def test_the_operator_chooses_the_ports(outside: Outside) -> None:
    url = f"http://localhost:{outside.port}/page"
    with pytest.raises(Forbidden, match="not public"):
        ask(outside, lambda web: web.fetch_web(url), fetch_ports=(str(outside.port),))


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("http://127.0.0.1:{port}/page", id="loopback"),
        pytest.param("http://localhost:{port}/page", id="by_name"),
        pytest.param("http://[::ffff:127.0.0.1]:{port}/page", id="mapped"),
        pytest.param("http://2130706433:{port}/page", id="as_a_number"),
        pytest.param("http://0x7f.1:{port}/page", id="as_hexadecimal"),
        pytest.param("http://127.1:{port}/page", id="short"),
        pytest.param("http://0:{port}/page", id="nothing"),
        pytest.param("http://user:word@127.0.0.1:{port}/page", id="with_user"),
        pytest.param("http://169.254.169.254/latest/meta-data/", id="metadata_of_clouds"),
        pytest.param("file:///etc/passwd", id="a_file"),
        pytest.param("gopher://127.0.0.1:{port}/", id="another_protocol"),
        pytest.param("http:///page", id="no_host"),
    ],
)
def test_private_addresses_are_not_fetched(outside: Outside, url: str) -> None:
    """Neither directly nor through the scraping service."""
    given = url.format(port=outside.port)
    assert failure(outside, lambda web: web.fetch_web(given), allowed_hosts=())
    assert not outside.requests


@pytest.mark.parametrize("target", ["http://localhost:{port}/page", "http://[::1]:{port}/page", "file:///etc/passwd"])
def test_a_redirect_is_checked_like_the_first_request(outside: Outside, target: str) -> None:
    url = f"{outside.url}/redirect?to={target.format(port=outside.port)}"
    with pytest.raises(Forbidden):
        ask(outside, lambda web: web.fetch_web(url))
    assert outside.requests["/page"] == 0


def test_a_redirect_to_an_allowed_host_is_followed(outside: Outside) -> None:
    assert ask(outside, lambda web: web.fetch_web(f"{outside.url}/redirect?to=/page")) == PAGE


def test_a_host_is_allowed_by_name_and_port(outside: Outside) -> None:
    url = f"http://localhost:{outside.port}/page"
    assert ask(outside, lambda web: web.fetch_web(url), allowed_hosts=(f"localhost:{outside.port}",)) == PAGE
    assert outside.headers["/page"]["host"] == f"localhost:{outside.port}"
    assert failure(outside, lambda web: web.fetch_web(url), allowed_hosts=("localhost:1",))


def test_a_pdf_is_read(outside: Outside) -> None:
    assert ask(outside, lambda web: web.read_pdf(f"{outside.url}/paper.pdf")).strip() == "Bells ring at dawn"


@pytest.mark.parametrize(
    ("path", "message"), [("broken.pdf", "it could not be read"), ("page", "the document is not a PDF")]
)
def test_an_invalid_pdf_is_an_error(outside: Outside, path: str, message: str) -> None:
    assert message in failure(outside, lambda web: web.read_pdf(f"{outside.url}/{path}"))


def test_a_page_is_summarised(outside: Outside) -> None:
    answer = ask(outside, lambda web: web.web_parse(f"{outside.url}/page", "what is a bell jar?"))
    assert answer == {"content": "summary by gpt-4o: True", "urls": ["u"], "score": 0.9}
    prompt = outside.bodies["/llm/chat/completions"]["messages"][0]["content"]
    assert "A bell jar keeps things in." in prompt
    assert "more (https://example.org/more)" in prompt
    assert "alert" not in prompt
    assert "color: red" not in prompt


def test_a_page_cannot_be_a_template(outside: Outside) -> None:
    answer = ask(
        outside, lambda web: web.web_parse(f"{outside.url}/page", "{info} {0} {{x}}"), summary_prompt="{user}|"
    )
    assert answer["content"] == "gpt-4o heard: {info} {0} {{x}}|"


def test_a_paper_is_summarised(outside: Outside) -> None:
    answer = ask(outside, lambda web: web.web_parse(f"{outside.url}/paper.pdf", "when?"))
    assert "Bells ring at dawn" in answer["content"]


def test_the_base_model_is_the_fallback(outside: Outside) -> None:
    outside.failing["/llm/chat/completions"] = 99
    assert ask(outside, lambda web: web.web_parse(f"{outside.url}/page", "?"))["content"] == "summary by qwen-32b: True"
    assert outside.requests["/llm/chat/completions"] == 2


def test_a_model_is_retried_after_a_transient_failure(outside: Outside) -> None:
    outside.failing["/llm/chat/completions"] = 1
    assert ask(outside, lambda web: web.models.ask("hello")) == "gpt-4o heard: hello"


def test_a_failed_summary_has_a_special_score(outside: Outside) -> None:
    outside.failing["/llm/chat/completions"] = outside.failing["/v1/chat/completions"] = 99
    answer = ask(outside, lambda web: web.web_parse(f"{outside.url}/page", "?"))
    assert (answer["urls"], answer["score"]) == ([], -1)
    answer = ask(outside, lambda web: web.web_parse("http://localhost/", "?"))
    assert answer["score"] == -1
    assert "not public" in answer["content"]


def test_an_unlisted_model_is_named(outside: Outside) -> None:
    async def without(web: Web) -> str:
        web.models._settings = LlmSettings(models={})
        return await web.models.ask("hello", "gpt-9")

    assert failure(outside, without) == "unknown model 'gpt-9'; choose from: none"


def test_programs_use_the_tools_without_seeing_keys(outside: Outside, settings: Settings) -> None:
    changed = dataclasses.replace(
        settings,
        tools=ToolSettings(builtin=("web_search", "web_parse", "fetch_web", "read_pdf", "llm")),
        web=WebSettings(**outside.settings()),
        llm=models_of(outside),
    )
    code = f"""
from tools import *
from concurrent.futures import ThreadPoolExecutor
print(web_search("bells", 1)["organic"][0]["title"])
print(web_parse("{outside.url}/page", "what?")["content"])
print(len(fetch_web("{outside.url}/page")), read_pdf("{outside.url}/paper.pdf").strip())
print(llm("hello"))
with ThreadPoolExecutor(20) as pool:
    print(len(list(pool.map(lambda n: web_search(f"q{{n}}", 2)["organic"][1]["title"], range(40)))))
try:
    fetch_web("http://localhost/")
except ToolError as error:
    print(error)
import os, sys
everything = repr(dict(os.environ)) + repr(sys.modules["tools"].__dict__)
for name in os.listdir("/proc/self/fd"):
    pass
print("secret" in everything)
help(web_search)
"""
    with belljar.Sandbox(settings=changed) as box:
        outcome = box.run(code, tools=True, timeout=60)
    assert outcome.status == "ok", outcome.stderr
    lines = outcome.stdout.splitlines()
    assert lines[:5] == [
        "bells 0",
        "summary by gpt-4o: True",
        f"{len(PAGE)} Bells ring at dawn",
        "gpt-4o heard: hello",
        "40",
    ]
    assert "not public" in lines[5]
    assert lines[6] == "False"
    assert "web_search(query: 'str', top_k: 'int' = 10)" in outcome.stdout
