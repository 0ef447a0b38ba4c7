"""Which base URL a connection means, and to which addresses an answer with a person's words may be sent."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest

from airflow_crew_provider.api.addresses import (
    LONGEST_VIEW,
    SHORTEST_QUERY,
    SHORTEST_SIGNATURE,
    Place,
    allowed,
    base_url,
    browser_url,
    hosts,
    proxy_url,
    query_secrets,
    redirected,
    view_path,
)


@pytest.mark.parametrize(
    ("host", "port", "schema", "url"),
    [
        ("https://x.example", None, None, "https://x.example"),
        ("https://x.example///", None, None, "https://x.example"),
        ("https://x.example/crewX/", None, None, "https://x.example/crewX"),
        (" https://x.example/ ", None, None, "https://x.example"),
        ("http://x.example/", None, None, "http://x.example"),
        ("http://x.example", None, "https", "http://x.example"),
        ("x.example", None, None, "https://x.example"),
        ("x.example", None, "", "https://x.example"),
        ("x.example", None, "http", "http://x.example"),
        ("x.example", 8443, None, "https://x.example:8443"),
        ("x.example:9000", 8443, None, "https://x.example:9000"),
        ("https://x.example:9000", 8443, None, "https://x.example:9000"),
        ("x.example", 0, None, "https://x.example"),
        ("127.0.0.1:8000", None, "http", "http://127.0.0.1:8000"),
        ("::1", 8000, None, "https://[::1]:8000"),
        ("2001:db8::1", None, "http", "http://[2001:db8::1]"),
        ("[::1]:8000", None, None, "https://[::1]:8000"),
        ("[::1]", 80, "http", "http://[::1]:80"),
        ("x.example/crews/tea/", 8443, None, "https://x.example:8443/crews/tea"),
        ("https://x.example/a b/ü", None, None, "https://x.example/a%20b/%C3%BC"),
        ("https://x.example/%20/:@!$&'()*+,;=~", None, None, "https://x.example/%20/:@!$&'()*+,;=~"),
        ("https://x.example/a^b", None, None, "https://x.example/a%5Eb"),
    ],
)
def test_the_base_url_of_a_connection(host: str, port: int | None, schema: str | None, url: str) -> None:
    assert base_url(host, port, schema) == url


EMPTY = "Host is empty; set it to the base URL of the deployed crew"
NO_HTTP = "Host (with Schema) is not an http or https address"
CREDENTIAL = "Host contains a credential; put the token in Password"
MORE = "Host has a query or a fragment; enter only the base URL"
BAD_PORT = "Host has a port that is not a number up to 65535"


@pytest.mark.parametrize(
    ("host", "schema", "problem"),
    [
        (None, None, EMPTY),
        ("", None, EMPTY),
        ("  ", None, EMPTY),
        ("ftp://x.example", None, NO_HTTP),
        ("x.example", "ws", NO_HTTP),
        ("https://", None, NO_HTTP),
        ("https:///path", None, NO_HTTP),
        ("https://user:secret@x.example", None, CREDENTIAL),
        ("secret@x.example", None, CREDENTIAL),
        ("https://x.example?token=secret", None, MORE),
        ("https://x.example/a#b", None, MORE),
        ("https://x.example:70000", None, BAD_PORT),
        ("https://x.example:secret", None, BAD_PORT),
        ("https://y.example\\x.example", None, NO_HTTP),
        ("https://x.example \x00", None, NO_HTTP),
        ("https://x .example", None, NO_HTTP),
        ("https://secret\uff20x.example", None, NO_HTTP),
        ("https://[secret", None, NO_HTTP),
    ],
)
def test_what_is_no_base_url_is_refused_without_showing_it(host: str | None, schema: str | None, problem: str) -> None:
    with pytest.raises(ValueError, match="Host") as error:
        base_url(host, None, schema)
    assert str(error.value) == problem
    assert error.value.__context__ is None


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (None, ()),
        ("", ()),
        ([], ()),
        ("a.example", ("a.example",)),
        (" A.Example , b.example:8443,, ", ("a.example", "b.example:8443")),
        ([" A.Example", "", "b.example:8443"], ("a.example", "b.example:8443")),
    ],
)
def test_callback_hosts_are_a_list_or_a_text_with_commas(given: Any, read: tuple[str, ...]) -> None:
    assert hosts(given) == read


@pytest.mark.parametrize("given", [5, {"a.example": 1}, ["a.example", 5], [None], ("a.example",)])
def test_what_is_no_list_of_hosts_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"^Extra 'callback_hosts' must be a list of hosts$"):
        hosts(given)


@pytest.mark.parametrize("given", ["https://a.example", "a.example/path", "b.example,user@a.example"])
def test_a_url_is_no_host(given: Any) -> None:
    with pytest.raises(ValueError, match="callback_hosts") as error:
        hosts(given)
    assert str(error.value) == "Extra 'callback_hosts' must contain hosts, with or without a port, not URLs"


OTHERS = ("a.example", "b.example:8443", "[::1]:8443", "::1")


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("https://x.example/respond?token=1", "https://x.example"),
        ("https://X.Example/respond", "https://x.example/crews/tea"),
        ("https://x.example:443/", "https://x.example"),
        ("https://x.example", "https://x.example:443"),
        ("http://x.example:80/", "http://x.example"),
        ("http://x.example:8000/", "http://x.example:8000"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
        ("https://a.example/", "https://x.example"),
        ("https://a.example:443/", "https://x.example"),
        ("https://A.EXAMPLE/", "http://x.example"),
        ("http://a.example:80/", "http://x.example"),
        ("https://b.example:8443/", "https://x.example"),
        ("http://b.example:8443/", "http://x.example"),
    ],
)
def test_callbacks_may_go_to_the_own_origin_or_allowed_hosts(url: str, own: str) -> None:
    place = allowed(url, own, OTHERS)
    assert place
    assert place.target == (urlsplit(url).path or "/") + ("?token=1" if "token" in url else "")
    asked, sent = urlsplit(url), urlsplit(place.url)
    assert sent.hostname == asked.hostname
    assert place.origin in (own.removesuffix("/crews/tea"), f"{asked.scheme}://{asked.netloc}")


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("https://y.example/", "https://x.example"),
        ("http://x.example/", "https://x.example"),
        ("http://x.example:443/", "https://x.example"),
        ("http://a.example/", "https://x.example"),
        ("https://x.example/", "http://x.example"),
        ("https://x.example:8000/", "https://x.example"),
        ("https://x.example/", "https://x.example:8000"),
        ("https://a.example:8443/", "https://x.example"),
        ("https://a.example:80/", "http://x.example"),
        ("https://b.example/", "https://x.example"),
        ("https://b.example:443/", "https://x.example"),
        ("https://a.example.y.example/", "https://x.example"),
        ("https://y.example/a.example", "https://x.example"),
    ],
)
def test_an_answer_goes_nowhere_else(url: str, own: str) -> None:
    assert allowed(url, own, OTHERS) is None


@pytest.mark.parametrize(
    "url",
    [
        *("", "x.example", "//x.example/", "ftp://x.example/", "https://", "https:/x.example", "javascript:x.example"),
        *("https://x.example@y.example/", "https://y.example\\@x.example/", "https://x.example\\.y.example/"),
        *("https://x.example/\n", "https://x.example/ a", "https://x.example/ü", "https://x.example/\x7f"),
        *("https://x.example:99999/", "https://x.example:123456/", "https://x.example:/", "https://x.example?a=b"),
        *("https://[::1/", "https://[x.example]/", "https://[1:2]/", " https://x.example/", "https://x.example/\\"),
    ],
)
def test_what_parsers_may_read_differently_is_not_allowed(url: str) -> None:
    assert allowed(url, "https://x.example", OTHERS) is None


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("/v2?a=b&c=/#part", "https://x.example/v2?a=b&c=/"),
        ("b", "https://x.example/crew/b"),
        ("../../b", "https://x.example/b"),
        ("?a", "https://x.example/crew/status?a"),
        ("//X.Example//a", "https://x.example//a"),
        ("https://x.example:443/b@c:8", "https://x.example/b@c:8"),
        ("HTTPS://x.example:0443", "https://x.example/"),
        ("https:///b", "https://x.example/b"),
    ],
)
def test_a_redirect_is_the_own_origin_with_another_path(location: str, url: str) -> None:
    found = redirected("https://x.example/crew/status", location)
    assert found == Place("https://x.example", url.removeprefix("https://x.example"))
    assert found.url == url


@pytest.mark.row("N37")
@pytest.mark.parametrize(
    "location",
    [
        *(
            "",
            "https://y.example/",
            "//y.example/b",
            "http://x.example/b",
            "https://x.example:444/b",
            "ftp://x.example/",
        ),
        *("https://y.example\\@x.example/b", "https://y.example\\.x.example/", "/\\y.example/b", "\\\\y.example/b"),
        *("https://x.example@y.example/", "https://y.example@x.example/b", "https://:@x.example/b"),
        *(
            "https://x.example:/b",
            "https://x.example:99999/b",
            "https://x.example:+443/",
            "https://x.example:\uff14\uff14\uff13/b",
        ),
        *("/\t/y.example/b", "/\n/y.example", "\x01//y.example/", "/a b", "https://x.example\x00.y.example/", "/\x7f"),
        *("https://x.example%2ey.example/", "https://x。example/b", "https://[::1", "https://x.example[/b", "/über"),
    ],
)
def test_a_redirect_that_parsers_may_read_differently_is_not_followed(location: str) -> None:
    assert redirected("https://x.example/crew/status", location) is None


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://proxy.example:3128", "http://proxy.example:3128"),
        ("https://user:word@proxy.example/", "https://user:word@proxy.example/"),
        ("http://[::1]:1", "http://[::1]:1"),
        ("proxy.example:3128", "http://proxy.example:3128"),
        ("proxy", "http://proxy"),
    ],
)
def test_proxy_addresses_are_http_or_https_with_http_as_default(given: str, url: str) -> None:
    assert proxy_url(given, "the proxy") == url


@pytest.mark.parametrize(
    "given",
    [
        *("socks5://proxy:1080", "ftp://proxy", "http://", "http://:3128", "http://proxy:0", "http://proxy:99999"),
        *("http://proxy:word", "http://[::1", "http://proxy/path", "http://proxy?a=b", "http://proxy#a", "proxy/path"),
        *("http://evil\\@proxy:3128", "http://pro\txy", "http://pro xy", "http://user:a\nb@proxy"),
    ],
)
def test_what_libraries_read_differently_is_no_proxy(given: str) -> None:
    with pytest.raises(ValueError, match="proxy") as error:
        proxy_url(given, "Extra 'proxy'")
    assert str(error.value) == "Extra 'proxy' is not an http or https address"


@pytest.mark.parametrize("view", ["/view?id=a-1", "/", "/view/a%2Fb?x=1&y=2#z", "/über", "/@evil.example", "/:8080/"])
def test_the_path_of_a_page_leads_below_the_base_url(view: str) -> None:
    assert view_path(view) == view
    assert urlsplit(f"https://x.example:8443{view}").netloc == "x.example:8443"


@pytest.mark.parametrize(
    "view",
    [
        *(None, 1, "", "view", "//evil.example", "/\\evil.example", "\\evil", "https://evil.example", "javascript:0"),
        *("/a b", "/a\tb", "/a\nb", "/a\x7f", "/a\x85", "/a\u00a0b", "/a\\b", " /a", "/a\u202e", "/" + "a" * 2048),
    ],
)
def test_any_other_path_of_a_page_is_ignored(view: Any) -> None:
    assert view_path(view) is None


def test_a_path_of_a_page_has_a_longest_size() -> None:
    longest = "/".ljust(LONGEST_VIEW, "a")
    assert view_path(longest) == longest
    assert view_path(longest + "a") is None


def test_the_url_for_browsers_is_a_base_url_too() -> None:
    assert browser_url(None) is None
    assert browser_url("http://localhost:8300/crew/") == "http://localhost:8300/crew"
    with pytest.raises(ValueError, match=r"^Extra 'browser_url' contains a credential"):
        browser_url("https://user:secret@x.example")
    with pytest.raises(ValueError, match=r"^Extra 'browser_url' is not an http or https address$"):
        browser_url("ftp://x.example")


SIGNATURE = "s" * SHORTEST_SIGNATURE


@pytest.mark.parametrize(
    ("query", "secrets"),
    [
        ("", ()),
        ("?", ()),
        ("?" + "q" * SHORTEST_QUERY, ("q" * SHORTEST_QUERY,)),
        ("?" + "q" * (SHORTEST_QUERY - 1), ()),
        (f"?date=20261120&sig={SIGNATURE}", (f"date=20261120&sig={SIGNATURE}", SIGNATURE)),
        (f"?date=20261120&sig={SIGNATURE[1:]}", (f"date=20261120&sig={SIGNATURE[1:]}",)),
        (f"?sig=%2F{SIGNATURE}&then=?", (f"sig=%2F{SIGNATURE}&then=?", f"/{SIGNATURE}")),
    ],
    ids=["none", "empty", "short", "too short", "signature", "no signature", "quoted"],
)
def test_a_query_and_each_signature_in_it_may_be_secret(query: str, secrets: tuple[str, ...]) -> None:
    assert query_secrets(f"https://bucket.example/report.pdf{query}") == secrets
