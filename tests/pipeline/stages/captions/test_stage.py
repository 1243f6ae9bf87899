import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypergrit_common.errors import UserError
from pipeline.stages.captions import TOKEN, CaptionsConfig, clean, clean_as_redcaps, clean_captions
from schemas.rows import CAPTIONED, DOWNLOADED
from tests.patience import linear_time
from tests.pipeline.settings import with_constants


def run_stage(*captions: str | None, config: CaptionsConfig | None = None) -> list[dict]:
    """Rows with these captions after the stage."""
    rows = [
        {"key": f"{i:012d}", "source": "a", "source_row": i, "status": "kept", "caption_original": caption}
        for i, caption in enumerate(captions)
    ]
    table = clean_captions(pa.Table.from_pylist(rows, schema=DOWNLOADED), config or CaptionsConfig())
    assert table.schema.equals(CAPTIONED)
    return table.to_pylist()


@pytest.mark.parametrize(
    ("original", "expected"),
    [
        ("Bikes: sales@bikes.example.com.", "Bikes: ."),
        ("Call +1 (415) 555-2671 or 030/1234567 now", "Call or now"),
        ("Call 415-555-2671", "Call"),
        ("Call (0)30 12 34 56 78, today", "Call , today"),
        ("00441632960961 a dog", "a dog"),
        ("@handle, a@b, 5 @ 7 EUR", "@handle, a@b, 5 @ 7 EUR"),
        ("in 1990-2000, on 01.02.2003 and 05/12/2019", "in 1990-2000, on 01.02.2003 and 05/12/2019"),
        (
            "0.12345678 of 1,000,000 at 12:30, ISBN 978-3-16-148410-0",
            "0.12345678 of 1,000,000 at 12:30, ISBN 978-3-16-148410-0",
        ),
    ],
)
def test_personal_data_leave_both_captions(original: str, expected: str) -> None:
    (row,) = run_stage(original, config=CaptionsConfig(redact=("email", "phone")))
    assert (row["caption"], row["caption_original"]) == (expected, expected)
    (kept,) = run_stage(original)
    assert kept["caption"] == kept["caption_original"] == original


def test_personal_data_leave_the_captions_of_dropped_rows_too() -> None:
    captions = [{"kind": "alt", "text": "a dog, ann@example.org"}, {"kind": "title", "text": "a dog"}]
    row = {"key": "0", "source": "a", "source_row": 0, "status": "dropped", "stage": "download", "reason": "http_error"}
    table = pa.Table.from_pylist([{**row, "captions": captions}], schema=DOWNLOADED)
    (found,) = clean_captions(table, CaptionsConfig(redact=("email",))).to_pylist()
    assert [caption["text"] for caption in found["captions"]] == ["a dog,", "a dog"]


def test_redaction_takes_linear_time_and_can_empty_a_caption() -> None:
    with linear_time():
        for piece in ("+1", "0 1 ", "(0)1", "a.", "a@b-", "415 555 ", "1.1.11", "+(((("):
            run_stage(piece * 40_000, config=CaptionsConfig(redact=("email", "phone")))
    (row,) = run_stage("ann@example.org", config=CaptionsConfig(redact=("email",)))
    assert (row["reason"], row["caption_original"]) == ("empty_caption", "")
    with pytest.raises(UserError, match=r"redact is \['name'\]; give one or more of \['email', 'phone'\]"):
        CaptionsConfig(redact=("name",))


@pytest.mark.parametrize(
    ("original", "expected"),
    [
        ("caf\u00c3\u00a9 au lait", "café au lait"),
        ("cats &amp; dogs", "cats & dogs"),
        ("salt &amp;amp; pepper", "salt & pepper"),
        (" a\tred \u00a0 bus\n", "a red bus"),
        ("two 🐕\u200d🦺 dogs", "two 🐕\u200d🦺 dogs"),
        ("nul\x00 byte", "nul byte"),
        ("salt &amp;amp;amp;amp; pepper", "salt & pepper"),
        ("a <b>red</b> dog<br/>on grass", "a red dog on grass"),
        ('&lt;a href="x.html" class=y&gt;a dog&lt;/a&gt;', "a dog"),
        ("<a href=x onclick>a cat</a>", "a cat"),
        ("<img src=\"a>b\" alt>a dog <input disabled> <b title='x < y'>runs</b>", "a dog runs"),
        ("<section>a</section> <article class=x>red</article> <button hidden>dog</button><svg/>", "a red dog"),
        ("a < b > c, x <a and b> y, a <b, c> d", "a < b > c, x <a and b> y, a <b, c> d"),
        ("<person> holds a dog, 3 < 5 > 2", "<person> holds a dog, 3 < 5 > 2"),
        ('the ""big"" dog', 'the "big" dog'),
        ("a\u200b do\u00adg \u202edna\u202c cat\ufeff\u200d", "a dog dna cat"),
        ("\u0645\u06cc\u200c\u0631\u0648\u062f", "\u0645\u06cc\u200c\u0631\u0648\u062f"),
        ("<mark>a dog</mark>", "a dog"),
        ("<title>a dog</title> <o:p>on grass</o:p>", "a dog on grass"),
        ("<!DOCTYPE html><head>a dog", "a dog"),
        ("a<br / >dog <!-- a > b --> on grass", "a dog on grass"),
        ("a dog <img src=foo.jpg alt=a dog>", "a dog"),
        ('<a href="x" target=_blank rel>dog</a>', "dog"),
        ("<style>p{color:red}</style>a <SCRIPT type='x'>alert(1)</script>dog", "a dog"),
        ("a\u180e \u034fd\u2065o\U000e0041g\u3164", "a dog"),
        (
            "flag \U0001f3f4\U000e0067\U000e0062\U000e0073\U000e007f",
            "flag \U0001f3f4\U000e0067\U000e0062\U000e0073\U000e007f",
        ),
        ("&" + "#38;" * 60 + "lt;b&gt;dog", "dog"),
        ("a <person> x <a and b>", "a <person> x <a and b>"),
        # numeric entities of any length
        ("a &#" + "9" * 5000 + "; dog", "a \ufffd dog"),
        ("a &amp;#" + "9" * 5000 + " dog", "a \ufffd dog"),
        ("a &#" + "0" * 5000 + "65; dog", "a A dog"),
        ("a &#x" + "0" * 5000 + "41; dog", "a A dog"),
        ("a &#" + "0" * 5000 + "; dog", "a \ufffd dog"),
        ("&#65;&#x42;&#00000067", "ABC"),
        # a name without a semicolon is no entity in front of a letter, a digit or "="
        (
            "R&ampD, x.example/?p=2&reg=4&para7&timesx &unkn; &copy;9",
            "R&ampD, x.example/?p=2&reg=4&para7&timesx &unkn; ©9",
        ),
        ("H&amp M &pound&nbsp5 &reg, 3 &gt 2 &#8364 7&deg", "H& M £&nbsp5 ®, 3 > 2 € 7°"),
        # surrogates
        ("a cat &#55357;&#56369; &#xD83E;&#xDD8A &amp;#55356;&amp;#57113;", "a cat 🐱 🦊 🌙"),
        ("&#xD83D; cat &#56369;&#55357;", "\ufffd cat \ufffd\ufffd"),
        # mojibake with quotation marks
        ("Bricksâ„¢ for â‚¡900, â„–5", "Bricks™ for ₡900, №5"),
        ("Ã¢â‚¬Å“OpenÃ¢â‚¬Â doorÃ¢â‚¬â„¢s Ã¢â‚¬â€œ TeslaÃ¢â€žÂ¢", '"Open" door\'s – Tesla™'),
        ("a â€œNo parkingâ€ sign, a 32â€ TV, â€œgoâ€\ufffd, â€œcafÃ©â€", 'a "No parking" sign, a 32" TV, "go", "café"'),
        ("10°â€“20°, sheÂ’s backÂ…", "10°–20°, she's back…"),
        ("Bricks‚Ñ¢ ‚Äústop‚Äù, Bricksв„ў вЂњstopвЂќ", 'Bricks™ "stop", Bricks™ "stop"'),
        ("“ÉTÉ” d’été, ‚rot‘ „Spaß“, 5′ ‟a”", '"ÉTÉ" d\'été, \'rot\' "Spaß", 5′ "a"'),
        # too little to be sure of
        ("Ã…re, Ã’, a Ä„ sign, SÃ¥", "Ã…re, Ã’, a Ä„ sign, SÃ¥"),
        # letters in the style of mathematics, circles and squares
        ("𝓑𝓻𝓪𝓼𝓼 ⓛⓐⓜⓟ 🄺🄸🅃, 𝑡ℎ𝑖𝑛 Oak Ⓡ", "Brass lamp KIT, thin Oak Ⓡ"),
        # user names and passwords leave URLs, and nothing else
        ("a dog http://ann:pw@h/x on grass", "a dog http://h/x on grass"),
        ("a dog http:&#47;&#47;ann:pw@h", "a dog http://h"),
        ("write to ann@h.org", "write to ann@h.org"),
        ("Email:ann@h.org", "Email:ann@h.org"),
        ("https://h.org: photo by ann @ home", "https://h.org: photo by ann @ home"),
        ("https://medium.com/@ann http://h:80 me@h", "https://medium.com/@ann http://h:80 me@h"),
    ],
)
def test_entities_mojibake_tags_invisible_characters_and_passwords_are_cleaned(original: str, expected: str) -> None:
    assert clean(original) == expected == clean(expected)


@settings(max_examples=300, deadline=None)
@given(
    pieces=st.lists(
        st.sampled_from(
            ["&", "amp;", "lt;", "gt;", "quot;", "#60;", "<", ">", "b", "/", "br", '"', "\u200b", "\u200d", "\u202e",
             " ",              "\t", "a", "é", "Ã©", "â€™", "ﬁ", "\x00", "\x1b[0m", "'", "🐶", "\ufeff", "\u0301", "&nbsp;", "x=", "ＡＢ",
             "&amp", "#55357;", "#56374;", "â€", "œ", "â„¢", "Ã¢â‚¬", "Â", "“", "„", "Ã", "™"]
        ),
        max_size=25,
    )
)  # fmt: skip
def test_cleaning_a_clean_caption_changes_nothing(pieces: list[str]) -> None:
    cleaned = clean("".join(pieces))
    assert clean(cleaned) == cleaned


def test_original_caption_is_kept_beside_the_cleaned_one() -> None:
    row = run_stage("  A &lt;3&gt; dog ")[0]
    assert (row["caption"], row["caption_original"], row["status"]) == ("A <3> dog", "  A &lt;3&gt; dog ", "kept")


@pytest.mark.parametrize("caption", [None, "", " \n ", "&nbsp;"])
def test_caption_that_is_empty_after_cleaning_is_dropped(caption: str | None) -> None:
    row = run_stage("a dog", caption)[1]
    assert (row["stage"], row["reason"]) == ("captions", "empty_caption")


def test_caption_above_the_limit_is_dropped_as_too_long() -> None:
    rows = run_stage("x" * 100, "x" * 101, "x" * 2_000_000, config=with_constants(CaptionsConfig, max_characters=100))
    assert [row["reason"] for row in rows] == [None, "caption_too_long", "caption_too_long"]
    assert rows[1]["detail"] == "101 characters"


def test_redcaps_cleaning_removes_case_accents_brackets_and_handles() -> None:
    assert clean_as_redcaps("My Café (2019) [OC ((x))] by @some_one! Привет") == "my cafe by <usr>"


def test_redcaps_cleaning_is_optional() -> None:
    assert run_stage("A Dog (big)")[0]["caption"] == "A Dog (big)"
    assert run_stage("A Dog (big)", config=CaptionsConfig(redcaps=True))[0]["caption"] == "a dog"
    assert run_stage("(only)", config=CaptionsConfig(redcaps=True))[0]["reason"] == "empty_caption"


def test_deep_brackets_take_linear_time() -> None:
    with linear_time():
        for _ in range(20):
            clean_as_redcaps("(" * 40_000 + "dog" + ")" * 40_000)
    assert clean_as_redcaps("a ((very) [big]) dog") == "a dog"


@pytest.mark.parametrize(
    "piece",
    [
        "<!--",
        "<img src=",
        "<img  src",
        "<script ",
        "<style>",
        '<a x="',
        '<a x="<a y=" ',
        '<a x="" ',
        "<a \t",
        "<a disabled ",
        "â€",
        "&ampx#",
    ],
)
def test_unfinished_tags_take_linear_time(piece: str) -> None:
    with linear_time():
        clean(piece * 60_000)


@pytest.mark.parametrize(
    ("caption", "n"),
    [("a red dog", 3), ("it's 10 o'clock ...", 8), ("the dogs' bowls", 4), ("über-großer Hund", 4), ("", 0)],
)
def test_tokens_are_words_digits_and_other_characters(caption: str, n: int) -> None:
    assert sum(1 for _ in TOKEN.finditer(caption)) == n


def test_caption_with_more_tokens_than_the_limit_is_dropped_as_too_long() -> None:
    out = run_stage("a red dog", "a big red dog", config=CaptionsConfig(max_tokens=3))
    assert [(row["reason"], row["detail"]) for row in out] == [(None, None), ("caption_too_long", "4 tokens")]


LATIN_WORDS = (
    "Ålesund café Übergröße Straße señora São àéî Łódź źrebię ŒUVRE Œab Ēka kŌb ťuk Děčín Győr ștrand Ñ Ô Ś ģimene"
)


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "cp1250", "sloppy-windows-1251", "macroman"])
def test_cleaning_repairs_a_word_of_a_latin_language_or_leaves_it(encoding: str) -> None:
    for word in LATIN_WORDS.split():
        for text in (word, f"a {word} b", f"a “{word}” sign"):
            try:
                broken = text.encode().decode(encoding)
            except UnicodeError:  # a byte that the encoding lacks
                continue
            assert clean(broken) in (clean(text), " ".join(broken.split())), broken
