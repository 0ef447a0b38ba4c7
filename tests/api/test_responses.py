"""What an HTTP answer says, in every shape that is known."""

from __future__ import annotations

import itertools
import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from speed import tenths

from airflow_crew_provider.api import responses
from airflow_crew_provider.api.responses import LONGEST_DETAIL, HttpResponse, masker
from airflow_crew_provider.exceptions import CrewProtocolError

HIDE = masker(["secret"])


def answer(body: Any = b"", status: int = 200, headers: dict[str, str] | None = None) -> HttpResponse:
    return HttpResponse(status, headers or {}, body if isinstance(body, bytes) else json.dumps(body).encode())


def test_a_mask_hides_all_forms_of_secrets_and_nothing_else() -> None:
    mask = masker(["", 'a/b "+'])
    for form in ('a/b "+', "a/b%20%22%2B", "a%2Fb%20%22%2B", "a%2Fb+%22%2B", "a%2fb%20%22%2b", 'a/b \\"+'):
        assert mask(f"<{form}>") == "<***>"
    assert mask("a/b") == "a/b"
    assert masker([])("text") == "text"


def test_a_longer_secret_is_hidden_before_a_shorter_contained_one() -> None:
    assert masker(["token", "token-and-more"])("the token-and-more") == "the ***"
    assert masker(["token", "a-token"])("the a-token") == "the ***"


def test_a_secret_shorter_than_airflows_shortest_garbles_no_text() -> None:
    mask = masker(["e", "no", "four", "fiver"])
    assert mask("no, the four are not fiver") == "no, the four are not ***"


CONTROLS = [chr(code) for code in (*range(9), *range(11, 32), *range(127, 160), 0xAD, 0x200B, 0x2060, 0xFEFF)]


@pytest.mark.parametrize("secret", ["sekret-abc", "two words"])
def test_a_secret_is_hidden_where_cleaning_would_put_it_together(secret: str) -> None:
    mask = masker([secret])
    for control, at in itertools.product(CONTROLS, (1, 3, 4, 6)):
        divided = secret[:at] + control + secret[at:]
        for text in (divided, json.dumps(divided), json.dumps({"a": divided}), f"{control}{divided}\x00{divided}"):
            cleaned = re.sub("[\x00-\x1f\x7f-\x9f\xad\u200b\u2060\ufeff]|\\\\u[0-9a-f]{4}", "", mask(text))
            assert secret not in cleaned, (text, mask(text))
    for text in ("two\nwords", "two \t\r\n words", "two\xa0words", "two\x1cwords", r"two\nwords"):
        assert masker(["two words"])(f"the {text}!") == "the ***!"
    assert mask("two\x00 other\nlines") == "two\x00 other\nlines"


def test_text_is_masked_after_it_was_joined_into_one_line() -> None:
    mask = masker(["two words"])
    assert responses.detail(answer({"detail": "no: two\nwords"}, 400), mask) == "no: ***"
    assert responses.words(answer(b"<html>two<br>words</html>"), mask) == "***"
    assert responses.in_one_line("two\n  words", lambda text: text.upper()) == "TWO WORDS"


@pytest.mark.parametrize("body", [b"", b" \n"])
def test_an_empty_body_is_named(body: bytes) -> None:
    with pytest.raises(CrewProtocolError, match=r"^GET /x returned 204 with an empty body$"):
        responses.json_of(answer(body, 204), "GET /x")


def test_what_is_not_json_is_shown_in_short_and_masked() -> None:
    with pytest.raises(CrewProtocolError) as error:
        responses.json_of(answer(b"no secret " + b"x" * 300, 201), "GET /x", HIDE)
    said = "GET /x returned 201 with a body that is not JSON: no *** " + "x" * 193
    assert str(error.value) == said
    assert error.value.__context__ is None


def test_a_body_nested_too_deep_is_not_json() -> None:
    with pytest.raises(CrewProtocolError, match="not JSON"):
        responses.json_of(answer(b"[" * 100_000), "GET /x")


def test_json_is_read_despite_byte_order_mark_or_invalid_bytes() -> None:
    assert responses.json_of(answer(b'\xef\xbb\xbf{"a": "\xff"}'), "x") == {"a": "\ufffd"}


def test_numbers_that_json_has_no_word_for_become_none() -> None:
    assert responses.json_of(answer(b"[NaN, Infinity, -1e999, 1.5, 2]"), "x") == [None, None, None, 1.5, 2]


@pytest.mark.parametrize("escape", ["\\u0000", "\\ud800", "\\uDBFF", "\\udFff"])
def test_what_no_database_can_hold_is_replaced_everywhere(escape: str) -> None:
    body = f'{{"a{escape}": ["{escape}b", {{"c": "{escape}"}}], "n": 1, "none": null}}'.encode()
    read = responses.json_of(answer(body), "x")
    assert read == {"a\ufffd": ["\ufffdb", {"c": "\ufffd"}], "n": 1, "none": None}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"detail": "a  secret\nhere"}, "a *** here"),
        ({"detail": ["x", {"msg": "bad"}, {"loc": ["body", 0, "a"], "msg": "missing"}]}, "x; bad; body.0.a: missing"),
        ({"detail": [{"loc": "body", "msg": 7}, {}]}, "7;"),
        ({"detail": [{"loc": ["a"]}]}, "a:"),
        ({"detail": [["body", 0, "a"], ["b"]]}, "body.0.a; b"),
        ({"error": "E", "message": "M"}, "E: M"),
        ({"error": 5, "message": "M"}, "M"),
        ({"error": "E", "message": None}, "E"),
        ({"other": "secret"}, '{"other": "***"}'),
        (["secret"], '["***"]'),
        (b"plain secret", "plain ***"),
        (b"", ""),
    ],
)
def test_the_words_of_a_refusal(body: Any, said: str) -> None:
    assert responses.detail(answer(body, 400), HIDE) == said


def test_a_detail_is_cut_at_its_longest() -> None:
    assert responses.detail(answer({"detail": "x" * LONGEST_DETAIL})) == "x" * LONGEST_DETAIL
    assert responses.detail(answer({"detail": "x" * (LONGEST_DETAIL + 1)})) == "x" * LONGEST_DETAIL + "…"


def test_of_html_only_the_words_are_shown() -> None:
    page = b"<!DOCTYPE html><style>a{}</STYLE><script>\nalert()</script><p class=x>It&#39;s a&nbsp;<b>secret</b></p>"
    assert responses.words(answer(page), HIDE) == "It's a ***"
    assert responses.words(answer(b"<HTML><p>s&#101;cret</p>"), HIDE) == "***"
    page = b"<html><script src=a />It's<script>a()</script> a<style> secret"
    assert responses.words(answer(page), HIDE) == "It's a ***"


@pytest.mark.parametrize(
    "piece", [b"<script", b"<script>", b"<STYLE x", b"<script></scrip", b"<script><style>", b"<", b"</script ", b"<!--"]
)
def test_any_page_content_blocks_the_event_loop_only_briefly(piece: bytes) -> None:
    page = answer(b"<html>" + piece * (20_000 // len(piece)))
    assert tenths(lambda: responses.words(page), enough=1) < 1


def test_a_page_may_contain_a_character_reference_of_any_length() -> None:
    assert responses.words(answer(b"<html>a&#" + b"9" * 10_000 + b";b")) == "a b"
    assert responses.words(answer(b"<p>a < b</p>")) == "<p>a < b</p>"


def test_only_the_beginning_of_a_huge_page_is_read() -> None:
    assert responses.words(answer(b" " * 20_000 + b"late")) == ""
    assert responses.words(answer(b" " * 19_996 + b"late")) == "late"


def test_only_40000_bytes_of_a_secret_filled_page_are_read() -> None:
    secret = "s" * 20_000
    assert responses.words(answer(secret.encode() * 2 + b"late"), masker([secret])) == "******"
    assert responses.words(answer(b"a" + secret.encode() * 2), masker([secret])) == "a***" + "s" * 496 + "…"


def test_a_secret_that_reaches_over_the_cut_is_hidden_whole() -> None:
    secret = "s" * 100
    page = b" " * 19_950 + secret.encode() + b" " * 100
    assert responses.words(answer(page), masker([secret])) == "***"


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"details": {"missing_inputs": ["a", 2]}}, ["a", "2"]),
        ({"details": {"missing_inputs": "a"}, "detail": "Missing inputs: b"}, ["b"]),
        ({"details": [], "detail": "MISSING required input: 'a', \"b\" ,[c]"}, ["a", "b", "c"]),
        ({"detail": [{"loc": ["body", "a"]}, {"loc": []}, {"loc": "b"}, "x", {"loc": ["c"]}]}, ["a", "c"]),
        ({"detail": "Missing inputs: MAX, X"}, ["MAX", "X"]),
        ({"detail": [{"loc": ["body", "a"], "type": "missing"}, {"loc": ["b"], "type": "string_type"}]}, ["a"]),
        ({"detail": [{"loc": ["a"], "msg": "Field required"}, {"loc": ["b"], "msg": "Not a text"}]}, ["a"]),
        ({"detail": [{"loc": ["a"], "type": "", "msg": " "}, {"loc": ["b"], "type": 7, "msg": "MISSING"}]}, ["a", "b"]),
        ({"detail": [["inputs", "a"], [], {"type": "missing"}]}, ["a"]),
        ({"detail": "something else"}, []),
        ({"detail": 5}, []),
        ([], []),
        (b"text", []),
    ],
)
def test_the_names_of_missing_inputs(body: Any, names: list[str]) -> None:
    assert responses.missing_names(answer(body, 422)) == names


NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (" 120 ", 120.0),
        ("0", 0.0),
        ("9" * 12, 999999999999.0),
        ("9" * 13, None),
        ("-1", None),
        ("1.5", None),
        ("²", None),
        ("\u0661\u0662", None),
        ("", None),
        ("soon", None),
        ("Fri, 20 Nov 2026 12:00:30 GMT", 30.0),
        ("Fri, 20 Nov 2026 12:00:30 -0000", 30.0),
        ("Fri, 20 Nov 2026 13:00:30 +0100", 30.0),
        ("Fri, 20 Nov 2026 11:00:00 GMT", 0.0),
    ],
)
def test_a_retry_after_is_seconds_or_a_date(value: str, seconds: float | None) -> None:
    assert responses.retry_after(answer(headers={"retry-after": value}), NOW) == seconds


def test_retry_after_may_be_missing_and_dates_count_from_now() -> None:
    assert responses.retry_after(answer()) is None
    far = responses.retry_after(answer(headers={"retry-after": "Fri, 20 Nov 2099 12:00:30 GMT"}))
    assert far is not None
    assert far > 3600


@pytest.mark.parametrize(
    ("headers", "body", "page"),
    [
        ({"content-type": "text/html; charset=utf-8"}, b"x", True),
        ({"content-type": "text/html"}, b"", True),
        ({"content-type": "text/html"}, b'{"detail": "no"}', False),
        ({"content-type": "application/json"}, b"<HTML>", True),
        ({}, b'{"detail": "<html>"}', False),
        ({}, b'\xef\xbb\xbf\n<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', True),
        ({}, b"404 page not found", False),
        ({}, b"", False),
        ({}, b"<!DOCTYPE html>", True),
        ({}, b'{"a": 1}', False),
        ({}, b"x" * 995 + b"<html>", True),
        ({}, b"x" * 996 + b"<html>", False),
        ({}, b"\xff<html>", True),
        ({"content-type": "text/plain"}, b"a < b", False),
    ],
)
def test_what_is_a_page(headers: dict[str, str], body: bytes, page: bool) -> None:
    assert responses.is_page(answer(body, headers=headers)) is page
